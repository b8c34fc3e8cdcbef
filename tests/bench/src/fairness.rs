//! Fairness: cost of receivers that are down to the others. Sends dispatches for many receivers at a fixed
//! rate to two bridges at the same time, one with receivers down and one without, so that other load on the
//! machine affects both. All on loopback. Times are those of working receivers, from the planned send time,
//! so that waiting to send counts as well.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::convert::Infallible;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use axum::http::{Request, Response, header};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::task::{LocalSet, spawn_local};

use super::load;
use super::report::median;
use super::target::{Kind, Target};

/// Wait for callbacks after the last dispatch.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Args)]
pub(crate) struct Plan {
    /// Number of measurements with receivers down and without.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Duration of each measurement, in seconds.
    #[arg(long, default_value_t = 10.0, value_parser = load::positive)]
    seconds: f64,
    /// Warm-up before each measurement, in seconds.
    #[arg(long, default_value_t = 3.0)]
    warm_up: f64,
    /// Dispatches per second.
    #[arg(long, default_value_t = 200.0, value_parser = load::positive)]
    rate: f64,
    #[arg(long, default_value_t = 1000)]
    destinations: usize,
    /// Receivers that are down.
    #[arg(long, default_value_t = 1)]
    down: usize,
    /// Every Nth dispatch goes to a receiver that is down, round-robin; the others share the rest.
    #[arg(long, default_value_t = 10)]
    every: usize,
    /// Failure mode of the receivers that are down.
    #[arg(long, value_enum, default_value_t = Manner::Hang)]
    manner: Manner,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Manner {
    /// Accepts the request and never answers.
    Hang,
    /// Refuses the connection.
    Refuse,
    /// Answers 503.
    Fail,
}

/// One of the two bridges with its receivers.
struct Side {
    target: Target,
    down: Option<Manner>,
    urls: Vec<String>,
    board: Rc<Board>,
}

struct Sample {
    p50_us: f64,
    p99_us: f64,
    count: usize,
}

#[derive(Default)]
struct Board {
    /// Planned send time, by task.
    waiting: RefCell<HashMap<String, Instant>>,
    times: RefCell<Vec<Duration>>,
    refused: Cell<usize>,
}

type Http = Client<HttpConnector, Full<Bytes>>;

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
pub(crate) fn run(plan: &Plan, here: &Path, bridge: &Path, folder: &Path) -> anyhow::Result<()> {
    ensure!(
        (1..plan.destinations).contains(&plan.down),
        "--down must be from 1 to --destinations less 1"
    );
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..plan.rounds {
        // Reverse the order in every second round, so that neither bridge always starts first.
        let mut order = [None, Some(plan.manner)];
        if round % 2 == 1 {
            order.reverse();
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let samples = LocalSet::new().block_on(&runtime, async {
            let mut sides = Vec::new();
            for down in order {
                let target = Target::start(Kind::Bridge, here, bridge, folder)?;
                sides.push(Side::new(plan, target, down).await?);
            }
            measure(plan, &sides).await
        })?;
        for (down, sample) in order.into_iter().zip(samples) {
            let name = down.map_or("all up".to_owned(), |manner| {
                format!("{} down ({manner:?})", plan.down)
            });
            println!(
                "{name:18}  p50 {:7.0} µs  p99 {:7.0} µs  of {} callbacks to the others",
                sample.p50_us, sample.p99_us, sample.count,
            );
            match down {
                None => without.push(sample),
                Some(_) => with.push(sample),
            }
        }
    }
    report(plan, &without, &with)
}

#[expect(clippy::print_stdout, reason = "its output is what it is for")]
fn report(plan: &Plan, without: &[Sample], with: &[Sample]) -> anyhow::Result<()> {
    println!(
        "\n| figure (median of {}) | all up | {} down | ratio of the medians | median of the ratios | limit |",
        plan.rounds, plan.down
    );
    println!("|---|---|---|---|---|---|");
    type Figure = fn(&Sample) -> f64;
    let figures: [(&str, Figure, f64); 2] =
        [("p50", |s| s.p50_us, 1.15), ("p99", |s| s.p99_us, 1.5)];
    let mut fair = true;
    for (name, figure, limit) in figures {
        let [up, down] = [without, with].map(|samples| median(samples.iter().map(figure)));
        let pairs = without.iter().zip(with);
        let each = median(pairs.map(|(without, with)| figure(with) / figure(without)));
        let ratio = down / up;
        fair &= ratio <= limit;
        println!("| {name} µs | {up:.0} | {down:.0} | {ratio:.3} | {each:.3} | {limit} |");
    }
    ensure!(
        fair,
        "the cost of the receivers that are down exceeds a limit"
    );
    Ok(())
}

impl Side {
    async fn new(plan: &Plan, target: Target, down: Option<Manner>) -> anyhow::Result<Self> {
        let board = Rc::new(Board::default());
        let mut urls = Vec::with_capacity(plan.destinations);
        for number in 0..plan.destinations {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            urls.push(format!("http://{}/callback", listener.local_addr()?));
            let down = down.filter(|_| number < plan.down);
            match down {
                Some(Manner::Refuse) => drop(listener),
                down => drop(spawn_local(receive(listener, Rc::clone(&board), down))),
            }
        }
        Ok(Self {
            target,
            down,
            urls,
            board,
        })
    }

    /// Sends without waiting for the answer, so the rate stays that of the plan.
    fn send(
        &self,
        client: &Http,
        id: String,
        to: usize,
        counted_from: Option<Instant>,
    ) -> anyhow::Result<()> {
        let body = format!(
            r#"{{"taskId":"{id}","agentId":"bench","message":"fair","model":"ok","provider":"echo","callbackUrl":"{}"}}"#,
            self.urls[to]
        );
        let request = Request::post(&self.target.url)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))?;
        if let Some(at) = counted_from {
            self.board.waiting.borrow_mut().insert(id, at);
        }
        let (client, board) = (client.clone(), Rc::clone(&self.board));
        spawn_local(async move {
            let accepted = match client.request(request).await {
                Ok(response) => {
                    let status = response.status();
                    // Read to the end, so that the connection can be reused.
                    let _ = response.into_body().collect().await;
                    status == 202
                }
                Err(_) => false,
            };
            if !accepted {
                board.refused.set(board.refused.get() + 1);
            }
        });
        Ok(())
    }

