//! Tests of `sign`.

use jiff::Timestamp;
use proptest::prelude::*;
use reqwest::header::HeaderMap;
use standardwebhooks::Webhook;

use super::super::Origin;
use super::*;
use forge_store::memory::Memory;

fn vault() -> Vault {
    Vault::from_key(&SecretSlice::from(vec![7; 32])).unwrap()
}

fn secret(byte: u8) -> SecretString {
    SigningSecret::from(SecretSlice::from(vec![byte; 24])).to_text()
}

async fn signer(config: &Config) -> Signer {
    Signer::open(config, &Memory::new(), &vault())
        .await
        .unwrap()
}

/// Returns true if the `standardwebhooks` library, which receivers use, accepts the signature.
fn verifies(secret: &SecretString, message: Message<'_>, signature: &str) -> bool {
    let mut headers = HeaderMap::new();
    for (name, value) in [
        ("webhook-id", message.id.to_string()),
        ("webhook-timestamp", message.timestamp.to_string()),
        ("webhook-signature", signature.to_owned()),
    ] {
        headers.insert(name, value.parse().unwrap());
    }
    let oracle = Webhook::new(secret.expose_secret()).unwrap();
    oracle.verify(message.body, &headers).is_ok()
}

#[tokio::test]
async fn receivers_verify_with_each_secret_of_a_rotation_and_no_other() {
    let config = Config {
        secrets: vec![secret(1), secret(2)],
        origins: [(
            "https://one.example".to_owned(),
            Origin {
                secrets: vec![secret(3)],
                bearer: Some("t0ken".into()),
            },
        )]
        .into(),
        ..Config::default()
    };
    let signer = signer(&config).await;
    let own = SigningSecret::parse(secret(4).expose_secret());
    for (origin, own, fitting) in [
        ("https://two.example:443", None, &[1, 2][..]),
        ("https://one.example:443", None, &[3]),
        ("https://one.example:8443", None, &[1, 2]),
        ("https://one.example:443", own.as_ref(), &[4]),
    ] {
        let message = Message {
            origin,
            id: DeliveryId::new(),
            timestamp: Timestamp::now().as_second(),
            body: br#"{"status":"ok","output":"\u00e9"}"#,
        };
        let signature = signer.sign(message, own);
        for candidate in 1..=4 {
            let verified = verifies(&secret(candidate), message, &signature);
            let expected = fitting.contains(&candidate);
            assert_eq!(verified, expected, "{origin}, secret {candidate}");
        }
        let altered = Message {
            body: b"{}",
            ..message
        };
        assert!(!verifies(&secret(fitting[0]), altered, &signature));
    }
    let bearer = |origin| signer.bearer(origin).map(|b| b.expose_secret().to_owned());
    assert_eq!(bearer("https://one.example:443").as_deref(), Some("t0ken"));
    assert_eq!(bearer("http://one.example:80"), None);
}

#[tokio::test]
async fn a_generated_secret_stays_the_same_and_gives_way_to_a_configured_one() {
    let store = Memory::new();
    let open = async |config: &Config| {
        let signer = Signer::open(config, &store, &vault()).await.unwrap();
        let described = signer.describe().remove(0);
        let text = described.secrets[0].expose_secret().to_owned();
        (described.source, text)
    };
    let first = open(&Config::default()).await;
    assert_eq!(first.0, Source::Generated);
    assert!(first.1.starts_with("whsec_"));
    assert_eq!(open(&Config::default()).await, first);
    let configured = Config {
        secrets: vec![secret(1)],
        ..Config::default()
    };
    let expected = (Source::Configured, secret(1).expose_secret().to_owned());
    assert_eq!(open(&configured).await, expected);

    let other = Vault::from_key(&SecretSlice::from(vec![8; 32])).unwrap();
    let refused = Signer::open(&Config::default(), &store, &other).await;
    assert!(matches!(refused, Err(Error::UnsealSecret(_))));
}

proptest! {
    #[test]
    fn what_is_signed_verifies_and_nothing_beside_it(
        body in ".{0,80}",
        keys in (any::<u8>(), any::<u8>()),
        place in any::<prop::sample::Index>(),
    ) {
        let own = SigningSecret::parse(secret(keys.0).expose_secret()).unwrap();
        let config = Config { secrets: vec![secret(0)], ..Config::default() };
        let signer = Signer::with_sealed(&config, None, &vault()).unwrap();
        let message = Message {
            origin: "https://a.example:443",
            id: DeliveryId::new(),
            timestamp: Timestamp::now().as_second(),
            body: body.as_bytes(),
        };
        let signature = signer.sign(message, Some(&own));
        prop_assert!(verifies(&secret(keys.0), message, &signature));
        prop_assert_eq!(verifies(&secret(keys.1), message, &signature), keys.0 == keys.1);
        let other = Message { timestamp: message.timestamp + 1, ..message };
        prop_assert!(!verifies(&secret(keys.0), other, &signature));
        let longer = format!("{body} ");
        let other = Message { body: longer.as_bytes(), ..message };
        prop_assert!(!verifies(&secret(keys.0), other, &signature));
        let mut spoilt = signature.into_bytes();
        let at = place.index(spoilt.len());
        spoilt[at] = if spoilt[at] == b'A' { b'B' } else { b'A' };
        let spoilt = String::from_utf8(spoilt).unwrap();
        prop_assert!(!verifies(&secret(keys.0), message, &spoilt));
    }
}

#[test]
fn a_malformed_setting_is_named() {
    let origin = |text: &str, origin: Origin| Config {
        origins: [(text.to_owned(), origin)].into(),
        ..Config::default()
    };
    let short = Config {
        secrets: vec!["whsec_c2hvcnQ=".into()],
        ..Config::default()
    };
    let error = Signer::check(&short).unwrap_err();
    assert!(error.to_string().contains("callback.secrets"), "{error}");
    for text in [
        "one.example",
        "ftp://one.example",
        "https://one.example/path",
    ] {
        let error = Signer::check(&origin(text, Origin::default())).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    let token = Origin {
        bearer: Some("a\nb".into()),
        ..Origin::default()
    };
    assert!(Signer::check(&origin("https://one.example", token)).is_err());
}

#[test]
fn a_secret_is_never_printed() {
    let parsed = SigningSecret::parse(secret(1).expose_secret()).unwrap();
    assert_eq!(format!("{parsed:?}"), "SigningSecret([REDACTED])");
}
