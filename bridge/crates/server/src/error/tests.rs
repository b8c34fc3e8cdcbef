//! Tests of `error`.

use axum::http::Request;

use super::super::auth;
use super::super::testing::{Answered, Edge};
use super::*;
use forge_base::id::DispatchId;
use forge_dispatch::validate::FieldError;

fn shown(answer: &Answered) -> String {
    format!("{} {}", answer.status.as_u16(), answer.envelope())
}

#[tokio::test]
async fn every_refusal_has_the_envelope() {
    let edge = Edge::new().await;
    insta::assert_snapshot!(shown(&edge.get("/nowhere").await), @r#"404 {"code":"NOT_FOUND","error":"there is no route \"/nowhere\""}"#);
    insta::assert_snapshot!(shown(&edge.get("/api/v2/dispatch").await), @r#"405 {"code":"METHOD_NOT_ALLOWED","error":"/api/v2/dispatch does not support GET"}"#);
    insta::assert_snapshot!(shown(&edge.get("/api/v2/dispatch/dsp_1").await), @r#"404 {"code":"NOT_FOUND","error":"there is no dispatch \"dsp_1\", or its retention is over"}"#);
    insta::assert_snapshot!(shown(&edge.get("/api/v2/dispatch/%FF").await), @r#"400 {"code":"INVALID_REQUEST","error":"bad request"}"#);
    insta::assert_snapshot!(shown(&edge.get("/api/v2/dispatches?limit=0&status=x").await), @r#"400 {"code":"INVALID_REQUEST","details":[{"field":"status","message":"must be one of accepted, queued, running, finished, ok, error"},{"field":"limit","message":"must be a whole number from 1 to 200"}],"error":"the request is not valid: status must be one of accepted, queued, running, finished, ok, error; limit must be a whole number from 1 to 200"}"#);
    insta::assert_snapshot!(shown(&edge.post("/api/v2/dispatch", "{\"a\":{\"b\":1,\"b\":2}}").await), @r#"400 {"code":"INVALID_REQUEST","details":[{"field":"a.b","message":"\"a.b\" is given twice; keys must be unique"}],"error":"\"a.b\" is given twice; keys must be unique"}"#);
    insta::assert_snapshot!(shown(&edge.post("/api/v2/dispatch", "[1,").await), @r#"400 {"code":"INVALID_REQUEST","details":[{"field":"","message":"the body is not JSON: EOF while parsing a value at line 1 column 3"}],"error":"the body is not JSON: EOF while parsing a value at line 1 column 3"}"#);
    insta::assert_snapshot!(shown(&edge.post("/api/v2/dispatch", vec![b' '; 11 << 20]).await), @r#"413 {"code":"PAYLOAD_TOO_LARGE","error":"the body is larger than 10485760 bytes"}"#);
    let foreign = Request::get("/api/v2/dispatches").header("origin", "https://evil.example");
    insta::assert_snapshot!(shown(&edge.send(foreign.body("".into()).unwrap()).await), @r#"403 {"code":"FORBIDDEN","error":"the origin \"https://evil.example\" is not allowed; add it to http.origins"}"#);
    let rebound = Request::get("/api/v2/dispatches").header("host", "evil.example");
    insta::assert_snapshot!(shown(&edge.send(rebound.body("".into()).unwrap()).await), @r#"403 {"code":"FORBIDDEN","error":"the host \"evil.example\" is not served here; add it to http.hosts"}"#);
}

#[tokio::test]
async fn without_a_token_only_health_answers() {
    let auth = auth::Config {
        tokens: vec!["token".to_owned().into()],
        ..auth::Config::default()
    };
    let edge = Edge::with(super::super::Config::default(), &auth).await;
    for (method, path) in [
        ("POST", "/api/v2/dispatch"),
        ("GET", "/api/v2/dispatch/x"),
        ("GET", "/api/v2/dispatch/x/output"),
        ("GET", "/api/v2/dispatch/x/events"),
        ("POST", "/api/v2/dispatch/x/cancel"),
        ("GET", "/api/v2/dispatches"),
        ("GET", "/api/v2/deliveries"),
        ("GET", "/api/v2/deliveries/destinations"),
        ("POST", "/api/v2/deliveries/retry"),
        ("GET", "/api/v2/deliveries/x"),
        ("POST", "/api/v2/deliveries/x/retry"),
        ("GET", "/api/v2/events"),
        ("GET", "/api/v2/adapters"),
        ("GET", "/api/v2/adapters/echo"),
        ("GET", "/api/v2/agents"),
        ("DELETE", "/api/v2/agents/x"),
        ("PUT", "/api/v2/agents/x/files/a.md"),
        ("GET", "/api/v2/models"),
        ("POST", "/api/v2/system/reload"),
    ] {
        let request = Request::builder().method(method).uri(path);
        let answer = edge.send(request.body("not JSON".into()).unwrap()).await;
        assert_eq!(answer.status, 401, "{method} {path}");
        assert_eq!(answer.header("www-authenticate"), "Bearer");
        assert_eq!(answer.envelope()["code"], "UNAUTHORIZED");
    }
    for path in ["/api/health", "/api/health/live", "/api/health/ready"] {
        assert_eq!(edge.get(path).await.status, 200, "{path}");
    }
    let request = Request::get("/api/v2/dispatches").header("authorization", "Bearer token");
    assert_eq!(
        edge.send(request.body("".into()).unwrap()).await.status,
        200
    );
}

#[tokio::test]
async fn what_components_say_becomes_a_status_and_a_code() {
    use dispatch::Error as D;
    use store::Error as S;
    let text = || "why".to_owned();
    let field = FieldError {
        field: "timeout".to_owned(),
        message: text(),
    };
    let cases: [(Failure, u16, &str, &str); 12] = [
        (D::Invalid(vec![field]).into(), 400, "INVALID_REQUEST", ""),
        (D::Conflict(DispatchId::new()).into(), 409, "CONFLICT", ""),
        (
            D::NoCapableAdapter(text()).into(),
            422,
            "NO_CAPABLE_ADAPTER",
            "",
        ),
        (
            D::UnknownProvider(text()).into(),
            422,
            "UNKNOWN_PROVIDER",
            "",
        ),
        (
            D::AdapterUnavailable(text()).into(),
            503,
            "ADAPTER_UNAVAILABLE",
            "5",
        ),
        (D::QueueFull.into(), 429, "QUEUE_FULL", "5"),
        (D::Store(S::NotFound).into(), 404, "NOT_FOUND", ""),
        (
            S::Unavailable("disk".into()).into(),
            503,
            "STORE_UNAVAILABLE",
            "1",
        ),
        (
            S::Unreadable("column 7".into()).into(),
            500,
            "RECORD_UNREADABLE",
            "",
        ),
        (S::InvalidState("no").into(), 409, "INVALID_STATE", ""),
        (
            S::Stale(DispatchId::new()).into(),
            500,
            "INTERNAL_ERROR",
            "",
        ),
        (Failure::new(Code::Draining, "bye"), 503, "DRAINING", "5"),
    ];
    for (failure, status, code, retry_after) in cases {
        let response = render(failure.into_response(), RequestId::new(), None);
        assert_eq!(response.status(), status, "{code}");
        let wait = response.headers().get("retry-after");
        assert_eq!(
            wait.map_or("", |wait| wait.to_str().unwrap()),
            retry_after,
            "{code}"
        );
        let body = axum::body::to_bytes(response.into_body(), 4096)
            .await
            .unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["code"], code);
        // Only a failure of the store has its cause in the answer.
        let names_reason = body["error"].as_str().unwrap().contains("disk");
        assert_eq!(names_reason, code == "STORE_UNAVAILABLE");
    }
}
