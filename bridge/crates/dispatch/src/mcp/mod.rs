//! Clients of the configured MCP servers, for the tool loop. A server is started or connected for one
//! attempt, lists its tools, and ends with the attempt. Knows nothing of adapters and dispatches.

mod answer;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod http;
mod session;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use url::Url;

use forge_net as net;
use forge_net::guard::Refused;
use forge_process::program::{Launcher, Program, Purpose};

pub(crate) use self::session::prefix;
pub use self::session::{Answer, Session};

/// Settings of the MCP servers (`[mcp]`).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Servers by name, as dispatches list them in `mcpServers`.
    pub servers: BTreeMap<String, Server>,
    /// A dispatch fails if a server that it names does not start.
    pub required: bool,
    /// Timeout from the start of a server to its list of tools.
    #[serde(with = "forge_base::duration")]
    pub start_timeout: Duration,
    /// Timeout of one tool call.
    #[serde(with = "forge_base::duration")]
    pub call_timeout: Duration,
    /// Maximum length of a call result, as compact JSON.
    pub result_bytes: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            servers: BTreeMap::new(),
            required: true,
            start_timeout: Duration::from_secs(30),
            call_timeout: Duration::from_secs(120),
            result_bytes: 1024 * 1024,
        }
    }
}

/// One server: a program that uses its standard streams, or a URL.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Server {
    /// Path of a program, or a name to find in `PATH`.
    pub command: Option<String>,
    pub args: Vec<String>,
    /// Variables added to the few that every program is given.
    #[serde(with = "forge_base::secret::map")]
    pub env: BTreeMap<String, SecretString>,
    /// URL of a streamable HTTP server.
    pub url: Option<String>,
    /// Headers sent with every request to `url`.
    #[serde(with = "forge_base::secret::map")]
    pub headers: BTreeMap<String, SecretString>,
}

/// Dependencies of the clients.
pub struct Setup {
    pub config: Config,
    pub client: net::Client,
    /// Starts the servers that are programs.
    pub launcher: Launcher,
}

/// The configured servers. Cheap to clone.
#[derive(Clone)]
pub struct Servers {
    inner: Arc<Inner>,
}

struct Inner {
    setup: Setup,
    endpoints: BTreeMap<String, Endpoint>,
}

/// Connection parameters of a server.
#[derive(Clone, Debug)]
enum Endpoint {
    Program(Program),
    Url(http::Remote),
}

/// Errors of configuring and opening servers. Reasons are texts, since they come from the MCP library and
/// from programs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("mcp.servers.{name}: {problem}")]
    Malformed { name: String, problem: String },
    #[error("MCP server {0:?} is not configured")]
    Unknown(String),
    #[error("MCP server {name:?} could not be started: {reason}")]
    Start { name: String, reason: String },
    #[error("MCP server {name:?} may not be called: {reason}")]
    Refused { name: String, reason: Refused },
    #[error("MCP server {name:?} failed the handshake: {reason}")]
    Introduce { name: String, reason: String },
    #[error("MCP server {name:?} did not list its tools: {reason}")]
    List { name: String, reason: String },
    #[error("MCP server {name:?} was not ready within {limit:?}{said}")]
    Late {
        name: String,
        limit: Duration,
        said: String,
    },
}

impl Servers {
    pub fn new(setup: Setup) -> Result<Self, Error> {
        let endpoints = endpoints(&setup.config)?;
        Ok(Self {
            inner: Arc::new(Inner { setup, endpoints }),
        })
    }

    /// Validates this configuration.
    pub fn check(config: &Config) -> Result<(), Error> {
        endpoints(config).map(drop)
    }

    /// All servers by name, in the format of the `mcpServers` files that runtimes read. Contains secrets in
    /// plain text.
    pub fn described(&self) -> BTreeMap<String, Value> {
        let servers = self.inner.setup.config.servers.iter();
        servers
            .map(|(name, server)| (name.clone(), server.described()))
            .collect()
    }

    /// Setting `mcp.required`.
    pub fn required(&self) -> bool {
        self.inner.setup.config.required
    }

    /// Connects to these servers for one execution and lists their tools. Dropping the future or the session
    /// ends them.
    pub async fn open<'a>(
        &self,
        names: impl Iterator<Item = &'a String>,
        purpose: Purpose<'_>,
    ) -> Result<Session, Error> {
        let mut named = Vec::new();
        for name in names {
            let endpoint = self.inner.endpoints.get(name);
            let endpoint = endpoint.ok_or_else(|| Error::Unknown(name.clone()))?;
            named.push((name.as_str(), endpoint));
        }
        Session::open(&self.inner.setup, named, purpose).await
    }
}

