//! Signals: sessions of the local agent and their signed signals, over HTTP and over restarts.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_base::digest::{MacKey, hex};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::harness::api::{JsonBody as _, answer};
use super::harness::process::Home;
use super::harness::{Api, Bridge};

/// Tool that sends signals.
pub(crate) struct Tool {
    agent: Api,
    pub(crate) session: String,
    pub(crate) key: Vec<u8>,
}

pub(crate) async fn agent_url(bridge: &Bridge) -> String {
    agent_of(&bridge.api).await
}

pub(crate) async fn agent_of(api: &Api) -> String {
    let (_, health) = api.get("/api/health").await;
    format!("http://{}", health["signals"]["agent"].as_str().unwrap())
}

impl Tool {
    pub(crate) async fn start(url: &str, request: &Value) -> Self {
        let agent = Api::new(url.to_owned());
        let started = agent
            .request(Method::POST, "/session/start")
            .json_body(request);
        let (status, started) = answer(started).await;
        assert_eq!(status, StatusCode::OK, "{started}");
        Self::with(agent, &started)
    }

    /// Tool of a session that was started.
    pub(super) fn with(agent: Api, started: &Value) -> Self {
        Self {
            agent,
            session: started["session_id"].as_str().unwrap().to_owned(),
            key: BASE64_STANDARD
                .decode(started["session_key"].as_str().unwrap())
                .unwrap(),
        }
    }

    /// Starts a session; `None` if the bridge is gone.
    pub(crate) async fn try_start(bridge: &Api, request: &Value) -> Option<Self> {
        let health = read(bridge.request(Method::GET, "/api/health")).await?;
        let agent = Api::new(format!("http://{}", health["signals"]["agent"].as_str()?));
        let start = agent.request(Method::POST, "/session/start");
        let started = read(start.json_body(request)).await?;
        let key = started["session_key"].as_str()?;
        Some(Self {
            agent,
            session: started["session_id"].as_str()?.to_owned(),
            key: BASE64_STANDARD.decode(key).unwrap(),
        })
    }

    /// Answer to a signal; `None` if the bridge is gone.
    pub(crate) async fn try_emit(&self, record: &Value) -> Option<Value> {
        let body = record.to_string();
        read(self.signed(&body, &body)).await
    }

    pub(super) fn signed(&self, body: &str, with: &str) -> RequestBuilder {
        let digits = hex(&MacKey::new(&self.key).mac([with.as_bytes()]));
        let request = self.agent.request(Method::POST, "/emit");
        let request = request.header("content-type", "application/json");
        let signature = format!("sha256={digits}");
        request
            .header("x-forg-signature", signature)
            .body(body.to_owned())
    }

    pub(crate) async fn emit(&self, record: &Value) -> (StatusCode, Value) {
        let body = record.to_string();
        answer(self.signed(&body, &body)).await
    }
}

async fn read(request: RequestBuilder) -> Option<Value> {
    let answer = request.send().await.ok()?;
    answer.json().await.ok()
}

pub(super) fn usage(session: Option<&str>) -> Value {
    json!({
        "adapter": "my-tool-forg", "ts": "2025-05-28T10:00:00Z", "model": "claude-opus-4-5", "tokens_in": 100,
        "tokens_out": 50, "latency_ms": 500, "cost_usd": null, "error_code": null, "session_id": session,
        "project_id": null,
    })
}

#[tokio::test]
async fn a_tool_starts_a_session_sends_signals_and_ends_it() {
    let bridge = Bridge::start().await;
    let url = agent_url(&bridge).await;
    let (_, health) = Api::new(url.clone()).get("/health").await;
    assert_eq!(
        (&health["status"], health["version"].is_string()),
        (&json!("ok"), true)
    );

    let tool = Tool::start(&url, &json!({"adapter": "my-tool-forg", "user_id": "u1"})).await;
    assert!(tool.session.starts_with("sess_") && tool.key.len() == 32);
    let expected = json!({"blocked": false, "session_id": tool.session, "logged": true});
    assert_eq!(
        tool.emit(&usage(Some(&tool.session))).await,
        (StatusCode::OK, expected.clone())
    );
    // Without the id, the key names the session.
    assert_eq!(tool.emit(&usage(None)).await, (StatusCode::OK, expected));

    let end = json!({"adapter": "my-tool-forg", "session_id": tool.session, "hook": "SessionEnd", "ts": "2026-01-01T00:00:00Z"});
    assert_eq!(tool.emit(&end).await.0, StatusCode::OK);
    assert_eq!(tool.emit(&end).await.0, StatusCode::OK);
    // A signal after the end opens a successor, under the same key and the old id.
    let (_, after) = tool.emit(&usage(Some(&tool.session))).await;
    assert_ne!(after["session_id"], tool.session);

    let log = bridge.api.event_log().await;
    let told = log.iter().filter_map(|event| {
        let kind = event["type"].as_str().unwrap();
        let count = event["data"]["totals"]["signalCount"].as_u64();
        kind.starts_with("signal.").then(|| (kind, count.unwrap()))
    });
    let told: Vec<_> = told.collect();
    let (started, ended) = ("signal.session.started", "signal.session.ended");
    assert_eq!(told, [(started, 0), (ended, 3), (started, 0)]);
    bridge.stop().await;
}

