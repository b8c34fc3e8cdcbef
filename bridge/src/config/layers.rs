//! Sources of values: a TOML text and environment variables, merged as figment layers named by source.
//! Handles keys by name only, not their meaning.

use std::collections::BTreeMap;

use figment::providers::{Format, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};

use forge_base::spelling::nearest;
use forge_plugin_host::DEFAULT_ADAPTER;

/// Variables whose name does not follow from their key.
const SPECIAL: [(&str, &str); 5] = [
    ("BRIDGE_ADAPTERS", "plugin.adapters"),
    ("GATEWAY_PROVIDER", "plugin.default_provider"),
    ("BRIDGE_TOKENS", "auth.tokens"),
    ("BRIDGE_SECRET_KEY", "secret.key"),
    ("BRIDGE_STORE", "store.url"),
];

/// Variables read by the command line, not by the configuration.
const ELSEWHERE: [&str; 4] = ["BRIDGE_CONFIG", "BRIDGE_URL", "BRIDGE_TOKEN", "BRIDGE_CA"];

/// Tables whose keys are chosen by the operator. Variables exist for the first: `BRIDGE_ADAPTERS_ACME_AI_LIBRARY`.
const ADAPTERS: &str = "adapters";
const FREE_TABLES: [&str; 2] = ["adapters.", "callback.origins."];

/// Merged layers and the warnings raised while merging.
pub(super) struct Layers {
    pub(super) figment: Figment,
    pub(super) warnings: Vec<String>,
}

/// All keys of the configuration, dotted, from its serialised defaults.
pub(super) fn keys(defaults: &serde_json::Value) -> Vec<String> {
    fn walk(at: &str, value: &serde_json::Value, into: &mut Vec<String>) {
        match value {
            serde_json::Value::Object(fields) => {
                for (name, value) in fields {
                    let path = if at.is_empty() {
                        name.clone()
                    } else {
                        format!("{at}.{name}")
                    };
                    walk(&path, value, into);
                }
            }
            serde_json::Value::Null
            | serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_)
            | serde_json::Value::Array(_) => into.push(at.to_owned()),
        }
    }
    let mut keys = Vec::new();
    walk("", defaults, &mut keys);
    keys
}

/// Keys of a documented file, including commented-out ones, but without the entries of tables that operators
/// fill.
pub(super) fn documented_keys(text: &str) -> Vec<String> {
    let Ok(layer) = file("the documentation", &uncommented(text)) else {
        return Vec::new();
    };
    let chosen = |key: &String| FREE_TABLES.iter().any(|table| key.starts_with(table));
    let values = serde_json::to_value(&layer.values).unwrap_or_default();
    keys(&values)
        .into_iter()
        .filter(|key| !chosen(key))
        .collect()
}

/// Uncomments keys and tables: lines that begin with `#` and no space.
pub(super) fn uncommented(text: &str) -> String {
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(rest) if rest.starts_with(|c: char| c.is_ascii_lowercase() || c == '[') => rest,
        Some(_) | None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Environment variable of a key: `BRIDGE_RETENTION_RECORDS` for `retention.records`.
pub(super) fn variable(key: &str) -> String {
    format!("BRIDGE_{}", upper(key))
}

fn upper(key: &str) -> String {
    key.replace(['.', '-'], "_").to_uppercase()
}

/// Parses a TOML text into a layer. The error contains line and column but no text, which could hold a
/// secret.
pub(super) fn file(name: &str, text: &str) -> Result<Named, String> {
    let data = Toml::string(text)
        .data()
        .map_err(|error| without_excerpt(&error.kind.to_string()))?;
    let values = data.into_values().flatten().collect();
    Ok(Named {
        name: format!("file {name}"),
        values,
    })
}

fn without_excerpt(message: &str) -> String {
    let is_excerpt = |line: &&str| {
        let rest = line
            .trim_start()
            .trim_start_matches(|c: char| c.is_ascii_digit());
        rest.trim_start().starts_with('|')
    };
    let lines: Vec<_> = message.lines().filter(|line| !is_excerpt(line)).collect();
    lines.join(": ")
}

/// Layer of the XDG base directories, if set; overridden by every other layer.
pub(super) fn standard_folders(environment: &BTreeMap<String, String>, keys: &[String]) -> Figment {
    let folders = [
        ("XDG_DATA_HOME", "data_dir", "forge-bridge"),
        (
            "XDG_CONFIG_HOME",
            "secret.key_file",
            "forge-bridge/secret.key",
        ),
    ];
    let mut figment = Figment::new();
    for (variable, key, below) in folders {
        let folder = environment.get(variable).filter(|text| !text.is_empty());
        if let Some(folder) = folder.filter(|_| keys.iter().any(|known| known == key)) {
            let path: Vec<_> = key.split('.').collect();
            figment = figment.merge(Named::value(variable, &path, &format!("{folder}/{below}")));
        }
    }
    figment
}

/// Layer of OpenTelemetry's own variables; overrides only the defaults.
pub(super) fn standard_telemetry(
    environment: &BTreeMap<String, String>,
    keys: &[String],
) -> Figment {
    // Later entries override earlier ones.
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "otlp.endpoint"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "otlp.endpoint"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "otlp.headers"),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "otlp.headers"),
        ("OTEL_SERVICE_NAME", "otlp.service_name"),
        ("OTEL_RESOURCE_ATTRIBUTES", "otlp.resource"),
    ];
    let set = |name: &str| environment.get(name).filter(|text| !text.is_empty());
    let off = [
        ("OTEL_SDK_DISABLED", "true"),
        ("OTEL_TRACES_EXPORTER", "none"),
    ];
    let is_off = |(name, value)| set(name).is_some_and(|text| text.eq_ignore_ascii_case(value));
    let mut figment = Figment::new();
    if off.into_iter().any(is_off) {
        return figment;
    }
    if let Some(ratio) = sample_ratio(set) {
        let path = ["otlp", "sample_ratio"];
        figment = figment.merge(Named::value("OTEL_TRACES_SAMPLER", &path, ratio));
    }
    for (variable, key) in variables {
        let text = set(variable).filter(|_| keys.iter().any(|known| known == key));
        if let Some(text) = text {
            let path: Vec<_> = key.split('.').collect();
            figment = figment.merge(Named::value(variable, &path, text));
        }
    }
    figment
}

