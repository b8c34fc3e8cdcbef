//! Observations of clients and receivers. Each holds in every state that a power cut leaves later: after the log had
//! the length that it had once the observation was made.

use std::sync::{Arc, Mutex};

use futures_util::StreamExt as _;
use reqwest::{Method, StatusCode};
use serde_json::Value;

use forge_base::id::DispatchId;

use super::super::harness::Api;
use super::super::harness::api::JsonBody as _;
use super::recording::Recorder;
use forge_test_support::callback::Received;

#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// A bridge answered; the first has the epoch 1.
    Boot { epoch: u64 },
    /// Answered 202.
    Accepted { id: DispatchId },
    /// The request to cancel was answered.
    CancelRecorded { id: DispatchId },
    /// The result in the record.
    Result { id: DispatchId, result: Value },
    /// The whole of an output that the result holds only the beginning of.
    Output { id: DispatchId, bytes: Vec<u8> },
    /// The body of a callback.
    Callback { id: DispatchId, body: Vec<u8> },
    /// An event of the log, as a follower got it.
    Event { event: Value },
}

#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) fact: Fact,
    /// Length of the log after it.
    pub(super) log_length: u64,
}

/// Collects observations.
#[derive(Clone)]
pub(super) struct Witness {
    pub(super) recorder: Recorder,
    observations: Arc<Mutex<Vec<Observation>>>,
    /// Made at the last power cut; sorts before every dispatch that was accepted since.
    cut: Arc<Mutex<Option<DispatchId>>>,
}

impl Witness {
    pub(super) fn new(recorder: Recorder) -> Self {
        Self {
            recorder,
            observations: Arc::default(),
            cut: Arc::default(),
        }
    }

    /// In the order of log lengths.
    pub(super) fn observations(&self) -> Vec<Observation> {
        let mut observations = self.observations.lock().unwrap().clone();
        observations.sort_by_key(|observation| observation.log_length);
        observations
    }

    /// Forgets what was observed after the log had this length; the rest holds from now on.
    pub(super) fn keep_until(&self, log_length: u64) {
        let now = self.recorder.length();
        let mut observations = self.observations.lock().unwrap();
        observations.retain(|observation| observation.log_length <= log_length);
        for observation in observations.iter_mut() {
            observation.log_length = now;
        }
        *self.cut.lock().unwrap() = Some(DispatchId::new());
    }

    pub(super) fn note(&self, fact: Fact) {
        let log_length = self.recorder.length();
        let observation = Observation { fact, log_length };
        self.observations.lock().unwrap().push(observation);
    }

    pub(super) async fn booted(&self, api: &Api, epoch: u64) {
        let (status, answer) = api.get("/api/health/ready").await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        self.note(Fact::Boot { epoch });
    }

    /// `None` if the bridge was killed before it answered.
    pub(super) async fn submit(&self, api: &Api, body: &Value) -> Option<DispatchId> {
        let request = api.request(Method::POST, "/api/v2/dispatch");
        let (status, answer) = send(request.json_body(body)).await?;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        let id = id_in(&answer);
        self.note(Fact::Accepted { id });
        Some(id)
    }

    pub(super) async fn cancel(&self, api: &Api, id: DispatchId) -> Option<()> {
        let request = api.request(Method::POST, &format!("/api/v2/dispatch/{id}/cancel"));
        let (status, answer) = send(request.json_body(&serde_json::json!({}))).await?;
        assert_eq!(status, StatusCode::OK, "{answer}");
        if answer["cancelled"] == true {
            self.note(Fact::CancelRecorded { id });
        }
        Some(())
    }

    /// Waits for the result; `None` if the bridge was killed before.
    pub(super) async fn finished(&self, api: &Api, id: DispatchId) -> Option<()> {
        let path = format!("/api/v2/dispatch/{id}?wait=60");
        let (_, mut record) = send(api.request(Method::GET, &path)).await?;
        assert_eq!(record["status"], "finished", "{record}");
        let result = record["result"].take();
        let is_truncated = result.get("outputTruncated").is_some();
        self.note(Fact::Result { id, result });
        if is_truncated {
            let path = format!("/api/v2/dispatch/{id}/output");
            let response = api.request(Method::GET, &path).send().await.ok()?;
            let bytes = response.bytes().await.ok()?.into();
            self.note(Fact::Output { id, bytes });
        }
        Some(())
    }

    pub(super) fn received(&self, received: &Received) {
        let result = serde_json::from_slice(&received.body).unwrap();
        let (id, body) = (id_in(&result), received.body.clone());
        // It can have been on its way since before the cut, which the result need not have survived.
        if self.cut.lock().unwrap().is_some_and(|cut| id < cut) {
            return;
        }
        self.note(Fact::Callback { id, body });
    }

    /// Follows the event log until the bridge is gone.
    pub(super) async fn follow(&self, api: &Api) {
        let request = api.request(Method::GET, "/api/v2/events?after=0");
        let request = request.header("accept", "application/x-ndjson");
        let Ok(response) = request.send().await else {
            return;
        };
        let mut pieces = response.bytes_stream();
        let mut unread = Vec::new();
        while let Some(Ok(piece)) = pieces.next().await {
            unread.extend_from_slice(&piece);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                // Heartbeats are empty lines.
                if line.len() > 1 {
                    let event = serde_json::from_slice(&line).unwrap();
                    self.note(Fact::Event { event });
                }
            }
        }
    }
}

fn id_in(answer: &Value) -> DispatchId {
    answer["dispatchId"].as_str().unwrap().parse().unwrap()
}

/// `None` if the bridge is gone.
async fn send(request: reqwest::RequestBuilder) -> Option<(StatusCode, Value)> {
    let response = request.send().await.ok()?;
    let status = response.status();
    let body = response.bytes().await.ok()?;
    Some((status, serde_json::from_slice(&body).ok()?))
}
