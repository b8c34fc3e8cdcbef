//! Signals of the local agent, without rules and with many, in turn with dispatches; and dispatches beside signals.

use std::cell::RefCell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use axum::http::{Request, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use forge_base::digest::{MacKey, hex};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_local;
use tokio::time::sleep_until;

use super::load::{self, Latency};
use super::report::{median, say};
use super::target::{Kind, Target};

const WARM_UP: Duration = Duration::from_millis(300);

#[derive(clap::Args)]
pub(crate) struct Plan {
    /// Number of measurements of each kind and concurrency.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 3.0, value_parser = load::positive)]
    seconds: f64,
    /// Signals or dispatches in flight; repeatable.
    #[arg(short, long = "concurrency", default_values_t = [1, 64])]
    concurrencies: Vec<usize>,
    /// Number of rules.
    #[arg(long, default_value_t = 100)]
    rules: usize,
    /// Signals a second beside dispatches.
    #[arg(long, default_value_t = 200.0, value_parser = load::positive)]
    rate: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Measurement {
    Dispatches(usize),
    Signals(usize),
    /// With rules.
    Judged(usize),
    /// Dispatches, one in flight, while signals arrive at a rate.
    Beside,
}

struct Sample {
    measurement: Measurement,
    per_second: f64,
    latency: Latency,
    cpu_us: f64,
}

pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    let folder = folder.canonicalize()?;
    let mut samples = Vec::new();
    for round in 0..plan.rounds {
        let each = plan.concurrencies.iter().flat_map(|&count| {
            [
                Measurement::Dispatches(count),
                Measurement::Signals(count),
                Measurement::Judged(count),
            ]
        });
        let mut order: Vec<_> = each.chain([Measurement::Beside]).collect();
        // Reverse the order in every second round, so that no kind always follows the same one.
        if round % 2 == 1 {
            order.reverse();
        }
        for measurement in order {
            let sample = plan.sample(measurement, here, bridge, &folder)?;
            say(&format!(
                "{measurement:?}: {:.0}/s, {:.0} / {:.0} µs, cpu {:.1} µs",
                sample.per_second, sample.latency.p50_us, sample.latency.p99_us, sample.cpu_us
            ));
            samples.push(sample);
        }
    }
    say(&format!("\n{}", plan.table(&samples)));
    Ok(())
}

impl Plan {
    fn sample(
        &self,
        measurement: Measurement,
        here: &Path,
        bridge: &Path,
        folder: &Path,
    ) -> anyhow::Result<Sample> {
        let duration = Duration::from_secs_f64(self.seconds);
        let rules = match measurement {
            Measurement::Judged(_) => self.rules,
            _ => 0,
        };
        let settings = Settings::write(rules, folder)?;
        let variables = settings.variables()?;
        let target = Target::start_with(Kind::Bridge, here, bridge, folder, &variables)?;
        let dispatches = |concurrency| load::Plan {
            concurrency,
            duration,
        };
        let (per_second, latency, cpu_us) = match measurement {
            Measurement::Dispatches(count) => {
                let measured = load::run(&dispatches(count), &[&target])?;
                (measured.per_second, measured.ack, measured.cpu_us)
            }
            Measurement::Beside => {
                let measured = load::local(async {
                    let sending = spawn_local(send_at(settings.agent, self.rate));
                    let measured = load::measure(&dispatches(1), &[&target]).await?;
                    ensure!(!sending.is_finished(), "no signal is sent any more");
                    sending.abort();
                    Ok(measured)
                })?;
                (measured.per_second, measured.ack, measured.cpu_us)
            }
            Measurement::Signals(count) | Measurement::Judged(count) => load::local(async {
                send(settings.agent, count, WARM_UP).await?;
                let (cpu, begun) = (target.used()?.cpu, Instant::now());
                let times = send(settings.agent, count, duration).await?;
                let took = begun.elapsed().as_secs_f64();
                let cpu = (target.used()?.cpu - cpu).as_secs_f64();
                let number = times.len() as f64;
                let latency = load::latency(times.into_iter());
                Ok((number / took, latency, cpu * 1e6 / number))
            })?,
        };
        Ok(Sample {
            measurement,
            per_second,
            latency,
            cpu_us,
        })
    }

    fn table(&self, samples: &[Sample]) -> String {
        type Figure = fn(&Sample) -> f64;
        let figures: [(&str, Figure); 4] = [
            ("a second", |s| s.per_second),
            ("answer, p50 µs", |s| s.latency.p50_us),
            ("answer, p99 µs", |s| s.latency.p99_us),
            ("processor time of one, µs", |s| s.cpu_us),
        ];
        let of = |measurement, figure: Figure| {
            let wanted = samples.iter().filter(|s| s.measurement == measurement);
            median(wanted.map(figure))
        };
        let mut text = format!(
            "| in flight | figure (median) | dispatches | signals | with {} rules | to dispatches | to no rules |\n\
             |---|---|---|---|---|---|---|\n",
            self.rules
        );
        for &count in &self.concurrencies {
            for (name, figure) in figures {
                let dispatches = of(Measurement::Dispatches(count), figure);
                let signals = of(Measurement::Signals(count), figure);
                let judged = of(Measurement::Judged(count), figure);
                text += &format!(
                    "| {count} | {name} | {dispatches:.0} | {signals:.0} | {judged:.0} | {:.2} | {:.2} |\n",
                    judged / dispatches,
                    judged / signals,
                );
            }
        }
        text += &format!(
            "\n| dispatches, one in flight | alone | beside {} signals a second | ratio |\n|---|---|---|---|\n",
            self.rate
        );
        for (name, figure) in figures {
            let alone = of(Measurement::Dispatches(1), figure);
            let beside = of(Measurement::Beside, figure);
            text += &format!(
                "| {name} | {alone:.0} | {beside:.0} | {:.2} |\n",
                beside / alone
            );
        }
        text
    }
}

/// Settings of one bridge, in a folder of their own.
struct Settings {
    agent: SocketAddr,
    folder: TempDir,
}

impl Settings {
    fn write(rules: usize, folder: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("bench-signals-")
            .tempdir_in(folder)?;
        let scopes = ["org", "user", "project", "session"];
        let windows = ["1h", "1d", "7d", "month", "session", "all-time"];
        let rules = (0..rules).map(|number| {
            json!({
                "id": number.to_string(), "scope": scopes[number % 4], "window": windows[number % 6], "action": "block",
                "condition": {"cost_usd": {"gte": 1_000_000}, "tokens": {"gte": number}},
            })
        });
        let file = json!({"version": 1, "rules": rules.collect::<Vec<_>>()});
        let path = folder.path().join("rules.json");
        fs::write(&path, file.to_string())?;
        let settings = format!("[signals]\nrules = {path:?}\n");
        fs::write(folder.path().join("settings.toml"), settings)?;
        // A free port; no other process here allocates ports meanwhile.
        let agent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        Ok(Self { agent, folder })
    }

    fn variables(&self) -> anyhow::Result<[(&'static str, String); 2]> {
        let file = self.folder.path().join("settings.toml");
        let file = file.into_os_string().into_string();
        let file = file.ok().context("the folder's path is not UTF-8")?;
        Ok([
            ("BRIDGE_CONFIG", file),
            ("BRIDGE_SIGNALS_LISTEN", self.agent.to_string()),
        ])
    }
}

/// Tool with a session and a connection.
struct Tool {
    connection: SendRequest<Full<Bytes>>,
    agent: SocketAddr,
    session: String,
    key: MacKey,
    sent: u64,
}

impl Tool {
    async fn start(agent: SocketAddr, number: usize) -> anyhow::Result<Self> {
        let mut connection = load::connect(&agent.to_string()).await?;
        let start = json!({"adapter": "bench", "user_id": format!("user {}", number % 8)});
        let request = post(agent, "/session/start").body(Full::new(start.to_string().into()))?;
        let started = answer(&mut connection, request).await?;
        let text = |name: &str| started[name].as_str().context("no session");
        let key = BASE64_STANDARD.decode(text("session_key")?)?;
        Ok(Self {
            connection,
            agent,
            session: text("session_id")?.to_owned(),
            key: MacKey::new(&key),
            sent: 0,
        })
    }

    async fn emit(&mut self) -> anyhow::Result<()> {
        self.sent += 1;
        let record = json!({
            "adapter": "bench", "ts": "2026-01-01T00:00:00Z", "model": "claude-opus-4-5", "tokens_in": 1000,
            "tokens_out": 50, "cost_usd": 0.01, "latency_ms": 500, "session_id": self.session, "project_id": "web",
            "call_id": self.sent.to_string(),
        });
        let body = record.to_string();
        let signature = hex(&self.key.mac([body.as_bytes()]));
        let request = post(self.agent, "/emit")
            .header("x-forg-signature", format!("sha256={signature}"))
            .body(Full::new(body.into()))?;
        let answer = answer(&mut self.connection, request).await?;
        ensure!(answer["blocked"] == false, "{answer}");
        Ok(())
    }
}

fn post(agent: SocketAddr, path: &str) -> axum::http::request::Builder {
    Request::post(path)
        .header(header::HOST, agent.to_string())
        .header(header::CONTENT_TYPE, "application/json")
}

async fn answer(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Value> {
    connection.ready().await?;
    let response = connection.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    ensure!(
        status == 200,
        "{status}: {}",
        String::from_utf8_lossy(&body)
    );
    Ok(serde_json::from_slice(&body)?)
}

/// Sends signals of so many tools for this long; returns the times of all.
async fn send(
    agent: SocketAddr,
    tools: usize,
    duration: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let times = Rc::new(RefCell::new(Vec::new()));
    let mut workers = Vec::new();
    for number in 0..tools {
        let mut tool = Tool::start(agent, number).await?;
        let times = Rc::clone(&times);
        workers.push(spawn_local(async move {
            let end = Instant::now() + duration;
            while Instant::now() < end {
                let begun = Instant::now();
                tool.emit().await?;
                times.borrow_mut().push(begun.elapsed());
            }
            anyhow::Ok(())
        }));
    }
    for worker in workers {
        worker.await??;
    }
    Ok(times.take())
}

/// Sends signals at a rate until it is dropped.
async fn send_at(agent: SocketAddr, rate: f64) -> anyhow::Result<()> {
    let mut tool = Tool::start(agent, 0).await?;
    let begun = tokio::time::Instant::now();
    for number in 1_u32.. {
        sleep_until(begun + Duration::from_secs_f64(f64::from(number) / rate)).await;
        tool.emit().await?;
    }
    Ok(())
}
