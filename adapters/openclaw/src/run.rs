//! One execution: finds the agent, prepares the session, starts or joins the run, follows it to its end.

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, OutputStrategy, Result,
    Run,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tokio_util::task::TaskTracker;

use crate::frame::Failure;
use crate::gateway::Gateway;
use crate::health::{self, Facts, list};
use crate::link::Hello;
use crate::outcome::{self, End, said};
use crate::past::{Past, past};
use crate::progress::{self, Begun, Progress, abort};
use crate::session::{self, Session};
use crate::settings::{AGENT_IDS, Settings, is_agent_id};
use crate::transcript::Transcript;

/// Wait for a connection that is being made again, before an execution fails.
const CONNECT: Duration = Duration::from_secs(5);
/// Time of one `agent.wait`, and more for its answer.
const WAIT: Duration = Duration::from_secs(20);
const ANSWER: Duration = Duration::from_secs(10);
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
        // After the limit, the first request fails with the reason.
        let _ = timeout(CONNECT, self.gateway.up()).await;
        if request.requires.iter().any(|name| name == "sandboxing")
            && !health::look(self.facts, self.gateway).await?.is_sandboxed
        {
            return Err(AdapterError::new("sandbox_unavailable", NO_SANDBOX));
        }
        let mut session = Session::of(request, self.agent()?);
        // Numbers of earlier attempts repeat the failures of their runs, without a new run.
        let most = request.attempt + STARTS;
        let (mut number, mut repeats) = (1, 0);
        let mut progress = Progress::new(request.attempt > 1);
        loop {
            let run = session::run_id(request, number);
            let mut transcript = Transcript::default();
            let ended = self
                .follow(&session, &run, &mut transcript, &progress)
                .await;
            // An earlier attempt ended its run.
            let is_repeated = request.attempt > 1 && !progress.is_accepted();
            let failure = match ended {
                Ok(End { answer, .. })
                    if answer["stopReason"] == "rpc" && is_repeated && number < most =>
                {
                    number += 1;
                    progress = Progress::new(true);
                    continue;
                }
                Ok(end) => return Ok(of(&session, outcome::result(&end, &transcript))),
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
                Failure::Refused(refusal) if refusal.is_race() && repeats < STARTS => {
                    repeats += 1;
                    sleep(START_AGAIN).await;
                    continue;
                }
                Failure::Refused(refusal) if refusal.message.contains("superseded") => {
                    sleep(START_AGAIN).await;
                    true
                }
                Failure::Refused(_) => is_repeated,
                _ => false,
            };
            if self.cancel.is_cancelled() {
                let end = outcome::unconfirmed();
                return Ok(of(&session, outcome::result(&end, &transcript)));
            }
            if !is_again || number == most {
                return Ok(of(&session, outcome::refused(failure, &transcript)));
            }
            number += 1;
            progress = Progress::new(true);
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
        progress: &Progress,
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
        let mut events = self.gateway.events_of(run, &session.key);
        let mut begun = Begun {
            gateway: self.gateway,
            target: || progress.target(session, run),
            afterwards: Some(self.afterwards),
        };
        let mut ended = pin!(async {
            let end = self.end(session, run, progress).await?;
            self.settle(session, run, progress, end).await
        });
        let mut aborted = pin!(async {
            self.cancel.cancelled().await;
            abort(self.gateway, &progress.target(session, run)).await;
            sleep(progress::ABORT).await;
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
                () = &mut aborted => break Ok(outcome::unconfirmed()),
            }
        };
        // A run that was never acknowledged can have begun.
        if !matches!(ended, Err(Failure::Silent(..))) {
            begun.afterwards = None;
        }
        ended
    }

    /// Waits for the end of the run. Without a connection the run goes on; the request itself can be repeated, since
    /// the gateway starts no second run for its key unless it was restarted.
    async fn end(&self, session: &Session, run: &str, progress: &Progress) -> Result<End, Failure> {
        let params = self.params(session, run);
        loop {
            let mut is_interrupted = false;
            if progress.has_past() {
                let history = self.history(&session.key).await?;
                match past(run, &history) {
                    Past::Unknown => {}
                    Past::Interrupted => is_interrupted = true,
                    Past::ContinuedBy(other) => {
                        progress.continue_by(&other);
                        let boot = self.gateway.up().await.boot;
                        match self.wait(session, &[run, &other], &boot).await? {
                            Some(end) => return Ok(end),
                            None => continue,
                        }
                    }
                    Past::Ended(answer) => return Ok(waited(answer, &history, &[run])),
                }
            }
            let mut answers = self.gateway.send("agent", &params).await?;
            let Hello { boot, tick, .. } = answers.hello().clone();
            let must_wait = loop {
                match timeout(tick, answers.next()).await {
                    Ok(Ok(answer)) if answer["status"] == "accepted" => progress.accept(),
                    Ok(Ok(answer)) if answer["status"] == "in_flight" => {
                        progress.accept();
                        break true;
                    }
                    // The answer has the usage of the time since the restart only.
                    Ok(Ok(_)) if is_interrupted && self.is_over(run).await => break true,
                    Ok(Ok(answer)) => return Ok(answer.into()),
                    Ok(Err(Failure::Lost(_))) => break progress.is_accepted(),
                    Ok(Err(failure)) => return Err(failure),
                    Err(_) if !progress.is_accepted() => {
                        return Err(Failure::Silent("agent", tick));
                    }
                    // The last answer can be lost.
                    Err(_) if self.is_over(run).await => break true,
                    Err(_) => {}
                }
            };
            if must_wait && let Some(end) = self.wait(session, &[run], &boot).await? {
                return Ok(end);
            }
            self.gateway.up().await;
            progress.expect_past();
        }
    }

    pub(crate) async fn history(&self, session_key: &str) -> Result<Value, Failure> {
        let params = json!({"sessionKey": session_key, "limit": HISTORY});
        self.gateway.call("chat.history", &params).await
    }

    async fn is_over(&self, run: &str) -> bool {
        let params = json!({"runId": run, "timeoutMs": 0});
        let end = self.gateway.call("agent.wait", &params).await;
        end.is_ok_and(|end| is_over(&end))
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

    /// Waits for the last of these runs, which this connection did not start; `None` if the gateway was restarted since
    /// this boot and does not know it any more. The result is that of all.
    async fn wait(
        &self,
        session: &Session,
        runs: &[&str],
        boot: &str,
    ) -> Result<Option<End>, Failure> {
        let run = runs.last();
        loop {
            let is_restarted = self.gateway.up().await.boot != boot;
            let limit = if is_restarted { Duration::ZERO } else { WAIT };
            let params = json!({"runId": run, "timeoutMs": limit.as_millis()});
            match self
                .gateway
                .call_within("agent.wait", &params, limit + ANSWER)
                .await
            {
                Ok(answer) if is_over(&answer) => {
                    let history = self.history(&session.key).await?;
                    return Ok(Some(waited(answer, &history, runs)));
                }
                Ok(_) if is_restarted => return Ok(None),
                Ok(_) => {}
                Err(failure) if failure.is_passing() => {}
                Err(failure) => return Err(failure),
            }
        }
    }
}

/// The end of runs whose answer has no usage.
fn waited(answer: Value, history: &Value, runs: &[&str]) -> End {
    End {
        messages: said(list(&history["messages"]), |run| runs.contains(&run)),
        ..answer.into()
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
