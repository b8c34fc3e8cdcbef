//! Signatures of signals: HMAC-SHA256 over the bytes of the body. Keys of sessions are derived, so that none is stored.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use forge_base::digest::{Digest, MacKey, from_hex, hex};

/// Bytes of a token that sign.
const TOKEN_BYTES: usize = 32;

/// Value of `X-Forg-Signature`: `sha256=` and 64 hexadecimal digits of either case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signature(Digest);

impl Signature {
    /// `None` for any other form.
    pub fn parse(value: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(value).ok()?.strip_prefix("sha256=")?;
        let bytes = from_hex(digits)?;
        Digest::try_from(bytes).ok().map(Self)
    }

    /// Signature of the bytes with this key.
    pub fn new(key: &MacKey, bytes: &[u8]) -> Self {
        Self(key.mac([bytes]))
    }

    /// True if the bytes were signed with this key.
    pub fn is_of(&self, key: &[u8], bytes: &[u8]) -> bool {
        MacKey::new(key).verifies(bytes, &self.0)
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256={}", hex(&self.0))
    }
}

/// Key of the engine API: the first 32 bytes of the token, or all of a shorter one.
pub fn token_key(token: &[u8]) -> &[u8] {
    &token[..token.len().min(TOKEN_BYTES)]
}

/// Derives the key of each session from one secret.
#[derive(Clone)]
pub struct SessionKeys(MacKey);

impl SessionKeys {
    pub fn new(secret: &[u8]) -> Self {
        Self(MacKey::new(secret))
    }

    /// Key of the session with this id.
    pub fn key(&self, id: &str) -> Digest {
        self.0.mac([id.as_bytes()])
    }

    /// Key as it is given to the tool: padded base64.
    pub fn encoded(&self, id: &str) -> String {
        BASE64_STANDARD.encode(self.key(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USAGE: &str = r#"{"adapter":"my-tool-forg","ts":"2025-05-28T10:00:00.000Z","model":"claude-opus-4-5","tokens_in":100,"tokens_out":50,"latency_ms":500,"cost_usd":null,"error_code":null,"session_id":"sess_4f9a2e1b8c3d","project_id":null}"#;

    fn holds(key: &[u8], body: &str, digits: &str) -> bool {
        let value = format!("sha256={digits}");
        let signature = Signature::parse(value.as_bytes()).unwrap();
        signature.is_of(key, body.as_bytes())
    }

    /// Vectors that were computed with another implementation.
    #[test]
    fn published_vectors_hold() {
        let key: Vec<u8> = (0..32).collect();
        let usage = "92db0a8143ba87968cf8ec0f01042c2f035bb096d01b0b36f7f6752c38b12f4b";
        assert!(holds(&key, USAGE, usage) && holds(&key, USAGE, &usage.to_uppercase()));
        let empty = "d38b42096d80f45f826b44a9d5607de72496a415d3f4a1a8c88e3bb9da8dc1cb";
        assert!(holds(&key, "", empty));
        let other = "1b2d9fe00ce4edb8909ffab0d2126e56971925026f6e97baabed5cb49e6f7736";
        assert!(holds(&[0xfb; 32], USAGE, other));
        // The text of the key in place of its bytes.
        let wrong = "ec8e363f3ee64f55631208f49934c17810186930350458c5f01470738b2bb6e6";
        assert!(!holds(&key, USAGE, wrong));
        assert!(!holds(&key, &format!("{USAGE} "), usage));
    }

    #[test]
    fn other_forms_are_no_signature() {
        let digits = "d38b42096d80f45f826b44a9d5607de72496a415d3f4a1a8c88e3bb9da8dc1cb";
        for wrong in [
            digits.to_owned(),
            "sha256=".to_owned(),
            format!("sha256= {digits}"),
            format!("sha256={digits} "),
            format!("SHA256={digits}"),
            format!("sha256={}", &digits[2..]),
            format!("sha256={digits}00"),
        ] {
            assert_eq!(Signature::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    /// Vectors of the engine API, of a token of 42 bytes and of one of 24.
    #[test]
    fn published_vectors_of_tokens_hold() {
        let long = b"forg_live_a3f9e2c1b84d7f6e0a2c1d8e9f0b3c4d";
        let short = b"lic_a3f9e2c1b84d7f6e0a2c";
        let beat = r#"{"type":"adapter-heartbeat","adapter_id":"my-tool","latency_ms":4}"#;
        let of_long = "a91fa1e7983b730f1ecb925ed99bf5ad6d2b27b6508dfbf14a0d0bbbde1de571";
        assert!(holds(token_key(long), beat, of_long));
        let of_short = "eff3bdcfe7f8f72874e0114f05375e1835c2dcdb91b9d36de2576c6cb6d1024e";
        assert!(holds(token_key(short), beat, of_short));
        // The whole token as key.
        let wrong = "2ab1f06497fa78dd9c4a68c0152a9abf245edbdc8fdafdb9863d631333160ac4";
        assert!(!holds(token_key(long), beat, wrong) && holds(long, beat, wrong));
        let start = r#"{"type":"session-start","ts":"2025-05-29T10:00:00.000Z","session_id":"sess_4f9a2e1b8c3d","adapter_id":"claude-code-forg","goal_declared":"Refactor — naïve café ☕"}"#;
        assert_eq!(start.len(), 169);
        let of_start = "d7042fd2eb9fc6a26bbe399b2f30a81c30c9aebc4f1327d0093581bf3bc27885";
        assert!(holds(token_key(long), start, of_start));
        // The same record in another order of its members, and with one byte changed.
        let other = r#"{"adapter_id":"my-tool","type":"adapter-heartbeat","latency_ms":4}"#;
        assert!(!holds(token_key(long), other, of_long));
        assert!(!holds(token_key(long), &beat.replace('4', "5"), of_long));
    }

    #[test]
    fn a_token_signs_with_its_first_32_bytes() {
        let token: Vec<u8> = (1..=42).collect();
        for (length, expected) in [(24, 24), (31, 31), (32, 32), (33, 32), (42, 32)] {
            assert_eq!(token_key(&token[..length]), &token[..expected], "{length}");
        }
    }

    #[test]
    fn each_session_has_its_own_key() {
        let keys = SessionKeys::new(b"secret");
        assert_ne!(keys.key("a"), keys.key("b"));
        assert_eq!(
            BASE64_STANDARD.decode(keys.encoded("a")).unwrap(),
            keys.key("a")
        );
    }
}
