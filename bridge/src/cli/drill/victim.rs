//! A bridge that the drill kills: the same program in its own process and folder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::super::client::{Client, Target};
use super::super::{Environment, demo};
use crate::app::trial::TrialDatabase;
use crate::config::Config;

/// Time limit of a start; a longer one is reported as a failure.
const PATIENCE: Duration = Duration::from_secs(60);
const BETWEEN_LOOKS: Duration = Duration::from_millis(5);
/// Ports of which each bridge gets one.
const PORTS: Range<u16> = 20_000..30_000;
const PORT_TRIES: u32 = 100;
/// Lines of the log shown when the bridge does not start.
const LAST_LINES: usize = 12;

/// Length of the lease of bridges that share a database.
pub(super) const LEASE: Duration = Duration::from_secs(4);

/// Key, journal of the adapter, token and database of all bridges of a drill.
pub(super) struct Shared {
    folder: PathBuf,
    token: String,
    /// Names and values of the settings of the database.
    store: Vec<(&'static str, String)>,
}

/// Folder, environment and address shared by consecutive victims.
pub(super) struct Home {
    folder: PathBuf,
    environment: Environment,
    url: String,
    token: String,
}

/// Running bridge. Killed when dropped.
pub(super) struct Victim {
    child: Child,
    log: PathBuf,
}

impl Shared {
    pub(super) fn new(
        folder: &Path,
        config: &Config,
        database: Option<&TrialDatabase>,
    ) -> anyhow::Result<Self> {
        let mut store = Vec::new();
        if let Some(database) = database {
            store.push(("BRIDGE_STORE", database.url.clone()));
            store.push(("BRIDGE_STORE_LEASE", format!("{}s", LEASE.as_secs())));
            if let Some(file) = &config.store.password_file {
                let file = std::path::absolute(file)?.display().to_string();
                store.push(("BRIDGE_STORE_PASSWORD_FILE", file));
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            token: format!("{:032x}", rand::random::<u128>()),
            store,
        })
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.folder.join("journal")
    }
}

impl Home {
    /// Uses none of the user's bridge settings except the plugin path and the password of the database.
    pub(super) fn new(shared: &Shared, number: u32, own: &Environment) -> anyhow::Result<Self> {
        let plugins = match own.get("BRIDGE_PLUGIN_PATH") {
            Some(path) => path.clone(),
            None => demo::beside_the_binary()?.display().to_string(),
        };
        let port = free_port()?;
        let folder = shared.folder.join(format!("bridge-{number}"));
        DirBuilder::new()
            .mode(0o700)
            .create(&folder)
            .context("cannot create the folder of a bridge")?;
        let key = shared.folder.join("secret.key").display().to_string();
        let settings = [
            ("BRIDGE_LISTEN", format!("127.0.0.1:{port}")),
            ("BRIDGE_SIGNALS_LISTEN", "off".to_owned()),
            ("BRIDGE_DATA_DIR", folder.join("data").display().to_string()),
            ("BRIDGE_SECRET_KEY_FILE", key),
            ("BRIDGE_PLUGIN_PATH", plugins),
            ("BRIDGE_STRICT", "true".to_owned()),
            ("BRIDGE_ADAPTERS", "echo".to_owned()),
            (
                "BRIDGE_ADAPTERS_ECHO_JOURNAL",
                shared.journal().display().to_string(),
            ),
            ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "16".to_owned()),
            ("BRIDGE_CALLBACK_ALLOW", "loopback".to_owned()),
            ("BRIDGE_DRAIN_ACCEPT", "0s".to_owned()),
            ("BRIDGE_LOG_LEVEL", "warn".to_owned()),
            ("BRIDGE_TOKENS", shared.token.clone()),
        ];
        let ours = |name: &str| {
            (name.starts_with("BRIDGE_") && name != "BRIDGE_PLUGIN_TRUST")
                || name == "GATEWAY_PROVIDER"
        };
        let mut environment: Environment = own
            .iter()
            .filter(|(name, _)| !ours(name))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let settings = settings.into_iter().chain(shared.store.iter().cloned());
        environment.extend(settings.map(|(name, value)| (name.to_owned(), value)));
        Ok(Self {
            folder,
            environment,
            url: format!("http://127.0.0.1:{port}"),
            token: shared.token.clone(),
        })
    }

    pub(super) fn client(&self) -> anyhow::Result<Client> {
        Ok(Client::new(&self.url, Some(self.token.clone()))?)
    }

    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    pub(super) fn start(&self) -> anyhow::Result<Victim> {
        let program =
            std::env::current_exe().context("cannot determine the path of this program")?;
        let log = self.folder.join("log");
        let open = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(&log);
        let file = open.context("cannot write the log of the bridge")?;
        let child = Command::new(program)
            .env_clear()
            .envs(&self.environment)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .context("cannot start the bridge")?;
        Ok(Victim { child, log })
    }
}

/// Port for a bridge and its successors, so that disconnected clients find them. It is below those that a system gives
/// out itself, so that no other program gets it while no bridge listens.
fn free_port() -> io::Result<u16> {
    let mut tries = PORT_TRIES;
    loop {
        let port = rand::random_range(PORTS);
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && tries > 0 => tries -= 1,
            bound => return bound.map(|_| port),
        }
    }
}

impl Victim {
    /// Waits until the bridge accepts requests.
    pub(super) async fn ready(&mut self, client: &Client) -> anyhow::Result<()> {
        let deadline = Instant::now() + PATIENCE;
        let target = || Target::path(&["api", "health", "ready"]);
        loop {
            let is_ready = client.get(target()).await.is_ok();
            // Asked even after an answer: that could be of another program.
            if let Some(status) = self.child.try_wait()? {
                bail!(
                    "the bridge did not start ({status}):\n{}",
                    self.last_words()
                );
            }
            if is_ready {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the bridge is not ready after {PATIENCE:?}:\n{}",
                    self.last_words()
                );
            }
            sleep(BETWEEN_LOOKS).await;
        }
    }

    /// Kills the process with SIGKILL and waits for its end.
    pub(super) fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }

    /// Stops the process until `thaw`.
    pub(super) fn freeze(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    pub(super) fn thaw(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    fn last_words(&self) -> String {
        let text = File::open(&self.log).and_then(io::read_to_string);
        let text = text.unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(LAST_LINES);
        lines[first..].join("\n")
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        // Ignored: the process might have been killed already.
        let _ = self.kill();
    }
}
