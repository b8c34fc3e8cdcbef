//! Standard output and standard error of every command: colour and progress only on a terminal, and no unseen
//! characters but its own, since most text comes from agents and receivers. A broken pipe is returned as an error, which
//! the command line treats as success.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use forge_base::text::escaped_json;
use serde_json::Value;

use super::Environment;

/// Output of a command: its answer on standard output, remarks on standard error.
pub(super) struct Screen {
    answers: Stream,
    asides: Stream,
    /// Stands for the start of an escape sequence until the text is written; random, so that no other text contains it.
    mark: String,
}

/// Capabilities of one of the two streams.
#[derive(Clone, Copy)]
struct Stream {
    terminal: bool,
    /// True if written text can be overwritten.
    moves: bool,
    colour: bool,
}

/// Meaning of a text, which decides its colour.
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
        Self::seen(
            environment,
            io::stdout().is_terminal(),
            io::stderr().is_terminal(),
        )
    }

    fn seen(environment: &Environment, answers: bool, asides: bool) -> Self {
        let unwanted = environment
            .get("NO_COLOR")
            .is_some_and(|text| !text.is_empty());
        let dumb = environment.get("TERM").is_some_and(|term| term == "dumb");
        let stream = |terminal| Stream {
            terminal,
            moves: terminal && !dumb,
            colour: terminal && !dumb && !unwanted,
        };
        Self {
            answers: stream(answers),
            asides: stream(asides),
            mark: format!("\x1b{:016x}", rand::random::<u64>()),
        }
    }

    /// Colours text for [`Screen::line`], if colour is enabled there.
    pub(super) fn paint(&self, tone: Tone, text: impl Display) -> String {
        self.answers.paint(&self.mark, tone, text)
    }

    /// Colours text for [`Screen::aside`], if colour is enabled there.
    pub(super) fn paint_aside(&self, tone: Tone, text: impl Display) -> String {
        self.asides.paint(&self.mark, tone, text)
    }

    /// Creates a progress line, which does not mix with the answer.
    pub(super) fn progress(&self) -> Progress {
        Progress {
            stream: self.asides,
            beside: self.answers,
            shown: false,
        }
    }

    /// Characters per line of standard output; `None` unless it is a terminal of known width.
    pub(super) fn width(&self) -> Option<usize> {
        let size = self.answers.terminal.then(crossterm::terminal::size)?;
        // A terminal of unknown size reports 0.
        size.ok()
            .map(|(width, _)| usize::from(width))
            .filter(|width| *width > 0)
    }

    /// Writes a line on standard output.
    pub(super) fn line(&self, text: impl Display) -> io::Result<()> {
        writeln!(io::stdout(), "{}", self.written(text))
    }

    /// Writes agent text without a line end and flushes: unchanged into a pipe or file, with unseen characters
    /// escaped on a terminal.
    pub(super) fn piece(&self, text: &str) -> io::Result<()> {
        let mut out = io::stdout();
        match self.answers.terminal {
            true => out.write_all(harmless(text).as_bytes())?,
            false => out.write_all(text.as_bytes())?,
        }
        out.flush()
    }

    /// Writes a remark, which is not part of the answer, as a line on standard error.
    pub(super) fn aside(&self, text: impl Display) -> io::Result<()> {
        writeln!(io::stderr(), "{}", self.written(text))
    }

    /// Asks a question on standard error; true if the next line of standard input begins with `y`.
    pub(super) fn ask(&self, question: impl Display) -> io::Result<bool> {
        write!(io::stderr(), "{} [y/N] ", self.written(question))?;
        io::stderr().flush()?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(answer.trim_start().starts_with(['y', 'Y']))
    }

    /// Writes a value as indented JSON.
    pub(super) fn value(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{}", escaped_json(&format!("{value:#}")))
    }

    /// Writes a value as one line of JSON.
    pub(super) fn value_line(&self, value: &Value) -> io::Result<()> {
        writeln!(io::stdout(), "{}", escaped_json(&value.to_string()))
    }

    /// Text as it is written: painted parts get their escape sequences, all other unseen characters are escaped.
    fn written(&self, text: impl Display) -> String {
        let text = text.to_string();
        let parts: Vec<_> = text.split(&self.mark).map(harmless).collect();
        parts.join("\x1b[")
    }

    /// Writes aligned columns; the first row is the heading.
    pub(super) fn table(&self, rows: &[Vec<String>]) -> io::Result<()> {
        let heading = aligned(rows).into_iter().next();
        if let Some(heading) = heading {
            self.line(self.paint(Tone::Quiet, heading))?;
        }
        self.table_part(rows)
    }

    /// Writes aligned columns without the heading, which was written before.
    pub(super) fn table_part(&self, rows: &[Vec<String>]) -> io::Result<()> {
        for line in aligned(rows).into_iter().skip(1) {
            // A cell with several lines would look like several rows.
            self.line(line.replace('\n', " "))?;
        }
        Ok(())
    }
}

