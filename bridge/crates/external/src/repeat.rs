//! Repetition of a call that failed: after which ends, and after which waits.

use std::time::Duration;

use tokio::time::Instant;
use tonic::Code;

use crate::answer::Status;
use crate::manifest::EntryKind;
use crate::transport::End;

/// Wait before the second attempt; each further one is four times as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(15);
const TOO_MANY_REQUESTS: u16 = 429;

/// Repetition of a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// Twice at most, within the time of the service: a command if there was no connection, a query also after an
    /// answer that says that the service is away for a moment.
    Briefly,
    /// Until the time of a durable call is up, if there was no connection.
    Unconnected(Instant),
    /// Until the time of a durable call is up, also after an answer that says so.
    Temporary(Instant),
}

impl Repeat {
    /// True if another attempt after this end can help.
    pub(crate) fn helps(self, kind: EntryKind, end: &End) -> bool {
        match end {
            End::NotConnected(_) => true,
            End::Answered { status, .. } => match self {
                Repeat::Briefly => kind == EntryKind::Query && is_temporary(*status),
                Repeat::Unconnected(_) => false,
                Repeat::Temporary(_) => {
                    is_temporary(*status) || *status == Status::Http(TOO_MANY_REQUESTS)
                }
            },
            End::Refused(..) | End::Broken(..) | End::TimedOut => false,
        }
    }

    /// Waits before the second attempt and those after it.
    pub(crate) fn waits(self) -> impl Iterator<Item = Duration> {
        let most = match self {
            Repeat::Briefly => 2,
            Repeat::Unconnected(_) | Repeat::Temporary(_) => usize::MAX,
        };
        let doubled = |wait: &Duration| Some((*wait * 4).min(LONGEST_WAIT));
        std::iter::successors(Some(FIRST_WAIT), doubled).take(most)
    }
}

/// True for an answer of a service that is away for a moment.
pub(crate) fn is_temporary(status: Status) -> bool {
    matches!(
        status,
        Status::Http(502..=504) | Status::Grpc(Code::Unavailable)
    )
}
