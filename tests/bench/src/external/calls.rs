//! Load: a number of callers, each calling again after its answer. Single-threaded, as the load of dispatches.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::task::spawn_local;

use crate::load::{self, Latency};
use crate::machine::{self, Host};
use crate::target::Target;

/// Duration of the warm-up, whose calls are not counted.
const WARM_UP: Duration = Duration::from_millis(300);

/// Way of one call.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// POST to this path of a server.
    Post(SocketAddr, &'static str),
    /// Process with these words as its command line, the body as its input.
    Start(Vec<String>),
}

impl Way {
    /// Starts a program under the supervisor with the arguments that the bridge gives it.
    pub(crate) fn supervised(bridge: &Path, program: &[&str]) -> anyhow::Result<Self> {
        let bridge = bridge.to_str().context("the bridge's path is not UTF-8")?;
        let watched = format!("--bridge={}:{}", std::process::id(), machine::started()?);
        let supervisor = [
            bridge,
            "exec",
            &watched,
            "--store=bench",
            "--grace-ms=2000",
            "--",
        ];
        let words = supervisor.into_iter().chain(program.iter().copied());
        Ok(Self::Start(words.map(str::to_owned).collect()))
    }
}

pub(crate) struct Load<'a> {
    pub(crate) way: Way,
    pub(crate) body: Value,
    pub(crate) concurrency: usize,
    pub(crate) duration: Duration,
    /// Processes that take part, besides this one.
    pub(crate) servers: &'a [&'a Target],
}

#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) per_second: f64,
    pub(crate) latency: Latency,
    /// CPU time of a call in all processes, this one included.
    pub(crate) cpu_us: f64,
    /// Share of the machine used by processes that take no part.
    pub(crate) others: f64,
}

pub(crate) fn run(load: &Load<'_>) -> anyhow::Result<Measured> {
    load::local(async {
        send(load, WARM_UP).await?;
        let (before, host) = (cpu(load.servers)?, Host::now()?);
        let begun = Instant::now();
        let times = send(load, load.duration).await?;
        let took = begun.elapsed().as_secs_f64();
        let (cpu, host) = (cpu(load.servers)?, Host::now()?.since(&host));
        let all = cpu - before;
        Ok(Measured {
            per_second: times.len() as f64 / took,
            cpu_us: all * 1e6 / times.len() as f64,
            latency: load::latency(times.into_iter()),
            others: ((host.busy - all) / host.all).max(0.0),
        })
    })
}

/// CPU seconds of this process, the servers and all programs that have ended, so far.
fn cpu(servers: &[&Target]) -> anyhow::Result<f64> {
    let own = machine::cpu("self")?;
    servers
        .iter()
        .try_fold(own.own + own.children, |sum, server| {
            let cpu = server.cpu()?;
            Ok(sum + cpu.own + cpu.children)
        })
}

/// Calls for this long; returns the times of all calls.
async fn send(load: &Load<'_>, duration: Duration) -> anyhow::Result<Vec<Duration>> {
    let body = Bytes::from(load.body.to_string());
    let times = Rc::new(RefCell::new(Vec::new()));
    let end = Instant::now() + duration;
    let mut workers = Vec::new();
    for _ in 0..load.concurrency {
        let mut caller = Caller::of(&load.way).await?;
        let (body, times) = (body.clone(), Rc::clone(&times));
        let args = load.body["args"].clone();
        workers.push(spawn_local(async move {
            let first: Value = serde_json::from_slice(&caller.call(&body).await?)?;
            let result = &first["result"];
            ensure!(
                *result == args || *result == 1,
                "the answer has no result: {first}"
            );
            while Instant::now() < end {
                let begun = Instant::now();
                caller.call(&body).await?;
                times.borrow_mut().push(begun.elapsed());
            }
            anyhow::Ok(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    let times = times.take();
    ensure!(!times.is_empty(), "no call was answered");
    Ok(times)
}

enum Caller {
    Connection(SendRequest<Full<Bytes>>, SocketAddr, &'static str),
    Program(Vec<String>),
}

impl Caller {
    async fn of(way: &Way) -> anyhow::Result<Self> {
        Ok(match way {
            Way::Post(server, path) => {
                Self::Connection(load::connect(&server.to_string()).await?, *server, path)
            }
            Way::Start(words) => Self::Program(words.clone()),
        })
    }

    async fn call(&mut self, body: &Bytes) -> anyhow::Result<Bytes> {
        match self {
            Caller::Connection(connection, server, path) => {
                let request = Request::post(*path)
                    .header(header::HOST, server.to_string())
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(Full::new(body.clone()))?;
                connection.ready().await?;
                let response = connection.send_request(request).await?;
                let status = response.status();
                let answer = response.into_body().collect().await?.to_bytes();
                ensure!(
                    status == 200,
                    "{status}: {}",
                    String::from_utf8_lossy(&answer)
                );
                Ok(answer)
            }
            Caller::Program(words) => start(words, body).await,
        }
    }
}

/// Runs a program as the bridge's launcher does: few variables, a process group of its own, all streams as pipes.
async fn start(words: &[String], body: &[u8]) -> anyhow::Result<Bytes> {
    let mut child = Command::new(&words[0])
        .args(&words[1..])
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("FORGE_BRIDGE_STORE", "bench")
        .env("FORGE_EXECUTION", "bench/1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()?;
    let mut stdin = child.stdin.take().context("its input is a pipe")?;
    stdin.write_all(body).await?;
    drop(stdin);
    let output = child.wait_with_output().await?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    Ok(output.stdout.into())
}
