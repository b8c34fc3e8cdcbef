//! Turns of the Captain: each is a dispatch of one session, on a checkout that is never merged.

use jiff::Timestamp;
use serde_json::{Value, json};

use forge_base::id::RunId;
use forge_dispatch::submit::SubmitHeaders;

use crate::change;
use crate::context::Context;
use crate::draft::Draft;
use crate::event::{ArtifactType, CrStatus, Event, Role};
use crate::git;
use crate::greeting::{self, Interview};
use crate::plan::{CAPTAIN, Graph};
use crate::state::{Plan, State};
use crate::step::{self, NotSubmitted, Outcome, StepError, StepId};
use crate::takeover::{Owner, Takeover};
use crate::tools::captain::{self as tools, Effect};
use crate::wait::Trouble;
use crate::{Artifact, Asks, Work};

const PROMPT: &str = include_str!("prompts/captain.md");

/// Runs a turn, or continues it after a crash.
pub(crate) async fn turn(context: &Context, turn: u32) -> Work {
    let id = StepId {
        run: context.run,
        of: CAPTAIN.to_owned(),
        name: match &context.state.wait {
            None => turn.to_string(),
            Some(wait) => format!("{turn}.{}", wait.tries),
        },
    };
    let (body, headers) = match body(context, &id).await {
        Ok(body) => body,
        Err(error) => return context.again(&error).await,
    };
    let dispatch = match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => dispatch,
        Err(NotSubmitted::Refused(text)) => return failed(&text, &id.to_string()),
        Err(NotSubmitted::Later(trouble)) => {
            let waiting = waiting(context, &trouble);
            return waiting.unwrap_or_else(|| failed(&trouble.reason, &id.to_string()));
        }
        Err(NotSubmitted::Stopped) => return Work::default(),
    };
    let owner = Owner {
        task: None,
        attempt: 0,
        agent: None,
        agent_id: dispatch.to_string(),
        started_at: context.inner.clock.now(),
    };
    let events = Takeover::new(owner, tools::ALL);
    let followed = step::follow(context, dispatch, events).await;
    let outcome = match followed {
        Ok(outcome) => outcome,
        Err(error) => return context.again(&error).await,
    };
    let trouble = outcome.error.as_ref().and_then(StepError::trouble);
    if let Some(mut work) = trouble.and_then(|trouble| waiting(context, &trouble)) {
        let mut usage = outcome.usage(None, None);
        if let Event::Usage { repeats, .. } = &mut usage {
            *repeats = true;
        }
        work.entries.insert(0, (0, usage));
        work.ended = Some(dispatch);
        return work;
    }
    Work {
        ended: Some(dispatch),
        asks: Some(Asks::Captain(outcome)),
        ..Work::default()
    }
}

/// Wait before the same turn is repeated; `None` once patience is over.
fn waiting(context: &Context, trouble: &Trouble) -> Option<Work> {
    let until = context.next_try(context.state.wait.as_ref(), trouble)?;
    let waiting = Event::RunWaiting {
        cause: trouble.cause,
        reason: trouble.reason.clone(),
        until,
    };
    Some(Work::of(0, [waiting]))
}

async fn body(context: &Context, id: &StepId) -> Result<(Value, SubmitHeaders), git::Error> {
    let repository = context.repository().await?;
    let branch = context.branch(CAPTAIN, 1)?;
    repository.start(&branch, repository.base()).await?;
    let checkout = repository.renew(&branch).await?;
    let captain = &context.state.captain;
    let is_interview = context.state.plan == Plan::Open;
    let oldest = captain.messages.front().filter(|_| is_interview).cloned();
    let request = context.state.with_status(CrStatus::Approved).next();
    let asked = oldest.or_else(|| Some(request?.message()));
    let is_greeting = captain.interview == Interview::Greeting;
    let asked = is_greeting.then(|| greeting::REQUEST.to_owned()).or(asked);
    let message = asked.filter(|_| captain.results.is_empty());
    let message = message
        .as_deref()
        .unwrap_or("The results of your tool calls.");
    let (mut body, headers) = context.step(id, message, checkout.folder());
    body["systemPrompt"] = PROMPT.into();
    // The same in all turns, so that the session does not change; calls that do not fit the plan are refused.
    body["tools"] = tools::described();
    body["toolResults"] = json!(captain.results);
    body["sessionId"] = json!(captain.session);
    body["requires"] = json!(["session_resume"]);
    body["recovery"] = "resume".into();
    body["metadata"] = json!({"run": {"runId": id.run, "role": "captain"}});
    Ok((body, headers))
}

