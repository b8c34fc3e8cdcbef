//! `forg connect`: makes a tool call `forg`, or no longer. Shows the change of the tool's file before it is made.

mod claude;

use std::env;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use super::super::screen::Tone;
use super::super::{Context, FAILED, lines};
use super::files::{self, Access};
use forge_base::edit_lock::EditLock;

/// Maximum size of a file of a tool.
const SETTINGS_BYTES: u64 = 4 * 1024 * 1024;

/// Plugin of OpenCode; its first line identifies it.
const PLUGIN: &str = include_str!("opencode.js");

#[derive(Debug, Args)]
pub(super) struct Arguments {
    tool: Tool,
    /// Change the settings of the user, not those of the project in this folder
    #[arg(long)]
    user: bool,
    /// Disconnect the tool; everything else stays as it is
    #[arg(long)]
    remove: bool,
    /// Change the file without asking
    #[arg(long)]
    yes: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Tool {
    ClaudeCode,
    #[value(name = "opencode")]
    OpenCode,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let shown = path(context, arguments)?;
    // The authors of a project have made its links; a link of the user leads where the user wants.
    let within = (!arguments.user).then(|| Path::new("."));
    let path = files::resolve(&shown, within);
    let path = path.with_context(|| format!("cannot use {}", shown.display()))?;
    let (old, new) = change(&path, arguments)?;
    let screen = context.screen();
    if old == new {
        let state = match arguments.remove {
            true => "not connected",
            false => "connected",
        };
        screen.line(format_args!("{}: {state}, no change", shown.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.line(screen.paint(Tone::Strong, shown.display()))?;
    let (before, after) = (
        old.as_deref().unwrap_or_default(),
        new.as_deref().unwrap_or_default(),
    );
    lines::print(&screen, before, after)?;
    if !arguments.yes {
        // A script or a tool would wait for ever for its own answer.
        if !io::stdin().is_terminal() {
            bail!(
                "standard input is not a terminal, so nothing was changed; --yes changes the file without asking"
            );
        }
        if !screen.ask("Change this file?")? {
            screen.aside("nothing was changed")?;
            return Ok(ExitCode::from(FAILED));
        }
    }
    make(&path, arguments, &(old, new))?;
    let paths = context.environment.get("PATH");
    let is_found = env::split_paths(paths.map_or("", String::as_str))
        .any(|folder| folder.join("forg").is_file());
    if !arguments.remove && !is_found {
        screen.aside("`forg` is not on the PATH: the tool will not find it")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Text of the file, and as it is to be; `None` without a file.
type Texts = (Option<String>, Option<String>);

/// Reads the file, and says how it is to be.
fn change(path: &Path, arguments: &Arguments) -> anyhow::Result<Texts> {
    let cannot_read = || format!("cannot read {}", path.display());
    let old = files::read(path, SETTINGS_BYTES).with_context(cannot_read)?;
    let old = old.map(String::from_utf8).transpose();
    let old = old.with_context(cannot_read)?;
    let new = match (arguments.tool, arguments.remove) {
        (Tool::ClaudeCode, remove) => claude::changed(old.as_deref().unwrap_or_default(), !remove)
            .with_context(|| format!("{} is left as it is", path.display()))?,
        (Tool::OpenCode, remove) => {
            let is_own = |text: &String| text.lines().next() == PLUGIN.lines().next();
            if old.as_ref().is_some_and(|text| !is_own(text)) {
                bail!("{} is not a file of forg; rename it", path.display());
            }
            (!remove).then(|| PLUGIN.to_owned())
        }
    };
    Ok((old, new))
}

/// Changes the file as it was shown. One that another process has changed since is changed as it is now, if no question
/// was asked about it.
fn make(path: &Path, arguments: &Arguments, shown: &Texts) -> anyhow::Result<()> {
    let cannot_write = || format!("cannot write {}", path.display());
    files::make_folder_of(path, Access::Umask).with_context(cannot_write)?;
    let _lock = EditLock::take(path)?;
    let now = change(path, arguments)?;
    if now != *shown && !arguments.yes {
        bail!(
            "{} was changed by another process meanwhile; run the command again",
            path.display()
        );
    }
    let (old, new) = now;
    match new {
        Some(text) => files::replace(path, text.as_bytes(), Access::Umask),
        None if old.is_some() => files::remove(path),
        None => Ok(()),
    }
    .with_context(cannot_write)
}

/// File that the tool reads.
fn path(context: &Context, arguments: &Arguments) -> anyhow::Result<PathBuf> {
    let folder = |name| {
        let value = context.environment.get(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let home = || folder("HOME").context("HOME is not set");
    Ok(match (arguments.tool, arguments.user) {
        (Tool::ClaudeCode, false) => Path::new(".claude").join("settings.json"),
        (Tool::ClaudeCode, true) => match folder("CLAUDE_CONFIG_DIR") {
            Some(folder) => folder.join("settings.json"),
            None => home()?.join(".claude/settings.json"),
        },
        (Tool::OpenCode, false) => Path::new(".opencode/plugins").join("forg.js"),
        (Tool::OpenCode, true) => {
            let config = match folder("XDG_CONFIG_HOME") {
                Some(folder) => folder,
                None => home()?.join(".config"),
            };
            config.join("opencode/plugins/forg.js")
        }
    })
}
