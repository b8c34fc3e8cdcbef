//! Logging: destination, format and level. Call sites decide on the content; bodies and secrets are never logged.

mod json;
mod lines;
mod text;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fmt::{self, Write as _};
use std::fs::File;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use forge_base::metrics::Counter;
use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::{MakeWriter, format};
use tracing_subscriber::reload;

use lines::Lines;
use text::Escaped;

/// Time that the end of the process waits for the last lines to be written.
const LAST_LINES: Duration = Duration::from_secs(1);
/// Time that a panic waits for its line, which is lost if the process aborts.
const PANIC_LINE: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    pub format: Format,
    pub level: Level,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            format: Format::Text,
            level: Level("info".to_owned()),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Human-readable.
    Text,
    /// One object per line.
    Json,
}

impl Format {
    /// A line of the log itself, which no level hides.
    fn line(self, level: &str, message: &str) -> String {
        let timestamp = forge_base::time::format(jiff::Timestamp::now());
        match self {
            Self::Text => {
                let mut line = format!("{timestamp} {level:>5} ");
                // A string accepts everything.
                let _ = Escaped(&mut line).write_str(message);
                line.push('\n');
                line
            }
            Self::Json => {
                let target = module_path!();
                let line = serde_json::json!({
                    "timestamp": timestamp, "level": level, "target": target, "message": message,
                });
                format!("{line}\n")
            }
        }
    }
}

/// A level, or levels by module: `info`, `warn,forge_delivery=debug`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Level(String);

impl Level {
    fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl FromStr for Level {
    type Err = LevelError;

    fn from_str(text: &str) -> Result<Self, LevelError> {
        // The library skips a blank before a part and then cuts one byte too early, which panics inside a character.
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let trimmed = parts.join(",");
        // A single word that is not a level would count as a module name and silence all other modules. The library
        // accepts an empty word as a level.
        let level = |word: &str| !word.is_empty() && word.parse::<LevelFilter>().is_ok();
        let known = |part: &&str| part.contains('=') || level(part);
        match EnvFilter::builder().parse(&trimmed) {
            Ok(_) if parts.iter().all(known) => Ok(Self(trimmed)),
            Ok(_) | Err(_) => Err(LevelError(text.to_owned())),
        }
    }
}

impl TryFrom<String> for Level {
    type Error = LevelError;

