//! SSRF guard: the bridge calls only the public internet and what a setting such as `callback.allow` permits. Pure rules on URLs and
//! addresses; the resolver applies them to every address of a name.

mod pin;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use tower::BoxError;
use url::{Host, Url};

use forge_base::reloadable::Reloadable;

use super::special::special_range;

/// Decides which URLs and addresses can be called. Clones share the rules.
#[derive(Clone, Debug)]
pub struct Guard {
    allowed: Reloadable<Vec<Rule>>,
    /// Name of the setting that allows further addresses, for errors.
    setting: &'static str,
}

/// Reason why a URL is not called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("only http and https URLs can be called, not {0}")]
    Scheme(String),
    #[error("the URL must not contain a user name or password")]
    Userinfo,
    #[error("the URL has no host")]
    NoHost,
    #[error("{address} is {range} and not in {setting}")]
    Address {
        address: IpAddr,
        range: &'static str,
        setting: &'static str,
    },
    #[error("{name} resolves to {address}, which is {range} and not in {setting}")]
    Name {
        name: String,
        address: IpAddr,
        range: &'static str,
        setting: &'static str,
    },
}

/// Entry of a setting of allowed addresses that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{entry:?} is not an entry of {setting}; it takes a host, host:port, *.domain, an address, a network such as 10.0.0.0/8, or \"loopback\""
)]
pub struct BadRule {
    entry: String,
    setting: &'static str,
}

/// Treatment of the addresses behind a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trust {
    /// Each address is checked before a connection is made.
    Checked,
    /// The operator allowed this host by name: every address is accepted.
    Named,
}

impl Guard {
    /// Parses the entries of `callback.allow`: `host`, `host:port`, `*.domain`, `*.domain:port`, an address with or
    /// without a port, a network in CIDR form, or `loopback`.
    pub fn new(allow: &[String]) -> Result<Self, BadRule> {
        Self::of_setting("callback.allow", allow)
    }

    /// Parses the entries of another setting of the same form.
    pub fn of_setting(setting: &'static str, allow: &[String]) -> Result<Self, BadRule> {
        let bad = |entry| BadRule {
            entry: without_credentials(entry),
            setting,
        };
        let mut allowed = Vec::new();
        for entry in allow {
            allowed.extend(Rule::parse(entry).ok_or_else(|| bad(entry))?);
        }
        Ok(Self {
            allowed: allowed.into(),
            setting,
        })
    }

    /// Replaces the rules by those of `other`. Open connections are kept until they are idle.
    pub fn adopt(&self, other: &Guard) {
        self.allowed.replace(other.allowed.get());
    }

    /// Checks everything in the URL itself: scheme, user info, and a literal address. Names are checked when they are
    /// resolved.
    pub fn check_url(&self, url: &Url) -> Result<(), Refused> {
        self.trust(url).map(drop)
    }

