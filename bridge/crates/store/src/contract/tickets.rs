//! Tickets of event streams.

use forge_base::digest::{Digest, sha256};
use forge_base::time::after;

use super::Subject;
use super::sample::at;
use crate::Store;
use crate::ticket::{LIFE, MOST_OF_ONE, Ticket};

async fn keep(store: &dyn Store, name: &str, owner: Option<Digest>, seconds: i64) -> bool {
    let ticket = Ticket {
        hash: sha256(name),
        owner,
        until: after(at(seconds), LIFE),
    };
    store.keep_ticket(ticket, at(seconds)).await.unwrap()
}

pub async fn a_ticket_is_good_for_once_and_for_a_minute(subject: impl Subject) {
    let store = subject.open().await;
    let owner = Some([7; 32]);
    assert!(keep(&*store, "one", owner, 0).await && keep(&*store, "late", None, 0).await);
    let take = async |name, seconds| store.take_ticket(&sha256(name), at(seconds)).await.unwrap();
    assert_eq!(take("another", 1).await, None);
    assert_eq!(take("one", 1).await.map(|ticket| ticket.owner), Some(owner));
    assert_eq!(take("one", 1).await, None);
    assert_eq!(take("late", 60).await, None);
    // The clock is set back.
    assert!(keep(&*store, "ahead", owner, 4_000).await);
    assert_eq!(take("ahead", 100).await, None);
}

pub async fn one_token_has_a_share_of_the_tickets(subject: impl Subject) {
    let store = subject.open().await;
    let (one, other) = (Some([1; 32]), Some([2; 32]));
    for n in 0..MOST_OF_ONE {
        assert!(keep(&*store, &n.to_string(), one, 0).await);
    }
    assert!(!keep(&*store, "more", one, 0).await);
    assert!(keep(&*store, "other", other, 0).await);
    // Old ones make room.
    assert!(keep(&*store, "more", one, 60).await);
    for n in 1..MOST_OF_ONE {
        assert!(keep(&*store, &n.to_string(), one, 61).await);
    }
    assert!(!keep(&*store, "back", one, 61).await);
    // The clock is set back.
    assert!(keep(&*store, "back", one, -3_600).await);
}
