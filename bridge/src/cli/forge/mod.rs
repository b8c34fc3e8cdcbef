//! `forge-bridge forge`, also called `forge`: manifests of external services, and the files generated from them. JSON
//! output and exit codes are those of the protocol's own tool.

mod call;
mod generate;
mod manifest;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::screen::{Screen, Tone};
use super::{Context, FAILED};
use forge_base::ownership::Trust;
use forge_external::catalog::Catalog;
use forge_external::diagnostic::{Diagnostic, Severity, any_error};

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Folder of the registry and of forge.manifest.json; defaults to `external.root` of the configuration
    #[arg(long, global = true, value_name = "DIR")]
    root: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Validate, import and remove manifests of external services
    Manifest(manifest::Arguments),
    /// Generate references, tools and a client from the imported services
    Generate(generate::Arguments),
    /// Call a command of an external service through a running bridge
    Run(call::RunArguments),
    /// Call a query of an external service through a running bridge
    Query(call::QueryArguments),
    /// Show what is known of the external services
    Inspect {
        #[arg(value_parser = ["external"])]
        target: String,
    },
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let root = arguments.root.as_deref();
    match &arguments.command {
        Command::Manifest(arguments) => manifest::run(context, root, arguments),
        Command::Generate(arguments) => generate::run(context, root, arguments),
        Command::Run(arguments) => call::run(context, arguments),
        Command::Query(arguments) => call::query(context, arguments),
        Command::Inspect { target } => generate::inspect(context, root, target),
    }
}

/// Reports a mistake in the arguments as the protocol's tool does, and returns its exit code.
pub(super) fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if !json || !error.use_stderr() {
        // A closed standard error leaves nothing to report to.
        let _ = error.print();
        return match error.use_stderr() {
            true => ExitCode::from(FAILED),
            false => ExitCode::SUCCESS,
        };
    }
    let text = error.to_string();
    let message = text.lines().next().unwrap_or_default();
    let screen = Screen::new(&super::Environment::new());
    let found = Diagnostic::error("FORGE_CLI_USAGE", message.trim_start_matches("error: "));
    let found = json!({"severity": found.severity, "code": found.code, "message": found.message});
    // As above.
    let _ = screen.value(&json!({"errors": [found], "exitCode": FAILED, "failureKind": "usage"}));
    ExitCode::from(FAILED)
}

/// Outcome of a command.
struct Report<'a> {
    /// Members of the JSON output besides `diagnostics` and `exitCode`.
    members: Value,
    diagnostics: &'a [Diagnostic],
    /// Lines for people, if there is no error.
    lines: Vec<String>,
}

impl Report<'_> {
    fn print(self, context: &Context) -> anyhow::Result<ExitCode> {
        let screen = context.screen();
        let code = u8::from(any_error(self.diagnostics));
        if context.global.json {
            let mut output = self.members;
            output["diagnostics"] = json!(self.diagnostics);
            output["exitCode"] = code.into();
            screen.value(&output)?;
            return Ok(ExitCode::from(code));
        }
        for found in self.diagnostics {
            print_diagnostic(&screen, found)?;
        }
        if code == 0 {
            self.lines
                .into_iter()
                .try_for_each(|line| screen.line(line))?;
        }
        Ok(ExitCode::from(code))
    }
}

fn print_diagnostic(screen: &Screen, found: &Diagnostic) -> std::io::Result<()> {
    let (tone, severity) = match found.severity {
        Severity::Error => (Tone::Bad, "error"),
        Severity::Warning => (Tone::Strong, "warning"),
        Severity::Info => (Tone::Quiet, "note"),
    };
    screen.aside(format_args!(
        "{}: {}  {}",
        screen.paint_aside(tone, severity),
        found.message,
        screen.paint_aside(Tone::Quiet, &found.code),
    ))?;
    if let Some(file) = &found.file {
        screen.aside(format_args!("  in {file}"))?;
    }
    if let Some(hint) = &found.fix_hint {
        screen.aside(format_args!("  {hint}"))?;
    }
    for command in &found.suggested_commands {
        screen.aside(format_args!("  $ {command}"))?;
    }
    Ok(())
}

/// Folder of the manifests, and the policies of the configuration.
struct Workspace {
    root: PathBuf,
    policies: Vec<String>,
}

impl Workspace {
    fn open(context: &Context, root: Option<&Path>) -> anyhow::Result<Self> {
        let config = context.sources().load()?.config.external;
        Ok(Self {
            root: root.map_or(config.root, Path::to_owned),
            policies: config.policies.into_keys().collect(),
        })
    }

    /// Services, and the diagnostics of reading them; no services if there is an error.
    fn load(&self) -> (Catalog, Vec<Diagnostic>) {
        match Catalog::load(
            &self.root,
            Trust::Warn,
            self.policies.iter().map(String::as_str),
        ) {
            Ok(catalog) => {
                let diagnostics = catalog.diagnostics.clone();
                (catalog, diagnostics)
            }
            Err(diagnostics) => (Catalog::default(), diagnostics),
        }
    }
}
