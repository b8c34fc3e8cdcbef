//! One run: asks, listens until the answer is complete, and says what came out.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run, Status,
};
use forge_adapter_transport::http::{Failure, ServerEvents};
use reqwest::StatusCode;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::heard::{Heard, News};
use crate::settings::Surface;
use crate::token::{Bearer, Credentials};
use crate::{GlooAi, NO_CREDENTIALS, ask, prices};

/// So long a finished answer is listened to for its usage.
const AFTERWARDS: Duration = Duration::from_secs(5);

pub(crate) async fn execute(
    adapter: &GlooAi,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let Some(credentials) = &adapter.credentials else {
        return Err(AdapterError::new("unauthenticated", NO_CREDENTIALS));
    };
    if request.turns.is_empty() && !request.tool_results.is_empty() {
        return Err(AdapterError::new(
            "invalid_request",
            "toolResults: the platform keeps no conversation that they could belong to",
        ));
    }
    let mut wishes = adapter.settings.wishes(request)?;
    let surface = *wishes.surface.get_or_insert(Surface::Guarded);
    let url = adapter
        .settings
        .platform
        .chat(adapter.settings.table.generation, surface);
    let body = ask::body(request, &adapter.settings.table, &wishes);

    let mut heard = Heard::default();
    let conversation = async {
        let mut stream = open(adapter, credentials, &url, &body, surface).await?;
        listen(&mut stream, &mut heard, events).await
    };
    // The prices are read beside the answer; a list that hangs is given up after seconds.
    let both = async { tokio::join!(conversation, adapter.prices.models()) };
    let (ended, models) = tokio::select! {
        both = both => both,
        () = run.cancelled() => return Ok(stopped(&mut heard, &AdapterError::cancelled())),
    };
    let cost = heard
        .usage
        .zip(heard.model.as_deref())
        .and_then(|(usage, model)| prices::cost(&models, model, &usage));
    let mut result = match ended.and_then(|()| finished(&mut heard)) {
        Ok(result) => result,
        Err(error) => stopped(&mut heard, &error),
    };
    result.usage = heard.usage.unwrap_or_default();
    result.model = heard.model;
    result.model_provider = heard
        .about
        .get("modelFamily")
        .and_then(|family| Some(family.as_str()?.to_owned()));
    if let Some(usage) = heard.usage {
        events.send(AdapterEvent::usage(&usage, cost)).await;
    }
    result.cost_usd = cost;
    if result.status == Status::Ok && !heard.about.is_empty() {
        // The bridge puts this into the last event of the dispatch.
        let about = json!({"gloo": heard.about});
        events
            .send(AdapterEvent::new("execution.completed").with(about))
            .await;
    }
    Ok(result)
}

/// Opens the stream; a token that is refused is renewed once.
async fn open(
    adapter: &GlooAi,
    credentials: &Credentials,
    url: &str,
    body: &Value,
    surface: Surface,
) -> Result<ServerEvents> {
    let send = async |bearer: &Bearer| {
        let request = adapter
            .http
            .post(url, body)
            .bearer_auth(bearer.secret.expose_secret());
        adapter.http.events(request).await
    };
    let mut bearer = credentials.bearer().await?;
    let mut answer = send(&bearer).await;
    if status(&answer) == Some(StatusCode::UNAUTHORIZED)
        && let Some(renewed) = credentials.renewed(&bearer).await
    {
        bearer = renewed?;
        answer = send(&bearer).await;
    }
    let is_refused = status(&answer) == Some(StatusCode::UNAUTHORIZED);
    adapter.refused.store(is_refused, Ordering::Relaxed);
    let blocked = status(&answer) == Some(StatusCode::FORBIDDEN) && surface == Surface::Guarded;
    answer.map_err(|failure| {
        let mut error = AdapterError::from(failure);
        // It may repeat what it was sent.
        error.message = error
            .message
            .replace(bearer.secret.expose_secret(), "[REDACTED]");
        if blocked {
            error.code = "blocked_by_policy".to_owned();
        }
        error
    })
}

fn status(answer: &Result<ServerEvents, Failure>) -> Option<StatusCode> {
    match answer {
        Err(Failure::Refused { status, .. }) => Some(*status),
        Ok(_) | Err(_) => None,
    }
}

/// Until the answer is complete: the platform may say so by `[DONE]`, or by a reason to finish and one
/// more event with the usage, or by the stream's end.
async fn listen(stream: &mut ServerEvents, heard: &mut Heard, events: &Events) -> Result<()> {
    loop {
        let next = match (&heard.finish, heard.usage) {
            (Some(_), Some(_)) => return Ok(()),
            // What does not come any more is not known.
            (Some(_), None) => match timeout(AFTERWARDS, stream.next()).await {
                Ok(Some(Ok(event))) => Some(Ok(event)),
                Ok(Some(Err(_)) | None) | Err(_) => return Ok(()),
            },
            (None, _) => stream.next().await,
        };
        let Some(event) = next else {
            return Ok(());
        };
        let data = event?.data;
        if data.trim() == "[DONE]" {
            return Ok(());
        }
        match heard.hear(&data)? {
            News::Text(delta) => events.send(AdapterEvent::text(delta)).await,
            News::Thought(delta) => {
                let thought = AdapterEvent::new("assistant.thinking");
                events.send(thought.with(json!({"delta": delta}))).await;
            }
            News::Citations(citations) => {
                let event = AdapterEvent::new("gloo.citations");
                events
                    .send(event.with(json!({"citations": citations})))
                    .await;
            }
            News::Silent => {}
        }
    }
}

fn finished(heard: &mut Heard) -> Result<ExecutionResult> {
    let failed = |code: &str, why: &str| Err(AdapterError::new(code, why));
    match heard.finish.as_deref() {
        None => Err(
            AdapterError::new("upstream_error", "the answer broke off before its end").retryable(),
        ),
        Some("content_filter") => failed(
            "blocked_by_policy",
            "the platform stopped the answer: content_filter",
        ),
        Some("length") => failed("max_tokens", "the answer reached its limit of tokens"),
        // Some models end with calls and say `stop`.
        Some(_) => {
            let tool_calls = heard.calls()?;
            let text = std::mem::take(&mut heard.text);
            Ok(ExecutionResult {
                output: Some(text).filter(|text| !text.is_empty() || tool_calls.is_empty()),
                tool_calls,
                ..ExecutionResult::default()
            })
        }
    }
}

/// What there is of an answer that did not come to its end.
fn stopped(heard: &mut Heard, error: &AdapterError) -> ExecutionResult {
    ExecutionResult {
        output: Some(std::mem::take(&mut heard.text)).filter(|text| !text.is_empty()),
        usage: heard.usage.unwrap_or_default(),
        retryable: Some(error.retryable),
        retry_after_ms: error.retry_after_ms,
        ..ExecutionResult::error(error.code.as_str(), error.message.as_str())
    }
}
