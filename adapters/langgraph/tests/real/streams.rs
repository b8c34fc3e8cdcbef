//! Broken streams: a cutting proxy before the real server, and a fake that sends malformed events.

use std::time::Duration;

use forge_test_support::execution::{Execution, run};
use serde_json::{Value, json};

use crate::bench::{self, Bench, request, used};
use crate::fake::{Fake, Script};
use crate::proxy::Proxy;

#[tokio::test]
async fn a_stream_that_is_cut_again_and_again_is_resumed_without_loss_or_duplicate() {
    let bench = Bench::new().await;
    let proxy = Proxy::start(bench.server.url()).await;
    let config = bench::config(proxy.url(), bench.model.url());
    let adapter = bench::adapter(config).await;

    let ran = run(&adapter, request("TICK then tell me a long story of plums")).await;

    ran.succeeded();
    used(&ran, 1);
    assert!(proxy.cuts() >= 3, "{} cuts", proxy.cuts());
    let ticks: Vec<u64> = ran
        .progress("custom")
        .iter()
        .filter_map(|data| data["value"]["tick"].as_u64())
        .collect();
    assert_eq!(ticks, (0..30).collect::<Vec<_>>());
    assert_eq!(ran.text(), ran.output());
    assert!(ran.output().ends_with("a long story of plums"));
    assert_eq!(bench.model.requests().len(), 1);
}

const MESSAGE: &str = "event: messages\r\ndata: [{\"type\":\"ai\",\"id\":\"m1\",\"content\":\"hel\"},{}]\r\nid: 5-0\r\n\r\n";

async fn told(script: Script) -> (Execution, Fake) {
    let fake = Fake::start(script).await;
    let mut config = bench::config(fake.url(), "http://127.0.0.1:9");
    config["reconnects"] = 2.into();
    let adapter = bench::adapter(config).await;
    let ran = tokio::time::timeout(Duration::from_secs(20), run(&adapter, request("hello")));
    (ran.await.unwrap(), fake)
}

#[tokio::test]
async fn what_cannot_be_read_is_a_clear_error_and_the_run_is_ended() {
    let deep = format!("event: custom\r\ndata: {}\r\n\r\n", "[".repeat(100_000));
    let long = format!("event: custom\r\ndata: \"{}\"\r\n\r\n", "a".repeat(5 << 20));
    let cases = [
        (
            "event: messages\r\ndata: {oops\r\n\r\n",
            "protocol_violation",
        ),
        ("event: messages\r\ndata: {}\r\n\r\n", "protocol_violation"),
        ("event: messages\r\ndata: [1]\r\n\r\n", "protocol_violation"),
        (deep.as_str(), "protocol_violation"),
        (long.as_str(), "upstream_error"),
    ];
    for (said, code) in cases {
        let stream = format!("{MESSAGE}{said}");
        let (ran, fake) = told(Script::of(&[&stream])).await;
        ran.failed(code);
        assert_eq!(ran.output(), "hel", "what was said before is kept");
        fake.cancelled().await;
    }
}

#[tokio::test]
async fn odd_values_where_others_belong_are_passed_over() {
    let odd = "event: metadata\r\ndata: 7\r\n\r\nevent: updates\r\ndata: [1]\r\n\r\n\
               event: updates\r\ndata: {\"a\":null,\"b\":[{\"messages\":7}],\"c\":{\"messages\":[1,{\"type\":\"ai\",\
               \"tool_calls\":[{\"id\":1},{\"id\":\"x\"}]}]}}\r\n\r\nevent: novelty\r\ndata: {}\r\n\r\n";
    let (ran, _fake) = told(Script::of(&[odd, ""]).then_over(&json!("nonsense"))).await;
    ran.succeeded();
    assert_eq!(ran.output(), "");
}

#[tokio::test]
async fn half_an_event_counts_as_none_and_comes_whole_the_next_time() {
    let cut = &MESSAGE[..MESSAGE.len() - 12];
    let again = format!(
        "{MESSAGE}event: messages\r\ndata: [{{\"type\":\"ai\",\"id\":\"m1\",\"content\":\"lo\"}},{{}}]\r\nid: 6-0\r\n\r\n"
    );
    let values = json!({"messages": [{"type": "ai", "id": "m1", "content": "hello"}]});
    let (ran, fake) = told(Script::of(&[cut, &again]).then_over(&values)).await;
    ran.succeeded();
    assert_eq!(ran.text(), "hello");
    assert_eq!(fake.asked_after(), ["-1", "-1"]);
}

#[tokio::test]
async fn a_stream_that_never_brings_anything_new_is_given_up() {
    let (ran, fake) = told(Script::of(&[MESSAGE])).await;
    ran.failed("upstream_error");
    assert_eq!(ran.result.retryable, Some(true));
    assert_eq!(ran.text(), "hel", "once");
    assert_eq!(fake.asked_after().len(), 4, "the first one and three more");
    fake.cancelled().await;
}

/// Drives the fake and the real server with the official client, which has to see the same shapes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_accepts_the_fake_as_it_does_the_real_server() {
    let bench = Bench::new().await;
    let values = json!({"messages": [{"type": "ai", "id": "m1", "content": "hello"}]});
    let fake = Fake::start(Script::of(&[MESSAGE]).then_over(&values)).await;
    let client = |url: &str| {
        let run = std::process::Command::new(bench.server.python())
            .args([
                concat!(env!("CARGO_MANIFEST_DIR"), "/tests/real/client.py"),
                url,
                bench.model.url(),
            ])
            .output();
        let output = run.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{url}: {error}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    let model = bench.server.url().to_owned();
    let (real, faked) = tokio::task::block_in_place(|| (client(&model), client(fake.url())));
    assert_eq!(real, faked);
}
