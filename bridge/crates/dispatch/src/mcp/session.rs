//! MCP servers of one execution: their tools under bridge-wide names, and tool calls.

use std::collections::HashMap;
use std::time::Duration;

use forge_adapter_api::request::Tool;
use rmcp::model::{
    CallToolRequestParams, ClientCapabilities, ClientConfig, Implementation, PaginatedRequestParams,
};
use rmcp::service::{RunningService, ServiceError, ServiceExt};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleClient, model};
use serde_json::Value;
use tokio::time::timeout;

use forge_process::program::{Purpose, RunningProgram};

use super::{Endpoint, Error, Setup, answer};

/// Maximum number of tools of one server. More is a mistake, and no model could choose among them.
const MOST_TOOLS: usize = 512;
/// Maximum length of one message line from a program, in bytes.
const LINE_BYTES: usize = 16 * 1024 * 1024;
/// Time for the transport to close.
const GOODBYE: Duration = Duration::from_secs(1);

/// Connected servers. Dropping it kills them at once; `close` ends them in order.
pub struct Session {
    connections: Vec<Connection>,
    tools: Vec<Tool>,
    /// Servers that could not be connected, with reasons; empty if all are required.
    pub missing: Vec<(String, String)>,
    /// Origin of each tool, by its name in `tools`.
    origins: HashMap<String, Origin>,
    call_timeout: Duration,
    result_bytes: usize,
}

struct Connection {
    name: String,
    service: RunningService<RoleClient, ClientConfig>,
    program: Option<RunningProgram>,
}

struct Origin {
    /// Index into `connections`.
    connection: usize,
    /// Tool name at the server.
    tool: String,
}

/// Result of a tool call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    pub output: Value,
    pub is_error: bool,
}

impl Answer {
    pub(super) fn failed(reason: impl Into<String>) -> Self {
        Self {
            output: Value::String(reason.into()),
            is_error: true,
        }
    }
}

impl Session {
    pub(super) async fn open(
        setup: &Setup,
        named: Vec<(&str, &Endpoint)>,
        purpose: Purpose<'_>,
    ) -> Result<Self, Error> {
        let mut session = Self {
            connections: Vec::new(),
            tools: Vec::new(),
            missing: Vec::new(),
            origins: HashMap::new(),
            call_timeout: setup.config.call_timeout,
            result_bytes: setup.config.result_bytes,
        };
        for (name, endpoint) in named {
            // An execution name per server, so that cleanup after one program does not affect the others.
            let purpose = Purpose {
                execution: &format!("{}/mcp/{name}", purpose.execution),
                ..purpose
            };
            let (connection, tools) = match connect(setup, name, endpoint, purpose).await {
                Ok(connected) => connected,
                Err(error) if setup.config.required => return Err(error),
                Err(error) => {
                    session.missing.push((name.to_owned(), error.to_string()));
                    continue;
                }
            };
            session.connections.push(connection);
            session.offer(name, tools);
        }
        Ok(session)
    }

    fn offer(&mut self, server: &str, tools: Vec<model::Tool>) {
        let connection = self.connections.len() - 1;
        for tool in tools {
            let name = format!("{}{}", prefix(server), tool.name);
            let origin = Origin {
                connection,
                tool: tool.name.into_owned(),
            };
            // A tool that the server lists twice is added once.
            if self.origins.insert(name.clone(), origin).is_none() {
                self.tools.push(Tool {
                    name,
                    description: tool.description.map(Into::into),
                    input_schema: Value::Object((*tool.input_schema).clone()),
                });
            }
        }
    }

    /// Tools of all servers, named `mcp__<server>__<tool>`.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// True if this tool belongs to one of the servers.
    pub fn owns(&self, tool: &str) -> bool {
        self.origins.contains_key(tool)
    }

    /// Calls one tool. Every failure is returned as an answer with `is_error`, so the model can continue.
    pub async fn call(&self, tool: &str, input: &Value) -> Answer {
        let Some(origin) = self.origins.get(tool) else {
            return Answer::failed(format!("unknown tool {tool:?}"));
        };
        let mut params = CallToolRequestParams::new(origin.tool.clone());
        match input {
            Value::Object(arguments) => params = params.with_arguments(arguments.clone()),
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Answer::failed("tool arguments must be a JSON object");
            }
        }
        let Connection { name, service, .. } = &self.connections[origin.connection];
        let limit = self.call_timeout;
        match timeout(limit, Box::pin(service.call_tool(params))).await {
            Ok(Ok(result)) => answer::of(result, self.result_bytes),
            Ok(Err(error)) => {
                let reason = reason(&error);
                tracing::warn!(mcp.server = %name, "call of {tool} failed: {reason}");
                Answer::failed(format!("MCP server {name:?}: {reason}"))
            }
            Err(_) => {
                tracing::warn!(mcp.server = %name, "call of {tool} timed out after {limit:?}");
                Answer::failed(format!(
                    "MCP server {name:?} gave no answer within {limit:?}"
                ))
            }
        }
    }

    /// Closes the servers in order; one that does not end is killed.
    pub async fn close(self) {
        let each = self.connections.into_iter().map(Connection::close);
        futures_util::future::join_all(each).await;
    }
}

