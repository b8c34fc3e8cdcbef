//! Load generator: sends dispatches over a number of connections, each sending the next one after its last
//! callback, and receives the callbacks. Single-threaded, since it shares the machine with the server under
//! test.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use axum::http::{Request, Response, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

use super::machine::{self, Host};
use super::target::{Target, Used};

/// Number of dispatches for warm-up, not counted.
const WARM_UP: usize = 300;
const PATIENCE: Duration = Duration::from_secs(20);
const MESSAGE_BYTES: usize = 600;
/// Number of connections when sending at a fixed rate.
const CONNECTIONS: usize = 64;

static RUNS: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Plan {
    pub(crate) concurrency: usize,
    pub(crate) duration: Duration,
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) ack: Latency,
    /// Time from sending to the callback.
    pub(crate) whole: Latency,
    /// CPU time of the server per dispatch.
    pub(crate) cpu_us: f64,
    /// Memory before and after.
    pub(crate) rss_mib: (f64, f64),
    pub(crate) lost: usize,
    /// Share of the machine used by processes other than server and client.
    pub(crate) others: f64,
}

#[derive(Debug)]
pub(crate) struct Latency {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// State shared by the connections and the callback sink.
struct Board {
    /// Of each server; the connections take them in turn.
    authorities: Vec<String>,
    callback: String,
    message: String,
    run: u64,
    next: Cell<u64>,
    waiting: RefCell<HashMap<String, oneshot::Sender<Instant>>>,
    times: RefCell<Vec<Answered>>,
    lost: Cell<usize>,
}

/// Dispatch with its callback.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(crate) sent: Instant,
    pub(crate) ack: Duration,
    /// Time from sending to the callback.
    pub(crate) whole: Duration,
}

pub(crate) fn run(plan: &Plan, targets: &[&Target]) -> anyhow::Result<Measured> {
    local(measure(plan, targets))
}

pub(crate) fn local<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, work)
}

async fn board(targets: &[&Target]) -> anyhow::Result<Rc<Board>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let authority = |target: &&Target| {
        let url: Uri = target.url.parse()?;
        anyhow::Ok(url.authority().context("no address")?.to_string())
    };
    let board = Rc::new(Board {
        authorities: targets
            .iter()
            .map(authority)
            .collect::<anyhow::Result<_>>()?,
        callback: format!("http://{}/callback", listener.local_addr()?),
        message: "lorem ipsum ".repeat(MESSAGE_BYTES / 12),
        // Makes task ids unique over all runs against one bridge.
        run: RUNS.fetch_add(1, Ordering::Relaxed),
        next: Cell::default(),
        waiting: RefCell::default(),
        times: RefCell::default(),
        lost: Cell::default(),
    });
    spawn_local(sink(listener, Rc::clone(&board)));
    Ok(board)
}

pub(crate) async fn measure(plan: &Plan, targets: &[&Target]) -> anyhow::Result<Measured> {
    let board = board(targets).await?;
    let used = || -> anyhow::Result<Used> {
        let mut each = targets.iter().map(|target| target.used());
        each.try_fold(Used::default(), |sum, one| Ok(sum + one?))
    };
    let rss_before = used()?.rss_kib;
    let warm_up = at_once(WARM_UP, Instant::now() + PATIENCE);
    send(&board, plan.concurrency, warm_up).await?;
    board.times.borrow_mut().clear();
    let (cpu, host, own) = (used()?.cpu, Host::now()?, machine::cpu("self")?.own);
    let begun = Instant::now();
    let counted = at_once(usize::MAX, begun + plan.duration);
    send(&board, plan.concurrency, counted).await?;
    let took = begun.elapsed().as_secs_f64();
    let used = used()?;
    let (host, own) = (Host::now()?.since(&host), machine::cpu("self")?.own - own);
    let cpu = (used.cpu - cpu).as_secs_f64();
    let times = board.times.borrow();
    ensure!(!times.is_empty(), "no callback arrived");
    Ok(Measured {
        per_second: times.len() as f64 / took,
        ack: latency(times.iter().map(|answered| answered.ack)),
        whole: latency(times.iter().map(|answered| answered.whole)),
        cpu_us: cpu * 1e6 / times.len() as f64,
        rss_mib: (rss_before as f64 / 1024.0, used.rss_kib as f64 / 1024.0),
        lost: board.lost.get(),
        others: ((host.busy - cpu - own) / host.all).max(0.0),
    })
}

/// Result of sending at fixed times, independent of earlier answers.
#[derive(Debug)]
pub(crate) struct Paced {
    pub(crate) answered: Vec<Answered>,
    pub(crate) lost: usize,
}

