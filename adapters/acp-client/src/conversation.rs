//! The conversation with one agent process: opens a session, sends the prompt, handles the agent's requests and
//! updates.

use std::sync::atomic::Ordering;
use std::time::Duration;

use forge_adapter_api::child::Program;
use forge_adapter_api::{AdapterError, AdapterEvent, Events, ExecutionRequest, Run};
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::deadline::at;
use forge_adapter_transport::json_rpc::{INTERNAL_ERROR, Incoming, JsonRpc, RpcError, Unreadable};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::AcpClient;
use crate::agent::Agent;
use crate::choices::{Choice, Choices, MODE, MODEL};
use crate::files;
use crate::launch::{self, Session};
use crate::mcp_probe::{self, Probe};
use crate::meter::Meter;
use crate::mode;
use crate::outcome::{AUTH_REQUIRED, End};
use crate::policy::{self, Decision, Policy};
use crate::process::{self, BEGIN_PATIENCE};
use crate::tool_server::ToolServer;
use crate::transcript::Transcript;

/// Time for a cancelled turn to end.
const CANCEL_PATIENCE: Duration = Duration::from_secs(2);
/// Silence after the answer to a prompt that ends the turn: some agents answer before their last updates.
const QUIET: Duration = Duration::from_millis(200);
/// Longest wait for that silence.
const QUIET_PATIENCE: Duration = Duration::from_secs(2);

/// Phase of the conversation; decides how updates are handled.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The session is being opened; updates are its history.
    Beginning,
    Turn,
    /// The turn is being cancelled; permission requests are answered as cancelled.
    Cancelling,
}

pub(crate) struct Conversation<'a> {
    pub(crate) rpc: JsonRpc,
    policy: Policy,
    /// Server of the caller's tools; `None` without tools.
    pub(crate) desk: Option<ToolServer>,
    pub(crate) transcript: Transcript,
    pub(crate) agent: Agent,
    pub(crate) session: Option<String>,
    phase: Phase,
    /// True if the agent sent history while loading the session.
    has_history: bool,
    events: &'a Events,
    run: &'a Run,
}

impl<'a> Conversation<'a> {
    pub(crate) fn new(
        rpc: JsonRpc,
        policy: Policy,
        desk: Option<ToolServer>,
        events: &'a Events,
        run: &'a Run,
    ) -> Self {
        Self {
            rpc,
            policy,
            desk,
            transcript: Transcript::new(Meter::of_new_session(), None),
            agent: Agent::default(),
            session: None,
            phase: Phase::Beginning,
            has_history: false,
            events,
            run,
        }
    }

    /// Opens a new session, or loads `session`. `greeted` is the agent of a process that is initialised already.
    pub(crate) async fn begin(
        &mut self,
        adapter: &AcpClient,
        request: &ExecutionRequest,
        session: Option<&str>,
        program: &Program,
        greeted: Option<Agent>,
    ) -> Result<Session, End> {
        let has_files = self.policy.workspace.is_some();
        let probe = Probe {
            host: &adapter.host,
            execution: &request.execution_id,
            agent: program,
        };
        let greeting = async {
            match greeted {
                Some(agent) => Ok(agent),
                None => process::initialize(&mut self.rpc, has_files).await,
            }
        };
        let probing = async { Ok(mcp_probe::unavailable(&probe, &request.mcp_servers).await) };
        let (agent, missing) = tokio::select! {
            both = async { tokio::try_join!(greeting, probing) } => both?,
            () = self.run.cancelled() => return Err(End::Cancelled),
        };
        self.agent = agent;
        let mut servers =
            launch::servers(&request.mcp_servers, &self.agent).map_err(End::Impossible)?;
        self.report(&missing, request.mcp_required).await?;
        servers.extend(self.desk.as_ref().map(ToolServer::server));
        let permission = self.policy.permission;
        let mut opening = json!({"cwd": program.dir, "mcpServers": servers});
        if let Some(meta) = self.agent.session_meta(permission) {
            opening["_meta"] = meta;
        }
        let (kind, opened) = match session {
            None => {
                let opened = self.ask("session/new", opening).await;
                let opened = opened.map_err(|end| with_logins(end, &self.agent))?;
                self.session = opened["sessionId"].as_str().map(str::to_owned);
                (Session::New, opened)
            }
            Some(id) => {
                if !self.agent.loads_sessions {
                    let text = "the agent cannot resume a session";
                    return Err(End::Impossible(text.to_owned()));
                }
                let mark = adapter.marks().get(id);
                self.transcript = Transcript::new(Meter::of_resumed_session(mark), None);
                self.session = Some(id.to_owned());
                opening["sessionId"] = id.into();
                (Session::Loaded, self.load(id, opening).await?)
            }
        };
        let Some(id) = self.session.clone() else {
            return Err(End::Garbled(
                "the agent opened a session without an id".to_owned(),
            ));
        };
        let table = &adapter.settings.table;
        let models = Choices::read(&MODEL, &opened);
        self.transcript.model.clone_from(&models.current);
        if let Some(wanted) = request.model.as_ref().or(table.model.as_ref()) {
            let chosen = models.choose(&id, wanted).map_err(End::Impossible)?;
            if let Some(value) = self.choose(chosen).await? {
                self.transcript.model = Some(value);
            }
        }
        let modes = Choices::read(&MODE, &opened);
        let wanted = mode::wanted(&modes, table.mode.as_deref());
        adapter.unasked.store(wanted.is_none(), Ordering::Relaxed);
        let chosen = match wanted {
            Some(wanted) => modes.choose(&id, wanted).map_err(End::Impossible)?,
            None => Choice::Nothing,
        };
        mode::check(permission, mode::after(&modes, &chosen)).map_err(End::Unguarded)?;
        self.choose(chosen).await?;
        let updated = AdapterEvent::new("session.updated").with(json!({
            "sessionId": id, "model": self.transcript.model,
            "runtime": self.agent.name, "runtimeVersion": self.agent.version,
        }));
        self.events.send(updated).await;
        Ok(kind)
    }

