//! Frames from the gateway: answers to the requests that wait, events to the runs they belong to.

use std::time::Duration;

use forge_adapter_api::foreign_json;
use forge_adapter_api::{AdapterEvent, Health};
use futures_util::{Stream, StreamExt as _};
use serde_json::Value;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::{Error as SocketError, Message};

use super::Gateway;
use crate::connection::{Connection, lock};
use crate::frame::{Failure, Frame};
use crate::link::garbage;
use crate::subagents::is_report;

impl Gateway {
    /// Reads until the connection ends; returns the reason.
    pub(super) async fn read(
        &self,
        stream: &mut (impl Stream<Item = Result<Message, SocketError>> + Unpin),
        connection: &Connection,
        silence: Duration,
    ) -> Health {
        let mut last_words = None;
        loop {
            let message = match timeout(silence, stream.next()).await {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => {
                    return Health::offline(format!(
                        "the connection to the gateway broke: {error}"
                    ));
                }
                Ok(None) => return Health::offline("the gateway ended the connection"),
                Err(_) => {
                    return Health::offline(format!("the gateway sent nothing within {silence:?}"));
                }
            };
            let text = match message {
                Message::Text(text) => text,
                Message::Ping(_) | Message::Pong(_) => continue,
                Message::Binary(_) | Message::Frame(_) => return garbage(),
                Message::Close(close) => {
                    let close = close.map(|close| format!("{} {}", close.code, close.reason));
                    let reason = last_words.or(close).unwrap_or_default();
                    return Health::offline(format!("the gateway closed the connection: {reason}"));
                }
            };
            match foreign_json::from_str(&text) {
                Ok(Frame::Res {
                    id,
                    ok,
                    payload,
                    error,
                }) => {
                    let answer = if ok {
                        Ok(payload)
                    } else {
                        Err(Failure::Refused(error.unwrap_or_default()))
                    };
                    connection.answer(&id, answer);
                }
                Ok(Frame::Event { event, payload }) if event == "shutdown" => {
                    last_words = payload["reason"].as_str().map(str::to_owned);
                }
                Ok(Frame::Event { event, payload }) => self.event(&event, payload),
                Ok(Frame::Unknown) => {}
                Err(_) => return garbage(),
            }
        }
    }

    fn event(&self, event: &str, payload: Value) {
        match event {
            "agent" => {
                let mut run = payload["runId"].as_str().unwrap_or_default();
                if is_report(run) {
                    run = payload["sessionKey"].as_str().unwrap_or_default();
                }
                let sender = lock(&self.0.runs).get(run).cloned();
                if let Some(Err(TrySendError::Full(_))) =
                    sender.map(|sender| sender.try_send(payload.clone()))
                {
                    tracing::warn!(
                        run.id = run,
                        "an event of a run was dropped: the bridge is slower than the run"
                    );
                }
            }
            "task" | "health" => {
                let relay = lock(&self.0.relay).clone();
                if let Some(relay) = relay {
                    relay.try_send(&AdapterEvent::new(format!("openclaw.{event}")).with(payload));
                }
            }
            _ => {}
        }
    }
}
