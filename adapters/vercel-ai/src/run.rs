//! One execution, the same in all modes: builds the request, reads the answer, and makes the result.

use forge_adapter_api::foreign_json;
use forge_adapter_api::options::ToolChoice;
use forge_adapter_api::{
    AdapterEvent, Events, ExecutionRequest, ExecutionResult, Host, Result, Run, Status,
};
use forge_adapter_openai_client::{
    Completion, Names, Sessions, UserMessage, assistant, cost, said,
};
use forge_adapter_transport::http::Http;
use forge_adapter_transport::retry::Retries;
use serde_json::{Map, Value, json};

use crate::providers::{Target, split};
use crate::settings::{Api, Mode, Settings};
use crate::wire::{self, Ask};
use crate::{gateway, sidecar};

/// State shared by all executions.
pub(crate) struct Room {
    pub(crate) host: Host,
    pub(crate) settings: Settings,
    pub(crate) sessions: Sessions,
    pub(crate) http: Http,
}

pub(crate) async fn execute(
    room: &Room,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let settings = &room.settings;
    let named = request.model.as_deref().or(settings.model.as_deref());
    let way = Way::of(settings, named)?;
    let names = Names::new(&request.tools);
    let (session, mut history) = room.sessions.open(request, "vercel-ai")?;
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

    let mut options = request.model_options();
    options.max_output_tokens = options.max_output_tokens.or(settings.max_output_tokens);
    if let Some(ToolChoice::Tool(name)) = &mut options.tool_choice {
        *name = names.to_model(name);
    }
    let ask = Ask {
        model: way.model(),
        system: request
            .system_prompt
            .as_deref()
            .filter(|text| !text.is_empty()),
        messages: &history,
        attachments: &user.attachments,
        tools: &request.tools,
        names: &names,
        schema: request.output_schema.as_ref(),
        options: &options,
    };
    let (mut heard, mut native) = (Completion::default(), Map::new());
    let mut retries = Retries::new(settings.model_retries, request, events)
        .with_models(named, &settings.fallback);
    let tries = async {
        loop {
            let way = Way::of(settings, retries.model())?;
            let ask = Ask {
                model: way.model(),
                ..ask
            };
            let tried = way.call(room, request, &ask, &mut heard, &mut native, events);
            let tried = retries.within(tried).await;
            if let Some(ended) = heard.ended(tried, &mut retries).await {
                return ended;
            }
        }
    };
    let answered = tokio::select! {
        answered = tries => answered,
        () = run.cancelled() => Err(retries.cancelled()),
    };
    let named = retries.model();
    let way = Way::of(settings, named)?;
    let mut result = match answered {
        Ok(()) => heard.result(&names),
        Err(error) => error.into(),
    };
    if result.status == Status::Ok {
        user.forget(&mut history);
        let message = assistant(&heard.text, &result.tool_calls, &names);
        history.push(wire::with_native(message, native));
        room.sessions.write(&session, &history)?;
        if request.output_schema.is_some() {
            // Text that is not JSON is left to the bridge, which rejects it and keeps the text.
            result.structured_output = foreign_json::from_str(&heard.text).ok();
        }
    }
    let usage = heard.used();
    let listed: Vec<&str> = named.into_iter().chain(heard.model.as_deref()).collect();
    let told = way.cost(room, &heard, run).await;
    Ok(ExecutionResult {
        usage,
        cost_usd: told.or_else(|| cost(&settings.prices, &listed, &usage)),
        model_provider: Some(way.provider().to_owned()),
        model: heard.model.or_else(|| named.map(str::to_owned)),
        output: Some(heard.text).filter(|text| !text.is_empty()),
        session_id: Some(session),
        ..result
    })
}

/// Path to the model.
enum Way<'a> {
    Native(Target),
    Gateway(Target),
    Sidecar { model: &'a str, provider: &'a str },
}

impl<'a> Way<'a> {
    fn of(settings: &Settings, model: Option<&'a str>) -> Result<Self> {
        Ok(match settings.mode {
            Mode::Direct => Self::Native(Target::of(settings, model)?),
            Mode::Gateway => Self::Gateway(Target::of(settings, model)?),
            Mode::Sidecar => {
                let model = model.unwrap_or_default();
                let (provider, _) = split(settings, model)?;
                Self::Sidecar { model, provider }
            }
        })
    }

    fn model(&self) -> &str {
        match self {
            Self::Native(target) | Self::Gateway(target) => &target.model,
            Self::Sidecar { model, .. } => model,
        }
    }

    /// Provider of the model; through the gateway, only the creator is known.
    fn provider(&self) -> &str {
        match self {
            Self::Native(target) => &target.provider,
            Self::Gateway(target) => match target.model.split_once('/') {
                Some((creator, _)) => creator,
                None => &target.provider,
            },
            Self::Sidecar { provider, .. } => provider,
        }
    }

    async fn call(
        &self,
        room: &Room,
        request: &ExecutionRequest,
        ask: &Ask<'_>,
        heard: &mut Completion,
        native: &mut Map<String, Value>,
        events: &Events,
    ) -> Result<()> {
        match self {
            Self::Native(target) | Self::Gateway(target) => {
                wire::call(&room.http, target, ask, heard, native, events).await
            }
            Self::Sidecar { .. } => {
                let (host, settings) = (&room.host, &room.settings);
                let execution = &request.execution_id;
                sidecar::call(host, settings, execution, ask, heard, native, events).await
            }
        }
    }

    /// Cost of a completed answer as reported by the gateway.
    async fn cost(&self, room: &Room, heard: &Completion, run: &Run) -> Option<f64> {
        let Self::Gateway(target) = self else {
            return None;
        };
        let id = heard.first["id"]
            .as_str()
            .filter(|_| heard.finish.is_some())?;
        // The gateway's own paths expect the key as in Chat Completions, whatever the answer's protocol.
        let own = Target {
            api: Api::Chat,
            ..target.clone()
        };
        tokio::select! {
            cost = gateway::cost(&room.http, &own, id) => cost,
            () = run.cancelled() => None,
        }
    }
}
