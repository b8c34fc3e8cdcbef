//! Rows of the protocol's table for adapters, and the departures of this one.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{JAVA, Service, answer, failure, get, is_valid, post};
use crate::harness::Api;

#[tokio::test(flavor = "multi_thread")]
async fn each_row_of_the_protocol_holds() {
    let mut service = Service::start(&JAVA, &["--source", "17", "tests/fixtures/java/Probe.java"]);
    let probe = Api::new(service.line());
    let open = Api::new(service.line());

    routes(&probe).await;
    bodies(&probe).await;
    identities(&probe).await;
    handlers(&probe, &open).await;
    let mut calls = JoinSet::new();
    for _ in 0..20 {
        calls.spawn(call(&probe, "/commands/twenty"));
    }
    let met = calls.join_all().await;
    assert!(met.iter().all(|(status, _)| *status == 200), "{met:?}");

    // One call at once: the second is refused, health is answered.
    let mut held = JoinSet::new();
    held.spawn(call(&open, "/commands/hold"));
    assert_eq!(service.line(), "waits");
    let (status, busy) = post(&open, "/commands/fail", "").await;
    assert_eq!(
        (status, &busy["error"]["code"]),
        (503, &json!("FORGE_JAVA_BUSY"))
    );
    assert_eq!(get(&open, "/health").await.0, 200);
    let (_, left) = post(&probe, "/commands/leave", "").await;
    assert_eq!(left["result"], json!(true));
    assert_eq!(held.join_all().await[0].1["result"], json!(true));

    // SIGTERM lets a call end, then the service is gone.
    let mut last = JoinSet::new();
    last.spawn(call(&probe, "/commands/untilStopped"));
    assert_eq!(service.line(), "waits");
    service.terminate();
    assert_eq!(last.join_all().await[0].1["result"], json!(true));
    service.child.wait().unwrap();
    let log = service.log();
    assert!(log.contains("IllegalStateException: the password"), "{log}");
    assert!(
        probe
            .request(Method::GET, "/actuator/health")
            .send()
            .await
            .is_err()
    );
}

/// A POST without a body, to be run beside others.
fn call(service: &Api, path: &'static str) -> impl Future<Output = (u16, Value)> + use<> {
    let service = service.clone();
    async move { post(&service, path, "").await }
}

async fn routes(probe: &Api) {
    let health = json!({"ok": true, "service": "prüfung"});
    for method in [Method::GET, Method::POST] {
        let request = probe.request(method, "/actuator/health");
        assert_eq!(answer(request).await, (200, health.clone()));
    }
    let (_, manifest) = get(probe, "/manifest").await;
    is_valid(&manifest);
    let echo = &manifest["entries"][0];
    assert_eq!(echo["description"], "Says \"what\" arrived: ü€😀");
    assert_eq!(echo["effects"], json!(["echo.said", "ü"]));
    assert_eq!(
        (&echo["risk"], &echo["transaction"], &echo["inputSchema"]),
        (
            &json!("destructive"),
            &json!("saga"),
            &json!({"type": "object"})
        )
    );
    assert_eq!(manifest["entries"][1]["path"], "/custom/read");

    let table = [
        (Method::GET, "/health", 404, "ROUTE_NOT_FOUND"),
        (Method::GET, "/", 404, "ROUTE_NOT_FOUND"),
        (Method::POST, "/command/echo", 404, "ROUTE_NOT_FOUND"),
        (Method::POST, "/commands/", 404, "ROUTE_NOT_FOUND"),
        (Method::POST, "/commands/echo/", 404, "ROUTE_NOT_FOUND"),
        (Method::PUT, "/elsewhere", 404, "ROUTE_NOT_FOUND"),
        (Method::POST, "/commands/none", 404, "ENTRY_NOT_FOUND"),
        (Method::POST, "/queries/echo", 404, "ENTRY_NOT_FOUND"),
        (Method::GET, "/commands/read", 404, "ENTRY_NOT_FOUND"),
        (Method::PUT, "/commands/none", 405, "METHOD_NOT_ALLOWED"),
        (Method::DELETE, "/commands/echo", 405, "METHOD_NOT_ALLOWED"),
        (Method::POST, "/manifest", 405, "METHOD_NOT_ALLOWED"),
    ];
    for (method, path, status, code) in table {
        let (found, answer) = answer(probe.request(method.clone(), path)).await;
        let code = format!("FORGE_JAVA_{code}");
        assert_eq!(
            (found, &answer["error"]["code"]),
            (status, &json!(code)),
            "{method} {path}: {answer}"
        );
    }
    let refused = probe.request(Method::PUT, "/commands/echo").send().await;
    assert_eq!(refused.unwrap().headers()["allow"], "GET, POST");
    let head = probe.request(Method::HEAD, "/manifest").send().await;
    assert_eq!(head.unwrap().status(), StatusCode::OK);

    for path in ["/custom/read", "/queries/read", "/queries/re%61d"] {
        for method in [Method::GET, Method::POST] {
            let (_, read) = answer(probe.request(method, path)).await;
            assert_eq!(read, json!({"ok": true, "result": ["read"]}), "{path}");
        }
    }
    for path in [
        "/commands/gr%C3%B6%C3%9Fe%2Fa%20b",
        "/commands/gr%c3%b6%c3%9fe%2fa%20%62",
    ] {
        let (_, named) = post(probe, path, "").await;
        assert_eq!(named["result"], "ü€😀\u{0}\u{2028}\"\\");
    }
}