    /// Emits an event for each MCP server that is not available; returns an error if they are required.
    async fn report(&self, missing: &[(String, String)], required: bool) -> Result<(), End> {
        for (server, reason) in missing {
            let event = AdapterEvent::new("exec.progress").with(json!({
                "kind": "mcp_server_unavailable", "server": server, "reason": reason,
            }));
            self.events.send(event).await;
        }
        match missing.first() {
            Some((server, reason)) if required => Err(End::NoServer(format!(
                "MCP server {server:?} is not available: {reason}"
            ))),
            Some(_) | None => Ok(()),
        }
    }

    /// Makes a choice; returns the value if it was not current already.
    async fn choose(&mut self, choice: Choice) -> Result<Option<String>, End> {
        match choice {
            Choice::Nothing => Ok(None),
            Choice::Ask {
                method,
                params,
                value,
            } => {
                self.ask(method, params).await?;
                Ok(Some(value))
            }
        }
    }

    async fn load(&mut self, id: &str, opening: Value) -> Result<Value, End> {
        let unknown = |why: &str| End::NoSession(format!("the agent has no session {id:?}{why}"));
        match self.ask("session/load", opening).await {
            // Some agents answer `session/load` of an unknown session with an empty result and no history.
            Ok(opened) if is_empty(&opened) && !self.has_history => Err(unknown("")),
            Err(End::Refused(_, error)) if !is_login(&error) => {
                Err(unknown(&format!(": {}", error.message)))
            }
            other => other,
        }
    }

    /// Sends a request and handles incoming messages until its answer arrives.
    async fn ask(&mut self, method: &'static str, params: Value) -> Result<Value, End> {
        let asked = self.rpc.request(method, params);
        let limit = Instant::now() + BEGIN_PATIENCE;
        loop {
            let message = tokio::select! {
                message = self.rpc.next() => message,
                () = self.run.cancelled() => return Err(End::Cancelled),
                () = sleep_until(limit) => return Err(process::late(method)),
            };
            if let Some(outcome) = self.attend(message, asked).await? {
                return outcome.map_err(|error| End::Refused(method, error));
            }
        }
    }

    /// Sends the prompt and forwards the agent's updates until the turn ends.
    pub(crate) async fn turn(
        &mut self,
        prompt: Vec<Value>,
        attachments: &Attachments,
    ) -> Result<End, AdapterError> {
        self.phase = Phase::Turn;
        let session = self.session.clone();
        let params = json!({"sessionId": session, "prompt": prompt});
        let (asked, message) = self.rpc.draft("session/prompt", &params);
        let message = attachments.fill(&message).await?;
        self.rpc.send_text(&message);
        drop(message);
        Ok(self.follow(asked, session).await)
    }

    async fn follow(&mut self, asked: u64, session: Option<String>) -> End {
        let mut limit = None;
        loop {
            let message = tokio::select! {
                message = self.rpc.next() => message,
                () = self.run.cancelled(), if limit.is_none() => {
                    self.phase = Phase::Cancelling;
                    limit = Some(Instant::now() + CANCEL_PATIENCE);
                    self.rpc.notify("session/cancel", json!({"sessionId": session}));
                    continue;
                }
                () = at(limit) => return End::Cancelled,
            };
            let end = match self.attend(message, asked).await {
                Ok(None) => continue,
                Ok(Some(Ok(answer))) => match self.late_updates(asked).await {
                    Ok(()) => {
                        self.transcript.meter.turn_ends(&answer);
                        End::Turn(answer)
                    }
                    Err(end) => end,
                },
                Ok(Some(Err(error))) => End::Refused("session/prompt", error),
                Err(end) => end,
            };
            return match self.phase {
                Phase::Cancelling => End::Cancelled,
                Phase::Beginning | Phase::Turn => end,
            };
        }
    }

