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
    #[error("sslmode={0} is none of disable, prefer, require, verify-ca and verify-full")]
    Mode(String),
    #[error("the certificates to verify the server with cannot be used: {0}")]
    Roots(String),
}

/// Settings of a URL that are ours, because the driver knows fewer.
#[derive(Default)]
struct TlsSettings<'a> {
    mode: Option<&'a str>,
    roots: Option<&'a str>,
}

impl<'a> TlsSettings<'a> {
    /// Takes the settings out of a URL.
    fn take(url: &'a str) -> (Self, String) {
        let (mut own, mut kept) = (Self::default(), Vec::new());
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            match setting.split_once('=') {
                Some(("sslmode", mode)) => own.mode = Some(mode),
                Some(("sslrootcert", path)) => own.roots = Some(path),
                Some(_) | None => kept.push(setting),
            }
        }
        (own, format!("{base}?{}", kept.join("&")))
    }

    /// Ours verifies all that it requires, and requires TLS unless it is told otherwise.
    fn mode(&self) -> Result<SslMode, TargetError> {
        match self.mode {
            Some("disable") => Ok(SslMode::Disable),
            Some("prefer") => Ok(SslMode::Prefer),
            None | Some("require" | "verify-ca" | "verify-full") => Ok(SslMode::Require),
            Some(other) => Err(TargetError::Mode(other.to_owned())),
        }
    }
}

impl Target {
    /// Reads `postgres://user@host:port,host:port/database?target_session_attrs=read-write`. The password is used if the
    /// URL has none. `sslrootcert` is the path of a PEM file with the authorities of the server, as it is written.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, TargetError> {
        let (settings, url) = TlsSettings::take(url);
        let mut config: Config = url.parse().map_err(TargetError::Url)?;
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
        let mode = settings.mode()?;
        config.ssl_mode(if is_local { SslMode::Disable } else { mode });
        let timeout = config.get_connect_timeout().copied();
        config.connect_timeout(timeout.unwrap_or(CONNECT_TIMEOUT));
        let silence = config.get_tcp_user_timeout().copied();
        config.tcp_user_timeout(silence.unwrap_or(SILENCE));
        config.application_name("forge-bridge");
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Tls::verified(settings.roots),
            _ => Tls::unverified(),
        };
        let tls = tls.map_err(TargetError::Roots)?;
        Ok(Self { config, tls })
    }

    /// Hosts and database, for messages.
    pub fn name(&self) -> String {
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
