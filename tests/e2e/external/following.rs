//! Changes of the files while the bridge runs.

use super::*;
use crate::harness::until;

impl Setup {
    async fn until_problems(&self, count: u64) {
        until("the bridge to read the files", || async {
            let (_, health) = self.bridge.api.get("/api/health").await;
            assert_eq!(health["status"], "healthy", "{health}");
            (health["services"]["problems"] == count).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn a_change_of_the_files_applies_and_a_bad_one_does_not() {
    let (first, second) = (sink_with(json!(1)).await, sink_with(json!(2)).await);
    let setup = Setup::new(&[], "").await;
    assert_eq!(setup.failure(COMMAND, json!({})).await.0, 400);
    register(setup.root.path(), &[probe(&first)]);
    until("the first service", || async {
        let (status, body) = setup.call(COMMAND).await;
        (status == StatusCode::OK).then(|| assert_eq!(body["result"], 1))
    })
    .await;

    for bad in [
        "{",
        "{\"manifests\":[{}],\"schemaVersion\":\"0.1.0\"}",
        "{\"schemaVersion\":\"9\"}",
    ] {
        write_registry(setup.root.path(), bad);
        until("the error", || async {
            let (_, list) = setup.bridge.api.get("/api/v2/external").await;
            assert_eq!(list["services"][0]["name"], "probe", "{list}");
            (list["diagnostics"][0]["severity"] == "error").then_some(())
        })
        .await;
        let (status, body) = setup.call(COMMAND).await;
        assert_eq!((status, &body["result"]), (StatusCode::OK, &json!(1)));
        register(setup.root.path(), &[probe(&first)]);
        setup.until_problems(0).await;
    }

    // The registry wins over a root manifest of the same name, with one warning.
    let root = setup.root.path().join("forge.manifest.json");
    std::fs::write(&root, probe(&second).to_string()).unwrap();
    until("the warning", || async {
        let (_, list) = setup.bridge.api.get("/api/v2/external").await;
        (list["diagnostics"][0]["code"] == "FORGE_EXTERNAL_SERVICE_DUPLICATE").then_some(())
    })
    .await;
    assert_eq!(setup.call(COMMAND).await.1["result"], 1);
    write_registry(
        setup.root.path(),
        "{\"manifests\":[],\"schemaVersion\":\"0.1.0\"}",
    );
    until("the service of the root manifest", || async {
        (setup.call(COMMAND).await.1["result"] == 2).then_some(())
    })
    .await;
    setup.bridge.stop().await;
}

#[tokio::test]
async fn a_bridge_starts_with_bad_files_and_shows_them() {
    let root = tempfile::tempdir().unwrap();
    write_registry(root.path(), "[]");
    let file = format!("[external]\nroot = {:?}\n", root.path());
    let bridge = Bridge::configured(&file, &[]).await;
    let setup = Setup { bridge, root };
    setup.until_problems(1).await;
    assert_eq!(setup.failure(COMMAND, json!({})).await.0, 400);
    setup.bridge.stop().await;
}

#[tokio::test]
async fn the_health_of_a_service_is_asked_and_shown() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|received| match received.path.as_str() {
        "/well" => Answer::status(204),
        _ => Answer::status(500),
    });
    let named = |name: &str, health: &str| {
        let service = json!({
            "name": name, "transport": "http", "baseUrl": sink.url("/"), "health": health,
        });
        manifest(&service, &json!([{"name": "run", "kind": "command"}]))
    };
    let all = [
        named("well", "/well"),
        named("sick", "/sick"),
        named("away", "http://192.0.2.1/well"),
    ];
    let setup = Setup::new(&all, "").await;
    let statuses = async || {
        let (_, overview) = setup.bridge.api.get("/api/v2/external").await;
        let services = overview["services"].as_array().unwrap().iter();
        let healths: Vec<_> = services.map(|one| one["health"].clone()).collect();
        let is_asked = healths[1]["status"] != "unknown" && healths[2]["status"] != "unknown";
        is_asked.then_some(healths)
    };
    let healths = until("the health to be known", statuses).await;
    // By name. An address elsewhere is not asked.
    assert_eq!(healths[0], json!({"status": "unknown"}));
    assert_eq!(
        (&healths[1]["status"], &healths[1]["message"]),
        (&json!("unhealthy"), &json!("HTTP 500"))
    );
    assert_eq!(healths[2]["status"], "healthy");
    let (status, health) = setup.bridge.api.get("/api/health").await;
    assert_eq!(
        health["services"],
        json!({"known": 3, "problems": 0, "unavailable": 1})
    );
    assert_eq!(status, StatusCode::OK);
    setup.bridge.stop().await;
}
