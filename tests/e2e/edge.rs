//! Invalid requests: each is answered 4xx with the error envelope, and the bridge keeps running.

use std::net::SocketAddr;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::api::{answer, quiet};
use super::harness::{Bridge, reference};

const MIB: usize = 1024 * 1024;

/// Bodies that are not acceptable JSON.
fn malformed() -> Vec<Vec<u8>> {
    let texts: [&[u8]; 32] = [
        b"",
        b" ",
        b"{",
        b"}",
        b"[1,",
        b"{\"taskId\"}",
        b"{\"taskId\":}",
        b"{taskId:1}",
        b"{'taskId':'t'}",
        b"{\"taskId\":\"t\",}",
        b"{\"taskId\":\"t\"} x",
        b"{\"taskId\":\"t\"}{}",
        b"{\"taskId\":\"\\x\"}",
        b"{\"taskId\":\"\\ud800\"}",
        b"{\"taskId\":\"\xff\"}",
        b"{\"taskId\":\"\xc0\xaf\"}",
        b"{\"taskId\":\"\xed\xa0\x80\"}",
        b"{\"taskId\":\"a\nb\"}",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\0}\0",
        b"{\"timeout\":1e999}",
        b"{\"timeout\":-1e999}",
        b"{\"timeout\":99999999999999999999}",
        b"{\"timeout\":01}",
        b"{\"timeout\":.5}",
        b"{\"timeout\":NaN}",
        b"{\"timeout\":Infinity}",
        b"{\"taskId\":\"t\",\"taskId\":\"t\"}",
        b"{\"metadata\":{\"a\":{\"b\":1,\"b\":2}}}",
        b"{\"metadata\":{\"$serde_json::private::RawValue\":\"x\"}}",
        b"<xml/>",
        b"taskId=t",
    ];
    let mut bodies: Vec<Vec<u8>> = texts.iter().map(|text| text.to_vec()).collect();
    bodies.push(vec![b'['; 10_000]);
    bodies.push([vec![b'['; 10_000], vec![b']'; 10_000]].concat());
    bodies.push(b"{\"metadata\":".repeat(10_000));
    bodies.push(vec![b' '; 11 * MIB]);
    bodies.push(format!("{{\"message\":\"{}\"}}", "x".repeat(11 * MIB)).into_bytes());
    bodies
}

/// Bodies with invalid fields, each with the minimum number of reported errors.
fn invalid() -> Vec<(Value, usize)> {
    let with = |extra: Value| {
        let mut body = quiet("task", "ok");
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        body
    };
    vec![
        (json!(null), 1),
        (json!([]), 1),
        (json!("text"), 1),
        (json!(7), 1),
        (json!({}), 4),
        (with(json!({"taskId": 7})), 1),
        (with(json!({"taskId": ""})), 1),
        (with(json!({"taskId": "t".repeat(257)})), 1),
        (with(json!({"taskId": "dsp_mine"})), 1),
        (with(json!({"taskId": "a\u{0}b", "agentId": null})), 2),
        (
            with(json!({"taskId": "a\u{202e}b", "runId": "\u{2066}r"})),
            2,
        ),
        (with(json!({"taskId": "a\u{200b}b"})), 1),
        (with(json!({"agentId": "\u{feff}a"})), 1),
        (
            with(json!({"sessionId": "a\u{2028}b", "stepId": "a\u{e0041}"})),
            2,
        ),
        (
            with(json!({"workspace": {"files": [{"path": "a\u{202e}b", "content": ""}]}})),
            1,
        ),
        (with(json!({"message": {}})), 1),
        (with(json!({"callbackUrl": "ftp://example.org"})), 1),
        (with(json!({"callbackUrl": 1})), 1),
        (with(json!({"timeout": 0})), 1),
        (with(json!({"timeout": -1})), 1),
        (with(json!({"timeout": "soon"})), 1),
        (with(json!({"priority": 11})), 1),
        (with(json!({"priority": 0.5})), 1),
        (with(json!({"tools": {}})), 1),
        (
            with(json!({"recovery": "perhaps", "outputStrategy": "paper", "priority": "high"})),
            3,
        ),
        (
            with(json!({"workspace": {"files": [{"path": "../x", "content": ""}]}})),
            1,
        ),
        (with(json!({"task_id": "another"})), 1),
    ]
}

