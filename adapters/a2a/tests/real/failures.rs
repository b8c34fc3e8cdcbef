//! Failures of the agent, its model and its server; cancellation.

use forge_adapter_api::child::{Child, Program};
use forge_adapter_api::{Events, ExecutionAdapter as _, ExecutionRequest, HealthStatus, Host};
use forge_test_support::deadline::until;
use forge_test_support::execution::run_until;
use serde_json::json;

use crate::bench::{Bench, adapter, config};

#[tokio::test]
async fn failures_of_the_agent_have_their_codes_and_its_words() {
    for kind in ["both", "0.3"] {
        let bench = Bench::new(kind).await;
        assert_eq!(
            bench.say("BOOM").await.failed("adapter_error"),
            "boom",
            "{kind}"
        );
        assert_eq!(
            bench.say("DENY").await.failed("rejected"),
            "not me",
            "{kind}"
        );
        for status in ["400", "429", "529"] {
            let ran = bench.say(&format!("FAIL{status} now")).await;
            assert_eq!(ran.failed("adapter_error"), "the model refused", "{kind}");
        }
        let mut unknown = bench.request("hello");
        unknown.session_id = Some("c|task:unknown".to_owned());
        bench.run(unknown).await.failed("session_not_found");
    }
}

#[tokio::test]
async fn a_cancel_cancels_the_task() {
    for kind in ["both", "0.3", "plain"] {
        let bench = Bench::new(kind).await;
        let request = bench.request("SLOW please");
        let ran = run_until(&bench.adapter, request, "session.updated", async || {
            assert!(bench.adapter.cancel("task-sample").await.unwrap());
        })
        .await;
        ran.failed("cancelled");
        until(|| bench.agent.cancels() == 1).await;
    }
}

#[tokio::test]
async fn an_agent_that_is_killed_is_an_error_and_offline() {
    let mut bench = Bench::new("both").await;
    assert_eq!(
        bench.adapter.check_health().await.status,
        HealthStatus::Healthy
    );
    let (events, mut seen) = Events::channel(100);
    let execution = bench
        .adapter
        .execute(ExecutionRequest::sample("SLOW please"), events);
    let child = &mut bench.agent.child;
    let killing = async {
        seen.recv().await.unwrap();
        child.kill();
        child.wait().await.unwrap();
        while seen.recv().await.is_some() {}
    };
    let (result, ()) = tokio::join!(execution, killing);
    let result = result.unwrap();
    assert_eq!(
        result.error_code.as_deref(),
        Some("upstream_error"),
        "{result:?}"
    );
    assert_eq!(result.retryable, Some(true));
    let health = bench.adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Offline);
    assert!(health.message.unwrap().contains("start the agent"));
}

#[tokio::test]
async fn who_lacks_the_token_is_told() {
    let bench = Bench::new("both").await;
    let mut config = config(&bench.agent.url);
    config["token"] = "wrong".into();
    let adapter = adapter(config).await;
    let health = adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains("adapters.a2a.token"));
    let error = adapter
        .execute(ExecutionRequest::sample("hello"), Events::nowhere())
        .await
        .unwrap_err();
    assert_eq!(error.code, "unauthenticated");
    assert!(!error.message.contains("wrong"));
}

/// A server that returns a card, and this body to every message.
async fn strange(body: &str) -> (Child, String) {
    let script = "
import http.server, json, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.give('application/json', json.dumps({'url': '/', 'protocolVersion': '0.3', 'capabilities': {'streaming': True}}))
    def do_POST(self): self.rfile.read(int(self.headers['content-length'])); self.give('text/event-stream', sys.argv[1])
    def give(self, kind, body):
        self.send_response(int(body) if body.isdigit() else 200); self.send_header('content-type', kind); self.end_headers(); self.wfile.write(body.encode())
    def log_message(self, *a): pass
s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), H); print(s.server_address[1], flush=True); s.serve_forever()";
    let mut program = Program::new("python3");
    program.args = vec!["-c".into(), script.into(), body.into()];
    let mut child = Child::start(&Host::detached(), None, &program).unwrap();
    let Some(forge_adapter_api::child::Line::Text(port)) = child.next().await else {
        panic!("no server")
    };
    (child, format!("http://127.0.0.1:{port}"))
}

#[tokio::test]
async fn malformed_and_half_streams_and_refusals_are_errors() {
    for (body, code, retryable) in [
        ("data: {\"result\":\n\n", "upstream_error", false),
        (
            "data: {\"result\": {\"odd\": 1}}\n\n",
            "upstream_error",
            false,
        ),
        ("data: {\"jsonrpc\": \"2.0\"}\n\n", "upstream_error", false),
        (
            "data: {\"result\": {\"kind\": \"task\"",
            "upstream_error",
            true,
        ),
        ("", "upstream_error", true),
        (
            "data: {\"error\": {\"code\": -32603, \"message\": \"oops\"}}\n\n",
            "upstream_error",
            true,
        ),
        ("400", "invalid_request", false),
        ("429", "rate_limited", true),
        ("503", "upstream_error", true),
    ] {
        let (_child, url) = strange(body).await;
        let result = adapter(json!({"url": url, "poll_seconds": 0.01}))
            .await
            .execute(ExecutionRequest::sample("hello"), Events::nowhere())
            .await
            .unwrap();
        assert_eq!(
            result.error_code.as_deref(),
            Some(code),
            "{body:?}: {result:?}"
        );
        assert_eq!(result.retryable, Some(retryable), "{body:?}: {result:?}");
    }
}

#[tokio::test]
async fn a_run_that_is_dropped_cancels_its_task() {
    let bench = Bench::new("both").await;
    let (events, mut seen) = Events::channel(100);
    tokio::select! {
        result = bench.adapter.execute(ExecutionRequest::sample("SLOW please"), events) => panic!("{result:?}"),
        _ = seen.recv() => {}
    }
    until(|| bench.agent.cancels() == 1).await;
}
