//! Redaction of secrets in everything that an adapter sends: a provider can repeat the key that it rejects. The secrets
//! are those of the adapter's settings and of the MCP servers of a request, as [`secret::values`] finds them. One that
//! is split over events of one text is hidden too (`held_text.rs`); with other events in between, in the output only.

use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, Input, MatchKind};
use forge_adapter_api::{AdapterError, secret};
use serde::Deserialize;
use serde_json::Value;

const MARK: &[u8] = b"[REDACTED]";

/// Secrets of one call, or of the instance outside of calls.
#[derive(Clone, Debug, Default)]
pub struct Secrets {
    pub(crate) instance: Option<Arc<Redaction>>,
    pub(crate) request: Option<Arc<Redaction>>,
}

impl Secrets {
    fn all(&self) -> impl Iterator<Item = &Redaction> {
        let both = self.instance.iter().chain(&self.request);
        both.map(|redaction| &**redaction)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all().next().is_none()
    }

    /// Splits off the end of a text that can be the beginning of a secret.
    pub(crate) fn split_off_beginning(&self, text: &mut String) -> Option<String> {
        let begins = self.all().filter_map(|redaction| redaction.beginning(text));
        begins.min().map(|at| text.split_off(at))
    }

    /// Hides the secrets in a text.
    pub fn hide(&self, text: &mut String) {
        for redaction in self.all() {
            if let Some(hidden) = redaction.in_text(text.as_bytes()) {
                *text = String::from_utf8_lossy(&hidden).into_owned();
            }
        }
    }

    /// Hides the secrets in the strings of a JSON text, which stays JSON.
    pub(crate) fn hide_json(&self, json: impl Into<Vec<u8>> + AsRef<[u8]>) -> Vec<u8> {
        let mut json = json.into();
        for redaction in self.all() {
            if let Some(hidden) = redaction.in_json(&json) {
                json = hidden;
            }
        }
        json
    }

    pub(crate) fn hide_error(&self, mut error: AdapterError) -> AdapterError {
        self.hide(&mut error.message);
        if !self.is_empty()
            && let Some(details) = error.details.take()
        {
            let details = self.hide_json(details.to_string().into_bytes());
            error.details = serde_json::from_slice(&details).ok();
        }
        error
    }
}

/// Finds a set of secrets.
#[derive(Debug)]
pub(crate) struct Redaction {
    /// Their spellings in the strings of JSON, also of JSON in JSON.
    json: AhoCorasick,
    /// The same spellings, and the values as they are in text.
    text: AhoCorasick,
    spellings: Vec<String>,
    /// First bytes of the spellings.
    firsts: Vec<u8>,
    /// Length of the longest spelling.
    pub(crate) longest: usize,
}

impl Redaction {
    /// For the secret values of these settings; `None` if there are none.
    pub(crate) fn of(settings: &Value) -> Option<Arc<Self>> {
        let values = secret::values(settings);
        let mut json: Vec<String> = values.iter().flat_map(|value| spellings(value)).collect();
        json.extend(json.clone().iter().flat_map(|inner| spellings(inner)));
        json.sort_unstable();
        json.dedup();
        let own = values.into_iter().map(str::to_owned);
        let mut text: Vec<String> = own.chain(json.iter().cloned()).collect();
        text.sort_unstable();
        text.dedup();
        let mut firsts: Vec<u8> = text.iter().map(|text| text.as_bytes()[0]).collect();
        firsts.dedup();
        let longest = text.iter().map(String::len).max()?;
        let (json, automaton) = (automaton(&json), automaton(&text));
        Some(Arc::new(Self {
            json: json?,
            text: automaton?,
            spellings: text,
            firsts,
            longest,
        }))
    }

