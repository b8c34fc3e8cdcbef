//! Invalid bodies over real TCP: each is answered with the error envelope, and the bridge keeps running.

use std::net::SocketAddr;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::harness::Bridge;
use super::harness::api::{JsonBody, quiet, with};

/// Posts these bytes unchanged; returns status and error envelope.
async fn post(bridge: SocketAddr, body: &[u8]) -> (u16, Value) {
    let head = format!(
        "POST /api/v2/dispatch HTTP/1.1\r\nhost: {bridge}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let stream = TcpStream::connect(bridge).await.unwrap();
    let (mut reader, mut writer) = stream.into_split();
    let send = async {
        // The bridge can answer and close the connection before everything is sent.
        let sent = writer.write_all(head.as_bytes()).await;
        let _ = sent.and(writer.write_all(body).await);
    };
    let receive = async {
        let mut answer = Vec::new();
        // A close with unread bytes resets the connection; the answer arrives before it.
        let _ = reader.read_to_end(&mut answer).await;
        answer
    };
    let ((), answer) = tokio::join!(send, receive);
    let text = String::from_utf8(answer).unwrap();
    let status = text
        .split(' ')
        .nth(1)
        .unwrap_or_else(|| panic!("no answer: {text:?}"));
    let (_, envelope) = text.split_once("\r\n\r\n").unwrap();
    (
        status.parse().unwrap(),
        serde_json::from_str(envelope).unwrap(),
    )
}

/// A valid dispatch with one invalid member.
fn wrong(member: &str, value: &Value) -> Vec<u8> {
    with(quiet("t", "ok"), &json!({ member: value }))
        .to_string()
        .into_bytes()
}

/// A valid dispatch as JSON text with `more` appended to its members.
fn text(more: &str) -> Vec<u8> {
    let good = quiet("t", "ok").to_string();
    format!("{},{more}}}", good.strip_suffix('}').unwrap()).into_bytes()
}

fn malformed() -> Vec<Vec<u8>> {
    let long = "x".repeat(257);
    let good = quiet("t", "ok").to_string();
    let mut bodies: Vec<Vec<u8>> = [
        "",
        " ",
        "null",
        "true",
        "7",
        "\"text\"",
        "[]",
        "{}",
        "{",
        "}",
        "[1,2",
        "{\"a\":}",
        "{'a':1}",
        "NaN",
        "// no\n{}",
        "{}{}",
        "<xml/>",
        "taskId=t&agentId=a",
    ]
    .map(|body| body.as_bytes().to_vec())
    .into();
    bodies.extend([
        good.as_bytes()[..good.len() - 1].to_vec(),
        good.as_bytes()[..good.len() / 2].to_vec(),
        [b"\xef\xbb\xbf", good.as_bytes()].concat(),
        good.encode_utf16().flat_map(u16::to_le_bytes).collect(),
        [good.as_bytes(), b"\0"].concat(),
        text("\"model\":\"\u{0}\""),
        text("\"timeout\":1e999"),
        text("\"timeout\":99999999999999999999999999"),
        text("\"priority\":-9223372036854775809"),
        text("\"taskId\":\"twice\""),
        text("\"metadata\":{\"a\":1,\"a\":2}"),
        text("\"task_id\":\"other\""),
        text("\"model\":\"\\ud800\""),
        b"{\"taskId\":\"\xff\xfe\"}".to_vec(),
        b"{\"taskId\":\"\xed\xa0\x80\"}".to_vec(),
        vec![b'['; 10_000],
        b"{\"a\":".repeat(10_000),
        text(&format!(
            "\"metadata\":{{\"deep\":{}{}}}",
            "[".repeat(10_000),
            "]".repeat(10_000)
        )),
        text(&format!(
            "\"metadata\":{{\"wide\":[{}0]}}",
            "0,".repeat(600_000)
        )),
    ]);
    bodies.extend([
        wrong("taskId", &json!("")),
        wrong("taskId", &json!(7)),
        wrong("taskId", &json!("dsp_mine")),
        wrong("taskId", &json!(long)),
        wrong("agentId", &json!("a\nb")),
        wrong("message", &json!(["hello"])),
        wrong("message", &Value::Null),
        wrong("callbackUrl", &json!("ftp://example.com/")),
        wrong("callbackUrl", &json!("http://10.0.0.1/")),
        wrong("timeout", &json!(-1)),
        wrong("timeout", &json!("60")),
        wrong("priority", &json!(11)),
        wrong("priority", &json!(0.5)),
        wrong("notBefore", &json!("tomorrow")),
        wrong("deadline", &json!("2001-01-01T00:00:00")),
        wrong("tools", &json!({"name": "t"})),
        wrong(
            "workspace",
            &json!({"files": [{"path": "../x", "content": ""}]}),
        ),
        wrong("workspace", &json!({"dir": "/etc"})),
        wrong("outputSchema", &json!({"type": 7})),
        wrong("outputStrategy", &json!("telepathy")),
        wrong("recovery", &json!("maybe")),
        wrong("budget", &json!({"maxTokens": -5})),
        wrong("callback", &json!({"headers": {"host": "evil"}})),
        wrong("callback", &json!({"headers": {"x-a": "1\r\nx-b: 2"}})),
    ]);
    bodies
}

#[tokio::test]
async fn what_is_malformed_is_refused_with_the_envelope_and_the_bridge_lives() {
    let bridge = Bridge::start().await;
    let address = bridge.app.as_ref().unwrap().addr;
    let bodies = malformed();
    assert!(bodies.len() >= 50, "{}", bodies.len());
    for body in &bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(120)]).into_owned();
        let (status, envelope) = post(address, body).await;
        assert_eq!(status, 400, "{shown}: {envelope}");
        assert_eq!(envelope["code"], "INVALID_REQUEST", "{shown}: {envelope}");
        assert!(!envelope["error"].as_str().unwrap().is_empty(), "{shown}");
        assert!(
            envelope["requestId"].as_str().unwrap().starts_with("req_"),
            "{shown}"
        );
        let details = envelope["details"].as_array().unwrap();
        assert!(!details.is_empty(), "{shown}: {envelope}");
    }
    let large = wrong("message", &json!("x".repeat(11 << 20)));
    let (status, envelope) = post(address, &large).await;
    assert_eq!(
        (status, &envelope["code"]),
        (413, &json!("PAYLOAD_TOO_LARGE")),
        "{envelope}"
    );
    let (_, page) = bridge.api.get("/api/v2/dispatches").await;
    assert_eq!(page["dispatches"], json!([]), "nothing was taken");
    assert_eq!(bridge.api.run(quiet("t", "ok")).await["status"], "ok");
    bridge.stop().await;
}

