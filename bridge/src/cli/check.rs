//! `forge-bridge check`: reports all problems of the configuration and the adapters at once.

use std::process::ExitCode;

use serde_json::json;

use super::screen::Tone;
use super::{Context, FAILED, block_on};
use crate::app;
use crate::config::{Error, Loaded};

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let (file, warnings, problems) = match context.sources().load() {
        Ok(loaded) => examine(context, loaded)?,
        Err(Error { problems, warnings }) => {
            let problems = problems.iter().map(ToString::to_string).collect();
            (None, warnings, problems)
        }
    };
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({
            "ok": problems.is_empty(), "file": file, "problems": problems, "warnings": warnings,
        }))?;
    } else {
        for warning in &warnings {
            screen.line(format_args!(
                "{} {warning}",
                screen.paint(Tone::Strong, "warning:")
            ))?;
        }
        for problem in &problems {
            screen.line(format_args!(
                "{} {problem}",
                screen.paint(Tone::Bad, "error:")
            ))?;
        }
        if problems.is_empty() {
            let from = file.unwrap_or_else(|| "the defaults and the environment".to_owned());
            screen.line(format_args!(
                "{} ({from})",
                screen.paint(Tone::Good, "all is well")
            ))?;
        }
    }
    Ok(match problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

type Findings = (Option<String>, Vec<String>, Vec<String>);

fn examine(context: &Context, loaded: Loaded) -> anyhow::Result<Findings> {
    let options = app::Options::new(context.environment.clone());
    let problems = block_on(app::check::problems(&loaded.config, &options))?;
    let file = loaded.file.map(|path| path.display().to_string());
    Ok((file, loaded.warnings, problems))
}
