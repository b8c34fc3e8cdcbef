//! One process of the agent: its start, with a directory of its own, and its greeting. It has no session yet.

use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::child::{Child, Program, StartError};
use forge_adapter_api::folder::{Folder, TempFolder};
use forge_adapter_api::{AdapterError, Host, Result};
use forge_adapter_transport::json_rpc::{
    Incoming, JsonRpc, METHOD_NOT_FOUND, RpcError, Unreadable,
};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::agent::{Agent, PROTOCOL};
use crate::config::Settings;
use crate::launch;
use crate::outcome::{self, End};
use crate::tool_server::ToolSocket;

/// Timeout of each request before the prompt.
pub(crate) const BEGIN_PATIENCE: Duration = Duration::from_secs(60);

/// Dropping it kills the process, then removes its directory.
pub(crate) struct AgentProcess {
    pub(crate) rpc: JsonRpc,
    /// Command, variables and directory of the session; the MCP servers of the dispatch are checked with them.
    pub(crate) program: Program,
    pub(crate) socket: Option<ToolSocket>,
    /// The answer to `initialize`; `None` before it.
    pub(crate) agent: Option<Agent>,
    pub(crate) folder: TempFolder,
}

impl AgentProcess {
    /// Starts the agent under this tag (`<dispatch>/<attempt>`), with `options` before its arguments. `has_tools`: a run can offer the caller's tools.
    pub(crate) fn start(
        host: &Host,
        settings: &Settings,
        tag: &str,
        workspace: Option<Folder>,
        options: &[String],
        has_tools: bool,
    ) -> Result<Self> {
        let instance = host.instance();
        let path = settings.table.program.as_ref();
        let path = path.ok_or_else(|| outcome::unavailable(launch::not_named(instance)))?;
        let folder = host.temp_folder().map_err(|error| internal(&error))?;
        let mut program =
            launch::program(settings, options, path, &folder).map_err(|error| internal(&error))?;
        program.dir = Some(directory(settings, workspace.as_ref(), &folder));
        program.workspace = workspace;
        let socket = has_tools.then(|| ToolSocket::bind(folder.path()));
        let socket = socket.transpose().map_err(|error| internal(&error))?;
        let child = Child::start(host, Some(tag), &program).map_err(|error| match error {
            StartError::Missing(path) => {
                outcome::unavailable(launch::missing(instance, &settings.preset, &path))
            }
            StartError::Start { path, source } => {
                outcome::unavailable(format!("cannot start {}: {source}", path.display()))
            }
        })?;
        Ok(Self {
            rpc: JsonRpc::new(child),
            program,
            socket,
            agent: None,
            folder,
        })
    }

    /// Sets the directory of the session. The process itself stays where it was started.
    pub(crate) fn enter(&mut self, settings: &Settings, workspace: Option<Folder>) {
        let dir = directory(settings, workspace.as_ref(), &self.folder);
        self.program.dir = Some(dir);
        self.program.workspace = workspace;
    }
}

/// Directory of a session: the workspace, else the configured one, else the process's own.
fn directory(settings: &Settings, workspace: Option<&Folder>, own: &TempFolder) -> PathBuf {
    let configured = settings.table.dir.as_deref();
    let dir = workspace.map(Folder::path).or(configured);
    dir.unwrap_or(own.path()).to_owned()
}

/// Initialises the agent, which learns here if it can use the files of a workspace through the adapter.
pub(crate) async fn initialize(
    rpc: &mut JsonRpc,
    has_files: bool,
) -> std::result::Result<Agent, End> {
    let method = "initialize";
    let hello = json!({
        "protocolVersion": PROTOCOL,
        "clientCapabilities": {
            "fs": {"readTextFile": has_files, "writeTextFile": has_files}, "terminal": false,
        },
        "clientInfo": {
            "name": "forge-bridge", "title": "forge-bridge", "version": env!("CARGO_PKG_VERSION"),
        },
    });
    let asked = rpc.request(method, hello);
    let answered = async {
        loop {
            match answer(rpc).await? {
                (id, outcome) if id == asked => {
                    return outcome.map_err(|error| End::Refused(method, error));
                }
                _ => {}
            }
        }
    };
    let answered = timeout(BEGIN_PATIENCE, answered).await;
    let answer = answered.unwrap_or_else(|_| Err(late(method)))?;
    Agent::read(&answer).map_err(End::Garbled)
}

/// Waits until the process ends or violates the protocol.
pub(crate) async fn ended(rpc: &mut JsonRpc) -> End {
    loop {
        if let Err(end) = answer(rpc).await {
            return end;
        }
    }
}

/// The next answer of an agent without a session. Its requests are refused.
async fn answer(
    rpc: &mut JsonRpc,
) -> std::result::Result<(u64, std::result::Result<Value, RpcError>), End> {
    loop {
        match received(rpc.next().await)? {
            Incoming::Answer { id, outcome } => return Ok((id, outcome)),
            Incoming::Request { id, method, .. } => refuse(rpc, &id, &method),
            Incoming::Notification { .. } => {}
        }
    }
}

pub(crate) fn received(
    message: Option<std::result::Result<Incoming, Unreadable>>,
) -> std::result::Result<Incoming, End> {
    match message {
        None => Err(End::Lost("the agent ended without an answer".to_owned())),
        Some(Err(unreadable)) => Err(End::Garbled(format!("the agent wrote {unreadable}"))),
        Some(Ok(message)) => Ok(message),
    }
}

pub(crate) fn refuse(rpc: &mut JsonRpc, id: &Value, method: &str) {
    rpc.refuse(
        id,
        METHOD_NOT_FOUND,
        &format!("there is no method {method}"),
    );
}

pub(crate) fn late(method: &str) -> End {
    let seconds = BEGIN_PATIENCE.as_secs();
    End::Lost(format!("{method} was not answered within {seconds} s"))
}

/// Stops the process; adds its exit status and the end of its stderr if they are the reason. It is killed after the
/// timeout.
pub(crate) async fn stop(rpc: &mut JsonRpc, end: End, patience: Duration) -> End {
    let stopped = rpc.stop(patience).await;
    match end {
        End::Lost(reason) => {
            let status =
                stopped.map_or_else(|error| error.to_string(), |status| status.to_string());
            let tail = rpc.stderr_tail();
            let colon = if tail.is_empty() { "" } else { ": " };
            End::Lost(format!("{reason} ({status}){colon}{tail}"))
        }
        end => end,
    }
}

pub(crate) fn internal(error: &std::io::Error) -> AdapterError {
    AdapterError::new("internal", format!("cannot prepare the run: {error}")).retryable()
}
