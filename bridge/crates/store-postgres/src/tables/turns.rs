//! Sessions: their dispatches run one after another, in the order of their turns. A session has a row while a dispatch
//! runs or waits in it.

use forge_base::id::DispatchId;
use forge_store::record::{Begun, Claim};

use super::execute::of;
use super::rows::{DispatchRow, SessionRow, phase};
use crate::Postgres;
use crate::batch::{Needs, Rows, Stop};
use crate::engine::lock;

/// Place of a dispatch that has become ready: its phase, its session, and its turn there.
pub(super) struct Place {
    pub(super) phase: i64,
    pub(super) queue: Option<String>,
    pub(super) turn: Option<i64>,
}

impl Postgres {
    /// Notes that an attempt has begun here.
    pub(super) fn note_begun(&self, begun: &Begun) {
        if begun.dispatch.session.is_some() {
            lock(&self.in_sessions).insert(begun.lease.id);
        }
    }

    /// Notes the end of an attempt. False if its dispatch is in no session, as far as is known.
    pub(super) fn note_end(&self, claim: &Claim) -> bool {
        let was_in_session = lock(&self.in_sessions).remove(&claim.id());
        was_in_session || !matches!(claim, Claim::Attempt(_))
    }
}

impl Rows {
    /// Makes sure that the row is here which `enter` changes.
    pub(super) fn can_enter(&self, provider: &str, session: Option<&str>) -> Result<(), Stop> {
        let name = session.map(|session| SessionRow::name(provider, session));
        match name.filter(|name| !self.sought_sessions.contains(name)) {
            None => Ok(()),
            Some(name) => Err(Stop::more(Needs {
                sessions: vec![name],
                ..Needs::default()
            })),
        }
    }

    /// Gives the next turn of a session.
    pub(super) fn enter(&mut self, provider: &str, session: Option<&str>) -> Place {
        let queue = session.map(|session| SessionRow::name(provider, session));
        let (phase, turn) = match &queue {
            None => (phase::READY, None),
            Some(name) => match self.sessions.get_mut(name) {
                Some(session) => {
                    session.last += 1;
                    (phase::BLOCKED, Some(session.last))
                }
                None => {
                    let (name, head, last) = (name.clone(), 1, 1);
                    self.sessions.put(SessionRow { name, head, last });
                    (phase::READY, Some(1))
                }
            },
        };
        Place { phase, queue, turn }
    }

    /// Makes sure that the rows are here which `leave` changes.
    pub(super) fn can_leave(&self, dispatch: &DispatchRow) -> Result<(), Stop> {
        match &dispatch.queue {
            Some(queue) if self.left.contains(queue) => Err(Stop::Later),
            Some(queue) if self.sessions.get(queue).is_none() => Err(Stop::more(Needs {
                leaves: true,
                ..of(dispatch.id)
            })),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes a dispatch out of its session, and lets the next one start if it was the first.
    pub(super) fn leave(&mut self, id: DispatchId) {
        let Some(dispatch) = self.dispatches.get_mut(&id) else {
            return;
        };
        let (Some(queue), Some(turn)) = (dispatch.queue.take(), dispatch.turn.take()) else {
            return;
        };
        let home = dispatch.home.clone();
        let is_first = self
            .sessions
            .get(&queue)
            .is_some_and(|session| session.head == turn);
        if !is_first {
            self.left.insert(queue);
            return;
        }
        let waiting = self.dispatches.iter();
        let waiting = waiting.filter(|other| other.queue.as_ref() == Some(&queue));
        let next = waiting.min_by_key(|other| other.turn).map(|next| next.id);
        match next.and_then(|next| self.dispatches.get_mut(&next)) {
            None => self.sessions.remove(&queue),
            Some(next) => {
                if next.phase == phase::BLOCKED {
                    next.phase = phase::READY;
                }
                if !next.is_bound && home.is_some() {
                    next.home = home;
                }
                if let (Some(session), Some(head)) = (self.sessions.get_mut(&queue), next.turn) {
                    session.head = head;
                }
            }
        }
        self.left.insert(queue);
    }
}
