//! One execution from dispatch to result: finds the thread and the assistant, creates a run, follows it and reads its
//! final state.

use std::time::Duration;

use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Result, Run,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::assistants::Assistants;
use crate::follow::follow;
use crate::input::{self, Beginning, DISPATCH, Wishes, body};
use crate::outcome::{End, outcome};
use crate::server::{RunId, RunStatus, Server};
use crate::settings::{OnCancel, Settings};
use crate::thread::{Session, State};
use crate::transcript::Transcript;

/// Timeout for a cancel request to the server.
const CANCEL_PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Execution<'a> {
    pub(crate) server: &'a Server,
    pub(crate) settings: &'a Settings,
    pub(crate) request: &'a ExecutionRequest,
    pub(crate) events: &'a Events,
    pub(crate) cancel: &'a Run,
    /// Tasks that outlive a dropped execution, such as cancelling its run.
    pub(crate) afterwards: &'a TaskTracker,
}

impl Execution<'_> {
    pub(crate) async fn run(&self) -> Result<ExecutionResult> {
        let session = Session::of(self.request);
        let prepared = tokio::select! {
            prepared = self.prepare(&session) => prepared?,
            () = self.cancel.cancelled() => return Err(AdapterError::cancelled()),
        };
        let Prepared {
            assistant,
            before,
            begun,
        } = prepared;
        let tools = self.request.tools.iter().map(|tool| tool.name.clone());
        // On resume, the work of the interrupted attempt counts as this attempt's.
        let own = match self.request.resume && self.request.turns.is_empty() {
            true => Some(input::message_id(self.request, &session)),
            false => None,
        };
        let known = before.message_ids_until(own.as_deref());
        let mut transcript = Transcript::new(known, tools);
        let followed = follow(
            self.server,
            &begun.run,
            self.settings.table.reconnects,
            &mut transcript,
            self.events,
            self.cancel,
        )
        .await;
        let end = match followed {
            Ok(end @ End::Over(_)) => {
                begun.ended();
                end
            }
            Ok(End::Cancelled) => {
                begun.cancel().await;
                End::Cancelled
            }
            // `begun` is dropped here, which cancels the run.
            Err(error) => return Ok(self.lost(transcript, error, &session)),
        };
        let state = match self.server.state(session.thread).await {
            Ok(state) => State::new(state),
            // Text received so far is still the result of a run that was cancelled here.
            Err(_) if end == End::Cancelled => State::default(),
            Err(failure) => return Ok(self.lost(transcript, failure.into(), &session)),
        };
        let shape = self.settings.shape(&assistant);
        Ok(outcome(
            transcript,
            end,
            &state,
            shape,
            self.request,
            &session,
        ))
    }

    async fn prepare(&self, session: &Session) -> Result<Prepared> {
        let request = self.request;
        let wishes = wishes(request)?;
        let assistants = Assistants {
            server: self.server,
            settings: self.settings,
        };
        let assistant = match &wishes.assistant_id {
            Some(id) => id.clone(),
            None => assistants.of_agent(&request.agent_id).await?,
        };
        let before = State::new(self.server.state(session.thread).await?);
        let earlier = self.earlier(session).await?;
        let run = match earlier {
            Some(run) if self.goes_on(&run).await? => run,
            earlier => {
                let beginning = match earlier {
                    Some(_) if before.is_unfinished() && before.interrupts().is_empty() => {
                        Beginning::Checkpoint
                    }
                    Some(_) | None => Beginning::Input,
                };
                let body = body(
                    self.settings,
                    request,
                    &wishes,
                    &assistant,
                    session,
                    &before,
                    beginning,
                );
                self.create(session, body).await?
            }
        };
        let begun = Begun {
            server: self.server.clone(),
            run,
            action: self.settings.table.on_cancel,
            afterwards: Some(self.afterwards.clone()),
        };
        let known = AdapterEvent::new("session.updated").with(json!({
            "sessionId": session.id, "threadId": session.thread.to_string(),
            "runId": begun.run.run.to_string(),
            "assistantId": assistant,
        }));
        self.events.send(known).await;
        Ok(Prepared {
            assistant,
            before,
            begun,
        })
    }

    /// Returns the run that an earlier attempt created and did not end. If the run cannot be continued it is cancelled
    /// here, because it would keep the thread busy.
    async fn earlier(&self, session: &Session) -> Result<Option<RunId>> {
        let request = self.request;
        if request.attempt < 2 || !request.turns.is_empty() {
            return Ok(None);
        }
        let dispatch = input::dispatch(request);
        let found = self.server.find_run(session.thread, DISPATCH, dispatch);
        let Some(run) = found.await? else {
            return Ok(None);
        };
        if request.resume {
            return Ok(Some(run));
        }
        match self.server.status(&run).await? {
            RunStatus::Pending | RunStatus::Running => {
                end(self.server, &run, self.settings.table.on_cancel).await;
            }
            RunStatus::Success
            | RunStatus::Error
            | RunStatus::Interrupted
            | RunStatus::Timeout
            | RunStatus::Gone => {}
        }
        Ok(None)
    }

    /// Returns true if an earlier attempt's run is active or has succeeded in the meantime.
    async fn goes_on(&self, run: &RunId) -> Result<bool> {
        Ok(match self.server.status(run).await? {
            RunStatus::Pending | RunStatus::Running | RunStatus::Success => true,
            RunStatus::Error | RunStatus::Interrupted | RunStatus::Timeout | RunStatus::Gone => {
                false
            }
        })
    }

    /// Creates the run in a task that completes even if the execution is dropped: only the response has the run's id,
    /// which is needed to cancel it.
    async fn create(&self, session: &Session, body: Value) -> Result<RunId> {
        let (sender, made) = oneshot::channel();
        let (server, thread) = (self.server.clone(), session.thread);
        let action = self.settings.table.on_cancel;
        self.afterwards.spawn(async move {
            let created = server.create_run(thread, &body).await;
            if let Err(Ok(run)) = sender.send(created) {
                end(&server, &run, action).await;
            }
        });
        made.await
            .map_err(|_| AdapterError::new("internal", "the request for a run was dropped"))?
    }

    /// Result of a run that could not be followed to its end; text and usage received so far are kept.
    fn lost(
        &self,
        transcript: Transcript,
        error: AdapterError,
        session: &Session,
    ) -> ExecutionResult {
        ExecutionResult {
            output: Some(transcript.last_text).filter(|text| !text.is_empty()),
            usage: transcript.meter.usage(),
            model: transcript.model,
            model_provider: transcript.model_provider,
            session_id: Some(session.id.clone()),
            ..error.into()
        }
    }
}

