//! Round trips and statements of a dispatch. Each statement is planned, answered and read apart, which takes most of the time
//! of a dispatch that is alone.

use std::time::{Duration, Instant};

use forge_base::event::kind;
use forge_base::id::DeliveryId;
use forge_store::contract::sample::{PROVIDER, event, ok, settlement, task};
use forge_store::record::{Acceptance, AfterAttempt, Claim, NewDispatch, Spending};
use forge_store::roles::{Accept as _, Executions as _, Maintenance as _, Outbox as _, Queue as _};

use super::cluster::Database;
use super::open;
use super::relay::Relay;
use super::traffic::Trip;
use crate::Postgres;
use crate::engine::lock;

/// Round trips of the next transaction that commits: its statements by their first two words.
async fn transaction(relay: &Relay) -> Vec<Vec<String>> {
    let end = Instant::now() + Duration::from_secs(20);
    let mut trips = Vec::new();
    let writer = loop {
        assert!(Instant::now() < end, "{trips:?}");
        trips.extend(relay.take_trips());
        let ends = |(_, sent): &&Trip| sent.iter().any(|one| one == "COMMIT");
        if let Some((writer, _)) = trips.iter().find(ends) {
            break *writer;
        }
        // The relay notes an answer after it has passed it on.
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    trips.retain(|(connection, _)| *connection == writer);
    let begins = |(_, sent): &Trip| sent[0].starts_with(BEGIN);
    let begun = trips.iter().rposition(begins).unwrap();
    let words = |sql: &String| sql.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    let sent = trips[begun..].iter();
    sent.map(|(_, sent)| sent.iter().map(words).collect())
        .collect()
}

fn starting(task_id: &str, session: Option<&str>) -> NewDispatch {
    NewDispatch {
        start: Some(event(kind::STARTED, 0)),
        session: session.map(str::to_owned),
        ..task(task_id)
    }
}

async fn start(store: &Postgres, new: NewDispatch) -> Claim {
    match store.accept(new).await.unwrap() {
        Acceptance::Accepted {
            begun: Some(begun), ..
        } => Claim::Attempt(begun.lease),
        other => panic!("{other:?}"),
    }
}

const BEGIN: &str = "BEGIN ISOLATION";
const EPOCH: &str = "SELECT instance";
const DISPATCH: &str = "SELECT id,";
const SESSION: &str = "SELECT name,";
const WRITE: &[&str] = &["WITH w1", "COMMIT"];

#[tokio::test]
async fn a_transaction_is_two_round_trips_and_one_write() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let store = open(relay.target(&database.name)).await;
    relay.take_trips();

    let claim = start(&store, starting("alone", None)).await;
    let (id, accepted) = (claim.id(), transaction(&relay).await);
    assert_eq!(accepted, [&[BEGIN, EPOCH, "SELECT value,"][..], WRITE]);

    let mut finish = ok(2);
    finish.spending = Some(Spending::default());
    store.finish(claim, finish).await.unwrap();
    let finished = transaction(&relay).await;
    assert_eq!(finished, [&[BEGIN, EPOCH, DISPATCH][..], WRITE]);

    let settled = settlement(1, 3, AfterAttempt::Delivered);
    store.settle(DeliveryId::of(id), settled).await.unwrap();
    let settled = transaction(&relay).await;
    assert_eq!(settled, [&[BEGIN, EPOCH, DISPATCH, DISPATCH][..], WRITE]);

    // Its session is read before it is entered and left; nothing else is added.
    let claim = start(&store, starting("in session", Some("s"))).await;
    let accepted = transaction(&relay).await;
    let home = "SELECT session,";
    let read = &[BEGIN, EPOCH, "SELECT value,", SESSION, home];
    assert_eq!(accepted, [&read[..], WRITE]);
    store.finish(claim, ok(2)).await.unwrap();
    let finished = transaction(&relay).await;
    assert_eq!(finished, [&[BEGIN, EPOCH, SESSION, DISPATCH][..], WRITE]);
    store.close().await;
}

#[tokio::test]
async fn a_session_that_is_not_known_here_is_read_in_a_message_of_its_own() {
    let database = Database::new();
    database.create().await;
    let relay = Relay::start().await;
    let store = open(relay.target(&database.name)).await;
    let claim = start(&store, starting("first", Some("s"))).await;
    let next = store.accept(starting("next", Some("s"))).await.unwrap();
    assert!(matches!(next, Acceptance::Accepted { begun: None, .. }));
    lock(&store.in_sessions).clear();
    transaction(&relay).await;
    store.finish(claim, ok(2)).await.unwrap();
    let finished = transaction(&relay).await;
    let first = &[BEGIN, EPOCH, DISPATCH][..];
    assert_eq!(finished, [first, &[SESSION, DISPATCH], WRITE]);
    // The next one of the session can start.
    assert_eq!(store.ready(PROVIDER, 9).await.unwrap().len(), 1);
    store.close().await;
}
