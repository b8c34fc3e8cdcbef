//! `forge-bridge check`: reports all problems of the configuration and the adapters at once.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::screen::Tone;
use super::{Context, FAILED, block_on};
use crate::app;
use crate::app::check::Findings;
use crate::config::{Error, Loaded};
use forge_store_postgres::peek::Report as Database;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Load every adapter too, which runs its code, and ask for its health
    #[arg(long)]
    load: bool,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Report { file, findings } = examine(context, arguments.load)?;
    let Findings {
        problems,
        warnings,
        advice,
        store,
    } = findings;
    let screen = context.screen();
    if context.global.json {
        screen.value(&json!({
            "ok": problems.is_empty(), "file": file, "problems": problems, "warnings": warnings, "advice": advice,
            "loaded": arguments.load, "store": store.as_ref().map(described),
        }))?;
    } else {
        if let Some(report) = &store {
            screen.line(format_args!(
                "{} {}",
                screen.paint(Tone::Quiet, "store:"),
                line(report)
            ))?;
        }
        for warning in &warnings {
            screen.line(format_args!(
                "{} {warning}",
                screen.paint(Tone::Strong, "warning:")
            ))?;
        }
        for line in &advice {
            screen.line(format_args!(
                "{} {line}",
                screen.paint(Tone::Quiet, "advice:")
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
            let (tone, verdict) = match warnings.len() {
                0 => (Tone::Good, "no errors".to_owned()),
                1 => (Tone::Strong, "no errors, 1 warning".to_owned()),
                count => (Tone::Strong, format!("no errors, {count} warnings")),
            };
            let extent = match arguments.load {
                true => "every adapter was loaded and asked for its health",
                false => "no adapter was loaded; --load loads each and asks for its health",
            };
            screen.line(format_args!(
                "{} ({from}); {extent}",
                screen.paint(tone, verdict)
            ))?;
        }
    }
    Ok(match problems.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

/// State of the database in one line.
fn line(report: &Database) -> String {
    let Database {
        database,
        server,
        schema,
        missing_rights,
        round_trip,
        durability,
    } = report;
    let tables = match schema {
        Some(version) => format!("tables of version {version}"),
        None => "no tables yet".to_owned(),
    };
    let rights = match missing_rights.len() {
        0 => "all rights",
        _ => "rights missing",
    };
    format!(
        "{database}, PostgreSQL {server}, {tables}, {rights}, round trip {:.2} ms, durability {durability}",
        round_trip.as_secs_f64() * 1e3,
    )
}

fn described(report: &Database) -> Value {
    json!({
        "database": report.database, "server": report.server, "schema": report.schema,
        "missingRights": report.missing_rights, "roundTripMs": report.round_trip.as_secs_f64() * 1e3,
        "durability": report.durability,
    })
}

struct Report {
    /// The configuration file, if it has no errors.
    file: Option<String>,
    findings: Findings,
}

fn examine(context: &Context, load: bool) -> anyhow::Result<Report> {
    let (config, file, warnings, problems) = match context.sources().load() {
        Ok(Loaded {
            config,
            file,
            warnings,
        }) => (Some(Box::new(config)), file, warnings, Vec::new()),
        Err(Error {
            problems,
            warnings,
            rest,
        }) => (rest, None, warnings, problems),
    };
    let sections = problems
        .iter()
        .filter_map(|problem| problem.key.split('.').next());
    let mut findings = Findings {
        problems: problems.iter().map(ToString::to_string).collect(),
        warnings,
        store: None,
        advice: Vec::new(),
    };
    if let Some(config) = config {
        let options = app::Options::new(context.environment.clone());
        let skipped = sections.collect();
        let further = app::check::findings(&config, &options, load, &skipped);
        let further = block_on(further)?;
        findings.problems.extend(further.problems);
        findings.warnings.extend(further.warnings);
        findings.advice.extend(further.advice);
        findings.store = further.store;
    }
    Ok(Report {
        file: file.map(|path| path.display().to_string()),
        findings,
    })
}