async fn bodies(probe: &Api) {
    let deep = |levels: usize| {
        format!(
            "{{\"args\":{}{}}}",
            "[".repeat(levels - 1),
            "]".repeat(levels - 1)
        )
    };
    let (deepest, deeper) = (deep(1000), deep(1001));
    let long = format!("{{\"args\":{}}}", "9".repeat(1001));
    let refused: [(&[u8], &str); 12] = [
        (b"{", "no JSON"),
        (b"{\"args\":1} x", "no JSON"),
        (b"{\"args\":1} {}", "something follows the JSON"),
        (b"null", "the body must be a JSON object"),
        (b"[]", "the body must be a JSON object"),
        (b"{\"args\":1,\"args\":2}", "a key twice"),
        (b"{\"args\":\"\xfc\"}", "not UTF-8"),
        (b"{\"args\":NaN}", "no JSON"),
        (b"{\"auth\":\"root\"}", "auth must be an object"),
        (
            b"{\"auth\":{\"kind\":\"root\"}}",
            "auth.kind must be user, system or anonymous",
        ),
        (deeper.as_bytes(), "(1001) exceeds"),
        (long.as_bytes(), "(1001) exceeds"),
    ];
    for (body, reason) in refused {
        let shown = String::from_utf8_lossy(body).into_owned();
        let (status, answer) = post(probe, "/commands/echo", body.to_vec()).await;
        let error = &answer["error"];
        assert_eq!(
            (status, &error["code"]),
            (400, &json!("FORGE_JAVA_BAD_REQUEST")),
            "{shown}"
        );
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(reason), "{shown}: {message}");
    }
    assert_eq!(post(probe, "/commands/nothing", deepest).await.0, 200);

    let table = [
        ("", json!({})),
        ("{}", json!({})),
        ("{\"args\":null}", json!({})),
        ("{\"args\":[1,\"ü€😀\"]}", json!([1, "ü€😀"])),
        ("{\"args\":0.10000000000000000555}", json!(0.1)),
        ("{\"args\":false}", json!(false)),
    ];
    for (body, args) in table {
        let (status, answer) = post(probe, "/commands/echo", body).await;
        assert_eq!(
            (status, &answer["result"]["args"]),
            (200, &args),
            "{body}: {answer}"
        );
    }
    let escaped = "/commands/echo?args=%7B%22a%22%3A%22%C3%BC+%2B%22%7D";
    let (_, echoed) = get(probe, escaped).await;
    assert_eq!(echoed["result"]["args"], json!({"a": "ü +"}));
    let (status, answer) = get(probe, "/commands/echo?args=%7B").await;
    assert_eq!(
        (status, &answer["error"]["code"]),
        (400, &json!("FORGE_JAVA_BAD_REQUEST"))
    );

    let bound = 10 * 1024 * 1024;
    let sized = |bytes: usize| format!("{{\"text\":\"{}\"}}", "x".repeat(bytes - 11));
    assert_eq!(post(probe, "/commands/nothing", sized(bound)).await.0, 200);
    // So long that an answer before the end of the body would be lost with the connection.
    let (status, answer) = post(probe, "/commands/nothing", sized(14 << 20)).await;
    assert_eq!(
        (status, answer),
        (
            413,
            failure(
                "FORGE_JAVA_PAYLOAD_TOO_LARGE",
                "a body has at most 10485760 bytes"
            )
        )
    );
}

