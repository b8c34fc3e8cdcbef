//! Follows a run to its end. A broken stream is re-opened after the last event received.

use std::time::Duration;

use forge_adapter_api::{AdapterError, AdapterEvent, Events, Run};
use forge_adapter_transport::http::{Failure, ServerEvent};
use tokio::time::sleep;

use crate::outcome::End;
use crate::server::{RunId, RunStatus, Server};
use crate::transcript::Transcript;

const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Position in the event stream, used to drop duplicates after a reconnect.
///
/// Event ids are millisecond timestamps, and the development server gives all events of one millisecond the same id.
/// The adapter therefore requests events after the previous millisecond and drops the repeated ones.
#[derive(Default)]
struct Had {
    /// The id before `last`; value of `Last-Event-ID` on a reconnect.
    before: Option<String>,
    last: Option<String>,
    /// Events received with the id `last`.
    group: Vec<(String, String)>,
}

/// Position of a stream in the run: from its beginning, or after a reconnect.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stream {
    First,
    Further,
}

impl Had {
    /// Value for `Last-Event-ID`; `-1` requests all events.
    fn mark(&self) -> &str {
        self.before.as_deref().unwrap_or("-1")
    }

    /// Returns true if this event was not received before, and records it.
    fn is_news(&mut self, event: &ServerEvent, stream: Stream) -> bool {
        if event.id.is_empty() {
            return true;
        }
        if self.last.as_ref() != Some(&event.id) {
            if let (Some(last), Some(id)) = (self.last.as_deref().and_then(order), order(&event.id))
                && id < last
            {
                return false;
            }
            self.before = self.last.replace(event.id.clone());
            self.group.clear();
        }
        let contents = (event.name.clone(), event.data.clone());
        if stream == Stream::Further && self.group.contains(&contents) {
            return false;
        }
        self.group.push(contents);
        true
    }
}

/// Parses `<milliseconds>-<number>`.
fn order(id: &str) -> Option<(u64, u64)> {
    let (time, number) = id.split_once('-')?;
    Some((time.parse().ok()?, number.parse().ok()?))
}

pub(crate) async fn follow(
    server: &Server,
    run: &RunId,
    reconnects: u32,
    transcript: &mut Transcript,
    events: &Events,
    cancel: &Run,
) -> Result<End, AdapterError> {
    let mut had = Had::default();
    let mut stream = Stream::First;
    let mut in_vain = 0;
    loop {
        let heard = tokio::select! {
            heard = hear(server, run, stream, &mut had, transcript, events) => heard?,
            () = cancel.cancelled() => return Ok(End::Cancelled),
        };
        let failure = match heard {
            // The end of a stream does not imply the end of the run.
            Heard { failure: None, .. } => match server.status(run).await {
                Ok(RunStatus::Pending | RunStatus::Running) => None,
                Ok(status) => return Ok(End::Over(status)),
                Err(failure) => Some(failure),
            },
            Heard { failure, .. } => failure,
        };
        in_vain = if heard.news { 0 } else { in_vain + 1 };
        if in_vain > reconnects {
            // The state of a run that has ended is complete even if events were lost.
            if let Ok(status) = server.status(run).await
                && !matches!(status, RunStatus::Pending | RunStatus::Running)
            {
                tracing::warn!(run.id = %run.run, "the end of a run's stream was not received");
                return Ok(End::Over(status));
            }
            let lost = failure.map(AdapterError::from).unwrap_or_else(|| {
                AdapterError::new(
                    "upstream_error",
                    "the stream ended while the run was still active",
                )
            });
            return Err(lost.retryable());
        }
        if let Some(failure) = &failure {
            tracing::debug!(run.id = %run.run, %failure, "the stream of a run broke");
        }
        tokio::select! {
            () = sleep(wait(in_vain)) => {}
            () = cancel.cancelled() => return Ok(End::Cancelled),
        }
        stream = Stream::Further;
    }
}

/// Result of reading one stream.
struct Heard {
    news: bool,
    /// Reason if the stream broke; `None` if it ended normally.
    failure: Option<Failure>,
}

async fn hear(
    server: &Server,
    run: &RunId,
    stream: Stream,
    had: &mut Had,
    transcript: &mut Transcript,
    events: &Events,
) -> Result<Heard, AdapterError> {
    let mut news = false;
    let failure = match server.events(run, had.mark()).await {
        Ok(mut source) => loop {
            match source.next().await {
                Some(Ok(event)) => {
                    if !had.is_news(&event, stream) {
                        continue;
                    }
                    news = true;
                    for event in read(transcript, &event)? {
                        events.send(event).await;
                    }
                }
                Some(Err(failure)) => break Some(failure),
                None => break None,
            }
        },
        Err(failure) => Some(failure),
    };
    match failure {
        // The run's status, read by the caller, shows if it has ended or was deleted.
        Some(Failure::Refused { status, .. }) if status.as_u16() == 404 => Ok(Heard {
            news,
            failure: None,
        }),
        Some(failure) if !may_come_back(&failure) => Err(failure.into()),
        failure => Ok(Heard { news, failure }),
    }
}

fn read(
    transcript: &mut Transcript,
    event: &ServerEvent,
) -> Result<Vec<AdapterEvent>, AdapterError> {
    transcript
        .event(event)
        .map_err(|malformed| AdapterError::new("protocol_violation", malformed.to_string()))
}

/// Returns true if re-opening the stream can succeed soon.
fn may_come_back(failure: &Failure) -> bool {
    match failure {
        Failure::Connect(_) | Failure::Broken(_) | Failure::Silent(_) => true,
        Failure::Refused { status, .. } => {
            status.is_server_error() || matches!(status.as_u16(), 408 | 429)
        }
        Failure::Tls(_) | Failure::Client(_) | Failure::TooLong(_) | Failure::NotJson(_) => false,
    }
}

fn wait(in_vain: u32) -> Duration {
    FIRST_WAIT
        .saturating_mul(1 << in_vain.min(16))
        .min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(id: &str, data: &str) -> ServerEvent {
        ServerEvent {
            id: id.to_owned(),
            name: "custom".to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn events_of_one_millisecond_are_neither_lost_nor_had_twice() {
        let mut had = Had::default();
        assert_eq!(had.mark(), "-1");
        let first = [("1-0", "a"), ("2-0", "b"), ("2-0", "b"), ("2-0", "c")];
        for (id, data) in first {
            assert!(had.is_news(&event(id, data), Stream::First), "{data}");
        }
        assert_eq!(had.mark(), "1-0", "2-0 may have had more");
        let further = [
            ("2-0", "b", false),
            ("2-0", "c", false),
            ("2-0", "d", true),
            ("10-0", "e", true),
            ("2-0", "d", false),
            ("10-0", "e", false),
            ("10-1", "f", true),
            ("", "no id", true),
        ];
        for (id, data, news) in further {
            assert_eq!(
                had.is_news(&event(id, data), Stream::Further),
                news,
                "{id} {data}"
            );
        }
        assert_eq!(had.mark(), "10-0");
    }

    #[test]
    fn waits_grow_to_a_bound() {
        assert_eq!(wait(0), FIRST_WAIT);
        assert!(wait(1) < wait(2));
        assert_eq!(wait(u32::MAX), LONGEST_WAIT);
    }
}
