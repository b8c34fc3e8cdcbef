//! Global options, and the commands on which each acts.

use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, Command, CommandFactory as _, FromArgMatches as _};

use super::Cli;

/// Options that are accepted before and after the name of a command.
#[derive(Debug, Clone, Args)]
pub(super) struct Global {
    /// Configuration file; defaults to BRIDGE_CONFIG, then to ./forge-bridge.toml if it exists
    #[arg(long, global = true, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// Print machine-readable JSON
    #[arg(long, global = true)]
    pub(super) json: bool,
    /// Address of the bridge; defaults to `listen` of the configuration, http://127.0.0.1:7420 without one
    #[arg(long, global = true, env = "BRIDGE_URL")]
    pub(super) url: Option<String>,
    /// Bearer token for the bridge
    #[arg(long, global = true, env = "BRIDGE_TOKEN", hide_env_values = true)]
    pub(super) token: Option<String>,
    /// Trust only these certificates (PEM), for a bridge with a self-signed or private one
    #[arg(long, global = true, env = "BRIDGE_CA", value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
}

const ALL: [&str; 5] = ["config", "json", "url", "token", "ca"];

/// Options that act on a command, for those on which not all do. Also for the commands below it, unless they have an
/// entry of their own.
const ACTING: [(&[&str], &[&str]); 28] = [
    (&["serve"], &["config"]),
    (&["demo"], &["json"]),
    (&["dev"], &["config", "json"]),
    (&["check"], &["config", "json"]),
    (&["secrets"], &["config", "json"]),
    (&["secrets", "token"], &["json"]),
    (&["adapters", "new"], &["json"]),
    (&["adapters", "test"], &["json"]),
    (&["top"], &["config", "url", "token", "ca"]),
    (&["callback"], &["config", "json"]),
    (&["drill"], &["config", "json"]),
    (&["store"], &["config", "json"]),
    (&["forge", "manifest"], &["config", "json"]),
    (&["forge", "manifest", "validate"], &["json"]),
    (&["forge", "manifest", "schema"], &["json"]),
    (&["forge", "generate"], &["config", "json"]),
    (&["forge", "inspect"], &["config", "json"]),
    (&["forg", "emit"], &["json"]),
    (&["forg", "activate"], &["json"]),
    (&["forg", "token"], &["json"]),
    (&["forg", "connect"], &["json"]),
    (&["forg", "rules", "test"], &["json"]),
    (&["forg", "rules", "schema"], &["json"]),
    (&["conformance"], &["json", "token"]),
    (&["completions"], &[]),
    (&["manual"], &[]),
    (&["help"], &[]),
    (&[], &ALL),
];

/// Options that act on the command with this path: the entry with the longest common start decides.
fn acting(path: &[&str]) -> &'static [&'static str] {
    let entries = ACTING.iter().filter(|(start, _)| path.starts_with(start));
    entries
        .max_by_key(|(start, _)| start.len())
        .map_or(&ALL[..], |(_, options)| options)
}

/// Hides, in the help of each command, the options that do not act on it.
pub(super) fn hide_idle(mut command: Command) -> Command {
    // Gives each command its own copy of the global options.
    command.build();
    for sub in command.get_subcommands_mut() {
        hide(sub, &[]);
    }
    command
}

fn hide(command: &mut Command, above: &[&str]) {
    let name = command.get_name().to_owned();
    let path = [above, &[&name]].concat();
    let acting = acting(&path);
    *command = std::mem::take(command).mut_args(|arg| {
        let id = arg.get_id().as_str();
        // Another argument of a command can have the same name.
        match arg.is_global_set() && ALL.contains(&id) && !acting.contains(&id) {
            true => arg.hide(true),
            false => arg,
        }
    });
    for sub in command.get_subcommands_mut() {
        hide(sub, &path);
    }
}

/// Parses the process's arguments. An option that does not act on the command is an error, unless it comes from the
/// environment, which other commands share.
pub(super) fn parse() -> Result<Cli, clap::Error> {
    let mut command = hide_idle(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    let (path, last) = path(&matches);
    let acting = match path.is_empty() {
        true => acting(&["serve"]),
        false => acting(&path),
    };
    let names = [command.get_name()].into_iter().chain(path.iter().copied());
    let shown = names.collect::<Vec<_>>().join(" ");
    let mut at = &mut command;
    for name in path {
        at = at
            .find_subcommand_mut(name)
            .expect("the command was parsed");
    }
    let idle = at.get_arguments().find(|arg| {
        let id = arg.get_id().as_str();
        let is_given = last.value_source(id) == Some(ValueSource::CommandLine);
        arg.is_global_set() && ALL.contains(&id) && is_given && !acting.contains(&id)
    });
    if let Some(idle) = idle {
        let message = format!("--{} has no effect on `{shown}`", idle.get_id());
        return Err(at.error(ErrorKind::ArgumentConflict, message));
    }
    Cli::from_arg_matches(&matches)
}

/// Names of the command and of those above it, and its arguments.
fn path(matches: &ArgMatches) -> (Vec<&str>, &ArgMatches) {
    let (mut names, mut last) = (Vec::new(), matches);
    while let Some((name, below)) = last.subcommand() {
        names.push(name);
        last = below;
    }
    (names, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_entry_names_a_command_and_options_that_exist() {
        for (path, options) in ACTING {
            assert!(
                options.iter().all(|option| ALL.contains(option)),
                "{path:?}"
            );
            let mut at = &Cli::command();
            for name in path.iter().filter(|name| **name != "help") {
                at = at
                    .find_subcommand(name)
                    .unwrap_or_else(|| panic!("{path:?}"));
            }
        }
        let declared = Cli::command();
        let declared = declared.get_arguments().filter(|arg| arg.is_global_set());
        let declared: Vec<_> = declared.map(|arg| arg.get_id().as_str()).collect();
        assert_eq!(declared, ALL);
    }

    #[test]
    fn help_shows_the_options_that_act() {
        for (path, shown, hidden) in [
            (
                &["serve"][..],
                &["--config"][..],
                &["--json", "--url", "--token"][..],
            ),
            (&["secrets", "token"], &["--json"], &["--config", "--ca"]),
            (&["adapters", "list"], &["--json", "--url", "--token"], &[]),
            (&["completions"], &[], &["--json", "--config"]),
            (&["callback", "test"], &["<URL>", "--json"], &["--url"]),
        ] {
            let mut command = hide_idle(Cli::command());
            let mut at = &mut command;
            for name in path {
                at = at.find_subcommand_mut(name).unwrap();
            }
            let help = at.render_long_help().to_string();
            assert!(shown.iter().all(|option| help.contains(option)), "{help}");
            assert!(!hidden.iter().any(|option| help.contains(option)), "{help}");
        }
    }
}
