//! `forg status`: the local agent, and the sessions of tools, as a running bridge reports them.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::super::client::Target;
use super::super::screen::{Tone, rough, text};
use super::super::{Context, block_on};
use forge_base::time;

/// Number of sessions that are read, newest first.
const LIMIT: &str = "100";

#[derive(Debug, Args)]
pub(super) struct Arguments {
    /// Show the adapters that reported; with a name, that one
    #[arg(long, value_name = "NAME", num_args = 0..=1)]
    #[expect(clippy::option_option, reason = "the option has an optional value")]
    adapter: Option<Option<String>>,
}

/// Sessions of one adapter.
#[derive(Default)]
struct Adapter {
    last_at: Option<Timestamp>,
    active: usize,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let (health, sessions) = block_on(async {
        let health = client.get(Target::path(&["api", "health"])).await?;
        let mut query = vec![("limit", LIMIT)];
        if let Some(Some(name)) = &arguments.adapter {
            query.push(("adapter", name));
        }
        let sessions = client.get(Target {
            path: &["api", "v2", "signals", "sessions"],
            query: &query,
        });
        Ok((health, sessions.await?))
    })?;
    let screen = context.screen();
    let adapters = adapters(&sessions);
    if context.global.json {
        let rows = adapters.iter().map(|(name, adapter)| {
            json!({
                "adapter": name, "activeSessions": adapter.active, "lastAt": adapter.last_at.map(time::format),
            })
        });
        let rows: Vec<_> = rows.collect();
        screen.value(&json!({ "signals": health["signals"], "adapters": rows }))?;
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.adapter.is_none() {
        screen.line(format_args!("Agent: {}", text(&health, "/signals/agent")))?;
        let sessions = text(&health, "/signals/sessions");
        screen.line(format_args!("Sessions with a valid key: {sessions}"))?;
        screen.line(format_args!("Rules: {}", text(&health, "/signals/rules")))?;
    }
    if adapters.is_empty() {
        screen.line("No adapter has reported yet.")?;
    }
    let now = Timestamp::now();
    for (name, adapter) in &adapters {
        let state = match adapter.active {
            0 => screen.paint(Tone::Quiet, "not connected"),
            _ => screen.paint(Tone::Good, "connected"),
        };
        screen.line(format_args!("Adapter: {name} ({state})"))?;
        if let Some(at) = adapter.last_at {
            let age = rough(time::wall_age(at, now).as_secs());
            screen.line(format_args!("  Last signal: {age} ago"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn adapters(sessions: &Value) -> BTreeMap<&str, Adapter> {
    let mut adapters = BTreeMap::<_, Adapter>::new();
    for session in sessions["sessions"].as_array().into_iter().flatten() {
        let Some(name) = session["adapter"].as_str() else {
            continue;
        };
        let at = session["lastAt"].as_str().and_then(|at| at.parse().ok());
        let adapter = adapters.entry(name).or_default();
        adapter.last_at = adapter.last_at.max(at);
        adapter.active += usize::from(session["endedAt"].is_null());
    }
    adapters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_are_shown_with_their_newest_signal() {
        let session = |adapter: &str, last_at: &str, ended_at: Value| json!({"adapter": adapter, "lastAt": last_at, "endedAt": ended_at});
        let sessions = json!({"sessions": [
            session("a", "2026-11-25T10:00:00.000Z", Value::Null),
            session("b", "2026-11-25T09:00:00.000Z", json!("2026-11-25T09:00:00.000Z")),
            session("a", "2026-11-25T08:00:00.000Z", json!("2026-11-25T08:00:00.000Z")),
        ]});
        let found = adapters(&sessions);
        let found: Vec<_> = found
            .iter()
            .map(|(name, adapter)| (*name, adapter.active, adapter.last_at.unwrap().to_string()))
            .collect();
        assert_eq!(
            found,
            [
                ("a", 1, "2026-11-25T10:00:00Z".to_owned()),
                ("b", 0, "2026-11-25T09:00:00Z".to_owned())
            ]
        );
    }
}
