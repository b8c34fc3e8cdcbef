//! Tests of `net`.

use std::io::{Read, Write};

use super::*;
use forge_test_support::callback::{Answer as Reply, CallbackSink};

fn client(allow: &str) -> Client {
    let guard = Guard::new(&[allow.to_owned()]).unwrap();
    Client::new(&Config::default(), guard).unwrap()
}

fn get(url: &str) -> Outgoing {
    Outgoing {
        method: Method::GET,
        url: Url::parse(url).unwrap(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        timeout: Duration::from_millis(500),
        answer_bytes: ANSWER_BYTES,
    }
}

/// Plain-text server: answers any request on its first two connections.
fn answers_in_clear() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(2) {
            let mut stream = stream.unwrap();
            let asked = stream.read(&mut [0; 4096]).unwrap();
            assert!(asked > 0);
            stream.write_all(b"220 not what you think\r\n").unwrap();
        }
    });
    address
}

#[test]
fn an_origin_is_written_out() {
    for (url, expected) in [
        ("https://example.com/a?b", "https://example.com:443"),
        ("http://EXAMPLE.com.:80", "http://example.com:80"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
        (
            "https://bücher.example/",
            "https://xn--bcher-kva.example:443",
        ),
    ] {
        assert_eq!(origin(&Url::parse(url).unwrap()), expected);
    }
}

#[tokio::test]
async fn an_answer_is_read_up_to_its_bound_and_redirects_are_not_followed() {
    let sink = CallbackSink::start().await;
    let target = sink.url("/elsewhere");
    sink.script(vec![
        Reply::redirect(&target).body("moved"),
        Reply::status(503)
            .header("retry-after", "7")
            .body(vec![b'x'; 100_000]),
    ]);
    let client = client("loopback");
    let answer = client.send(get(&sink.url("/"))).await.unwrap();
    assert_eq!(
        (answer.status, answer.body.as_slice(), answer.end),
        (302, &b"moved"[..], BodyEnd::Complete)
    );
    let answer = client.send(get(&sink.url("/"))).await.unwrap();
    assert_eq!((answer.status, answer.body.len()), (503, ANSWER_BYTES));
    assert_eq!(answer.end, BodyEnd::TooLong);
    assert_eq!(answer.headers["retry-after"], "7");
    assert!(sink.received().iter().all(|request| request.path == "/"));
}

/// A receiver that sends interim answers without end, up to a limit that the test would notice.
fn answers_in_the_interim() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
        let answers = b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n".repeat(1000);
        // The client closes the connection.
        while stream.write_all(&answers).is_ok() {}
    });
    address
}

#[tokio::test]
async fn interim_answers_without_end_fail_their_request_and_delay_no_other() {
    let (sink, client) = (CallbackSink::start().await, client("loopback"));
    let mut outgoing = get(&format!("http://{}/", answers_in_the_interim()));
    outgoing.timeout = Duration::from_secs(30);
    let other = client.send(get(&sink.url("/")));
    let (flooded, other) = tokio::join!(client.send(outgoing), other);
    let error = flooded.unwrap_err();
    let expected = "more than 16 interim answers";
    assert!(
        matches!(&error, SendError::Protocol(text) if text == expected),
        "{error:?}"
    );
    assert_eq!(other.unwrap().status, 200);
}

#[tokio::test]
async fn a_proxy_is_told_the_whole_url_and_looks_the_name_up() {
    let sink = CallbackSink::start().await;
    sink.answer(Reply::status(201).body("done"));
    let config = Config {
        proxy: Some(sink.url("")),
        ..Config::default()
    };
    let guard = Guard::new(&[]).unwrap();
    let client = Client::new(&config, guard).unwrap();
    let mut outgoing = get("http://far.example/a?b");
    outgoing.method = Method::POST;
    outgoing.body = Bytes::from_static(b"hello");
    let answer = client.send(outgoing).await.unwrap();
    assert_eq!((answer.status, answer.body), (201, b"done".to_vec()));
    let received = sink.received().remove(0);
    assert_eq!(received.path, "http://far.example/a?b");
    assert_eq!(received.headers["host"], "far.example");
    assert_eq!(received.body, b"hello");
    // Literal addresses are checked here although the proxy would connect.
    let error = client.send(get("http://10.0.0.1/")).await.unwrap_err();
    assert!(matches!(error, SendError::Refused(_)), "{error:?}");
}

#[tokio::test]
async fn each_way_to_fail_has_its_name() {
    let sink = CallbackSink::start().await;
    sink.answer_with(|request| match request.path.as_str() {
        "/hang" => Reply::hang(),
        _ => Reply::close(),
    });
    // Bound without listening: connections to it are refused, and no other process takes the port.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let unused = held.local_addr().unwrap();
    let no_tls = answers_in_clear();
    // A label of more than 63 bytes is invalid in every DNS.
    let no_name = format!("http://{}.invalid/", "a".repeat(64));
    let by_name = format!("http://localhost:{}/", sink.address().port());
    let open = client("loopback");
    let fails = async |client: &Client, url: &str| client.send(get(url)).await.unwrap_err();

    let error = fails(&open, &sink.url("/hang")).await;
    assert!(matches!(error, SendError::Timeout(_)), "{error:?}");
    let error = fails(&open, &sink.url("/close")).await;
    assert!(matches!(error, SendError::Closed(_)), "{error:?}");
    let error = fails(&open, &format!("http://{unused}/")).await;
    assert!(matches!(error, SendError::Connect(_)), "{error:?}");
    let error = fails(&open, &no_name).await;
    assert!(matches!(error, SendError::Resolve(_)), "{error:?}");
    let error = fails(&client("192.0.2.1"), &sink.url("/")).await;
    assert!(matches!(error, SendError::Refused(_)), "{error:?}");
    let error = fails(&client("192.0.2.1"), &by_name).await;
    assert!(matches!(error, SendError::Refused(_)), "{error:?}");

    let error = fails(&open, &format!("https://{no_tls}/")).await;
    assert!(matches!(error, SendError::Tls(_)), "{error:?}");
    let error = fails(&open, &format!("http://{no_tls}/")).await;
    assert!(matches!(error, SendError::Protocol(_)), "{error:?}");

    sink.answer(Reply::status(200));
    let named = client(&format!("localhost:{}", sink.address().port()));
    assert_eq!(named.send(get(&by_name)).await.unwrap().status, 200);
}
