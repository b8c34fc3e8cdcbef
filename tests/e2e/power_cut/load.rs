//! Work that bridges do while their disk is recorded, one function for each scenario.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::{join, join_all};
use rand::RngExt;
use rand::rngs::StdRng;
use serde_json::{Value, json};

use super::super::harness::api::{owed, quiet, with};
use super::super::harness::process::{Home, Process};
use super::super::harness::{Answer, Api, CallbackSink, until};
use super::disk::{Disk, Mode};
use super::recording::{self, Recorder};
use super::witness::Witness;
use forge_test_support::callback::Received;

/// A home whose bridges are recorded, and a receiver of their callbacks.
pub(super) struct Site {
    home: Home,
    sink: CallbackSink,
    pub(super) witness: Witness,
    pub(super) seed: u64,
    boots: u64,
    /// Length of the log at the last boot.
    booted_at: u64,
    /// Length of the log behind the records of files that were there before.
    pub(super) begin: u64,
}

impl Site {
    pub(super) async fn new() -> Self {
        let mut home = Home::new(&[]);
        let witness = Witness::new(Recorder::preload(&mut home));
        let sink = CallbackSink::start().await;
        let (receiver, refused) = (witness.clone(), Mutex::new(HashSet::new()));
        sink.answer_with(move |received: &Received| {
            receiver.received(received);
            let id = received.headers["webhook-id"].clone();
            match received.path.as_str() {
                "/dead" => Answer::status(410),
                "/busy" if refused.lock().unwrap().insert(id) => Answer::status(503),
                "/late" => Answer::status(200).after(Duration::from_millis(50)),
                _ => Answer::status(200),
            }
        });
        Self {
            home,
            sink,
            witness,
            seed: super::seed(),
            boots: 0,
            booted_at: 0,
            begin: 0,
        }
    }

    async fn start(&mut self) -> Process {
        let bridge = self.home.start();
        self.boots += 1;
        self.witness.booted(&bridge.api, self.boots).await;
        self.booted_at = self.witness.recorder.length();
        bridge
    }

    /// Kills a bridge in the middle of work, when a number of results has been seen and others are still to come.
    async fn interrupted_work(&mut self, round: usize) {
        let bridge = self.start().await;
        let api = bridge.api.clone();
        let (crowd, long) = (format!("crowd-{round}"), format!("long-{round}"));
        let retried = json!({"recovery": "retry"});
        let long = self.run(&api, &long, "slow:500", "/ok", retried);
        let work = join(long, self.crowd(&api, &crowd, "ok", 64));
        let received = self.sink.received().len() + 20;
        tokio::select! {
            _ = join(work, self.witness.follow(&api)) => panic!("the event stream ended"),
            _ = self.sink.until(received) => {}
        }
        bridge.kill();
        self.witness.recorder.complete_after_kill();
    }

    /// Replaces the files with those that a power cut after the last boot could have left, and forgets what was observed
    /// after that cut.
    fn cut_power(&mut self, random: &mut StdRng) {
        let recorder = &self.witness.recorder;
        let log = recorder.read();
        let records = recording::parse(&log);
        let booted = records.partition_point(|record| record.end < self.booted_at);
        let cut = random.random_range(booted..records.len());
        let mode = Mode::ALL[random.random_range(0..Mode::ALL.len())];
        let files = Disk::after(&records[..=cut]).cut(mode, random);
        recorder.begin_with(&files);
        self.begin = recorder.length();
        self.witness.keep_until(records[cut].end);
    }

    /// Does the work while the event log is followed, and waits until all callbacks are settled.
    async fn work(&self, api: &Api, work: impl Future) {
        let settled = async {
            work.await;
            until("the callbacks to be settled", async || {
                let (_, health) = api.get("/api/health").await;
                (health["deliveries"]["pending"] == 0).then_some(())
            })
            .await;
        };
        tokio::select! {
            () = settled => {}
            () = self.witness.follow(api) => panic!("the event stream ended"),
        }
    }

    /// Posts a dispatch that owes a callback, and waits for its result.
    async fn run(&self, api: &Api, task: &str, model: &str, path: &str, extra: Value) {
        let body = with(owed(task, model, &self.sink.url(path)), &extra);
        if let Some(id) = self.witness.submit(api, &body).await {
            self.witness.finished(api, id).await;
        }
    }

    /// Runs this number of dispatches at once.
    async fn crowd(&self, api: &Api, name: &str, model: &str, count: usize) {
        let tasks = (0..count).map(|number| async move {
            let task = format!("{name}-{number}");
            self.run(api, &task, model, "/ok", json!({})).await;
        });
        join_all(tasks).await;
    }
}

