//! Registration body of a gateway. A bridge registers one gateway for each adapter, because a capability
//! profile belongs to one gateway. Pure.

use std::sync::Arc;

use forge_adapter_api::Profile;
use serde::Serialize;

/// Adapter to register as a gateway.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub provider: String,
    /// `None` for an adapter that was never loaded. `max_concurrent` is the limit that the bridge enforces.
    pub profile: Option<Profile>,
}

/// Fields shared by all gateways of this process.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) gateway_id: String,
    pub(super) name: String,
    pub(super) environment: String,
    pub(super) url: String,
    pub(super) instance_id: Arc<str>,
}

/// Body of a registration. Contains these members and no others: registries with a closed schema reject
/// unknown ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    pub(super) gateway_id: String,
    name: String,
    environment: String,
    url: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_hash: Option<String>,
    instance_id: String,
    registration_source: Source,
    capabilities: Profile,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
enum Source {
    /// Registered by the bridge, not by an operator.
    #[serde(rename = "self")]
    Bridge,
}

/// Builds one entry for each gateway with a profile; an adapter that was never loaded is not registered. Ids
/// depend only on the configuration, so they stay the same while an adapter is offline.
pub(super) fn entries(
    identity: &Identity,
    gateways: Vec<Gateway>,
    token_hash: Option<&str>,
) -> Vec<Entry> {
    let single = gateways.len() == 1;
    let named = |gateway: Gateway| {
        let (provider, capabilities) = (gateway.provider, gateway.profile?);
        let (gateway_id, name) = match single {
            true => (identity.gateway_id.clone(), identity.name.clone()),
            false => (
                format!("{}:{provider}", identity.gateway_id),
                format!("{} ({provider})", identity.name),
            ),
        };
        Some(Entry {
            gateway_id,
            name,
            environment: identity.environment.clone(),
            url: identity.url.clone(),
            token_hash: token_hash.map(str::to_owned),
            instance_id: identity.instance_id.to_string(),
            registration_source: Source::Bridge,
            capabilities,
        })
    };
    gateways.into_iter().filter_map(named).collect()
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::{CostTier, LatencyProfile, OutputStrategy};

    use super::*;

    fn identity() -> Identity {
        Identity {
            gateway_id: "gw-1".into(),
            name: "Bridge".into(),
            environment: "staging".into(),
            url: "https://bridge.example".into(),
            instance_id: "i-1".into(),
        }
    }

    fn gateway(provider: &str) -> Gateway {
        Gateway {
            provider: provider.into(),
            profile: Some(Profile {
                capabilities: vec!["streaming".into()],
                native_tools: Vec::new(),
                max_concurrent: 8,
                output_strategies: vec![OutputStrategy::Stream],
                options: Vec::new(),
                cost_tier: CostTier::Low,
                latency_profile: LatencyProfile::Fast,
            }),
        }
    }

    #[test]
    fn an_entry_has_the_members_that_a_registry_knows_and_no_other() {
        let entries = entries(&identity(), vec![gateway("echo")], Some("ab12"));
        let body = serde_json::to_string_pretty(&entries).unwrap();
        insta::assert_snapshot!(body, @r#"
        [
          {
            "gatewayId": "gw-1",
            "name": "Bridge",
            "environment": "staging",
            "url": "https://bridge.example",
            "tokenHash": "ab12",
            "instanceId": "i-1",
            "registrationSource": "self",
            "capabilities": {
              "capabilities": [
                "streaming"
              ],
              "nativeTools": [],
              "maxConcurrent": 8,
              "outputStrategies": [
                "stream"
              ],
              "costTier": "low",
              "latencyProfile": "fast"
            }
          }
        ]
        "#);
    }

    #[test]
    fn several_adapters_are_several_gateways_and_ids_do_not_depend_on_what_is_loaded() {
        let away = |provider: &str| Gateway {
            profile: None,
            ..gateway(provider)
        };
        let table = [
            (vec![gateway("a")], vec!["gw-1"]),
            (vec![gateway("a"), gateway("b")], vec!["gw-1:a", "gw-1:b"]),
            (vec![gateway("a"), away("b")], vec!["gw-1:a"]),
            (vec![away("a")], vec![]),
        ];
        for (gateways, expected) in table {
            let entries = entries(&identity(), gateways, None);
            let ids: Vec<_> = entries.iter().map(|e| e.gateway_id.as_str()).collect();
            assert_eq!(ids, expected);
        }
    }

    #[test]
    fn without_a_token_nothing_is_said_of_one() {
        let entries = entries(&identity(), vec![gateway("a")], None);
        let entry = serde_json::to_value(&entries[0]).unwrap();
        assert_eq!(entry.get("tokenHash"), None);
    }
}
