//! Floods of requests to the real program: its memory stays bounded, and other clients are served. Bounds are
//! generous; the measured growth is printed.

use reqwest::StatusCode;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::harness::api::quiet;
use super::harness::process::{Home, Process};
use super::harness::socket::{connect, rest};
use super::harness::until;

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Maximum growth of the program in bytes.
const MOST: usize = 400 * MIB;
const HEAD: &str =
    "POST /api/v2/dispatch HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";

/// A bridge and its memory at rest, in bytes.
struct Flooded {
    process: Process,
    rest: usize,
    _home: Home,
}

impl Flooded {
    async fn start(variables: &[(&str, &str)]) -> Self {
        // The program inherits the limit on descriptors, and connections use half of it.
        let limit = getrlimit(Resource::Nofile);
        let all = Rlimit {
            current: limit.maximum,
            ..limit
        };
        setrlimit(Resource::Nofile, all).unwrap();
        let home = Home::new(variables);
        let process = home.start();
        assert_eq!(process.api.run(quiet("warm", "ok")).await["status"], "ok");
        Self {
            rest: process.memory(),
            process,
            _home: home,
        }
    }

    async fn send(&self, bytes: impl AsRef<[u8]>) -> TcpStream {
        let mut stream = connect(&self.process.api).await;
        // The bridge can close the connection before everything is sent.
        let _ = stream.write_all(bytes.as_ref()).await;
        stream
    }

    /// Sends these bytes; returns the answer up to the end of the connection.
    async fn ask(&self, bytes: impl AsRef<[u8]>) -> String {
        rest(self.send(bytes).await).await
    }

    /// Asserts that another client is served and that memory is within its bound.
    #[expect(
        clippy::print_stdout,
        reason = "what a flood costs is a figure to be read"
    )]
    async fn holds(&self, flood: &str, task: &str) {
        let result = self.process.api.run(quiet(task, "ok")).await;
        assert_eq!(result["status"], "ok", "{flood}: {result}");
        let grown = self.process.memory().saturating_sub(self.rest);
        println!(
            "{flood}: {} KiB more than the {} KiB at rest",
            grown / KIB,
            self.rest / KIB
        );
        assert!(grown < MOST, "{flood}: grown by {} MiB", grown / MIB);
    }
}

#[tokio::test]
async fn heads_and_bodies_that_never_end_make_room_in_time() {
    let bridge = Flooded::start(&[
        ("BRIDGE_HTTP_HEADER_TIMEOUT", "3s"),
        ("BRIDGE_HTTP_BODY_TIMEOUT", "3s"),
    ])
    .await;
    let (mut heads, mut bodies) = (Vec::new(), Vec::new());
    for n in 0..300 {
        heads.push(
            bridge
                .send(format!("GET /api/health HTTP/1.1\r\nx-{n}: "))
                .await,
        );
        let announced = format!("{HEAD}content-length: 10000000\r\n\r\n{{\"taskId\":\"t");
        bodies.push(bridge.send(announced).await);
    }
    bridge
        .holds("300 heads and 300 bodies that never end", "meanwhile")
        .await;
    for head in heads {
        let told = rest(head).await;
        assert!(told.is_empty() || told.starts_with("HTTP/1.1 4"), "{told}");
    }
    for body in bodies {
        let told = rest(body).await;
        assert!(told.starts_with("HTTP/1.1 408"), "{told:?}");
    }
    bridge.holds("after them", "after").await;
}

