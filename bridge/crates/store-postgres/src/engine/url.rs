//! Settings of a URL that are ours, because the driver knows fewer, or other units.

use std::time::Duration;

use percent_encoding::percent_decode_str;
use tokio_postgres::config::SslMode;

use super::target::TargetError;

#[derive(Default)]
pub(super) struct UrlSettings<'a> {
    tls_mode: Option<&'a str>,
    pub(super) roots: Option<&'a str>,
    sessions: Option<&'a str>,
    user_timeout: Option<&'a str>,
    keepalives_count: Option<&'a str>,
}

/// Servers that are connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sessions {
    Any,
    /// Servers whose transactions can write.
    ReadWrite,
    /// Servers that follow no other one.
    Primary,
}

impl<'a> UrlSettings<'a> {
    /// Takes the settings out of a URL.
    pub(super) fn take(url: &'a str) -> Result<(Self, String), TargetError> {
        let (mut own, mut kept) = (Self::default(), Vec::new());
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        for setting in query.split('&').filter(|setting| !setting.is_empty()) {
            let (name, value) = setting.split_once('=').unwrap_or((setting, ""));
            // The driver decodes names, too.
            let name = percent_decode_str(name).decode_utf8_lossy();
            let (known, name) = match &*name {
                "sslmode" => (&mut own.tls_mode, "sslmode"),
                "sslrootcert" => (&mut own.roots, "sslrootcert"),
                "target_session_attrs" => (&mut own.sessions, "target_session_attrs"),
                "tcp_user_timeout" => (&mut own.user_timeout, "tcp_user_timeout"),
                "keepalives_count" => (&mut own.keepalives_count, "keepalives_count"),
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
    pub(super) fn tls_mode(&self, is_local: bool) -> Result<SslMode, TargetError> {
        match self.tls_mode {
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

    /// Of several hosts, one that can be written is looked for: one that cannot be is of no use.
    pub(super) fn sessions(&self, hosts: usize) -> Result<Sessions, TargetError> {
        match self.sessions {
            None | Some("any") if hosts <= 1 => Ok(Sessions::Any),
            None | Some("any" | "read-write") => Ok(Sessions::ReadWrite),
            Some("primary") => Ok(Sessions::Primary),
            Some(other @ ("read-only" | "standby" | "prefer-standby")) => {
                Err(TargetError::ReadOnly(other.to_owned()))
            }
            Some(other) => Err(TargetError::Sessions(other.to_owned())),
        }
    }

    /// In milliseconds, as libpq has it. 0, or none, is no value.
    pub(super) fn user_timeout(&self) -> Result<Option<Duration>, TargetError> {
        let millis = number("tcp_user_timeout", self.user_timeout)?.filter(|millis| *millis > 0);
        Ok(millis.map(|millis| Duration::from_millis(millis.into())))
    }

    pub(super) fn keepalives_count(&self) -> Result<Option<u32>, TargetError> {
        let count = number("keepalives_count", self.keepalives_count)?;
        Ok(count.filter(|count| *count > 0))
    }
}

fn number(name: &'static str, value: Option<&str>) -> Result<Option<u32>, TargetError> {
    let read = |value: &str| {
        let value = value.to_owned();
        value
            .parse()
            .map_err(|_| TargetError::Number { name, value })
    };
    value.map(read).transpose()
}
