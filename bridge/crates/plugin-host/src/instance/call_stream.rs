//! Output of a call as its reader receives it: parsed events, gaps, and the answer.

use forge_adapter_api::foreign_json;
use std::fmt;
use std::sync::Arc;

use forge_adapter_api::AdapterEvent;

use crate::boundary::answer::Answer;
use crate::boundary::call_id::CallId;
use crate::instance::held_text::HeldText;
use crate::instance::host::Host;
use crate::instance::meters::Op;
use crate::instance::queue::{CallMessage, Queue};
use crate::instance::redaction::Secrets;

/// Longest event type; longer ones are refused.
const KIND_BYTES: usize = 128;

/// One call in flight. Dropping it cancels the call in the adapter.
pub struct Call {
    pub(crate) queue: Arc<Queue>,
    pub(crate) call_id: CallId,
    pub(crate) host: &'static Host,
    pub(crate) meter: &'static Op,
    pub(crate) secrets: Secrets,
    pub(crate) held: HeldText,
    /// Item that comes after the one read last.
    pub(crate) ready: Option<Item>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} {:#x})", self.host.provider, self.call_id.0)
    }
}

/// One item of a call's output.
#[derive(Debug, PartialEq)]
pub enum Item {
    Event(AdapterEvent),
    /// Number of events lost at this point: too large, or not retried after `Full`.
    Dropped(u64),
    /// The last item, exactly once.
    Done(Answer),
}

impl Call {
    /// The next item. Cancel-safe. Never resolves after `Done`.
    pub async fn next(&mut self) -> Item {
        loop {
            if let Some(item) = self.ready.take() {
                return item;
            }
            let item = self.host.hear(&self.queue, &self.secrets).await;
            if let Item::Done(answer) = &item {
                self.meter.answered(answer);
            }
            if self.secrets.is_empty() {
                return item;
            }
            let [item, next] = self.held.pass(item, &self.secrets);
            self.ready = next;
            if let Some(item) = item {
                return item;
            }
        }
    }

    /// Secrets that are hidden in the items, for texts that are put together from events apart.
    pub fn secrets(&self) -> Secrets {
        self.secrets.clone()
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.queue.close() {
            self.meter.dropped();
            self.host.give_up(self.call_id, &self.queue);
        }
    }
}

impl Host {
    /// The next readable message in a queue of this adapter, without these secrets; unreadable events are logged as
    /// breaches.
    pub(crate) async fn hear(&self, queue: &Queue, secrets: &Secrets) -> Item {
        loop {
            // A flood of unreadable events must not starve the other tasks of this worker thread.
            tokio::task::coop::consume_budget().await;
            match queue.next().await {
                CallMessage::Event(bytes) => match read_event(&secrets.hide_json(bytes)) {
                    Ok(event) => return Item::Event(event),
                    // Logged at counts that are powers of two, so that a flood costs few lines.
                    Err(why) if queue.unreadable().is_power_of_two() => {
                        self.logs.breach(&format!("an event that {why}"));
                    }
                    Err(_) => {}
                },
                CallMessage::Dropped(count) => return Item::Dropped(count),
                CallMessage::Answer(Ok(answer)) => {
                    return Item::Done(Ok(secrets.hide_json(answer)));
                }
                CallMessage::Answer(Err(error)) => {
                    return Item::Done(Err(secrets.hide_error(error)));
                }
            }
        }
    }
}

pub(crate) fn read_event(bytes: &[u8]) -> Result<AdapterEvent, String> {
    let event: AdapterEvent = foreign_json::from_slice(bytes)
        .map_err(|error| format!("is not a JSON object with a type ({error})"))?;
    let named = !event.kind.is_empty()
        && event.kind.len() <= KIND_BYTES
        && !event.kind.contains(forge_base::text::is_unseen);
    if named {
        Ok(event)
    } else {
        Err("has an empty, overlong or unprintable type".to_owned())
    }
}