    fn try_from(text: String) -> Result<Self, LevelError> {
        text.parse()
    }
}

impl From<Level> for String {
    fn from(level: Level) -> String {
        level.0
    }
}

#[derive(Debug, thiserror::Error)]
#[error("expected error, warn, info, debug, trace or module=level, comma-separated; found {0:?}")]
pub struct LevelError(String);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process has a subscriber already.
    #[error("logging is already set up")]
    Twice(#[source] tracing::subscriber::SetGlobalDefaultError),
    #[error("cannot start logging")]
    Start(#[source] std::io::Error),
}

/// Handle to the process's logging. Dropping it waits until the lines so far are written, up to a second; logging
/// continues afterwards.
pub struct Logs {
    reload: Reload,
    lines: Lines,
}

type Reload = Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>;

impl Logs {
    /// Replaces the level.
    pub fn set_level(&self, level: &Level) -> Result<(), reload::Error> {
        (self.reload)(level.filter())
    }

    /// Counter of lines that were dropped because standard error did not take them.
    pub fn dropped(&self) -> Arc<Counter> {
        self.lines.dropped()
    }
}

impl Drop for Logs {
    fn drop(&mut self) {
        self.lines.flush(LAST_LINES);
    }
}

/// Logs to standard error, panics included. Can be called once per process.
pub fn install(config: &Config) -> Result<Logs, Error> {
    use std::io::IsTerminal;

    let stderr = std::io::stderr();
    let colour = Colour::from(stderr.is_terminal());
    // Not the handle of the standard library, which is locked while a write waits.
    let out = stderr.as_fd().try_clone_to_owned().map_err(Error::Start)?;
    let lines = Lines::start(File::from(out), config.format).map_err(Error::Start)?;
    let (subscriber, reload) = subscriber(config, colour, lines.clone());
    tracing::subscriber::set_global_default(subscriber).map_err(Error::Twice)?;
    log_panics(config.format, lines.clone());
    Ok(Logs { reload, lines })
}

fn log_panics(format: Format, lines: Lines) {
    std::panic::set_hook(Box::new(move |panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        let mut message = format!("thread '{name}' {panic}");
        let backtrace = Backtrace::capture();
        if backtrace.status() == BacktraceStatus::Captured {
            // A string accepts everything.
            let _ = write!(message, "\n{backtrace}");
        }
        lines.push(format.line("ERROR", &message).as_bytes());
        lines.flush(PANIC_LINE);
    }));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Colour {
    On,
    Off,
}

impl From<bool> for Colour {
    fn from(terminal: bool) -> Self {
        if terminal { Self::On } else { Self::Off }
    }
}

type AnySubscriber = Box<dyn tracing::Subscriber + Send + Sync>;

fn subscriber<W>(config: &Config, colour: Colour, writer: W) -> (AnySubscriber, Reload)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(config.level.filter())
        .with_ansi(colour == Colour::On)
        .with_writer(writer);
    match config.format {
        Format::Text => {
            let fields = format::debug_fn(text::field).delimited(" ");
            let builder = builder
                .with_target(false)
                .fmt_fields(fields)
                .with_filter_reloading();
            let filter = builder.reload_handle();
            let reload = Box::new(move |to| filter.reload(to));
            (Box::new(builder.finish()), reload)
        }
        Format::Json => {
            let builder = builder
                .json()
                .event_format(json::Flat)
                .with_filter_reloading();
            let filter = builder.reload_handle();
            let reload = Box::new(move |to| filter.reload(to));
            (Box::new(builder.finish()), reload)
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(config: &Config) -> String {
        let lines = Written::default();
        let writer = lines.clone();
        let (subscriber, reload) = subscriber(config, Colour::Off, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("too quiet");
            tracing::warn!(task.id = "t-1", "the callback was refused");
            let off: Level = "off".parse().unwrap();
            reload(off.filter()).unwrap();
            tracing::error!("too late");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn text_is_one_line_an_event() {
        let text = logged(&Config::default());
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("WARN the callback was refused task.id=\"t-1\""));
    }

    #[test]
    fn a_value_cannot_forge_a_line_or_command_a_terminal() {
        let foreign =
            "a\r\n2026-01-01T00:00:00Z  INFO forged\u{1b}[2J\u{9b}2J\u{202e}\u{2028}\u{e0041}";
        for colour in [Colour::Off, Colour::On] {
            let lines = Written::default();
            let writer = lines.clone();
            let (subscriber, _) = subscriber(&Config::default(), colour, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                let _span = tracing::error_span!("request", path = %foreign).entered();
                tracing::warn!(shown = %foreign, quoted = foreign, "{foreign}");
            });
            let bytes = lines.0.lock().unwrap().clone();
            let text = String::from_utf8(bytes).unwrap();
            assert_eq!(text.lines().count(), 1, "{text:?}");
            assert!(
                !text.contains(['\r', '\u{9b}', '\u{202e}', '\u{2028}', '\u{e0041}'])
                    && !text.contains("\u{1b}[2J"),
                "{text:?}"
            );
            assert_eq!(text.matches(r"a\r\n2026").count(), 4, "{text:?}");
        }
        let line = Format::Text.line("WARN", foreign);
        assert_eq!(line.lines().count(), 1, "{line:?}");
    }

    #[test]
    fn a_line_says_what_the_spans_around_it_say() {
        let config = Config {
            format: Format::Json,
            level: "warn".parse().unwrap(),
        };
        let lines = Written::default();
        let writer = lines.clone();
        let (subscriber, _reload) = subscriber(&config, Colour::Off, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let request = tracing::error_span!(
                "request",
                request.id = "req_1",
                dispatch.id = tracing::field::Empty,
                code = "outer",
            );
            let _entered = request.enter();
            request.record("dispatch.id", "dsp_1");
            let _inner = tracing::error_span!("dispatch", trace.id = "abc").entered();
            tracing::warn!(code = "inner", count = 3, "hello");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let mut line: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(line["timestamp"].take().is_string());
        line["target"].take();
        let expected = serde_json::json!({
            "timestamp": null, "target": null, "level": "WARN", "message": "hello", "count": 3,
            "code": "inner", "request.id": "req_1", "dispatch.id": "dsp_1", "trace.id": "abc",
        });
        assert_eq!(line, expected);
    }

    #[test]
    fn json_is_one_object_a_line() {
        let config = Config {
            format: Format::Json,
            ..Config::default()
        };
        let line: serde_json::Value = serde_json::from_str(&logged(&config)).unwrap();
        assert_eq!(line["message"], "the callback was refused");
        assert_eq!(line["task.id"], "t-1");
    }

    #[test]
    fn a_level_is_checked_when_it_is_read() {
        for text in [
            "warn,forge_delivery=debug",
            " warn, a=debug",
            "warn, a[é]=info",
        ] {
            assert!(text.parse::<Level>().is_ok(), "{text:?}");
        }
        for text in ["", " ", "inof", "warn,", "forge_bridge=loud", "a=b=c"] {
            assert!(text.parse::<Level>().is_err(), "{text:?}");
        }
    }
}
