//! Standard output for people: colour only on a terminal, and a reader that goes away is no error
//! of ours.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use serde_json::Value;

use super::Environment;

/// Where a command writes its answer.
pub(super) struct Screen {
    colour: bool,
}

/// What a piece of text is.
#[derive(Clone, Copy)]
pub(super) enum Tone {
    Strong,
    Quiet,
    Good,
    Bad,
    Name,
}

impl Screen {
    pub(super) fn new(environment: &Environment) -> Self {
        let wanted = environment.get("NO_COLOR").is_none_or(String::is_empty);
        Self {
            colour: wanted && io::stdout().is_terminal(),
        }
    }

    /// The text, coloured where there is colour.
    pub(super) fn paint(&self, tone: Tone, text: impl Display) -> String {
        let code = match tone {
            Tone::Strong => "1",
            Tone::Quiet => "2",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Name => "36",
        };
        match self.colour {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }

    pub(super) fn line(&self, text: impl Display) -> io::Result<()> {
        writeln!(io::stdout(), "{text}")
    }

    /// Text without an end, shown at once.
    pub(super) fn piece(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Something about the work, not part of the answer: to standard error.
    pub(super) fn aside(&self, text: impl Display) -> io::Result<()> {
        writeln!(io::stderr(), "{text}")
    }

    /// A value over several lines.
    pub(super) fn value(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{value:#}")
    }

    /// A value on one line.
    pub(super) fn value_line(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{value}")
    }

    /// Columns as wide as what is in them; the first row is the heading.
    pub(super) fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        for (number, line) in aligned(rows).into_iter().enumerate() {
            match number {
                0 => self.line(self.paint(Tone::Quiet, line))?,
                _ => self.line(line)?,
            }
        }
        Ok(())
    }
}

/// The text at a JSON pointer, or a dash.
pub(super) fn text(value: &Value, pointer: &str) -> String {
    match value.pointer(pointer) {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Null) | None => "-".to_owned(),
        Some(Value::Array(items)) if items.is_empty() => "-".to_owned(),
        Some(other @ (Value::Bool(_) | Value::Number(_))) => other.to_string(),
        Some(Value::Array(items)) => items
            .iter()
            .map(|item| text(item, ""))
            .collect::<Vec<_>>()
            .join(", "),
        Some(other @ Value::Object(_)) => other.to_string(),
    }
}

fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(&widths);
            let line: String = cells
                .map(|(cell, &width)| format!("{cell:<width$}  "))
                .collect();
            line.trim_end().to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_what_is_in_them() {
        let rows = [["id", "state"], ["dlv_1", "ok"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), ["id     state", "dlv_1  ok"]);
    }

    #[test]
    fn what_is_absent_is_a_dash() {
        let value = json!({"a": {"b": 1}, "c": null, "d": ["x", "y"]});
        assert_eq!(text(&value, "/a/b"), "1");
        assert_eq!(text(&value, "/c"), "-");
        assert_eq!(text(&value, "/e"), "-");
        assert_eq!(text(&value, "/d"), "x, y");
    }
}
