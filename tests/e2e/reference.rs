//! Comparison of `openapi.json` with the routes. The harness validates the answers against it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use reqwest::{Method, StatusCode};
use tokio::process::Command;

use super::harness::{Api, Bridge, reference};

/// Routes of pages, which hold no data and are not documented.
const PAGES: [&str; 8] = [
    "/",
    "/docs",
    "/openapi.json",
    "/schemas/forge-manifest.schema.json",
    "/schemas/signal-rules.schema.json",
    "/console.js",
    "/charts.js",
    "/console.css",
];

/// Methods and paths of every `.route("path", get(…).post(…))` in the sources of the HTTP interface.
fn routes() -> BTreeSet<(String, String)> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("crates/server/src");
    let mut routes = BTreeSet::new();
    let files = [sources.clone(), sources.join("agent"), sources.join("runs")]
        .into_iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    for path in files {
        let text = fs::read_to_string(path).unwrap();
        for call in text.split(".route(").skip(1) {
            let Some((route, rest)) = call
                .trim_start()
                .strip_prefix('"')
                .and_then(|call| call.split_once('"'))
            else {
                continue;
            };
            let handlers = rest.split(".route(").next().unwrap();
            let handlers = handlers.split(['\n', ';']).take(4).collect::<String>();
            for method in ["get", "post", "put", "delete"] {
                let verb = format!("{method}(");
                let named = handlers.match_indices(&verb).any(|(at, _)| {
                    !handlers[..at]
                        .ends_with(|letter: char| letter.is_alphanumeric() || letter == '_')
                });
                if named {
                    routes.insert((method.to_uppercase(), route.replace("{*", "{")));
                }
            }
        }
    }
    routes
}

#[test]
fn every_route_is_documented_and_every_documented_route_is_there() {
    let mut documented: BTreeSet<_> = reference::operations().into_iter().collect();
    documented.extend(reference::agent_operations());
    let routes: BTreeSet<_> = routes()
        .into_iter()
        .filter(|(_, path)| !PAGES.contains(&path.as_str()))
        .collect();
    assert!(routes.len() > 30, "{routes:?}");
    assert_eq!(routes, documented);
}

/// Each listener has the routes that the document says it has.
#[tokio::test]
async fn a_route_is_served_where_it_is_documented() {
    let bridge = Bridge::start().await;
    let (_, health) = bridge.api.get("/api/health").await;
    let agent = Api::new(format!(
        "http://{}",
        health["signals"]["agent"].as_str().unwrap()
    ));
    let (of_main, of_agent) = (reference::operations(), reference::agent_operations());
    for (method, path) in of_main.iter().chain(&of_agent) {
        for (api, has) in [(&bridge.api, &of_main), (&agent, &of_agent)] {
            let asked = api.request(method.parse().unwrap(), &format!("{path}?zebra=1"));
            let status = asked.body("{}").send().await.unwrap().status();
            let is_there = has.contains(&(method.clone(), path.clone()));
            let expected = [StatusCode::NOT_FOUND, StatusCode::BAD_REQUEST][usize::from(is_there)];
            assert_eq!(status, expected, "{method} {path} on {}", api.url);
        }
    }
    bridge.stop().await;
}

