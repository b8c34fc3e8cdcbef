//! Checked rules as commands print them: a line for each, and the sums, which decide the exit code.

use std::process::ExitCode;

use serde_json::{Value, json};

use super::screen::{Screen, Tone, text};
use super::{Context, FAILED};

/// Prints the `outcome` of a rule (`ok`, `failed`, `unchecked`), and below it what was `seen`, and the call that was `sent`.
pub(super) fn row(screen: &Screen, title: &str, row: &Value) -> std::io::Result<()> {
    let mark = match row["outcome"].as_str() {
        Some("ok") => screen.paint(Tone::Good, "ok  "),
        Some("unchecked") => screen.paint(Tone::Quiet, "-   "),
        Some(_) | None => screen.paint(Tone::Bad, "FAIL"),
    };
    screen.line(format_args!("  {mark}  {title}"))?;
    if row["seen"].is_string() {
        let seen = format!("        {}", text(row, "/seen"));
        screen.line(screen.paint(Tone::Quiet, seen))?;
    }
    if row["sent"].is_string() {
        let sent = format!("        sent: {}", text(row, "/sent"));
        screen.line(screen.paint(Tone::Quiet, sent))?;
    }
    Ok(())
}

/// Prints the sums, or all rows as JSON; `noun` names the rows.
pub(super) fn verdict(context: &Context, noun: &str, rows: &[Value]) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    let (good, failed, unchecked) = (
        count(rows, "ok"),
        count(rows, "failed"),
        count(rows, "unchecked"),
    );
    if context.global.json {
        screen.value(&json!({ "passed": failed == 0, noun: rows }))?;
    } else {
        let tone = if failed == 0 { Tone::Good } else { Tone::Bad };
        screen.line(format_args!(
            "{}, {unchecked} not checked",
            screen.paint(tone, format_args!("{good} {noun} passed, {failed} failed")),
        ))?;
    }
    Ok(match failed {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(FAILED),
    })
}

/// Number of rows with this outcome.
pub(super) fn count(rows: &[Value], outcome: &str) -> usize {
    rows.iter().filter(|row| row["outcome"] == outcome).count()
}
