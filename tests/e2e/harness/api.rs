//! HTTP client of the bridge that checks each answer against `openapi.json`.

use std::time::Duration;

use reqwest::{Certificate, ClientBuilder, Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::{reference, until};

/// Client of one bridge's HTTP interface.
#[derive(Clone)]
pub(crate) struct Api {
    pub(crate) url: String,
    http: reqwest::Client,
}

impl Api {
    pub(crate) fn new(url: String) -> Self {
        Self::over(url, reqwest::Client::builder())
    }

    /// A client that trusts this certificate only, and connects by the name `localhost`.
    pub(crate) fn trusting(url: &str, certificate: &str) -> Self {
        let certificate = Certificate::from_pem(certificate.as_bytes()).unwrap();
        let http = reqwest::Client::builder().tls_certs_only([certificate]);
        Self::over(url.replace("127.0.0.1", "localhost"), http)
    }

    fn over(url: String, http: ClientBuilder) -> Self {
        let provider = rustls::crypto::ring::default_provider();
        // Fails if already installed, with the same provider.
        let _ = provider.install_default();
        let http = http.no_proxy().timeout(Duration::from_secs(90));
        Self {
            url,
            http: http.build().unwrap(),
        }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) async fn get(&self, path: &str) -> (StatusCode, Value) {
        answer(self.request(Method::GET, path)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answer(self.request(Method::POST, path).json_body(body)).await
    }

    /// Posts a dispatch, asserts that it is accepted, and returns its id.
    pub(crate) async fn dispatch(&self, body: Value) -> String {
        let (status, answer) = self.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        answer["dispatchId"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of a dispatch; returns its record.
    pub(crate) async fn finished(&self, id: &str) -> Value {
        let (status, record) = self.get(&format!("/api/v2/dispatch/{id}?wait=60")).await;
        assert_eq!(status, StatusCode::OK, "{record}");
        assert_eq!(record["status"], "finished", "{record}");
        record
    }

    /// Posts a dispatch; waits for its result and returns it.
    pub(crate) async fn run(&self, body: Value) -> Value {
        let id = self.dispatch(body).await;
        self.finished(&id).await["result"].clone()
    }

    /// Current record of a dispatch.
    pub(crate) async fn record(&self, id: &str) -> Value {
        let (status, record) = self.get(&format!("/api/v2/dispatch/{id}")).await;
        assert_eq!(status, StatusCode::OK, "{record}");
        record
    }

    /// Waits until the dispatch is running.
    pub(crate) async fn running(&self, id: &str) {
        let running = async || {
            let record = self.record(id).await;
            (record["status"] == "running").then_some(())
        };
        until("the execution to begin", running).await;
    }

    /// Waits until the newest delivery of a dispatch has this status; returns the record.
    pub(crate) async fn delivery_is(&self, id: &str, wanted: &str) -> Value {
        let settled = async || {
            let record = self.record(id).await;
            let deliveries = record["deliveries"].as_array().unwrap();
            let is = deliveries
                .last()
                .is_some_and(|last| last["status"] == wanted);
            // The record can be older than the deliveries listed in it.
            (is && record["status"] == "finished").then_some(record)
        };
        until("the delivery", settled).await
    }

    /// All events of the log, read by pages.
    pub(crate) async fn event_log(&self) -> Vec<Value> {
        let mut all = Vec::new();
        let mut after = "0".to_owned();
        loop {
            let path = format!("/api/v2/events?after={after}&limit=1000");
            let request = self
                .request(Method::GET, &path)
                .header("accept", "application/json");
            let (status, page) = answer(request).await;
            assert!(status.is_success(), "{page}");
            let events = page["events"].as_array().unwrap();
            if events.is_empty() {
                return all;
            }
            all.extend(events.iter().cloned());
            after = page["nextCursor"].as_str().unwrap().to_owned();
        }
    }

    /// Requests a cancellation; returns true if the dispatch was not finished.
    pub(crate) async fn cancel(&self, id: &str) -> bool {
        let path = format!("/api/v2/dispatch/{id}/cancel");
        let (status, answer) = self.post(&path, &json!({})).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        answer["cancelled"].as_bool().unwrap()
    }

    /// Posts a dispatch, asserts that it is refused with this status and code, and returns the error envelope.
    pub(crate) async fn refused(&self, body: &Value, status: u16, code: &str) -> Value {
        let (found, answer) = self.post("/api/v2/dispatch", body).await;
        assert_eq!(found.as_u16(), status, "{body}: {answer}");
        assert_eq!(answer["code"], code, "{body}: {answer}");
        assert!(
            answer["error"].is_string() && answer["requestId"].is_string(),
            "{answer}"
        );
        answer
    }

    /// Text of a dispatch that was not withdrawn, and the attempts whose text was.
    pub(crate) async fn kept_text(&self, id: &str) -> (String, Vec<Value>) {
        let events = self.events(id).await;
        let retracted = events
            .iter()
            .filter(|event| event["type"] == "assistant.retracted");
        let attempts: Vec<_> = retracted
            .map(|event| event["data"]["attempt"].clone())
            .collect();
        let text = events
            .iter()
            .filter(|event| event["type"] == "assistant.text");
        let text = text.filter(|event| !attempts.contains(&event["attempt"]));
        let text = text.filter_map(|event| event["data"]["delta"].as_str());
        (text.collect(), attempts)
    }

    /// Waits until the dispatch has an event of this type in this attempt.
    pub(crate) async fn told(&self, id: &str, kind: &str, attempt: u32) {
        until(kind, async || {
            let mut events = self.events(id).await.into_iter();
            let is_told = |event: Value| event["type"] == kind && event["attempt"] == attempt;
            events.any(is_told).then_some(())
        })
        .await;
    }

    /// Events of a dispatch so far, those of its callback included.
    pub(crate) async fn events(&self, id: &str) -> Vec<Value> {
        let path = format!("/api/v2/dispatch/{id}/events?limit=1000&until=delivered");
        let request = self
            .request(Method::GET, &path)
            .header("accept", "application/json");
        let (status, page) = answer(request).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        page["events"].as_array().unwrap().clone()
    }
}

pub(crate) trait JsonBody {
    fn json_body(self, body: &Value) -> Self;
}

impl JsonBody for RequestBuilder {
    fn json_body(self, body: &Value) -> Self {
        self.header("content-type", "application/json")
            .body(body.to_string())
    }
}

/// Sends a request and checks its JSON answer; the answer is `null` if the body is empty.
pub(crate) async fn answer(request: RequestBuilder) -> (StatusCode, Value) {
    let (client, request) = request.build_split();
    let request = request.unwrap();
    let (method, path) = (request.method().clone(), request.url().path().to_owned());
    let response = client.execute(request).await.unwrap();
    let status = response.status();
    let body = response.bytes().await.unwrap();
    let value = serde_json::from_slice(&body).unwrap_or_else(|_| {
        assert!(
            body.is_empty(),
            "{status}: {}",
            String::from_utf8_lossy(&body)
        );
        Value::Null
    });
    if !body.is_empty() {
        reference::check(method.as_str(), &path, status.as_u16(), &value);
    }
    (status, value)
}

/// A body with the members of `extra` added or replaced.
pub(crate) fn with(mut body: Value, extra: &Value) -> Value {
    body.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    body
}

/// A dispatch to echo without a callback.
pub(crate) fn quiet(task: &str, model: &str) -> Value {
    json!({
        "taskId": task, "agentId": "agent", "message": "hello", "model": model,
        "callbackUrl": null,
    })
}

/// A dispatch to echo with a callback.
pub(crate) fn owed(task: &str, model: &str, callback: &str) -> Value {
    json!({
        "taskId": task, "agentId": "agent", "message": "hello", "model": model,
        "callbackUrl": callback,
    })
}
