//! A configuration whose keys and values are selected by the input bytes, so that a few bytes reach any key, which
//! random text seldom does.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use forge_bridge::config::fuzzing as known;
use rand::RngExt as _;
use rand::rngs::SmallRng;

/// First byte of an input whose further bytes select keys and values; text never begins with it.
pub(crate) const CHOSEN: u8 = 0;
/// Bytes per line: placement, key, and value. A value index above all values is the length of a text that follows.
const LINE: usize = 3;
const MOST_LINES: usize = 12;

/// Keys in tables filled by operators, keys in lists, and invalid keys.
const KEYS: &[&str] = &[
    "adapters.a.library",
    "adapters.a.max_concurrent",
    "adapters.a.isolation",
    "adapters.a.env",
    "adapters.a.memory_limit_bytes",
    "adapters.a.base_url",
    "adapters.a",
    "adapters",
    "callback.origins.\"https://a.example\".secrets",
    "callback.origins.\"https://a.example\".bearer",
    "callback.origins.\"https://a.example\".bear",
    "callback.origins.\"https://a.example\"",
    "callback.origins.\"a\"",
    "callback.origins.\"http://a/b\".bearer",
    "callback.origins",
    "callback.breaker",
    "dispatch",
    "dispatch.default_timeout.a",
    "dispatch.default_timout",
    "listn",
    "listen.a",
    "auth.tokens.a",
    "plugin.restart",
    "mcp.servers",
    "mcp.servers.a",
    "mcp.servers.a.command",
    "mcp.servers.a.args",
    "mcp.servers.a.env",
    "mcp.servers.a.url",
    "mcp.servers.a.headers",
    "mcp.servers.a.header",
    "a",
    "\"\"",
    "store.\"\"",
    "tls.cert.a",
    "XDG_DATA_HOME",
];

/// Variables that are not settings keys.
const VARIABLES: &[&str] = &[
    "BRIDGE_ADAPTERS",
    "BRIDGE_TOKENS",
    "BRIDGE_TOKEN",
    "BRIDGE_CONFIG",
    "BRIDGE_SECRET_KEY",
    "GATEWAY_PROVIDER",
    "XDG_DATA_HOME",
    "XDG_CONFIG_HOME",
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_SERVICE_NAME",
    "OTEL_RESOURCE_ATTRIBUTES",
    "OTEL_SDK_DISABLED",
    "OTEL_TRACES_EXPORTER",
    "OTEL_TRACES_SAMPLER",
    "OTEL_TRACES_SAMPLER_ARG",
    "BRIDGE_ADAPTERS_A_LIBRARY",
    "BRIDGE_ADAPTERS_A_MAX_CONCURRENT",
    "BRIDGE_ADAPTERS_A_ISOLATION",
    "BRIDGE_ADAPTERS_A_ENV",
    "BRIDGE_ADAPTERS_A_MEMORY_LIMIT_BYTES",
    "BRIDGE_ADAPTERS_A_BASE_URL",
    "BRIDGE_ADAPTERS_",
    "BRIDGE_LISTN",
    "BRIDGE_CALLBACK_ORIGINS_A_BEARER",
    "BRIDGE_",
];

