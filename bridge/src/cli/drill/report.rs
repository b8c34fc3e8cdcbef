//! Output of the drill: the progress line and the final report.

use std::convert::Infallible;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use super::super::screen::{Screen, Tone};
use super::faults::Done;
use super::ledger::{Findings, Ledger};

const BAR: usize = 24;
const BETWEEN_DRAWINGS: Duration = Duration::from_millis(50);
/// Violations listed in the report; the rest are only counted.
const NAMED: usize = 10;

/// Progress line on standard error, redrawn in place. Only on a terminal.
pub(super) struct Progress {
    kills: u32,
    shown: bool,
}

impl Progress {
    pub(super) fn new(kills: u32) -> Self {
        Self {
            kills,
            shown: io::stderr().is_terminal(),
        }
    }

    pub(super) fn show(&self, done: u32, ledger: &Ledger, doing: &str) {
        if !self.shown {
            return;
        }
        let (accepted, delivered, duplicates) = ledger.counts();
        let full = BAR * done as usize / self.kills.max(1) as usize;
        // Ignored: a closed terminal does not stop the drill.
        let _ = write!(
            io::stderr(),
            "\r\x1b[2K  {done:>3}/{} kills  {}{}  {accepted} accepted, {delivered} delivered, \
             {duplicates} duplicates  {doing}",
            self.kills,
            "━".repeat(full),
            "─".repeat(BAR - full),
        );
    }

    /// Shows the line with its latest numbers until it is dropped.
    pub(super) async fn redraw(&self, done: u32, ledger: &Ledger, doing: &str) -> Infallible {
        loop {
            self.show(done, ledger, doing);
            sleep(BETWEEN_DRAWINGS).await;
        }
    }

    pub(super) fn end(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

/// Result of a drill.
pub(super) struct Report {
    pub(super) nodes: u32,
    pub(super) done: Done,
    pub(super) findings: Findings,
    pub(super) took: Duration,
    pub(super) disk_bytes: u64,
    /// Folder with store, logs and journal, kept after a failed drill.
    pub(super) kept: Option<PathBuf>,
    /// Database of the drill, kept after a failed one.
    pub(super) database: Option<String>,
}

impl Report {
    pub(super) fn passed(&self) -> bool {
        self.findings.lost == 0 && self.findings.broken.is_empty()
    }

    pub(super) fn json(&self) -> Value {
        let found = &self.findings;
        let spread = |times: &[Duration]| {
            spread(times).map(|(middle, longest)| {
                json!({"median": middle.as_millis() as u64, "longest": longest.as_millis() as u64})
            })
        };
        json!({
            "passed": self.passed(),
            "nodes": self.nodes,
            "kills": self.done.kills,
            "stops": self.done.stops,
            "storeKills": self.done.store_kills,
            "accepted": found.accepted,
            "executed": found.executed,
            "executedAgain": found.executed_again,
            "interrupted": found.interrupted,
            "delivered": found.delivered,
            "duplicates": found.duplicates,
            "lost": found.lost,
            "events": found.events,
            "broken": found.broken,
            "readyAfterMs": spread(&self.done.restarts),
            "takenOverAfterMs": spread(&found.take_overs),
            "firstRedeliveryAfterMs": spread(&found.waits),
            "seconds": (self.took.as_secs_f64() * 10.0).round() / 10.0,
            "diskBytes": self.disk_bytes,
            "folder": self.kept,
            "database": self.database,
        })
    }

    pub(super) fn print(&self, screen: &Screen) -> io::Result<()> {
        let found = &self.findings;
        let row = |name: &str, number: String, note: &str| {
            screen.line(format_args!(
                "  {name:<12}{}   {}",
                screen.paint(Tone::Strong, format_args!("{number:>9}")),
                screen.paint(Tone::Quiet, note)
            ))
        };
        row(
            "killed",
            grouped(self.done.kills as usize),
            "times with kill -9, under load",
        )?;
        if self.done.stops > 0 {
            row(
                "stopped",
                grouped(self.done.stops as usize),
                "times for longer than a lease",
            )?;
        }
        if self.done.store_kills > 0 {
            row(
                "crashed",
                grouped(self.done.store_kills as usize),
                "times the server of the database",
            )?;
        }
        row("accepted", grouped(found.accepted), "answered 202")?;
        let again = format!(
            "attempts, {} of them repeated after a kill, as their policy asks",
            grouped(found.executed_again)
        );
        row("executed", grouped(found.executed), &again)?;
        row(
            "interrupted",
            grouped(found.interrupted),
            "ended by a kill and reported as such, as their policy asks",
        )?;
        row("delivered", grouped(found.delivered), "callbacks received")?;
        row(
            "duplicates",
            grouped(found.duplicates),
            "callbacks received again, with the same webhook-id and body",
        )?;
        row(
            "events",
            grouped(found.events),
            "checked: each once, in order, none missing",
        )?;
        let tone = if found.lost == 0 {
            Tone::Good
        } else {
            Tone::Bad
        };
        screen.line(format_args!(
            "  {:<12}{}",
            "lost",
            screen.paint(tone, format_args!("{:>9}", grouped(found.lost)))
        ))?;
        screen.line("")?;
        // Where others go on, the next callback says nothing about the bridge that was killed.
        let redelivery = match self.nodes {
            1 => ("re-delivery", &found.waits),
            _ => ("taken over", &found.take_overs),
        };
        for (name, times) in [("ready again", &self.done.restarts), redelivery] {
            if let Some((middle, longest)) = spread(times) {
                let note = format!("after a kill (median); {} at most", short(longest));
                row(name, short(middle), &note)?;
            }
        }
        screen.line("")?;
        self.verdict(screen)
    }

    fn verdict(&self, screen: &Screen) -> io::Result<()> {
        let broken = &self.findings.broken;
        if self.passed() {
            return screen.line(format_args!(
                "{} {}",
                screen.paint(Tone::Good, "Nothing that was answered 202 was lost."),
                screen.paint(
                    Tone::Quiet,
                    format_args!(
                        "({:.0} s, {} on disk, removed)",
                        self.took.as_secs_f64(),
                        size(self.disk_bytes)
                    ),
                ),
            ));
        }
        screen.line(screen.paint(
            Tone::Bad,
            format_args!("Violated guarantees: {}", broken.len()),
        ))?;
        for what in broken.iter().take(NAMED) {
            let line = what.lines().map(str::trim).collect::<Vec<_>>().join("; ");
            screen.line(format_args!("  {line}"))?;
        }
        if broken.len() > NAMED {
            screen.line(format_args!("  and {} more", broken.len() - NAMED))?;
        }
        if let Some(folder) = &self.kept {
            screen.line(format_args!(
                "Store, logs and journal are kept in {}",
                folder.display()
            ))?;
        }
        if let Some(database) = &self.database {
            screen.line(format_args!("The database {database} is kept"))?;
        }
        Ok(())
    }
}

/// Median and maximum; `None` if there are no values.
fn spread(times: &[Duration]) -> Option<(Duration, Duration)> {
    let mut times = times.to_vec();
    times.sort_unstable();
    Some((*times.get(times.len() / 2)?, *times.last()?))
}

fn short(time: Duration) -> String {
    match time.as_millis() {
        millis @ 0..=999 => format!("{millis} ms"),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

fn size(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// Formats a number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        for (number, wanted) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), wanted);
        }
    }

    #[test]
    fn the_spread_is_the_median_and_the_longest() {
        let times = [30, 10, 20].map(Duration::from_millis);
        assert_eq!(spread(&times), Some((times[2], times[0])));
        assert_eq!(spread(&[]), None);
    }
}