/// Sampling ratio of an OpenTelemetry sampler; `None` for unsupported samplers.
fn sample_ratio<'a>(set: impl Fn(&str) -> Option<&'a String>) -> Option<&'a str> {
    let sampler = set("OTEL_TRACES_SAMPLER")?;
    match sampler.trim_start_matches("parentbased_") {
        "always_on" => Some("1"),
        "always_off" => Some("0"),
        "traceidratio" => Some(set("OTEL_TRACES_SAMPLER_ARG").map_or("1", String::as_str)),
        _ => None,
    }
}

/// Merges the environment over a figment. An empty variable counts as not set.
pub(super) fn environment(
    mut figment: Figment,
    environment: &BTreeMap<String, String>,
    keys: &[String],
) -> Layers {
    let mut warnings = Vec::new();
    let by_variable: BTreeMap<String, &str> = keys
        .iter()
        .map(|key| (variable(key), key.as_str()))
        .chain(SPECIAL.map(|(name, key)| (name.to_owned(), key)))
        .collect();
    let set = |name: &str| environment.get(name).filter(|text| !text.is_empty());
    let ids = adapter_ids(&figment, set("BRIDGE_ADAPTERS").or(set("GATEWAY_PROVIDER")));

    if let (Some(provider), None) = (set("GATEWAY_PROVIDER"), set("BRIDGE_ADAPTERS"))
        && !figment.contains("plugin.adapters")
    {
        let path = ["plugin", "adapters"];
        figment = figment.merge(Named::value("GATEWAY_PROVIDER", &path, provider));
    }
    for (name, text) in environment {
        if text.is_empty() || ELSEWHERE.contains(&name.as_str()) {
            continue;
        }
        if let Some(key) = by_variable.get(name) {
            let path: Vec<_> = key.split('.').collect();
            figment = figment.merge(Named::value(name, &path, text));
        } else if let Some((id, key)) = adapter_key(name, &ids) {
            let mut layer = Named::value(name, &[ADAPTERS, id, &key], text);
            if let ("max_concurrent", Ok(number)) = (key.as_str(), text.parse::<u64>()) {
                // Other keys belong to the adapter, which gets text.
                layer = Named::at(name, &[ADAPTERS, id, &key], Value::from(number));
            }
            figment = figment.merge(layer);
        } else if name.starts_with("BRIDGE_") {
            let known = by_variable.keys().map(String::as_str);
            warnings.push(match nearest(name, known) {
                Some(known) => format!("{name} is not a setting; did you mean {known}?"),
                None => format!("{name} is not a setting and has no effect"),
            });
        }
    }
    Layers { figment, warnings }
}

/// Ids of all adapters named in any layer, longest first, so that `acme-ai` wins over `acme`.
fn adapter_ids(figment: &Figment, listed: Option<&String>) -> Vec<String> {
    let mut ids: Vec<String> = listed
        .into_iter()
        .flat_map(|text| text.split(','))
        .map(|id| id.trim().to_owned())
        .collect();
    if let Ok(Value::Dict(_, tables)) = figment.find_value(ADAPTERS) {
        ids.extend(tables.into_keys());
    }
    if let Ok(Value::Array(_, list)) = figment.find_value("plugin.adapters") {
        ids.extend(list.into_iter().filter_map(Value::into_string));
    }
    if listed.is_none() && !figment.contains("plugin.adapters") {
        ids.push(DEFAULT_ADAPTER.to_owned());
    }
    ids.sort_by_key(|id| std::cmp::Reverse(id.len()));
    ids
}

fn adapter_key<'a>(name: &str, ids: &'a [String]) -> Option<(&'a str, String)> {
    let rest = name.strip_prefix("BRIDGE_ADAPTERS_")?;
    ids.iter().find_map(|id| {
        let key = rest.strip_prefix(&upper(id))?.strip_prefix('_')?;
        (!key.is_empty()).then(|| (id.as_str(), key.to_lowercase()))
    })
}

/// Layer with the name of its source.
pub(super) struct Named {
    name: String,
    values: Dict,
}

impl Named {
    fn value(variable: &str, path: &[&str], text: &str) -> Self {
        Self::at(variable, path, Value::from(text))
    }

    fn at(variable: &str, path: &[&str], value: Value) -> Self {
        let mut values = Dict::new();
        if let Some((last, parents)) = path.split_last() {
            values.insert((*last).to_owned(), value);
            for parent in parents.iter().rev() {
                values = Dict::from([((*parent).to_owned(), Value::from(values))]);
            }
        }
        Self {
            name: format!("{ENVIRONMENT} {variable}"),
            values,
        }
    }
}

/// Prefix of source names of environment variables.
pub(super) const ENVIRONMENT: &str = "environment";

impl Provider for Named {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Map::from([(Profile::Default, self.values.clone())]))
    }
}
