//! Address of the database: a URL, with the password apart if it is not part of it.

use std::time::Duration;

use tokio::time::timeout;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::link::explain;
use super::tls::{Stream, Tls};

/// Longest attempt to connect to one address, and longest time without an acknowledgement of what was sent, unless the
/// URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(10);

/// A database, and how it is connected to.
#[derive(Clone)]
pub struct Target {
    config: Config,
    tls: Tls,
}

/// Reason why a URL is no address. It does not repeat the URL, which can hold a password.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("the URL of the store is not one of PostgreSQL: {0}")]
    Url(tokio_postgres::Error),
    #[error("the URL of the store names no database: postgres://user@host/database")]
    NoDatabase,
    #[error("no certificate authorities can be read on this machine: {0}; install ca-certificates")]
    Roots(rustls::Error),
}

impl Target {
    /// Reads `postgres://user@host:port,host:port/database?target_session_attrs=read-write`. The password is used if the
    /// URL has none.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, TargetError> {
        let mode = |mode: &str| url.contains(&format!("sslmode={mode}"));
        // Ours always verifies what it requires.
        let known = url
            .replace("sslmode=verify-full", "sslmode=require")
            .replace("sslmode=verify-ca", "sslmode=require");
        let mut config: Config = known.parse().map_err(TargetError::Url)?;
        if config.get_dbname().is_none() {
            return Err(TargetError::NoDatabase);
        }
        if let (Some(password), None) = (password, config.get_password()) {
            config.password(password);
        }
        let is_local = config
            .get_hosts()
            .iter()
            .all(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(match (mode("disable") || is_local, mode("prefer")) {
            (true, _) => SslMode::Disable,
            (false, true) => SslMode::Prefer,
            (false, false) => SslMode::Require,
        });
        let timeout = config.get_connect_timeout().copied();
        config.connect_timeout(timeout.unwrap_or(CONNECT_TIMEOUT));
        let silence = config.get_tcp_user_timeout().copied();
        config.tcp_user_timeout(silence.unwrap_or(SILENCE));
        config.application_name("forge-bridge");
        let verifies = config.get_ssl_mode() == SslMode::Require;
        let tls = Tls::new(verifies).map_err(TargetError::Roots)?;
        Ok(Self { config, tls })
    }

    /// Hosts and database, for messages.
    pub(crate) fn name(&self) -> String {
        let hosts = self.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        });
        let hosts: Vec<_> = hosts.collect();
        let database = self.config.get_dbname().unwrap_or_default();
        format!("{} of {}", database, hosts.join(","))
    }

    /// Connects, or returns the reason why not.
    pub(crate) async fn connect(&self) -> Result<(Client, Connection<Socket, Stream>), String> {
        // A server that is stopped takes connections and does not answer.
        let connected = timeout(SILENCE, self.config.connect(self.tls.clone())).await;
        let connected = connected.map_err(|_| format!("no answer within {SILENCE:?}"))?;
        connected.map_err(|error| explain(&error))
    }
}