    /// Checks one resolved address.
    pub fn check_address(&self, address: IpAddr) -> Result<(), Refused> {
        let in_allowed_net = self.allowed.get().iter().any(|rule| match rule {
            Rule::Net(net) => net.contains(&address),
            Rule::Endpoint(_) | Rule::Name { .. } | Rule::Below { .. } => false,
        });
        match special_range(address) {
            Some(range) if !in_allowed_net => Err(Refused::Address {
                address,
                range,
                setting: self.setting,
            }),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn trust(&self, url: &Url) -> Result<Trust, Refused> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(Refused::Scheme(url.scheme().to_owned()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(Refused::Userinfo);
        }
        let port = url.port_or_known_default().ok_or(Refused::NoHost)?;
        let address = match url.host().ok_or(Refused::NoHost)? {
            Host::Domain(name) => return self.trust_name(name, port),
            Host::Ipv4(address) => IpAddr::V4(address),
            Host::Ipv6(address) => IpAddr::V6(address),
        };
        let endpoint = Rule::Endpoint(SocketAddr::new(address, port));
        if self.allowed.get().contains(&endpoint) {
            return Ok(Trust::Named);
        }
        self.check_address(address).map(|()| Trust::Checked)
    }

    fn trust_name(&self, name: &str, port: u16) -> Result<Trust, Refused> {
        let name = name.trim_end_matches('.');
        if self.allowed.get().iter().any(|rule| rule.names(name, port)) {
            return Ok(Trust::Named);
        }
        // Resolvers must answer loopback for these names (RFC 6761), so they are refused without a lookup.
        if name == "localhost" || name.ends_with(".localhost") {
            self.check_address(Ipv4Addr::LOCALHOST.into())
                .map_err(|refused| refused.of_name(name))?;
        }
        Ok(Trust::Checked)
    }
}

impl Refused {
    fn of_name(self, name: &str) -> Self {
        match self {
            Refused::Address {
                address,
                range,
                setting,
            } => Refused::Name {
                name: name.to_owned(),
                address,
                range,
                setting,
            },
            Refused::Scheme(_) | Refused::Userinfo | Refused::NoHost | Refused::Name { .. } => self,
        }
    }
}

/// Permission given by one entry of the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Net(IpNet),
    Endpoint(SocketAddr),
    Name {
        host: String,
        port: Option<u16>,
    },
    /// Every name below this domain, without the domain itself.
    Below {
        domain: String,
        port: Option<u16>,
    },
}

impl Rule {
    fn parse(entry: &str) -> Option<Vec<Rule>> {
        let text = entry.trim();
        if text == "loopback" {
            return Some(vec![
                Rule::Net(Ipv4Net::new_assert(Ipv4Addr::LOCALHOST, 8).trunc().into()),
                Rule::Net(Ipv6Net::from(Ipv6Addr::LOCALHOST).into()),
            ]);
        }
        if let Ok(net) = text.parse::<IpNet>() {
            return Some(vec![Rule::Net(net.trunc())]);
        }
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        if let Ok(address) = bare.parse::<IpAddr>() {
            return Some(vec![Rule::Net(address.into())]);
        }
        if let Ok(endpoint) = text.parse::<SocketAddr>() {
            return Some(vec![Rule::Endpoint(endpoint)]);
        }
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (text, None),
        };
        let (below, host) = match host.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, host),
        };
        let name = match Host::parse(host) {
            Ok(Host::Domain(name)) if !name.contains('*') => name,
            Ok(_) | Err(_) => return None,
        };
        let name = name.trim_end_matches('.').to_owned();
        Some(vec![if below {
            Rule::Below { domain: name, port }
        } else {
            Rule::Name { host: name, port }
        }])
    }

    fn names(&self, name: &str, at: u16) -> bool {
        match self {
            Rule::Net(_) | Rule::Endpoint(_) => false,
            Rule::Name { host, port } => name == host && port.is_none_or(|port| port == at),
            Rule::Below { domain, port } => {
                let below = name
                    .strip_suffix(domain.as_str())
                    .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'));
                below && port.is_none_or(|port| port == at)
            }
        }
    }
}

/// The entry as errors show it: what stands before an `@`, as in a URL with a password, is hidden.
fn without_credentials(entry: &str) -> String {
    match entry.rsplit_once('@') {
        Some((_, rest)) => format!("[hidden]@{rest}"),
        None => entry.to_owned(),
    }
}

/// Resolves a name; the connector fills in the port.
pub(super) type Lookup =
    Arc<dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Resolution by the system.
pub(super) fn system_lookup() -> Lookup {
    Arc::new(|name| {
        Box::pin(async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) })
    })
}

/// Resolver that returns only the addresses allowed by the guard, so that the checked address is the one connected
/// to.
#[derive(Clone)]
pub(super) struct Resolver {
    /// `None` accepts every address.
    pub(super) guard: Option<Guard>,
    pub(super) lookup: Lookup,
}

impl Resolver {
    pub(super) fn find(
        &self,
        name: String,
    ) -> impl Future<Output = Result<Vec<SocketAddr>, BoxError>> + Send + use<> {
        let guard = self.guard.clone();
        let found = (self.lookup)(name.clone());
        async move {
            let found = found.await?;
            let Some(guard) = guard else {
                return Ok(found);
            };
            let mut refused = None;
            let mut passed = Vec::new();
            for endpoint in found {
                match guard.check_address(endpoint.ip()) {
                    Ok(()) => passed.push(endpoint),
                    Err(why) => refused = Some(why),
                }
            }
            match refused {
                Some(why) if passed.is_empty() => Err(why.of_name(&name).into()),
                Some(_) | None => Ok(passed),
            }
        }
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let found = self.find(name.as_str().to_owned());
        Box::pin(async move { Ok(Box::new(found.await?.into_iter()) as Addrs) })
    }
}

#[cfg(test)]
mod tests;
