//! Report of a conformance run: one row for each check, as lines, JSON and JUnit.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use forge_adapter_api::conformance::Outcome;
use forge_base::text::is_unseen;
use serde::Deserialize;
use serde_json::{Value, json};

use super::super::screen::{Tone, text};
use super::super::{Context, checklist};

/// A check: its name, the sentence of the protocol that asks for it, and the rule in short.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Check {
    pub(super) id: String,
    /// Number of the description (`000`, `001`) and its sentence; `ours` for a decision of this project.
    seed: String,
    reason: String,
}

impl Check {
    pub(super) fn new(id: &str, seed: &str, reason: &str) -> Self {
        Self {
            id: id.to_owned(),
            seed: seed.to_owned(),
            reason: reason.to_owned(),
        }
    }
}

pub(super) struct Report<'a> {
    context: &'a Context,
    only: &'a [String],
    rows: Vec<Value>,
}

impl<'a> Report<'a> {
    pub(super) fn new(context: &'a Context, only: &'a [String]) -> anyhow::Result<Self> {
        if !context.global.json {
            let screen = context.screen();
            screen.line(screen.paint(Tone::Strong, "conformance"))?;
        }
        let rows = Vec::new();
        Ok(Self {
            context,
            only,
            rows,
        })
    }

    /// True if this check was asked for.
    pub(super) fn wants(&self, id: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == id)
    }

    pub(super) fn add(&mut self, check: &Check, outcome: Outcome) -> anyhow::Result<()> {
        if !self.wants(&check.id) {
            return Ok(());
        }
        let (outcome, seen) = match outcome {
            Outcome::Passed => ("ok", None),
            Outcome::Failed(seen) => ("failed", Some(seen)),
            Outcome::NotChecked(why) => ("unchecked", Some(why)),
            Outcome::NoInput(input) => ("unchecked", Some(input.option().to_owned())),
        };
        let Check { id, seed, reason } = check;
        let row =
            json!({ "id": id, "outcome": outcome, "reason": reason, "seed": seed, "seen": seen });
        if !self.context.global.json {
            let screen = self.context.screen();
            checklist::row(&screen, &format!("{id}: {reason}"), &row)?;
            if outcome == "failed" {
                let asked = format!("        asked for by {seed}");
                screen.line(screen.paint(Tone::Quiet, asked))?;
            }
        }
        self.rows.push(row);
        Ok(())
    }

    /// Adds a check that holds unless there is a problem.
    pub(super) fn hold(&mut self, check: &Check, problem: Option<String>) -> anyhow::Result<()> {
        self.add(check, problem.map_or(Outcome::Passed, Outcome::Failed))
    }

    /// Number of rows, and of failed ones, whose id begins with this.
    pub(super) fn failed(&self, prefix: &str) -> (usize, usize) {
        let of = |row: &&Value| row["id"].as_str().is_some_and(|id| id.starts_with(prefix));
        let rows: Vec<Value> = self.rows.iter().filter(of).cloned().collect();
        (rows.len(), checklist::count(&rows, "failed"))
    }

    pub(super) fn end(self, junit: Option<&Path>) -> anyhow::Result<ExitCode> {
        if self.rows.is_empty() {
            anyhow::bail!("no check has this name");
        }
        if let Some(file) = junit {
            let written = std::fs::write(file, xml(&self.rows));
            written.with_context(|| format!("cannot write {}", file.display()))?;
        }
        checklist::verdict(self.context, "checks", &self.rows)
    }
}

/// The rows as JUnit XML.
fn xml(rows: &[Value]) -> String {
    let (failed, skipped) = (
        checklist::count(rows, "failed"),
        checklist::count(rows, "unchecked"),
    );
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"forg-conformance\" tests=\"{}\" failures=\"{failed}\" skipped=\"{skipped}\">\n",
        rows.len(),
    );
    for row in rows {
        let part = |pointer| escaped(&text(row, pointer));
        let name = part("/id");
        let inside = match row["outcome"].as_str() {
            Some("ok") => String::new(),
            Some("unchecked") => format!("<skipped message=\"{}\"/>", part("/seen")),
            Some(_) | None => format!(
                "<failure message=\"{}\">{}: {}</failure>",
                part("/seen"),
                part("/reason"),
                part("/seed"),
            ),
        };
        let case = writeln!(
            xml,
            "  <testcase classname=\"forg-conformance\" name=\"{name}\">{inside}</testcase>"
        );
        case.expect("a string takes any text");
    }
    xml.push_str("</testsuite>\n");
    xml
}

/// Text of an attribute or element; characters that XML excludes are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' => out.push(' '),
            c if is_unseen(c) || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cases_of_junit() {
        let rows = [
            json!({"id": "a", "outcome": "ok", "reason": "r", "seed": "s", "seen": null}),
            json!({"id": "b", "outcome": "failed", "reason": "r", "seed": "s", "seen": "<a> \u{1} \"&\n"}),
            json!({"id": "c", "outcome": "unchecked", "reason": "r", "seed": "s", "seen": "why"}),
        ];
        insta::assert_snapshot!(xml(&rows), @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuite name="forg-conformance" tests="3" failures="1" skipped="1">
          <testcase classname="forg-conformance" name="a"></testcase>
          <testcase classname="forg-conformance" name="b"><failure message="&lt;a&gt; � &quot;&amp; ">r: s</failure></testcase>
          <testcase classname="forg-conformance" name="c"><skipped message="why"/></testcase>
        </testsuite>
        "#);
    }
}
