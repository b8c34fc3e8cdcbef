//! A bridge whose wall clock is set while it works: waits are as long as they were, and so are durations.

use std::fs;
use std::ops::Range;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::harness::api::{owed, quiet, with};
use super::harness::process::Home;
use super::harness::{Answer, Api, CallbackSink, until};

/// Deliveries that open the breaker of their receiver.
const OWED: usize = 12;
/// Longer than any wait of this test, and shorter than a step.
const DURATIONS_MS: Range<u64> = 5_000..600_000;

/// Difference of a bridge's wall clock to that of the machine, which the bridge reads at each look at the time.
struct WallClock {
    file: PathBuf,
}

impl WallClock {
    fn of(home: &mut Home) -> Self {
        let clock = Self {
            file: home.dir.path().join("clock"),
        };
        clock.is("+0");
        let library = fs::read_dir("/usr/lib")
            .unwrap()
            .map(|folder| folder.unwrap().path().join("faketime/libfaketimeMT.so.1"))
            .find(|library| library.exists());
        let library = library.expect("libfaketime is installed by .ci/setup");
        for (name, value) in [
            ("LD_PRELOAD", library.to_str().unwrap()),
            ("FAKETIME_TIMESTAMP_FILE", clock.file.to_str().unwrap()),
            ("FAKETIME_NO_CACHE", "1"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            ("NO_FAKE_STAT", "1"),
        ] {
            home.set(name, value);
        }
        clock
    }

    fn is(&self, difference: &str) {
        let new = self.file.with_extension("new");
        fs::write(&new, difference).unwrap();
        fs::rename(&new, &self.file).unwrap();
    }
}

/// Waits until the first attempt of a delivery is recorded.
async fn attempted(api: &Api, id: &str) {
    until("the first attempt", async || {
        let events = api.events(id).await;
        let is_one = |event: &Value| event["type"] == "callback.attempted";
        events.iter().any(is_one).then_some(())
    })
    .await;
}

/// Has a receiver refuse a delivery once, and ask for it in some seconds.
async fn refused_once(api: &Api, sink: &CallbackSink, task: &str) -> String {
    let refusal = Answer::status(503).header("retry-after", "8");
    sink.script(vec![refusal, Answer::status(204)]);
    let id = api.dispatch(owed(task, "ok", &sink.url("/cb"))).await;
    attempted(api, &id).await;
    id
}

async fn keeps_its_waits(steps: [&str; 2]) {
    let mut home = Home::new(&[
        ("BRIDGE_CALLBACK_BREAKER_OPEN", "6s"),
        ("BRIDGE_CALLBACK_BREAKER_OPEN_MAX", "6s"),
    ]);
    let clock = WallClock::of(&mut home);
    let (dead, busy) = (CallbackSink::start().await, CallbackSink::start().await);
    dead.answer(Answer::status(503));
    let bridge = home.start();
    let api = &bridge.api;
    let slow = api.dispatch(quiet("slow", "slow:5000")).await;
    let hangs = with(quiet("hangs", "hang"), &json!({"timeoutSeconds": 6}));
    let hangs = api.dispatch(hangs).await;
    api.running(&hangs).await;
    let mut behind = Vec::new();
    for number in 0..OWED {
        let body = owed(&format!("behind-{number}"), "ok", &dead.url("/cb"));
        behind.push(api.dispatch(body).await);
    }
    until("the breaker to open", async || {
        let (_, body) = api.get("/api/v2/deliveries/destinations").await;
        (body["destinations"][0]["state"] == "open").then_some(())
    })
    .await;
    let waits = refused_once(api, &busy, "waits").await;

    clock.is(steps[0]);
    dead.answer(Answer::status(204));
    for id in behind.iter().chain([&waits]) {
        api.delivery_is(id, "delivered").await;
    }
    for (id, code) in [(&slow, Value::Null), (&hangs, json!("timeout"))] {
        let result = &api.finished(id).await["result"];
        assert_eq!(result["errorCode"], code, "{result}");
        let took = result["durationMs"].as_u64().unwrap();
        assert!(DURATIONS_MS.contains(&took), "{steps:?}: {result}");
    }
    let later = api.dispatch(owed("later", "ok", &dead.url("/cb"))).await;
    api.delivery_is(&later, "delivered").await;

    // Set while the bridge is away.
    let waits = refused_once(api, &busy, "waits for a start").await;
    bridge.kill();
    clock.is(steps[1]);
    let bridge = home.start();
    bridge.api.delivery_is(&waits, "delivered").await;
    bridge.kill();
}

#[tokio::test]
async fn a_clock_that_is_set_back_makes_no_wait_longer() {
    keeps_its_waits(["-1h", "-2h"]).await;
}

#[tokio::test]
async fn a_clock_that_is_set_forward_changes_no_duration() {
    keeps_its_waits(["+1h", "+2h"]).await;
}
