//! Tests of `http`.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use axum::routing::{get, post};
use axum::{Json, Router};
use forge_adapter_api::AdapterError;
use futures_util::stream;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::*;

/// `data: 1\n\ndata: 2\n\n`, compressed by gzip.
const PACKED: &[u8] = &[
    31, 139, 8, 0, 0, 0, 0, 0, 2, 3, 75, 73, 44, 73, 180, 82, 48, 228, 226, 74, 1, 51, 140, 184,
    184, 0, 6, 45, 0, 143, 18, 0, 0, 0,
];

struct Server {
    url: String,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve() -> Server {
    let pieces = |pieces: &'static [&'static str]| {
        move || async move {
            let pieces = pieces.iter().map(|piece| Ok::<_, Infallible>(*piece));
            Response::new(Body::from_stream(stream::iter(pieces)))
        }
    };
    let endless = || async {
        let pieces = stream::repeat(Ok::<_, Infallible>(
            "data: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\n",
        ));
        Response::new(Body::from_stream(pieces))
    };
    let large = || async { format!("data: {}\n\n", "a".repeat(5 << 20)) };
    let silent = || async {
        let begun = stream::iter([Ok::<_, Infallible>("data: 1\n\n")]);
        Response::new(Body::from_stream(begun.chain(stream::pending())))
    };
    let refusing = || async {
        (
            StatusCode::TOO_MANY_REQUESTS,
            [(RETRY_AFTER, "7")],
            "slow down",
        )
    };
    let packed = || async {
        Response::builder()
            .header("content-encoding", "gzip")
            .body(Body::from(PACKED))
            .unwrap()
    };
    let router = Router::new()
        .route("/packed", get(packed))
        .route("/echo", post(|body: String| async move { body }))
        .route("/echo-form", post(|body: String| async move { Json(body) }))
        .route(
            "/events",
            get(pieces(&[
                ": hello\r\n\r\nda",
                "ta: a\ndata: b\n\nevent: x\nid: 9\n",
                "data: {}\n\n",
                "data: lost",
            ])),
        )
        .route("/endless", get(endless))
        .route("/silent", get(silent))
        .route("/large", get(large))
        .route("/refusing", get(refusing));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "a test server ends with its handle"
    )]
    let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    Server { url, task }
}

fn http() -> Http {
    Http::new(Limits {
        silence: Duration::from_secs(2),
        body_bytes: 1000,
        event_bytes: 1000,
        ..Limits::default()
    })
    .unwrap()
}

#[tokio::test]
async fn json_goes_there_and_back_within_its_bound() {
    let (server, http) = (serve().await, http());
    let url = format!("{}/echo", server.url);
    assert_eq!(
        http.json(http.post(&url, &json!({"a": 1}))).await.unwrap(),
        json!({"a": 1})
    );
    let long = json!("a".repeat(2000));
    assert!(matches!(
        http.json(http.post(&url, &long)).await,
        Err(Failure::TooLong(TooLong::Answer(1000)))
    ));
}

#[tokio::test]
async fn an_event_can_be_as_large_as_a_result_of_the_bridge() {
    let server = serve().await;
    let bridge = |payload_bytes| host::Limits {
        payload_bytes,
        ..host::Limits::default()
    };
    for (limit, fits) in [(16 << 20, true), (1 << 20, false)] {
        let http = Http::new(Limits::within(bridge(limit))).unwrap();
        let request = http.get(&format!("{}/large", server.url));
        let event = http.events(request).await.unwrap().next().await.unwrap();
        match event {
            Ok(event) => assert!(fits && event.data.len() == 5 << 20),
            Err(failure) => {
                assert!(!fits, "{failure}");
                let text = AdapterError::from(failure).message;
                assert_eq!(
                    text,
                    "an event of the answer is above the limit of 1048576 bytes"
                );
            }
        }
    }
}

#[tokio::test]
async fn a_form_is_encoded() {
    let (server, http) = (serve().await, http());
    let url = format!("{}/echo-form", server.url);
    let form = http.post_form(&url, &[("a", "1 & 2"), ("b", "ü")]);
    assert_eq!(http.json(form).await.unwrap(), json!("a=1+%26+2&b=%C3%BC"));
}

