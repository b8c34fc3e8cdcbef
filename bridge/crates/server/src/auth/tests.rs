//! Tests of `auth`.

use axum::http::Request;

use super::*;

const READ_ONLY: &str = "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5";

fn auth() -> Auth {
    Auth::new(&Config {
        tokens: vec!["old".to_owned().into(), "new".to_owned().into()],
        token: vec![TokenHash {
            hash: format!("sha256:{READ_ONLY}"),
            name: None,
            scopes: vec![Scope::Read],
            expires: None,
            requests_per_minute: None,
            space: None,
            identity: None,
        }],
        ..Config::default()
    })
    .unwrap()
}

fn hashed(hash: &str, expires: Option<Timestamp>) -> TokenHash {
    TokenHash {
        hash: hash.to_owned(),
        name: Some("team".to_owned()),
        scopes: Scope::all(),
        expires,
        requests_per_minute: None,
        space: None,
        identity: None,
    }
}

fn status(auth: &Auth, header: &str, scope: Scope) -> u16 {
    let request = Request::builder().header("authorization", header);
    let (parts, ()) = request.body(()).unwrap().into_parts();
    match auth.check(&parts, scope) {
        Ok(_) => 200,
        Err(failure) => failure.code().status().as_u16(),
    }
}

#[test]
fn a_token_opens_what_its_scopes_say() {
    let auth = auth();
    for (header, scope, expected) in [
        ("Bearer old", Scope::Admin, 200),
        ("bearer new", Scope::Dispatch, 200),
        ("Bearer  new ", Scope::Read, 200),
        ("Bearer 12345", Scope::Read, 200),
        ("Bearer 12345", Scope::Dispatch, 403),
        ("Bearer 12345", Scope::Admin, 403),
        ("Bearer 12345", Scope::Signals, 403),
        ("Bearer old", Scope::Signals, 200),
        ("Bearer ol", Scope::Read, 401),
        ("Bearer", Scope::Read, 401),
        ("Bearer ", Scope::Read, 401),
        ("Basic old", Scope::Read, 401),
        ("", Scope::Read, 401),
    ] {
        assert_eq!(
            status(&auth, header, scope),
            expected,
            "{header:?} {scope:?}"
        );
    }
}

#[test]
fn without_tokens_only_loopback_may_be_open() {
    let open = Auth::new(&Config::default()).unwrap();
    assert_eq!(status(&open, "", Scope::Admin), 200);
    for (address, allowed) in [
        ("127.0.0.1:1", true),
        ("127.9.9.9:1", true),
        ("[::1]:1", true),
        ("0.0.0.0:1", false),
        ("[::]:1", false),
        ("192.168.1.4:1", false),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(open.check_listen(address).is_ok(), allowed, "{address}");
        assert!(auth().check_listen(address).is_ok(), "{address}");
    }
}

#[test]
fn all_unusable_tokens_are_named() {
    let hashes = ["", "abc", READ_ONLY, &"é".repeat(32), &"g".repeat(64)];
    let config = Config {
        tokens: ["", "usable", " "]
            .map(|token| token.to_owned().into())
            .into(),
        token: hashes.iter().map(|hash| hashed(hash, None)).collect(),
        ..Config::default()
    };
    let Err(Error::Tokens(errors)) = Auth::new(&config) else {
        panic!("taken");
    };
    let empty = [1, 3].map(|number| TokenError::Empty { number });
    let malformed = [0, 1, 3, 4].map(|index| TokenError::MalformedHash { index });
    let wanted: Vec<_> = empty.into_iter().chain(malformed).collect();
    assert_eq!(errors, wanted);
}

#[test]
fn nothing_shows_a_plain_token() {
    let config = Config {
        tokens: vec!["hush".to_owned().into()],
        ..Config::default()
    };
    let shown = format!("{config:?}{}", serde_json::to_string(&config).unwrap());
    assert!(!shown.contains("hush"), "{shown}");
}
