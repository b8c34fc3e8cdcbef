//! Streams of runs: cut anywhere, filtered, in two framings, read slowly, and from every kind of cursor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forge_base::tasks::Tasks;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use super::super::events::cut_anywhere;
use super::super::harness::process::Home;
use super::super::harness::socket::connect;
use super::*;

/// Plan with as many specifications: each is three events.
fn specs(count: usize) -> String {
    let specs = (0..count).map(|n| (format!("s{n}"), json!("Short lines.")));
    let specs: serde_json::Map<_, _> = specs.collect();
    json!({"specs": specs, "tasks": [task("a", &[], "say é\nwrite a.txt a")]}).to_string()
}

/// A run that has ended, with about three times as many events.
async fn completed(api: &Api, origin: &Origin, count: usize) -> String {
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &specs(count)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    run
}

/// Check 4. Check 7: a run that has ended is replayed to `run.completed`, and its stream ends.
#[tokio::test]
async fn a_stream_cut_at_any_byte_continues_as_the_log() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let run = completed(&bridge.api, &origin, 95).await;
    let path = format!("/api/v1/runs/{run}/stream");
    let count = cut_anywhere(&bridge.api, &path, "eventId").await;
    assert!(count >= 300, "{count}");
    let events = events(&bridge.api, &run).await;
    assert_eq!(events.last().unwrap()["type"], "run.completed");
    bridge.stop().await;
}

/// Reads a stream at 1 kB a second until the others are at its end. Returns the bytes until then, and the whole answer.
async fn read_slowly(api: Api, path: String, is_over: Arc<AtomicBool>) -> (usize, String) {
    let mut slow = connect(&api).await;
    // Without the framing of HTTP/1.1.
    let ask = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
    slow.write_all(ask.as_bytes()).await.unwrap();
    let (mut told, mut piece) = (Vec::new(), [0; 1024]);
    while !is_over.load(Ordering::SeqCst) {
        let read = slow.read(&mut piece).await.unwrap();
        told.extend_from_slice(&piece[..read]);
        sleep(Duration::from_secs(1)).await;
    }
    let until_then = told.len();
    slow.read_to_end(&mut told).await.unwrap();
    (until_then, String::from_utf8(told).unwrap())
}

