//! Services over HTTP that never read, never end an answer, or flood: their calls end within the bounds, their connections
//! are closed, and other services are served meanwhile.

use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::*;
use crate::harness::process::Home;
use crate::harness::until;

/// Limit for the end of a connection.
const PATIENCE: Duration = Duration::from_secs(30);
/// Growth of the bridge's memory above which an answer was not bounded.
const MEMORY_BYTES: usize = 48 * 1024 * 1024;

#[derive(Clone, Copy, Debug)]
enum Manner {
    NeverReads,
    NeverAnswers,
    NeverEnds,
    FloodsHeaders,
    FloodsBody,
}

/// Serves one connection, and returns when the bridge has closed it. `answered` ends when the call has.
async fn serve(stream: &mut TcpStream, manner: Manner, answered: oneshot::Receiver<()>) {
    let chunk: &[u8] = match manner {
        Manner::NeverReads => {
            // The test drops the sender.
            let _ = answered.await;
            return drain(stream).await;
        }
        Manner::NeverAnswers => return drain(stream).await,
        Manner::NeverEnds => b"1\r\n \r\n",
        Manner::FloodsHeaders => b"x-flood: 0123456789012345678901234567890123456789\r\n",
        Manner::FloodsBody => &[b"1000\r\n".as_slice(), &[b' '; 0x1000], b"\r\n"].concat(),
    };
    // An answer before the request is no answer.
    let mut request = [0; 1024];
    let _ = stream.read(&mut request).await;
    let mut head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n".to_owned();
    if !matches!(manner, Manner::FloodsHeaders) {
        head += "transfer-encoding: chunked\r\n\r\n";
    }
    let mut sent = stream.write_all(head.as_bytes()).await;
    while sent.is_ok() {
        if matches!(manner, Manner::NeverEnds) {
            sleep(Duration::from_millis(20)).await;
        }
        sent = stream.write_all(chunk).await;
    }
}

async fn drain(stream: &mut TcpStream) {
    let mut bytes = vec![0; 64 * 1024];
    while stream.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
}

#[tokio::test]
async fn a_hostile_service_holds_nothing_and_others_are_served() {
    let (home, sink) = (Home::new(&[]), sink_with(json!(2)).await);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut hostile = probe(&sink);
    hostile["service"]["baseUrl"] = format!("http://{}/", listener.local_addr().unwrap()).into();
    let mut other = probe(&sink);
    other["service"]["name"] = "other".into();
    let root = home.dir.path();
    register(root, &[hostile, other]);
    let settings = format!(
        "[external]\nroot = {root:?}\nanswer_bytes = 65536\nbreaker.min_samples = 1000\n\
         [external.services.probe]\ntimeout = \"500ms\"\n"
    );
    std::fs::write(root.join("forge-bridge.toml"), settings).unwrap();
    let bridge = home.start();
    let bad = "FORGE_EXTERNAL_RUNTIME_BAD_RESPONSE";
    let failed = "FORGE_EXTERNAL_RUNTIME_FAILED";
    let late = "FORGE_EXTERNAL_RUNTIME_TIMEOUT";
    for (manner, status, code) in [
        (Manner::NeverReads, 504, late),
        (Manner::NeverAnswers, 504, late),
        (Manner::NeverEnds, 504, late),
        (Manner::FloodsHeaders, 400, failed),
        (Manner::FloodsBody, 400, bad),
    ] {
        let before = bridge.memory();
        // More than the buffers of a connection hold.
        let args = match manner {
            Manner::NeverReads => json!("x".repeat(8_000_000)),
            _ => json!({}),
        };
        let request = bridge
            .api
            .request(Method::POST, COMMAND)
            .json_body(&json!({"args": args}));
        let mut calling = JoinSet::new();
        calling.spawn(answer(request));
        let (mut stream, _) = timeout(PATIENCE, listener.accept()).await.unwrap().unwrap();
        let (ended, answered) = oneshot::channel();
        let mut serving = JoinSet::new();
        serving.spawn(async move { serve(&mut stream, manner, answered).await });
        let (found, body) = bridge
            .api
            .post("/external/other/commands/run", &json!({}))
            .await;
        assert_eq!(
            (found, &body["result"]),
            (StatusCode::OK, &json!(2)),
            "{manner:?}: {body}"
        );
        let (found, body) = calling.join_next().await.unwrap().unwrap();
        assert_eq!(
            (found.as_u16(), &body["code"]),
            (status, &json!(code)),
            "{manner:?}: {body}"
        );
        drop(ended);
        let closed = timeout(PATIENCE, serving.join_next()).await;
        assert!(closed.is_ok(), "{manner:?}: the connection is still held");
        let grown = bridge.memory().saturating_sub(before);
        assert!(grown < MEMORY_BYTES, "{manner:?}: {grown} bytes more");
        until("the place of the call", || async {
            let (_, list) = bridge.api.get("/api/v2/external").await;
            let services = list["services"].as_array().unwrap();
            services.iter().all(|one| one["running"] == 0).then_some(())
        })
        .await;
    }
}