impl Server {
    fn described(&self) -> Value {
        let exposed = |secrets: &BTreeMap<String, SecretString>| -> Map<String, Value> {
            let each = secrets.iter();
            each.map(|(name, value)| (name.clone(), value.expose_secret().into()))
                .collect()
        };
        match &self.command {
            Some(command) => json!({
                "type": "stdio",
                "command": command,
                "args": self.args,
                "env": exposed(&self.env),
            }),
            None => json!({
                "type": "http",
                "url": self.url,
                "headers": exposed(&self.headers),
            }),
        }
    }

    fn endpoint(&self) -> Result<Endpoint, String> {
        match (&self.command, &self.url) {
            (Some(command), None) if !self.headers.is_empty() => {
                Err(format!("headers go with url, not with command {command:?}"))
            }
            (Some(command), None) if command.is_empty() => Err("command is empty".to_owned()),
            (Some(command), None) => Ok(Endpoint::Program(Program {
                command: command.into(),
                args: self.args.clone(),
                env: self.env.clone(),
            })),
            (None, Some(_)) if !(self.args.is_empty() && self.env.is_empty()) => {
                Err("args and env go with command, not with url".to_owned())
            }
            (None, Some(url)) => {
                let url = Url::parse(url).map_err(|error| format!("url: {error}"))?;
                http::Remote::new(url, &self.headers).map(Endpoint::Url)
            }
            (Some(_), Some(_)) => Err("has command and url; give one".to_owned()),
            (None, None) => Err("has neither command nor url".to_owned()),
        }
    }
}

fn endpoints(config: &Config) -> Result<BTreeMap<String, Endpoint>, Error> {
    let each = config.servers.iter().map(|(name, server)| {
        let endpoint = check_name(name).and_then(|()| server.endpoint());
        match endpoint {
            Ok(endpoint) => Ok((name.clone(), endpoint)),
            Err(problem) => Err(Error::Malformed {
                name: name.clone(),
                problem,
            }),
        }
    });
    each.collect()
}

/// Checks a server name. It becomes part of tool names, for which models accept few characters.
fn check_name(name: &str) -> Result<(), String> {
    let plain = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if !plain || !(1..=32).contains(&name.len()) || name.contains("__") {
        return Err(
            "a name has 1 to 32 letters, digits, - and _, without two _ in a row".to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn what_is_wrong_with_a_server_is_said_with_its_name() {
        for (server, problem) in [
            (r#""a": {}"#, "neither"),
            (
                r#""a": {"command": "x", "url": "https://a.example/"}"#,
                "give one",
            ),
            (r#""a": {"command": ""}"#, "empty"),
            (r#""a": {"command": "x", "headers": {"a": "b"}}"#, "headers"),
            (
                r#""a": {"url": "https://a.example/", "args": ["x"]}"#,
                "args",
            ),
            (r#""a": {"url": "not a url"}"#, "url"),
            (
                r#""a": {"url": "https://a.example/", "headers": {"a b": "c"}}"#,
                "header",
            ),
            (
                r#""a": {"url": "https://a.example/", "headers": {"mcp-session-id": "c"}}"#,
                "header",
            ),
            (r#""a__b": {"command": "x"}"#, "name"),
            (r#""a.b": {"command": "x"}"#, "name"),
            (r#""": {"command": "x"}"#, "name"),
        ] {
            let config = config(&format!(r#"{{"servers": {{{server}}}}}"#));
            let error = Servers::check(&config).unwrap_err().to_string();
            assert!(
                error.starts_with("mcp.servers.") && error.contains(problem),
                "{error}"
            );
        }
    }

    #[test]
    fn servers_are_described_as_runtimes_read_them() {
        let config = config(
            r#"{"servers": {
                "files": {"command": "files", "args": ["-r"], "env": {"KEY": "k"}},
                "web": {"url": "https://a.example/mcp", "headers": {"authorization": "Bearer t"}}
            }}"#,
        );
        Servers::check(&config).unwrap();
        assert_eq!(
            config.servers["files"].described(),
            json!({"type": "stdio", "command": "files", "args": ["-r"], "env": {"KEY": "k"}})
        );
        let headers = json!({"authorization": "Bearer t"});
        assert_eq!(
            config.servers["web"].described(),
            json!({"type": "http", "url": "https://a.example/mcp", "headers": headers})
        );
        let printed = format!("{config:?}{}", serde_json::to_string(&config).unwrap());
        assert!(!printed.contains("Bearer t"), "{printed}");
    }
}