/// A turn that has no dispatch.
fn failed(text: &str, id: &str) -> Work {
    let usage = Event::Usage {
        dispatch_id: id.to_owned(),
        task_id: None,
        agent: None,
        session_id: None,
        tokens: 0,
        cost_usd: 0.0,
        repeats: false,
    };
    Work {
        entries: vec![
            (0, usage),
            (0, message(format!("The Captain cannot answer: {text}"))),
        ],
        ..Work::default()
    }
}

fn message(content: String) -> Event {
    Event::CaptainMessage {
        content,
        role: Role::Assistant,
    }
}

/// Events of a turn: what it cost, what it says, and the calls of its tools, which are carried out here. `state` is that
/// before the end of the turn.
pub(crate) fn carry_out(state: &mut State, run: RunId, outcome: Outcome, now: Timestamp) -> Work {
    let mut draft = Draft::new(state, now);
    let asked_for = change::asked_for(draft.state).map(|request| request.id.clone());
    draft.write(0, outcome.usage(None, None));
    let mut said = outcome.output.clone();
    if let Some(error) = &outcome.error {
        said = format!("The Captain cannot answer: {error}");
    }
    if !said.trim().is_empty() {
        draft.write(0, message(said.clone()));
    }
    let is_error = outcome.error.is_some();
    let calls = outcome.tool_calls.into_iter().filter(|_| !is_error);
    for call in calls {
        let effect = tools::call(draft.state, &call.name, &call.input);
        let called = Event::CaptainToolCall {
            tool_name: call.name.clone(),
            args: call.input,
            call_id: call.tool_call_id.clone(),
        };
        draft.write(0, called);
        let (result, is_error) = match &effect {
            Ok(effect) => (told(effect), false),
            Err(text) => (json!(text), true),
        };
        let answered = Event::CaptainToolResult {
            tool_name: call.name,
            result,
            call_id: call.tool_call_id,
            is_error,
        };
        draft.write(0, answered);
        match effect {
            Ok(Effect::Spec { name, content }) => {
                draft.work.artifacts.push(artifact(
                    format!("specs/{name}.md"),
                    ArtifactType::Spec,
                    content,
                ));
            }
            Ok(Effect::Task(document)) => {
                let path = format!("tasks/{}.md", document.id);
                draft
                    .work
                    .artifacts
                    .push(artifact(path, ArtifactType::Task, document.render()));
            }
            Ok(Effect::Graph(graph)) => {
                let finalized = Event::PlanFinalized {
                    total_tasks: graph.nodes().len() - graph.refineries(),
                    total_refineries: graph.refineries(),
                    spec_count: draft.state.specs.len(),
                };
                draft.write(0, finalized);
                let text = dag(run, now, &graph);
                draft
                    .work
                    .artifacts
                    .push(artifact("dag.json".to_owned(), ArtifactType::Dag, text));
            }
            Ok(Effect::Overlay { cr_id, overlay }) => {
                let applied = change::apply(draft.state, &cr_id, &overlay);
                for (_, event) in applied.entries {
                    draft.write(0, event);
                }
                draft.work.artifacts.extend(applied.artifacts);
            }
            Err(_) => {}
        }
    }
    let unanswered = asked_for.and_then(|id| change::unanswered(draft.state, &id, is_error, &said));
    if let Some(rejected) = unanswered {
        draft.write(0, rejected);
    }
    draft.work
}

fn artifact(path: String, kind: ArtifactType, content: String) -> Artifact {
    Artifact {
        path,
        kind,
        content,
    }
}

/// Result of an accepted call.
fn told(effect: &Effect) -> Value {
    match effect {
        Effect::Spec { name, .. } => json!(format!("specs/{name}.md is written")),
        Effect::Task(document) => json!(format!("tasks/{}.md is written", document.id)),
        Effect::Graph(graph) => json!(format!(
            "the plan is final and has {} nodes",
            graph.nodes().len()
        )),
        Effect::Overlay { cr_id, overlay } => json!(format!(
            "{} tasks and {} edges are added for {cr_id}",
            overlay.added_nodes.len(),
            overlay.added_edges.len()
        )),
    }
}

fn dag(run: RunId, now: Timestamp, graph: &Graph) -> String {
    let nodes = graph.nodes();
    let dag = json!({
        "version": 1,
        "runId": run,
        "nodes": nodes,
        "metadata": {
            "createdAt": forge_base::time::format(now),
            "createdBy": CAPTAIN,
            "totalTasks": nodes.len() - graph.refineries(),
            "totalRefineries": graph.refineries(),
        },
    });
    format!("{dag:#}\n")
}