#[tokio::test]
async fn malformed_bodies_are_refused_with_the_envelope_and_the_bridge_lives() {
    let bridge = Bridge::start().await;
    let refused = |status: StatusCode, body: &Value, what: &str| {
        assert!(status.is_client_error(), "{status} {body} for {what}");
        assert!(
            body["error"].as_str().is_some_and(|text| !text.is_empty()),
            "{body} for {what}"
        );
        assert!(
            body["requestId"].as_str().unwrap().starts_with("req_"),
            "{body} for {what}"
        );
    };
    for body in malformed() {
        let shown = String::from_utf8_lossy(&body[..body.len().min(60)]).into_owned();
        let large = body.len() > 10 * MIB;
        let request = bridge
            .api
            .request(Method::POST, "/api/v2/dispatch")
            .header("content-type", "application/json")
            .body(body);
        let (status, body) = answer(request).await;
        refused(status, &body, &shown);
        let code = if large {
            "PAYLOAD_TOO_LARGE"
        } else {
            "INVALID_REQUEST"
        };
        assert_eq!(body["code"], code, "{shown}");
    }
    for (tree, complaints) in invalid() {
        let shown = tree.to_string();
        let (status, body) = bridge.api.post("/api/v2/dispatch", &tree).await;
        refused(status, &body, &shown);
        let details = body["details"].as_array().unwrap();
        assert!(details.len() >= complaints, "{body} for {shown}");
        for detail in details {
            assert!(
                detail["field"].is_string() && detail["message"].is_string(),
                "{body}"
            );
        }
    }
    let result = bridge.api.run(quiet("after", "ok")).await;
    assert_eq!(result["status"], "ok", "{result}");
    bridge.stop().await;
}

#[tokio::test]
async fn tokens_are_asked_for_and_rotated() {
    let bridge = Bridge::with(&[("BRIDGE_TOKENS", "old,new")]).await;
    let (status, body) = bridge.api.post("/api/v2/dispatch", &quiet("t", "ok")).await;
    assert_eq!(
        (status, &body["code"]),
        (StatusCode::UNAUTHORIZED, &json!("UNAUTHORIZED"))
    );
    for token in ["old", "new"] {
        let request = bridge
            .api
            .request(Method::GET, "/api/v2/dispatches")
            .bearer_auth(token);
        assert_eq!(answer(request).await.0, StatusCode::OK, "{token}");
    }
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(
        (status, &health["status"]),
        (StatusCode::OK, &json!("healthy"))
    );
    bridge.stop().await;
}