/// Values; `?` is replaced by another value.
const VALUES: &[&str] = &[
    "true",
    "false",
    "0",
    "1",
    "-1",
    "7",
    "255",
    "256",
    "65536",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "0.0",
    "0.7",
    "-0.5",
    "1.0",
    "1.5",
    "1e308",
    "inf",
    "-inf",
    "nan",
    "1e3",
    "\"\"",
    "\" \"",
    "\"a\"",
    "\"a,b\"",
    "\"a=b\"",
    "\"a=b,c=d\"",
    "\"1\"",
    "\"-1\"",
    "\"0.5\"",
    "\"true\"",
    "\"5s\"",
    "\"0s\"",
    "\"1ms\"",
    "\"10m\"",
    "\"1h 5m\"",
    "\"9d\"",
    "\"99999999999d\"",
    "\"5\"",
    "\"5 s\"",
    "\"-5s\"",
    "\"s\"",
    "\"5parsecs\"",
    "\"127.0.0.1:0\"",
    "\"[::1]:1\"",
    "\"0.0.0.0:99999\"",
    "\"localhost:1\"",
    "\"http://a.example\"",
    "\"https://a.example:1/b?c#d\"",
    "\"http://u:p@a.example\"",
    "\"ftp://a\"",
    "\"10.0.0.0/8\"",
    "\"10.0.0.0/99\"",
    "\"*.example\"",
    "\"~/a\"",
    "\"/a\"",
    "\"enforce\"",
    "\"warn\"",
    "\"process\"",
    "\"in_process\"",
    "\"json\"",
    "\"text\"",
    "\"debug,a=trace\"",
    "\"echo\"",
    "\"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\"",
    "\"SECRET\"",
    "2027-01-31T00:00:00Z",
    "2027-01-31",
    "[]",
    "[?]",
    "[?, ?]",
    "{}",
    "{ a = ? }",
    "{ secrets = ?, bearer = ? }",
    "[{ name = ?, sha256 = ? }]",
    "[{ hash = ?, name = ?, scopes = ? }]",
    "[{ hash = ?, expires = ?, requests_per_minute = ? }]",
    "[{ hash = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\", scopes = [\"read\"], expires = ? }]",
    "{ ? = ? }",
];

/// Returns the configuration file and the variables.
pub(crate) fn read(mut bytes: &[u8]) -> (String, BTreeMap<String, String>) {
    static ALL: LazyLock<Vec<&str>> =
        LazyLock::new(|| KEYS.iter().copied().chain(known::keys()).collect());
    let keys = &*ALL;
    let (mut lines, mut variables) = (BTreeMap::new(), BTreeMap::new());
    for _ in 0..MOST_LINES {
        let Some((&[kind, which, value], rest)) = bytes.split_first_chunk::<LINE>() else {
            break;
        };
        bytes = rest;
        let value = text(value, &mut bytes, 0);
        let bare = value.trim_matches('"').replace(['\n', '\0'], "");
        let key = keys[usize::from(which) % keys.len()];
        match kind % 4 {
            0 | 1 => drop(lines.insert(key, value)),
            2 => drop(variables.insert(known::variable(key), bare)),
            _ => {
                let name = VARIABLES[usize::from(which) % VARIABLES.len()];
                variables.insert(name.to_owned(), bare);
            }
        }
    }
    let lines: Vec<String> = lines
        .into_iter()
        .map(|(key, value)| format!("{key} = {value}"))
        .collect();
    (lines.join("\n"), variables)
}

/// Random choices, alone or before those of `bytes`.
pub fn more(bytes: &[u8], random: &mut SmallRng) -> Vec<u8> {
    let mut made = vec![CHOSEN];
    for _ in 0..random.random_range(1..5) {
        made.extend::<[u8; 2]>(random.random());
        let value = match random.random_ratio(9, 10) {
            true => random.random_range(0..VALUES.len() as u8),
            false => random.random(),
        };
        made.push(value);
        let parts = VALUES
            .get(usize::from(value))
            .map_or(8, |text| text.matches('?').count());
        made.extend((0..parts).map(|_| random.random_range(0..VALUES.len() as u8)));
    }
    match bytes {
        [CHOSEN, before @ ..] if random.random() => made.extend(before),
        _ => {}
    }
    made
}

fn text(value: u8, bytes: &mut &[u8], depth: usize) -> String {
    let Some(known) = VALUES.get(usize::from(value)) else {
        let length = (usize::from(value) - VALUES.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(length);
        *bytes = rest;
        return serde_json::Value::from(String::from_utf8_lossy(taken)).to_string();
    };
    let mut made = String::new();
    for (at, part) in known.split('?').enumerate() {
        if at > 0 {
            let (&next, rest) = bytes.split_first().unwrap_or((&0, &[]));
            *bytes = rest;
            made.push_str(&text(
                if depth < 3 { next } else { next % 60 },
                bytes,
                depth + 1,
            ));
        }
        made.push_str(part);
    }
    made
}
