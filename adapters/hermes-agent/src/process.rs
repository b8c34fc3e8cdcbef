//! A `hermes serve` of the adapter's own. It runs under the supervisor, so it ends with the bridge however that ends.

use std::time::Duration;

use forge_adapter_acp_client::AcpClient;
use forge_adapter_api::child::{Child, Line, StartError};
use forge_adapter_api::{AdapterError, Host, Result};
use secrecy::SecretString;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

use crate::management::Endpoint;
use crate::profiles::DEFAULT;

/// Time for the server to listen, which takes two seconds on a slow machine. Shorter than the bridge's limit of a
/// management call, so that the caller is told the reason.
pub(crate) const START: Duration = Duration::from_secs(28);
/// Beginning of the line that the server writes when it listens.
const READY: &str = "HERMES_BACKEND_READY port=";

pub(crate) struct ServeProcess {
    pub(crate) endpoint: Endpoint,
    /// Owns the process and returns the reason for its end; aborted on drop, which kills the process.
    keeper: JoinSet<String>,
    /// Ends the process; so does dropping it.
    stop: oneshot::Sender<()>,
}

impl ServeProcess {
    /// Starts the server on a free port with a new token, and waits until it listens, at most for `limit`.
    pub(crate) async fn start(host: &Host, client: &AcpClient, limit: Duration) -> Result<Self> {
        let folder = host.temp_folder().map_err(|error| internal(&error))?;
        let temporary = folder.subfolder("tmp").map_err(|error| internal(&error))?;
        let token = format!("{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
        let mut program = client.program()?;
        let args = ["-p", DEFAULT, "serve", "--port", "0", "--skip-build"];
        program.args = args.map(Into::into).to_vec();
        program.dir = Some(folder.path().to_owned());
        program.folder = Some(folder.clone());
        program.stderr_bytes = 2 << 10;
        let temporary = temporary.display().to_string();
        program.env.entry("TMPDIR".to_owned()).or_insert(temporary);
        let name = "HERMES_DASHBOARD_SESSION_TOKEN".to_owned();
        program.env.insert(name, token.clone());
        let mut child = Child::start(host, None, &program).map_err(|error| match error {
            StartError::Missing(path) => unavailable(client.missing(&path)),
            StartError::Start { path, source } => {
                unavailable(format!("cannot start {}: {source}", path.display()))
            }
        })?;
        let Ok(port) = timeout(limit, port(&mut child)).await else {
            return Err(unavailable(format!(
                "`hermes serve` did not listen within {limit:?}{}",
                tail(&child)
            )));
        };
        let Some(port) = port else {
            return Err(unavailable(end_of(&mut child).await));
        };
        let (stop, stopped) = oneshot::channel();
        let mut keeper = JoinSet::new();
        keeper.spawn(async move {
            // The directory outlives the process.
            let _folder = folder;
            tokio::select! {
                reason = end_of(&mut child) => reason,
                _ = stopped => {
                    // The exit status of a process that was told to end says nothing.
                    let _ = child.stop(Duration::ZERO).await;
                    "`hermes serve` was stopped".to_owned()
                }
            }
        });
        Ok(Self {
            endpoint: Endpoint {
                url: format!("http://127.0.0.1:{port}"),
                token: SecretString::from(token),
            },
            keeper,
            stop,
        })
    }

    /// The reason for its end, if it has ended.
    pub(crate) fn ended(&mut self) -> Option<String> {
        let ended = self.keeper.try_join_next()?;
        Some(ended.unwrap_or_else(|error| error.to_string()))
    }

    pub(crate) async fn stop(mut self) {
        // One that has ended hears nothing.
        let _ = self.stop.send(());
        self.keeper.join_next().await;
    }
}

/// Reads output up to the line with the port; `None` if the program ends before.
async fn port(child: &mut Child) -> Option<u16> {
    loop {
        if let Line::Text(line) = child.next().await?
            && let Some(port) = line.trim().strip_prefix(READY)
            && let Ok(port) = port.parse()
        {
            return Some(port);
        }
    }
}

/// Waits for the program's end and describes it.
async fn end_of(child: &mut Child) -> String {
    let status = match child.wait().await {
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    format!("`hermes serve` ended ({status}){}", tail(child))
}

fn tail(child: &Child) -> String {
    match child.stderr_tail() {
        tail if tail.is_empty() => tail,
        tail => format!(": {tail}"),
    }
}

pub(crate) fn unavailable(text: String) -> AdapterError {
    AdapterError::new("adapter_unavailable", text).retryable()
}

fn internal(error: &std::io::Error) -> AdapterError {
    AdapterError::new(
        "internal",
        format!("cannot prepare `hermes serve`: {error}"),
    )
    .retryable()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt as _;

    use forge_adapter_api::Config;
    use forge_test_support::{deadline, process};
    use serde_json::json;

    use super::*;
    use crate::settings::PRESET;

    #[tokio::test]
    async fn a_server_that_hangs_at_its_start_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("hermes");
        fs::write(&program, "#!/bin/sh\necho $$ >&2\nexec sleep 1000\n").unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o700)).unwrap();
        let (host, config) = (Host::detached(), json!({ "program": program }));
        let config = Config::try_from(config).unwrap();
        let client = AcpClient::new(host.clone(), &config, PRESET).unwrap();
        let started = ServeProcess::start(&host, &client, Duration::from_secs(1)).await;
        let error = started.err().expect("it does not listen");
        assert_eq!(error.code, "adapter_unavailable");
        let (text, pid) = error.message.rsplit_once(": ").unwrap();
        assert_eq!(text, "`hermes serve` did not listen within 1s");
        deadline::until(|| !process::exists(pid)).await;
    }
}
