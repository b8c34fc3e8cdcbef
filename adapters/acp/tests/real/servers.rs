//! MCP servers that do not start.

use std::collections::BTreeMap;
use std::net::TcpListener;

use forge_test_support::mcp_server;
use serde_json::{Value, json};

use crate::bench::{Agent, Bench};

/// Servers that are not available, with a part of the reason.
fn broken() -> Vec<(Value, &'static str)> {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let program =
        |path: &str, args: &[&str]| json!({"type": "stdio", "command": path, "args": args});
    vec![
        (program("/no/such/program", &[]), "no program"),
        (program("sh", &["-c", "echo no key >&2; exit 3"]), "no key"),
        (
            json!({"type": "http", "url": format!("http://127.0.0.1:{port}/mcp")}),
            "could not be reached",
        ),
    ]
}

#[tokio::test]
async fn a_server_that_does_not_start_ends_the_run_before_the_model_is_asked() {
    let bench = Bench::new(Agent::OpenCode).await;
    for (server, reason) in broken() {
        let mut request = bench.request("hello");
        let good = mcp_server::answering("counted");
        request.mcp_servers =
            BTreeMap::from([("count".to_owned(), good), ("broken".to_owned(), server)]);
        let ran = bench.run(request).await;
        ran.failed("mcp_server_unavailable");
        let error = ran.result.error.as_ref().unwrap();
        assert!(
            error.contains("broken") && error.contains(reason),
            "{error}"
        );
        let told = ran.all("exec.progress");
        assert_eq!(told.len(), 1, "{:?}", ran.events);
        assert_eq!(
            (&told[0]["kind"], &told[0]["server"]),
            (&json!("mcp_server_unavailable"), &json!("broken"))
        );
    }
    assert!(bench.model.requests().is_empty());
}

#[tokio::test]
async fn a_server_that_is_not_required_is_an_event_and_no_text() {
    let bench = Bench::new(Agent::Claude).await;
    let mut request = bench.request("hello");
    let (server, _) = broken().remove(1);
    request.mcp_servers = BTreeMap::from([("broken".to_owned(), server)]);
    request.mcp_required = false;
    let ran = bench.run(request).await;
    ran.succeeded();
    assert_eq!(ran.output(), "pong: hello");
    assert_eq!(ran.text(), "pong: hello");
    let told = ran.all("exec.progress");
    assert_eq!(told.len(), 1, "{:?}", ran.events);
    assert_eq!(told[0]["server"], "broken");
}
