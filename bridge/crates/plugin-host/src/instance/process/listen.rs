//! Messages of a process to its instance: events, answers and log records, until the process ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::program::EndReason;
use super::remote::{Connection, ConnectionState, Remote, crashed, lock};
use super::wire::{ChildMessage, MessageReader};
use crate::boundary::answer;
use crate::boundary::call_id::CallId;
use crate::boundary::callbacks::Emitted;
use forge_base::failpoint;

/// Wait before an event is offered again to a full queue.
const PAUSE: Duration = Duration::from_millis(2);

impl Remote {
    /// Handles the messages of a process until its end.
    pub(super) fn listen(&self, connection: &Arc<Connection>, mut reader: MessageReader) {
        let why = loop {
            match reader.next() {
                Ok(Some(told)) => {
                    if let Err(why) = self.take(connection, told) {
                        break Some(why);
                    }
                }
                Ok(None) => break None,
                Err(error) => break Some(format!("it was stopped because it sent {error}")),
            }
        };
        if let Some(why) = why {
            lock(&connection.killed).get_or_insert(why);
        }
        let missed = {
            let mut state = lock(&self.state);
            let current = state.is_current(connection);
            if current {
                state.connection = None;
                self.connection_state.send_replace(ConnectionState::Ending);
            }
            current && !state.closing
        };
        // A writer might be blocked until the process reads.
        connection.program.end_now();
        if missed {
            failpoint::point("child.ended");
            let killed = lock(&connection.killed).take();
            let reason = killed.map_or_else(|| connection.program.epitaph(), EndReason::from);
            let line = reason.to_string();
            self.connection_state
                .send_replace(ConnectionState::Down(reason.how));
            for (call_id, _) in self.host.call_ids.all() {
                self.host.fail(call_id, crashed(&line));
            }
            failpoint::point("child.told");
        }
        connection.program.bury();
    }

    /// Handles one message. The error is the reason to stop the process.
    fn take(&self, connection: &Connection, told: ChildMessage) -> Result<(), String> {
        let host = self.host;
        match told {
            ChildMessage::Event { id, event } => {
                while host.emit(CallId(id), &event) == Emitted::Full {
                    connection.held_back.store(true, Ordering::Release);
                    std::thread::sleep(PAUSE);
                }
                connection.held_back.store(false, Ordering::Release);
            }
            ChildMessage::Dropped { id: 0, count } => host.news.lose(count),
            ChildMessage::Dropped { id, count } => {
                if let Some(queue) = host.call_ids.find(CallId(id)) {
                    queue.lose(count);
                }
            }
            ChildMessage::Done { id, answer } => {
                host.complete(CallId(id), "completion", || {
                    answer::check(answer, host.payload_bytes)
                });
            }
            ChildMessage::TooLarge { id, head, bytes } => {
                host.complete(CallId(id), "completion", || {
                    Err(answer::too_large(&head, bytes, host.payload_bytes))
                });
            }
            ChildMessage::Log { level, record } => host.logs.push(level, &record),
            ChildMessage::Breach(why) => host.logs.breach(&why),
            ChildMessage::Failed(why) => return Err(format!("it was stopped: {why}")),
            ChildMessage::Ready(_) | ChildMessage::Refused(_) => {
                host.logs.breach("it sent its manifest twice");
            }
        }
        Ok(())
    }
}
