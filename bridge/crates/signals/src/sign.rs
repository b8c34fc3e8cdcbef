//! Signatures of signals: HMAC-SHA256 over the bytes of the body. Keys of sessions are derived, so that none is stored.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use forge_base::digest::{Digest, MacKey, from_hex};

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

    /// True if the bytes were signed with this key.
    pub fn is_of(&self, key: &[u8], bytes: &[u8]) -> bool {
        MacKey::new(key).verifies(bytes, &self.0)
    }
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