struct Prepared {
    assistant: String,
    before: State,
    begun: Begun,
}

/// A started run; cancelled on drop unless it has ended, so an abandoned execution leaves no run active.
struct Begun {
    server: Server,
    run: RunId,
    action: OnCancel,
    /// `None` once nothing is left to clean up.
    afterwards: Option<TaskTracker>,
}

impl Begun {
    fn ended(mut self) {
        self.afterwards = None;
    }

    async fn cancel(mut self) {
        end(&self.server, &self.run, self.action).await;
        self.afterwards = None;
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        if let Some(afterwards) = self.afterwards.take() {
            let (server, run, action) = (self.server.clone(), self.run.clone(), self.action);
            afterwards.spawn(async move { end(&server, &run, action).await });
        }
    }
}

async fn end(server: &Server, run: &RunId, action: OnCancel) {
    match timeout(CANCEL_PATIENCE, server.cancel(run, action)).await {
        Ok(Ok(())) => {}
        // Logged only: the execution ends regardless.
        Ok(Err(failure)) => {
            tracing::warn!(run.id = %run.run, %failure, "a run could not be cancelled");
        }
        Err(_) => {
            tracing::warn!(run.id = %run.run, "the server did not confirm the cancellation of a run in time");
        }
    }
}

fn wishes(request: &ExecutionRequest) -> Result<Wishes> {
    let metadata = request.metadata.as_ref();
    let Some(wishes) = metadata.and_then(|metadata| metadata.get("langgraph")) else {
        return Ok(Wishes::default());
    };
    serde_json::from_value(wishes.clone()).map_err(|error| {
        AdapterError::new("invalid_request", format!("metadata.langgraph: {error}"))
    })
}
