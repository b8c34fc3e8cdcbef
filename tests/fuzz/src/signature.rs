//! Callback signatures: the public library accepts exactly the signed message, and no variation.

use std::cell::LazyCell;

use forge_base::id::DeliveryId;
use forge_base::vault::Vault;
use forge_delivery::sign::{Message, Signer, SigningSecret};
use forge_delivery::{self as delivery};
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderValue};
use secrecy::{ExposeSecret, SecretSlice};
use standardwebhooks::Webhook;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

struct Sides {
    signer: Signer,
    receiver: Webhook,
}

thread_local! {
    static SIDES: LazyCell<Sides> = LazyCell::new(|| {
        let config = delivery::Config {
            secrets: vec![SECRET.into()],
            ..delivery::Config::default()
        };
        let vault = Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap();
        Sides {
            signer: Signer::with_sealed(&config, None, &vault).unwrap(),
            receiver: Webhook::new(SECRET).unwrap(),
        }
    });
}

/// Input: two bytes that select the corruption and its place, and a body, also tried as a header and as a secret.
pub(crate) fn run(data: &[u8]) {
    let [spoil, place, body @ ..] = data else {
        return;
    };
    if let Ok(text) = std::str::from_utf8(body)
        && let Some(secret) = SigningSecret::parse(text)
    {
        let spelt = secret.to_text();
        assert!(SigningSecret::parse(spelt.expose_secret()).is_some());
    }
    SIDES.with(|sides| check(sides, *spoil, usize::from(*place), body));
}

fn check(sides: &Sides, spoil: u8, place: usize, body: &[u8]) {
    let id = DeliveryId::from_bytes([9; 16]);
    let timestamp = Timestamp::now().as_second();
    let message = Message {
        origin: "https://a.example:443",
        id,
        timestamp,
        body,
    };
    let signature = sides.signer.sign(message, None);
    let verifies = |body: &[u8], id: &str, timestamp: i64, signature: &HeaderValue| {
        let headers = HeaderMap::from_iter([
            ("webhook-id".parse().unwrap(), id.parse().unwrap()),
            (
                "webhook-timestamp".parse().unwrap(),
                HeaderValue::from(timestamp),
            ),
            ("webhook-signature".parse().unwrap(), signature.clone()),
        ]);
        sides.receiver.verify(body, &headers).is_ok()
    };
    let good = HeaderValue::from_str(&signature).unwrap();
    let own = id.to_string();
    // The public library accepts only UTF-8 bodies.
    let is_text = std::str::from_utf8(body).is_ok();
    assert_eq!(verifies(body, &own, timestamp, &good), is_text);
    let refused = match spoil % 5 {
        0 => verifies(&[body, b" "].concat(), &own, timestamp, &good),
        1 => verifies(
            body,
            &DeliveryId::from_bytes([8; 16]).to_string(),
            timestamp,
            &good,
        ),
        2 => verifies(body, &own, timestamp + 1, &good),
        3 => {
            let mut bytes = signature.into_bytes();
            let at = place % bytes.len();
            bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
            verifies(
                body,
                &own,
                timestamp,
                &HeaderValue::from_bytes(&bytes).unwrap(),
            )
        }
        _ => match HeaderValue::from_bytes(body) {
            Ok(header) => verifies(b"{}", &own, timestamp, &header),
            Err(_) => false,
        },
    };
    assert!(!refused, "a corrupted message was accepted");
}
