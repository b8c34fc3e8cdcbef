//! MCP server of the caller's tools, behind a Unix socket in the directory of the agent's process. The agent starts the
//! bridge's relay as the server's command.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forge_adapter_api::foreign_json;
use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{ExecutionRequest, Host};
use forge_adapter_transport::caller_tools::{CallerTools, SERVER};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// Upper bound of one message, in bytes.
const MESSAGE_BYTES: u64 = 16 << 20;
/// Upper bound of connections; an agent needs one or two.
const MOST_CONNECTIONS: usize = 16;

/// The server's socket. It exists before the agent's process, to whose user the directory belongs from its start on.
pub(crate) struct ToolSocket {
    listener: UnixListener,
    path: PathBuf,
}

/// The listening server; closed on drop.
pub(crate) struct ToolServer {
    tools: Shared,
    server: Value,
    _serving: JoinSet<()>,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<CallerTools>>);

impl ToolSocket {
    pub(crate) fn bind(folder: &Path) -> io::Result<Self> {
        let path = folder.join("tools");
        let listener = UnixListener::bind(&path)?;
        // The umask decided its mode until here, but other users cannot enter the folder.
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        Ok(Self { listener, path })
    }
}

impl ToolServer {
    /// Opens the server on the socket; `None` if the request has no tools.
    pub(crate) fn open(
        host: &Host,
        request: &ExecutionRequest,
        socket: Option<ToolSocket>,
    ) -> io::Result<Option<Self>> {
        let Some(socket) = socket.filter(|_| !request.tools.is_empty()) else {
            return Ok(None);
        };
        let [relay, args @ ..] = host.relay() else {
            return Err(io::Error::other(
                "this bridge has no relay, which an agent needs to reach the tools of a dispatch",
            ));
        };
        let args: Vec<Value> = args
            .iter()
            .map(|arg| Value::from(arg.as_str()))
            .chain([json!(socket.path)])
            .collect();
        let tools = CallerTools::new(&request.execution_id, &request.tools);
        let tools = Shared(Arc::new(Mutex::new(tools)));
        let mut serving = JoinSet::new();
        serving.spawn(listen(socket.listener, tools.clone()));
        Ok(Some(Self {
            tools,
            server: json!({"name": SERVER, "command": relay, "args": args, "env": []}),
            _serving: serving,
        }))
    }

    /// The server's entry for the session, in the protocol's form.
    pub(crate) fn server(&self) -> Value {
        self.server.clone()
    }

    /// Returns true if this name, as the agent writes it, is one of the caller's tools.
    pub(crate) fn is_offered(&self, tool: &str) -> bool {
        self.tools.lock().is_offered(tool)
    }

    pub(crate) fn take_calls(&self) -> Vec<ToolCall> {
        self.tools.lock().take_calls()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, CallerTools> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn listen(listener: UnixListener, tools: Shared) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => {
                match accepted {
                    Ok((stream, _)) => {
                        connections.spawn(serve(stream, tools.clone()));
                    }
                    Err(error) => {
                        tracing::warn!(%error, "the agent can no longer reach the caller's tools");
                        return;
                    }
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Serves one connection, one message per line, until the agent closes it or violates the protocol.
async fn serve(mut stream: UnixStream, tools: Shared) {
    let (read, mut write) = stream.split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut read).take(MESSAGE_BYTES);
        match bounded.read_until(b'\n', &mut line).await {
            Ok(_) if line.ends_with(b"\n") => {}
            Ok(_) | Err(_) => return,
        }
        let Ok(message) = foreign_json::from_slice::<Value>(&line) else {
            tracing::warn!("the agent sent the caller's tools a line that is not JSON");
            return;
        };
        let answer = tools.lock().answer(&message);
        if message.get("id").is_none() {
            continue;
        }
        let mut answer = answer.to_string();
        answer.push('\n');
        if write.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}
