//! Address of the database: a URL, with the password apart if it is not part of it.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::lookup_host;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode};

use super::server_state::ServerState;
use super::tls::Tls;
use super::url::{Sessions, UrlSettings};

/// Longest attempt to connect to one address, with TLS and the start of the session; longest time without an
/// acknowledgement of what was sent; and the same for a connection on which nothing is sent. The URL can say otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
const USER_TIMEOUT: Duration = Duration::from_secs(10);
const KEEPALIVES_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVES_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVES_COUNT: u32 = 3;
/// Value of the driver if the URL has none.
const UNSET_IDLE: Duration = Duration::from_secs(2 * 60 * 60);
const DEFAULT_PORT: u16 = 5432;

/// A database, and how it is connected to.
#[derive(Clone)]
pub struct Target {
    config: Config,
    pub(super) tls: Tls,
    pub(super) sessions: Sessions,
    /// Shared by the clones.
    pub(crate) server: Arc<ServerState>,
}

/// Reason why a URL is no address. It does not repeat the URL, which can hold a password.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("the URL of the store is not one of PostgreSQL: {0}")]
    Url(tokio_postgres::Error),
    #[error("the URL of the store names no database: postgres://user@host/database")]
    NoDatabase,
    #[error("the URL of the store names {hosts} hosts, and another number of hostaddr or port")]
    Hosts { hosts: usize },
    #[error("sslmode={0} is none of disable, prefer, require, verify-ca and verify-full")]
    Mode(String),
    #[error("{0} is given twice, with different values")]
    Twice(&'static str),
    #[error(
        "sslmode={0} cannot be kept: a socket of this machine has no TLS; leave out sslmode, or name a host"
    )]
    Socket(String),
    #[error("target_session_attrs={0} is none of any, read-write and primary")]
    Sessions(String),
    #[error(
        "target_session_attrs={0} asks for servers that cannot be written, and a store is written; use read-write or primary"
    )]
    ReadOnly(String),
    #[error("{name}={value} is no whole number")]
    Number { name: &'static str, value: String },
    #[error("the certificates to verify the server with cannot be used: {0}")]
    Roots(String),
}

impl Target {
    /// Reads `postgres://user@host:port,host:port/database?target_session_attrs=read-write`. The password is used if the
    /// URL has none. `sslrootcert` is the path of a PEM file with the authorities of the server, as it is written.
    pub fn new(url: &str, password: Option<&str>) -> Result<Self, TargetError> {
        let (settings, url) = UrlSettings::take(url)?;
        let mut config: Config = url.parse().map_err(TargetError::Url)?;
        if config.get_dbname().is_none() {
            return Err(TargetError::NoDatabase);
        }
        let (hosts, addresses) = (config.get_hosts().len(), config.get_hostaddrs().len());
        let (count, ports) = (hosts.max(addresses), config.get_ports().len());
        if hosts.min(addresses) > 0 && hosts != addresses || ports > 1 && ports != count {
            return Err(TargetError::Hosts { hosts: count });
        }
        if let (Some(password), None) = (password, config.get_password()) {
            config.password(password);
        }
        // The driver connects to `hostaddr` in place of the hosts.
        let is_unix = |host: &Host| matches!(host, Host::Unix(_));
        let is_local = addresses == 0 && config.get_hosts().iter().all(is_unix);
        config.ssl_mode(settings.tls_mode(is_local)?);
        let timeout = config.get_connect_timeout().copied();
        config.connect_timeout(timeout.unwrap_or(CONNECT_TIMEOUT));
        config.tcp_user_timeout(settings.user_timeout()?.unwrap_or(USER_TIMEOUT));
        if config.get_keepalives_idle() == UNSET_IDLE {
            config.keepalives_idle(KEEPALIVES_IDLE);
        }
        let interval = config.get_keepalives_interval();
        config.keepalives_interval(interval.unwrap_or(KEEPALIVES_INTERVAL));
        let retries = config.get_keepalives_retries();
        let count_of_url = settings.keepalives_count()?.or(retries);
        config.keepalives_retries(count_of_url.unwrap_or(KEEPALIVES_COUNT));
        config.application_name("forge-bridge");
        let tls = match config.get_ssl_mode() {
            SslMode::Require => Tls::verified(settings.roots),
            _ => Tls::unverified(),
        };
        Ok(Self {
            sessions: settings.sessions(count)?,
            tls: tls.map_err(TargetError::Roots)?,
            config,
            server: Arc::default(),
        })
    }

