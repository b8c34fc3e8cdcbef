//! Callers: what services are told about them, policies, and credentials.

use std::collections::BTreeMap;

use reqwest::header::HeaderMap;

use super::*;

const DEV: &str = "auth = \"dev-headers\"\n";
const CALLER: [(&str, &str); 7] = [
    ("x-forge-user-id", "u1"),
    ("x-forge-tenant-id", "t1"),
    ("x-forge-role", "admin"),
    ("x-forge-roles", "[\"admin\",\"sec\"]"),
    ("x-forge-permissions", "b,a"),
    ("x-forge-claims", "{\"k\":1}"),
    ("x-forge-organization-membership-id", "om1"),
];

#[tokio::test]
async fn a_call_is_forwarded_as_the_reference_forwards_it() {
    let sink = sink_with(json!({"done": true})).await;
    let entries = json!([{"name": "raw-obj", "kind": "command", "path": "/raw"}]);
    let service = json!({"name": "probe", "transport": "http", "baseUrl": sink.url("/ignored/")});
    let setup = Setup::new(&[manifest(&service, &entries)], DEV).await;
    let mut headers = CALLER.to_vec();
    headers.extend([
        ("authorization", "Bearer of-the-caller"),
        ("cookie", "session=1"),
        ("x-forge-trace-id", "spoofed"),
        ("x-forge-external-service", "spoofed"),
        ("x-forge-auth-kind", "system"),
        ("x-other", "1"),
    ]);
    let body = json!({"args": {"a": 1}});
    let path = "/external/probe/commands/raw-obj";
    let (status, answer) = setup.post(path, &body, &headers).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let trace = answer["traceId"].as_str().unwrap();
    assert!(trace.len() == 32 && trace.bytes().all(|byte| byte.is_ascii_hexdigit()));
    assert_eq!(
        answer,
        json!({"ok": true, "result": {"done": true}, "diagnostics": [], "traceId": trace})
    );
    let received = sink.received().remove(0);
    assert_eq!(
        (received.method.as_str(), received.path.as_str()),
        ("POST", "/raw")
    );
    let expected = format!(
        r#"{{"args":{{"a":1}},"auth":{{"kind":"user","userId":"u1","tenantId":"t1","role":"admin","roles":["admin","sec"],"permissions":["a","b"],"token":{{"issuer":"dev-headers","audience":"dev","subject":"u1","authProvider":"dev-headers"}},"claims":{{"k":1,"organization_membership_id":"om1"}}}},"forge":{{"service":"probe","entry":"raw-obj","kind":"command","traceId":"{trace}"}}}}"#
    );
    assert_eq!(String::from_utf8(received.body).unwrap(), expected);
    let mut sent = received.headers;
    let parent = sent.remove("traceparent").unwrap();
    assert!(parent.starts_with(&format!("00-{trace}-")), "{parent}");
    let expected = [
        ("accept", "*/*"),
        ("authorization", "Bearer of-the-caller"),
        ("content-length", &expected.len().to_string()),
        ("content-type", "application/json"),
        ("host", &sink.address().to_string()),
        ("x-forge-auth-kind", "user"),
        (
            "x-forge-claims",
            r#"{"k":1,"organization_membership_id":"om1"}"#,
        ),
        ("x-forge-external-entry", "raw-obj"),
        ("x-forge-external-kind", "command"),
        ("x-forge-external-service", "probe"),
        ("x-forge-organization-membership-id", "om1"),
        ("x-forge-permissions", r#"["a","b"]"#),
        ("x-forge-role", "admin"),
        ("x-forge-roles", r#"["admin","sec"]"#),
        ("x-forge-tenant-id", "t1"),
        ("x-forge-trace-id", trace),
        ("x-forge-user-id", "u1"),
    ];
    let expected: BTreeMap<_, _> = expected
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    assert_eq!(sent, expected);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_denied_caller_reaches_no_service() {
    let sink = sink_with(json!(1)).await;
    let entry = |name: &str, policy: &str| json!({"name": name, "kind": "query", "policy": policy, "tenantScoped": name == "scoped"});
    let entries = json!([
        entry("user", "user"),
        entry("system", "system"),
        entry("named", "named"),
        entry("unknown", "no.such"),
        entry("scoped", "user"),
    ]);
    let service = json!({"name": "probe", "transport": "http", "baseUrl": sink.url("")});
    let settings = format!(
        "{DEV}enforce = [\"tenant\"]\n[external.policies.named]\nroles = [\"admin\"]\npermissions = [\"pay\"]\n"
    );
    let setup = Setup::new(&[manifest(&service, &entries)], &settings).await;
    let user = ("x-forge-user-id", "u1");
    let guest = ("x-forge-role", "guest");
    for (entry, headers, denied) in [
        ("user", vec![], true),
        ("user", vec![user], true),
        ("user", vec![guest], true),
        ("user", vec![user, guest], false),
        ("system", vec![user, ("x-forge-role", "admin")], true),
        ("named", vec![user, guest], true),
        ("named", vec![user, ("x-forge-role", "admin")], false),
        ("named", vec![user, ("x-forge-permissions", "pay")], false),
        ("unknown", vec![user, ("x-forge-role", "admin")], true),
        ("scoped", vec![user, guest], true),
        (
            "scoped",
            vec![user, guest, ("x-forge-tenant-id", "t")],
            false,
        ),
    ] {
        let path = format!("/external/probe/queries/{entry}");
        let before = sink.received().len();
        let (status, body) = setup.post(&path, &json!({}), &headers).await;
        assert_eq!(
            status == StatusCode::FORBIDDEN,
            denied,
            "{entry} {headers:?}: {body}"
        );
        assert_eq!(
            sink.received().len() == before,
            denied,
            "{entry} {headers:?}"
        );
        if denied {
            assert_eq!(body["code"], "FORGE_POLICY_DENIED", "{body}");
        }
    }
    let (_, list) = setup.bridge.api.get("/api/v2/external").await;
    assert_eq!(
        list["diagnostics"][0]["code"], "FORGE_POLICY_UNKNOWN",
        "{list}"
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_token_has_an_identity_and_is_never_forwarded() {
    let sink = sink_with(json!(1)).await;
    // SHA-256 of "dispatch", and of "read".
    let tokens = r#"
        [[auth.token]]
        hash = "db8d1b6d64e4ec90ceb335fc4344e75799fdc20cd236d27cc85ed4783a33d3fa"
        identity = { user_id = "u1", tenant_id = "t\u00e9", roles = ["admin", "sec"], permissions = ["b", "a"] }
        [[auth.token]]
        hash = "3316348dbadfb7b11c7c2ea235949419e23f9fa898ad2c198f999617912a9925"
    "#;
    let setup = Setup::new(&[probe(&sink)], tokens).await;
    let forward = "x-forge-forward-authorization";
    for (token, forwarded, received) in [
        ("dispatch", None, None),
        (
            "dispatch",
            Some("Bearer of-the-service"),
            Some("Bearer of-the-service"),
        ),
        ("dispatch", Some("Bearer dispatch"), None),
        ("dispatch", Some("bearer  read"), None),
        ("dispatch", Some("Custom token=\"read\""), None),
        ("read", Some("Basic abc"), Some("Basic abc")),
    ] {
        let authorization = format!("Bearer {token}");
        let mut headers = vec![
            ("authorization", authorization.as_str()),
            ("x-forge-user-id", "spoofed"),
            ("x-forge-role", "spoofed"),
        ];
        headers.extend(forwarded.map(|value| (forward, value)));
        let (status, body) = setup.post(COMMAND, &json!({}), &headers).await;
        assert_eq!(status, StatusCode::OK, "{body}");
        let call = sink.received().pop().unwrap();
        let sent = |name: &str| call.headers.get(name).map(String::as_str);
        assert_eq!(sent("authorization"), received, "{forwarded:?}");
        let body: Value = serde_json::from_slice(&call.body).unwrap();
        if token == "read" {
            assert_eq!(body["auth"], json!({"kind": "anonymous"}));
            assert_eq!(sent("x-forge-user-id"), None);
            continue;
        }
        assert_eq!(body["auth"]["userId"], "u1");
        assert_eq!(body["auth"]["tenantId"], "t\u{e9}");
        assert_eq!(sent("x-forge-tenant-id"), None, "it is not visible ASCII");
        assert_eq!(sent("x-forge-role"), Some("admin"));
        assert_eq!(sent("x-forge-permissions"), Some(r#"["a","b"]"#));
    }
    let (status, body) = setup.post(COMMAND, &json!({}), &[]).await;
    assert_eq!(
        (status, &body["code"]),
        (StatusCode::UNAUTHORIZED, &json!("UNAUTHORIZED"))
    );
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_page_may_state_a_caller_where_its_origin_is_allowed() {
    let sink = sink_with(json!(1)).await;
    let settings = format!("{DEV}[http]\norigins = [\"https://app.example\"]\n");
    let setup = Setup::new(&[probe(&sink)], &settings).await;
    let preflight = |path: &str, origin: &str| {
        let request = setup.bridge.api.request(Method::OPTIONS, path);
        let asked = request.header("access-control-request-method", "POST");
        asked.header("origin", origin).send()
    };
    let listed = |headers: &HeaderMap, name: &str| -> Vec<String> {
        let names = headers[name].to_str().unwrap().split(',');
        names.map(|name| name.trim().to_lowercase()).collect()
    };
    for origin in ["http://localhost:3000", "https://app.example"] {
        let answer = preflight(COMMAND, origin).await.unwrap();
        assert_eq!(answer.status(), StatusCode::NO_CONTENT);
        assert_eq!(answer.headers()["access-control-allow-origin"], origin);
        let accepted = listed(answer.headers(), "access-control-allow-headers");
        let others = [
            "authorization",
            "content-type",
            "idempotency-key",
            "traceparent",
            "x-forge-forward-authorization",
            "x-forge-organization-id",
        ];
        for name in CALLER.iter().map(|(name, _)| *name).chain(others) {
            assert!(accepted.contains(&name.to_owned()), "{name}: {accepted:?}");
        }
        let request = setup
            .bridge
            .api
            .request(Method::POST, COMMAND)
            .header("origin", origin);
        let call = CALLER
            .iter()
            .fold(request, |call, (name, value)| call.header(*name, *value));
        let answer = call.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["access-control-allow-origin"], origin);
        let exposed = listed(answer.headers(), "access-control-expose-headers");
        assert!(
            exposed.contains(&"x-forge-trace-id".to_owned()),
            "{exposed:?}"
        );
        let received = sink.received().pop().unwrap();
        assert_eq!(received.headers["x-forge-user-id"], "u1");
        assert_eq!(received.headers.get("origin"), None);
    }
    let calls = sink.received().len();
    let foreign = "https://evil.example";
    assert_eq!(
        preflight(COMMAND, foreign).await.unwrap().status(),
        StatusCode::FORBIDDEN
    );
    let (status, body) = setup
        .post(COMMAND, &json!({}), &[("origin", foreign)])
        .await;
    assert_eq!(
        (status, &body["code"]),
        (StatusCode::FORBIDDEN, &json!("FORBIDDEN"))
    );
    assert_eq!(sink.received().len(), calls);
    // Pages state callers for calls of services alone.
    let answer = preflight("/api/v2/external", "http://localhost:3000")
        .await
        .unwrap();
    let accepted = listed(answer.headers(), "access-control-allow-headers");
    assert!(
        !accepted.contains(&"x-forge-user-id".to_owned()),
        "{accepted:?}"
    );
    setup.bridge.stop().await;
}
