//! Dispatches sent to a bridge whose disk fails, and what must be true of them afterwards: answered ones have their
//! result, their events and their callback; of refused ones there is no trace.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};

use super::super::harness::api::{owed, quiet, with};
use super::super::harness::{Api, CallbackSink, until};
use super::counts;

/// A dispatch that was answered with 202.
struct Answered {
    id: String,
    is_owed: bool,
}

pub(crate) struct Load {
    sink: CallbackSink,
    sent: usize,
    answered: Vec<Answered>,
    /// Tasks whose dispatch was answered with 503, besides those of unknown outcome.
    refused: Vec<String>,
    /// Answered dispatches that were already looked at.
    verified: usize,
}

impl Load {
    pub(crate) async fn start() -> Self {
        Self {
            sink: CallbackSink::start().await,
            sent: 0,
            answered: Vec::new(),
            refused: Vec::new(),
            verified: 0,
        }
    }

    pub(crate) fn answered(&self) -> usize {
        self.answered.len()
    }

    pub(crate) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Ids of the answered dispatches.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.answered.iter().map(|one| one.id.as_str())
    }

    /// Sends dispatches at the same time and notes how each was answered.
    pub(crate) async fn send(&mut self, api: &Api, count: usize) {
        self.send_bytes(api, count, 0).await;
    }

    /// The same with outputs of this length.
    pub(crate) async fn send_bytes(&mut self, api: &Api, count: usize, bytes: usize) {
        let from = self.sent;
        self.sent += count;
        let requests = (from..self.sent).map(|number| {
            let (task, body) = self.body(number, bytes);
            async move {
                (
                    task,
                    body["callbackUrl"].is_string(),
                    api.post("/api/v2/dispatch", &body).await,
                )
            }
        });
        for (task, is_owed, (status, answer)) in join_all(requests).await {
            match status {
                StatusCode::ACCEPTED => {
                    let id = answer["dispatchId"].as_str().unwrap().to_owned();
                    self.answered.push(Answered { id, is_owed });
                }
                _ => {
                    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{task}: {answer}");
                    assert_eq!(answer["code"], "STORE_UNAVAILABLE", "{task}: {answer}");
                    // It was written before the answer that it may not be kept.
                    if !answer.to_string().contains("outcome of this") {
                        self.refused.push(task);
                    }
                }
            }
        }
    }

    fn body(&self, number: usize, bytes: usize) -> (String, Value) {
        let task = format!("task-{number}");
        let body = match number % 3 {
            0 => quiet(&task, "ok"),
            1 => owed(&task, "stream:3", &self.sink.url("/cb")),
            _ => owed(&task, "ok", &self.sink.url("/cb")),
        };
        // A bridge that is killed while it runs finishes it after its restart.
        let body = with(body, &json!({"recovery": "retry"}));
        let body = match bytes {
            0 => body,
            _ => with(body, &json!({"model": format!("large:{bytes}")})),
        };
        (task, body)
    }

    /// Sends one dispatch after the other until one is answered with 202.
    pub(crate) async fn until_taken(&mut self, api: &Api) {
        let wanted = self.answered.len() + 1;
        while self.answered.len() < wanted {
            until("the store to be ready", async || {
                let (status, _) = api.get("/api/health/ready").await;
                (status == StatusCode::OK).then_some(())
            })
            .await;
            self.send(api, 1).await;
        }
    }

    /// Waits for the end of the answered dispatches that were not verified before, and verifies the
    /// refused ones.
    pub(crate) async fn verify(&mut self, api: &Api) {
        for one in &self.answered[self.verified..] {
            let record = api.finished(&one.id).await;
            assert_eq!(record["result"]["status"], "ok", "{record}");
            if one.is_owed {
                api.delivery_is(&one.id, "delivered").await;
            }
            counts(api, &one.id).await;
        }
        self.verified = self.answered.len();
        nothing_waits(api).await;
        self.verify_refused(api).await;
    }

    /// Looks for traces of refused dispatches.
    pub(crate) async fn verify_refused(&self, api: &Api) {
        let logged = tasks_of_events(api).await;
        let called: BTreeSet<String> = self
            .sink
            .received()
            .iter()
            .map(|request| {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                body["taskId"].as_str().unwrap().to_owned()
            })
            .collect();
        for task in &self.refused {
            let (status, found) = api.get(&format!("/api/v2/dispatch/{task}")).await;
            assert_eq!(status, StatusCode::NOT_FOUND, "was refused: {found}");
            assert!(!logged.contains(task), "{task} was refused and has events");
            assert!(
                !called.contains(task),
                "{task} was refused and has a callback"
            );
        }
    }

    /// Looks at all answered dispatches again.
    pub(crate) async fn verify_all(&mut self, api: &Api) {
        self.verified = 0;
        self.verify(api).await;
        let delivered: BTreeSet<String> = self
            .sink
            .received()
            .iter()
            .map(|request| {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                body["dispatchId"].as_str().unwrap().to_owned()
            })
            .collect();
        for one in self.answered.iter().filter(|one| one.is_owed) {
            assert!(delivered.contains(&one.id), "{} has no callback", one.id);
        }
    }
}

/// Waits until the bridge counts no work any more.
async fn nothing_waits(api: &Api) {
    until("the counts to be zero", async || {
        let (_, health) = api.get("/api/health").await;
        let counts = [
            "/adapters/echo/queued",
            "/adapters/echo/running",
            "/deliveries/pending",
        ];
        let is_zero = |count: &str| health.pointer(count) == Some(&json!(0));
        counts.into_iter().all(is_zero).then_some(())
    })
    .await;
}

/// The tasks that the event log names.
async fn tasks_of_events(api: &Api) -> BTreeSet<String> {
    let events = api.event_log().await;
    let named = events.iter().filter_map(|event| event["taskId"].as_str());
    named.map(str::to_owned).collect()
}
