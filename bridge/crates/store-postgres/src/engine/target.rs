//! Address of the database: a URL, with the password apart if it is not part of it.

use std::time::Duration;

use percent_encoding::percent_decode_str;
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
    #[error("{0} is given twice, with different values")]
    Twice(&'static str),
    #[error(
        "sslmode={0} cannot be kept: a socket of this machine has no TLS; leave out sslmode, or name a host"
    )]
    Socket(String),
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
    fn take(url: &'a str) -> Result<(Self, String), TargetError> {
        let (mut own, mut kept) = (Self::default(), Vec::new());
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            // The driver decodes names, too.
            let name = percent_decode_str(name).decode_utf8_lossy();
            let (known, name) = match &*name {
                "sslmode" => (&mut own.mode, "sslmode"),
                "sslrootcert" => (&mut own.roots, "sslrootcert"),
                _ => {
                    kept.push(setting);
                    continue;
                }
            };
            if known.replace(value).is_some_and(|before| before != value) {
                return Err(TargetError::Twice(name));
            }
        }
        Ok((own, format!("{base}?{}", kept.join("&"))))
    }

    /// Ours verifies all that it requires, and requires TLS unless it is told otherwise. A socket of this machine has
    /// none.
    fn mode(&self, is_local: bool) -> Result<SslMode, TargetError> {
        match self.mode {
            Some("disable") => Ok(SslMode::Disable),
            None | Some("prefer") if is_local => Ok(SslMode::Disable),
            Some("prefer") => Ok(SslMode::Prefer),
            Some(mode @ ("require" | "verify-ca" | "verify-full")) if is_local => {
                Err(TargetError::Socket(mode.to_owned()))
            }
            None | Some("require" | "verify-ca" | "verify-full") => Ok(SslMode::Require),
            Some(other) => Err(TargetError::Mode(other.to_owned())),
        }
    }
}

impl Target {
    /// Reads `postgres://user@host:port,host:port/database?target_session_attrs=read-write`. The password is used if the
    /// URL has none. `sslrootcert` is the path of a PEM file with the authorities of the server, as it is written.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, TargetError> {
        let (settings, url) = TlsSettings::take(url)?;
        let mut config: Config = url.parse().map_err(TargetError::Url)?;
        if config.get_dbname().is_none() {
            return Err(TargetError::NoDatabase);
        }
        if let (Some(password), None) = (password, config.get_password()) {
            config.password(password);
        }
        // The driver connects to `hostaddr` in place of the hosts.
        let mut hosts = config.get_hosts().iter();
        let is_local =
            config.get_hostaddrs().is_empty() && hosts.all(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(settings.mode(is_local)?);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// TLS of a URL, or the beginning of the reason why it is refused.
    fn mode(url: &str) -> Result<SslMode, String> {
        let target = Target::new(url, None);
        target
            .map(|target| target.config.get_ssl_mode())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_mode_of_the_url_never_loses() {
        for (url, expected) in [
            ("postgres://a@h/d", SslMode::Require),
            ("postgres://a@h/d?sslmode=disable", SslMode::Disable),
            ("postgres://a@h/d?sslmode=prefer", SslMode::Prefer),
            ("postgres://a@h/d?ssl%6dode=disable", SslMode::Disable),
            (
                "postgres://a@h/d?sslmode=require&sslmode=require",
                SslMode::Require,
            ),
            ("postgres://a@%2Ftmp/d", SslMode::Disable),
            ("postgres://a@%2Ftmp/d?sslmode=prefer", SslMode::Disable),
            ("postgres://a@%2Ftmp,h/d", SslMode::Require),
            // An address without a host, beside a host, and in place of a socket.
            ("postgres:///d?user=a&hostaddr=10.0.0.1", SslMode::Require),
            (
                "postgres:///d?user=a&hostaddr=10.0.0.1&sslmode=verify-full",
                SslMode::Require,
            ),
            (
                "postgres://a@h/d?hostaddr=10.0.0.1&sslmode=verify-full",
                SslMode::Require,
            ),
            (
                "postgres://a@%2Ftmp/d?hostaddr=10.0.0.1&sslmode=verify-full",
                SslMode::Require,
            ),
            (
                "postgres:///d?host=/tmp&hostaddr=::1&sslmode=verify-ca",
                SslMode::Require,
            ),
            (
                "postgres:///d?hostaddr=10.0.0.1,10.0.0.2&ssl%6Dode=require",
                SslMode::Require,
            ),
        ] {
            assert_eq!(mode(url), Ok(expected), "{url}");
        }
        for (url, expected) in [
            (
                "postgres://a@%2Ftmp/d?sslmode=verify-full",
                "sslmode=verify-full cannot be kept",
            ),
            (
                "postgres:///d?user=a&sslmode=require",
                "sslmode=require cannot be kept",
            ),
            (
                "postgres://a@h/d?sslmode=require&sslmode=disable",
                "sslmode is given twice",
            ),
            ("postgres://a@h/d?sslmode", "sslmode= is none of"),
        ] {
            let refused = mode(url).unwrap_err();
            assert!(refused.starts_with(expected), "{url}: {refused}");
        }
    }
}
