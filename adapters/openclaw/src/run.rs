//! One execution: finds the agent, prepares the session, starts or joins the run, follows it to its end.

use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, HealthStatus,
    OutputStrategy, Result, Run,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::frame::Failure;
use crate::gateway::Gateway;
use crate::health::{self, Facts};
use crate::outcome::{self, End};
use crate::session::{self, Session};
use crate::settings::{AGENT_IDS, Settings, is_agent_id};
use crate::transcript::Transcript;

/// Wait for a connection that is being made again, before an execution fails.
const CONNECT: Duration = Duration::from_secs(5);
/// Time of one `agent.wait`, and more for its answer.
const WAIT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(10);
/// Time for a cancelled run to end.
const ABORT: Duration = Duration::from_secs(4);
/// Tries to start a run while the gateway still prepares the agent, and the wait between two.
const STARTS: u32 = 6;
const START_AGAIN: Duration = Duration::from_millis(500);
/// Messages of the session that are searched for those of a run.
const HISTORY: u32 = 200;

const NO_SANDBOX: &str = "the dispatch requires sandboxing, and the gateway runs tools on its host: set \
                          agents.defaults.sandbox.mode to `all`, and that of agents with their own";

pub(crate) struct Execution<'a> {
    pub(crate) gateway: &'a Gateway,
    pub(crate) settings: &'a Settings,
    pub(crate) facts: &'a Mutex<Facts>,
    pub(crate) request: &'a ExecutionRequest,
    pub(crate) events: &'a Events,
    pub(crate) cancel: &'a Run,
    /// Tasks that outlive a dropped execution: those that abort its run.
    pub(crate) afterwards: &'a TaskTracker,
}