#[tokio::test]
async fn events_are_put_together_from_their_pieces() {
    let (server, http) = (serve().await, http());
    let mut events = http
        .events(http.get(&format!("{}/events", server.url)))
        .await
        .unwrap();
    let event = |id: &str, name: &str, data: &str| ServerEvent {
        id: id.to_owned(),
        name: name.to_owned(),
        data: data.to_owned(),
    };
    assert_eq!(
        events.next().await.unwrap().unwrap(),
        event("", "message", "a\nb")
    );
    assert_eq!(events.next().await.unwrap().unwrap(), event("9", "x", "{}"));
    assert!(matches!(
        events.next().await,
        Some(Err(Failure::Broken(Break::InEvent)))
    ));
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn an_event_without_an_end_and_a_silence_are_failures() {
    let (server, http) = (serve().await, http());
    let mut endless = http
        .events(http.get(&format!("{}/endless", server.url)))
        .await
        .unwrap();
    assert!(matches!(
        endless.next().await,
        Some(Err(Failure::TooLong(TooLong::Event(1000))))
    ));
    let mut silent = http
        .events(http.get(&format!("{}/silent", server.url)))
        .await
        .unwrap();
    assert_eq!(silent.next().await.unwrap().unwrap().data, "1");
    assert!(matches!(silent.next().await, Some(Err(Failure::Silent(_)))));
}

#[tokio::test]
async fn a_refusal_says_why_and_when_to_come_again() {
    let (server, http) = (serve().await, http());
    let failure = http
        .json(http.get(&format!("{}/refusing", server.url)))
        .await
        .unwrap_err();
    let error = AdapterError::from(failure);
    assert_eq!(
        (error.code.as_str(), error.retryable, error.retry_after_ms),
        ("rate_limited", true, Some(7000))
    );
    assert!(error.message.ends_with("slow down"), "{}", error.message);
    let host = server.url.trim_start_matches("http://");
    assert!(error.message.starts_with(host), "{}", error.message);
    drop(server);
}

#[tokio::test]
async fn a_compressed_answer_is_decoded() {
    let (server, http) = (serve().await, http());
    let request = http.get(&format!("{}/packed", server.url));
    let mut events = http.events(request).await.unwrap();
    for wanted in ["1", "2"] {
        assert_eq!(events.next().await.unwrap().unwrap().data, wanted);
    }
    assert!(events.next().await.is_none());
}

#[test]
fn milliseconds_go_before_seconds_and_the_services_word_before_the_status() {
    let mut headers = HeaderMap::new();
    headers.insert(RETRY_AFTER, "7".parse().unwrap());
    headers.insert("retry-after-ms", "1500".parse().unwrap());
    let wait = retry_after(&headers, SystemTime::now());
    assert_eq!(wait, Some(Duration::from_millis(1_500)));
    for (status, should_retry, retryable) in [
        (429, None, true),
        (429, Some(false), false),
        (400, Some(true), true),
        (529, None, true),
        (409, None, true),
        (404, None, false),
        (302, None, false),
        (401, Some(true), false),
    ] {
        let error = AdapterError::from(Failure::Refused {
            host: "h".to_owned(),
            status: StatusCode::from_u16(status).unwrap(),
            body: String::new(),
            retry_after: None,
            should_retry,
        });
        assert_eq!(error.retryable, retryable, "{status} {should_retry:?}");
        assert_eq!(error.details.unwrap()["status"], status);
        assert_eq!(error.message.contains("529 Overloaded"), status == 529);
    }
}

#[test]
fn the_time_to_come_again_is_seconds_or_a_date() {
    let now = httpdate::parse_http_date("Sat, 21 Nov 2026 00:00:00 GMT").unwrap();
    for (text, seconds) in [
        ("7", Some(7)),
        ("Sat, 21 Nov 2026 00:01:00 GMT", Some(60)),
        ("Fri, 20 Nov 2026 00:01:00 GMT", Some(0)),
        ("soon", None),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        let wanted = seconds.map(Duration::from_secs);
        assert_eq!(retry_after(&headers, now), wanted, "{text}");
        let mut passed_on = HeaderMap::new();
        passed_on.insert("llm_provider-retry-after", text.parse().unwrap());
        assert_eq!(retry_after(&passed_on, now), wanted, "{text}");
    }
}

#[tokio::test]
async fn an_endpoint_that_is_not_there_may_be_there_later() {
    let http = http();
    let error = AdapterError::from(
        http.json(http.get("http://127.0.0.1:1/x?key=s3cret"))
            .await
            .unwrap_err(),
    );
    assert_eq!(
        (error.code.as_str(), error.retryable),
        ("upstream_error", true)
    );
    assert!(error.message.contains("127.0.0.1:1"), "{}", error.message);
    assert!(!error.message.contains("s3cret"), "{}", error.message);
}