#[tokio::test]
async fn the_reference_is_served_to_everybody() {
    let bridge = Bridge::with(&[("BRIDGE_TOKENS", "one")]).await;
    for path in PAGES {
        let answer = bridge.api.request(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
    }
    bridge.stop().await;
}

#[test]
#[should_panic(expected = "otherwise than openapi.json says")]
fn an_answer_with_a_member_that_is_not_documented_fails() {
    let answer = serde_json::json!({ "cancelled": true, "why": "not documented" });
    reference::check("POST", "/api/v2/dispatch/x/cancel", 200, &answer);
}

#[test]
#[should_panic(expected = "is not of type")]
fn an_answer_with_a_wrong_type_deep_inside_fails() {
    let report = serde_json::json!({ "status": "healthy", "checkedAt": 5 });
    let adapter = serde_json::json!({
        "provider": "echo", "version": null, "path": null, "digest": null, "isolation": "in_process",
        "interfaces": [], "profile": null, "running": 0, "maxConcurrent": 1, "pausedAt": null,
        "leaving": [], "health": report, "history": [],
    });
    reference::check("GET", "/api/v2/adapters/echo", 200, &adapter);
}

/// Generators of clients write all of it, and the compiler accepts what they write.
#[tokio::test]
async fn generators_of_clients_accept_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let (packages, python) = (
        forge_test_runtimes::generators().join("node_modules"),
        forge_test_runtimes::python_generator().join("bin"),
    );
    let node = forge_test_runtimes::node();
    let script = |path: &str| vec![node.clone(), packages.join(path)];
    let document = document.to_str().unwrap();
    for (program, arguments) in [
        (
            script("openapi-typescript/bin/cli.js"),
            vec![document, "-o", "types.d.ts"],
        ),
        (
            script("@hey-api/openapi-ts/bin/run.js"),
            vec!["-i", document, "-o", "client"],
        ),
        (
            script("typescript/bin/tsc"),
            vec![
                "--noEmit",
                "--strict",
                "--target",
                "es2022",
                "--module",
                "preserve",
                "--skipLibCheck",
                "types.d.ts",
                "client/index.ts",
            ],
        ),
        (
            vec![python.join("openapi-python-client")],
            vec![
                "generate",
                "--fail-on-warning",
                "--path",
                document,
                "--output-path",
                "python",
            ],
        ),
        (
            vec![python.join("python"), "-m".into(), "compileall".into()],
            vec!["-q", "python"],
        ),
    ] {
        let output = Command::new(&program[0])
            .args(&program[1..])
            .args(arguments)
            .env_clear()
            .env("HOME", folder.path())
            .env("PATH", format!("{}:/usr/bin:/bin", python.display()))
            .current_dir(folder.path())
            .output()
            .await
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "{program:?}: {said}");
    }
    let generated = fs::read_to_string(folder.path().join("types.d.ts")).unwrap();
    assert!(generated.contains("\"/api/v2/dispatch\""));
    assert!(folder.path().join("client/types.gen.ts").is_file());
}

/// Runs valid and invalid requests generated from the document: none causes an internal error, an undocumented
/// answer, or access without a token. Valid requests may be refused for reasons that no schema expresses, such as a
/// session without a suitable adapter or an address that the guard refuses.
#[tokio::test]
async fn schemathesis_finds_nothing() {
    // Signals without a right signature count as wrong tokens.
    let unlimited = "auth.failures_per_minute = 0";
    let bridge = Bridge::configured(unlimited, &[("BRIDGE_TOKENS", "one")]).await;
    let (_, health) = bridge.api.get("/api/health").await;
    let agent = format!("http://{}", health["signals"]["agent"].as_str().unwrap());
    // Streams that never end are tested in `events.rs`. The agent's listener asks for no token.
    tokio::join!(
        schemathesis(
            &bridge.api.url,
            ["--exclude-path-regex", "events$|^/health$"]
        ),
        schemathesis(&agent, ["--include-path-regex", "^/(health|emit)$"]),
    );
    let app = bridge.app.unwrap();
    let owed = app.store.counts().deliveries_pending;
    assert_eq!(owed, 0, "no made-up address was to be called");
    app.stop().await;
}

async fn schemathesis(url: &str, paths: [&str; 2]) {
    let home = tempfile::tempdir().unwrap();
    let runtime = forge_test_runtimes::schemathesis();
    let output = Command::new(runtime.join("bin/schemathesis"))
        .arg("run")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json"))
        .args(["--url", url, "--header", "Authorization: Bearer one"])
        .args([
            "--exclude-checks",
            "positive_data_acceptance",
            "--max-examples",
            "15",
        ])
        // The number of generated cases that schemathesis discards (such as `.` as a path) depends on its seed,
        // not on the bridge.
        .args(["--suppress-health-check", "filter_too_much"])
        .args(paths)
        .args(["--request-timeout", "20", "--no-color"])
        .env("SCHEMATHESIS_HOOKS", "hooks")
        .env(
            "PYTHONPATH",
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/runtimes/schemathesis"),
        )
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(home.path())
        .kill_on_drop(true)
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{url}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
