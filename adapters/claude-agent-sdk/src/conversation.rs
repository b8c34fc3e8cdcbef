//! One run: starts the program, exchanges messages, stops the program.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forge_adapter_api::child::{Child, StartError};
use forge_adapter_api::result::{FileContent, OutputFile};
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Host, Messages, Result,
    Run,
};
use forge_adapter_transport::caller_tools::CallerTools;
use forge_adapter_transport::deadline::at;
use forge_adapter_transport::json_lines::JsonLines;
use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use crate::config::Settings;
use crate::control::{self, Control};
use crate::launch::{self, Conversation};
use crate::mcp_status::Servers;
use crate::options::Options;
use crate::outcome::{End, Wanted, outcome};
use crate::policy::Policy;
use crate::task;
use crate::transcript::Transcript;

/// Time for an interrupted program to write its result.
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(2);
/// Time to wait for the idle state after a result, when no background work is known.
const SILENCE: Duration = Duration::from_secs(10);
/// Time between two questions for the state of MCP servers that are starting.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Time for the program to exit after its stdin was closed.
const END_PATIENCE: Duration = Duration::from_secs(2);

pub(crate) async fn execute(
    host: &Host,
    settings: &Settings,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let options = Options::read(request, &settings.table)?;
    let setup = Setup {
        host,
        settings,
        request,
        options: &options,
    };
    let conversation = Conversation::of(request, &options);
    let messages = run.messages(&request.execution_id);
    let mut signals = Signals { run, messages };
    let result = attempt(&setup, &conversation, events, &mut signals).await?;
    // The earlier attempt might have ended before the program stored the session.
    if request.resume && result.error_code.as_deref() == Some("session_not_found") {
        let earlier = request.attempt.saturating_sub(1);
        events.send(AdapterEvent::attempt_retracted(earlier)).await;
        return attempt(&setup, &Conversation::fresh(), events, &mut signals).await;
    }
    Ok(result)
}

/// Inputs of all attempts of a run.
struct Setup<'a> {
    host: &'a Host,
    settings: &'a Settings,
    request: &'a ExecutionRequest,
    options: &'a Options,
}

/// Signals from the bridge during a run.
struct Signals<'a> {
    run: &'a Run,
    messages: Messages,
}

async fn attempt(
    setup: &Setup<'_>,
    conversation: &Conversation,
    events: &Events,
    signals: &mut Signals<'_>,
) -> Result<ExecutionResult> {
    let Setup {
        host,
        settings,
        request,
        options,
    } = *setup;
    let folder = host
        .temp_folder()
        .map_err(|error| internal("create the run's directory", &error))?;
    let workspace = request.open_workspace()?;
    let mut control = Control {
        policy: Policy {
            permission: settings.table.permission,
            workspace: workspace.as_ref().map(|folder| folder.path().to_owned()),
        },
        tools: CallerTools::new(&request.execution_id, &request.tools),
        question: None,
    };
    let program = launch::program(
        settings,
        request,
        options,
        conversation,
        &control.tools,
        workspace,
        &folder,
    )
    .map_err(|error| internal("prepare the run", &error))?;
    let task = task::line(request, conversation).await?;
    let child = Child::start(host, Some(&request.execution_id), &program).map_err(not_started)?;
    let mut program = JsonLines::new(child);
    program.send(&control::initialize(
        &json!(settings.table.agents),
        &control.tools,
    ));

    let mut transcript = Transcript::default();
    let end = converse(
        &mut program,
        &mut control,
        &mut transcript,
        request,
        task,
        events,
        signals,
    )
    .await;
    // The result does not depend on the exit; the program is killed after the timeout.
    let stopped = program.stop(END_PATIENCE).await;
    let end = match end {
        End::Lost(reason) => {
            let status =
                stopped.map_or_else(|error| error.to_string(), |status| status.to_string());
            End::Lost(match program.stderr_tail() {
                tail if tail.is_empty() => format!("{reason} ({status})"),
                tail => format!("{reason} ({status}): {tail}"),
            })
        }
        end => end,
    };
    let wanted = match launch::schema(request) {
        Some(_) => Wanted::Structured,
        None => Wanted::Text,
    };
    let written = std::mem::take(&mut transcript.written);
    Ok(ExecutionResult {
        output_files: match (settings.table.output_files, control.policy.workspace) {
            (true, Some(workspace)) => output_files(written, &workspace),
            (_, _) => Vec::new(),
        },
        ..outcome(transcript, end, &wanted)
    })
}