impl Connection {
    async fn close(mut self) {
        // A transport that does not close is dropped; its program is ended below.
        let _ = self.service.close_with_timeout(GOODBYE).await;
        if let Some(program) = self.program.take() {
            program.end().await;
        }
    }
}

/// Prefix of a server's tool names.
pub(crate) fn prefix(server: &str) -> String {
    format!("mcp__{server}__")
}

async fn connect(
    setup: &Setup,
    name: &str,
    endpoint: &Endpoint,
    purpose: Purpose<'_>,
) -> Result<(Connection, Vec<model::Tool>), Error> {
    let limit = setup.config.start_timeout;
    let name = name.to_owned();
    let (transport, mut program) = match endpoint {
        Endpoint::Program(program) => {
            let started = setup.launcher.start(program, purpose);
            let (running, stdout, stdin) = started.map_err(|error| Error::Start {
                name: name.clone(),
                reason: error.to_string(),
            })?;
            (Transport::Stdio(stdout, stdin), Some(running))
        }
        Endpoint::Url(remote) => {
            let transport = remote.transport(&setup.client, purpose.traceparent);
            let refused = |reason| Error::Refused {
                name: name.clone(),
                reason,
            };
            (Transport::Http(transport.map_err(refused)?), None)
        }
    };
    let ready = timeout(limit, Box::pin(introduce(&name, transport))).await;
    let said = match (&ready, &mut program) {
        (Ok(Ok(_)), _) | (_, None) => String::new(),
        (Ok(Err(_)) | Err(_), Some(program)) => program.last_words().await,
    };
    match ready {
        Ok(Ok((service, tools))) => Ok((
            Connection {
                name,
                service,
                program,
            },
            tools,
        )),
        Ok(Err(error)) => Err(error.with(&said)),
        Err(_) => Err(Error::Late { name, limit, said }),
    }
}

enum Transport {
    Stdio(tokio::process::ChildStdout, tokio::process::ChildStdin),
    Http(rmcp::transport::StreamableHttpClientTransport<reqwest::Client>),
}

/// Runs the MCP handshake and lists the tools.
async fn introduce(
    name: &str,
    transport: Transport,
) -> Result<(RunningService<RoleClient, ClientConfig>, Vec<model::Tool>), Error> {
    let us = Implementation::new("forge-bridge", env!("CARGO_PKG_VERSION"));
    let client = ClientConfig::new(ClientCapabilities::default(), us);
    // The library spawns the reader task; it ends with the service, which the session owns.
    let served = match transport {
        Transport::Stdio(stdout, stdin) => {
            let transport = AsyncRwTransport::new_client(stdout, stdin);
            client
                .serve(transport.with_max_line_length(LINE_BYTES))
                .await
        }
        Transport::Http(transport) => client.serve(transport).await,
    };
    let service = served.map_err(|error| Error::Introduce {
        name: name.to_owned(),
        reason: error.to_string(),
    })?;
    let tools = list(&service).await.map_err(|reason| Error::List {
        name: name.to_owned(),
        reason,
    })?;
    Ok((service, tools))
}

async fn list(
    service: &RunningService<RoleClient, ClientConfig>,
) -> Result<Vec<model::Tool>, String> {
    let mut tools = Vec::new();
    let mut page = PaginatedRequestParams::default();
    loop {
        let listed = service
            .list_tools(Some(page))
            .await
            .map_err(|error| reason(&error))?;
        let before = tools.len();
        tools.extend(listed.tools);
        if tools.len() > MOST_TOOLS {
            return Err(format!("more than {MOST_TOOLS} tools"));
        }
        match listed.next_cursor {
            None => return Ok(tools),
            Some(_) if tools.len() == before => {
                return Err("a page of the tool list is empty but not the last".to_owned());
            }
            Some(cursor) => page = PaginatedRequestParams::default().with_cursor(Some(cursor)),
        }
    }
}

fn reason(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => format!("{} ({})", error.message, error.code.0),
        ServiceError::TransportClosed => "connection closed".to_owned(),
        other => other.to_string(),
    }
}

impl Error {
    /// Appends the end of the program's stderr.
    fn with(mut self, said: &str) -> Self {
        match &mut self {
            Self::Start { reason, .. }
            | Self::Introduce { reason, .. }
            | Self::List { reason, .. } => {
                reason.push_str(said);
            }
            Self::Late { said: before, .. } => before.push_str(said),
            Self::Malformed { .. } | Self::Unknown(_) | Self::Refused { .. } => {}
        }
        self
    }
}
