//! `forge-bridge callback test`: checks that a receiver handles callbacks correctly, before results depend on it.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::screen::{Screen, Tone};
use super::{Context, FAILED, block_on};
use crate::app::receiver::{Answer, Owed, Receiver, Signed};
use forge_delivery::verdict::Verdict;

/// Deliveries whose response time is measured.
const TIMED: usize = 5;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Send test callbacks to a receiver: valid, repeated, wrongly signed and outdated ones
    Test {
        /// URL of the receiver, as in the `callbackUrl` of a dispatch
        url: String,
        /// Signing secret (`whsec_…`), in place of the one configured for this receiver
        #[arg(long, env = "FORGE_CALLBACK_SECRET", hide_env_values = true)]
        secret: Option<String>,
    },
}

/// Outcome of one rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grade {
    Good,
    /// Allowed, but not recommended.
    Poor,
    Bad,
}

struct Row {
    rule: &'static str,
    grade: Grade,
    seen: String,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let Command::Test { url, secret } = &arguments.command;
    let config = context.sources().load()?.config;
    let rows = block_on(async {
        let receiver = Receiver::open(&config, url, secret.clone()).await?;
        examine(&receiver).await
    })?;
    let passed = rows.iter().all(|row| row.grade != Grade::Bad);
    let screen = context.screen();
    match context.global.json {
        true => screen.value(&json!({
            "passed": passed, "url": url, "rules": rows.iter().map(Row::json).collect::<Vec<_>>(),
        }))?,
        false => {
            screen.line(format_args!(
                "{}  {url}",
                screen.paint(Tone::Strong, "callback test")
            ))?;
            for row in &rows {
                row.print(&screen)?;
            }
        }
    }
    Ok(match passed {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(FAILED),
    })
}

async fn examine(receiver: &Receiver) -> anyhow::Result<Vec<Row>> {
    let mut owed = Owed::new();
    let first = receiver.send(&mut owed, Signed::Rightly).await?;
    let mut rows = vec![taken("accepts a signed callback", &first)];
    rows.extend(comes_again(&first));
    if first.verdict != Verdict::Delivered {
        // The other rules are meaningless for a receiver that accepts no callback.
        return Ok(rows);
    }
    let again = receiver.send(&mut owed, Signed::Rightly).await?;
    rows.push(taken("accepts the same again (same webhook-id)", &again));
    let forged = receiver.send(&mut Owed::new(), Signed::Wrongly).await?;
    rows.push(refused("rejects a wrong signature", &forged, Grade::Bad));
    let old = receiver.send(&mut Owed::new(), Signed::LongAgo).await?;
    rows.push(refused(
        "rejects a signature ten minutes old",
        &old,
        Grade::Poor,
    ));
    let mut times = Vec::with_capacity(TIMED);
    for _ in 0..TIMED {
        let answer = receiver.send(&mut Owed::new(), Signed::Rightly).await?;
        times.push(answer.took);
    }
    rows.push(in_time(&mut times, receiver.timeout()));
    Ok(rows)
}

fn taken(rule: &'static str, answer: &Answer) -> Row {
    let said = said(answer);
    let (grade, seen) = match &answer.verdict {
        Verdict::Delivered => (Grade::Good, said),
        Verdict::Retry { .. } => (
            Grade::Bad,
            format!("{said}; the bridge would retry for 72 hours"),
        ),
        Verdict::Dead { .. } => (
            Grade::Bad,
            format!("{said}; it would be a dead letter immediately"),
        ),
    };
    Row { rule, grade, seen }
}

/// Checks the Retry-After of an answer; `None` if there is none and the status does not ask for one.
fn comes_again(answer: &Answer) -> Option<Row> {
    let (grade, seen) = match (&answer.status, &answer.retry_after) {
        (_, Some(value)) => match answer.comes_after {
            Some(wait) => (
                Grade::Good,
                format!("Retry-After: {value}: the bridge would wait at least {wait:.0?}"),
            ),
            None => (
                Grade::Poor,
                format!("Retry-After: {value} is neither seconds nor a date, and is ignored"),
            ),
        },
        (Ok(429 | 503), None) => (
            Grade::Poor,
            "no Retry-After: the bridge would retry after 1 s, 2 s, 4 s …".to_owned(),
        ),
        (Ok(_) | Err(_), None) => return None,
    };
    Some(Row {
        rule: "says when to retry",
        grade,
        seen,
    })
}

fn refused(rule: &'static str, answer: &Answer, otherwise: Grade) -> Row {
    let said = said(answer);
    let (grade, seen) = match &answer.status {
        Ok(status) if (400..500).contains(status) => (Grade::Good, said),
        Ok(200..300) => (otherwise, format!("{said}: it was accepted")),
        Ok(_) | Err(_) => (Grade::Poor, format!("{said}; 401 would name the reason")),
    };
    Row { rule, grade, seen }
}

fn in_time(times: &mut [Duration], limit: Duration) -> Row {
    times.sort_unstable();
    let longest = times.last().copied().unwrap_or_default();
    let middle = times.get(times.len() / 2).copied().unwrap_or_default();
    let grade = match longest {
        // A receiver this slow is likely to time out under load.
        longest if longest > limit / 3 => Grade::Poor,
        _ => Grade::Good,
    };
    Row {
        rule: "answers in time",
        grade,
        seen: format!(
            "{middle:.1?} (median of {}), {longest:.1?} at most; the limit is {limit:?}",
            times.len()
        ),
    }
}

fn said(answer: &Answer) -> String {
    match &answer.status {
        Ok(status) => format!("answered {status} after {:.1?}", answer.took),
        Err(error) => error.clone(),
    }
}

impl Row {
    fn json(&self) -> Value {
        let grade = match self.grade {
            Grade::Good => "ok",
            Grade::Poor => "warning",
            Grade::Bad => "failed",
        };
        json!({ "rule": self.rule, "outcome": grade, "seen": self.seen })
    }

    fn print(&self, screen: &Screen) -> std::io::Result<()> {
        let mark = match self.grade {
            Grade::Good => screen.paint(Tone::Good, "ok  "),
            Grade::Poor => screen.paint(Tone::Strong, "warn"),
            Grade::Bad => screen.paint(Tone::Bad, "FAIL"),
        };
        let seen = screen.paint(Tone::Quiet, &self.seen);
        screen.line(format_args!("  {mark}  {:<44}{seen}", self.rule))
    }
}
