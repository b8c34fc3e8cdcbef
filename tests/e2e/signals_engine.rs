//! The engine API: signals that adapters sign with their token.

use forge_base::digest::{MacKey, hex};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::harness::api::answer;
use super::harness::process::Home;
use super::harness::{Api, Bridge, until};
use super::metrics::scrape;
use super::signals::{Tool, agent_of, usage};
use super::signals_main::tokens;

/// Token of 42 bytes, of which 32 sign, and one of 24.
const LONG: &str = "forg_live_a3f9e2c1b84d7f6e0a2c1d8e9f0b3c4d";
const SHORT: &str = "lic_a3f9e2c1b84d7f6e0a2c";

/// Request for the engine API, as an adapter sends it.
struct Sent<'a> {
    api: &'a Api,
    token: Option<&'a str>,
    body: Vec<u8>,
    content_type: &'a str,
    signature: Vec<String>,
}

impl<'a> Sent<'a> {
    fn new(api: &'a Api, token: &'a str, body: impl Into<Vec<u8>>) -> Self {
        let body = body.into();
        Self {
            api,
            token: Some(token),
            content_type: "application/json",
            signature: vec![format!("sha256={}", digits(token, &body))],
            body,
        }
    }

    fn request(self) -> RequestBuilder {
        let mut request = self.api.request(Method::POST, "/engine/v1/signals");
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        for signature in self.signature {
            request = request.header("x-forg-signature", signature);
        }
        let request = request.header("content-type", self.content_type);
        request.body(self.body)
    }

    async fn answer(self) -> (u16, Value) {
        let (status, body) = answer(self.request()).await;
        (status.as_u16(), body)
    }

    /// Status, and for a refusal its code.
    async fn status(self) -> (u16, String) {
        let (status, body) = self.answer().await;
        let code = body["code"].as_str().unwrap_or_default();
        (status, code.to_owned())
    }
}

fn digits(token: &str, body: &[u8]) -> String {
    let key = &token.as_bytes()[..token.len().min(32)];
    hex(&MacKey::new(key).mac([body]))
}

async fn send(api: &Api, token: &str, signal: &Value) -> Value {
    let (status, answer) = Sent::new(api, token, signal.to_string()).answer().await;
    assert_eq!(status, 200, "{signal}: {answer}");
    answer
}

/// Answer to a signal; `None` if the bridge is gone.
pub(crate) async fn try_send(api: &Api, token: &str, signal: &Value) -> Option<Value> {
    let request = Sent::new(api, token, signal.to_string()).request();
    request.send().await.ok()?.json().await.ok()
}

fn drift(session: &str) -> Value {
    json!({
        "type": "goal-drift", "session_id": session, "drift_score": 0.5, "original_goal": "a",
        "current_trajectory": "b",
    })
}

/// Sessions in the event log, each with the number of its signals when it ended.
async fn ended(api: &Api) -> Vec<(String, u64)> {
    let log = api.event_log().await;
    let ended = log
        .iter()
        .filter(|event| event["type"] == "signal.session.ended");
    let ended = ended.map(|event| {
        let data = &event["data"];
        let id = data["clientSessionId"].as_str().unwrap_or_default();
        (
            id.to_owned(),
            data["totals"]["signalCount"].as_u64().unwrap(),
        )
    });
    ended.collect()
}