    /// Hosts and database, for messages.
    pub fn name(&self) -> String {
        let count = self.host_count();
        let hosts: Vec<_> = (0..count).map(|place| self.host_name(place)).collect();
        let database = self.config.get_dbname().unwrap_or_default();
        format!("{} of {}", database, hosts.join(","))
    }

    pub(super) fn host_count(&self) -> usize {
        let named = self.config.get_hosts().len();
        named.max(self.config.get_hostaddrs().len())
    }

    pub(super) fn host_name(&self, place: usize) -> String {
        match (
            self.config.get_hosts().get(place),
            self.config.get_hostaddrs().get(place),
        ) {
            (Some(Host::Tcp(name)), _) => name.clone(),
            (Some(Host::Unix(path)), _) => path.display().to_string(),
            (None, Some(address)) => address.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Longest attempt to connect to one address.
    pub(super) fn connect_timeout(&self) -> Duration {
        let timeout = self.config.get_connect_timeout().copied();
        timeout.unwrap_or(CONNECT_TIMEOUT)
    }

    /// Places of the hosts in the order in which they are tried: that of the URL, after the one that answered last, or any.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.host_count()).collect();
        let last = self.server.last_host();
        match self.is_random() {
            true => shuffle(&mut order),
            false => order.sort_by_key(|place| *place != last),
        }
        order
    }

    fn is_random(&self) -> bool {
        self.config.get_load_balance_hosts() == LoadBalanceHosts::Random
    }

    /// Settings for each address of a host, which has one or several.
    pub(super) async fn addresses(&self, place: usize) -> Result<Vec<Config>, String> {
        let config = &self.config;
        let ports = config.get_ports();
        let port = ports.get(place).or(ports.first()).copied();
        let port = port.unwrap_or(DEFAULT_PORT);
        match (
            config.get_hosts().get(place),
            config.get_hostaddrs().get(place),
        ) {
            (host, Some(address)) => Ok(vec![self.at(host, Some(*address), port)]),
            (Some(Host::Tcp(name)), None) => {
                let found = lookup_host((name.as_str(), port)).await;
                let found = found.map_err(|error| error.to_string())?;
                let mut found: Vec<_> = found.map(|found: SocketAddr| found.ip()).collect();
                if self.is_random() {
                    shuffle(&mut found);
                }
                let host = config.get_hosts().get(place);
                let each = found.into_iter().map(|ip| self.at(host, Some(ip), port));
                Ok(each.collect())
            }
            (host, None) => Ok(vec![self.at(host, None, port)]),
        }
    }

    /// The same settings for one address.
    fn at(&self, host: Option<&Host>, address: Option<IpAddr>, port: u16) -> Config {
        let (from, mut one) = (&self.config, Config::new());
        match host {
            Some(Host::Tcp(name)) => one.host(name),
            Some(Host::Unix(path)) => one.host_path(path),
            None => &mut one,
        };
        if let Some(address) = address {
            one.hostaddr(address);
        }
        if let Some(user) = from.get_user() {
            one.user(user);
        }
        if let Some(password) = from.get_password() {
            one.password(password);
        }
        if let Some(database) = from.get_dbname() {
            one.dbname(database);
        }
        if let Some(options) = from.get_options() {
            one.options(options);
        }
        if let Some(name) = from.get_application_name() {
            one.application_name(name);
        }
        if let Some(silence) = from.get_tcp_user_timeout() {
            one.tcp_user_timeout(*silence);
        }
        if let Some(interval) = from.get_keepalives_interval() {
            one.keepalives_interval(interval);
        }
        if let Some(retries) = from.get_keepalives_retries() {
            one.keepalives_retries(retries);
        }
        one.port(port)
            .ssl_mode(from.get_ssl_mode())
            .ssl_negotiation(from.get_ssl_negotiation())
            .channel_binding(from.get_channel_binding())
            .keepalives(from.get_keepalives())
            .keepalives_idle(from.get_keepalives_idle());
        one
    }
}

fn shuffle<T: Hash>(all: &mut [T]) {
    let random = RandomState::new();
    all.sort_by_cached_key(|one| random.hash_one(one));
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
