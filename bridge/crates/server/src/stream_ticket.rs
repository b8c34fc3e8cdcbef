//! Tickets that each open one event stream: `EventSource` cannot send a token, and tokens must not be in a URL.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::json;

use super::auth::Reader;
use super::error::{Code, Failure};
use super::limit::Hash;
use super::query::NoQuery;
use forge_base::digest::sha256;
use forge_base::time;

/// Lifetime of a ticket.
pub(super) const LIFE: Duration = Duration::from_secs(60);
/// Maximum unused tickets, and those of one token among them.
const MOST: usize = 4096;
const MOST_OF_ONE: usize = MOST / 8;

/// Unused tickets, by their hashes. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(super) struct StreamTickets(Arc<Mutex<HashMap<Hash, StreamTicket>>>);

#[derive(Debug)]
struct StreamTicket {
    until: Duration,
    /// Hash of the token that requested the ticket; `None` if no tokens are configured.
    owner: Option<Hash>,
}

impl StreamTickets {
    fn issue(&self, owner: Option<Hash>, now: Duration) -> Option<String> {
        let ticket = BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
        let mut tickets = self.tickets();
        let is_full = |tickets: &HashMap<Hash, StreamTicket>| {
            let of_one = tickets.values().filter(|ticket| ticket.owner == owner);
            tickets.len() >= MOST || (owner.is_some() && of_one.count() >= MOST_OF_ONE)
        };
        if is_full(&tickets) {
            tickets.retain(|_, ticket| ticket.until > now);
            if is_full(&tickets) {
                return None;
            }
        }
        let until = now + LIFE;
        tickets.insert(sha256(&ticket), StreamTicket { until, owner });
        Some(ticket)
    }

    /// Removes a ticket, which can be used once; returns its owner, or `None` if it is unknown or expired.
    pub(super) fn redeem(&self, ticket: &str, now: Duration) -> Option<Option<Hash>> {
        let hash = sha256(ticket);
        let ticket = self.tickets().remove(&hash)?;
        (ticket.until > now).then_some(ticket.owner)
    }

    fn tickets(&self) -> std::sync::MutexGuard<'_, HashMap<Hash, StreamTicket>> {
        self.0
            .lock()
            .expect("nothing panics while it holds this lock")
    }
}

/// `POST /api/v2/stream-tickets`
pub(super) async fn issue(
    reader: Reader,
    _: NoQuery,
    State(tickets): State<StreamTickets>,
) -> Result<impl IntoResponse, Failure> {
    let ticket = tickets.issue(reader.0.token, reader.0.at);
    let ticket = ticket.ok_or_else(|| {
        let message = "too many stream tickets are unused; each expires after a minute";
        Failure::new(Code::RateLimited, message)
    })?;
    let expires_at = time::format(Timestamp::now() + LIFE);
    let body = json!({ "ticket": ticket, "expiresAt": expires_at });
    Ok((StatusCode::CREATED, Json(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    #[test]
    fn a_ticket_is_good_for_once_and_for_a_minute() {
        let tickets = StreamTickets::default();
        let owner = Some([7; 32]);
        let ticket = tickets.issue(owner, NOW).unwrap();
        assert_eq!(tickets.redeem("another", NOW), None);
        assert_eq!(tickets.redeem(&ticket, NOW), Some(owner));
        assert_eq!(tickets.redeem(&ticket, NOW), None);
        let late = tickets.issue(None, NOW).unwrap();
        assert_eq!(tickets.redeem(&late, NOW + LIFE), None);
    }

    #[test]
    fn there_are_only_so_many_and_old_ones_make_room() {
        let tickets = StreamTickets::default();
        assert!((0..MOST).all(|_| tickets.issue(None, NOW).is_some()));
        assert_eq!(tickets.issue(None, NOW), None);
        assert!(tickets.issue(None, NOW + LIFE).is_some());
        assert_eq!(tickets.tickets().len(), 1);
    }

    #[test]
    fn one_token_has_a_share_of_them() {
        let (tickets, one, other) = (StreamTickets::default(), Some([1; 32]), Some([2; 32]));
        assert!((0..MOST_OF_ONE).all(|_| tickets.issue(one, NOW).is_some()));
        assert_eq!(tickets.issue(one, NOW), None);
        assert!(tickets.issue(other, NOW).is_some());
        assert!(tickets.issue(one, NOW + LIFE).is_some());
    }
}