#[tokio::test]
async fn wrong_signals_are_refused() {
    let bridge = Bridge::start().await;
    let url = agent_url(&bridge).await;
    let tool = Tool::start(&url, &json!({"adapter": "my-tool-forg"})).await;
    let body = usage(Some(&tool.session)).to_string();
    let code = async |request: RequestBuilder| {
        let (status, body) = answer(request).await;
        (
            status.as_u16(),
            body["code"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let unauthorized = (401, "UNAUTHORIZED".to_owned());
    let invalid = (400, "INVALID_REQUEST".to_owned());
    assert_eq!(code(tool.signed(&body, "other")).await, unauthorized);
    let twice = tool
        .signed(&body, &body)
        .header("x-forg-signature", "sha256=00");
    assert_eq!(code(twice).await, unauthorized);
    let unsigned = tool
        .agent
        .request(Method::POST, "/emit")
        .json_body(&usage(None));
    assert_eq!(code(unsigned).await, unauthorized);
    let unknown = usage(Some("sess_unknown")).to_string();
    assert_eq!(code(tool.signed(&unknown, &unknown)).await, unauthorized);
    // Signed and not valid: each field is named.
    let wrong = json!({"adapter": "my-tool-forg", "session_id": tool.session, "ts": "now", "prompt": "secret"});
    let (status, refused) = tool.emit(&wrong).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let fields: Vec<_> = refused["details"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["field"])
        .collect();
    assert_eq!(fields, ["prompt", "ts", "model", "tokens_in"], "{refused}");
    assert_eq!(code(tool.signed("{", "{")).await, invalid);
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(70_000));
    assert_eq!(
        code(tool.signed(&large, &large)).await,
        (413, "PAYLOAD_TOO_LARGE".to_owned())
    );
    let start = |body: &'static str| {
        tool.agent
            .request(Method::POST, "/session/start")
            .body(body)
    };
    let typed = |request: RequestBuilder| request.header("content-type", "application/json");
    assert_eq!(code(typed(start("{}"))).await, invalid);
    assert_eq!(
        code(start("{\"adapter\": \"a\"}").header("content-type", "text/plain")).await,
        (415, "UNSUPPORTED_MEDIA_TYPE".to_owned())
    );
    let get = tool.agent.request(Method::GET, "/emit");
    assert_eq!(code(get).await, (405, "METHOD_NOT_ALLOWED".to_owned()));
    assert_eq!(
        code(tool.agent.request(Method::GET, "/api/v2/events")).await,
        (404, "NOT_FOUND".to_owned())
    );
    bridge.stop().await;
}

#[tokio::test]
async fn pages_and_rebound_names_reach_no_agent() {
    let bridge = Bridge::start().await;
    let url = agent_url(&bridge).await;
    let agent = Api::new(url.clone());
    for (name, value) in [
        ("origin", "http://localhost:3000"),
        ("origin", url.as_str()),
        ("origin", "null"),
        ("host", "evil.example"),
    ] {
        for request in [
            agent
                .request(Method::POST, "/session/start")
                .json_body(&json!({"adapter": "a"})),
            agent.request(Method::GET, "/health"),
            agent
                .request(Method::OPTIONS, "/session/start")
                .header("access-control-request-method", "POST")
                .header("access-control-request-private-network", "true"),
        ] {
            let sent = request.header(name, value).send().await.unwrap();
            assert_eq!(sent.status(), StatusCode::FORBIDDEN, "{name}: {value}");
            let cors = sent
                .headers()
                .keys()
                .find(|name| name.as_str().starts_with("access-control-"));
            assert_eq!(cors, None, "{name}: {value}");
        }
    }
    bridge.stop().await;
}

/// The session of a client's own id, its key and its signals outlive the process.
#[tokio::test]
async fn sessions_survive_a_kill() {
    let home = Home::new(&[]);
    let request = json!({"adapter": "a", "user_id": "u", "client_session_id": "own"});
    let bridge = home.start();
    let tool = Tool::start(&agent_of(&bridge.api).await, &request).await;
    let mut record = usage(Some(&tool.session));
    record["adapter"] = "a".into();
    record["call_id"] = "once".into();
    assert_eq!(tool.emit(&record).await.0, StatusCode::OK);
    bridge.kill();

    let bridge = home.start();
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["sessions"], 1, "{health}");
    let again = Tool::start(&agent_of(&bridge.api).await, &request).await;
    assert_eq!((&again.session, &again.key), (&tool.session, &tool.key));
    let (status, answered) = again.emit(&record).await;
    assert_eq!(
        (status, &answered["session_id"]),
        (StatusCode::OK, &json!(tool.session))
    );
}

#[tokio::test]
async fn an_agent_whose_address_is_in_use_is_unavailable_and_stops_nothing() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    for (listen, expected) in [(address.as_str(), "unavailable"), ("off", "off")] {
        let bridge = Bridge::with(&[("BRIDGE_SIGNALS_LISTEN", listen)]).await;
        let (status, health) = bridge.api.get("/api/health").await;
        assert_eq!(
            (status, &health["signals"]["agent"]),
            (StatusCode::OK, &json!(expected))
        );
        bridge.stop().await;
    }
}
