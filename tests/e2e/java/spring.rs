//! The Spring starter, with contexts of `SpringProbe.java` in Spring MVC on an embedded Tomcat.

use std::process::Command;

use reqwest::Method;
use serde_json::{Value, json};

use super::{SPRING, Service, answer, failure, get, is_valid, post, root};
use crate::harness::Api;

#[tokio::test]
async fn annotated_beans_become_a_service() {
    let classes = tempfile::tempdir().unwrap();
    let compiled = Command::new("javac")
        .args(["-J-XX:TieredStopAtLevel=1", "-cp", &SPRING, "-d"])
        .arg(classes.path())
        .arg(root().join("tests/fixtures/java/SpringProbe.java"))
        .status();
    assert!(compiled.unwrap().success());
    let class_path = format!("{}:{}", classes.path().display(), *SPRING);
    let mut service = Service::start(&class_path, &["SpringProbe"]);
    let probe = Api::new(service.line());

    manifest(&probe).await;
    calls(&probe).await;
    refusals(&probe).await;
    outcomes(&probe).await;
    let log = service.log();
    assert!(log.contains("IOException: the password is"), "{log}");
}

/// The service is behind a proxy of the JDK. Its annotations are those of the starter, annotations that have these, and
/// one on its interface.
async fn manifest(probe: &Api) {
    let (status, manifest) = get(probe, "/manifest").await;
    assert_eq!(status, 200, "{manifest}");
    is_valid(&manifest);
    let service = json!({"name": "probe", "transport": "http", "baseUrl": "http://any.example",
        "health": "/actuator/health"});
    assert_eq!(manifest["service"], service);
    let entries = manifest["entries"].as_array().unwrap();
    let names: Vec<&Value> = entries.iter().map(|entry| &entry["name"]).collect();
    assert_eq!(
        names,
        ["fail", "größe", "nothing", "refuse", "outcomes", "read"]
    );
    assert_eq!(
        entries[0],
        json!({"name": "fail", "kind": "command", "path": "/commands/fail", "method": "POST",
            "transaction": "external-managed", "risk": "write"})
    );
    assert_eq!(
        entries[1],
        json!({"name": "größe", "kind": "command", "path": "/commands/gr%C3%B6%C3%9Fe", "method": "POST",
            "policy": "texts.write", "tenantScoped": true, "needsApproval": true, "transaction": "saga",
            "risk": "destructive", "effects": ["text.said", "ü"], "inputSchema": {"type": "object"}})
    );
    assert_eq!(
        entries[5],
        json!({"name": "read", "kind": "query", "path": "/custom/%C3%BCber", "method": "POST",
            "description": "€", "transaction": "read-only", "risk": "read"})
    );
    let (_, moved) = get(probe, "/manifest?baseUrl=http://127.0.0.1:1").await;
    assert_eq!(moved["service"]["baseUrl"], "http://127.0.0.1:1");
}

async fn calls(probe: &Api) {
    let health = json!({"ok": true, "service": "probe"});
    assert_eq!(get(probe, "/actuator/health").await, (200, health));
    let call = json!({"args": {"text": "Größe €😀"}, "auth": {"kind": "user", "tenantId": "t1"},
        "forge": {"traceId": "t-1"}});
    // The first call that the proxy's interceptor counts.
    let (status, said) = post(probe, "/commands/gr%C3%B6%C3%9Fe", call.to_string()).await;
    let result = json!(["Größe €😀", "t1", 1]);
    assert_eq!(
        (status, said),
        (200, json!({"ok": true, "result": result, "traceId": "t-1"}))
    );
    for path in ["/custom/%C3%BCber", "/queries/read"] {
        for method in [Method::GET, Method::POST] {
            let (status, read) = answer(probe.request(method, path)).await;
            assert_eq!(
                (status, read),
                (200, json!({"ok": true, "result": ["ü€😀"]})),
                "{path}"
            );
        }
    }
    let (_, nothing) = post(probe, "/commands/nothing", "").await;
    assert_eq!(nothing, json!({"ok": true, "result": null}));
}

async fn refusals(probe: &Api) {
    let hidden = failure("FORGE_JAVA_HANDLER_FAILED", "the handler failed");
    assert_eq!(post(probe, "/commands/fail", "").await, (500, hidden));
    let refused = failure("NO_MONEY", "5 € are missing");
    assert_eq!(post(probe, "/commands/refuse", "").await, (499, refused));
    for (method, path, body, status, code) in [
        (Method::POST, "/commands/none", "", 404, "ENTRY_NOT_FOUND"),
        (Method::POST, "/queries/a/b", "", 404, "ROUTE_NOT_FOUND"),
        (Method::POST, "/commands/nothing", "{x", 400, "BAD_REQUEST"),
        (
            Method::PUT,
            "/commands/nothing",
            "",
            405,
            "METHOD_NOT_ALLOWED",
        ),
        (Method::POST, "/manifest", "", 405, "METHOD_NOT_ALLOWED"),
    ] {
        let (found, answer) = answer(probe.request(method, path).body(body)).await;
        assert_eq!(
            (found, &answer["error"]["code"]),
            (status, &json!(format!("FORGE_JAVA_{code}"))),
            "{path}: {answer}"
        );
    }
    let refused = probe.request(Method::PUT, "/commands/nothing").send().await;
    assert_eq!(refused.unwrap().headers()["allow"], "GET, POST");
}

/// Contexts with mistakes do not start; an application's own registry is the one that is served.
async fn outcomes(probe: &Api) {
    let (_, answer) = get(probe, "/queries/outcomes").await;
    let outcomes = &answer["result"];
    for (context, said) in [
        (
            "two",
            "other (SpringProbe$Other), texts (SpringProbe$SpokenTexts)",
        ),
        ("none", "no bean has @ForgeExternalService"),
        ("unreachable", "not found in any interface"),
        ("inputs", "one input without type parameters"),
        ("twice", "/queries/same is served already"),
        (
            "own",
            "mine [/commands/**, /health, /manifest, /own, /queries/**]",
        ),
    ] {
        let outcome = outcomes[context].as_str().unwrap();
        assert!(outcome.contains(said), "{context}: {outcome}");
    }
}
