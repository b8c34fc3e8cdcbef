//! Calls of remotes: the address is checked again and pinned, and a repository on this machine starts nothing.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use url::Url;

use super::program::Step;
use super::url::{BadRule, ByUrl, Place, RepoUrl, UrlPattern, UrlRules};
use super::{Error, LocalHooks};

/// Settings of the side of a repository on this machine, whose own would apply there: no helper or upkeep. A branch that
/// is checked out there is updated all the same, and its files are not. It can be of another user, since nothing that it
/// contains is run.
const LOCAL_SIDE: &str = "git -c core.fsmonitor=false -c core.alternateRefsCommand=: -c gc.auto=0 \
    -c maintenance.auto=false -c receive.autogc=false -c receive.denyCurrentBranch=ignore -c 'safe.directory=*'";
/// Further setting there, unless hooks are run.
const NO_HOOKS: &str = "-c core.hooksPath=/dev/null";

/// Settings of calls of remotes.
#[derive(Clone, Debug)]
pub struct Remotes {
    pub(super) rules: UrlRules,
    authorization: ByUrl<SecretString>,
    proxy: Option<String>,
    pub(super) push: Push,
    pub(super) hooks: LocalHooks,
}

/// Target of results: `runs.push`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Push {
    /// The remote.
    Always,
    /// The bare repository of the run.
    Never,
}

impl Remotes {
    /// `authorization` has the value of the header `authorization` for all addresses that begin with its key; it is
    /// sent over https, and to this machine, only. `proxy` is that of all calls of the bridge; it resolves the names.
    pub fn new(
        rules: UrlRules,
        authorization: &BTreeMap<String, SecretString>,
        proxy: Option<String>,
        push: Push,
        hooks: LocalHooks,
    ) -> Result<Self, BadRule> {
        let keyed = authorization.iter();
        let keyed = keyed.map(|(key, value)| Ok((UrlPattern::remote(key)?, value.clone())));
        Ok(Self {
            rules,
            authorization: ByUrl::new(keyed.collect::<Result<Vec<_>, BadRule>>()?)?,
            proxy,
            push,
            hooks,
        })
    }

    /// Prepares a call. The rules apply again: settings and links can have changed.
    pub(super) async fn call(&self, url: &RepoUrl) -> Result<Call, Error> {
        let url = self.rules.check(&url.to_string())?;
        let address = url.to_string();
        let authorization = self.authorization.get(&url);
        Ok(match url.0 {
            Place::Local(_) => Call {
                runs_hooks: self.hooks == LocalHooks::Run,
                ..Call::new(address, "file")
            },
            Place::Ssh(_) => Call::new(address, "ssh"),
            Place::Web(url) => {
                let mut call = Call::new(
                    address,
                    if url.scheme() == "https" {
                        "https"
                    } else {
                        "http"
                    },
                );
                let proxy = self.proxy.clone().unwrap_or_default();
                if proxy.is_empty() {
                    let found = self.rules.guard().addresses(&url).await?;
                    call.pin(&url, &found);
                }
                call.confidential.push(("http.proxy", proxy.into()));
                if let Some(value) = authorization.filter(|_| forge_net::is_private(&url)) {
                    let header = format!("Authorization: {}", value.expose_secret());
                    call.confidential.push(("http.extraHeader", header.into()));
                }
                call
            }
        })
    }
}

/// A prepared call of a remote.
pub(super) struct Call {
    pub(super) address: String,
    protocol: &'static str,
    /// Hooks of the other side are run, on this machine.
    runs_hooks: bool,
    settings: Vec<(&'static str, String)>,
    /// Settings with credentials.
    confidential: Vec<(&'static str, SecretString)>,
}

impl Call {
    fn new(address: String, protocol: &'static str) -> Self {
        Self {
            address,
            protocol,
            runs_hooks: false,
            settings: Vec::new(),
            confidential: Vec::new(),
        }
    }

    /// Lets git connect to these addresses only.
    fn pin(&mut self, url: &Url, found: &[std::net::IpAddr]) {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return;
        };
        if !found.is_empty() {
            let found: Vec<String> = found
                .iter()
                .map(|address| match address {
                    std::net::IpAddr::V4(address) => address.to_string(),
                    std::net::IpAddr::V6(address) => format!("[{address}]"),
                })
                .collect();
            let pinned = format!("{host}:{port}:{}", found.join(","));
            self.settings.push(("http.curloptResolve", pinned));
        }
    }

    /// Adds what the call needs to a step. `side` is the program of the other side and the option that sets it.
    pub(super) fn apply<'a>(&self, step: Step<'a>, side: Side) -> Step<'a> {
        let mut step = step.env("GIT_ALLOW_PROTOCOL", self.protocol);
        if let Some(program) = self.program(side) {
            step = step.arg(program);
        }
        for (name, value) in &self.settings {
            step = step.setting(name, value);
        }
        for (name, value) in &self.confidential {
            step = step.confidential(name, value.clone());
        }
        step.arg(&self.address)
    }

    /// Option with the program of the other side, if it runs on this machine.
    pub(super) fn program(&self, side: Side) -> Option<String> {
        let program = match side {
            Side::Sends => "upload-pack",
            Side::Receives => "receive-pack",
        };
        let hooks = if self.runs_hooks { "" } else { NO_HOOKS };
        (self.protocol == "file").then(|| format!("--{program}={LOCAL_SIDE} {hooks} {program}"))
    }
}

/// Task of the other side.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Sends,
    Receives,
}

#[cfg(test)]
mod tests {
    use super::*;
    use forge_net::guard::Guard;

    fn settings(call: &Call) -> BTreeMap<&'static str, &str> {
        let open = call.settings.iter();
        let open = open.map(|(name, value)| (*name, value.as_str()));
        let confidential = call.confidential.iter();
        open.chain(confidential.map(|(name, value)| (*name, value.expose_secret())))
            .collect()
    }

    #[tokio::test]
    async fn a_call_is_pinned_and_carries_the_credentials_of_its_own_address_only() {
        let named = [
            "http://localhost/team",
            "https://localhost",
            "https://localhost:8443",
        ];
        let named = named.map(str::to_owned);
        let guard = Guard::new(&["loopback".to_owned()]).unwrap();
        let keyed = ["https://localhost/team", "http://localhost/team"];
        let keyed = keyed
            .map(|prefix| (prefix.to_owned(), "Basic hush".into()))
            .into();
        let rules = UrlRules::new(&named, &[], guard).unwrap();
        let remotes = |proxy| {
            let hooks = LocalHooks::Refuse;
            Remotes::new(rules.clone(), &keyed, proxy, Push::Always, hooks).unwrap()
        };
        let call = async |proxy: Option<&str>, address: &str| {
            let remotes = remotes(proxy.map(str::to_owned));
            let url = remotes.rules.check(address).unwrap();
            remotes.call(&url).await.unwrap()
        };

        let own = call(None, "https://localhost/team/a").await;
        assert_eq!(
            settings(&own)["http.extraHeader"],
            "Authorization: Basic hush"
        );
        let pinned = settings(&own)["http.curloptResolve"];
        assert!(pinned.starts_with("localhost:443:"), "{pinned}");
        let other = call(None, "https://localhost:8443/team/a").await;
        assert!(!settings(&other).contains_key("http.extraHeader"));
        let proxied = call(Some("http://proxy:1"), "https://localhost/a").await;
        assert!(!settings(&proxied).contains_key("http.curloptResolve"));
        assert_eq!(settings(&proxied)["http.proxy"], "http://proxy:1");
        assert_eq!(call(None, "http://localhost/team").await.protocol, "http");
    }
}
