//! Dispatches of an agent, from the first to its end.

use serde_json::{Value, json};

use forge_base::id::DispatchId;
use forge_dispatch::submit::SubmitHeaders;

use super::adopt::adopt;
use super::{Agent, Place};
use crate::context::Context;
use crate::event::Event;
use crate::git::{self, Checkout};
use crate::plan::AgentType;
use crate::step::{self, NotSubmitted, Outcome, ToolCall};
use crate::takeover::{Owner, Takeover};
use crate::tools::agent::{self as tools, SPAWN_AGENT};
use crate::wait::Trouble;
use crate::{Artifact, Asks, Work, attempt, settlement};

const PROMPT: &str = include_str!("../prompts/task.md");
const REFINERY_PROMPT: &str = include_str!("../prompts/refinery.md");

/// Body and headers of a dispatch of an agent.
pub(crate) async fn body(
    context: &Context,
    place: &Place,
    agent_type: AgentType,
    message: &str,
    checkout: &Checkout,
) -> Result<(Value, SubmitHeaders), forge_store::Error> {
    let (mut body, headers) = context.step(&place.id(context), message, checkout.folder());
    let prompt = match agent_type {
        AgentType::Refinery => REFINERY_PROMPT,
        AgentType::Throwaway | AgentType::Worker | AgentType::SubExecutor => PROMPT,
    };
    body["systemPrompt"] = prompt.into();
    body["workspace"]["files"] = context.files(&place.task).await?;
    // The Captain needed an adapter with sessions, too. Where it has recorded none, the attempt begins again.
    body["recovery"] = "resume".into();
    let tools = tools::described(agent_type);
    if tools.as_array().is_some_and(|tools| !tools.is_empty()) {
        body["tools"] = tools;
        // Without it the results of the tools cannot be given to it.
        body["requires"] = json!(["session_resume"]);
    }
    body["metadata"] = json!({"run": {
        "runId": context.run, "taskId": place.task, "attemptId": place.attempt.to_string(), "role": agent_type,
        "agent": place.number(),
    }});
    Ok((body, headers))
}

/// Follows a dispatch of an agent, and keeps what it leaves.
pub(crate) async fn follow(context: &Context, place: &Place) -> Work {
    let Some((task, agent)) = place.find(&context.state) else {
        return attempt::failed(
            context,
            &place.task,
            place.attempt,
            "the agent is not known",
        );
    };
    let is_own = place.agent == 0;
    let ended_for_space = || attempt::ended_for_space(context, &place.task, place.attempt);
    if place.round > 0
        && let Some(work) = is_own.then(ended_for_space).flatten()
    {
        return work;
    }
    let dispatch = match (place.agent, place.round) {
        (0, 0) => task.agent_id.as_ref().and_then(|id| id.parse().ok()),
        _ => match submit(context, place, agent).await {
            Ok(dispatch) => Some(dispatch),
            Err(NotStarted::Failed(text)) => return ended(context, place, Err(text)).await,
            Err(NotStarted::Again(text)) => return context.again(&text).await,
            Err(NotStarted::Later(trouble)) => {
                return attempt::later(context, &place.task, place.attempt, &trouble);
            }
        },
    };
    let Some(dispatch) = dispatch else {
        return ended(context, place, Err("it has no dispatch".to_owned())).await;
    };
    let owner = Owner {
        task: Some(place.task.clone()),
        attempt: place.attempt,
        agent: place.number(),
        agent_id: dispatch.to_string(),
        started_at: task.started_at.unwrap_or_else(|| context.inner.clock.now()),
    };
    let running = context.register(dispatch, place);
    let followed = step::follow(context, dispatch, Takeover::new(owner, tools::ALL)).await;
    drop(running);
    let outcome = match followed {
        Ok(outcome) => outcome,
        Err(error) => return context.again(&error).await,
    };
    let usage = outcome.usage(Some(&place.task), place.number());
    let mut work = match (is_own.then(ended_for_space).flatten(), &*outcome.tool_calls) {
        (Some(work), _) => work,
        (None, []) => ended(context, place, Ok(outcome)).await,
        (None, _) => called(context, place, outcome.tool_calls).await,
    };
    if work.is_none() {
        return work;
    }
    work.entries.insert(0, (place.attempt, usage));
    work.ended = Some(dispatch);
    work
}

enum NotStarted {
    Failed(String),
    Again(String),
    Later(Trouble),
}

impl From<git::Error> for NotStarted {
    fn from(error: git::Error) -> Self {
        match error.is_transient() {
            true => Self::Again(error.to_string()),
            false => Self::Failed(error.to_string()),
        }
    }
}

impl From<forge_store::Error> for NotStarted {
    fn from(error: forge_store::Error) -> Self {
        Self::Again(error.to_string())
    }
}

