//! Tests of every way in which a server can answer.

use std::pin::pin;
use std::time::Duration;

use axum::http::Method;
use forge_adapter_api::{ExecutionAdapter as _, HealthStatus};
use forge_test_support::instance::initialize;
use standardwebhooks::Webhook;
use tokio::time::timeout;

use crate::bench::{Bench, config};
use crate::server::SECRET;

/// Time for which a test checks that an event does not happen.
const WHILE: Duration = Duration::from_millis(300);

#[tokio::test]
async fn a_result_comes_at_once_as_events_as_lines_when_asked_or_by_callback() {
    let bench = Bench::new().await;
    for (message, output) in [
        ("hello", "pong: hello"),
        ("sse", "pong"),
        ("lines", "pong"),
        ("later", "polled"),
        ("callback", "called"),
    ] {
        let ran = bench.say(message).await;
        assert_eq!(ran.succeeded(), output, "{message}");
        assert_eq!(ran.text(), output, "{message}");
        assert_eq!(ran.result.usage.input_tokens, Some(3), "{message}");
        assert_eq!(ran.result.usage.total_tokens, None, "{message}: not sent");
    }
    assert_eq!(
        bench.say("sse").await.result.session_id.as_deref(),
        Some("s-1")
    );
}

#[tokio::test]
async fn the_request_is_the_bridges_own_signed_and_with_the_credentials() {
    let bench = Bench::new().await;
    let mut request = bench.request("hello");
    request.session_id = Some("s-9".to_owned());
    request.meta.traceparent =
        Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    bench.run(request).await.succeeded();
    let (path, headers, body) = bench.server.last(&Method::POST).unwrap();
    assert_eq!(path, "/run");
    Webhook::new(SECRET)
        .unwrap()
        .verify(body.as_bytes(), &headers)
        .unwrap();
    for (name, value) in [
        ("authorization", "Bearer t0ken"),
        ("x-team", "blue"),
        ("idempotency-key", "dsp_sample/1"),
        ("webhook-id", "dsp_sample/1"),
        (
            "traceparent",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        ),
    ] {
        assert_eq!(headers[name], value);
    }
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        (&body["message"], &body["sessionId"], &body["executionId"]),
        (&"hello".into(), &"s-9".into(), &"dsp_sample/1".into())
    );
    assert!(
        body["callbackUrl"]
            .as_str()
            .unwrap()
            .starts_with("http://127.0.0.1:")
    );
}

#[tokio::test]
async fn where_an_earlier_edition_takes_callbacks_the_next_one_waits_until_it_has_gone() {
    let earlier = Bench::new().await;
    earlier.say("callback").await.succeeded();
    let (_, _, body) = earlier.server.last(&Method::POST).unwrap();
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let address = body["callbackUrl"]
        .as_str()
        .unwrap()
        .split('/')
        .nth(2)
        .unwrap();
    let Bench { adapter, server } = earlier;
    let mut table = config(&server.url);
    table["callback"]["listen"] = address.into();
    let next = Bench {
        adapter: initialize(table).await,
        server,
    };
    let health = next.adapter.check_health().await;
    assert_eq!(health.status, HealthStatus::Degraded);
    assert!(health.message.unwrap().contains(address));
    let mut run = pin!(next.say("callback"));
    assert!(timeout(WHILE, &mut run).await.is_err(), "it waits");
    drop(adapter);
    assert_eq!(run.await.succeeded(), "called");
    assert_eq!(
        next.adapter.check_health().await.status,
        HealthStatus::Healthy
    );
}
