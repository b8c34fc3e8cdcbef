//! The ways in which a server answers.

use axum::http::Method;
use standardwebhooks::Webhook;

use crate::bench::Bench;
use crate::server::SECRET;

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
        assert_eq!(ran.result.usage.total_tokens, None, "{message}: not told");
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
