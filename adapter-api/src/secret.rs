//! Names under which a configuration holds secrets. The bridge hides the values under them wherever an adapter repeats
//! one: in results, events, errors and log records.

use serde_json::Value;

/// Shortest value that counts as a secret, in bytes: shorter ones occur in ordinary text.
pub const SHORTEST: usize = 8;
/// Longest value that counts as a secret, in bytes: longer than any key.
const LONGEST: usize = 8 * 1024;

/// Words of a name that make its value a secret.
const WORDS: [&str; 14] = [
    "apikey",
    "authorization",
    "cookie",
    "credential",
    "credentials",
    "key",
    "keys",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "secrets",
    "token",
    "tokens",
];
/// Last words of names whose value is the place or the kind of a secret instead.
const PLACES: [&str; 13] = [
    "dir", "env", "file", "folder", "header", "id", "name", "path", "seconds", "ttl", "type",
    "uri", "url",
];

/// True if a value of this name, such as `apiKey`, `GLOO_CLIENT_SECRET` or `authorization`, is a secret.
pub fn is_secret(name: &str) -> bool {
    let words = words(name);
    let is = |word: &str, list: &[&str]| list.contains(&word);
    words.iter().any(|word| is(word, &WORDS))
        && !words.iter().any(|word| word == "public")
        && !words.last().is_some_and(|word| is(word, &PLACES))
}

/// Secret values of a configuration, at any depth; of `authorization` also the part after the scheme. Numbers, and
/// values shorter than [`SHORTEST`], are none.
pub fn values(config: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    collect(config, "", &mut found);
    found.retain(|value| (SHORTEST..=LONGEST).contains(&value.len()));
    found.retain(|value| value.parse::<f64>().is_err());
    found.sort_unstable();
    found.dedup();
    found
}

/// Collects from a value of this name. The elements of a list have the list's name.
fn collect<'a>(value: &'a Value, name: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if is_secret(name) => {
            found.push(text.trim());
            if let Some((_scheme, credentials)) = text.trim().split_once(' ')
                && name.to_ascii_lowercase().ends_with("authorization")
            {
                found.push(credentials.trim());
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, name, found)),
        Value::Object(members) => members
            .iter()
            .for_each(|(name, value)| collect(value, name, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Words of a name in lower case: parted by other characters than letters and digits, or by a capital after a small
/// letter.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_small = false;
    for character in name.chars() {
        let begins = was_small && character.is_uppercase();
        if (begins || !character.is_alphanumeric())
            && let Some(last) = words.last()
            && !last.is_empty()
        {
            words.push(String::new());
        }
        was_small = character.is_lowercase() || character.is_numeric();
        if let Some(last) = words.last_mut()
            && character.is_alphanumeric()
        {
            last.extend(character.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_secrets_are_told_from_those_of_their_places() {
        for (name, expected) in [
            ("api_key", true),
            ("apiKey", true),
            ("x-api-key", true),
            ("OPENAI_API_KEY", true),
            ("GLOO_CLIENT_SECRET", true),
            ("CLAUDE_CODE_OAUTH_TOKEN", true),
            ("Authorization", true),
            ("proxy-authorization", true),
            ("SECRET_KEY_BASE", true),
            ("password", true),
            ("key_file", false),
            ("apiKeyHeader", false),
            ("api_key_env", false),
            ("AWS_ACCESS_KEY_ID", false),
            ("TOKEN_URL", false),
            ("SSH_PUBLIC_KEY", false),
            ("keyboard", false),
            ("model", false),
            ("", false),
        ] {
            assert_eq!(is_secret(name), expected, "{name}");
        }
    }

    #[test]
    fn values_are_found_at_any_depth_unless_they_are_short_or_numbers() {
        let config = json!({
            "api_key": " sk-12345678 ",
            "token": "short",
            "MAX_OUTPUT_TOKENS": "160000000",
            "model": "gpt-12345678",
            "headers": {"Authorization": "Bearer abcdefgh", "accept": "application/json"},
            "providers": {"a": {"apiKey": "sk-abcdefgh"}},
            "keys": ["first-key", "second-key"],
            "limits": {"tokens": 5},
        });
        let expected = [
            "Bearer abcdefgh",
            "abcdefgh",
            "first-key",
            "second-key",
            "sk-12345678",
            "sk-abcdefgh",
        ];
        assert_eq!(values(&config), expected);
    }
}