    /// For the MCP servers of a request to `execute`.
    pub(crate) fn of_request(request: &[u8]) -> Option<Arc<Self>> {
        #[derive(Deserialize)]
        struct Request {
            #[serde(rename = "mcpServers")]
            servers: Value,
        }
        memchr::memmem::find(request, br#""mcpServers":"#)?;
        let request: Request = serde_json::from_slice(request).ok()?;
        Self::of(&request.servers)
    }

    /// Start of the end of a text that can be the beginning of a secret.
    fn beginning(&self, text: &str) -> Option<usize> {
        let text = text.as_bytes();
        let begins = |at: &usize| {
            let mut spellings = self.spellings.iter().map(String::as_bytes);
            self.firsts.contains(&text[*at])
                && spellings.any(|spelling| spelling.starts_with(&text[*at..]))
        };
        (text.len().saturating_sub(self.longest)..text.len()).find(begins)
    }

    /// The text with the secrets hidden; `None` if it has none.
    pub(crate) fn in_text(&self, text: &[u8]) -> Option<Vec<u8>> {
        replace(text, &self.text, |_, _| true)
    }

    /// A spelling counts only at a character of a string: elsewhere its replacement would break the JSON.
    fn in_json(&self, json: &[u8]) -> Option<Vec<u8>> {
        let mut place = Place::default();
        replace(json, &self.json, |from, to| {
            let is_at_character = place.advance(json, from);
            if is_at_character {
                place.at = to;
            }
            is_at_character
        })
    }
}

/// Replaces what is found and `counts`, given its beginning and end. Copies only if there is something to replace.
fn replace(
    text: &[u8],
    secrets: &AhoCorasick,
    mut counts: impl FnMut(usize, usize) -> bool,
) -> Option<Vec<u8>> {
    let mut hidden = Vec::new();
    let (mut copied, mut at) = (0, 0);
    while let Some(found) = secrets.find(Input::new(text).range(at..)) {
        if counts(found.start(), found.end()) {
            hidden.extend_from_slice(&text[copied..found.start()]);
            hidden.extend_from_slice(MARK);
            (copied, at) = (found.end(), found.end());
        } else {
            at = found.start() + 1;
        }
    }
    if copied == 0 {
        return None;
    }
    hidden.extend_from_slice(&text[copied..]);
    Some(hidden)
}

/// Place in a JSON text, at the beginning of a character.
#[derive(Default)]
struct Place {
    at: usize,
    in_string: bool,
}

impl Place {
    /// Goes to `to`; false if that is within an escape, or outside of strings.
    fn advance(&mut self, json: &[u8], to: usize) -> bool {
        while self.at < to {
            self.at += match json[self.at] {
                b'\\' if self.in_string => match json.get(self.at + 1) {
                    Some(b'u') => 6,
                    Some(_) | None => 2,
                },
                b'"' => {
                    self.in_string = !self.in_string;
                    1
                }
                _ => 1,
            };
        }
        self.at == to && self.in_string
    }
}

/// Spellings of a text in a JSON string: as this and most libraries escape it, with `\/` as PHP does, with `\u003c` as Go
/// does, and with all but ASCII escaped as Python does.
fn spellings(text: &str) -> [String; 4] {
    let quoted = Value::from(text).to_string();
    let plain = quoted[1..quoted.len() - 1].to_owned();
    let go = ['<', '>', '&'].iter().fold(plain.clone(), |text, sign| {
        text.replace(*sign, &format!("\\u{:04x}", u32::from(*sign)))
    });
    let mut ascii = String::with_capacity(plain.len());
    for character in plain.chars() {
        match character {
            ' '..='~' => ascii.push(character),
            other => (other.encode_utf16(&mut [0; 2]).iter())
                .for_each(|unit| ascii.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    [plain.replace('/', "\\/"), plain, go, ascii]
}

/// A compact automaton: there is one for each adapter, and a scan is as fast as its search for the first bytes.
fn automaton(spellings: &[String]) -> Option<AhoCorasick> {
    AhoCorasick::builder()
        .match_kind(MatchKind::LeftmostLongest)
        .kind(Some(AhoCorasickKind::ContiguousNFA))
        .build(spellings)
        .inspect_err(|error| tracing::error!(%error, "the secrets of an adapter cannot be hidden"))
        .ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        Secrets {
            instance: Redaction::of(&json!({ "keys": values })),
            request: None,
        }
    }

    fn hidden(secrets: &Secrets, text: &str) -> String {
        let mut text = text.to_owned();
        secrets.hide(&mut text);
        text
    }

    #[test]
    fn values_are_hidden_in_every_spelling() {
        let secrets = secrets(&["sk-12345678", "a/b<c>\"d\"é", "sk-12345678-long"]);
        for (text, expected) in [
            ("no key", "no key"),
            ("key sk-12345678.", "key [REDACTED]."),
            ("sk-12345678-long sk-12345678", "[REDACTED] [REDACTED]"),
            ("sk-1234567", "sk-1234567"),
            (r#"a/b<c>"d"é"#, "[REDACTED]"),
            (r#"a\/b<c>\"d\"é"#, "[REDACTED]"),
            (r#"a/b\u003cc\u003e\"d\"é"#, "[REDACTED]"),
            (r#"a/b<c>\"d\"\u00e9"#, "[REDACTED]"),
            (r#"a/b<c>\\\"d\\\"é"#, "[REDACTED]"),
        ] {
            assert_eq!(hidden(&secrets, text), expected);
        }
    }

    #[test]
    fn json_is_changed_in_its_strings_only() {
        let secrets = secrets(&["nabcdefg", "00e9wxyz", ",\"b\":[1,", "\"quoted\""]);
        for (json, expected) in [
            (r#"["nabcdefg"]"#, r#"["[REDACTED]"]"#),
            (r#"["\nabcdefg"]"#, r#"["\nabcdefg"]"#),
            (r#"["\\nabcdefg"]"#, r#"["\\[REDACTED]"]"#),
            (r#"["\u00e9wxyz"]"#, r#"["\u00e9wxyz"]"#),
            (r#"{"a":1,"b":[1,2]}"#, r#"{"a":1,"b":[1,2]}"#),
            (r#"["\"quoted\""]"#, r#"["[REDACTED]"]"#),
            (r#"{"nabcdefg":"quoted"}"#, r#"{"[REDACTED]":"quoted"}"#),
        ] {
            assert_eq!(
                secrets.hide_json(json).as_slice(),
                expected.as_bytes(),
                "{json}"
            );
        }
    }

    #[test]
    fn an_error_is_hidden_in_its_message_and_details() {
        let secrets = secrets(&["sk-12345678"]);
        let error = AdapterError {
            details: Some(json!({"body": {"error": "sk-12345678"}})),
            ..AdapterError::new("unauthenticated", "wrong key sk-12345678")
        };
        let error = secrets.hide_error(error);
        assert_eq!(error.message, "wrong key [REDACTED]");
        assert_eq!(
            error.details,
            Some(json!({"body": {"error": "[REDACTED]"}}))
        );
    }

    #[test]
    fn the_servers_of_a_request_are_read() {
        let request = json!({"message": "sk-not-a-secret", "mcpServers": {
            "web": {"url": "https://a.example", "headers": {"authorization": "Bearer sk-12345678"}},
        }});
        let request = Redaction::of_request(request.to_string().as_bytes());
        let secrets = Secrets {
            instance: None,
            request,
        };
        assert_eq!(
            hidden(&secrets, "sk-not-a-secret sk-12345678"),
            "sk-not-a-secret [REDACTED]"
        );
        assert!(Redaction::of_request(br#"{"message":"hello"}"#).is_none());
    }

    proptest! {
        /// JSON stays JSON of the same form for every secret and every text around it, and the secret is gone from it.
        #[test]
        fn no_secret_is_left_and_json_stays_json(
            secret in r#"[a-c"\\/<\n0-9é😀,:]{8,12}"#,
            around in proptest::collection::vec(r#"[a-c"\\/<\n0-9é😀,:]{0,6}"#, 1..4),
            number in 0_u64..1_000_000_000_000,
        ) {
            let secrets = secrets(&[&secret]);
            prop_assume!(secrets.instance.is_some());
            let secret = secret.trim();
            let text = around.join(secret);
            let inner = json!({ "inner": text }).to_string();
            let whole = json!({ "text": text, "inner": inner, "number": number });
            let found = secrets.hide_json(whole.to_string().into_bytes());
            let found: Value = serde_json::from_slice(&found).unwrap();
            prop_assert_eq!(&found["number"], &whole["number"]);
            prop_assert!(!found["text"].as_str().unwrap().contains(secret));
            let [plain, ..] = spellings(secret);
            prop_assert!(!found["inner"].as_str().unwrap().contains(&plain));
            prop_assert!(!hidden(&secrets, &text).contains(secret));
        }

        #[test]
        fn text_without_a_secret_is_untouched(text in "[a-z \"\\\\]{0,200}") {
            let secrets = secrets(&["SK-12345678"]);
            prop_assert_eq!(hidden(&secrets, &text), text.clone());
            let json = json!([text]).to_string();
            prop_assert_eq!(secrets.hide_json(json.clone().into_bytes()), json.into_bytes());
        }
    }
}