#[tokio::test]
async fn a_body_that_drips_ends_as_a_whole_in_time() {
    let bridge = Flooded::start(&[("BRIDGE_HTTP_BODY_TIMEOUT", "1s")]).await;
    let mut stream = bridge
        .send(format!("{HEAD}content-length: 1000000\r\n\r\n"))
        .await;
    let (mut reader, mut writer) = stream.split();
    let drip = async {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let answer = async {
        let mut told = [0; 12];
        reader.read_exact(&mut told).await.unwrap();
        told
    };
    tokio::select! {
        () = drip => panic!("cut off without an answer"),
        told = answer => assert_eq!(&told, b"HTTP/1.1 408"),
    }
}

#[tokio::test]
async fn heads_above_their_bounds_are_refused() {
    let bridge = Flooded::start(&[]).await;
    let many: String = (0..150).map(|n| format!("x-{n}: 1\r\n")).collect();
    let endless: String = (0..20_000).map(|n| format!("x-{n}: 1\r\n")).collect();
    let wide = format!("x-wide: {}\r\n", "a".repeat(70 * KIB));
    let huge = format!("x-huge: {}\r\n", "a".repeat(4 * MIB));
    let path = format!("/{}", "a".repeat(100 * KIB));
    for (name, head) in [
        (
            "150 headers",
            format!("GET /api/health HTTP/1.1\r\nhost: localhost\r\n{many}\r\n"),
        ),
        (
            "20,000 headers",
            format!("GET /api/health HTTP/1.1\r\nhost: localhost\r\n{endless}\r\n"),
        ),
        (
            "a header of 70 KiB",
            format!("GET /api/health HTTP/1.1\r\nhost: localhost\r\n{wide}\r\n"),
        ),
        (
            "a header of 4 MiB",
            format!("GET /api/health HTTP/1.1\r\nhost: localhost\r\n{huge}\r\n"),
        ),
        (
            "a path of 100 KiB",
            format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n"),
        ),
    ] {
        for _ in 0..20 {
            let head = head.replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n");
            let told = bridge.ask(head).await;
            assert!(
                told.is_empty() || told.starts_with("HTTP/1.1 4"),
                "{name}: {told}"
            );
        }
    }
    bridge.holds("heads above their bounds", "after").await;
}

#[tokio::test]
async fn connections_that_stay_half_open_keep_no_client_out() {
    let bridge = Flooded::start(&[
        ("BRIDGE_HTTP_HEADER_TIMEOUT", "1s"),
        ("BRIDGE_HTTP_MAX_CONNECTIONS", "400"),
    ])
    .await;
    let mut silent = Vec::new();
    for n in 0..1000 {
        let stream = connect(&bridge.process.api).await;
        if n % 2 == 0 {
            // The client sends no more, and reads nothing.
            rustix::net::shutdown(&stream, rustix::net::Shutdown::Write).unwrap();
        }
        silent.push(stream);
    }
    bridge
        .holds(
            "1,000 half-open connections, 400 of them served",
            "behind them",
        )
        .await;
}

#[tokio::test]
async fn requests_that_mean_two_things_are_refused() {
    let bridge = Flooded::start(&[]).await;
    let inner = "GET /api/v2/dispatches HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let length = inner.len();
    for (name, head, body) in [
        (
            "both lengths",
            format!("content-length: {length}\r\ntransfer-encoding: chunked\r\n"),
            format!("0\r\n\r\n{inner}"),
        ),
        (
            "the other way round",
            format!("transfer-encoding: chunked\r\ncontent-length: {length}\r\n"),
            format!("0\r\n\r\n{inner}"),
        ),
        (
            "two lengths",
            format!("content-length: 2\r\ncontent-length: {length}\r\n"),
            inner.to_owned(),
        ),
        (
            "a list of lengths",
            format!("content-length: 2, {length}\r\n"),
            inner.to_owned(),
        ),
        (
            "a signed length",
            "content-length: +2\r\n".to_owned(),
            format!("{{}}{inner}"),
        ),
        (
            "a negative length",
            "content-length: -1\r\n".to_owned(),
            inner.to_owned(),
        ),
        (
            "a hexadecimal length",
            "content-length: 0x2\r\n".to_owned(),
            format!("{{}}{inner}"),
        ),
        (
            "an overflowing length",
            "content-length: 18446744073709551618\r\n".to_owned(),
            format!("{{}}{inner}"),
        ),
        (
            "chunked is not last",
            "transfer-encoding: chunked, identity\r\n".to_owned(),
            format!("0\r\n\r\n{inner}"),
        ),
        (
            "a hidden coding",
            "transfer-encoding: xchunked\r\n".to_owned(),
            format!("0\r\n\r\n{inner}"),
        ),
        (
            "a space before the colon",
            format!("content-length : {length}\r\n"),
            inner.to_owned(),
        ),
        (
            "a folded header",
            format!("x-a: 1\r\n content-length: {length}\r\n"),
            inner.to_owned(),
        ),
        (
            "a bare line feed",
            format!("x-a: 1\ncontent-length : {length}\n"),
            inner.to_owned(),
        ),
        (
            "a wrong chunk size",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("zz\r\n\r\n{inner}"),
        ),
        (
            "an overflowing chunk size",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("ffffffffffffffff1\r\n{inner}"),
        ),
        (
            "a chunk extension without an end",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("1;{}", "a".repeat(MIB)),
        ),
        (
            "a trailer without an end",
            "transfer-encoding: chunked\r\n".to_owned(),
            format!("0\r\nx: {}", "a".repeat(MIB)),
        ),
    ] {
        let told = bridge.ask(format!("{HEAD}{head}\r\n{body}")).await;
        let answers = told.matches("HTTP/1.1 ").count();
        assert!(answers <= 1, "{name}: the second request was heard\n{told}");
        assert!(
            told.is_empty() || told.starts_with("HTTP/1.1 4"),
            "{name}: {told}"
        );
        assert!(!told.contains("\"dispatches\""), "{name}: {told}");
    }
    bridge.holds("requests that mean two things", "after").await;
}

#[tokio::test]
async fn bodies_of_very_many_pieces_are_read_within_bounds() {
    let bridge = Flooded::start(&[]).await;
    let mut chunked =
        format!("{HEAD}transfer-encoding: chunked\r\nconnection: close\r\n\r\n").into_bytes();
    // Each chunk has one byte.
    for _ in 0..50_000 {
        chunked.extend_from_slice(b"1\r\n[\r\n");
    }
    chunked.extend_from_slice(b"0\r\n\r\n");
    let deep = "[".repeat(8 * MIB);
    let wide = format!("[{}0]", "[],".repeat(2 * MIB));
    let whole = |body: &str| {
        format!(
            "{HEAD}content-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
        .into_bytes()
    };
    for (name, request) in [
        ("50,000 chunks of a byte", chunked),
        ("JSON 8 Mi levels deep", whole(&deep)),
        ("JSON of 2 Mi values", whole(&wide)),
    ] {
        let told = futures_util::future::join_all((0..4).map(|_| bridge.ask(&request))).await;
        for told in told {
            assert!(told.starts_with("HTTP/1.1 400"), "{name}: {told}");
            assert!(told.contains("INVALID_REQUEST"), "{name}: {told}");
        }
        bridge.holds(name, name).await;
    }
    // The largest accepted bodies: trees of many small objects are far larger than their text.
    let rows = format!("[{}0]", "{\"a\":0},".repeat(22_000));
    let tree = |n: usize| {
        let body = quiet(&format!("tree-{n}"), "ok").to_string();
        let body = body.strip_suffix('}').unwrap();
        whole(&format!("{body},\"metadata\":{{\"rows\":{rows}}}}}"))
    };
    let told = futures_util::future::join_all((0..8).map(|n| bridge.ask(tree(n)))).await;
    for told in told {
        assert!(told.starts_with("HTTP/1.1 202"), "{told}");
    }
    bridge.holds("8 trees of 22,000 objects", "objects").await;
}

#[tokio::test]
async fn a_thousand_readers_that_never_read_cost_little() {
    let bridge = Flooded::start(&[]).await;
    let all = "GET /api/v2/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut readers = Vec::new();
    for _ in 0..1000 {
        readers.push(bridge.send(all).await);
    }
    let result = bridge.process.api.run(quiet("flood", "stream:5000")).await;
    assert_eq!(result["status"], "ok", "{result}");
    bridge
        .holds("1,000 readers that never read 5,000 events", "after")
        .await;
    drop(readers);
    until("the seats to be free", || async {
        let request = bridge
            .process
            .api
            .request(reqwest::Method::GET, "/api/v2/events?after=now");
        (request.send().await.unwrap().status() == StatusCode::OK).then_some(())
    })
    .await;
}
