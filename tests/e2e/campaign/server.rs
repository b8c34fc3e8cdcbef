//! A server that answers with arbitrary bytes, and keeps everything that it received.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Limits of a flood, so that a bridge that reads all of it fails the test and not the machine.
const FLOOD_BYTES: usize = 256 << 20;
const SLOW_BYTES: usize = 4096;
/// Limit of a connection in which nothing moves.
const IDLE: Duration = Duration::from_secs(60);

/// Answer to one request.
#[derive(Clone)]
pub(super) enum Manner {
    /// These bytes, and the end of the connection.
    Bytes(Vec<u8>),
    /// These bytes, and the second ones again and again.
    Flood(Vec<u8>, Vec<u8>),
    /// These bytes, one after the other, slowly.
    Slow(Vec<u8>),
    /// Nothing.
    Silent,
    /// The request itself, with this status.
    Reflect(u16),
}

/// Decides about the answer by the head of the request and its number, which begins at 1.
pub(super) type Script = dyn Fn(&str, usize) -> Manner + Send + Sync;

pub(super) struct Server {
    pub(super) address: SocketAddr,
    received: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Server {
    pub(super) fn start(script: impl Fn(&str, usize) -> Manner + Send + Sync + 'static) -> Self {
        Self::over(None, script)
    }

    /// A server that speaks TLS.
    pub(super) fn over(
        tls: Option<Arc<ServerConfig>>,
        script: impl Fn(&str, usize) -> Manner + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            received: Arc::default(),
        };
        let (received, script) = (Arc::clone(&server.received), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (received, script, tls) =
                    (Arc::clone(&received), Arc::clone(&script), tls.clone());
                // The end of a connection is the client's affair.
                thread::spawn(move || serve(stream, tls, &received, &*script));
            }
        });
        server
    }

    pub(super) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// All requests so far, each with its head and its body.
    pub(super) fn received(&self) -> Vec<Vec<u8>> {
        self.received.lock().unwrap().clone()
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

fn serve(
    stream: TcpStream,
    tls: Option<Arc<ServerConfig>>,
    received: &Mutex<Vec<Vec<u8>>>,
    script: &Script,
) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let mut stream: Box<dyn Stream> = match tls {
        Some(config) => {
            let connection = ServerConnection::new(config).map_err(io::Error::other)?;
            Box::new(StreamOwned::new(connection, stream))
        }
        None => Box::new(stream),
    };
    let (head, body) = request(&mut stream)?;
    let whole = [head.as_bytes(), &body].concat();
    let number = {
        let mut received = received.lock().unwrap();
        received.push(whole.clone());
        received.len()
    };
    match script(&head, number) {
        Manner::Bytes(bytes) => stream.write_all(&bytes)?,
        Manner::Flood(begin, chunk) => {
            stream.write_all(&begin)?;
            for _ in 0..FLOOD_BYTES / chunk.len() {
                stream.write_all(&chunk)?;
            }
        }
        Manner::Slow(bytes) => {
            for byte in bytes.iter().cycle().take(SLOW_BYTES) {
                stream.write_all(&[*byte])?;
                thread::sleep(Duration::from_millis(20));
            }
        }
        Manner::Silent => while stream.read(&mut [0; 1024])? > 0 {},
        Manner::Reflect(status) => {
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n\r\n",
                whole.len()
            );
            stream.write_all(&[head.as_bytes(), &whole].concat())?;
        }
    }
    stream.flush()
}

/// Reads the head of a request, and a body with a length.
fn request(stream: &mut dyn Stream) -> io::Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    let end = loop {
        if let Some(at) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break at + 4;
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let lengths = head.lines().filter_map(|line| line.split_once(':'));
    let mut lengths = lengths.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = lengths
        .next()
        .and_then(|(_, value)| value.trim().parse().ok())
        .unwrap_or(0);
    while bytes.len() < end + length {
        match stream.read(&mut buffer)? {
            0 => break,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
    Ok((head, bytes.split_off(end)))
}

/// An answer with this status, these header lines and this body.
pub(super) fn said(status: u16, headers: &[&str], body: &str) -> Vec<u8> {
    let lines: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} X\r\n{lines}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
    .into_bytes()
}

/// Answers that are no HTTP, or have no end; true if status and head are right.
pub(super) fn odd() -> Vec<(&'static str, bool, Manner)> {
    let chunked = "HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n";
    let bytes = |text: &str| text.as_bytes().to_vec();
    let zip = [
        0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 0xed, 0xc1, 1, 1, 0, 0, 0, 0x80,
    ];
    let zipped = [
        bytes("HTTP/1.1 200 X\r\ncontent-encoding: gzip\r\ncontent-length: 18\r\n\r\n"),
        zip.to_vec(),
    ]
    .concat();
    let manners = [
        ("no answer", false, Manner::Silent),
        ("no bytes", false, Manner::Bytes(Vec::new())),
        (
            "no HTTP",
            false,
            Manner::Bytes(bytes("\0\u{1}SSH-2.0-OpenSSH\r\n")),
        ),
        (
            "half a head",
            false,
            Manner::Bytes(bytes("HTTP/1.1 200 X\r\nx: ")),
        ),
        (
            "slow head",
            false,
            Manner::Slow(bytes("HTTP/1.1 200 X\r\nx: ")),
        ),
        (
            "endless head",
            false,
            Manner::Flood(
                bytes("HTTP/1.1 200 X\r\n"),
                bytes("x-a: yyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n"),
            ),
        ),
        (
            "endless name",
            false,
            Manner::Flood(bytes("HTTP/1.1 200 X\r\n"), vec![b'x'; 65536]),
        ),
        (
            "endless interim answers",
            false,
            Manner::Flood(Vec::new(), bytes("HTTP/1.1 103 X\r\nlink: <a>\r\n\r\n")),
        ),
        (
            "switched protocol",
            false,
            Manner::Bytes(said(
                101,
                &["upgrade: websocket", "connection: upgrade"],
                "",
            )),
        ),
        ("status 99", false, Manner::Bytes(said(99, &[], ""))),
        ("status 999", false, Manner::Bytes(said(999, &[], ""))),
        (
            "two lengths",
            false,
            Manner::Bytes(bytes(
                "HTTP/1.1 200 X\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
            )),
        ),
        (
            "NUL in a header",
            false,
            Manner::Bytes(said(200, &["x: a\0b"], "")),
        ),
        (
            "endless body",
            true,
            Manner::Flood(
                bytes(chunked),
                [bytes("10000\r\n"), vec![b'x'; 65536], bytes("\r\n")].concat(),
            ),
        ),
        (
            "endless chunk name",
            true,
            Manner::Flood(bytes(&format!("{chunked}1;")), vec![b'x'; 65536]),
        ),
        (
            "large body",
            true,
            Manner::Flood(
                bytes("HTTP/1.1 200 X\r\ncontent-length: 9999999999\r\n\r\n"),
                vec![b'x'; 65536],
            ),
        ),
        ("packed", true, Manner::Bytes(zipped)),
        (
            "terminal",
            false,
            Manner::Bytes(said(200, &["x: \u{1b}[2J"], "\u{1b}]0;a\u{7}\u{202e}\u{0}")),
        ),
        (
            "terminal in the body",
            true,
            Manner::Bytes(said(200, &[], "\u{1b}]0;a\u{7}\u{202e}\u{0}")),
        ),
        (
            "answer of a store",
            true,
            Manner::Bytes(said(200, &[], "'; DROP TABLE dispatch; --")),
        ),
    ];
    manners.into()
}
