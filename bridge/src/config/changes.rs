//! Difference of two configurations, by key. Values are compared but never shown.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::Config;

/// Returns the keys whose values differ, in the notation of the file.
pub fn between(old: &Config, new: &Config) -> Vec<String> {
    let tree = |config| serde_json::to_value(config).expect("a configuration is plain data");
    let mut keys = Vec::new();
    collect("", Some(&tree(old)), Some(&tree(new)), &mut keys);
    let (old, new) = (secrets(old), secrets(new));
    let changed = |key: &&String| {
        let [old, new] = [&old, &new].map(|all| all.get(*key).map(|text| text.expose_secret()));
        old != new
    };
    let mut hidden: Vec<_> = old.keys().chain(new.keys()).filter(changed).collect();
    hidden.sort();
    hidden.dedup();
    keys.extend(hidden.into_iter().cloned());
    keys
}

/// Secrets that a reload does not apply. They are never serialised, so they are compared separately.
fn secrets(config: &Config) -> BTreeMap<String, &SecretString> {
    let mut secrets = BTreeMap::new();
    for (key, secret) in [
        ("secret.key", &config.secret.key),
        ("store.url", &config.store.url),
        ("registration.token", &config.registration.token),
        ("signals.upstream.token", &config.signals.upstream.token),
    ] {
        if let Some(secret) = secret {
            secrets.insert(key.to_owned(), secret);
        }
    }
    for (at, header) in config.otlp.headers.iter().enumerate() {
        secrets.insert(format!("otlp.headers[{at}]"), header);
    }
    for (name, server) in &config.mcp.servers {
        for (group, entries) in [("env", &server.env), ("headers", &server.headers)] {
            for (entry, secret) in entries {
                secrets.insert(format!("mcp.servers.{name}.{group}.{entry}"), secret);
            }
        }
    }
    for (prefix, header) in &config.runs.authorization {
        secrets.insert(format!("runs.authorization.{prefix}"), header);
    }
    for (name, service) in &config.external.services {
        for (variable, secret) in &service.env {
            secrets.insert(format!("external.services.{name}.env.{variable}"), secret);
        }
    }
    secrets
}

fn collect(path: &str, old: Option<&Value>, new: Option<&Value>, keys: &mut Vec<String>) {
    match (old, new) {
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let added = after.keys().filter(|name| !before.contains_key(*name));
            for name in before.keys().chain(added) {
                let key = match path {
                    "" => name.clone(),
                    path => format!("{path}.{name}"),
                };
                collect(&key, before.get(name), after.get(name), keys);
            }
        }
        (old, new) if old != new => keys.push(path.to_owned()),
        (_, _) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_differs_is_named_by_its_key_and_never_shown() {
        let mut new = Config::default();
        new.store.readers += 1;
        new.secret.key = Some("hush".into());
        new.store.url = Some("postgres://a:hush@b/c".into());
        new.registration.token = Some("hush".into());
        new.signals.upstream.token = Some("hush".into());
        new.plugin.adapters = vec!["acme-ai".to_owned()];
        let table = serde_json::from_value(json!({ "api_key": "hush" })).unwrap();
        new.adapters.insert("acme-ai".to_owned(), table);
        assert_eq!(
            between(&Config::default(), &new),
            [
                "adapters.acme-ai",
                "plugin.adapters",
                "store.readers",
                "registration.token",
                "secret.key",
                "signals.upstream.token",
                "store.url"
            ]
        );
        assert!(between(&new, &new).is_empty());
    }
}
