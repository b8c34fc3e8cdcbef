//! `forge-bridge agents`, `skills`, `models` and `system`: the management routes of a running bridge.

pub(super) mod agents;
mod difference;
pub(super) mod skills;
pub(super) mod system;

use std::path::PathBuf;
use std::process::ExitCode;
use std::slice;

use anyhow::{Context as _, bail};
use clap::Args;
use figment::providers::{Format as _, Toml};
use reqwest::Method;
use serde_json::{Value, json};

use super::client::{Client, Error, Target};
use super::screen::{Screen, Tone, text};
use super::{Context, FAILED, Unusable, block_on};

#[derive(Debug, Args)]
pub(super) struct Arguments<C: clap::Subcommand> {
    /// Adapter of the runtime; not needed if only one adapter manages a runtime
    #[arg(long, global = true)]
    provider: Option<String>,
    #[command(subcommand)]
    command: C,
}

#[derive(Debug, Args)]
pub(super) struct Entry {
    id: String,
}

#[derive(Debug, Args)]
pub(super) struct Removal {
    id: String,
    /// Do not ask before the removal
    #[arg(long)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(super) struct Input {
    id: String,
    /// File to read; standard input when absent
    #[arg(long)]
    file: Option<PathBuf>,
}

impl Input {
    fn source(&self) -> String {
        let path = self.file.as_ref().map(|path| path.display().to_string());
        path.unwrap_or_else(|| "standard input".to_owned())
    }

    fn text(&self) -> anyhow::Result<String> {
        let read = match &self.file {
            Some(path) => std::fs::read_to_string(path),
            None => std::io::read_to_string(std::io::stdin()),
        };
        read.with_context(|| Unusable(format!("cannot read {}", self.source())))
    }

    /// Members in TOML or JSON; `content` of a `SKILL.md`.
    fn value(&self) -> anyhow::Result<Value> {
        let text = self.text()?;
        let parsed = match serde_json::from_str(&text) {
            Ok(value @ Value::Object(_)) => return Ok(value),
            _ if text.starts_with("---\n") => return Ok(json!({ "content": text })),
            Err(error) if text.trim_start().starts_with('{') => Err(error.into()),
            Ok(_) | Err(_) => Toml::from_str(&text).map_err(anyhow::Error::from),
        };
        parsed.with_context(|| Unusable(format!("{} is neither TOML nor JSON", self.source())))
    }
}

/// Outcome of a command.
type Exit = anyhow::Result<ExitCode>;

/// Command of one group of routes.
pub(super) trait Execute: clap::Subcommand {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit;
}

pub(super) fn run<C: Execute>(context: &Context, arguments: &Arguments<C>) -> Exit {
    let runtime = Runtime {
        client: context.client()?,
        screen: context.screen(),
        json: context.global.json,
        provider: arguments.provider.as_deref(),
    };
    block_on(arguments.command.execute(&runtime))
}

/// Management routes for one runtime, and the output of a command.
pub(super) struct Runtime<'a> {
    client: Client,
    screen: Screen,
    json: bool,
    provider: Option<&'a str>,
}

impl Runtime<'_> {
    async fn call(&self, method: Method, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        if path.iter().any(|part| matches!(*part, "" | "." | "..")) {
            bail!(Unusable("a name cannot be empty, `.` or `..`".to_owned()));
        }
        let path = &[&["api", "v2"], path].concat();
        let query = self.provider.map(|name| ("provider", name));
        let query = query.as_slice();
        Ok(match method {
            Method::GET => self.client.get(Target { path, query }).await?,
            method => {
                self.client
                    .change(method, Target { path, query }, body)
                    .await?
            }
        })
    }

    async fn get(&self, path: &[&str]) -> anyhow::Result<Value> {
        self.call(Method::GET, path, &Value::Null).await
    }

    /// Replaces an entry, or creates one that the runtime does not have; `id` is the member with its name.
    async fn push(&self, path: &[&str; 2], id: &str, mut entry: Value) -> Exit {
        let outcome = match self.call(Method::PUT, path, &entry).await {
            // An adapter that answers without content does not report if it created the entry.
            Ok(Value::Null) => "pushed",
            Ok(_) => "updated",
            Err(error) if code(&error) == Some("NOT_FOUND") => {
                entry[id] = path[1].into();
                self.call(Method::POST, &path[..1], &entry).await?;
                "created"
            }
            Err(error) => return Err(error),
        };
        self.done(outcome, path[1])
    }

    /// Changes one member. An update replaces the entry, so it is read first.
    async fn set(&self, path: &[&str; 2], member: &str, value: Value, outcome: &str) -> Exit {
        let mut entry = self.get(path).await?;
        entry[member] = value;
        self.call(Method::PUT, path, &entry).await?;
        self.done(outcome, path[1])
    }

    /// Removes an entry after a question, and reads it again: some runtimes only disable it.
    async fn remove(&self, path: &[&str], removal: &Removal) -> Exit {
        if !removal.yes && !self.screen.ask(format_args!("Remove {}?", removal.id))? {
            self.screen
                .aside("nothing was removed; --yes removes without a question")?;
            return Ok(exit(false));
        }
        self.call(Method::DELETE, path, &Value::Null).await?;
        match self.get(path).await {
            Ok(entry) if entry["enabled"] == false => {
                self.screen
                    .aside("the runtime cannot remove it and keeps it, disabled")?;
                self.done("disabled", &removal.id)
            }
            Ok(_) => bail!("the runtime still has {}", removal.id),
            Err(error) => match code(&error) {
                Some("NOT_FOUND" | "NOT_SUPPORTED") => self.done("removed", &removal.id),
                _ => Err(error),
            },
        }
    }

    fn done(&self, outcome: &str, id: &str) -> Exit {
        match self.json {
            true => self.screen.value(&json!({"outcome": outcome, "id": id}))?,
            false => self.screen.line(format_args!("{outcome} {id}"))?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn show(&self, path: &[&str], columns: &[&str]) -> Exit {
        self.print(&self.get(path).await?, columns)
    }

    /// Prints an answer: a list as a table of these members; an object member by member, each item of an array on a line
    /// of its own, after them the texts with several lines.
    fn print(&self, answer: &Value, columns: &[&str]) -> Exit {
        let screen = &self.screen;
        if self.json {
            screen.value(answer)?;
        } else if let Some(entries) = answer.as_array() {
            let row = |entry: &Value| columns.iter().map(|name| text(&entry[*name], "")).collect();
            let heading = columns.iter().map(|name| (*name).to_owned()).collect();
            let rows: Vec<_> = [heading]
                .into_iter()
                .chain(entries.iter().map(row))
                .collect();
            screen.table(&rows)?;
        } else {
            let is_long = |value: &Value| value.as_str().is_some_and(|text| text.contains('\n'));
            let members = answer.as_object().into_iter().flatten();
            let (long, short): (Vec<_>, Vec<_>) = members.partition(|(_, value)| is_long(value));
            for (name, value) in short {
                let items = value
                    .as_array()
                    .map_or(slice::from_ref(value), Vec::as_slice);
                for item in items {
                    let name = screen.paint(Tone::Quiet, format_args!("{name:<14}"));
                    screen.line(format_args!("{name}{}", text(item, "")))?;
                }
            }
            for (name, value) in long {
                screen.line(screen.paint(Tone::Quiet, name))?;
                screen.line(text(value, "").trim_end())?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

fn code(error: &anyhow::Error) -> Option<&str> {
    error.downcast_ref().and_then(Error::code)
}

fn exit(is_success: bool) -> ExitCode {
    ExitCode::from(if is_success { 0 } else { FAILED })
}
