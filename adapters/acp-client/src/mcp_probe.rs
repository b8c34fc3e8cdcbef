//! Check of the MCP servers that a dispatch names. Most agents say nothing of a server that does not start, so each is
//! started and asked once before the session opens, while the agent starts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use forge_adapter_api::Host;
use forge_adapter_api::child::{Child, Program};
use forge_adapter_api::folder::TempFolder;
use forge_adapter_transport::http::{Http, Limits};
use forge_adapter_transport::json_rpc::{Incoming, JsonRpc};
use futures_util::future::join_all;
use serde_json::{Value, json};
use tokio::time::timeout;

/// Time limit of one check.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for a server to exit after its check.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// Environment of the programs.
pub(crate) struct Probe<'a> {
    pub(crate) host: &'a Host,
    pub(crate) execution: &'a str,
    /// The agent's command, with the variables and the directory that its servers inherit. The agent's own folder is not
    /// inherited: the agent works in it by then.
    pub(crate) agent: &'a Program,
}

/// Checks all servers at once; returns the names of those that are not available, with reasons.
pub(crate) async fn unavailable(
    probe: &Probe<'_>,
    servers: &BTreeMap<String, Value>,
) -> Vec<(String, String)> {
    let checks = servers.iter().map(async |(name, server)| {
        let checked = match server["command"].as_str() {
            Some(command) => timeout(PATIENCE, probe.program(name, command, server)).await,
            None => timeout(PATIENCE, url(server)).await,
        };
        let late = |_| Err(format!("no answer within {} s", PATIENCE.as_secs()));
        let reason = checked.unwrap_or_else(late).err()?;
        Some((name.clone(), reason))
    });
    join_all(checks).await.into_iter().flatten().collect()
}

impl Probe<'_> {
    async fn program(&self, name: &str, command: &str, server: &Value) -> Result<(), String> {
        let texts = |value: &Value| value.as_str().map(str::to_owned);
        let mut program = self.agent.clone();
        let folder = self.host.temp_folder();
        let folder = folder.map_err(|error| format!("it has no folder: {error}"))?;
        let agent = program.folder.replace(folder.clone());
        let agent = agent.as_ref().map(TempFolder::path);
        if let (Some(agent), Some(dir)) = (agent, &program.dir)
            && dir.starts_with(agent)
        {
            program.dir = Some(folder.path().to_owned());
        }
        let is_agents =
            |value: &str| agent.is_some_and(|agent| Path::new(value).starts_with(agent));
        for value in program.env.values_mut() {
            if is_agents(value) {
                *value = folder.path().display().to_string();
            }
        }
        program.path = command.into();
        let args = server["args"].as_array().into_iter().flatten();
        program.args = args.filter_map(texts).map(Into::into).collect();
        let variables = server["env"].as_object().into_iter().flatten();
        program
            .env
            .extend(variables.filter_map(|(name, value)| Some((name.clone(), texts(value)?))));
        // A name of its own: the end of this program does not concern the agent.
        let execution = format!("{}/mcp/{name}", self.execution);
        let child = Child::start(self.host, Some(&execution), &program)
            .map_err(|error| error.to_string())?;
        let mut rpc = JsonRpc::new(child);
        let asked = rpc.request("initialize", hello());
        loop {
            match rpc.next().await {
                Some(Ok(Incoming::Answer { id, outcome })) if id == asked => {
                    // The answer is all that matters; the program is killed after the timeout.
                    let _ = rpc.stop(END_PATIENCE).await;
                    return outcome.map(drop).map_err(|error| error.to_string());
                }
                Some(Ok(_)) => {}
                Some(Err(unreadable)) => return Err(unreadable.to_string()),
                None => {
                    let status = rpc.stop(Duration::ZERO).await;
                    let status =
                        status.map_or_else(|error| error.to_string(), |status| status.to_string());
                    let ended = format!("the program ended ({status}): {}", rpc.stderr_tail());
                    return Err(ended.trim_end_matches([':', ' ']).to_owned());
                }
            }
        }
    }
}

async fn url(server: &Value) -> Result<(), String> {
    let http = Http::new(Limits::default()).map_err(|error| error.to_string())?;
    let url = server["url"].as_str().unwrap_or_default();
    let (is_old, hello) = (
        server["type"] == "sse",
        json!({
            "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello(),
        }),
    );
    let mut request = if is_old {
        http.get(url)
    } else {
        http.post(url, &hello)
    };
    for (name, value) in server["headers"].as_object().into_iter().flatten() {
        request = request.header(name, value.as_str().unwrap_or_default());
    }
    let answered = http.reply(request).await.map(drop);
    answered.map_err(|error| error.to_string())
}

fn hello() -> Value {
    json!({
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "forge-bridge", "version": env!("CARGO_PKG_VERSION")},
    })
}
