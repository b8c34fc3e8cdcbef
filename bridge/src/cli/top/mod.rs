//! `forge-bridge top`: live overview in a terminal. Polls the HTTP API, as the console does.

mod view;

use std::collections::VecDeque;
use std::io::{self, IsTerminal as _};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::ensure;
use crossterm::event::{Event, EventStream, KeyCode, KeyEvent, KeyModifiers};
use futures_util::{Stream, StreamExt as _, stream};
use serde_json::Value;
use tokio::time::MissedTickBehavior;

use super::client::{Client, Error, Target};
use super::stream::{Events, Query};
use super::{Context, block_on};

/// Interval of polling and drawing.
const TICK: Duration = Duration::from_secs(1);
/// Seconds of throughput history.
const KEPT: usize = 120;

/// Data shown on the screen.
#[derive(Debug, Default)]
struct Now {
    url: String,
    health: Value,
    running: Vec<Value>,
    latest: Vec<Value>,
    /// Finished dispatches per second, oldest first; the last entry is still filling.
    finished: VecDeque<u64>,
    /// Error of the last request, if it failed.
    trouble: Option<String>,
}

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    ensure!(
        io::stdout().is_terminal(),
        "top draws on a terminal; elsewhere use `forge-bridge tail` or GET /api/health"
    );
    let client = context.client()?;
    let palette = view::Palette::of(&context.environment);
    let mut now = Now {
        url: context.url()?,
        finished: VecDeque::from(vec![0; KEPT]),
        ..Now::default()
    };
    block_on(async {
        // Reports an unreachable bridge before the terminal is taken over.
        now.ask(&client).await?;
        let mut events = Box::pin(finishes(client.clone()));
        let mut keys = EventStream::new();
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut terminal = ratatui::try_init()?;
        let outcome: anyhow::Result<()> = async {
            loop {
                // Redrawn each second and after input, not per event: thousands can arrive between two ticks.
                tokio::select! {
                    _ = ticks.tick() => {
                        now.next_second();
                        now.trouble = now.ask(&client).await.err().map(|error| error.to_string());
                    }
                    Some(outcome) = events.next() => {
                        match outcome {
                            Ok(()) => now.count(),
                            Err(error) => now.trouble = Some(error.to_string()),
                        }
                        continue;
                    }
                    key = keys.next() => match key {
                        Some(Ok(Event::Key(key))) if ends(key) => return Ok(()),
                        // Includes a resize, which needs a redraw.
                        Some(Ok(_)) => {}
                        Some(Err(error)) => return Err(error.into()),
                        None => return Ok(()),
                    },
                }
                terminal.draw(|frame| view::draw(frame, &now, palette))?;
            }
        }
        .await;
        ratatui::restore();
        outcome.map(|()| ExitCode::SUCCESS)
    })
}

fn ends(key: KeyEvent) -> bool {
    match key.code {
        KeyCode::Char('q') | KeyCode::Esc => true,
        KeyCode::Char('c') => key.modifiers.contains(KeyModifiers::CONTROL),
        _ => false,
    }
}

/// Yields one item per finished dispatch, across disconnects and restarts.
fn finishes(client: Client) -> impl Stream<Item = Result<(), Error>> {
    let query = Query {
        path: ["api", "v2", "events"].map(str::to_owned).to_vec(),
        filter: Vec::new(),
        after: Some("now".to_owned()),
    };
    let events = Events::new(client, query);
    stream::unfold(Some(events), async |events| {
        let mut events = events?;
        loop {
            match events.next().await {
                Ok(Some(event)) => {
                    let kind = event["type"].as_str().unwrap_or_default();
                    if ["execution.completed", "execution.failed"].contains(&kind) {
                        return Some((Ok(()), Some(events)));
                    }
                }
                Ok(None) => return None,
                Err(error) => return Some((Err(error), None)),
            }
        }
    })
}

impl Now {
    async fn ask(&mut self, client: &Client) -> Result<(), Error> {
        let health = Target::path(&["api", "health"]);
        let list = |status| Target {
            path: &["api", "v2", "dispatches"],
            query: status,
        };
        let health = match client.get(health).await {
            // An offline bridge answers with an error status and its health.
            Err(Error::Refused { refusal, .. }) if refusal.body["status"].is_string() => {
                Ok(refusal.body)
            }
            other => other,
        };
        self.health = health?;
        let running = list(&[("status", "running"), ("limit", "50")]);
        self.running = items(client.get(running).await?);
        self.latest = items(client.get(list(&[("limit", "50")])).await?);
        Ok(())
    }

    fn count(&mut self) {
        if let Some(last) = self.finished.back_mut() {
            *last += 1;
        }
    }

    fn next_second(&mut self) {
        self.finished.pop_front();
        self.finished.push_back(0);
    }
}

fn items(mut page: Value) -> Vec<Value> {
    match page["dispatches"].take() {
        Value::Array(items) => items,
        _ => Vec::new(),
    }
}
