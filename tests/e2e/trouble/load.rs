//! Mixed load on bridges in trouble, and what has become of it: each dispatch that was answered with 202 ends once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::{Instant, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::harness::api::{JsonBody as _, owed, quiet, with};
use crate::harness::{Api, CallbackSink};

/// Time between two dispatches.
const PACE: Duration = Duration::from_millis(80);
/// Longest wait for an answer, for the figure: what takes longer than `SLOW` counts as none.
const GIVEN_UP: Duration = Duration::from_secs(40);
/// Bound of an answer.
pub(super) const SLOW: Duration = Duration::from_secs(15);
/// Wait for the end of all that was answered.
const END: Duration = Duration::from_secs(60);

/// Answers to the dispatches of a row.
#[derive(Default)]
struct Answers {
    /// Id of each, and whether it owes a callback.
    accepted: Vec<(String, bool)>,
    refused: Vec<String>,
    /// Without an answer, because the connection was closed or the time was over.
    unanswered: usize,
    slow: usize,
    longest: Duration,
}

/// Load that is sent to each bridge in turn, until `end`.
pub(super) struct Load {
    answers: Arc<Mutex<Answers>>,
    ending: CancellationToken,
    tasks: TaskTracker,
    sink: Arc<CallbackSink>,
}

/// Numbers of a load.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) accepted: usize,
    pub(super) refused: usize,
    pub(super) unanswered: usize,
    pub(super) slow: usize,
    pub(super) longest: Duration,
    /// Accepted and not ended, or ended without success or callback.
    pub(super) lost: Vec<String>,
    /// Ended twice, or delivered under two ids.
    pub(super) doubled: Vec<String>,
    /// Refused, and done all the same: their commit was under way.
    pub(super) done_after_refusal: usize,
}

impl Load {
    /// Sends dispatches whose tasks begin with `name`.
    pub(super) fn start(name: &str, bridges: &[Api], sink: &Arc<CallbackSink>) -> Self {
        let load = Self {
            answers: Arc::default(),
            ending: CancellationToken::new(),
            tasks: TaskTracker::new(),
            sink: Arc::clone(sink),
        };
        let (answers, ending, tasks) = (
            Arc::clone(&load.answers),
            load.ending.clone(),
            load.tasks.clone(),
        );
        let (name, bridges, url) = (name.to_owned(), bridges.to_vec(), sink.url("/cb"));
        load.tasks.spawn(async move {
            let mut pace = interval(PACE);
            for number in 0.. {
                if ending.run_until_cancelled(pace.tick()).await.is_none() {
                    return;
                }
                let (task, body) = body(&name, number, &url);
                let bridge = bridges[number % bridges.len()].clone();
                tasks.spawn(post(bridge, task, body, Arc::clone(&answers)));
            }
        });
        load
    }

    /// Number of dispatches that were answered with 202.
    pub(super) fn accepted(&self) -> usize {
        self.answers.lock().unwrap().accepted.len()
    }

    /// Sends nothing more, and waits for the end of what was accepted, as this bridge shows it.
    pub(super) async fn end(self, bridge: &Api) -> Outcome {
        self.ending.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        let answers = std::mem::take(&mut *self.answers.lock().unwrap());
        let deadline = Instant::now() + END;
        let mut lost = Vec::new();
        for (id, is_owed) in &answers.accepted {
            if !ends(bridge, id, *is_owed, deadline).await {
                lost.push(id.clone());
            }
        }
        let (mut ended, mut tasks) = (BTreeMap::<String, usize>::new(), BTreeSet::new());
        for event in bridge.event_log().await {
            let text = |name: &str| event[name].as_str().unwrap_or_default().to_owned();
            if event["type"] == "execution.completed" {
                *ended.entry(text("dispatchId")).or_default() += 1;
            }
            tasks.insert(text("taskId"));
        }
        let delivered = self.delivered();
        let is_doubled = |id: &String| {
            let ends = ended.get(id).copied().unwrap_or(0);
            let ids = delivered.get(id).map_or(0, BTreeSet::len);
            ends > 1 || ids > 1
        };
        let ids = answers.accepted.iter().map(|(id, _)| id);
        Outcome {
            accepted: answers.accepted.len(),
            refused: answers.refused.len(),
            unanswered: answers.unanswered,
            slow: answers.slow,
            longest: answers.longest,
            lost,
            doubled: ids.filter(|id| is_doubled(id)).cloned().collect(),
            done_after_refusal: answers
                .refused
                .iter()
                .filter(|task| tasks.contains(*task))
                .count(),
        }
    }

    /// `webhook-id`s under which each dispatch was delivered.
    fn delivered(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut delivered = BTreeMap::<_, BTreeSet<_>>::new();
        for request in self.sink.received() {
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            let id = body["dispatchId"].as_str().unwrap_or_default().to_owned();
            let webhook = request.headers["webhook-id"].clone();
            delivered.entry(id).or_default().insert(webhook);
        }
        delivered
    }
}

fn body(name: &str, number: usize, url: &str) -> (String, Value) {
    let task = format!("{name}-{number}");
    let body = match number % 4 {
        0 => quiet(&task, "ok"),
        1 => owed(&task, "stream:3", url),
        2 => quiet(&task, "slow:400"),
        _ => owed(&task, "ok", url),
    };
    (task, with(body, &json!({ "recovery": "retry" })))
}

async fn post(bridge: Api, task: String, body: Value, answers: Arc<Mutex<Answers>>) {
    let is_owed = body["callbackUrl"].is_string();
    let begun = Instant::now();
    let request = bridge.request(Method::POST, "/api/v2/dispatch");
    let answer = match request.timeout(GIVEN_UP).json_body(&body).send().await {
        Ok(answer) => {
            let status = answer.status();
            answer.json::<Value>().await.map(|body| (status, body))
        }
        Err(error) => Err(error),
    };
    let took = begun.elapsed();
    let mut answers = answers.lock().unwrap();
    answers.longest = answers.longest.max(took);
    answers.slow += usize::from(took > SLOW);
    match answer {
        Ok((StatusCode::ACCEPTED, answer)) => {
            let id = answer["dispatchId"].as_str().unwrap().to_owned();
            answers.accepted.push((id, is_owed));
        }
        Ok((status, answer)) => {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
            answers.refused.push(task);
        }
        Err(_) => answers.unanswered += 1,
    }
}

/// Waits until a dispatch has ended well and was delivered. False if it has not by then.
async fn ends(bridge: &Api, id: &str, is_owed: bool, deadline: Instant) -> bool {
    loop {
        let path = format!("/api/v2/dispatch/{id}");
        let request = bridge.request(Method::GET, &path).timeout(SLOW);
        let record = match request.send().await {
            Ok(answer) => answer.json::<Value>().await.unwrap_or_default(),
            Err(_) => Value::Null,
        };
        let delivery = record.pointer("/deliveries/0/status");
        if record["result"]["status"] == "ok"
            && (!is_owed || delivery.is_some_and(|status| status == "delivered"))
        {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
