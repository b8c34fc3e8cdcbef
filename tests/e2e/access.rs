//! Access control: every route with its required scope, token expiry, stream tickets, and the limit on failed
//! attempts.

use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer, quiet, with};
use super::harness::{Api, Bridge, plugins, reference, until};

pub(super) const DISPATCH: &str = "dispatch";
const READ: &str = "read";
const ADMIN: &str = "admin";
const SIGNALS: &str = "signals";
/// No scope: the route holds no data.
pub(super) const PUBLIC: &str = "";

/// Every documented route with its scope; `reference.rs` checks that every route is documented.
pub(super) const ROUTES: [(&str, &str, &str); 92] = [
    ("POST", "/api/v2/dispatch", DISPATCH),
    ("GET", "/api/v2/dispatch/{id}", READ),
    ("GET", "/api/v2/dispatch/{id}/request", READ),
    ("GET", "/api/v2/dispatch/{id}/output", READ),
    ("GET", "/api/v2/dispatch/{id}/files/{name}", READ),
    ("GET", "/api/v2/dispatch/{id}/events", READ),
    ("POST", "/api/v2/dispatch/{id}/cancel", DISPATCH),
    ("GET", "/api/v2/dispatches", READ),
    ("GET", "/api/v2/events", READ),
    ("POST", "/api/v2/stream-tickets", READ),
    ("GET", "/api/v2/deliveries", READ),
    ("GET", "/api/v2/deliveries/destinations", READ),
    (
        "POST",
        "/api/v2/deliveries/destinations/{origin}/close",
        ADMIN,
    ),
    ("GET", "/api/v2/deliveries/{id}", READ),
    ("POST", "/api/v2/deliveries/{id}/retry", DISPATCH),
    ("POST", "/api/v2/deliveries/retry", ADMIN),
    ("GET", "/api/v2/nodes", READ),
    ("GET", "/api/v2/adapters", READ),
    ("GET", "/api/v2/adapters/{provider}", READ),
    ("POST", "/api/v2/adapters/{provider}/reload", ADMIN),
    ("POST", "/api/v2/adapters/{provider}/pause", ADMIN),
    ("POST", "/api/v2/adapters/{provider}/resume", ADMIN),
    ("GET", "/api/v2/approvals", READ),
    ("POST", "/api/v2/approvals/{id}/approve", ADMIN),
    ("POST", "/api/v2/approvals/{id}/reject", ADMIN),
    ("GET", "/api/v2/external", READ),
    ("POST", "/external/{service}/commands/{name}", DISPATCH),
    ("POST", "/external/{service}/queries/{name}", DISPATCH),
    ("GET", "/api/v2/signals/sessions", READ),
    ("GET", "/api/v2/signals/sessions/{id}", READ),
    ("GET", "/api/v2/signals/totals", READ),
    ("GET", "/api/v2/signals/interventions", READ),
    ("GET", "/api/v2/signals/rules", READ),
    ("POST", "/engine/v1/signals", SIGNALS),
    ("POST", "/session/start", SIGNALS),
    // Each record is signed.
    ("POST", "/emit", PUBLIC),
    ("POST", "/api/v1/runs", DISPATCH),
    ("GET", "/api/v1/runs", READ),
    ("GET", "/api/v1/runs/{runId}", READ),
    ("GET", "/api/v1/runs/{runId}/stream", READ),
    ("GET", "/api/v1/runs/{runId}/events", READ),
    ("POST", "/api/v1/runs/{runId}/pause", DISPATCH),
    ("POST", "/api/v1/runs/{runId}/resume", DISPATCH),
    ("POST", "/api/v1/runs/{runId}/cancel", DISPATCH),
    ("POST", "/api/v1/runs/{runId}/plan/approve", DISPATCH),
    ("POST", "/api/v1/runs/{runId}/plan/reopen", DISPATCH),
    ("GET", "/api/v1/runs/{runId}/tasks", READ),
    ("GET", "/api/v1/runs/{runId}/tasks/{taskId}", READ),
    ("POST", "/api/v1/runs/{runId}/retry", DISPATCH),
    (
        "POST",
        "/api/v1/runs/{runId}/tasks/{taskId}/retry",
        DISPATCH,
    ),
    ("GET", "/api/v1/runs/{runId}/change-requests", READ),
    (
        "POST",
        "/api/v1/runs/{runId}/change-requests/{crId}/approve",
        DISPATCH,
    ),
    (
        "POST",
        "/api/v1/runs/{runId}/change-requests/{crId}/reject",
        DISPATCH,
    ),
    ("GET", "/api/v1/runs/{runId}/artifacts/{path}", READ),
    ("GET", "/api/v1/runs/{runId}/verify", READ),
    ("POST", "/api/v1/captain/message", DISPATCH),
    ("GET", "/api/v2/throughput", READ),
    ("GET", "/api/v2/cost", READ),
    ("GET", "/metrics", READ),
    ("GET", "/api/health", PUBLIC),
    ("GET", "/api/health/live", PUBLIC),
    ("GET", "/api/health/ready", PUBLIC),
    ("GET", "/api/v2/agents", ADMIN),
    ("POST", "/api/v2/agents", ADMIN),
    ("GET", "/api/v2/agents/{id}", ADMIN),
    ("PUT", "/api/v2/agents/{id}", ADMIN),
    ("DELETE", "/api/v2/agents/{id}", ADMIN),
    ("GET", "/api/v2/agents/{id}/files", ADMIN),
    ("GET", "/api/v2/agents/{id}/files/{path}", ADMIN),
    ("PUT", "/api/v2/agents/{id}/files/{path}", ADMIN),
    ("DELETE", "/api/v2/agents/{id}/files/{path}", ADMIN),
    ("GET", "/api/v2/agents/{id}/bindings", ADMIN),
    ("PUT", "/api/v2/agents/{id}/bindings", ADMIN),
    ("GET", "/api/v2/skills", ADMIN),
    ("POST", "/api/v2/skills", ADMIN),
    ("GET", "/api/v2/skills/{key}", ADMIN),
    ("PUT", "/api/v2/skills/{key}", ADMIN),
    ("DELETE", "/api/v2/skills/{key}", ADMIN),
    ("GET", "/api/v2/skills/{key}/status", ADMIN),
    ("POST", "/api/v2/skills/{key}/dependencies", ADMIN),
    ("GET", "/api/v2/models", ADMIN),
    ("GET", "/api/v2/system/models", ADMIN),
    ("GET", "/api/v2/system/security", ADMIN),
    ("POST", "/api/v2/system/reload", ADMIN),
    ("GET", "/", PUBLIC),
    ("GET", "/docs", PUBLIC),
    ("GET", "/openapi.json", PUBLIC),
    ("GET", "/schemas/forge-manifest.schema.json", PUBLIC),
    ("GET", "/schemas/signal-rules.schema.json", PUBLIC),
    ("GET", "/console.js", PUBLIC),
    ("GET", "/charts.js", PUBLIC),
    ("GET", "/console.css", PUBLIC),
];

