//! Requests of callers: bodies, names, methods, arguments.

use super::*;

#[tokio::test]
async fn arguments_arrive_in_every_accepted_form() {
    let sink = sink_with(json!(1)).await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    for (body, kind, args) in [
        (
            Some(r#"{"args":{"a":1}}"#),
            "application/json",
            json!({"a": 1}),
        ),
        (
            Some(r#"{"args":{"a":1}}"#),
            "application/vnd.x+json",
            json!({"a": 1}),
        ),
        (Some(r#"{"args":null}"#), "application/json", json!({})),
        (Some("{}"), "application/json", json!({})),
        (None, "application/json", json!({})),
        (None, "text/plain", json!({})),
        (Some(r#"{"args":[1]}"#), "application/json", json!([1])),
        (Some(r#"{"args":5}"#), "application/json", json!(5)),
        (Some(r#"{"args":false}"#), "application/json", json!(false)),
    ] {
        let request = setup.bridge.api.request(Method::POST, COMMAND);
        let request = request.header("content-type", kind);
        let request = match body {
            Some(body) => request.body(body),
            None => request,
        };
        let (status, shown) = answer(request).await;
        assert_eq!(status, StatusCode::OK, "{body:?}: {shown}");
        let sent: Value = serde_json::from_slice(&sink.received().pop().unwrap().body).unwrap();
        assert_eq!(sent["args"], args, "{body:?}");
    }
    let calls = sink.received().len();
    for body in [
        "[]",
        "5",
        "null",
        "{\"args\":{",
        "{\"args\":1,\"args\":2}",
        "\u{feff}{}",
    ] {
        let request = setup.bridge.api.request(Method::POST, COMMAND);
        let request = request
            .header("content-type", "application/json")
            .body(body);
        let (status, shown) = answer(request).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {shown}");
        assert_eq!(shown["code"], "INVALID_REQUEST", "{body}: {shown}");
        assert_eq!(
            shown["diagnostics"][0]["code"], "INVALID_REQUEST",
            "{shown}"
        );
    }
    assert_eq!(
        sink.received().len(),
        calls,
        "a refused request calls nothing"
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn names_are_decoded_and_unknown_ones_are_named() {
    let sink = sink_with(json!(1)).await;
    let entries = json!([
        {"name": "a b/\u{e9}.c", "kind": "command"},
        {"name": "run", "kind": "command"},
    ]);
    let service = json!({"name": "probe", "transport": "http", "baseUrl": sink.url("/base")});
    let grpc = json!({"name": "remote", "transport": "grpc", "baseUrl": sink.url("")});
    let manifests = [manifest(&service, &entries), manifest(&grpc, &entries)];
    let setup = Setup::new(&manifests, "").await;
    let (status, body) = setup
        .call("/external/probe/commands/a%20b%2F%C3%A9.c")
        .await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let call = sink.received().remove(0);
    assert_eq!(call.path, "/commands/a%20b%2F%C3%A9.c");
    assert_eq!(call.headers.get("x-forge-external-entry"), None);
    let not_found = "FORGE_EXTERNAL_RUNTIME_NOT_FOUND";
    for (path, code) in [
        ("/external/probe/queries/run", not_found),
        ("/external/probe/commands/none", not_found),
        ("/external/none/commands/run", not_found),
        (
            "/external/remote/commands/run",
            "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED",
        ),
        ("/external/probe/commands/%zz", "INVALID_REQUEST"),
        ("/external/probe/commands/%ff", "INVALID_REQUEST"),
        ("/external/probe/commands/run?x=1", "INVALID_REQUEST"),
    ] {
        let (status, found, message) = setup.failure(path, json!({})).await;
        assert_eq!((status, found.as_str()), (400, code), "{path}: {message}");
    }
    for (path, status) in [
        ("/external/probe/commands/run/", 404),
        ("/external/probe/commands/run/more", 404),
        ("/external/probe/command/run", 404),
    ] {
        let (found, code, _) = setup.failure(path, json!({})).await;
        assert_eq!((found, code.as_str()), (status, "NOT_FOUND"), "{path}");
    }
    for method in [Method::GET, Method::PUT] {
        let request = setup
            .bridge
            .api
            .request(method, "/external/none/commands/none");
        let refused = request.send().await.unwrap();
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
        assert_eq!(refused.headers()["allow"], "POST");
        let body: Value = refused.json().await.unwrap();
        assert_eq!(body["code"], "FORGE_DEV_INVOKE_FAILED", "{body}");
        assert_eq!(body["diagnostics"][0]["code"], body["code"]);
    }
    assert_eq!(sink.received().len(), 1);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_get_entry_has_its_arguments_in_the_query_and_no_body() {
    let sink = sink_with(json!(1)).await;
    let setup = Setup::new(&[probe(&sink)], "").await;
    let args = json!({"a": "x y&z"});
    let (status, body) = setup.post(QUERY, &json!({ "args": args }), &[]).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    let call = sink.received().remove(0);
    assert_eq!(call.method, "GET");
    assert_eq!(
        call.path,
        "/base/look?kept=1&args=%7B%22a%22%3A%22x+y%26z%22%7D"
    );
    assert!(call.body.is_empty());
    assert_eq!(call.headers["x-forge-auth-kind"], "anonymous");
    let (status, code, message) = setup.failure(QUERY, json!("x".repeat(8192))).await;
    assert_eq!(
        (status, code.as_str()),
        (400, "FORGE_EXTERNAL_INPUT_INVALID"),
        "{message}"
    );
    assert_eq!(sink.received().len(), 1);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn arguments_that_do_not_match_the_schema_are_refused() {
    let sink = sink_with(json!(1)).await;
    let mut checked = probe(&sink);
    checked["entries"][0]["inputSchema"] = json!({"type": "object", "properties": {"amount": {"type": "integer"}}, "required": ["amount"]});
    for (settings, status) in [("", 400), ("validate = false", 200)] {
        let setup = Setup::new(&[checked.clone()], settings).await;
        let wrong = json!({"args": {"amount": "5"}});
        let (found, body) = setup.post(COMMAND, &wrong, &[]).await;
        assert_eq!(found.as_u16(), status, "{body}");
        if status == 400 {
            assert_eq!(body["code"], "FORGE_EXTERNAL_INPUT_INVALID");
            assert!(
                body["error"].as_str().unwrap().contains("/amount"),
                "{body}"
            );
            assert!(sink.received().is_empty());
            let right = json!({"args": {"amount": 5}});
            assert_eq!(setup.post(COMMAND, &right, &[]).await.0, StatusCode::OK);
        }
        setup.bridge.stop().await;
    }
}
