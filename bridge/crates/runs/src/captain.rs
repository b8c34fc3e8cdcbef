//! Turns of the Captain: each is a dispatch of one session, on a checkout that is never merged.

use serde_json::{Value, json};

use forge_dispatch::submit::SubmitHeaders;

use crate::context::Context;
use crate::event::{ArtifactType, Entry, Event, Role};
use crate::git::{self, Branch};
use crate::plan::{CAPTAIN, Graph};
use crate::state::State;
use crate::step::{self, NotSubmitted, Outcome, StepId};
use crate::takeover::{Owner, Takeover};
use crate::tools::{self, Effect};
use crate::{Artifact, Work};

const PROMPT: &str = include_str!("prompts/captain.md");
const OWN_TOOLS: &[&str] = &[tools::CREATE_SPEC, tools::CREATE_TASK, tools::SET_DAG];

/// Runs a turn, or continues it after a crash.
pub(crate) async fn turn(context: &Context, turn: u32) -> Work {
    let id = StepId {
        run: context.run,
        of: CAPTAIN.to_owned(),
        number: turn,
    };
    let (body, headers) = match body(context, &id).await {
        Ok(body) => body,
        Err(error) => return context.again(&error).await,
    };
    let dispatch = match step::submit(&context.inner, &id, body, headers, &context.stop).await {
        Ok(dispatch) => dispatch,
        Err(NotSubmitted::Refused(text)) => return failed(&text, &id.to_string()),
        Err(NotSubmitted::Stopped) => return Work::default(),
    };
    let owner = Owner {
        task: None,
        attempt: 0,
        agent_id: dispatch.to_string(),
        started_at: context.inner.clock.now(),
    };
    let events = Takeover::new(owner, OWN_TOOLS);
    let followed = step::follow(context, dispatch, events).await;
    match followed {
        Ok(outcome) => Work {
            ended: Some(dispatch),
            ..finish(context, outcome)
        },
        Err(error) => context.again(&error).await,
    }
}

async fn body(context: &Context, id: &StepId) -> Result<(Value, SubmitHeaders), git::Error> {
    let repository = context.repository().await?;
    let branch = Branch::of_attempt(CAPTAIN, 1)?;
    repository.start(&branch, repository.base()).await?;
    let checkout = repository.checkout(&branch).await?;
    let captain = &context.state.captain;
    let message = match captain.messages.front() {
        Some(message) if captain.results.is_empty() => message.as_str(),
        Some(_) | None => "The results of your tool calls.",
    };
    let (mut body, headers) = context.step(id, message, checkout.folder());
    body["systemPrompt"] = PROMPT.into();
    // Offered to the last turn as well, so that the session does not change; calls of a final plan are refused.
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
        session_id: None,
        tokens: 0,
        cost_usd: 0.0,
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

/// Events of a turn: what it cost, what it says, and the calls of its tools, which are carried out here.
fn finish(context: &Context, outcome: Outcome) -> Work {
    let mut work = Work::default();
    let mut state = (*context.state).clone();
    let now = context.inner.clock.now();
    let write = |state: &mut State, work: &mut Work, event: Event| {
        state.fold(&Entry {
            at: now,
            attempt: 0,
            event: event.clone(),
        });
        work.entries.push((0, event));
    };
    write(&mut state, &mut work, outcome.usage(None));
    if let Some((code, text)) = &outcome.error {
        let content = format!("The Captain cannot answer ({code}): {text}");
        write(&mut state, &mut work, message(content));
        return work;
    }
    if !outcome.output.trim().is_empty() {
        write(&mut state, &mut work, message(outcome.output.clone()));
    }
    for call in outcome.tool_calls {
        let effect = tools::call(&state, &call.name, &call.input);
        let called = Event::CaptainToolCall {
            tool_name: call.name.clone(),
            args: call.input,
            call_id: call.tool_call_id.clone(),
        };
        write(&mut state, &mut work, called);
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
        write(&mut state, &mut work, answered);
        match effect {
            Ok(Effect::Spec { name, content }) => {
                work.artifacts.push(artifact(
                    format!("specs/{name}.md"),
                    ArtifactType::Spec,
                    content,
                ));
            }
            Ok(Effect::Task(document)) => {
                let path = format!("tasks/{}.md", document.id);
                work.artifacts
                    .push(artifact(path, ArtifactType::Task, document.render()));
            }
            Ok(Effect::Graph(graph)) => {
                let finalized = Event::PlanFinalized {
                    total_tasks: graph.nodes().len() - graph.refineries(),
                    total_refineries: graph.refineries(),
                    spec_count: state.specs.len(),
                };
                write(&mut state, &mut work, finalized);
                let text = dag(context, &graph);
                work.artifacts
                    .push(artifact("dag.json".to_owned(), ArtifactType::Dag, text));
            }
            Err(_) => {}
        }
    }
    work
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
    }
}

fn dag(context: &Context, graph: &Graph) -> String {
    let nodes = graph.nodes();
    let dag = json!({
        "version": 1,
        "runId": context.run,
        "nodes": nodes,
        "metadata": {
            "createdAt": forge_base::time::format(context.inner.clock.now()),
            "createdBy": CAPTAIN,
            "totalTasks": nodes.len() - graph.refineries(),
            "totalRefineries": graph.refineries(),
        },
    });
    format!("{dag:#}\n")
}
