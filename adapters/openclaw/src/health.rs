//! Health of the gateway, and the part of the profile that its settings decide.

use std::time::Duration;

use forge_adapter_api::Health;
use forge_adapter_transport::http::Failure;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::frame;
use crate::gateway::Gateway;

/// Limit of a health check; adapters have to answer within a second.
const PROBE: Duration = Duration::from_millis(900);

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

/// Settings of the gateway that the profile repeats.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) native_tools: Vec<String>,
    pub(crate) is_sandboxed: bool,
}

/// Reads the facts; without a connection there are none, and the adapter declares neither.
pub(crate) async fn facts(gateway: &Gateway) -> Facts {
    let catalog = match default_agent(gateway).await {
        Ok(agent) => {
            gateway
                .call("tools.catalog", &json!({ "agentId": agent }))
                .await
        }
        Err(failure) => Err(failure),
    };
    let config = gateway.call("config.get", &json!({})).await;
    if let Some(failure) = catalog.as_ref().err().or(config.as_ref().err()) {
        tracing::warn!(%failure, "the profile has no tools and no sandboxing until the adapter is reloaded");
    }
    let groups = catalog
        .as_ref()
        .map(|catalog| list(&catalog["groups"]))
        .unwrap_or_default();
    let tools = groups.iter().flat_map(|group| list(&group["tools"]));
    Facts {
        native_tools: tools
            .filter_map(|tool| tool["id"].as_str().map(str::to_owned))
            .collect(),
        is_sandboxed: config.is_ok_and(|config| is_sandboxed(&config["config"])),
    }
}

/// True if the tools of every session of every agent run in a sandbox.
pub(crate) fn is_sandboxed(config: &Value) -> bool {
    let agents = config["agents"]["entries"].as_object();
    let mut own = agents.into_iter().flat_map(serde_json::Map::values);
    let is_all = |mode: &Value| mode == "all";
    is_all(&config["agents"]["defaults"]["sandbox"]["mode"])
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
            let config =
                json!({"agents": {"defaults": defaults, "entries": {"a": {"sandbox": own}}}});
            assert_eq!(is_sandboxed(&config), expected, "{config}");
        }
    }
}
