//! What a call says, as its reader gets it: events read from their JSON, gaps, and the answer.

use std::fmt;
use std::sync::Arc;

use forge_adapter_api::AdapterEvent;

use super::call::Host;
use super::call_id::CallId;
use super::meters::Op;
use super::queue::{Answer, CallMessage, Queue};

/// Longer names of event types are refused.
const KIND_BYTES: usize = 128;

/// One call under way. Dropping it drops the call in the adapter.
pub struct Call {
    pub(super) queue: Arc<Queue>,
    pub(super) call_id: CallId,
    pub(super) host: &'static Host,
    pub(super) meter: &'static Op,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({} {:#x})", self.host.provider, self.call_id.0)
    }
}

/// What a call says.
#[derive(Debug, PartialEq)]
pub enum Item {
    Event(AdapterEvent),
    /// So many events are missing here, because the adapter did not wait for us to take them.
    Dropped(u64),
    /// The last item, exactly once.
    Done(Answer),
}

impl Call {
    /// The next item. Cancel-safe. Never resolves after `Done`.
    pub async fn next(&mut self) -> Item {
        let item = self.host.hear(&self.queue).await;
        if let Item::Done(answer) = &item {
            self.meter.answered(answer);
        }
        item
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
    /// The next readable thing said in a queue of this adapter.
    pub(super) async fn hear(&self, queue: &Queue) -> Item {
        loop {
            // A flood of unreadable events must not keep the other tasks of this worker waiting.
            tokio::task::coop::consume_budget().await;
            match queue.next().await {
                CallMessage::Event(bytes) => match read_event(&bytes) {
                    Ok(event) => return Item::Event(event),
                    // The first of a call, then ever fewer: a flood is one line, not one each.
                    Err(why) if queue.unreadable().is_power_of_two() => {
                        self.logs.breach(&format!("an event that {why}"));
                    }
                    Err(_) => {}
                },
                CallMessage::Dropped(count) => return Item::Dropped(count),
                CallMessage::Answer(answer) => return Item::Done(answer),
            }
        }
    }
}

pub(super) fn read_event(bytes: &[u8]) -> Result<AdapterEvent, String> {
    let event: AdapterEvent = serde_json::from_slice(bytes)
        .map_err(|error| format!("is no JSON object with a type ({error})"))?;
    let named = !event.kind.is_empty()
        && event.kind.len() <= KIND_BYTES
        && !event.kind.chars().any(char::is_control);
    if named {
        Ok(event)
    } else {
        Err("has an empty, overlong or unprintable type".to_owned())
    }
}
