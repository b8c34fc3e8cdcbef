//! Server under test: runs in its own folder on a free port, and is killed on drop.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ops::Add;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fmt, fs};

use anyhow::{Context, bail};
use tempfile::TempDir;

use super::machine::{self, Cpu};

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Floor,
    /// Floor that stores dispatches and results in SQLite.
    Sqlite,
    /// Floor that stores the bridge's rows in PostgreSQL.
    Postgres,
    Bridge,
    /// External service.
    Service,
    /// Proxy that passes calls on to the service at this address.
    PassThrough(SocketAddr),
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::Floor => "floor",
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
            Kind::Bridge => "bridge",
            Kind::Service => "service",
            Kind::PassThrough(_) => "pass-through",
        })
    }
}

pub(crate) struct Target {
    pub(crate) url: String,
    pub(crate) listen: SocketAddr,
    command: Command,
    process: Child,
    folder: TempDir,
}

/// Resources used by a process so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Used {
    pub(crate) cpu: Duration,
    pub(crate) rss_kib: u64,
}

impl Add for Used {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            cpu: self.cpu + other.cpu,
            rss_kib: self.rss_kib + other.rss_kib,
        }
    }
}

impl Target {
    pub(crate) fn start(
        kind: Kind,
        here: &Path,
        bridge: &Path,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        Self::start_with(kind, here, bridge, folder, &[])
    }

    /// Starts a server with bridge settings, by their environment variables.
    pub(crate) fn start_with(
        kind: Kind,
        here: &Path,
        bridge: &Path,
        folder: &Path,
        settings: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-")
            .tempdir_in(folder)?;
        // A free port; no other process here allocates ports meanwhile.
        let listen = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = match kind {
            Kind::Floor | Kind::Sqlite | Kind::Postgres => {
                let mut command = Command::new(here);
                command.args(["floor", "--listen", &listen.to_string()]);
                if kind == Kind::Sqlite {
                    command.arg("--keep").arg(folder.path());
                }
                if kind == Kind::Postgres {
                    let url = settings.iter().find(|(name, _)| *name == "BRIDGE_STORE");
                    command.args(url.map(|(_, url)| format!("--store={url}")));
                }
                command
            }
            Kind::Service | Kind::PassThrough(_) => {
                let mut command = Command::new(here);
                command.args(["service", "--listen", &listen.to_string()]);
                if let Kind::PassThrough(service) = kind {
                    command.args(["--upstream", &service.to_string()]);
                }
                command
            }
            Kind::Bridge => {
                let mut command = Command::new(bridge);
                command
                    .env("BRIDGE_LISTEN", listen.to_string())
                    .env("BRIDGE_SIGNALS_LISTEN", "off")
                    .env("BRIDGE_DATA_DIR", folder.path().join("data"))
                    .env("BRIDGE_SECRET_KEY_FILE", folder.path().join("key"))
                    .env("BRIDGE_ADAPTERS", "echo")
                    .env("BRIDGE_CALLBACK_ALLOW", "loopback")
                    .env("BRIDGE_LOG_LEVEL", "warn");
                command
            }
        };
        let log = fs::File::create(folder.path().join("log"))?;
        for (name, value) in settings {
            command.env(name, value);
        }
        let process = command
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .with_context(|| format!("starting {kind}; build it with cargo build --release"))?;
        let mut target = Self {
            url: format!("http://{listen}/api/v2/dispatch"),
            listen,
            command,
            process,
            folder,
        };
        target.wait_until_listening()?;
        Ok(target)
    }

    /// Kills and restarts the server on the same store; returns once it listens.
    pub(crate) fn restart(&mut self) -> anyhow::Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        self.process = self.command.spawn()?;
        self.wait_until_listening()
    }

    fn wait_until_listening(&mut self) -> anyhow::Result<()> {
        let listen = self.listen;
        let begun = Instant::now();
        while TcpStream::connect(listen).is_err() {
            if begun.elapsed() > PATIENCE || self.process.try_wait()?.is_some() {
                let log = fs::read_to_string(self.folder.path().join("log"))?;
                bail!("no server listens on {listen}:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Disk space used by the store.
    pub(crate) fn disk_kib(&self) -> anyhow::Result<u64> {
        let mut kib = 0;
        for file in fs::read_dir(self.folder.path().join("data"))? {
            kib += file?.metadata()?.blocks() / 2;
        }
        Ok(kib)
    }

    pub(crate) fn cpu(&self) -> anyhow::Result<Cpu> {
        machine::cpu(&self.process.id().to_string())
    }

    pub(crate) fn used(&self) -> anyhow::Result<Used> {
        let id = self.process.id();
        let status = fs::read_to_string(format!("/proc/{id}/status"))?;
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let rss = rss.and_then(|text| text.trim().strip_suffix(" kB"));
        Ok(Used {
            cpu: Duration::from_secs_f64(self.cpu()?.own),
            rss_kib: rss.context("/proc/…/status has no VmRSS")?.parse()?,
        })
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process might have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
