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
    /// Tenant of the interface, to be sent with each call.
    pub(crate) tenant: Option<String>,
}

/// An interface of a card.
struct Interface<'a> {
    version: Version,
    url: &'a str,
    tenant: Option<&'a str>,
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
    #[error(
        "the agent requires the extension {0:?}; if its clients need nothing else for it, add it to adapters.<id>.extensions"
    )]
    Extension(String),
}

impl Endpoint {
    pub(crate) fn choose(
        settings: &Settings,
        card_url: &Url,
        card: &Value,
    ) -> Result<Self, UnusableCard> {
        let mut found: Vec<Interface<'_>> = Vec::new();
        for interface in card["supportedInterfaces"].as_array().into_iter().flatten() {
            let binding = interface["protocolBinding"].as_str().unwrap_or_default();
            if let (true, Some(version), Some(url)) = (
                is_json_rpc(binding),
                version(&interface["protocolVersion"]),
                interface["url"].as_str(),
            ) {
                let tenant = interface["tenant"].as_str();
                let tenant = tenant.filter(|tenant| !tenant.is_empty());
                found.push(Interface {
                    version,
                    url,
                    tenant,
                });
            }
        }
        // Before 1.0 the card itself described the interface.
        let preferred = card["preferredTransport"].as_str().unwrap_or("JSONRPC");
        let more = card["additionalInterfaces"].as_array();
        let more = more.into_iter().flatten().filter_map(|interface| {
            Some((interface["transport"].as_str()?, interface["url"].as_str()?))
        });
        let own = card["url"].as_str().map(|url| (preferred, url));
        let older = own.into_iter().chain(more);
        found.extend(
            older
                .filter(|(transport, _)| is_json_rpc(transport))
                .map(|(_, url)| Interface {
                    version: version(&card["protocolVersion"]).unwrap_or(Version::Old),
                    url,
                    tenant: None,
                }),
        );
        let of = |wanted: Version| found.iter().find(|found| found.version == wanted);
        let chosen = match settings.table.version {
            Wanted::Auto => of(Version::One).or_else(|| of(Version::Old)),
            Wanted::One => of(Version::One),
            Wanted::Old => of(Version::Old),
        };
        let chosen = chosen.ok_or(UnusableCard::NoInterface)?;
        let extensions = card["capabilities"]["extensions"].as_array();
        let required = extensions
            .into_iter()
            .flatten()
            .filter(|extension| extension["required"] == true);
        for uri in required.filter_map(|extension| extension["uri"].as_str()) {
            if !settings.table.extensions.iter().any(|known| known == uri) {
                return Err(UnusableCard::Extension(uri.to_owned()));
            }
        }
        let Interface {
            version,
            url,
            tenant,
        } = *chosen;
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
            tenant: tenant.map(str::to_owned),
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
    fn further_interfaces_tenants_and_required_extensions_are_read() {
        let old = json!({"url": "http://a/grpc", "preferredTransport": "GRPC", "protocolVersion": "0.3.0",
            "additionalInterfaces": [{"url": "http://a/grpc", "transport": "GRPC"},
                                     {"url": "http://a/rpc", "transport": "JSONRPC"}]});
        let chosen = choose(json!({}), &old).unwrap();
        assert_eq!(
            (chosen.url.as_str(), chosen.version),
            ("http://a/rpc", Version::Old)
        );
        let mut card = both();
        card["supportedInterfaces"][2]["tenant"] = "t1".into();
        assert_eq!(
            choose(json!({}), &card).unwrap().tenant.as_deref(),
            Some("t1")
        );
        card["capabilities"]["extensions"] =
            json!([{"uri": "urn:a"}, {"uri": "urn:b", "required": true}]);
        assert_eq!(
            choose(json!({}), &card),
            Err(UnusableCard::Extension("urn:b".to_owned()))
        );
        assert!(choose(json!({"extensions": ["urn:b"]}), &card).is_ok());
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
