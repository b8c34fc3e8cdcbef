//! An execution: request body, answer and result.

use forge_adapter_api::foreign_json;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run, Status,
};
use forge_adapter_transport::retry::Retries;
use serde_json::{Map, Value, json};

use crate::adapter::OpenAi;
use crate::ask::{Structured, ask, assistant, options_of, said};
use crate::attachments::UserMessage;
use crate::client::Client;
use crate::completion::Completion;
use crate::names::Names;
use crate::settings::Switch;
use crate::{Dialect, prices};

/// Body members that a dispatch may set in `metadata.<provider>`; all others are set by the operator and
/// the adapter.
const CALLERS: [&str; 11] = [
    "frequency_penalty",
    "max_completion_tokens",
    "max_tokens",
    "parallel_tool_calls",
    "presence_penalty",
    "reasoning_effort",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "top_p",
];

pub(crate) async fn execute<D: Dialect>(
    adapter: &OpenAi<D>,
    client: &Client,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let settings = &adapter.settings;
    if settings.tools == Switch::Off && !request.tools.is_empty() {
        let text = format!(
            "this server takes no tools (adapters.{}.tools is off)",
            D::NAME
        );
        return Err(AdapterError::new("invalid_request", text));
    }
    let names = Names::new(&request.tools);
    let (session, mut history) = adapter.sessions.open(request, D::NAME)?;
    let updated = json!({"sessionId": session});
    events
        .send(AdapterEvent::new("session.updated").with(updated))
        .await;

    let user = UserMessage::new(request).await?;
    if !request.turns.is_empty() {
        user.restore(&mut history);
    }
    let fresh = said(request, &user, &history, &names);
    history.extend(fresh);
    let model = request.model.as_deref().or(settings.model.as_deref());
    let mut body = body(adapter, request, model, &history, &names);
    let mut heard = Completion::default();
    let mut retries = Retries::new(settings.model_retries, request, events)
        .with_models(model, &settings.fallback);
    let tries = async {
        loop {
            if retries.model() != model {
                body["model"] = retries.model().into();
            }
            let filled = user.attachments.fill(&body).await?;
            let tried = retries
                .within(client.chat(filled.into(), &mut heard, events))
                .await;
            if let Some(ended) = heard.ended(tried, &mut retries).await {
                return ended;
            }
        }
    };
    let answered = tokio::select! {
        answered = tries => answered,
        () = run.cancelled() => Err(retries.cancelled()),
    };
    let model = retries.model();
    let mut result = match answered {
        Ok(()) => heard.result(&names),
        Err(error) => error.into(),
    };
    if result.status == Status::Ok {
        user.forget(&mut history);
        history.push(assistant(&heard.text, &result.tool_calls, &names));
        adapter.sessions.write(&session, &history)?;
        if request.output_schema.is_some() && settings.structured != Structured::Off {
            // The bridge rejects text that is not JSON and keeps the text.
            result.structured_output = foreign_json::from_str(&heard.text).ok();
        }
    }
    let usage = heard.used();
    let told = heard
        .usages()
        .filter_map(D::cost)
        .reduce(|all, one| all + one);
    let models: Vec<&str> = heard.model.as_deref().into_iter().chain(model).collect();
    Ok(ExecutionResult {
        usage,
        cost_usd: told.or_else(|| prices::cost(&settings.prices, &models, &usage)),
        model_provider: D::model_provider(&heard.first).or_else(|| Some(D::NAME.to_owned())),
        model: heard.model.clone().or_else(|| model.map(str::to_owned)),
        output: Some(heard.text).filter(|text| !text.is_empty()),
        session_id: Some(session),
        ..result
    })
}

fn body<D: Dialect>(
    adapter: &OpenAi<D>,
    request: &ExecutionRequest,
    model: Option<&str>,
    messages: &[Value],
    names: &Names,
) -> Value {
    let mut body = ask(request, model, messages, names, adapter.settings.structured);
    if adapter.settings.stream == Switch::On {
        body["stream"] = true.into();
        body["stream_options"] = json!({"include_usage": true});
    }
    let own = D::extra();
    let options = options_of(&request.model_options(), names, "max_tokens");
    let metadata = request.metadata.as_ref();
    let callers = metadata.and_then(|metadata| metadata.get(adapter.id())?.as_object());
    let callers = callers.into_iter().flatten();
    let callers = callers.filter(|(name, _)| CALLERS.contains(&name.as_str()));
    let members: Map<String, Value> = own
        .as_object()
        .into_iter()
        .flatten()
        .chain(&adapter.settings.extra)
        .chain(&options)
        .chain(callers)
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    body.as_object_mut()
        .expect("a body is an object")
        .extend(members);
    body
}