/// Check 3: 64 tasks at once number their events without a gap. Check 9: a reader of 1 kB a second delays no other one, and
/// misses nothing.
#[tokio::test]
async fn many_tasks_are_numbered_without_a_gap_and_a_slow_reader_delays_no_other() {
    let origin = Origin::new();
    let settings = format!("{}max_parallel = 64\npush = \"never\"\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let path = format!("/api/v1/runs/{run}/stream");
    let is_over = Arc::new(AtomicBool::new(false));
    let slow = Tasks::here().spawn(read_slowly(api.clone(), path.clone(), Arc::clone(&is_over)));
    let live = api.request(Method::GET, &path).timeout(LONG);
    let live = live.send().await.unwrap();
    let live = Tasks::here().spawn(async move { live.text().await.unwrap() });

    let instructions = "say one\nawait .git/go\ntool read 100\ntool write 100\nsay two";
    let tasks = (0..64).map(|n| task(&format!("t{n}"), &[], instructions));
    say(api, &run, &plan(&tasks.collect::<Vec<_>>())).await;
    running(api, &run, 64).await;
    (0..64).for_each(|n| release(&bridge, &run, &format!("t{n}"), 1));
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let live = live.await.unwrap();
    let lines = |text: &str| {
        let lines = text.lines().filter(|line| !line.starts_with(':'));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let events = events(api, &run).await;
    assert_eq!(of(&events, "tool.result").len(), 128);
    assert_eq!(lines(&live).len(), events.len());
    is_over.store(true, Ordering::SeqCst);
    let (read, told) = slow.await.unwrap();
    // The others were at the end while the slow one was not.
    assert!(read < live.len(), "{read} of {}", live.len());
    let (head, body) = told.split_once("\r\n\r\n").unwrap();
    assert!(!head.contains("chunked"), "{head}");
    assert!(lines(body) == lines(&live), "{} events", lines(body).len());
    verified(api, &run).await;
    bridge.stop().await;
}

/// Check 9: readers that take nothing hold about a page of the log each, not what they have missed.
#[tokio::test]
async fn readers_that_take_nothing_cost_little_memory() {
    const READERS: usize = 20;
    const PAGE: usize = 1 << 20;
    let origin = Origin::new();
    let mut home = Home::new(&[]);
    std::fs::write(home.dir.path().join("forge-bridge.toml"), origin.settings()).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    let bridge = home.start();
    let run = create(&bridge.api, &json!({"repoUrl": origin.url()})).await;
    let results = vec!["tool read 200000"; 100].join("\n");
    say(&bridge.api, &run, &plan(&[task("a", &[], &results)])).await;
    assert_eq!(ended(&bridge.api, &run).await["status"], "completed");
    let log = events(&bridge.api, &run).await;
    assert_eq!(of(&log, "tool.result").len(), 100);
    let before = bridge.memory();
    let mut readers = Vec::new();
    for _ in 0..READERS {
        let mut reader = connect(&bridge.api).await;
        let ask = format!("GET /api/v1/runs/{run}/stream HTTP/1.1\r\nhost: localhost\r\n\r\n");
        reader.write_all(ask.as_bytes()).await.unwrap();
        // The answer has begun.
        reader.read_exact(&mut [0; 16]).await.unwrap();
        readers.push(reader);
    }
    sleep(Duration::from_secs(1)).await;
    let cost = bridge.memory().saturating_sub(before) / READERS;
    assert!(cost <= 4 * PAGE, "{cost} bytes for each");
    bridge.kill();
}

/// Check 38: `events=core` leaves out what the design does not name. Check 39: both framings have the same ids.
#[tokio::test]
async fn framings_have_the_same_ids_and_a_filter_renumbers_nothing() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = completed(api, &origin, 1).await;
    let path = format!("/api/v1/runs/{run}/stream");
    let all = events(api, &run).await;
    let id = |event: &Value| event["eventId"].as_str().unwrap().to_owned();
    let ids: Vec<_> = all.iter().map(id).collect();

    let sse = api
        .request(Method::GET, &path)
        .header("accept", "text/event-stream");
    let sse = sse.send().await.unwrap();
    assert_eq!(
        sse.headers()["content-type"],
        "text/event-stream; charset=utf-8"
    );
    let sse = sse.text().await.unwrap();
    let field = |name: &str| {
        let lines = sse.lines().filter_map(|line| line.strip_prefix(name));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    // A keepalive can repeat an id; it has no data.
    let data = field("data: ").into_iter();
    let data: Vec<Value> = data
        .map(|data| serde_json::from_str(&data).unwrap())
        .collect();
    assert!(data == all);
    let kinds: Vec<_> = all
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(field("event: "), kinds);
    let mut named = field("id: ");
    named.dedup();
    assert_eq!(named, ids);

    let core = api.request(Method::GET, &format!("{path}?events=core"));
    let core = core.send().await.unwrap();
    assert_eq!(core.headers()["content-type"], "application/x-ndjson");
    let core = core.text().await.unwrap();
    let core = core.lines().filter(|line| !line.starts_with(':'));
    let core: Vec<Value> = core
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let wanted: Vec<_> = all
        .iter()
        .filter(|event| super::members::DESIGN.contains(&event["type"].as_str().unwrap()))
        .cloned()
        .collect();
    assert!(core == wanted, "{core:?}");
    assert!(core.len() < all.len());
    let (status, _) = api.get(&format!("{path}?events=some")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    bridge.stop().await;
}

/// Check 6: the rules of cursors.
#[tokio::test]
async fn a_cursor_is_one_of_an_event_of_the_run_or_refused() {
    let origin = Origin::new();
    let variables = [("BRIDGE_RETENTION_EVERY", "100ms")];
    let bridge = Bridge::configured(&origin.settings(), &variables).await;
    let api = &bridge.api;
    let run = completed(api, &origin, 1).await;
    let other = create(api, &json!({"repoUrl": origin.url()})).await;
    let all = events(api, &run).await;
    let cursor = |event: &Value| event["eventId"].as_str().unwrap().to_owned();
    let (first, last) = (cursor(&all[0]), cursor(all.last().unwrap()));
    let foreign = cursor(&page(api, &other, "0").await[0]);
    let (log, position) = last.split_once('-').unwrap();
    let next = format!("{log}-{}", position.parse::<u64>().unwrap() + 1_000);
    let get = async |run: &str, after: &str| {
        let path = format!("/api/v1/runs/{run}/stream?after={after}");
        let answer = api.request(Method::GET, &path).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    for unknown in [foreign.as_str(), &next, "0-1", "nonsense", "17", "-1"] {
        let (status, answer) = get(&run, unknown).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{unknown}: {answer}");
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(answer["code"], "INVALID_REQUEST", "{unknown}: {answer}");
        assert_eq!(
            answer["details"][0]["field"], "after",
            "{unknown}: {answer}"
        );
    }
    for (after, rest) in [
        ("0", &all[..]),
        (&first, &all[1..]),
        (&last, &[]),
        ("now", &[]),
    ] {
        let (status, text) = get(&run, after).await;
        assert_eq!(status, StatusCode::OK, "{after}: {text}");
        let lines = text.lines().filter(|line| !line.starts_with(':'));
        let found: Vec<Value> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert!(found == rest, "{after}: {text}");
    }
    // A header goes before the parameter, as a browser sends it.
    let path = format!("/api/v1/runs/{run}/stream?after={last}");
    let resumed = api
        .request(Method::GET, &path)
        .header("last-event-id", &first);
    let resumed = resumed.send().await.unwrap().text().await.unwrap();
    assert!(
        resumed.starts_with(&format!("{{\"eventId\":\"{}\"", cursor(&all[1]))),
        "{resumed}"
    );
    // From now on, of a run that continues.
    let path = format!("/api/v1/runs/{other}/stream?after=now");
    let live = api.request(Method::GET, &path).send().await.unwrap();
    assert_eq!(command(api, &other, "cancel").await.0, StatusCode::OK);
    let live = live.text().await.unwrap();
    let kinds = live.lines().filter(|line| !line.starts_with(':'));
    let kinds: Vec<_> = kinds
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["type"].clone())
        .collect();
    assert!(!kinds.contains(&json!("run.started")), "{live}");
    assert_eq!(kinds.last().unwrap(), "run.completed", "{live}");

    // Events are kept as long as their run: a cursor expires with it.
    let variables = [variables[0], ("BRIDGE_RETENTION_RECORDS", "1ms")];
    let bridge = bridge.restarted(&origin.settings(), &variables).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let first = cursor(&page(api, &run, "0").await[0]);
    command(api, &run, "cancel").await;
    until("the run to be removed", || async {
        let (status, _) = api.get(&format!("/api/v1/runs/{run}")).await;
        (status == StatusCode::NOT_FOUND).then_some(())
    })
    .await;
    for path in ["stream", "events"] {
        let path = format!("/api/v1/runs/{run}/{path}?after={first}");
        let (status, answer) = api.get(&path).await;
        assert_eq!(
            (status, &answer["code"]),
            (StatusCode::NOT_FOUND, &json!("RUN_NOT_FOUND"))
        );
    }
    bridge.stop().await;
}

/// Check 8.
#[tokio::test]
async fn a_silent_stream_is_kept_alive_every_fifteen_seconds() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url(), "planReview": true})).await;
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    answers(api, &run, 1).await;
    let path = format!("/api/v1/runs/{run}/stream?after=now");
    for accept in ["application/x-ndjson", "text/event-stream"] {
        let stream = api.request(Method::GET, &path).header("accept", accept);
        let stream = stream.send().await.unwrap();
        assert_eq!(stream.headers()["cache-control"], "no-cache", "{accept}");
    }
    let mut stream = api.request(Method::GET, &path).send().await.unwrap();
    let mut at = Vec::new();
    while at.len() < 3 {
        let piece = stream.chunk().await.unwrap().unwrap();
        assert_eq!(piece, ": keepalive\n");
        at.push(Instant::now());
    }
    let between: Vec<_> = at
        .windows(2)
        .map(|pair| (pair[1] - pair[0]).as_secs_f64())
        .collect();
    assert!(
        between.iter().all(|seconds| (14.5..25.0).contains(seconds)),
        "{between:?}"
    );
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    bridge.stop().await;
}
