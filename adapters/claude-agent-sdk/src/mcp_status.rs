//! State of the MCP servers that a dispatch names, as the program reports it before the first turn. The program starts
//! them and would run the task without those that failed.

use std::time::Duration;

use forge_adapter_api::{AdapterEvent, ExecutionRequest};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Time limit for all servers to start; the program's own for one is 30 s.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Servers {
    names: Vec<String>,
    required: bool,
    deadline: Instant,
    /// Names and reasons.
    unavailable: Vec<(String, String)>,
}

impl Servers {
    pub(crate) fn new(request: &ExecutionRequest) -> Self {
        Self {
            names: request.mcp_servers.keys().cloned().collect(),
            required: request.mcp_required,
            deadline: Instant::now() + PATIENCE,
            unavailable: Vec::new(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Reads the program's list; returns true while a server is still starting. A server that is not in the list, as
    /// with programs that do not answer, is assumed to be available.
    pub(crate) fn are_starting(&mut self, list: &Value) -> bool {
        let is_late = Instant::now() >= self.deadline;
        let list = list.as_array().map_or(&[][..], Vec::as_slice);
        self.unavailable.clear();
        for name in &self.names {
            let Some(server) = list.iter().find(|server| server["name"] == **name) else {
                continue;
            };
            let reason = match server["status"].as_str().unwrap_or_default() {
                "connected" => continue,
                "pending" if !is_late => return true,
                "pending" => format!("it did not start within {} s", PATIENCE.as_secs()),
                "needs-auth" => "it requires a login".to_owned(),
                status => server["error"].as_str().unwrap_or(status).to_owned(),
            };
            self.unavailable.push((name.clone(), reason));
        }
        false
    }

    pub(crate) fn events(&self) -> impl Iterator<Item = AdapterEvent> {
        self.unavailable.iter().map(|(server, reason)| {
            AdapterEvent::new("exec.progress").with(json!({
                "kind": "mcp_server_unavailable", "server": server, "reason": reason,
            }))
        })
    }

    /// Error text of the run, if a required server is not available.
    pub(crate) fn failure(&self) -> Option<String> {
        let (server, reason) = self.unavailable.first().filter(|_| self.required)?;
        Some(format!("MCP server {server:?} is not available: {reason}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_named_servers_count_and_those_that_start_are_waited_for() {
        let mut request = ExecutionRequest::sample("x");
        request.mcp_servers.insert("a".to_owned(), json!({}));
        let mut servers = Servers::new(&request);
        let other = json!({"name": "forge", "status": "failed"});
        for (server, starting, failure) in [
            (json!({"name": "a", "status": "connected"}), false, None),
            (json!({"name": "a", "status": "pending"}), true, None),
            (
                json!({"name": "a", "status": "failed", "error": "ENOENT"}),
                false,
                Some("ENOENT"),
            ),
            (
                json!({"name": "a", "status": "needs-auth"}),
                false,
                Some("login"),
            ),
            (
                json!({"name": "a", "status": "later"}),
                false,
                Some("later"),
            ),
            (json!({}), false, None),
        ] {
            assert_eq!(servers.are_starting(&json!([other, server])), starting);
            let found = servers.failure();
            match failure {
                None => assert_eq!(found, None, "{server}"),
                Some(part) => assert!(found.is_some_and(|text| text.contains(part)), "{server}"),
            }
        }
        assert!(!servers.are_starting(&Value::Null), "an older program");
    }
}
