//! Routes of the local agent on the main listener, for tools of other machines.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::harness::Bridge;
use super::harness::api::{JsonBody as _, answer};
use super::signals::{Tool, usage};

/// SHA-256 of `signals` and `dispatch`.
const SIGNALS: &str = "c1d2c1df9eabd696f6fa30bd829fabe1d0dfb1760876a381717729f6f0442add";
const DISPATCH: &str = "db8d1b6d64e4ec90ceb335fc4344e75799fdc20cd236d27cc85ed4783a33d3fa";

/// Configuration with a token for each of these scopes, named like the scope.
pub(super) fn tokens() -> String {
    let entry = |hash: &str, scope: &str| {
        format!("[[auth.token]]\nhash = \"{hash}\"\nname = \"{scope}\"\nscopes = [\"{scope}\"]\n")
    };
    entry(SIGNALS, "signals") + &entry(DISPATCH, "dispatch")
}

#[tokio::test]
async fn a_session_of_another_machine_is_started_with_a_token() {
    let bridge = Bridge::configured(&tokens(), &[]).await;
    let start = || {
        let request = bridge.api.request(Method::POST, "/session/start");
        request.json_body(&json!({"adapter": "my-tool-forg", "user_id": "u"}))
    };
    for (token, expected) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some("wrong"), StatusCode::UNAUTHORIZED),
        (Some("dispatch"), StatusCode::FORBIDDEN),
    ] {
        let request = match token {
            Some(token) => start().bearer_auth(token),
            None => start(),
        };
        assert_eq!(answer(request).await.0, expected, "{token:?}");
    }
    let (status, started) = answer(start().bearer_auth("signals")).await;
    assert_eq!(status, StatusCode::OK, "{started}");
    let tool = Tool::with(bridge.api.clone(), &started);
    // The signature is enough for a record, and a token is no signature.
    let expected = json!({"blocked": false, "session_id": tool.session, "logged": true});
    let record = usage(Some(&tool.session));
    assert_eq!(tool.emit(&record).await, (StatusCode::OK, expected));
    let unsigned = bridge.api.request(Method::POST, "/emit");
    let (status, _) = answer(unsigned.bearer_auth("signals").json_body(&record)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    // Nothing else is open to the scope.
    let listed = bridge.api.request(Method::GET, "/api/v2/dispatches");
    let (status, _) = answer(listed.bearer_auth("signals")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    bridge.stop().await;
}

#[tokio::test]
async fn pages_of_localhost_reach_no_agent_on_the_main_listener() {
    let bridge = Bridge::configured("http.origins = [\"https://app.example\"]", &[]).await;
    for path in ["/session/start", "/emit"] {
        for (origin, is_named) in [
            ("http://localhost:3000", false),
            (bridge.api.url.as_str(), false),
            ("null", false),
            ("https://app.example", true),
        ] {
            let post = bridge.api.request(Method::POST, path);
            let preflight = bridge.api.request(Method::OPTIONS, path);
            for request in [
                post.json_body(&json!({"adapter": "a"})),
                preflight
                    .header("access-control-request-method", "POST")
                    .header("access-control-request-private-network", "true"),
            ] {
                let sent = request.header("origin", origin).send().await.unwrap();
                let refused = sent.status() == StatusCode::FORBIDDEN;
                assert_eq!(refused, !is_named, "{path} {origin}");
                let mut names = sent.headers().keys();
                let cors = names.any(|name| name.as_str().starts_with("access-control-allow"));
                assert_eq!(cors, is_named, "{path} {origin}");
            }
        }
    }
    // A form of a page has no type that is accepted, and a page that sends no origin is none.
    let start = bridge.api.request(Method::POST, "/session/start");
    let form = start
        .header("content-type", "text/plain")
        .body("{\"adapter\": \"a\"}");
    assert_eq!(answer(form).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    bridge.stop().await;
}

#[tokio::test]
async fn other_versions_of_the_protocol_are_refused_by_name() {
    let bridge = Bridge::start().await;
    for (version, expected) in [("v1", StatusCode::OK), ("v2", StatusCode::BAD_REQUEST)] {
        let start = bridge.api.request(Method::POST, "/session/start");
        let start = start.header("x-forg-adapter-protocol", version);
        let (status, body) = answer(start.json_body(&json!({"adapter": "a"}))).await;
        assert_eq!(status, expected, "{body}");
        if version == "v2" {
            assert!(body["error"].as_str().unwrap().contains("v1"), "{body}");
        }
    }
    bridge.stop().await;
}