    fn sample(&self) -> anyhow::Result<Sample> {
        let lost = self.board.waiting.borrow().len();
        ensure!(
            lost == 0,
            "{lost} callbacks to receivers that are up did not come ({:?})",
            self.down
        );
        let refused = self.board.refused.get();
        ensure!(refused == 0, "{refused} dispatches were not accepted");
        let mut times = self.board.times.borrow_mut();
        times.sort_unstable();
        let at = |part: f64| {
            let place = (times.len() as f64 * part) as usize;
            let time = times.get(place.min(times.len().saturating_sub(1)));
            time.map(|time| time.as_secs_f64() * 1e6)
        };
        Ok(Sample {
            p50_us: at(0.5).context("no callback arrived")?,
            p99_us: at(0.99).context("no callback arrived")?,
            count: times.len(),
        })
    }
}

/// Sends the same dispatches to both bridges at the same times.
async fn measure(plan: &Plan, sides: &[Side]) -> anyhow::Result<Vec<Sample>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Http = Client::builder(TokioExecutor::new()).build(connector);
    let all = (plan.rate * (plan.warm_up + plan.seconds)) as usize;
    let warm_up = (plan.rate * plan.warm_up) as usize;
    let begun = Instant::now();
    let (mut up, mut down) = (
        (plan.down..plan.destinations).cycle(),
        (0..plan.down).cycle(),
    );
    for number in 0..all {
        let at = begun + Duration::from_secs_f64(number as f64 / plan.rate);
        tokio::time::sleep_until(at.into()).await;
        let receivers = match number % plan.every {
            0 => &mut down,
            _ => &mut up,
        };
        let to = receivers.next().context("there is no receiver")?;
        let counted_from = (number >= warm_up && to >= plan.down).then_some(at);
        for side in sides {
            side.send(&client, format!("fair-{number}"), to, counted_from)?;
        }
    }
    let end = Instant::now() + PATIENCE;
    let waits = || {
        sides
            .iter()
            .any(|side| !side.board.waiting.borrow().is_empty())
    };
    while waits() && Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sides.iter().map(Side::sample).collect()
}

async fn receive(listener: TcpListener, board: Rc<Board>, down: Option<Manner>) {
    while let Ok((stream, _)) = listener.accept().await {
        // Without TCP_NODELAY, only the figures would be worse.
        let _ = stream.set_nodelay(true);
        let board = Rc::clone(&board);
        spawn_local(async move {
            let service = service_fn(|request| take(request, &board, down));
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
    down: Option<Manner>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let now = Instant::now();
    let mut response = Response::new(Full::default());
    match down {
        Some(Manner::Hang) => std::future::pending().await,
        Some(Manner::Refuse | Manner::Fail) => {
            *response.status_mut() = axum::http::StatusCode::SERVICE_UNAVAILABLE;
        }
        None => {
            if let Ok(body) = request.into_body().collect().await
                && let Ok(callback) = serde_json::from_slice::<Callback<'_>>(&body.to_bytes())
                && let Some(sent) = board.waiting.borrow_mut().remove(callback.task_id)
            {
                board
                    .times
                    .borrow_mut()
                    .push(now.saturating_duration_since(sent));
            }
        }
    }
    Ok(response)
}
