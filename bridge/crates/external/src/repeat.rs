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
    /// Wait before another attempt after this end, `planned` or the longer one that the service asks for; `None` if
    /// another attempt cannot help.
    pub(crate) fn wait(self, kind: EntryKind, end: &End, planned: Duration) -> Option<Duration> {
        match end {
            End::NotConnected(_) => Some(planned),
            End::Answered {
                status,
                retry_after,
                ..
            } => match self {
                Repeat::Briefly if kind == EntryKind::Query => {
                    is_temporary(*status).then_some(planned)
                }
                Repeat::Briefly | Repeat::Unconnected(_) => None,
                Repeat::Temporary(_) => {
                    let again = is_temporary(*status) || *status == Status::Http(TOO_MANY_REQUESTS);
                    again.then(|| planned.max(retry_after.unwrap_or_default()))
                }
            },
            End::Refused(..) | End::Broken(..) | End::TimedOut => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_durable_call_waits_as_long_as_the_service_asks() {
        let now = Instant::now();
        let (brief, durable) = (Repeat::Briefly, Repeat::Temporary(now));
        let (command, query) = (EntryKind::Command, EntryKind::Query);
        let planned = Duration::from_secs(2);
        for (repeat, kind, status, retry_after, expected) in [
            (durable, command, 503, None, Some(2)),
            (durable, command, 503, Some(1), Some(2)),
            (durable, command, 503, Some(60), Some(60)),
            (durable, command, 429, Some(60), Some(60)),
            (durable, command, 500, Some(60), None),
            (durable, command, 200, Some(60), None),
            (brief, query, 503, Some(60), Some(2)),
            (brief, query, 429, Some(60), None),
            (brief, command, 503, Some(60), None),
            (Repeat::Unconnected(now), command, 503, Some(60), None),
        ] {
            let end = End::Answered {
                status: Status::Http(status),
                body: Vec::new(),
                said: String::new(),
                retry_after: retry_after.map(Duration::from_secs),
            };
            let wait = repeat.wait(kind, &end, planned);
            let expected = expected.map(Duration::from_secs);
            assert_eq!(
                wait, expected,
                "{repeat:?} {kind:?} {status} {retry_after:?}"
            );
        }
        let away = End::NotConnected(String::new());
        assert_eq!(
            Repeat::Unconnected(now).wait(command, &away, planned),
            Some(planned)
        );
        assert_eq!(durable.wait(command, &End::TimedOut, planned), None);
    }
}