#[tokio::test]
async fn published_vectors_are_accepted() {
    let tokens = format!("auth.tokens = [\"{LONG}\", \"{SHORT}\"]");
    let bridge = Bridge::configured(&tokens, &[]).await;
    let beat = r#"{"type":"adapter-heartbeat","adapter_id":"my-tool","latency_ms":4}"#;
    let start = r#"{"type":"session-start","ts":"2025-05-29T10:00:00.000Z","session_id":"sess_4f9a2e1b8c3d","adapter_id":"claude-code-forg","goal_declared":"Refactor — naïve café ☕"}"#;
    let of_beat = "a91fa1e7983b730f1ecb925ed99bf5ad6d2b27b6508dfbf14a0d0bbbde1de571";
    let of_whole = "2ab1f06497fa78dd9c4a68c0152a9abf245edbdc8fdafdb9863d631333160ac4";
    let of_short = "eff3bdcfe7f8f72874e0114f05375e1835c2dcdb91b9d36de2576c6cb6d1024e";
    let of_start = "d7042fd2eb9fc6a26bbe399b2f30a81c30c9aebc4f1327d0093581bf3bc27885";
    for (token, body, digits, expected) in [
        (LONG, beat, of_beat, 200),
        (LONG, beat, of_whole, 401),
        (SHORT, beat, of_short, 200),
        (SHORT, beat, of_beat, 401),
        (LONG, start, of_start, 200),
    ] {
        let sent = Sent {
            signature: vec![format!("sha256={digits}")],
            ..Sent::new(&bridge.api, token, body)
        };
        let (status, answer) = sent.answer().await;
        assert_eq!(status, expected, "{token} {digits}: {answer}");
        if digits == of_start {
            let noop = json!({"action": "noop", "session_id": "sess_4f9a2e1b8c3d", "logged": true});
            assert_eq!(answer, noop);
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn each_form_of_a_signature_and_each_length_of_a_token() {
    let file = "auth.failures_per_minute = 0\nauth.requests_per_minute = 0";
    let bridge = Bridge::configured(file, &[]).await;
    let body = drift("s").to_string();
    // No token is configured: any one will do that signs.
    for length in [1, 24, 31, 32, 33, 42, 200] {
        let token = "0123456789abcdefghijABCDEFGHIJ-_".repeat(7);
        let token = &token[..length];
        let (status, _) = Sent::new(&bridge.api, token, body.as_str()).answer().await;
        assert_eq!(status, 200, "{length}");
    }
    let right = format!("sha256={}", digits(LONG, body.as_bytes()));
    let none = format!("sha256={}", digits(LONG, b""));
    let accepted = [
        right.clone(),
        format!("sha256={}", right[7..].to_uppercase()),
    ];
    for signature in accepted {
        let sent = Sent {
            signature: vec![signature.clone()],
            ..Sent::new(&bridge.api, LONG, body.as_str())
        };
        assert_eq!(sent.answer().await.0, 200, "{signature}");
    }
    for signature in [
        vec![],
        vec![right.clone(), right.clone()],
        vec![right[7..].to_owned()],
        vec!["sha256=".to_owned()],
        vec![right.replace('=', "= ")],
        vec![right.to_uppercase()],
        vec![right[..right.len() - 2].to_owned()],
        vec![format!("{right}00")],
        vec![none.clone()],
        vec![format!("sha256={}", digits(SHORT, body.as_bytes()))],
    ] {
        let sent = Sent {
            signature: signature.clone(),
            ..Sent::new(&bridge.api, LONG, body.as_str())
        };
        let refused = (401, "UNAUTHORIZED".to_owned());
        assert_eq!(sent.status().await, refused, "{signature:?}");
    }
    // One byte more, and the same members in another order, are other bytes.
    let value: Value = serde_json::from_str(&body).unwrap();
    for other in [format!("{body} "), format!("{value:#}")] {
        let sent = Sent {
            signature: vec![right.clone()],
            ..Sent::new(&bridge.api, LONG, other.as_str())
        };
        assert_eq!(sent.answer().await.0, 401, "{other}");
    }
    // Without a token, or with one that is not ASCII.
    for token in [None, Some("tökén")] {
        let sent = Sent {
            token,
            ..Sent::new(&bridge.api, token.unwrap_or(LONG), body.as_str())
        };
        assert_eq!(sent.answer().await.0, 401, "{token:?}");
    }
    // Blanks around it are no part of it.
    let spaced = bridge.api.request(Method::POST, "/engine/v1/signals");
    let spaced = spaced
        .header("authorization", format!("bearer   {LONG}  "))
        .header("x-forg-signature", right)
        .header("content-type", "application/json; charset=utf-8");
    assert_eq!(answer(spaced.body(body)).await.0, StatusCode::OK);
    bridge.stop().await;
}

#[tokio::test]
async fn bodies_that_are_no_plain_json_are_refused() {
    let bridge = Bridge::start().await;
    let open = "{".repeat(100);
    for body in [
        &b""[..],
        b"{",
        b"[]",
        b"\"a\"",
        b"null",
        b"{\"type\": \"a\", \"type\": \"b\"}",
        b"\xef\xbb\xbf{\"type\": \"a\"}",
        b"{\"type\": \"\xff\"}",
        b"{\"type\": \"completion-verified\", \"goal_id\": \"g\", \"confidence\": NaN}",
        b"{\"type\": \"completion-verified\", \"goal_id\": \"g\", \"confidence\": 1e999}",
        open.as_bytes(),
    ] {
        let invalid = (400, "INVALID_REQUEST".to_owned());
        let status = Sent::new(&bridge.api, LONG, body).status().await;
        assert_eq!(status, invalid, "{}", String::from_utf8_lossy(body));
    }
    bridge.stop().await;
}

/// Each request has the faults of all that follow it too, so that only the order decides. A body that is too large is
/// sent only where it is read: an earlier answer closes the connection under it. `server/src/engine.rs` has the others.
#[tokio::test]
async fn the_checks_have_an_order() {
    let file = format!("auth.failures_per_minute = 0\n{}", tokens());
    let bridge = Bridge::configured(&file, &[]).await;
    let wrong = || Sent {
        content_type: "text/plain",
        signature: vec!["sha256=".to_owned()],
        ..Sent::new(&bridge.api, "unknown", "{")
    };
    let small = |body: &str| Sent {
        token: Some("signals"),
        content_type: "application/json",
        body: body.as_bytes().to_vec(),
        ..wrong()
    };
    let signed = |body: &str| Sent::new(&bridge.api, "signals", body);
    let foreign_host = answer(wrong().request().header("host", "evil.example")).await;
    assert_eq!(foreign_host.0, StatusCode::FORBIDDEN);
    let foreign_page = answer(wrong().request().header("origin", "https://evil.example")).await;
    assert_eq!(foreign_page.0, StatusCode::FORBIDDEN);
    for (sent, status, code) in [
        (wrong(), 401, "UNAUTHORIZED"),
        (
            Sent {
                token: Some("dispatch"),
                ..wrong()
            },
            403,
            "FORBIDDEN",
        ),
        (
            Sent {
                token: Some("signals"),
                body: vec![b'{'; 70_000],
                ..wrong()
            },
            413,
            "PAYLOAD_TOO_LARGE",
        ),
        (
            Sent {
                content_type: "text/plain",
                ..small("{")
            },
            415,
            "UNSUPPORTED_MEDIA_TYPE",
        ),
        (small("{"), 401, "UNAUTHORIZED"),
        (signed("{"), 400, "INVALID_REQUEST"),
    ] {
        assert_eq!(sent.status().await, (status, code.to_owned()));
    }
    let (status, answered) = signed("{\"type\": 5}").answer().await;
    assert_eq!(
        (status, &answered["details"][0]["field"]),
        (400, &json!("type"))
    );
    let other = signed("{\"type\": 5}").request();
    let (status, answered) = answer(other.header("x-forg-adapter-protocol", "v2")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(answered["details"][0]["field"], "X-Forg-Adapter-Protocol");
    bridge.stop().await;
}

#[tokio::test]
async fn no_session_is_reached_by_another_token_or_by_the_other_api() {
    let bridge = Bridge::start().await;
    let agent = agent_of(&bridge.api).await;
    let tool = Tool::start(&agent, &json!({"adapter": "my-tool-forg"})).await;
    let end = |session: &str| json!({"type": "session-end", "session_id": session, "duration_ms": 1, "tasks_completed": 1});
    send(&bridge.api, LONG, &drift("s")).await;
    send(&bridge.api, SHORT, &end("s")).await;
    // The id of a session of the agent is that of another one here, and the other way round.
    send(&bridge.api, LONG, &end(&tool.session)).await;
    let (status, _) = tool.emit(&usage(Some("s"))).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let (status, emitted) = tool.emit(&usage(Some(&tool.session))).await;
    assert_eq!(
        (status, &emitted["session_id"]),
        (StatusCode::OK, &json!(tool.session))
    );
    send(&bridge.api, LONG, &end("s")).await;
    let expected = [("s", 1), (tool.session.as_str(), 1), ("s", 2)];
    let expected = expected.map(|(id, count)| (id.to_owned(), count));
    assert_eq!(ended(&bridge.api).await, expected);
    bridge.stop().await;
}

/// Each signal that was answered with `logged: true` is on disk, once.
#[tokio::test]
async fn logged_signals_survive_a_kill() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let exact = |number: u64| {
        let mut signal = drift("s");
        signal["ts"] = format!("2025-05-29T10:00:00.{number:03}Z").into();
        signal
    };
    for number in 0..5 {
        let answer = send(&bridge.api, LONG, &exact(number)).await;
        assert_eq!(answer["logged"], true, "{answer}");
    }
    bridge.kill();
    let bridge = home.start();
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(health["signals"]["sessions"], 1, "{health}");
    for number in 3..8 {
        let answer = send(&bridge.api, LONG, &exact(number)).await;
        assert_eq!(answer["logged"], true, "{answer}");
    }
    let mut end = json!({"type": "session-end", "adapter": "a", "session_id": "s"});
    let answer = send(&bridge.api, LONG, &end).await;
    assert_eq!(
        (&answer["ok"], &answer["logged"]),
        (&json!(true), &json!(true))
    );
    assert_eq!(ended(&bridge.api).await, [("s".to_owned(), 9)]);
    // It has ended before the next kill, and after it.
    bridge.kill();
    let bridge = home.start();
    end["adapter"] = "b".into();
    let answer = send(&bridge.api, LONG, &end).await;
    assert_eq!(
        (&answer["action"], &answer["logged"]),
        (&json!("noop"), &json!(false))
    );
}

#[tokio::test]
async fn refusals_are_counted_logged_once_and_limited() {
    let home = Home::new(&[("BRIDGE_METRICS_PUBLIC", "true"), ("BRIDGE_TOKENS", LONG)]);
    let bridge = home.start();
    let wrong = || Sent {
        signature: vec![format!("sha256={}", digits(SHORT, b""))],
        ..Sent::new(
            &bridge.api,
            LONG,
            drift("s")
                .to_string()
                .replace('}', ", \"adapter_id\": \"a\"}"),
        )
    };
    let mut statuses = Vec::new();
    for _ in 0..32 {
        statuses.push(wrong().status().await.0);
    }
    // 30 a minute are answered 401 (auth.failures_per_minute); a right one is answered whatever came before.
    let refused = statuses.iter().filter(|status| **status == 401).count() as u64;
    assert!(
        (30..32).contains(&refused) && statuses.contains(&429),
        "{statuses:?}"
    );
    let right = Sent::new(&bridge.api, LONG, drift("s").to_string());
    assert_eq!(right.status().await.0, 200);
    let tool = Sent {
        token: None,
        ..wrong()
    };
    assert_eq!(tool.status().await.0, 401);

    let page = scrape(&bridge).await;
    let family = "forge_bridge_signals_refused_total{api=\"engine\",adapter=";
    for line in [
        format!("{family}\"a\",reason=\"signature\"}} {refused}"),
        format!("{family}\"unknown\",reason=\"token\"}} 1"),
        "forge_bridge_signals_received_total{api=\"engine\",outcome=\"stored\"} 1".to_owned(),
        "forge_bridge_signals_sessions{api=\"engine\"} 1".to_owned(),
    ] {
        assert!(page.lines().any(|other| other == line), "{line}\n{page}");
    }
    let events = until("the refusals to be in the log", || async {
        let path = "/api/v2/events?after=0&type=signal.refused";
        let request = bridge.api.request(Method::GET, path).bearer_auth(LONG);
        let request = request.header("accept", "application/json");
        let (_, page) = answer(request).await;
        let events = page["events"].as_array().unwrap().clone();
        (!events.is_empty()).then_some(events)
    })
    .await;
    let data = events.iter().map(|event| &event["data"]);
    let of_a = data
        .filter(|data| data["adapter"] == "a")
        .collect::<Vec<_>>();
    assert!(of_a.len() <= 1, "{events:?}");
    for data in of_a {
        assert_eq!(
            (&data["source"], &data["reason"]),
            (&json!("engine"), &json!("signature"))
        );
    }
}

#[tokio::test]
async fn an_intervention_is_answered_and_acknowledged_once() {
    let home = Home::new(&[]);
    let settings = "[signals]\nrules = \"rules.json\"\n";
    std::fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    let budget = json!({"id": "b", "scope": "session", "window": "session", "limitTokens": 100});
    let rules = json!({"version": 1, "budgets": [budget]});
    std::fs::write(home.dir.path().join("rules.json"), rules.to_string()).unwrap();
    let bridge = home.start();
    let usage = |tokens: u64| {
        json!({
            "type": "post-tool", "adapter": "a", "session_id": "s", "metadata": {"tokens_in": tokens},
        })
    };
    let warned = send(&bridge.api, LONG, &usage(80)).await;
    assert_eq!(
        (&warned["action"], &warned["severity"]),
        (&json!("intervention"), &json!("warning"))
    );
    let blocked = send(&bridge.api, LONG, &usage(20)).await;
    assert_eq!(blocked["severity"], "critical", "{blocked}");
    let acknowledged = json!({
        "type": "refocus-ack", "session_id": "s", "intervention_id": warned["intervention_id"],
        "ack_delay_ms": 2500,
    });
    for _ in 0..2 {
        let again = send(&bridge.api, LONG, &acknowledged).await;
        assert_eq!(again["intervention_id"], blocked["intervention_id"]);
    }
    let log = bridge.api.event_log().await;
    let noted = log
        .iter()
        .filter(|event| event["type"] == "signal.acknowledged");
    let noted: Vec<_> = noted.map(|event| &event["data"]).collect();
    assert_eq!(noted.len(), 1);
    assert_eq!(noted[0]["delayMs"], 2500);
}
