//! One run: sends the request, reads the answer until it is complete, and builds the result.

use std::sync::atomic::Ordering;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run, Status,
    Usage,
};
use forge_adapter_openai_client::{Follow, Names, UserMessage, assistant, said};
use forge_adapter_transport::http::{Failure, ServerEvents};
use forge_adapter_transport::retry::Retries;
use reqwest::StatusCode;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::settings::Surface;
use crate::token::{Bearer, Credentials};
use crate::{GlooAi, NO_CREDENTIALS, ask, prices};

pub(crate) async fn execute(
    adapter: &GlooAi,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let Some(credentials) = &adapter.credentials else {
        return Err(AdapterError::new("unauthenticated", NO_CREDENTIALS));
    };
    let mut wishes = adapter.settings.wishes(request)?;
    let surface = *wishes.surface.get_or_insert(Surface::Guarded);
    let url = adapter
        .settings
        .platform
        .chat(adapter.settings.table.generation, surface);
    let names = Names::new(&request.tools);
    let (session, mut history) = adapter.sessions.open(request, "gloo-ai")?;
    let updated = json!({"sessionId": session});
    events
        .send(AdapterEvent::new("session.updated").with(updated))
        .await;
    let fresh = said(
        request,
        &UserMessage::plain(&request.message),
        &history,
        &names,
    );
    history.extend(fresh);
    let table = &adapter.settings.table;
    let body = ask::body(request, &history, &names, table, &wishes);

    let mut answer = Answer::default();
    let mut retries = Retries::new(table.model_retries, request, events);
    let conversation = async {
        loop {
            let tried = retries.within(async {
                let stream = open(adapter, credentials, &url, &body, surface).await?;
                listen(stream, &mut answer, events).await
            });
            let tried = tried.await;
            if let Some(ended) = answer.heard.ended(tried, &mut retries).await {
                return ended;
            }
        }
    };
    // Prices are read concurrently; the client's timeout bounds the read.
    let both = async { tokio::join!(conversation, adapter.prices.models()) };
    let (ended, models) = tokio::select! {
        both = both => both,
        () = run.cancelled() => (Err(retries.cancelled()), adapter.prices.known()),
    };
    let Answer { heard, about } = answer;
    let usage = heard.used();
    let cost_usd = heard
        .model
        .as_deref()
        .and_then(|model| prices::cost(&models, model, &usage));
    if usage != Usage::default() {
        events.send(AdapterEvent::usage(&usage, cost_usd)).await;
    }
    let result = match ended {
        Ok(()) => heard.result(&names),
        Err(error) => error.into(),
    };
    if result.status == Status::Ok {
        history.push(assistant(&heard.text, &result.tool_calls, &names));
        adapter.sessions.write(&session, &history)?;
    }
    let model_provider = about.get("modelFamily").and_then(Value::as_str);
    let result = ExecutionResult {
        usage,
        cost_usd,
        model_provider: model_provider.map(str::to_owned),
        // Tool calls usually come without text.
        output: Some(heard.text).filter(|text| !text.is_empty() || is_plain(&result)),
        model: heard.model,
        session_id: Some(session),
        ..result
    };
    if result.status == Status::Ok && !about.is_empty() {
        // The bridge merges this into the last event of the dispatch.
        let about = json!({ "gloo": about });
        events
            .send(AdapterEvent::new("execution.completed").with(about))
            .await;
    }
    Ok(result)
}

/// Returns true for an answer without tool calls, even if it is empty.
fn is_plain(result: &ExecutionResult) -> bool {
    result.status == Status::Ok && result.tool_calls.is_empty()
}

/// Opens the stream; retries once with a new token if the token was rejected.
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
        // The error can repeat an access token, which the bridge does not know.
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

/// Reads until the answer is complete, which is marked by its usage after the end, or by the end of the stream.
async fn listen(stream: ServerEvents, answer: &mut Answer, events: &Events) -> Result<()> {
    let mut follow = Follow::new(stream);
    while answer.heard.finish.is_none() || answer.heard.usage.is_null() {
        let Some(event) = follow.next(&answer.heard, AdapterError::from).await? else {
            break;
        };
        for event in answer.hear(&event.data)? {
            events.send(event).await;
        }
    }
    Ok(())
}
