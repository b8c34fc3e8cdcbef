//! Bridges on a PostgreSQL server, alternately with the same rows written without a bridge.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use forge_store_postgres::{Target as Server, with_database};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};
use tokio_util::task::TaskTracker;

use super::load;
use super::report::{Sample, median, say};
use super::target::{Kind, Target};

/// Time after which the server has counted the transactions of a connection that is at rest.
const COUNTED: Duration = Duration::from_millis(1500);
const NUMBERS: &str =
    "SELECT (SELECT count(*) FROM dispatch), pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::int8,
     (SELECT xact_commit FROM pg_stat_database WHERE datname = current_database())";

/// Measurements on one server.
pub(crate) struct Plan<'a> {
    pub(crate) server: &'a str,
    /// Numbers of bridges that share a database and its load.
    pub(crate) nodes: &'a [usize],
    pub(crate) rounds: usize,
    pub(crate) duration: Duration,
    pub(crate) concurrencies: &'a [usize],
}

/// Number of bridges; 0 for the rows alone.
type Nodes = usize;

/// Use of the server by each dispatch.
#[derive(Clone, Copy)]
struct Cost {
    transactions: f64,
    wal_kib: f64,
}

struct Measured {
    nodes: Nodes,
    sample: Sample,
    cost: Cost,
}

/// A database of its own on the server, dropped at the end.
pub(crate) struct Database {
    server: Server,
    name: String,
    pub(crate) url: String,
    runtime: Runtime,
}

impl Database {
    pub(crate) fn create(url: &str) -> anyhow::Result<Self> {
        let server = Server::new(url, None)?;
        let name = format!("forge_bench_{}", std::process::id());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(server.drop_database(&name))?;
        runtime.block_on(server.create_database(&name))?;
        Ok(Self {
            url: with_database(url, &name),
            server,
            name,
            runtime,
        })
    }

    /// Numbers of dispatches, bytes of WAL and transactions so far.
    fn numbers(&self) -> anyhow::Result<[i64; 3]> {
        sleep(COUNTED);
        self.runtime.block_on(async {
            let client = connect(&self.url).await?;
            let row = client.query_one(NUMBERS, &[]).await?;
            Ok([row.get(0), row.get(1), row.get(2)])
        })
    }
}

async fn connect(url: &str) -> anyhow::Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    TaskTracker::new().spawn(connection);
    Ok(client)
}

impl Drop for Database {
    fn drop(&mut self) {
        // It can be dropped by hand.
        let _ = self.runtime.block_on(self.server.drop_database(&self.name));
    }
}

pub(crate) fn run(
    plan: &Plan<'_>,
    here: &Path,
    bridge: &Path,
    folder: &Path,
) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for round in 0..plan.rounds {
        // Reverse the order in every second round, so that none always follows the same one.
        let mut order: Vec<Nodes> = [0].into_iter().chain(plan.nodes.iter().copied()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for &concurrency in plan.concurrencies {
            for &nodes in &order {
                let one = measure(plan, nodes, concurrency, [here, bridge, folder])?;
                say(&format!(
                    "{nodes} bridges: {}  {:.3} transactions, {:.1} KiB WAL",
                    one.sample, one.cost.transactions, one.cost.wal_kib
                ));
                all.push(one);
            }
        }
    }
    say(&format!("\n{}", table(plan, &all)));
    Ok(())
}

fn measure(
    plan: &Plan<'_>,
    nodes: Nodes,
    concurrency: usize,
    [here, bridge, folder]: [&Path; 3],
) -> anyhow::Result<Measured> {
    let database = Database::create(plan.server)?;
    let key = tempfile::Builder::new().prefix("key-").tempdir_in(folder)?;
    let settings = [
        ("BRIDGE_STORE", database.url.clone()),
        (
            "BRIDGE_SECRET_KEY_FILE",
            key.path().join("key").display().to_string(),
        ),
    ];
    let kind = if nodes == 0 {
        Kind::Postgres
    } else {
        Kind::Bridge
    };
    let targets = (0..nodes.max(1))
        .map(|_| Target::start_with(kind, here, bridge, folder, &settings))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let load = load::Plan {
        concurrency,
        duration: plan.duration,
    };
    let before = database.numbers()?;
    let measured = load::run(&load, &targets.iter().collect::<Vec<_>>())?;
    let after = database.numbers()?;
    let [dispatches, bytes, transactions] = [0, 1, 2].map(|n| (after[n] - before[n]) as f64);
    Ok(Measured {
        nodes,
        sample: Sample {
            kind,
            concurrency,
            measured,
        },
        cost: Cost {
            transactions: transactions / dispatches,
            wal_kib: bytes / dispatches / 1024.0,
        },
    })
}

type Figure = fn(&Measured) -> f64;

const FIGURES: [(&str, Figure); 7] = [
    ("dispatches per second", |one| {
        one.sample.measured.per_second
    }),
    ("202, p50 µs", |one| one.sample.measured.ack.p50_us),
    ("202, p99 µs", |one| one.sample.measured.ack.p99_us),
    ("callback, p50 µs", |one| one.sample.measured.whole.p50_us),
    ("processor time of a dispatch, µs", |one| {
        one.sample.measured.cpu_us
    }),
    ("transactions of a dispatch", |one| one.cost.transactions),
    ("WAL of a dispatch, KiB", |one| one.cost.wal_kib),
];

/// Table of the medians over the rounds, and ratios to the rows alone.
fn table(plan: &Plan<'_>, all: &[Measured]) -> String {
    let mut text = "| in flight | figure (median) | PostgreSQL alone |".to_owned();
    for nodes in plan.nodes {
        text += &format!(" bridges: {nodes} | ratio |");
    }
    text += "\n|---|---|---|";
    text += &"---|---|".repeat(plan.nodes.len());
    for &concurrency in plan.concurrencies {
        for (name, figure) in FIGURES {
            let of = |nodes| {
                let wanted =
                    |one: &&Measured| one.nodes == nodes && one.sample.concurrency == concurrency;
                median(all.iter().filter(wanted).map(figure))
            };
            let alone = of(0);
            text += &format!("\n| {concurrency} | {name} | {alone:.2} |");
            for &nodes in plan.nodes {
                text += &format!(" {:.2} | {:.3} |", of(nodes), of(nodes) / alone);
            }
        }
    }
    text
}