/// Configuration with a token for each scope, named like the scope, followed by `more`.
fn tokens(more: &str) -> String {
    let entries = [
        (
            "db8d1b6d64e4ec90ceb335fc4344e75799fdc20cd236d27cc85ed4783a33d3fa",
            DISPATCH,
        ),
        (
            "3316348dbadfb7b11c7c2ea235949419e23f9fa898ad2c198f999617912a9925",
            READ,
        ),
        (
            "8c6976e5b5410415bde908bd4dee15dfb167a9c873fc4bb8a81f6f2ab448a918",
            ADMIN,
        ),
        (
            "c1d2c1df9eabd696f6fa30bd829fabe1d0dfb1760876a381717729f6f0442add",
            SIGNALS,
        ),
    ];
    let entries = entries.map(|(hash, scope)| {
        format!("[[auth.token]]\nhash = \"{hash}\"\nname = \"{scope}\"\nscopes = [\"{scope}\"]\n")
    });
    format!("{more}\n{}", entries.concat())
}

async fn ask(api: &Api, method: &str, path: &str, token: Option<&str>) -> StatusCode {
    let method = Method::from_bytes(method.as_bytes()).unwrap();
    let mut request = api.request(method, path).body("not JSON");
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    // A stream has no end; the head is enough.
    request.send().await.unwrap().status()
}

