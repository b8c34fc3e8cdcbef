//! One run of a checked adapter as a process, beside an agent that answers by a script.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;
use url::{Host, Url};

use super::super::Environment;
use super::lab::{Lab, Received, Record, Script, Session};

/// Time beyond the limit that a call may take on a busy machine.
pub(super) const SLACK: Duration = Duration::from_secs(1);
/// Time that a program needs beside its calls.
const START_UP: Duration = Duration::from_secs(10);

/// Adapter that is checked.
pub(super) struct Subject {
    pub(super) adapter: String,
    pub(super) command: Vec<String>,
    pub(super) folder: Option<PathBuf>,
    /// Address of the agent; with port 0 a free one for each run.
    pub(super) endpoint: Url,
    pub(super) timeout: Duration,
    pub(super) environment: Environment,
}

pub(super) struct Run {
    pub(super) adapter: String,
    pub(super) timeout: Duration,
    pub(super) sessions: Vec<Session>,
    pub(super) received: Vec<Received>,
    pub(super) exit: Exit,
    /// Standard output and standard error.
    pub(super) output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    /// `None`: ended by a signal.
    Code(Option<i32>),
    /// Killed, since a call or the whole took too long.
    Late,
}

impl Subject {
    /// Number of runs at the same time.
    pub(super) fn width(&self) -> usize {
        match self.endpoint.port() {
            Some(0) => 6,
            _ => 1,
        }
    }

    pub(super) async fn run(&self, script: Script) -> anyhow::Result<Run> {
        let listener = TcpListener::bind(self.address()?).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", self.endpoint))?;
        let address = listener.local_addr()?;
        let mut environment = self.environment.clone();
        environment.retain(|name, _| !name.starts_with("FORG_SESSION_"));
        let millis = self.timeout.as_millis();
        environment.extend([
            ("FORG_AGENT_URL".to_owned(), format!("http://{address}")),
            ("FORG_PORT".to_owned(), address.port().to_string()),
            ("FORG_EMIT_TIMEOUT".to_owned(), millis.to_string()),
        ]);
        let given = script.given;
        let lab = match script.absent {
            true => {
                drop(listener);
                None
            }
            false => Some(Lab::start(listener, script, self.timeout + SLACK)),
        };
        if let Some(lab) = lab.as_ref().filter(|_| given) {
            let (id, key) = lab.give_session();
            environment.extend([
                ("FORG_SESSION_ID".to_owned(), id),
                ("FORG_SESSION_KEY".to_owned(), key),
            ]);
        }
        let overdue = lab.as_ref().map(Lab::overdue).unwrap_or_default();
        let (exit, output) = self.start(environment, overdue).await?;
        let Record {
            sessions, received, ..
        } = match lab {
            Some(lab) => lab.stop().await,
            None => Record::default(),
        };
        Ok(Run {
            adapter: self.adapter.clone(),
            timeout: self.timeout,
            sessions,
            received,
            exit,
            output,
        })
    }

    fn address(&self) -> anyhow::Result<SocketAddr> {
        let ip = match self.endpoint.host() {
            Some(Host::Ipv4(ip)) => IpAddr::from(ip),
            Some(Host::Ipv6(ip)) => IpAddr::from(ip),
            Some(Host::Domain("localhost")) => Ipv4Addr::LOCALHOST.into(),
            Some(Host::Domain(_)) | None => bail!("with a command, --endpoint is a local address"),
        };
        Ok((
            ip,
            self.endpoint.port_or_known_default().unwrap_or_default(),
        )
            .into())
    }

    /// Runs the command to its end, until a call is overdue, or for the longest time that its calls can take.
    async fn start(
        &self,
        environment: Environment,
        overdue: CancellationToken,
    ) -> anyhow::Result<(Exit, String)> {
        let [program, arguments @ ..] = &self.command[..] else {
            bail!("the command is empty");
        };
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .envs(environment)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        let child = command.kill_on_drop(true).spawn();
        let child = child.with_context(|| format!("cannot start {program}"))?;
        let group = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
        let limit = 4 * self.timeout + START_UP;
        let ended = overdue.run_until_cancelled(child.wait_with_output());
        let Ok(Some(output)) = tokio::time::timeout(limit, ended).await else {
            if let Some(group) = group {
                // A process that has ended meanwhile is no error.
                let _ = kill_process_group(group, Signal::KILL);
            }
            return Ok((Exit::Late, String::new()));
        };
        let output = output.context("cannot read the output of the command")?;
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok((Exit::Code(output.status.code()), text))
    }
}

impl Run {
    pub(super) fn starts(&self) -> impl Iterator<Item = &Received> {
        self.received
            .iter()
            .filter(|one| one.path == "/session/start")
    }

    pub(super) fn emits(&self) -> impl Iterator<Item = &Received> {
        self.received.iter().filter(|one| one.path == "/emit")
    }

    /// Bodies of the signals; `null` for one that is not JSON.
    pub(super) fn records(&self) -> impl Iterator<Item = Value> {
        self.emits().map(Received::json)
    }
}

impl Received {
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}
