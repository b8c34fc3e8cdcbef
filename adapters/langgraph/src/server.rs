//! The part of the server's HTTP interface that the adapter uses: threads, runs and assistants. Independent of
//! dispatches.

use forge_adapter_api::AdapterError;
use forge_adapter_transport::http::{Failure, Http, ServerEvents};
use reqwest::RequestBuilder;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::settings::OnCancel;

#[derive(Clone)]
pub(crate) struct Server {
    http: Http,
    url: String,
    api_key: Option<SecretString>,
}

/// A run and its thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunId {
    pub(crate) thread: Uuid,
    pub(crate) run: Uuid,
}

/// Status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunStatus {
    Pending,
    Running,
    /// Includes runs that stopped to ask a human.
    Success,
    Error,
    Interrupted,
    Timeout,
    /// The run does not exist: it was rolled back, or the server lost it.
    Gone,
}

impl RunStatus {
    /// Parses a status; unknown ones, from later versions, count as `Error`.
    pub(crate) fn named(name: &str) -> Self {
        match name {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "success" => Self::Success,
            "interrupted" => Self::Interrupted,
            "timeout" => Self::Timeout,
            _ => Self::Error,
        }
    }
}

impl Server {
    pub(crate) fn new(http: Http, url: String, api_key: Option<SecretString>) -> Self {
        Self { http, url, api_key }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Value, Failure> {
        let request = self.http.get(&self.at(path));
        self.http.json(self.signed(request)).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.http.post(&self.at(path), body);
        self.http.json(self.signed(request)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        let request = self.http.patch(&self.at(path), body);
        self.http.json(self.signed(request)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<(), Failure> {
        let request = self.http.delete(&self.at(path));
        match self.http.json(self.signed(request)).await {
            // The body of the answer is not needed.
            Ok(_) | Err(Failure::NotJson(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The thread's state; `None` if the thread does not exist yet.
    pub(crate) async fn state(&self, thread: Uuid) -> Result<Option<Value>, Failure> {
        found(self.get(&format!("/threads/{thread}/state")).await)
    }

    pub(crate) async fn create_run(
        &self,
        thread: Uuid,
        body: &Value,
    ) -> Result<RunId, AdapterError> {
        let path = format!("/threads/{thread}/runs");
        let made = self.post(&path, body).await.map_err(refused)?;
        let run = id_of(&made).ok_or_else(|| {
            AdapterError::new("upstream_error", "the server made a run without a run_id")
        })?;
        Ok(RunId { thread, run })
    }

    /// The newest of the thread's last 20 runs with this metadata.
    pub(crate) async fn find_run(
        &self,
        thread: Uuid,
        name: &str,
        value: &str,
    ) -> Result<Option<RunId>, Failure> {
        let runs = found(self.get(&format!("/threads/{thread}/runs?limit=20")).await)?;
        let runs = runs.as_ref().and_then(Value::as_array);
        Ok(runs.into_iter().flatten().find_map(|run| {
            let is_it = run["metadata"][name] == value;
            let run = id_of(run).filter(|_| is_it)?;
            Some(RunId { thread, run })
        }))
    }

    pub(crate) async fn status(&self, run: &RunId) -> Result<RunStatus, Failure> {
        let path = format!("/threads/{}/runs/{}", run.thread, run.run);
        let Some(run) = found(self.get(&path).await)? else {
            return Ok(RunStatus::Gone);
        };
        Ok(RunStatus::named(run["status"].as_str().unwrap_or_default()))
    }

    /// Opens the stream of the run's events after this id; `-1` requests all.
    pub(crate) async fn events(&self, run: &RunId, after: &str) -> Result<ServerEvents, Failure> {
        let path = format!("/threads/{}/runs/{}/stream", run.thread, run.run);
        let request = self
            .http
            .get(&self.at(&path))
            .header("last-event-id", after);
        self.http.events(self.signed(request)).await
    }

    /// Cancels the run and waits for its end. A run that no longer exists is not an error.
    pub(crate) async fn cancel(&self, run: &RunId, action: OnCancel) -> Result<(), Failure> {
        let path = format!(
            "/threads/{}/runs/{}/cancel?wait=true&action={}",
            run.thread,
            run.run,
            action.name()
        );
        found(self.post(&path, &json!({})).await).map(drop)
    }

    fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    fn signed(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.api_key {
            Some(key) => request.header("x-api-key", key.expose_secret()),
            None => request,
        }
    }
}

/// Converts 404 to `None`.
fn found<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Failure::Refused { status, .. }) if status.as_u16() == 404 => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn id_of(run: &Value) -> Option<Uuid> {
    run["run_id"].as_str()?.parse().ok()
}

/// Error for a run that the server refused to create.
fn refused(failure: Failure) -> AdapterError {
    match &failure {
        Failure::Refused { status, body, .. } if status.as_u16() == 409 => AdapterError::new(
            "session_busy",
            format!(
                "another run is active on this session's thread; wait for it, or set busy of \
                 [adapters.langgraph] to \"enqueue\": {body}"
            ),
        )
        .retryable(),
        _ => failure.into(),
    }
}