impl Stream {
    /// Colours text; `mark` begins each escape sequence.
    fn paint(self, mark: &str, tone: Tone, text: impl Display) -> String {
        let code = match tone {
            Tone::Strong => "1",
            Tone::Quiet => "2",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Name => "36",
        };
        match self.colour {
            true => format!("{mark}{code}m{text}{mark}0m"),
            false => text.to_string(),
        }
    }
}

/// Progress line on standard error, redrawn in place. Only on a terminal.
pub(super) struct Progress {
    stream: Stream,
    beside: Stream,
    shown: bool,
}

impl Progress {
    /// Draws the line, unless standard output is a terminal in the middle of a line; `written` is the output so far.
    pub(super) fn show(&mut self, text: impl Display, written: &str) -> io::Result<()> {
        let between_lines = written.is_empty() || written.ends_with('\n');
        if !self.stream.moves || (self.beside.terminal && !between_lines) {
            return Ok(());
        }
        self.shown = true;
        let text = harmless(&text.to_string());
        let text = self.stream.paint("\x1b[", Tone::Quiet, text);
        write!(io::stderr(), "\r\x1b[K{text}")?;
        io::stderr().flush()
    }

    /// Removes the line; required before other output.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.shown) {
            write!(io::stderr(), "\r\x1b[K")?;
            io::stderr().flush()?;
        }
        Ok(())
    }
}

/// Writes an error on standard error, which can be closed.
pub(super) fn error(error: &anyhow::Error) {
    let _ = writeln!(io::stderr(), "error: {}", harmless(&format!("{error:#}")));
}

/// Escapes unseen characters other than newline and tab, so that text cannot move the cursor, set colours, write to the
/// title or clipboard of a terminal, or be shown in another order.
pub(super) fn harmless(text: &str) -> String {
    forge_base::text::escaped(text, &['\n', '\t'])
}

/// Text at a JSON pointer, or a dash if absent.
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

/// Duration in one unit.
pub(super) fn rough(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
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
    fn there_is_colour_on_a_terminal_alone_and_only_where_it_is_wanted() {
        let on = |name: &str, value: &str| Environment::from([(name.to_owned(), value.to_owned())]);
        for (environment, terminal, expected) in [
            (Environment::new(), true, "\x1b[32mok\x1b[0m"),
            (Environment::new(), false, "ok"),
            (on("NO_COLOR", "1"), true, "ok"),
            (on("NO_COLOR", ""), true, "\x1b[32mok\x1b[0m"),
            (on("TERM", "dumb"), true, "ok"),
        ] {
            let screen = Screen::seen(&environment, terminal, !terminal);
            let painted = screen.written(screen.paint(Tone::Good, "ok"));
            assert_eq!(painted, expected, "{environment:?}");
            let screen = Screen::seen(&environment, !terminal, terminal);
            let painted = screen.written(screen.paint_aside(Tone::Good, "ok"));
            assert_eq!(painted, expected);
        }
    }

    #[test]
    fn orders_to_the_terminal_are_only_shown() {
        let text = "a\tb\n\x1b]52;c;aGk=\x07\u{9b}2J\r\x7f\u{202e}";
        assert_eq!(
            harmless(text),
            "a\tb\n\\u{1b}]52;c;aGk=\\u{7}\\u{9b}2J\\r\\u{7f}\\u{202e}"
        );
    }

    #[test]
    fn only_painted_text_has_escape_sequences() {
        let screen = Screen::seen(&Environment::new(), true, true);
        let foreign = "\x1b[31mred\x1b[0m";
        let written = screen.written(format_args!(
            "{foreign} {}",
            screen.paint(Tone::Bad, foreign)
        ));
        let shown = r"\u{1b}[31mred\u{1b}[0m";
        assert_eq!(written, format!("{shown} \x1b[31m{shown}\x1b[0m"));
    }

    #[test]
    fn json_on_a_terminal_is_the_same_json_without_control_characters() {
        let value = json!({"a": "\u{9b}2J\x7f\x1b\n\u{2028}\u{e0041}", "b": ["ü"]});
        let text = escaped_json(&format!("{value:#}"));
        assert!(
            !text.contains(|c| forge_base::text::is_unseen(c) && c != '\n'),
            "{text:?}"
        );
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
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