#[tokio::test]
async fn pages_of_the_machine_may_call_and_others_may_not() {
    let bridge = Bridge::start().await;
    let preflight = |origin: &str| {
        let request = bridge.api.request(Method::OPTIONS, "/api/v2/dispatch");
        request
            .header("origin", origin)
            .header("access-control-request-method", "POST")
    };
    let allowed = preflight("http://localhost:3000").send().await.unwrap();
    assert_eq!(allowed.status(), StatusCode::NO_CONTENT);
    assert_eq!(
        allowed.headers()["access-control-allow-origin"],
        "http://localhost:3000"
    );
    assert_eq!(
        allowed.headers()["access-control-allow-methods"],
        "GET, POST, PUT, DELETE"
    );
    let (status, body) = answer(preflight("https://evil.example")).await;
    assert_eq!(
        (status, &body["code"]),
        (StatusCode::FORBIDDEN, &json!("FORBIDDEN"))
    );
    let rebound = bridge.api.request(Method::GET, "/api/v2/dispatches");
    let (status, _) = answer(rebound.header("host", "evil.example")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    bridge.stop().await;
}

#[tokio::test]
async fn a_task_may_be_called_anything_and_is_found_by_it() {
    let bridge = Bridge::start().await;
    for (task, path) in [
        ("a/b", "a%2Fb"),
        ("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"),
        ("a/events", "a%2Fevents"),
        ("50%", "50%25"),
        ("a?all=true#x", "a%3Fall%3Dtrue%23x"),
        ("a b+c", "a%20b+c"),
        ("äöü", "%C3%A4%C3%B6%C3%BC"),
        ("DSP_1", "DSP_1"),
        ("dlv_1", "dlv_1"),
    ] {
        let id = bridge.api.dispatch(quiet(task, "ok")).await;
        bridge.api.finished(&id).await;
        let (status, record) = bridge.api.get(&format!("/api/v2/dispatch/{path}")).await;
        assert_eq!(status, StatusCode::OK, "{task}: {record}");
        assert_eq!(record["taskId"], task);
        assert_eq!(record["dispatchId"], *id);
        let output = format!("/api/v2/dispatch/{path}/output");
        let output = bridge.api.request(Method::GET, &output).send().await;
        assert_eq!(output.unwrap().text().await.unwrap(), "hello", "{task}");
        assert!(!bridge.api.events(path).await.is_empty(), "{task}");
        let cancel = format!("/api/v2/dispatch/{path}/cancel");
        let (status, body) = bridge.api.post(&cancel, &Value::Null).await;
        assert_eq!(
            (status, body),
            (StatusCode::OK, json!({"cancelled": false}))
        );
    }
    bridge.stop().await;
}

#[tokio::test]
async fn methods_are_answered_as_http_has_them() {
    let bridge = Bridge::start().await;
    let ask = async |method: Method, path: &str| {
        let request = bridge.api.request(method, path);
        let answered = request.header("x-request-id", "mine").send().await.unwrap();
        let (status, headers) = (answered.status().as_u16(), answered.headers().clone());
        (status, headers, answered.text().await.unwrap())
    };
    for (method, path, status, allow) in [
        (Method::HEAD, "/api/v2/dispatches", 200, ""),
        (Method::HEAD, "/api/health/live", 200, ""),
        (Method::HEAD, "/api/v2/events", 200, ""),
        (Method::HEAD, "/api/v2/dispatch/unknown", 404, ""),
        (Method::HEAD, "/nowhere", 404, ""),
        (Method::HEAD, "/api/v2/dispatch", 405, "POST"),
        (Method::OPTIONS, "/api/v2/dispatches", 405, "GET,HEAD"),
        (Method::DELETE, "/api/v2/dispatch/x", 405, "GET,HEAD"),
        (Method::TRACE, "/api/v2/dispatches", 405, "GET,HEAD"),
        (Method::GET, "/api/v2/dispatch/", 404, ""),
        (Method::GET, "/api/v2//dispatches", 404, ""),
        (Method::GET, "/api/v2/dispatch/%FF", 400, ""),
    ] {
        let (answered, headers, body) = ask(method.clone(), path).await;
        let header = |name: &str| {
            headers
                .get(name)
                .map_or("", |value| value.to_str().unwrap())
        };
        assert_eq!(answered, status, "{method} {path}: {body}");
        assert_eq!(header("allow"), allow, "{method} {path}");
        let id = header("x-request-id");
        assert!(id.starts_with("req_"), "{method} {path}: {id}");
        if method == Method::HEAD {
            assert_eq!(body, "", "{path}");
        } else {
            let body: Value = serde_json::from_str(&body).unwrap();
            assert_eq!(body["requestId"], id, "{method} {path}");
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_page_may_read_a_stream_and_its_refusals() {
    let bridge = Bridge::start().await;
    let id = bridge.api.dispatch(quiet("task", "ok")).await;
    bridge.api.finished(&id).await;
    let stream = format!("/api/v2/dispatch/{id}/events");
    for (path, status) in [(stream.as_str(), 200), ("/api/v2/events?after=x", 400)] {
        let request = bridge.api.request(Method::GET, path);
        let answer = request
            .header("origin", "http://localhost:5173")
            .send()
            .await;
        let answer = answer.unwrap();
        assert_eq!(answer.status(), status, "{path}");
        let headers = answer.headers();
        assert_eq!(
            headers["access-control-allow-origin"],
            "http://localhost:5173"
        );
        assert!(headers["vary"].to_str().unwrap().contains("Origin"));
        assert!(!headers.contains_key("access-control-allow-credentials"));
    }
    let foreign = bridge.api.request(Method::GET, &stream);
    let (status, _) = answer(foreign.header("origin", "null")).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    bridge.stop().await;
}

#[tokio::test]
async fn query_parameters_that_are_wrong_are_all_told() {
    let bridge = Bridge::start().await;
    for (path, fields) in [
        (
            "dispatches?limit=x&since=1&cursor=%00",
            vec!["since", "cursor", "limit"],
        ),
        ("dispatches?status=gone", vec!["status"]),
        ("dispatches?agent_id=a&agentId=b", vec!["agentId"]),
        ("dispatch/unknown?wait=61&all=perhaps", vec!["wait", "all"]),
        ("deliveries?status=lost&limit=-1", vec!["status", "limit"]),
        ("events?limit=1001&wait=61", vec!["limit", "wait"]),
        ("events?after=a&after=b", vec!["after"]),
    ] {
        let (status, body) = bridge.api.get(&format!("/api/v2/{path}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {body}");
        let details = body["details"].as_array().unwrap().iter();
        let told: Vec<&str> = details.map(|d| d["field"].as_str().unwrap()).collect();
        assert_eq!(told, fields, "{path}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_query_parameter_that_no_route_has_is_refused_with_the_nearest_one() {
    let bridge = Bridge::start().await;
    let ask = async |method: &str, path: &str| {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        answer(bridge.api.request(method, path).body("{}")).await
    };
    for (method, path) in reference::operations() {
        let path = path.replace(['{', '}'], "");
        let (status, body) = ask(&method, &format!("{path}?zebra=1")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method} {path}: {body}");
        assert_eq!(body["details"][0]["field"], "zebra", "{method} {path}");
    }
    for (method, path, hint) in [
        (
            "POST",
            "deliveries/retry?sinse=2026-01-01T00:00:00Z",
            "did you mean since?",
        ),
        (
            "POST",
            "deliveries/retry?dryrun=true",
            "did you mean dryRun?",
        ),
        ("GET", "dispatches?agentid=a", "did you mean agentId?"),
        ("GET", "events?afer=0", "did you mean after?"),
        ("GET", "agents?providr=echo", "did you mean provider?"),
    ] {
        let (status, body) = ask(method, &format!("/api/v2/{path}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {body}");
        let error = body["error"].as_str().unwrap();
        assert!(error.contains(hint), "{path}: {error}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn a_documented_query_parameter_is_known_in_both_spellings() {
    let bridge = Bridge::start().await;
    for (method, path, names) in reference::query_parameters() {
        let path = path.replace(['{', '}'], "");
        for name in names {
            for spelling in [name.clone(), forge_base::spelling::snake_case(&name)] {
                let request = bridge.api.request(
                    Method::from_bytes(method.as_bytes()).unwrap(),
                    &format!("{path}?{spelling}="),
                );
                // A stream has no end; the head is enough.
                let answered = request.send().await.unwrap();
                let status = answered.status();
                if status == StatusCode::BAD_REQUEST {
                    let text = answered.text().await.unwrap();
                    assert!(
                        !text.contains("not a parameter"),
                        "{method} {path} {spelling}: {text}"
                    );
                }
            }
        }
    }
    bridge.stop().await;
}

/// Sends this head over a connection of its own; returns the status.
async fn head(address: SocketAddr, head: &str) -> u16 {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_request_names_one_host_without_credentials() {
    let bridge = Bridge::start().await;
    let address = bridge.app.as_ref().unwrap().addr;
    for (hosts, status) in [
        (format!("host: {address}\r\n"), 200),
        (String::new(), 400),
        (format!("host: {address}\r\nhost: {address}\r\n"), 400),
        (format!("host: user@{address}\r\n"), 400),
        (format!("host: user:secret@{address}\r\n"), 400),
    ] {
        for path in ["/api/v2/dispatches", "/api/health", "/"] {
            let text = format!("GET {path} HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
            assert_eq!(head(address, &text).await, status, "{text}");
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn an_answer_is_neither_stored_nor_guessed_at() {
    let bridge = Bridge::start().await;
    for (path, caching) in [
        ("/api/v2/dispatches", "no-store"),
        ("/api/v2/dispatch/unknown", "no-store"),
        ("/api/v2/events", "no-store"),
        ("/api/health", "no-store"),
        ("/metrics", "no-store"),
        ("/nowhere", "no-store"),
        ("/", "no-cache"),
    ] {
        let request = bridge.api.request(Method::GET, path);
        let answered = request.send().await.unwrap();
        let headers = answered.headers();
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["cache-control"], caching, "{path}");
    }
    let tag = bridge.api.request(Method::GET, "/").send().await.unwrap();
    let again = bridge.api.request(Method::GET, "/");
    let again = again.header("if-none-match", &tag.headers()["etag"]);
    let again = again.send().await.unwrap();
    assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
    assert_eq!(again.headers()["cache-control"], "no-cache");
    bridge.stop().await;
}

#[tokio::test]
async fn a_misspelt_field_is_a_warning_in_the_answer() {
    let bridge = Bridge::start().await;
    let mut body = quiet("t", "ok");
    body["timeoutSecs"] = json!(5);
    body["colour"] = json!("red");
    for duplicate in [false, true] {
        let (status, accepted) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
        assert_eq!(accepted["duplicate"], duplicate);
        let [warning] = accepted["warnings"].as_array().unwrap().as_slice() else {
            panic!("{accepted}");
        };
        let warning = warning.as_str().unwrap();
        assert!(
            warning.contains("did you mean timeoutSeconds?"),
            "{warning}"
        );
    }
    bridge.api.finished("t").await;
    bridge.stop().await;
}
