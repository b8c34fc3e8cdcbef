//! The agent card: address and protocol version of the agent's endpoint.

use reqwest::Url;
use serde_json::Value;

use crate::config::{Settings, Wanted};

/// Protocol version; 1.0 and 0.3 differ mostly in names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Old,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) url: Url,
    pub(crate) version: Version,
    pub(crate) streaming: Streaming,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Streaming {
    Offered,
    /// Tasks are polled.
    Missing,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnusableCard {
    #[error("{}", crate::NO_URL)]
    NotConfigured,
    #[error("the agent's card has no JSON-RPC interface of the configured version (1.0 or 0.3)")]
    NoInterface,
    #[error("the agent's card has an invalid address, {0:?}")]
    Address(String),
    #[error(
        "the agent's card points to another origin, {0}; if that is intended, set adapters.<id>.endpoint to that address"
    )]
    Elsewhere(String),
}

impl Endpoint {
    pub(crate) fn choose(
        settings: &Settings,
        card_url: &Url,
        card: &Value,
    ) -> Result<Self, UnusableCard> {
        let mut found: Vec<(Version, &str)> = Vec::new();
        for interface in card["supportedInterfaces"].as_array().into_iter().flatten() {
            let binding = interface["protocolBinding"].as_str().unwrap_or_default();
            if let (true, Some(version), Some(url)) = (
                is_json_rpc(binding),
                version(&interface["protocolVersion"]),
                interface["url"].as_str(),
            ) {
                found.push((version, url));
            }
        }
        // Before 1.0 the card itself described the interface.
        let transport = card["preferredTransport"].as_str().unwrap_or("JSONRPC");
        if let (true, Some(url)) = (is_json_rpc(transport), card["url"].as_str()) {
            found.push((
                version(&card["protocolVersion"]).unwrap_or(Version::Old),
                url,
            ));
        }
        let of = |wanted: Version| found.iter().find(|(version, _)| *version == wanted);
        let chosen = match settings.table.version {
            Wanted::Auto => of(Version::One).or_else(|| of(Version::Old)),
            Wanted::One => of(Version::One),
            Wanted::Old => of(Version::Old),
        };
        let (version, url) = *chosen.ok_or(UnusableCard::NoInterface)?;
        let url = match &settings.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => {
                let url = card_url
                    .join(url)
                    .map_err(|_| UnusableCard::Address(url.to_owned()))?;
                if url.origin() != card_url.origin() {
                    return Err(UnusableCard::Elsewhere(url.origin().ascii_serialization()));
                }
                url
            }
        };
        let streaming = match card["capabilities"]["streaming"].as_bool() {
            Some(true) => Streaming::Offered,
            Some(false) | None => Streaming::Missing,
        };
        Ok(Self {
            url,
            version,
            streaming,
        })
    }
}

fn is_json_rpc(binding: &str) -> bool {
    binding.eq_ignore_ascii_case("JSONRPC")
}

fn version(text: &Value) -> Option<Version> {
    match text.as_str()?.split('.').next()? {
        "1" => Some(Version::One),
        "0" => Some(Version::Old),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::Config;
    use serde_json::json;

    use super::*;

    fn choose(config: Value, card: &Value) -> Result<Endpoint, UnusableCard> {
        let settings = Settings::read(&Config::try_from(config).unwrap(), "a2a").unwrap();
        Endpoint::choose(
            &settings,
            &Url::parse("http://a/.well-known/agent-card.json").unwrap(),
            card,
        )
    }

    fn both() -> Value {
        json!({
            "supportedInterfaces": [
                {"url": "http://a/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"},
                {"url": "http://a/old", "protocolBinding": "JSONRPC", "protocolVersion": "0.3"},
                {"url": "/one", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            ],
            "capabilities": {"streaming": true},
        })
    }

    #[test]
    fn the_newest_protocol_is_chosen_unless_another_is_wanted() {
        let one = choose(json!({}), &both()).unwrap();
        assert_eq!(
            (one.url.as_str(), one.version, one.streaming),
            ("http://a/one", Version::One, Streaming::Offered)
        );
        let old = choose(json!({"version": "0.3"}), &both()).unwrap();
        assert_eq!(
            (old.url.as_str(), old.version),
            ("http://a/old", Version::Old)
        );
        let alone = choose(
            json!({}),
            &json!({"url": "http://a/x", "protocolVersion": "0.3.0"}),
        )
        .unwrap();
        assert_eq!(
            (alone.version, alone.streaming),
            (Version::Old, Streaming::Missing)
        );
    }

    #[test]
    fn a_card_does_not_lead_elsewhere_unless_the_operator_says_so() {
        let card = json!({"url": "http://b/x", "protocolVersion": "0.3"});
        assert_eq!(
            choose(json!({}), &card),
            Err(UnusableCard::Elsewhere("http://b".to_owned()))
        );
        assert_eq!(
            choose(json!({"endpoint": "http://b/y"}), &card)
                .unwrap()
                .url
                .as_str(),
            "http://b/y"
        );
        for bad in [
            json!({}),
            json!([]),
            json!({"url": "http://a/x", "protocolVersion": "7"}),
            json!({"supportedInterfaces": 3}),
        ] {
            let chosen = choose(json!({"version": "1.0"}), &bad);
            assert_eq!(chosen, Err(UnusableCard::NoInterface));
        }
    }
}
