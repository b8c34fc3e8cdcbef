//! Many dispatches and sessions on three bridges: each runs where it has to, in its order, and is read everywhere.
//! `FORGE_FLEET_DISPATCHES` and `FORGE_FLEET_SESSIONS` set their numbers.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::env;
use std::str::FromStr;

use forge_test_postgres::Cluster;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::fleet::Fleet;
use crate::harness::api::{JsonBody as _, answer, owed, quiet, with};
use crate::harness::process::Process;
use crate::harness::{Api, CallbackSink, until};

/// Requests at once.
const AT_ONCE: usize = 32;

fn number<T: FromStr>(variable: &str, default: T) -> T {
    let set = env::var(variable).ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Reads the log from a cursor until a page has no more; returns the cursor behind it.
async fn read(api: &Api, after: String, events: &mut Vec<Value>) -> String {
    let path = format!("/api/v2/events?after={after}&limit=1000");
    let request = api.request(reqwest::Method::GET, &path);
    let (status, page) = answer(request.header("accept", "application/json")).await;
    if !status.is_success() {
        // The server of the database is away.
        return after;
    }
    events.extend(page["events"].as_array().unwrap().iter().cloned());
    page["nextCursor"].as_str().unwrap().to_owned()
}

/// Dispatches until it is answered 202; the bridge or its database can be away.
async fn post(apis: &[&Api], first: usize, body: &Value) -> String {
    let next = Cell::new(first);
    let id = async || {
        let api = apis[next.replace(next.get() + 1) % apis.len()];
        let sent = api.request(reqwest::Method::POST, "/api/v2/dispatch");
        let answered = sent.json_body(body).send().await.ok()?;
        let status = answered.status();
        let answer: Value = answered.json().await.ok()?;
        // A bridge learns of the adapters of another one by its next poll.
        let is_away =
            status == StatusCode::SERVICE_UNAVAILABLE || answer["code"] == "UNKNOWN_PROVIDER";
        assert!(status == StatusCode::ACCEPTED || is_away, "{answer}");
        answer["dispatchId"].as_str().map(str::to_owned)
    };
    until("the dispatch to be accepted", id).await
}

/// Waits until all dispatches have finished and are delivered, as long as some do.
async fn settled(fleet: &Fleet) {
    let left = || {
        fleet.query("SELECT (SELECT count(*) FROM dispatch WHERE phase < 5) + (SELECT count(*) FROM delivery WHERE state = 0)")
    };
    let mut before = left();
    while before != "0" {
        until("further dispatches to finish", async || {
            (left() != before).then_some(())
        })
        .await;
        before = left();
    }
}

/// Types of the events of each dispatch, in the order of the log.
fn by_dispatch(events: &[Value]) -> BTreeMap<&str, Vec<&Value>> {
    let mut all = BTreeMap::<_, Vec<_>>::new();
    for event in events {
        if let Some(id) = event["dispatchId"].as_str() {
            all.entry(id).or_default().push(event);
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_dispatch_runs_where_its_adapter_is_and_is_followed_over_a_fail_over() {
    const PROVIDERS: [&str; 3] = ["one", "two", "three"];
    let count = number("FORGE_FLEET_DISPATCHES", 90);
    let server: &'static Cluster = Box::leak(Box::new(Cluster::start(&[])));
    server.run("postgres", "CREATE DATABASE bridge");
    let fleet = Fleet::on(server, "bridge", &PROVIDERS);
    let bridges = fleet.start().await;
    let sink = CallbackSink::start().await;
    let url = sink.url("/cb");
    let posting = async {
        let post_one = async |number: usize| {
            let body = owed(&format!("t-{number}"), "stream:3", &url);
            let provider = json!({ "provider": PROVIDERS[number % 3], "recovery": "retry" });
            post(&[&bridges[0].api], 0, &with(body, &provider)).await
        };
        let ids = stream::iter((0..count).map(post_one)).buffer_unordered(AT_ONCE);
        ids.collect::<Vec<_>>().await
    };
    // The reader of all events changes the bridge with each page.
    let mut events = Vec::new();
    let mut after = "0".to_owned();
    let failing = async {
        until("some of the load", async || {
            let rows = fleet.query("SELECT count(*) FROM dispatch WHERE phase = 5");
            (rows.parse::<usize>().unwrap() > count / 4).then_some(())
        })
        .await;
        tokio::task::block_in_place(|| server.fail_over());
    };
    let mut turn = 0;
    let reading = async {
        loop {
            turn += 1;
            after = read(&bridges[turn % 3].api, after.clone(), &mut events).await;
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let ids = tokio::select! {
        (ids, ()) = async { tokio::join!(posting, failing) } => ids,
        () = reading => unreachable!("it reads for ever"),
    };
    assert_eq!(ids.len(), count);
    settled(&fleet).await;
    loop {
        let before = events.len();
        after = read(&bridges[1].api, after, &mut events).await;
        if events.len() == before {
            break;
        }
    }
    // Each event once and in order, over bridges and servers.
    assert_eq!(bridges[2].api.event_log().await, events);
    let all = by_dispatch(&events);
    assert_eq!(all.len(), count);
    for events in all.values() {
        let seqs: Vec<_> = events.iter().map(|event| event["seq"].as_u64()).collect();
        assert!(
            seqs.iter().copied().eq((1..=seqs.len() as u64).map(Some)),
            "{seqs:?}"
        );
    }
    let wrong = "SELECT count(*) FROM dispatch d JOIN body b ON b.id = d.id WHERE convert_from(d.provider, 'UTF8') <>
       (ARRAY['one', 'two', 'three'])[1 + substr(convert_from(b.task_id, 'UTF8'), 3)::int % 3]";
    assert_eq!(fleet.query(wrong), "0");
    let told: BTreeMap<_, usize> = sink
        .received()
        .iter()
        .fold(BTreeMap::new(), |mut told, one| {
            *told.entry(one.headers["webhook-id"].clone()).or_default() += 1;
            told
        });
    assert_eq!(told.len(), count, "each result has its callback");
}

/// Position of the first event of a type, and of the last of the execution.
fn span(log: &BTreeMap<&str, Vec<(usize, &str)>>, id: &str) -> (usize, usize) {
    let events = &log[id];
    let start = events.iter().find(|(_, kind)| *kind == "execution.started");
    let is_end = |kind: &str| ["execution.completed", "execution.failed"].contains(&kind);
    let end = events.iter().rfind(|(_, kind)| is_end(kind));
    (start.unwrap().0, end.unwrap().0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_keep_their_order_when_a_bridge_is_killed() {
    const TURNS: usize = 20;
    let sessions = number("FORGE_FLEET_SESSIONS", 12);
    let mut fleet = Fleet::new(&["echo", "echo", "echo"]);
    for home in &mut fleet.homes {
        home.set("BRIDGE_DISPATCH_OFFLINE_GRACE", "1s");
    }
    let mut bridges = fleet.start().await;
    let killed: Process = bridges.pop().unwrap();
    let apis: Vec<&Api> = bridges.iter().map(|bridge| &bridge.api).collect();
    let apis = [apis[0], apis[1], &killed.api.clone()];
    let session = async |session: usize| {
        let mut ids = Vec::new();
        for turn in 0..TURNS {
            let body = quiet(&format!("s-{session}-{turn}"), "slow:20");
            let extra = json!({ "sessionId": format!("s-{session}"), "recovery": "retry" });
            ids.push(post(&apis, session + turn, &with(body, &extra)).await);
        }
        ids
    };
    let killing = async {
        until("some of the turns", async || {
            let rows = fleet.query("SELECT count(*) FROM dispatch WHERE phase = 5");
            (rows.parse::<usize>().unwrap() > sessions * TURNS / 4).then_some(())
        })
        .await;
        killed.kill();
    };
    let (turns, ()) = tokio::join!(join_all((0..sessions).map(session)), killing);
    settled(&fleet).await;
    let events = bridges[0].api.event_log().await;
    let mut log = BTreeMap::<_, Vec<_>>::new();
    for (place, event) in events.iter().enumerate() {
        if let (Some(id), Some(kind)) = (event["dispatchId"].as_str(), event["type"].as_str()) {
            log.entry(id).or_default().push((place, kind));
        }
    }
    for ids in &turns {
        let spans: Vec<_> = ids.iter().map(|id| span(&log, id)).collect();
        // The next begins after the one before has ended, in the order in which they were accepted.
        assert!(spans.windows(2).all(|two| two[0].1 < two[1].0), "{spans:?}");
    }
    let failed = "SELECT count(*) FROM dispatch WHERE error_code IS NOT NULL";
    assert_eq!(fleet.query(failed), "0");
}
