//! What is told about one gateway, and how many gateways a bridge is: one for each adapter, because a
//! capability profile belongs to one gateway. Pure.

use std::sync::Arc;

use forge_adapter_api::Profile;
use serde::Serialize;

/// An adapter as the registry sees it.
#[derive(Clone, Debug)]
pub struct Gateway {
    pub provider: String,
    /// `None` for an adapter that was never loaded. Its bound is what the bridge will really run.
    pub profile: Option<Profile>,
}

/// What all gateways of this process have in common.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) gateway_id: String,
    pub(super) name: String,
    pub(super) environment: String,
    pub(super) url: String,
    pub(super) instance_id: Arc<str>,
}

/// The body of a registration. It holds these members and no other: registries with a closed schema
/// refuse what they do not know.
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

/// One entry for each gateway that can say what it can do; one that was never loaded is not offered to
/// anybody. The ids depend on what is configured alone, so that they survive an adapter that is away.
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
                cost_tier: CostTier::Low,
                latency_profile: LatencyProfile::Fast,
            }),
        }
    }

    #[test]
    fn an_entry_has_the_members_of_the_contract_and_no_other() {
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