/// A start in an empty folder, and an orderly stop.
pub(super) async fn first_start(site: &mut Site) {
    let bridge = site.start().await;
    bridge.terminate();
    bridge.ended().await;
}

/// One dispatch after another.
pub(super) async fn one_in_flight(site: &mut Site) {
    let bridge = site.start().await;
    let work = async {
        for number in 0..30 {
            let model = ["ok", "stream:3"][number % 2];
            let task = format!("task-{number}");
            site.run(&bridge.api, &task, model, "/ok", json!({})).await;
        }
    };
    site.work(&bridge.api, work).await;
    bridge.kill();
    site.witness.recorder.complete_after_kill();
}

/// Many dispatches at once, so that they share commits.
pub(super) async fn crowd(site: &mut Site) {
    let bridge = site.start().await;
    let work = async {
        for round in 0..3 {
            let name = format!("crowd-{round}");
            site.crowd(&bridge.api, &name, "ok", 64).await;
        }
    };
    site.work(&bridge.api, work).await;
    bridge.kill();
    site.witness.recorder.complete_after_kill();
}

/// Large and small results at once, until the WAL is checkpointed under load and begins again.
pub(super) async fn checkpoints(site: &mut Site) {
    let bridge = site.start().await;
    let work = async {
        for round in 0..3 {
            let names = ["huge", "large", "small"].map(|name| format!("{name}-{round}"));
            let huge = site.crowd(&bridge.api, &names[0], "large:1100000", 2);
            let large = site.crowd(&bridge.api, &names[1], "large:200000", 12);
            let small = site.crowd(&bridge.api, &names[2], "ok", 32);
            join(huge, join(large, small)).await;
        }
    };
    site.work(&bridge.api, work).await;
    bridge.kill();
    site.witness.recorder.complete_after_kill();
}

/// Streams, cancels, retried and dead callbacks, sessions, duplicates, a take-over and large outputs; an orderly stop,
/// and the same again.
pub(super) async fn mixed(site: &mut Site) {
    for round in 0..2 {
        let bridge = site.start().await;
        site.work(&bridge.api, mixed_round(site, &bridge.api, round))
            .await;
        bridge.terminate();
        bridge.ended().await;
    }
}

async fn mixed_round(site: &Site, api: &Api, round: usize) {
    let rows = [
        ("stream", "stream:40", "/late"),
        ("usage", "usage:4", "/ok"),
        ("retried", "ok", "/busy"),
        ("dead", "ok", "/dead"),
        ("failing", "fail", "/ok"),
        ("large", "large:200000", "/ok"),
        ("slow", "slow:300", "/ok"),
    ];
    let plain = rows.map(|(name, model, path)| async move {
        let task = format!("{name}-{round}");
        site.run(api, &task, model, path, json!({})).await;
    });
    let sessions = (0..3).map(|turn| async move {
        let task = format!("turn-{round}-{turn}");
        let session = json!({"sessionId": format!("session-{round}")});
        site.run(api, &task, "session", "/ok", session).await;
    });
    let cancels = ["slow:60000", "slow:50"].map(|model| async move {
        let body = quiet(&format!("cancel-{round}-{model}"), model);
        let id = site.witness.submit(api, &body).await?;
        site.witness.cancel(api, id).await?;
        site.witness.finished(api, id).await
    });
    let again = async {
        for model in ["stream:5", "stream:5"] {
            let task = format!("duplicate-{round}");
            site.run(api, &task, model, "/ok", json!({})).await;
        }
        for model in ["fail", "ok"] {
            let task = format!("taken-over-{round}");
            site.run(api, &task, model, "/ok", json!({})).await;
        }
    };
    let name = format!("mixed-{round}");
    let crowd = site.crowd(api, &name, "ok", 16);
    let rest = join(join_all(cancels), join(again, crowd));
    join(join_all(plain), join(join_all(sessions), rest)).await;
}

/// Kills in the middle of work, each followed by a start that recovers and by more work.
pub(super) async fn recovery(site: &mut Site) {
    for kill in 0..2 {
        site.interrupted_work(kill).await;
    }
    last_work(site).await;
}

/// Power cuts in the middle of work, each followed by a start that recovers and by more work.
pub(super) async fn repeated_cuts(site: &mut Site, random: &mut StdRng) {
    for cut in 0..3 {
        site.interrupted_work(cut).await;
        site.cut_power(random);
    }
    last_work(site).await;
}

async fn last_work(site: &mut Site) {
    let bridge = site.start().await;
    let work = site.crowd(&bridge.api, "last", "ok", 64);
    site.work(&bridge.api, work).await;
    bridge.kill();
    site.witness.recorder.complete_after_kill();
}
