//! An execution: posted, then answered at once, as a stream, or later.

use std::time::Duration;

use forge_adapter_api::foreign_json;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run, Status,
};
use forge_adapter_transport::answer::{Answer, Kind};
use forge_adapter_transport::cancel_on_drop::CancelOnDrop;
use forge_adapter_transport::http::{Http, ServerEvent, ServerEvents};
use forge_adapter_transport::wire::{self, Malformed, Message};
use reqwest::{Method, RequestBuilder, StatusCode, Url};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::callback_server::{CallbackServer, DeferredMessages};
use crate::config::Settings;
use crate::deferred::{Links, settled};

/// Number of consecutive failed polls that are tolerated.
const FAILURES: u32 = 5;

pub(crate) struct Exchange<'a> {
    pub(crate) http: &'a Http,
    pub(crate) settings: &'a Settings,
    pub(crate) url: &'a Url,
    pub(crate) door: Option<&'a CallbackServer>,
    pub(crate) events: &'a Events,
    pub(crate) run: &'a Run,
}

/// Joined pieces of the answer so far.
#[derive(Default)]
struct Heard {
    text: String,
}

impl Exchange<'_> {
    pub(crate) async fn execute(&self, request: &ExecutionRequest) -> Result<ExecutionResult> {
        let letters = match self.door {
            Some(door) => tokio::select! {
                letters = door.expect() => Some(letters?),
                () = self.run.cancelled() => return Err(AdapterError::cancelled()),
            },
            None => None,
        };
        let post = self.post(request, letters.as_ref())?;
        let answer = tokio::select! {
            answer = self.http.answer(post) => answer?,
            () = self.run.cancelled() => return Err(AdapterError::cancelled()),
        };
        let mut heard = Heard::default();
        let ended = if answer.status() == StatusCode::ACCEPTED {
            self.later(answer, letters, &mut heard).await
        } else {
            self.now(answer, &mut heard).await
        };
        let mut result = ended.unwrap_or_else(ExecutionResult::from);
        match (&result.output, result.status) {
            (Some(output), Status::Ok) if heard.text.is_empty() && !output.is_empty() => {
                self.events.send(AdapterEvent::text(output.clone())).await;
            }
            (None, _) if !heard.text.is_empty() => result.output = Some(heard.text),
            (_, _) => {}
        }
        Ok(result)
    }

    /// Reads an answer that has begun, streamed or whole.
    async fn now(&self, answer: Answer, heard: &mut Heard) -> Result<ExecutionResult> {
        let links = Links::of(self.url, answer.header("location"), &Value::Null)
            .map_err(|error| malformed(&error))?;
        let undo = self.undo(&links);
        let ended = tokio::select! {
            ended = self.read(answer, heard) => ended,
            () = self.run.cancelled() => {
                if let Some(undo) = undo {
                    undo.now().await;
                }
                return Err(AdapterError::cancelled());
            }
        };
        undo.into_iter().for_each(CancelOnDrop::disarm);
        ended
    }

    async fn read(&self, answer: Answer, heard: &mut Heard) -> Result<ExecutionResult> {
        let mut messages: ServerEvents = match answer.kind() {
            Kind::Whole => {
                let value = answer.json().await?;
                return wire::result(&value)
                    .map(|result| *result)
                    .map_err(|error| malformed(&error));
            }
            Kind::Events => answer.events(),
            Kind::Lines => answer.lines(),
        };
        while let Some(event) = messages.next().await {
            match message(&event?).map_err(|error| malformed(&error))? {
                Some(Message::Event(event)) => self.tell(event, heard).await,
                Some(Message::Result(result)) => return Ok(*result),
                None => {}
            }
        }
        Err(AdapterError::new(
            "upstream_error",
            "the server's stream ended without a result",
        )
        .retryable())
    }

    /// Waits for the result of an accepted execution, by callback and by polling.
    async fn later(
        &self,
        answer: Answer,
        mut letters: Option<DeferredMessages>,
        heard: &mut Heard,
    ) -> Result<ExecutionResult> {
        let location = answer.header("location").map(str::to_owned);
        let body = answer.json().await?;
        let links =
            Links::of(self.url, location.as_deref(), &body).map_err(|error| malformed(&error))?;
        if letters.is_none() && links.status.is_none() {
            return Err(AdapterError::new(
                "upstream_error",
                "the server deferred its answer without an address to poll: it must send `statusUrl` or a `Location`, \
                 or adapters.<id>.callback must be configured",
            ));
        }
        let undo = self.undo(&links);
        let mut failures = 0;
        let ended = loop {
            tokio::select! {
                message = next(&mut letters) => match message {
                    Message::Event(event) => self.tell(event, heard).await,
                    Message::Result(result) => break Ok(*result),
                },
                asked = self.ask(&links) => match asked {
                    Ok(Some(result)) => break Ok(result),
                    Ok(None) => failures = 0,
                    Err(error) if error.retryable && failures < FAILURES => failures += 1,
                    Err(error) => break Err(error),
                },
                () = self.run.cancelled() => {
                    if let Some(undo) = undo {
                        undo.now().await;
                    }
                    return Err(AdapterError::cancelled());
                }
            }
        };
        undo.into_iter().for_each(CancelOnDrop::disarm);
        ended
    }

    /// Polls once, after the interval.
    async fn ask(&self, links: &Links) -> Result<Option<ExecutionResult>> {
        let Some(url) = &links.status else {
            return std::future::pending().await;
        };
        sleep(self.settings.poll_interval()).await;
        let answer = self
            .http
            .answer(self.with_credentials(self.http.get(url.as_str())))
            .await?;
        let status = answer.json().await?;
        settled(&status)
            .map(|result| result.map(|result| *result))
            .map_err(|error| malformed(&error))
    }

    async fn tell(&self, event: AdapterEvent, heard: &mut Heard) {
        if event.kind == "assistant.text"
            && let Some(delta) = event.data.as_ref().and_then(|data| data["delta"].as_str())
        {
            heard.text.push_str(delta);
        }
        self.events.send(event).await;
    }

    fn post(
        &self,
        request: &ExecutionRequest,
        letters: Option<&DeferredMessages>,
    ) -> Result<RequestBuilder> {
        let mut body = json!(request);
        body["callbackUrl"] = json!(letters.map(|letters| &letters.url));
        let body = body.to_string();
        let mut post = self
            .with_credentials(self.http.request(Method::POST, self.url.as_str()))
            .header("content-type", "application/json")
            .header(
                "accept",
                "text/event-stream, application/x-ndjson, application/json",
            )
            .header("idempotency-key", &request.execution_id);
        if let Some(traceparent) = &request.meta.traceparent {
            post = post.header("traceparent", traceparent);
        }
        if let Some(signing) = &self.settings.signing {
            post = signing
                .sign(post, &request.execution_id, &body)
                .map_err(|error| malformed(&error))?;
        }
        Ok(post.body(body))
    }

    fn with_credentials(&self, request: RequestBuilder) -> RequestBuilder {
        let table = &self.settings.table;
        let headers = table.headers.iter();
        let request = headers.fold(request, |request, (name, value)| {
            request.header(name, value.expose_secret())
        });
        match &table.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    fn undo(&self, links: &Links) -> Option<CancelOnDrop> {
        let request = match (&links.cancel, &links.status) {
            (Some(cancel), _) => self
                .http
                .request(Method::POST, cancel.as_str())
                .header("content-type", "application/json")
                .body("{}"),
            (None, Some(status)) => self.http.request(Method::DELETE, status.as_str()),
            (None, None) => return None,
        };
        let request = self
            .with_credentials(request)
            .timeout(Duration::from_secs(5));
        Some(CancelOnDrop::new(self.http, request))
    }
}

async fn next(letters: &mut Option<DeferredMessages>) -> Message {
    if let Some(letters) = letters
        && let Some(message) = letters.next().await
    {
        return message;
    }
    std::future::pending().await
}

/// Parses one message of a stream; `None` if it is empty.
fn message(event: &ServerEvent) -> std::result::Result<Option<Message>, Malformed> {
    if event.data.trim().is_empty() {
        return Ok(None);
    }
    let value: Value = foreign_json::from_str(&event.data).map_err(Malformed::Event)?;
    if value["type"].is_string() {
        return wire::message(&value).map(Some);
    }
    match event.name.as_str() {
        // Without an event name the data determines the kind of message.
        "" | "message" => wire::message(&value).map(Some),
        "result" => wire::result(&value).map(|result| Some(Message::Result(result))),
        name => Ok(Some(Message::Event(AdapterEvent::new(name).with(value)))),
    }
}

fn malformed(error: &dyn std::error::Error) -> AdapterError {
    let mut text = format!("the server's answer is invalid: {error}");
    if let Some(source) = error.source() {
        text.push_str(&format!(": {source}"));
    }
    AdapterError::new("upstream_error", text)
}
