//! A receiver of callbacks on a real TCP port, with scripted answers; keeps the requests it received.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Maximum wait for a request, in real time.
const PATIENCE: Duration = Duration::from_secs(60);

/// Callback receiver; stops listening on drop.
pub struct CallbackSink {
    address: SocketAddr,
    state: Arc<State>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// One received request.
#[derive(Clone, Debug)]
pub struct Received {
    /// Number of the request, starting with 1.
    pub number: usize,
    pub method: String,
    pub path: String,
    /// Headers; names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    pub at: SystemTime,
}

/// Scripted answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    manner: Manner,
}

#[derive(Clone, Copy, Debug)]
enum Manner {
    AtOnce,
    After(Duration),
    Never,
    Close,
    Cut,
}

type Rule = Box<dyn Fn(&Received) -> Answer + Send + Sync>;

struct State {
    rule: Mutex<Rule>,
    received: Mutex<Vec<Received>>,
    arrived: Condvar,
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
            manner: Manner::AtOnce,
        }
    }

    pub fn redirect(location: &str) -> Self {
        Self::status(302).header("location", location)
    }

    /// Keeps the connection open without an answer.
    pub fn hang() -> Self {
        Self {
            manner: Manner::Never,
            ..Self::status(200)
        }
    }

    /// Reads the request and closes the connection.
    pub fn close() -> Self {
        Self {
            manner: Manner::Close,
            ..Self::status(200)
        }
    }

    /// Announces more bytes than it sends, and closes the connection.
    pub fn cut(body: impl Into<Vec<u8>>) -> Self {
        Self {
            manner: Manner::Cut,
            ..Self::status(200).body(body)
        }
    }

    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Waits before it answers, on tokio's clock.
    pub fn after(mut self, wait: Duration) -> Self {
        self.manner = Manner::After(wait);
        self
    }
}

impl CallbackSink {
    /// Listens on a free port of 127.0.0.1 and answers 200.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let sink = Self {
            address: listener.local_addr().unwrap(),
            state: Arc::new(State {
                rule: Mutex::new(Box::new(|_| Answer::status(200))),
                received: Mutex::default(),
                arrived: Condvar::new(),
            }),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
        };
        let (state, tasks, stop) = (
            Arc::clone(&sink.state),
            sink.tasks.clone(),
            sink.stop.clone(),
        );
        sink.tasks.spawn(async move {
            while let Some(Ok((stream, _))) = stop.run_until_cancelled(listener.accept()).await {
                let (state, stop) = (Arc::clone(&state), stop.clone());
                tasks.spawn(async move {
                    // A broken connection is caused by the client, which the test observes.
                    let _ = stop.run_until_cancelled(serve(stream, &state)).await;
                });
            }
        });
        sink
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the answer to all further requests.
    pub fn answer(&self, answer: Answer) {
        self.answer_with(move |_| answer.clone());
    }

    /// Sets the answers by request number; the last one also answers all later requests.
    pub fn script(&self, answers: Vec<Answer>) {
        assert!(!answers.is_empty(), "a script needs an answer");
        self.answer_with(move |received| answers[received.number.min(answers.len()) - 1].clone());
    }

    pub fn answer_with(&self, rule: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        *self.state.rule.lock().unwrap() = Box::new(rule);
    }

    pub fn received(&self) -> Vec<Received> {
        self.state.requests().clone()
    }

    /// Waits until `count` requests in total have been received. Waits in real time, and prevents paused time from
    /// advancing.
    pub async fn until(&self, count: usize) -> Vec<Received> {
        let state = Arc::clone(&self.state);
        let waited = tokio::task::spawn_blocking(move || {
            let started = Instant::now();
            let received = state.requests();
            let (received, _) = state
                .arrived
                .wait_timeout_while(received, PATIENCE, |r| r.len() < count)
                .unwrap();
            assert!(
                received.len() >= count,
                "{count} requests wanted, {} came in {:?}",
                received.len(),
                started.elapsed()
            );
            received.clone()
        });
        waited.await.unwrap()
    }
}

impl Drop for CallbackSink {
    fn drop(&mut self) {
        self.stop.cancel();
        self.tasks.close();
    }
}

impl State {
    fn requests(&self) -> MutexGuard<'_, Vec<Received>> {
        self.received.lock().unwrap()
    }

    fn take(&self, mut request: Received) -> Answer {
        let mut received = self.requests();
        request.number = received.len() + 1;
        received.push(request.clone());
        drop(received);
        self.arrived.notify_all();
        let rule = self.rule.lock().unwrap();
        rule(&request)
    }
}

async fn serve(mut stream: TcpStream, state: &State) -> std::io::Result<()> {
    let mut unread = Vec::new();
    while let Some(request) = read_request(&mut stream, &mut unread).await? {
        let answer = state.take(request);
        match answer.manner {
            Manner::AtOnce | Manner::Cut => {}
            Manner::After(wait) => tokio::time::sleep(wait).await,
            Manner::Never => std::future::pending().await,
            Manner::Close => return Ok(()),
        }
        let mut text = format!("HTTP/1.1 {} Said So\r\n", answer.status);
        for (name, value) in &answer.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        let is_cut = matches!(answer.manner, Manner::Cut);
        let announced = answer.body.len() + usize::from(is_cut);
        text.push_str(&format!("content-length: {announced}\r\n\r\n"));
        stream.write_all(text.as_bytes()).await?;
        stream.write_all(&answer.body).await?;
        if is_cut {
            return Ok(());
        }
    }
    Ok(())
}

/// Reads one request with a `content-length`; `None` at the end of the connection.
async fn read_request(
    stream: &mut TcpStream,
    unread: &mut Vec<u8>,
) -> std::io::Result<Option<Received>> {
    let head_end = loop {
        if let Some(at) = unread.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
        if stream.read_buf(unread).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&unread[..head_end]).into_owned();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap_or_default().split(' ');
    let (method, path) = (
        first.next().unwrap_or_default(),
        first.next().unwrap_or_default(),
    );
    let headers: BTreeMap<String, String> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let length: usize = headers
        .get("content-length")
        .map_or(0, |length| length.parse().unwrap());
    while unread.len() < head_end + length {
        if stream.read_buf(unread).await? == 0 {
            return Ok(None);
        }
    }
    let body = unread[head_end..head_end + length].to_vec();
    unread.drain(..head_end + length);
    Ok(Some(Received {
        number: 0,
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
        body,
        at: SystemTime::now(),
    }))
}