    /// Handles what the agent sends behind its answer to the prompt. The end of its output is no failure any more.
    async fn late_updates(&mut self, asked: u64) -> Result<(), End> {
        let limit = Instant::now() + QUIET_PATIENCE;
        loop {
            let quiet = Instant::now() + QUIET;
            let message = tokio::select! {
                message = self.rpc.next() => message,
                () = self.run.cancelled() => return Ok(()),
                () = sleep_until(quiet.min(limit)) => return Ok(()),
            };
            let Some(Ok(_)) = &message else {
                return Ok(());
            };
            self.attend(message, asked).await?;
        }
    }

    /// Handles one message; returns the outcome if the message answers the request `asked`.
    async fn attend(
        &mut self,
        message: Option<Result<Incoming, Unreadable>>,
        asked: u64,
    ) -> Result<Option<Result<Value, RpcError>>, End> {
        match process::received(message)? {
            Incoming::Answer { id, outcome } => Ok((id == asked).then_some(outcome)),
            Incoming::Request { id, method, params } => {
                self.serve(&id, &method, params).await;
                Ok(None)
            }
            Incoming::Notification { method, params } => {
                if method == "session/update" {
                    self.updated(&params).await?;
                }
                Ok(None)
            }
        }
    }

    async fn updated(&mut self, params: &Value) -> Result<(), End> {
        // Updates of other sessions, such as subagents', are ignored.
        if self.session.is_some() && params["sessionId"].as_str() != self.session.as_deref() {
            return Ok(());
        }
        let update = &params["update"];
        match self.phase {
            Phase::Beginning => {
                self.transcript.meter.before_the_turn(update);
                self.has_history |= update["sessionUpdate"]
                    .as_str()
                    .is_some_and(|kind| kind.ends_with("_message_chunk"));
            }
            Phase::Turn | Phase::Cancelling => {
                let mut events = self.transcript.update(update);
                if self.phase == Phase::Cancelling && !self.agent.bills_cancelled_turns() {
                    events.retain(|event| event.kind != "usage");
                }
                self.tell(events).await;
                let options = Choices::of_options(&MODE, &update["configOptions"]);
                let option = options.and_then(|modes| modes.current);
                let mode = update["currentModeId"].as_str().or(option.as_deref());
                mode::check(self.policy.permission, mode).map_err(End::Unguarded)?;
            }
        }
        Ok(())
    }

    /// Answers a request of the agent.
    async fn serve(&mut self, id: &Value, method: &str, params: Value) {
        match (method, self.policy.workspace.clone()) {
            ("session/request_permission", _) => {
                let answer = self.permission(&params).await;
                self.rpc.answer(id, answer);
            }
            ("fs/read_text_file" | "fs/write_text_file", Some(workspace)) => {
                let method = method.to_owned();
                let asked = move || files::answer(&workspace, &method, &params);
                match tokio::task::spawn_blocking(asked).await {
                    Ok(Ok(answer)) => self.rpc.answer(id, answer),
                    Ok(Err(error)) => self.rpc.refuse(id, error.code, &error.message),
                    Err(error) => {
                        let text = format!("it failed: {error}");
                        self.rpc.refuse(id, INTERNAL_ERROR, &text);
                    }
                }
            }
            (_, _) => process::refuse(&mut self.rpc, id, method),
        }
    }

    /// Emits events, except those of the caller's tools, which the bridge emits itself.
    async fn tell(&self, events: Vec<AdapterEvent>) {
        for event in events {
            let tool = event.data.as_ref().and_then(|data| data["name"].as_str());
            let desk = self.desk.as_ref();
            if !tool.is_some_and(|tool| desk.is_some_and(|desk| desk.is_offered(tool))) {
                self.events.send(event).await;
            }
        }
    }

    async fn permission(&mut self, params: &Value) -> Value {
        if self.phase == Phase::Cancelling {
            return policy::cancelled();
        }
        let call = &params["toolCall"];
        let events = self.transcript.asked(call);
        self.tell(events).await;
        let decision = self.policy.decide(call);
        let decided = AdapterEvent::new("exec.progress").with(json!({
            "kind": "permission", "toolCallId": call["toolCallId"], "title": call["title"],
            "allowed": decision == Decision::Allowed,
        }));
        self.events.send(decided).await;
        policy::answer(&params["options"], decision)
    }
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// Adds the agent's login methods to the error of a request refused for lack of a login.
fn with_logins(end: End, agent: &Agent) -> End {
    match end {
        End::Refused(method, mut error) if is_login(&error) && !agent.logins.is_empty() => {
            error.message = format!("{} ({})", error.message, agent.logins.join("; "));
            End::Refused(method, error)
        }
        end => end,
    }
}

fn is_login(error: &RpcError) -> bool {
    error.code == AUTH_REQUIRED
}