#[tokio::test]
async fn every_route_asks_for_its_scope_and_no_other() {
    let documented: BTreeSet<_> = reference::operations().into_iter().collect();
    let listed = ROUTES
        .iter()
        .map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned()));
    let listed: BTreeSet<_> = listed.collect();
    let missing: Vec<_> = documented.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "without a scope in this table: {missing:?}"
    );

    let bridge = Bridge::configured(&tokens(""), &[]).await;
    for (method, path, wanted) in ROUTES {
        let path = path.replace(['{', '}'], "");
        let none = ask(&bridge.api, method, &path, None).await;
        assert_eq!(
            none == StatusCode::UNAUTHORIZED,
            wanted != PUBLIC,
            "{method} {path} without a token: {none}"
        );
        for scope in [DISPATCH, READ, ADMIN, SIGNALS] {
            let status = ask(&bridge.api, method, &path, Some(scope)).await;
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{method} {path} {scope}");
            assert_eq!(
                status == StatusCode::FORBIDDEN,
                wanted != PUBLIC && scope != wanted,
                "{method} {path} with {scope}: {status}"
            );
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_token_ends_when_its_time_has_come() {
    let entry = |token: &str, hash: &str, expires: &str| {
        format!("[[auth.token]]\nname = \"{token}\"\nhash = \"{hash}\"\nexpires = \"{expires}\"\n")
    };
    let old = entry(
        "old",
        "cba06b5736faf67e54b07b561eae94395e774c517a7d910a54369e1263ccfbd4",
        "2026-01-01T00:00:00Z",
    );
    let new = entry(
        "new",
        "11507a0e2f5e69d5dfa40a62a1bd7b6ee57e6bcd85c67c9b8431b36fff21c437",
        "2999-01-01T00:00:00Z",
    );
    let bridge = Bridge::configured(&format!("{old}{new}"), &[]).await;
    for (token, wanted) in [("old", StatusCode::UNAUTHORIZED), ("new", StatusCode::OK)] {
        let request = bridge.api.request(Method::GET, "/api/v2/dispatches");
        let (status, body) = answer(request.bearer_auth(token)).await;
        assert_eq!(status, wanted, "{token}: {body}");
        if token == "old" {
            assert_eq!(body["error"], "this token has expired");
        }
    }
    bridge.stop().await;
}

async fn ticket(api: &Api, token: &str) -> String {
    let request = api.request(Method::POST, "/api/v2/stream-tickets");
    let (status, body) = answer(request.bearer_auth(token)).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    body["ticket"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_stream_ticket_opens_one_stream_and_nothing_else() {
    let bridge = Bridge::configured(&tokens(""), &[]).await;
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request.bearer_auth(DISPATCH).json_body(&quiet("t", "ok"));
    assert_eq!(answer(request).await.0, StatusCode::ACCEPTED);
    for path in [
        "/api/v2/events?after=0",
        "/api/v2/dispatch/t/events?until=finished",
    ] {
        let ticket = ticket(&bridge.api, READ).await;
        let open = async |path: &str, ticket: &str| {
            let path = format!("{path}&ticket={ticket}");
            let request = bridge.api.request(Method::GET, &path);
            request.send().await.unwrap()
        };
        assert_eq!(open(path, "wrong").await.status(), StatusCode::UNAUTHORIZED);
        let elsewhere = open("/api/v2/dispatches?limit=1", &ticket).await;
        assert_eq!(elsewhere.status(), StatusCode::UNAUTHORIZED);
        let stream = open(path, &ticket).await;
        assert_eq!(stream.status(), StatusCode::OK, "{path}");
        let kind = stream.headers()["content-type"].to_str().unwrap();
        assert!(kind.starts_with("text/event-stream"), "{kind}");
        let again = open(path, &ticket).await;
        assert_eq!(again.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    // A ticket does not outlive the token that requested it.
    let ticket = ticket(&bridge.api, READ).await;
    let finished = bridge
        .api
        .request(Method::GET, "/api/v2/dispatch/t?wait=60");
    answer(finished.bearer_auth(READ)).await;
    let bridge = bridge
        .restarted("auth.tokens = [\"another token\"]", &[])
        .await;
    let path = format!("/api/v2/events?ticket={ticket}");
    let (status, _) = bridge.api.get(&path).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    bridge.stop().await;
}

#[tokio::test]
async fn without_tokens_a_ticket_is_not_needed_and_does_not_hurt() {
    let bridge = Bridge::start().await;
    let (status, body) = bridge.api.post("/api/v2/stream-tickets", &json!({})).await;
    assert_eq!(status, StatusCode::CREATED, "{body}");
    let path = format!("/api/v2/events?ticket={}", body["ticket"].as_str().unwrap());
    for _ in 0..2 {
        let request = bridge.api.request(Method::GET, &path);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::OK);
    }
    bridge.stop().await;
}

#[tokio::test]
async fn wrong_tokens_shut_out_no_right_one() {
    let limited = "auth.failures_per_minute = 5\nauth.requests_per_minute = 2\n\
                   auth.tokens = [\"right\", \"also right\"]";
    let bridge = Bridge::configured(limited, &[]).await;
    let try_token = async |token: &str| {
        let request = bridge.api.request(Method::GET, "/api/v2/dispatches");
        let answer = request.bearer_auth(token).send().await.unwrap();
        let wait = answer.headers().get("retry-after").cloned();
        let wait = wait.map(|wait| wait.to_str().unwrap().parse::<u64>().unwrap());
        let status = answer.status();
        let body: Value = answer.json().await.unwrap();
        (
            status,
            body["code"].as_str().unwrap_or_default().to_owned(),
            wait,
        )
    };
    for number in 0..5 {
        let (status, code, _) = try_token(&format!("wrong {number}")).await;
        assert_eq!(
            (status, code.as_str()),
            (StatusCode::UNAUTHORIZED, "UNAUTHORIZED")
        );
    }
    let (status, code, wait) = try_token("wrong").await;
    assert_eq!(
        (status, code.as_str()),
        (StatusCode::TOO_MANY_REQUESTS, "RATE_LIMITED")
    );
    assert!((1..=12).contains(&wait.unwrap()), "{wait:?}");
    // Neither token was seen from this address before.
    assert_eq!(try_token("right").await.0, StatusCode::OK);
    let post = async |body: &Value| {
        let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
        let request = request
            .header("idempotency-key", "key")
            .bearer_auth("also right");
        answer(request.json_body(body)).await
    };
    // A known key is answered whatever both rates say.
    let (_, first) = post(&quiet("known", "ok")).await;
    for _ in 0..5 {
        let (status, again) = post(&quiet("known", "ok")).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{again}");
        assert_eq!(again["dispatchId"], first["dispatchId"]);
    }
    // Routes without a scope stay available, and a request without a token does not count as a failure.
    assert_eq!(bridge.api.get("/api/health").await.0, StatusCode::OK);
    let (status, _) = bridge.api.get("/api/v2/dispatches").await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    until("the end of the dispatch", || async {
        let counts = bridge.app.as_ref().unwrap().store.counts();
        (counts.running + counts.queued == 0).then_some(())
    })
    .await;
    bridge.stop().await;
}

/// Fails at its start with a secret on stderr.
const LEAKY: &str = "#!/bin/sh\necho 'Authorization: Bearer planted-secret' >&2\nexit 3\n";

#[tokio::test]
async fn health_shows_reasons_to_readers_and_nothing_of_a_programs_stderr_to_anybody() {
    let programs = tempfile::tempdir().unwrap();
    let program = programs.path().join("forge-adapter-leaky");
    std::fs::write(&program, LEAKY).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let path = format!("{},{}", plugins().display(), programs.path().display());
    let variables = [
        ("BRIDGE_ADAPTERS", "echo,leaky"),
        ("BRIDGE_PLUGIN_PATH", path.as_str()),
    ];
    let bridge = Bridge::configured(&tokens(""), &variables).await;
    let health = async |token: &str, host: Option<&str>| {
        let request = bridge.api.request(Method::GET, "/api/health?verbose");
        let request = match host {
            Some(host) => request.header("host", host),
            None => request,
        };
        answer(request.bearer_auth(token)).await.1
    };
    for (token, host, is_reader) in [
        (READ, None, true),
        (DISPATCH, None, false),
        ("wrong", None, false),
        (READ, Some("evil.example"), false),
    ] {
        let health = health(token, host).await;
        let leaky = &health["adapters"]["leaky"];
        assert_eq!(leaky["status"], "offline", "{health}");
        assert_eq!(leaky["running"], 0, "{health}");
        assert_eq!(leaky["message"].is_string(), is_reader, "{token}: {health}");
        assert_eq!(health["adapters"]["echo"]["profile"].is_object(), is_reader);
        assert!(!health.to_string().contains("planted"), "{token}: {health}");
    }
    let health = health(READ, None).await;
    let message = health["adapters"]["leaky"]["message"].as_str().unwrap();
    assert!(message.contains("exit code 3"), "{message}");
    bridge.stop().await;
}

#[tokio::test]
async fn a_token_may_ask_so_often_and_what_is_known_is_answered_all_the_same() {
    let limited = "auth.requests_per_minute = 3\nauth.tokens = [\"one\", \"two\"]\n";
    let bridge = Bridge::configured(limited, &[]).await;
    let post = async |token: &str, body: &Value| {
        let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
        answer(request.bearer_auth(token).json_body(body)).await
    };
    let known = quiet("known", "ok");
    let (status, first) = post("one", &known).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    for _ in 0..2 {
        assert_eq!(post("one", &known).await.0, StatusCode::ACCEPTED);
    }
    let (status, body) = post("one", &quiet("new", "ok")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "{body}");
    assert_eq!(body["code"], "RATE_LIMITED");
    let (status, again) = post("one", &known).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{again}");
    assert_eq!(
        (&again["dispatchId"], &again["duplicate"]),
        (&first["dispatchId"], &json!(true))
    );
    let (status, body) = post("one", &with(known, &json!({"message": "other"}))).await;
    assert_eq!(status, StatusCode::CONFLICT, "{body}");
    let (status, body) = post("one", &json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");

    let request = bridge
        .api
        .request(Method::GET, "/api/v2/dispatch/known?wait=60");
    let (status, record) = answer(request.bearer_auth("two")).await;
    assert_eq!(
        (status, &record["status"]),
        (StatusCode::OK, &json!("finished"))
    );
    bridge.stop().await;
}
