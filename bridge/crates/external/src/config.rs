//! Settings of external services (`[external]`).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::{Deserialize, Serialize};

use forge_net::{self as net, breaker};

use crate::identity::JwtConfig;
use crate::policy::Policy;

/// Settings of external services, their callers and their limits.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Folder of `.forge/external-manifests.json` and `forge.manifest.json`; relative to the working directory.
    pub root: PathBuf,
    pub auth: AuthMode,
    /// Callers with a JWT.
    pub jwt: JwtConfig,
    /// Addresses that may be called although they are not public, in the syntax of `callback.allow`.
    pub allow: Vec<String>,
    /// Flags of manifests that are enforced.
    pub enforce: Vec<Enforce>,
    /// True to check the arguments against `inputSchema` before the call.
    pub validate: bool,
    /// Time of one call, its retries included.
    #[serde(with = "forge_base::duration")]
    pub timeout: Duration,
    /// Maximum size of an answer.
    pub answer_bytes: usize,
    /// Maximum concurrent calls of one service; further ones are answered 503.
    pub max_calls: usize,
    /// Circuit breakers, one per service.
    pub breaker: breaker::Config,
    /// Policies by name, as entries name them.
    pub policies: BTreeMap<String, Policy>,
    /// Settings of single services, by the name in their manifest.
    pub services: BTreeMap<String, ServiceConfig>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root: ".".into(),
            auth: AuthMode::Token,
            jwt: JwtConfig::default(),
            allow: vec!["loopback".to_owned()],
            enforce: Vec::new(),
            validate: true,
            timeout: Duration::from_secs(30),
            answer_bytes: 4 * 1024 * 1024,
            max_calls: 64,
            breaker: breaker::Config::default(),
            policies: BTreeMap::new(),
            services: BTreeMap::new(),
        }
    }
}

impl Config {
    /// Settings of the client of all services. It keeps an idle connection for each call that a service may have in
    /// progress; with fewer, many concurrent calls would reconnect all the time.
    pub(crate) fn client(&self, net: &net::Config) -> net::Config {
        let own = self.services.values().filter_map(|own| own.max_calls);
        let most = own.fold(self.max_calls, usize::max);
        net::Config {
            idle_per_origin: net.idle_per_origin.max(most),
            ..net.clone()
        }
    }
}

/// Settings of one service. Limits that are missing are those of all services.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServiceConfig {
    /// True to permit starting the program that a `stdio` manifest names.
    pub program: bool,
    /// Variables of the program, besides the few that every program is given.
    #[serde(with = "forge_base::secret::map")]
    pub env: BTreeMap<String, SecretString>,
    /// Names of variables of the bridge that the program is given, too.
    pub pass_env: Vec<String>,
    /// File with the descriptors of a gRPC service (`protoc --descriptor_set_out --include_imports`), in place of its
    /// reflection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor_set: Option<PathBuf>,
    #[serde(
        with = "forge_base::duration::option",
        skip_serializing_if = "Option::is_none"
    )]
    pub timeout: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_calls: Option<usize>,
}

/// Source of the callers' identities.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", rename_all = "kebab-case")]
pub enum AuthMode {
    /// `identity` of the bridge token.
    Token,
    /// `x-forge-…` headers of the request, which anybody can write.
    DevHeaders,
    /// JWT in `Authorization`, verified by the keys at `jwt.jwks_url`.
    Jwt,
    /// The same; the issuer names the address of its keys.
    Oidc,
}

impl TryFrom<String> for AuthMode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "token" => Ok(AuthMode::Token),
            "dev-headers" => Ok(AuthMode::DevHeaders),
            "jwt" => Ok(AuthMode::Jwt),
            "oidc" => Ok(AuthMode::Oidc),
            _ => Err("wanted \"token\", \"dev-headers\", \"jwt\" or \"oidc\"".to_owned()),
        }
    }
}

/// Flag of entries that the bridge enforces besides their policies.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(try_from = "String", rename_all = "kebab-case")]
pub enum Enforce {
    /// A `tenantScoped` entry is denied to a caller without a tenant.
    Tenant,
    /// A command with `needsApproval` waits until it is approved.
    Approval,
}

impl TryFrom<String> for Enforce {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "tenant" => Ok(Enforce::Tenant),
            "approval" => Ok(Enforce::Approval),
            _ => Err("wanted \"tenant\" or \"approval\"".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_no_setting_is_refused() {
        for (settings, reason) in [
            (json!({"auth": "none"}), "wanted \"token\""),
            (json!({"enforce": ["tenants"]}), "wanted \"tenant\" or"),
            (
                json!({"services": {"a": {"timeout": "soon"}}}),
                "wanted a duration",
            ),
        ] {
            let error = serde_json::from_value::<Config>(settings.clone()).unwrap_err();
            assert!(error.to_string().contains(reason), "{settings}: {error}");
        }
        let dev = json!({"auth": "dev-headers", "enforce": ["tenant", "approval"]});
        let read: Config = serde_json::from_value(dev).unwrap();
        assert_eq!(
            (read.auth, read.enforce),
            (
                AuthMode::DevHeaders,
                vec![Enforce::Tenant, Enforce::Approval]
            )
        );
    }

    #[test]
    fn a_client_keeps_a_connection_for_each_call_of_a_service() {
        let net = |idle_per_origin| net::Config {
            idle_per_origin,
            ..net::Config::default()
        };
        let settings = json!({"max_calls": 50, "services": {"a": {"max_calls": 200}, "b": {}}});
        let config: Config = serde_json::from_value(settings).unwrap();
        assert_eq!(config.client(&net(32)).idle_per_origin, 200);
        assert_eq!(config.client(&net(500)).idle_per_origin, 500);
        assert_eq!(Config::default().client(&net(32)).idle_per_origin, 64);
    }
}
