//! The servers of one execution, their tools under names of the bridge, and calls of them.

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

use super::{Caller, Endpoint, Error, Setup, answer, stdio};

/// Tools of one server beyond this are a mistake, and no model could choose among them.
const MOST_TOOLS: usize = 512;
/// Longer lines of a program are no messages.
const LINE_BYTES: usize = 16 * 1024 * 1024;
/// How long a server may take to be told that it is over.
const GOODBYE: Duration = Duration::from_secs(1);

/// Servers that are up. Dropping it ends them at once, `close` in good order.
pub struct Session {
    connections: Vec<Connection>,
    tools: Vec<Tool>,
    /// By the name that `tools` has.
    origins: HashMap<String, Origin>,
    call_timeout: Duration,
    result_bytes: usize,
}

struct Connection {
    name: String,
    service: RunningService<RoleClient, ClientConfig>,
    program: Option<stdio::Running>,
}

struct Origin {
    /// Into `connections`.
    connection: usize,
    /// What the server calls it.
    tool: String,
}

/// What a call gave.
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
        caller: Caller<'_>,
    ) -> Result<Self, Error> {
        let mut session = Self {
            connections: Vec::new(),
            tools: Vec::new(),
            origins: HashMap::new(),
            call_timeout: setup.config.call_timeout,
            result_bytes: setup.config.result_bytes,
        };
        for (name, endpoint) in named {
            // Of its own, so that what sweeps up after one program leaves the others alone.
            let caller = Caller {
                execution: &format!("{}/mcp/{name}", caller.execution),
                ..caller
            };
            let (connection, tools) = connect(setup, name, endpoint, caller).await?;
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
            // A server that lists a tool twice means one.
            if self.origins.insert(name.clone(), origin).is_none() {
                self.tools.push(Tool {
                    name,
                    description: tool.description.map(Into::into),
                    input_schema: Value::Object((*tool.input_schema).clone()),
                });
            }
        }
    }

    /// All tools of all servers, as `mcp__<server>__<tool>`.
    pub fn tools(&self) -> &[Tool] {
        &self.tools
    }

    /// Whether a call of this name is ours to make.
    pub fn owns(&self, tool: &str) -> bool {
        self.origins.contains_key(tool)
    }

    /// Makes one call. Whatever goes wrong is an answer too: a model can go on from it.
    pub async fn call(&self, tool: &str, input: &Value) -> Answer {
        let Some(origin) = self.origins.get(tool) else {
            return Answer::failed(format!("there is no tool {tool:?}"));
        };
        let mut params = CallToolRequestParams::new(origin.tool.clone());
        match input {
            Value::Object(arguments) => params = params.with_arguments(arguments.clone()),
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Answer::failed("the arguments of a tool are a JSON object");
            }
        }
        let Connection { name, service, .. } = &self.connections[origin.connection];
        let limit = self.call_timeout;
        match timeout(limit, Box::pin(service.call_tool(params))).await {
            Ok(Ok(result)) => answer::of(result, self.result_bytes),
            Ok(Err(error)) => {
                let reason = reason(&error);
                tracing::warn!(mcp.server = %name, "a call of {tool} failed: {reason}");
                Answer::failed(format!("MCP server {name:?}: {reason}"))
            }
            Err(_) => {
                tracing::warn!(mcp.server = %name, "a call of {tool} gave nothing within {limit:?}");
                Answer::failed(format!(
                    "MCP server {name:?} gave no answer within {limit:?}"
                ))
            }
        }
    }

    /// Ends the servers in good order; what does not end is killed.
    pub async fn close(self) {
        let each = self.connections.into_iter().map(Connection::close);
        futures_util::future::join_all(each).await;
    }
}

impl Connection {
    async fn close(mut self) {
        // A transport that does not end is dropped, and so is its program below.
        let _ = self.service.close_with_timeout(GOODBYE).await;
        if let Some(program) = self.program.take() {
            program.end().await;
        }
    }
}

/// What the names of a server's tools begin with.
pub(crate) fn prefix(server: &str) -> String {
    format!("mcp__{server}__")
}

async fn connect(
    setup: &Setup,
    name: &str,
    endpoint: &Endpoint,
    caller: Caller<'_>,
) -> Result<(Connection, Vec<model::Tool>), Error> {
    let limit = setup.config.start_timeout;
    let name = name.to_owned();
    let (transport, mut program) = match endpoint {
        Endpoint::Program(program) => {
            let started = program.start(setup, caller);
            let (running, stdout, stdin) = started.map_err(|error| Error::Start {
                name: name.clone(),
                reason: error.to_string(),
            })?;
            (Transport::Stdio(stdout, stdin), Some(running))
        }
        Endpoint::Url(remote) => {
            let transport = remote.transport(&setup.client, caller.traceparent);
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

/// The handshake and the list of tools.
async fn introduce(
    name: &str,
    transport: Transport,
) -> Result<(RunningService<RoleClient, ClientConfig>, Vec<model::Tool>), Error> {
    let us = Implementation::new("forge-bridge", env!("CARGO_PKG_VERSION"));
    let client = ClientConfig::new(ClientCapabilities::default(), us);
    // The library spawns the task that reads; it ends with the service, which we own.
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
            return Err(format!("it has more than {MOST_TOOLS}"));
        }
        match listed.next_cursor {
            None => return Ok(tools),
            Some(_) if tools.len() == before => {
                return Err("a page of its list is empty and not the last".to_owned());
            }
            Some(cursor) => page = PaginatedRequestParams::default().with_cursor(Some(cursor)),
        }
    }
}

fn reason(error: &ServiceError) -> String {
    match error {
        ServiceError::McpError(error) => format!("{} ({})", error.message, error.code.0),
        ServiceError::TransportClosed => "it has ended".to_owned(),
        other => other.to_string(),
    }
}

impl Error {
    /// Adds what the program said.
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