async fn converse(
    program: &mut JsonLines,
    control: &mut Control,
    transcript: &mut Transcript,
    request: &ExecutionRequest,
    mut task: String,
    events: &Events,
    signals: &mut Signals<'_>,
) -> End {
    let mut interrupted = false;
    let mut is_sent = false;
    let mut deadline: Option<Instant> = None;
    let mut servers = Servers::new(request);
    let mut next_check = None;
    loop {
        let line = tokio::select! {
            line = program.next() => line,
            () = signals.run.cancelled(), if !interrupted => {
                interrupted = true;
                deadline = Some(Instant::now() + INTERRUPT_PATIENCE);
                program.send(&control::interrupt());
                continue;
            }
            message = signals.messages.next(), if is_sent && !interrupted => {
                let id = Uuid::now_v7().to_string();
                program.send(&control::steering(&message, &id));
                transcript.steered(id);
                events.send(AdapterEvent::new("user.text").with(json!({"text": message}))).await;
                continue;
            }
            () = at(next_check) => {
                next_check = None;
                program.send(&control::mcp_status());
                continue;
            }
            () = at(deadline) => {
                return if interrupted { End::Cancelled } else { End::Result };
            }
        };
        let line = match line {
            Some(Ok(line)) => line,
            Some(Err(too_long)) => {
                tracing::warn!(
                    bytes = too_long.bytes,
                    "dropped a line of the program that exceeds the limit"
                );
                continue;
            }
            None if interrupted => return End::Cancelled,
            None if transcript.result.is_some() => return ended(control),
            None => return End::Lost("the program ended without a result".to_owned()),
        };
        match line["type"].as_str().unwrap_or_default() {
            "control_request" => program.send(&control.answer(&line)),
            "control_response" => match answered(&line, &mut servers) {
                Answered::Other => {}
                Answered::Check(_) | Answered::Ready if interrupted => {}
                Answered::Check(at) => next_check = Some(at),
                Answered::Refused(reason) => return End::Lost(reason),
                Answered::Ready => {
                    for event in servers.events() {
                        events.send(event).await;
                    }
                    if let Some(reason) = servers.failure() {
                        return End::NoServer(reason);
                    }
                    program.send_text(&std::mem::take(&mut task));
                    is_sent = true;
                }
            },
            _ => {
                for event in transcript.line(&line, |tool| control.tools.is_offered(tool)) {
                    events.send(event).await;
                }
                if transcript.is_over() || (interrupted && transcript.result.is_some()) {
                    return if interrupted {
                        End::Cancelled
                    } else {
                        ended(control)
                    };
                }
                if !interrupted {
                    deadline = transcript.may_be_over().then(|| Instant::now() + SILENCE);
                }
            }
        }
    }
}

/// Meaning of an answer of the program.
enum Answered {
    /// To a request that nothing waits for.
    Other,
    /// The state of the MCP servers is to be asked at this time.
    Check(Instant),
    /// The task can be sent.
    Ready,
    /// The program does not start; holds the reason.
    Refused(String),
}

fn answered(line: &Value, servers: &mut Servers) -> Answered {
    let response = &line["response"];
    match response["request_id"].as_str().unwrap_or_default() {
        control::INITIALIZE if response["subtype"] == "error" => {
            let error = response["error"].as_str().unwrap_or("no reason given");
            Answered::Refused(format!("the program refused to start: {error}"))
        }
        control::INITIALIZE if servers.is_empty() => Answered::Ready,
        control::INITIALIZE => Answered::Check(Instant::now()),
        control::MCP_STATUS if servers.are_starting(&response["response"]["mcpServers"]) => {
            Answered::Check(Instant::now() + CHECK_INTERVAL)
        }
        control::MCP_STATUS => Answered::Ready,
        _ => Answered::Other,
    }
}

/// The written files below the workspace.
fn output_files(written: BTreeSet<PathBuf>, workspace: &Path) -> Vec<OutputFile> {
    let below = |file: PathBuf| file.strip_prefix(workspace).map(Path::to_owned).ok();
    let files = written.into_iter().filter_map(below);
    files
        .map(|path| OutputFile {
            name: path.to_string_lossy().into_owned(),
            media_type: None,
            content: FileContent::Path(path),
        })
        .collect()
}

fn ended(control: &mut Control) -> End {
    if let Some(question) = control.question.take() {
        End::Asked(question)
    } else if control.tools.were_called() {
        End::HandedOver(control.tools.take_calls())
    } else {
        End::Result
    }
}

fn not_started(error: StartError) -> AdapterError {
    match error {
        StartError::Missing(path) => {
            AdapterError::new("adapter_unavailable", crate::missing(&path))
        }
        StartError::Start { path, source } => AdapterError::new(
            "adapter_unavailable",
            format!("cannot start {}: {source}", path.display()),
        ),
    }
}

fn internal(what: &str, error: &std::io::Error) -> AdapterError {
    AdapterError::new("internal", format!("cannot {what}: {error}")).retryable()
}