impl Execution<'_> {
    pub(crate) async fn run(&self) -> Result<ExecutionResult> {
        let request = self.request;
        if let Some(tool) = request.tools.first() {
            let text = format!(
                "tools: the gateway takes no tools of a caller, such as {:?}",
                tool.name
            );
            return Err(AdapterError::new("invalid_request", text));
        }
        // Held until the end, so that the folder that was accepted is the one that exists.
        let _folder = request.open_workspace()?;
        if matches!(self.gateway.hello(), Err(health) if health.status == HealthStatus::Offline) {
            // After the limit, the first request fails with the reason.
            let _ = timeout(CONNECT, self.gateway.up()).await;
        }
        if request.requires.iter().any(|name| name == "sandboxing")
            && !health::look(self.facts, self.gateway).await?.is_sandboxed
        {
            return Err(AdapterError::new("sandbox_unavailable", NO_SANDBOX));
        }
        let mut session = Session::of(request, self.agent()?);
        // Numbers of earlier attempts repeat the failures of their runs, without a new run.
        let most = request.attempt + STARTS;
        let (mut number, mut repeats) = (1, 0);
        loop {
            let run = session::run_id(request, number);
            let mut transcript = Transcript::default();
            let accepted = AtomicBool::new(false);
            let ended = self
                .follow(&session, &run, &mut transcript, &accepted)
                .await;
            let failure = match ended {
                Ok(end) => return Ok(of(&session, outcome::result(&run, &end, &transcript))),
                Err(failure) => failure,
            };
            let other = self.settings.table.agent.as_ref();
            let other = other.filter(|other| **other != session.agent);
            let is_again = match &failure {
                Failure::Refused(refusal) if refusal.is_unknown_agent() => {
                    let Some(other) = other else {
                        return Err(AdapterError::new("invalid_request", failure.to_string()));
                    };
                    session = Session::of(request, other);
                    continue;
                }
                // Another request changed the session at the same time: the same run can be asked for again.
                Failure::Refused(refusal)
                    if refusal.message.ends_with("Retry the request.") && repeats < STARTS =>
                {
                    repeats += 1;
                    sleep(START_AGAIN).await;
                    continue;
                }
                Failure::Refused(refusal) if refusal.message.contains("superseded") => {
                    sleep(START_AGAIN).await;
                    true
                }
                Failure::Refused(_) => request.attempt > 1 && !accepted.load(Ordering::Relaxed),
                _ => false,
            };
            if self.cancel.is_cancelled() {
                let end = End::Answered(outcome::unconfirmed());
                return Ok(of(&session, outcome::result(&run, &end, &transcript)));
            }
            if !is_again || number == most {
                return Ok(of(&session, outcome::refused(failure, &transcript)));
            }
            number += 1;
        }
    }

    /// The agent of the dispatch, or the configured one if this cannot be an agent's id.
    fn agent(&self) -> Result<&str> {
        let wanted = &self.request.agent_id;
        match (is_agent_id(wanted), &self.settings.table.agent) {
            (true, _) => Ok(wanted),
            (false, Some(agent)) => Ok(agent),
            (false, None) => {
                let text = format!("agentId: the gateway has no agent {wanted:?}: {AGENT_IDS}");
                Err(AdapterError::new("invalid_request", text))
            }
        }
    }

    /// Starts or joins the run and emits its events until it ends. Dropped earlier, it aborts the run.
    async fn follow(
        &self,
        session: &Session,
        run: &str,
        transcript: &mut Transcript,
        accepted: &AtomicBool,
    ) -> Result<End, Failure> {
        if let Some(dir) = self
            .request
            .workspace
            .as_ref()
            .and_then(|workspace| workspace.dir.as_ref())
        {
            let params = json!({"key": session.key, "agentId": session.agent, "cwd": dir});
            self.gateway.call("sessions.create", &params).await?;
        }
        let known = json!({"sessionId": session.id, "sessionKey": session.key, "runId": run});
        self.events
            .send(AdapterEvent::new("session.updated").with(known))
            .await;
        let mut events = self.gateway.events_of(run);
        let mut begun = Begun {
            gateway: self.gateway.clone(),
            target: json!({"sessionKey": session.key, "runId": run}),
            afterwards: Some(self.afterwards.clone()),
        };
        let mut ended = pin!(self.end(session, run, accepted));
        let mut aborted = pin!(async {
            self.cancel.cancelled().await;
            abort(self.gateway, &begun.target).await;
            sleep(ABORT).await;
        });
        let ended = loop {
            tokio::select! {
                biased;
                Some(payload) = events.next() => {
                    if let Some(event) = transcript.event(&payload) {
                        self.events.send(event).await;
                    }
                }
                ended = &mut ended => break ended,
                () = &mut aborted => break Ok(End::Answered(outcome::unconfirmed())),
            }
        };
        begun.afterwards = None;
        ended
    }

    /// Waits for the end of the run. Over a lost connection the run goes on; the request itself can be repeated, since
    /// the gateway starts no second run for its key.
    async fn end(
        &self,
        session: &Session,
        run: &str,
        accepted: &AtomicBool,
    ) -> Result<End, Failure> {
        let params = self.params(session, run);
        loop {
            let mut answers = self.gateway.send("agent", &params).await?;
            let boot = self
                .gateway
                .hello()
                .map(|hello| hello.boot)
                .unwrap_or_default();
            loop {
                match answers.next().await {
                    Ok(answer) if answer["status"] == "accepted" => {
                        accepted.store(true, Ordering::Relaxed);
                    }
                    Ok(answer) if answer["status"] == "in_flight" => {
                        accepted.store(true, Ordering::Relaxed);
                        return self.wait(session, run, &boot).await;
                    }
                    Ok(answer) => return Ok(End::Answered(answer)),
                    Err(Failure::Lost(_)) if accepted.load(Ordering::Relaxed) => {
                        return self.wait(session, run, &boot).await;
                    }
                    Err(Failure::Lost(_)) => break,
                    Err(failure) => return Err(failure),
                }
            }
            self.gateway.up().await;
        }
    }

    fn params(&self, session: &Session, run: &str) -> Value {
        let request = self.request;
        let mut message = request.message.clone();
        if request.output_strategy == OutputStrategy::File {
            let file = request.output_file.as_deref().unwrap_or("output.md");
            message = format!(
                "Write the final result of your work to the file `{file}` in the working directory.\n\n{message}"
            );
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "whole seconds of a positive duration; a cast saturates"
        )]
        let seconds = (request.timeout_seconds.ceil() as u64).clamp(1, 86_400 * 20);
        let mut params = json!({
            "message": message, "agentId": session.agent, "sessionKey": session.key, "idempotencyKey": run,
            "deliver": false, "timeout": seconds,
        });
        for (name, value) in [
            ("extraSystemPrompt", &request.system_prompt),
            ("model", &request.model),
        ] {
            if let Some(value) = value {
                params[name] = value.as_str().into();
            }
        }
        params
    }

    /// Waits for a run that this connection did not start. After a restart the gateway does not know it any more.
    async fn wait(&self, session: &Session, run: &str, boot: &str) -> Result<End, Failure> {
        loop {
            let restarted = self.gateway.up().await.boot != boot;
            let limit = if restarted { Duration::ZERO } else { WAIT };
            let params = json!({"runId": run, "timeoutMs": limit.as_millis()});
            match self
                .gateway
                .call_within("agent.wait", &params, limit + ANSWER)
                .await
            {
                Ok(end) if is_over(&end) => {
                    let params = json!({"sessionKey": session.key, "limit": HISTORY});
                    let history = self.gateway.call("chat.history", &params).await?;
                    return Ok(End::Waited { end, history });
                }
                Ok(_) if restarted => return Err(Failure::Restarted),
                Ok(_) | Err(Failure::Lost(_) | Failure::Unavailable(_) | Failure::Silent(..)) => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// True for the end of the run; otherwise only the time of the wait is over.
fn is_over(end: &Value) -> bool {
    let status = end["status"].as_str().unwrap_or_default();
    matches!(status, "ok" | "error") || status == "timeout" && !end["endedAt"].is_null()
}

fn of(session: &Session, result: ExecutionResult) -> ExecutionResult {
    ExecutionResult {
        session_id: Some(session.id.clone()),
        ..result
    }
}

/// A run that may have begun; aborted on drop unless it has ended.
struct Begun {
    gateway: Gateway,
    target: Value,
    /// `None` once nothing is left to abort.
    afterwards: Option<TaskTracker>,
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(afterwards) = self.afterwards.take() {
            let (gateway, target) = (self.gateway.clone(), self.target.take());
            afterwards.spawn(async move { abort(&gateway, &target).await });
        }
    }
}

async fn abort(gateway: &Gateway, target: &Value) {
    if let Err(failure) = gateway.call_within("chat.abort", target, ABORT).await {
        tracing::warn!(%failure, "a run could not be aborted");
    }
}
