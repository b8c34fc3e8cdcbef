//! Logging: destination, format and level. Call sites decide on the content; bodies and secrets are never logged.

mod json;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::reload;

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

/// The process has a subscriber already.
#[derive(Debug, thiserror::Error)]
#[error("logging is already set up")]
pub struct Error(#[source] Box<dyn std::error::Error + Send + Sync>);

/// Handle to the process's logging, to change its level at run time.
pub struct Logs {
    reload: Box<dyn Fn(EnvFilter) -> Result<(), reload::Error> + Send + Sync>,
}

impl Logs {
    /// Replaces the level.
    pub fn set_level(&self, level: &Level) -> Result<(), reload::Error> {
        (self.reload)(level.filter())
    }
}

/// Logs to standard error. Can be called once per process.
pub fn install(config: &Config) -> Result<Logs, Error> {
    use std::io::IsTerminal;

    let colour = Colour::from(std::io::stderr().is_terminal());
    let (subscriber, logs) = subscriber(config, colour, std::io::stderr);
    tracing::subscriber::set_global_default(subscriber).map_err(|error| Error(error.into()))?;
    Ok(logs)
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

fn subscriber<W>(config: &Config, colour: Colour, writer: W) -> (AnySubscriber, Logs)
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt()
        .with_env_filter(config.level.filter())
        .with_ansi(colour == Colour::On)
        .with_writer(writer);
    match config.format {
        Format::Text => {
            let builder = builder.with_target(false).with_filter_reloading();
            let filter = builder.reload_handle();
            let reload = Box::new(move |to| filter.reload(to));
            (Box::new(builder.finish()), Logs { reload })
        }
        Format::Json => {
            let builder = builder
                .json()
                .event_format(json::Flat)
                .with_filter_reloading();
            let filter = builder.reload_handle();
            let reload = Box::new(move |to| filter.reload(to));
            (Box::new(builder.finish()), Logs { reload })
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
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(config: &Config) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, logs) = subscriber(config, Colour::Off, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::debug!("too quiet");
            tracing::warn!(task.id = "t-1", "the callback was refused");
            logs.set_level(&"off".parse().unwrap()).unwrap();
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
    fn a_line_says_what_the_spans_around_it_say() {
        let config = Config {
            format: Format::Json,
            level: "warn".parse().unwrap(),
        };
        let lines = Lines::default();
        let writer = lines.clone();
        let (subscriber, _logs) = subscriber(&config, Colour::Off, move || writer.clone());
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
