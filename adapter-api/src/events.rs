//! Event sink of an adapter. No result of a send makes an execution fail.

use std::time::Duration;

use tokio::sync::mpsc;

use crate::AdapterEvent;
use crate::export::HostLink;
use crate::listeners::{EventListeners, ListenerId};

const FIRST_WAIT: Duration = Duration::from_millis(1);
const LONGEST_WAIT: Duration = Duration::from_millis(50);

/// Sink for the events of one execution, or of the adapter itself. Clones share the sink.
#[derive(Clone)]
pub struct Events {
    sink: Sink,
    listeners: EventListeners,
}

#[derive(Clone)]
enum Sink {
    Bridge {
        link: HostLink,
        call: u64,
        /// Largest event that the bridge accepts, in bytes of JSON.
        limit: usize,
    },
    Channel(mpsc::Sender<AdapterEvent>),
    Nowhere,
}

/// Result of [`Events::try_send`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The bridge accepted the event.
    Taken,
    /// The queue is full; the event is lost unless it is sent again.
    Full,
    /// The bridge considers the execution ended and accepts no more events.
    Closed,
    /// The event exceeds the bridge's limit and will never be accepted.
    TooLarge,
}

impl Events {
    /// Sends one event and waits while the queue is full, which slows an adapter that produces faster than
    /// the bridge stores. An event that can never be accepted is dropped. Text above the size limit is sent in
    /// several events; any other event above it is logged and dropped.
    pub async fn send(&self, event: AdapterEvent) {
        self.listeners.emit(&event);
        self.send_unheard(event).await;
    }

    async fn send_unheard(&self, event: AdapterEvent) {
        let mut wait = FIRST_WAIT;
        loop {
            match self.hand_over(&event) {
                Sent::Taken | Sent::Closed => return,
                Sent::TooLarge => {
                    let Some(halves) = halves(&event) else {
                        tracing::warn!(event.kind = %event.kind, "event dropped: larger than the bridge's limit");
                        return;
                    };
                    drop(event);
                    for half in halves {
                        Box::pin(self.send_unheard(half)).await;
                    }
                    return;
                }
                Sent::Full => {
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(LONGEST_WAIT);
                }
            }
        }
    }

    /// Sends one event if the queue has room now.
    pub fn try_send(&self, event: &AdapterEvent) -> Sent {
        self.listeners.emit(event);
        self.hand_over(event)
    }

    /// Calls `listener` with every event sent through this sink or its clones, before the bridge receives
    /// it. A panic in the listener is logged and affects neither the execution nor other listeners.
    pub fn on_event(&self, listener: impl Fn(&AdapterEvent) + Send + Sync + 'static) -> ListenerId {
        self.listeners.on_event(listener)
    }

    /// Removes a listener; false if it was already removed.
    pub fn off_event(&self, id: ListenerId) -> bool {
        self.listeners.off_event(id)
    }

    /// Replaces the sink's listeners by these.
    #[must_use]
    pub fn heard_by(mut self, listeners: EventListeners) -> Self {
        self.listeners = listeners;
        self
    }

    /// A sink that discards all events, for unit tests.
    pub fn nowhere() -> Self {
        Self::into_sink(Sink::Nowhere)
    }

    /// A sink whose events the test receives.
    pub fn channel(capacity: usize) -> (Self, mpsc::Receiver<AdapterEvent>) {
        let (sender, receiver) = mpsc::channel(capacity);
        (Self::into_sink(Sink::Channel(sender)), receiver)
    }

    pub(crate) fn of_call(link: HostLink, call: u64, limit: usize) -> Self {
        Self::into_sink(Sink::Bridge { link, call, limit })
    }

    fn into_sink(sink: Sink) -> Self {
        Self {
            sink,
            listeners: EventListeners::default(),
        }
    }

    fn hand_over(&self, event: &AdapterEvent) -> Sent {
        match &self.sink {
            Sink::Bridge { link, call, limit } => {
                let bytes = serde_json::to_vec(event).expect("an event is plain JSON");
                if bytes.len() > *limit {
                    return Sent::TooLarge;
                }
                link.emit(*call, &bytes)
            }
            Sink::Channel(sender) => match sender.try_send(event.clone()) {
                Ok(()) => Sent::Taken,
                Err(mpsc::error::TrySendError::Full(_)) => Sent::Full,
                Err(mpsc::error::TrySendError::Closed(_)) => Sent::Closed,
            },
            Sink::Nowhere => Sent::Taken,
        }
    }
}

/// Splits a piece of text or thinking at a character near its middle; `None` for other events.
fn halves(event: &AdapterEvent) -> Option<[AdapterEvent; 2]> {
    let delta = event.data.as_ref()?.get("delta")?.as_str()?;
    let is_boundary = |at: &usize| delta.is_char_boundary(*at);
    let middle = (1..=delta.len() / 2).rev().find(is_boundary)?;
    if !event.kind.starts_with("assistant.") {
        return None;
    }
    let part = |delta: &str| {
        let mut part = event.clone();
        part.data.as_mut().expect("it has a delta")["delta"] = delta.into();
        part
    };
    Some([part(&delta[..middle]), part(&delta[middle..])])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_text_is_split_and_at_a_character() {
        let text = AdapterEvent::new("assistant.text")
            .with(serde_json::json!({"delta": "aüüü", "messageId": "m"}));
        let [first, second] = halves(&text).unwrap().map(|half| half.data.unwrap());
        assert_eq!(
            (&first["delta"], &second["delta"]),
            (&"aü".into(), &"üü".into())
        );
        assert_eq!(
            (&first["messageId"], &second["messageId"]),
            (&"m".into(), &"m".into())
        );
        assert_eq!(halves(&AdapterEvent::text("ü")), None);
        assert_eq!(
            halves(&AdapterEvent::new("acme.tick").with(serde_json::json!({"delta": "long"}))),
            None
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_slows_the_sender_and_loses_nothing() {
        let (events, mut received) = Events::channel(1);
        let sender = async {
            for n in 0..5 {
                events.send(AdapterEvent::text(n.to_string())).await;
            }
        };
        let reader = async {
            for n in 0..5 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                assert_eq!(
                    received.recv().await,
                    Some(AdapterEvent::text(n.to_string()))
                );
            }
        };
        tokio::join!(sender, reader);
    }

    #[tokio::test]
    async fn a_closed_sink_and_a_panicking_listener_fail_nothing() {
        let (events, received) = Events::channel(1);
        events.on_event(|_| panic!("boom"));
        drop(received);
        events.send(AdapterEvent::text("a")).await;
        assert_eq!(events.try_send(&AdapterEvent::text("b")), Sent::Closed);
    }

    #[test]
    fn not_waiting_says_that_the_queue_is_full() {
        let (events, _received) = Events::channel(1);
        assert_eq!(events.try_send(&AdapterEvent::text("a")), Sent::Taken);
        assert_eq!(events.try_send(&AdapterEvent::text("b")), Sent::Full);
    }
}