pub(crate) fn paced(target: &Target, rate: f64, duration: Duration) -> anyhow::Result<Paced> {
    local(async {
        let board = board(&[target]).await?;
        let begun = Instant::now();
        let sent = Cell::new(0_u32);
        let next = move || {
            let due = Duration::from_secs_f64(f64::from(sent.get()) / rate);
            sent.set(sent.get() + 1);
            (due < duration).then(|| begun + due)
        };
        send(&board, CONNECTIONS, next).await?;
        Ok(Paced {
            answered: board.times.take(),
            lost: board.lost.get(),
        })
    })
}

/// Parses an argument: a rate or duration from 0.001 to a million.
pub(crate) fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(number) if (0.001..=1e6).contains(&number) => Ok(number),
        _ => Err("must be a number from 0.001 to 1000000".to_owned()),
    }
}

/// Waits for the first callback of a target that was just started.
pub(crate) fn first(target: &Target) -> anyhow::Result<()> {
    local(async {
        let board = board(&[target]).await?;
        send(&board, 1, at_once(1, Instant::now() + PATIENCE)).await
    })
}

/// Schedule of up to `most` dispatches, each as soon as a connection is free, until `end`.
fn at_once(most: usize, end: Instant) -> impl Fn() -> Option<Instant> {
    let left = Cell::new(most);
    move || {
        let now = Instant::now();
        (left.get() > 0 && now < end).then(|| {
            left.set(left.get() - 1);
            now
        })
    }
}

/// Sends on each connection one dispatch after the other at the times returned by `next`, until it returns
/// `None` and all callbacks have arrived.
async fn send(
    board: &Rc<Board>,
    connections: usize,
    next: impl Fn() -> Option<Instant> + 'static,
) -> anyhow::Result<()> {
    let next = Rc::new(next);
    let mut workers = Vec::new();
    for number in 0..connections {
        let (board, next) = (Rc::clone(board), Rc::clone(&next));
        workers.push(spawn_local(async move {
            let authority = &board.authorities[number % board.authorities.len()];
            let mut connection = connect(authority).await?;
            while let Some(at) = next() {
                if at > Instant::now() {
                    tokio::time::sleep_until(at.into()).await;
                }
                one(&board, authority, &mut connection).await?;
            }
            anyhow::Ok(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

pub(crate) async fn connect(authority: &str) -> anyhow::Result<SendRequest<Full<Bytes>>> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    spawn_local(connection);
    Ok(sender)
}

async fn one(
    board: &Board,
    authority: &str,
    connection: &mut SendRequest<Full<Bytes>>,
) -> anyhow::Result<()> {
    let number = board.next.get();
    board.next.set(number + 1);
    let id = format!("bench-{}-{number}", board.run);
    let body = format!(
        r#"{{"taskId":"{id}","agentId":"bench","message":"{}","model":"ok","provider":"echo","callbackUrl":"{}","runId":"run-bench","priority":0,"timeout":600}}"#,
        board.message, board.callback,
    );
    let request = Request::post("/api/v2/dispatch")
        .header(header::HOST, authority)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
    let (called, back) = oneshot::channel();
    board.waiting.borrow_mut().insert(id, called);
    connection.ready().await?;
    let begun = Instant::now();
    let response = connection.send_request(request).await?;
    let status = response.status();
    let text = response.into_body().collect().await?.to_bytes();
    let acknowledged = begun.elapsed();
    ensure!(
        status == 202,
        "{status}: {}",
        String::from_utf8_lossy(&text)
    );
    match tokio::time::timeout(PATIENCE, back).await {
        Ok(Ok(at)) => {
            board.times.borrow_mut().push(Answered {
                sent: begun,
                ack: acknowledged,
                whole: at.saturating_duration_since(begun),
            });
        }
        Ok(Err(_)) | Err(_) => board.lost.set(board.lost.get() + 1),
    }
    Ok(())
}

async fn sink(listener: TcpListener, board: Rc<Board>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Without TCP_NODELAY, only the figures would be worse.
        let _ = stream.set_nodelay(true);
        let board = Rc::clone(&board);
        spawn_local(async move {
            let service = service_fn(|request| take(request, &board));
            // Connections end with their server.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Callback<'a> {
    task_id: &'a str,
}

async fn take(
    request: Request<Incoming>,
    board: &Board,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let at = Instant::now();
    if let Ok(body) = request.into_body().collect().await
        && let Ok(callback) = serde_json::from_slice::<Callback<'_>>(&body.to_bytes())
        && let Some(waiting) = board.waiting.borrow_mut().remove(callback.task_id)
    {
        // The sender might have timed out.
        let _ = waiting.send(at);
    }
    Ok(Response::new(Full::default()))
}

pub(crate) fn latency(times: impl Iterator<Item = Duration>) -> Latency {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    let at = |part: f64| {
        let place = (times.len() as f64 * part) as usize;
        times[place.min(times.len() - 1)].as_secs_f64() * 1e6
    };
    Latency {
        p50_us: at(0.5),
        p99_us: at(0.99),
    }
}