#[tokio::test]
async fn all_that_is_wrong_is_said_at_once() {
    let bridge = Bridge::start().await;
    let body = json!({
        "taskId": "", "message": 5, "callbackUrl": "nowhere", "timeout": 0, "priority": 99,
        "recovery": "maybe", "budget": {"maxCostUsd": -1}, "tools": [{"description": "nameless"}],
        "outputStrategy": 1, "metadata": [],
    });
    let envelope = bridge.api.refused(&body, 400, "INVALID_REQUEST").await;
    let details = envelope["details"].as_array().unwrap();
    let fields: Vec<_> = details
        .iter()
        .map(|detail| detail["field"].as_str().unwrap())
        .collect();
    for field in [
        "taskId",
        "agentId",
        "message",
        "callbackUrl",
        "timeout",
        "priority",
        "recovery",
        "budget.maxCostUsd",
        "tools[0].name",
        "outputStrategy",
        "metadata",
    ] {
        assert!(fields.contains(&field), "{field} is missing in {fields:?}");
    }
    assert!(
        details.iter().all(|detail| detail["message"].is_string()),
        "{details:?}"
    );
    bridge.stop().await;
}

#[tokio::test]
async fn without_its_store_nothing_is_promised() {
    let bridge = Bridge::start().await;
    bridge.app.as_ref().unwrap().store.close().await;
    let body = quiet("t", "ok");
    let request = bridge
        .api
        .request(Method::POST, "/api/v2/dispatch")
        .json_body(&body);
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(response.headers().contains_key("retry-after"));
    bridge.api.refused(&body, 503, "STORE_UNAVAILABLE").await;
}