async fn identities(probe: &Api) {
    let headers = [
        ("x-forge-auth-kind", "user"),
        ("x-forge-user-id", "u1"),
        ("x-forge-tenant-id", "t1"),
        ("x-forge-role", "admin"),
        ("x-forge-roles", "[\"admin\",\"sec\"]"),
        ("x-forge-permissions", "[\"a\"]"),
        ("x-forge-trace-id", "of-header"),
        ("x-probe", "seen"),
    ];
    let mut request = probe.request(Method::GET, "/commands/echo");
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let with_headers = request;
    let seen = json!({"args": {}, "authKind": "user", "userId": "u1", "tenantId": "t1", "role": "admin",
        "roles": ["admin", "sec"], "permissions": ["a"], "traceId": "of-header",
        "call": ["prüfung", "echo", "command"], "header": "seen"});
    let (_, answered) = answer(with_headers.try_clone().unwrap()).await;
    assert_eq!(
        answered,
        json!({"ok": true, "result": seen, "traceId": "of-header"})
    );

    // The envelope wins where it names a caller; its names of the call are believed, blank ones filled in.
    let envelope = json!({"auth": {"kind": "system", "tenantId": "t2"},
        "forge": {"service": "other", "entry": " ", "kind": "query", "traceId": "of-body"}});
    let mut request = probe
        .request(Method::POST, "/commands/echo")
        .body(envelope.to_string());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let seen = json!({"args": {}, "authKind": "system", "userId": null, "tenantId": "t2", "role": null,
        "roles": [], "permissions": [], "traceId": "of-body", "call": ["other", "echo", "query"], "header": "seen"});
    let (_, answered) = answer(request).await;
    assert_eq!(
        answered,
        json!({"ok": true, "result": seen, "traceId": "of-body"})
    );

    // No identity: anonymous. No usable trace id: none.
    for trace in ["", " ", "a\\r\\nb", "ü"] {
        let body = format!("{{\"forge\":{{\"traceId\":\"{trace}\"}}}}");
        let (_, answered) = post(probe, "/commands/echo", body).await;
        assert_eq!(answered.get("traceId"), None, "{trace:?}");
        let seen = &answered["result"];
        assert_eq!(
            (&seen["authKind"], &seen["traceId"]),
            (&json!("anonymous"), &Value::Null)
        );
    }
    let broken = probe
        .request(Method::GET, "/commands/echo")
        .header("x-forge-roles", "admin");
    assert_eq!(answer(broken).await.0, 400);
}

async fn handlers(probe: &Api, open: &Api) {
    let (_, nothing) = post(probe, "/commands/nothing", "").await;
    assert_eq!(nothing, json!({"ok": true, "result": null}));
    let (_, surrogate) = post(probe, "/commands/surrogate", "").await;
    assert_eq!(surrogate["result"], json!(["half an answer", "\u{fffd}"]));
    for (args, text) in [
        (json!({"text": 5, "count": 3}), "5 3"),
        (json!({"text": "a", "count": "3"}), "a 3"),
    ] {
        let (_, coerced) = post(probe, "/commands/text", json!({"args": args}).to_string()).await;
        assert_eq!(coerced["result"], json!(text));
    }
    for (args, place) in [
        (json!({"text": {}, "count": 1}), "args.text"),
        (json!({"text": "a", "count": 1.5}), "args.count"),
        (json!({"text": "a"}), "args.count"),
        (json!({"text": "a", "count": 1, "cuont": 2}), "args.cuont"),
        (json!([]), "args"),
    ] {
        let found = post(probe, "/commands/text", json!({"args": args}).to_string()).await;
        let message = format!("{place} cannot be read as declared by Text");
        assert_eq!(
            found,
            (500, failure("FORGE_JAVA_HANDLER_FAILED", &message)),
            "{args}"
        );
    }
    for (service, path, status, code, message) in [
        (probe, "refuse", 422, "NO_MONEY", "5 € are missing"),
        (probe, "limited", 429, "SLOW_DOWN", "later"),
        (
            probe,
            "fail",
            500,
            "FORGE_JAVA_HANDLER_FAILED",
            "the handler failed",
        ),
        (
            open,
            "fail",
            500,
            "FORGE_JAVA_HANDLER_FAILED",
            "java.lang.IllegalStateException: the password is ü",
        ),
    ] {
        let found = post(service, &format!("/commands/{path}"), "").await;
        assert_eq!(found, (status, failure(code, message)), "{path}");
    }
    // Without a declared one, the address of the server is the base URL.
    let (_, manifest) = get(open, "/manifest").await;
    assert_eq!(manifest["service"]["baseUrl"], json!(open.url));
    let (_, refusals) = post(probe, "/commands/refusals", "").await;
    let refusals = refusals["result"].as_array().unwrap();
    assert!(
        refusals.len() == 20 && !refusals.contains(&json!("taken")),
        "{refusals:?}"
    );
}