/// Submits a dispatch of an agent that was started by another one, or the next dispatch of a session.
async fn submit(context: &Context, place: &Place, agent: &Agent) -> Result<DispatchId, NotStarted> {
    let repository = context.repository().await?;
    let branch = place.branch(context.run).map_err(git::Error::from)?;
    if let Some(parent) = &agent.parent
        && repository.tip(&branch).await?.is_none()
    {
        let of = Place {
            agent: parent.agent,
            ..place.clone()
        };
        let of = of.branch(context.run).map_err(git::Error::from)?;
        let tip = repository.tip(&of).await?;
        let tip = tip.ok_or_else(|| git::Error::NoRef(of.to_string()))?;
        repository.start(&branch, &tip).await?;
    }
    // Its first dispatch is the beginning of its work in the folder.
    let checkout = match place.round {
        0 => repository.make(&branch).await?,
        _ => repository.open(&branch)?,
    };
    let message = match place.find(&context.state) {
        _ if place.round == 0 => agent.instructions.clone(),
        Some((task, agent)) if agent.results.is_empty() => {
            settlement::message(context, &place.task, task).await?
        }
        Some(_) | None => "The results of your tool calls.".to_owned(),
    };
    let (mut body, headers) = body(context, place, agent.agent_type, &message, &checkout).await?;
    if place.round > 0 {
        body["sessionId"] = json!(agent.session);
        body["toolResults"] = json!(agent.results);
    }
    let id = place.id(context);
    match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => Ok(dispatch),
        Err(NotSubmitted::Refused(text)) => Err(NotStarted::Failed(text)),
        Err(NotSubmitted::Later(trouble)) => Err(NotStarted::Later(trouble)),
        Err(NotSubmitted::Stopped) => Err(NotStarted::Failed("the run is cancelled".to_owned())),
    }
}

/// An agent waits for the results of its calls. What it has done is committed before others continue it.
async fn called(context: &Context, place: &Place, calls: Vec<ToolCall>) -> Work {
    if calls.iter().any(|call| call.name == SPAWN_AGENT) {
        let committed = async {
            let repository = context.repository().await?;
            let checkout = repository.open(&place.branch(context.run)?)?;
            let text = "Before the agents that it has started";
            let message = attempt::message(context, &place.task, place.attempt, text);
            checkout.commit(&message, &[]).await
        };
        match committed.await {
            Ok(_) => {}
            Err(error) if error.is_transient() => return context.again(&error).await,
            Err(error) => return ended(context, place, Err(error.to_string())).await,
        }
    }
    Work {
        asks: Some(Asks::Agent {
            place: place.clone(),
            calls,
        }),
        ..Work::default()
    }
}

/// End of an agent: of the attempt, or of one that another agent waits for.
async fn ended(context: &Context, place: &Place, outcome: Result<Outcome, String>) -> Work {
    let Place { task, attempt, .. } = place;
    let Some((known, agent)) = place.find(&context.state) else {
        return Work::default();
    };
    let Some(parent) = agent.parent.as_ref() else {
        let done = match outcome {
            Err(text) => return attempt::failed(context, task, *attempt, &text),
            Ok(outcome) if outcome.error.is_some() || !known.settles() => {
                attempt::finish(context, task, *attempt, &outcome).await
            }
            Ok(outcome) => settlement::settle(context, place, &outcome).await,
        };
        return match done {
            Ok(work) => work,
            Err(error) if error.is_transient() => context.again(&error).await,
            Err(error) => attempt::failed(context, task, *attempt, &error.to_string()),
        };
    };
    let adopted = match outcome {
        Err(text) => Ok(Err(text)),
        Ok(outcome) => adopt(context, place, parent, outcome).await,
    };
    let (result, error) = match adopted {
        Ok(Ok(text)) => (text, None),
        Ok(Err(text)) => (text.clone(), Some(text)),
        Err(error) if error.is_transient() => return context.again(&error).await,
        Err(error) => (error.to_string(), Some(error.to_string())),
    };
    let artifact = Artifact::walkthrough(
        format!("{task}/{attempt}.{}/walkthrough.md", place.agent),
        format!("# {}\n\n{result}\n", agent.title),
    );
    let is_error = error.is_some();
    let ended = Event::AgentEnded {
        task_id: task.clone(),
        agent: place.agent,
        error,
    };
    let answered = Event::ToolResult {
        task_id: task.clone(),
        tool_name: SPAWN_AGENT.to_owned(),
        result: result.into(),
        is_error,
        call_id: parent.call_id.clone(),
        agent: (parent.agent > 0).then_some(parent.agent),
    };
    Work {
        entries: vec![(*attempt, ended), (*attempt, answered)],
        artifacts: vec![artifact],
        ..Work::default()
    }
}
