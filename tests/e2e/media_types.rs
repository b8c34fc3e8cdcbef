//! Media types of request bodies: JSON by name on every route that reads one, so that no simple request of a browser's page
//! is a dispatch.

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, quiet};
use super::harness::{Api, Bridge, reference};
use super::signals::agent_of;

const TOKEN: &str = "a token that is long enough to sign with";
/// Types that a page can send to another origin without asking first, and others that are no JSON.
const REFUSED: [&str; 6] = [
    "text/plain;charset=UTF-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=a",
    "text/plain; application/json",
    "application/octet-stream",
    "application/xml",
];

/// The request with a body of this type, or without a type.
fn typed(api: &Api, (method, path): &(String, String), kind: Option<&str>) -> RequestBuilder {
    let path = path.replace(['{', '}'], "");
    let request = api.request(method.parse().unwrap(), &path);
    let request = request.bearer_auth(TOKEN).body("{}");
    match kind {
        Some(kind) => request.header("content-type", kind),
        None => request,
    }
}

#[tokio::test]
async fn every_route_that_reads_a_body_refuses_other_types_and_none() {
    let bridge = Bridge::with(&[
        ("BRIDGE_ADAPTERS", "echo,manager"),
        ("BRIDGE_TOKENS", TOKEN),
    ])
    .await;
    let health = bridge.api.request(Method::GET, "/api/health");
    let (_, health) = answer(health.bearer_auth(TOKEN)).await;
    let local = health["signals"]["agent"].as_str().unwrap();
    let agent = Api::new(format!("http://{local}"));
    let on_main = reference::operations_with_body(false);
    let on_agent = reference::operations_with_body(true);
    assert!(on_main.len() > 15 && on_agent.len() == 2);
    let routes = on_main.iter().map(|route| (&bridge.api, route));
    for (api, route) in routes.chain(on_agent.iter().map(|route| (&agent, route))) {
        for kind in REFUSED.map(Some).into_iter().chain([None]) {
            let (status, refused) = answer(typed(api, route, kind)).await;
            assert_eq!(
                status,
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{route:?} {kind:?}: {refused}"
            );
            assert_eq!(refused["code"], "UNSUPPORTED_MEDIA_TYPE", "{refused}");
            let message = refused["error"].as_str().unwrap();
            let named = kind.unwrap_or("there is no Content-Type");
            assert!(message.contains("application/json"), "{message}");
            assert!(message.contains(named), "{message}");
        }
        // What is refused with the right type is refused for another reason.
        for kind in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/a+json",
        ] {
            let status = typed(api, route, Some(kind)).send().await.unwrap().status();
            assert_ne!(
                status,
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{route:?} {kind}"
            );
        }
    }
    bridge.stop().await;
}

/// As a page sends it: a whole, valid dispatch, with a type that needs no preflight.
#[tokio::test]
async fn a_simple_request_is_no_dispatch_and_no_session() {
    let bridge = Bridge::start().await;
    let agent = Api::new(agent_of(&bridge.api).await);
    for kind in [Some("text/plain"), Some(REFUSED[1]), None] {
        for (api, path, body) in [
            (&bridge.api, "/api/v2/dispatch", quiet("t-1", "ok")),
            (&bridge.api, "/api/v1/runs", json!({"title": "t"})),
            (&agent, "/session/start", json!({"adapter": "a"})),
        ] {
            let request = api.request(Method::POST, path).body(body.to_string());
            let request = match kind {
                Some(kind) => request.header("content-type", kind),
                None => request,
            };
            let (status, refused) = answer(request).await;
            assert_eq!(
                status,
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "{path}: {refused}"
            );
        }
    }
    for (path, list) in [
        ("/api/v2/dispatches", "dispatches"),
        ("/api/v1/runs", "runs"),
        ("/api/v2/signals/sessions", "sessions"),
    ] {
        let (_, page) = bridge.api.get(path).await;
        assert_eq!(page[list], json!([]), "{path}");
    }
    // The same with its type.
    let posted = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let (status, accepted) = answer(posted.json_body(&quiet("t-1", "ok"))).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
    bridge
        .api
        .finished(accepted["dispatchId"].as_str().unwrap())
        .await;
    bridge.stop().await;
}

/// Without a body there is nothing that has a type.
#[tokio::test]
async fn a_request_without_a_body_needs_no_type() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("t-1", "slow:600000")).await;
    let cancel = bridge
        .api
        .request(Method::POST, &format!("/api/v2/dispatch/{id}/cancel"))
        .header("content-type", "text/plain");
    let (status, cancelled) = answer(cancel).await;
    assert_eq!(status, StatusCode::OK, "{cancelled}");
    assert_eq!(
        bridge.api.finished(&id).await["result"]["errorCode"],
        "cancelled"
    );
    let pause = bridge.api.request(Method::POST, "/api/v1/runs/run_x/pause");
    let (status, refused): (_, Value) = answer(pause).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{refused}");
    bridge.stop().await;
}
