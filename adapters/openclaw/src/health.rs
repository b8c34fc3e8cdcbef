//! Health of the gateway, and the part of the profile that its settings decide.

use std::sync::Mutex;
use std::time::Duration;

use forge_adapter_api::Health;
use forge_adapter_transport::http::Failure;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::connection::lock;
use crate::frame;
use crate::gateway::Gateway;

/// Limit of a health check; adapters have to answer within a second.
pub(crate) const PROBE: Duration = Duration::from_millis(900);

pub(crate) async fn probe(gateway: &Gateway) -> Health {
    let hello = match gateway.hello() {
        Ok(hello) => hello,
        Err(health) => return health,
    };
    if !hello.missing.is_empty() {
        return Health::degraded(format!(
            "the gateway did not grant the scopes {}: approve them with `openclaw devices approve`, or use a token that \
             has them",
            hello.missing.join(", ")
        ));
    }
    let (http, url) = gateway.http();
    match timeout(PROBE, http.head_of(http.get(&format!("{url}/readyz")))).await {
        Ok(Ok(_)) => Health::healthy(),
        Ok(Err(Failure::Refused { status, .. })) if status == 503 => {
            Health::degraded("the gateway is starting or draining: see `openclaw status`")
        }
        Ok(Err(failure)) => Health::degraded(format!("/readyz of the gateway: {failure}")),
        Err(_) => Health::degraded(format!("the gateway did not answer within {PROBE:?}")),
    }
}

/// The default agent: with several agents, the gateway wants one named for skills and tools.
pub(crate) async fn default_agent(gateway: &Gateway) -> Result<Value, frame::Failure> {
    let agents = gateway.call("agents.list", &json!({})).await?;
    Ok(agents["defaultId"].clone())
}

/// Settings of the gateway that the profile repeats. Without a connection there are none yet, and the adapter declares
/// neither.
#[derive(Clone, Default)]
pub(crate) struct Facts {
    pub(crate) native_tools: Vec<String>,
    pub(crate) is_sandboxed: bool,
    /// Start of the gateway and hash of its settings at the last look.
    seen: (String, String),
}

impl Facts {
    pub(crate) fn config_hash(&self) -> &str {
        &self.seen.1
    }
}

/// Looks at the settings, and at the tools if the settings or the gateway are others than before.
pub(crate) async fn look(facts: &Mutex<Facts>, gateway: &Gateway) -> Result<Facts, frame::Failure> {
    let boot = gateway.hello().map(|hello| hello.boot);
    let config = gateway.call("config.get", &json!({})).await?;
    let hash = config["hash"].as_str().unwrap_or_default();
    let seen = (boot.unwrap_or_default(), hash.to_owned());
    let known = {
        let mut facts = lock(facts);
        facts.is_sandboxed = is_sandboxed(&config);
        facts.clone()
    };
    if known.seen == seen {
        return Ok(known);
    }
    let agent = default_agent(gateway).await?;
    let catalog = gateway
        .call("tools.catalog", &json!({ "agentId": agent }))
        .await?;
    let groups = list(&catalog["groups"]).iter();
    let tools = groups.flat_map(|group| list(&group["tools"]));
    let native_tools = tools.filter_map(|tool| tool["id"].as_str().map(str::to_owned));
    let mut facts = lock(facts);
    facts.native_tools = native_tools.collect();
    facts.seen = seen;
    Ok(facts.clone())
}

/// True if the tools of every session of every agent run in a sandbox, by an answer to `config.get`. Settings that wait
/// for a restart of the gateway are no promise.
pub(crate) fn is_sandboxed(answer: &Value) -> bool {
    let agents = &answer["config"]["agents"];
    let own = agents["entries"].as_object();
    let mut own = own.into_iter().flat_map(serde_json::Map::values);
    let is_all = |mode: &Value| mode == "all";
    answer["configRevisionHash"] == answer["appliedConfigHash"]
        && is_all(&agents["defaults"]["sandbox"]["mode"])
        && own.all(|agent| agent["sandbox"]["mode"].is_null() || is_all(&agent["sandbox"]["mode"]))
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_is_sandboxed_if_every_agent_is() {
        for (defaults, own, expected) in [
            ("all", json!({}), true),
            ("all", json!({"mode": "all"}), true),
            ("all", json!({"mode": "off"}), false),
            ("non-main", json!({}), false),
            ("off", json!({"mode": "all"}), false),
        ] {
            let defaults = json!({"sandbox": {"mode": defaults}});
            let agents = json!({"defaults": defaults, "entries": {"a": {"sandbox": own}}});
            let mut answer = json!({"config": {"agents": agents}, "configRevisionHash": "1", "appliedConfigHash": "1"});
            assert_eq!(is_sandboxed(&answer), expected, "{answer}");
            answer["appliedConfigHash"] = "0".into();
            assert!(!is_sandboxed(&answer), "it waits for a restart");
        }
    }
}
