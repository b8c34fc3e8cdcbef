//! Bridges on a PostgreSQL server, alternately with the same rows written without a bridge.

use std::fmt;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use forge_store_postgres::{Target as Server, with_database};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls};
use tokio_util::task::TaskTracker;

use super::conditions::{add_waiting, delayed, open_snapshot};
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
    /// Conditions under which one bridge is measured, too.
    pub(crate) waiting: Option<usize>,
    pub(crate) delay: Option<Duration>,
    pub(crate) has_snapshot: bool,
}

/// Parts of a measurement with an open snapshot.
const PARTS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    /// The rows alone.
    Rows,
    Bridges(usize),
    /// A bridge with dispatches that wait for an adapter that is away.
    Waiting(usize),
    /// A bridge whose server answers later.
    Delayed(Duration),
}

impl Case {
    fn bridges(self) -> usize {
        match self {
            Self::Rows => 0,
            Self::Bridges(count) => count,
            Self::Waiting(_) | Self::Delayed(_) => 1,
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rows => f.write_str("PostgreSQL alone"),
            Self::Bridges(count) => write!(f, "bridges: {count}"),
            Self::Waiting(count) => write!(f, "{count} waiting"),
            Self::Delayed(delay) => write!(f, "answers {delay:?} later"),
        }
    }
}

/// Use of the server by each dispatch.
#[derive(Clone, Copy)]
struct Cost {
    transactions: f64,
    wal_kib: f64,
}

struct Measured {
    case: Case,
    sample: Sample,
    cost: Cost,
}

/// A database of its own on the server, dropped at the end.
pub(crate) struct Database {
    server: Server,
    name: String,
    pub(crate) url: String,
    key: TempDir,
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
            key: tempfile::tempdir()?,
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
    if plan.has_snapshot {
        return snapshot(plan, [here, bridge, folder]);
    }
    let cases: Vec<Case> = [Case::Rows]
        .into_iter()
        .chain(plan.nodes.iter().map(|&count| Case::Bridges(count)))
        .chain(plan.waiting.map(Case::Waiting))
        .chain(plan.delay.map(Case::Delayed))
        .collect();
    let mut all = Vec::new();
    for round in 0..plan.rounds {
        // Reverse the order in every second round, so that none always follows the same one.
        let mut order = cases.clone();
        if round % 2 == 1 {
            order.reverse();
        }
        for &concurrency in plan.concurrencies {
            for &case in &order {
                let one = measure(plan, case, concurrency, [here, bridge, folder])?;
                say(&format!(
                    "{case}: {}  {:.3} transactions, {:.1} KiB WAL",
                    one.sample, one.cost.transactions, one.cost.wal_kib
                ));
                all.push(one);
            }
        }
    }
    say(&format!("\n{}", table(plan, &cases, &all)));
    Ok(())
}

/// Measures a bridge several times in a row while one snapshot is open.
fn snapshot(plan: &Plan<'_>, programs: [&Path; 3]) -> anyhow::Result<()> {
    for &concurrency in plan.concurrencies {
        let database = Database::create(plan.server)?;
        let targets = start(&database, Case::Bridges(1), programs)?;
        let client = database.runtime.block_on(connect(&database.url))?;
        database.runtime.block_on(open_snapshot(&client))?;
        let load = load::Plan {
            concurrency,
            duration: plan.duration,
        };
        for part in 1..=PARTS {
            let measured = load::run(&load, &targets.iter().collect::<Vec<_>>())?;
            say(&format!(
                "part {part} of a snapshot, {concurrency} in flight: {:.0} a second",
                measured.per_second
            ));
        }
    }
    Ok(())
}

fn start(
    database: &Database,
    case: Case,
    [here, bridge, folder]: [&Path; 3],
) -> anyhow::Result<Vec<Target>> {
    let url = match case {
        Case::Delayed(delay) => delayed(&database.url, delay)?,
        _ => database.url.clone(),
    };
    // All bridges of a database have one key.
    let key = database.key.path().join("key").display().to_string();
    let limit = match case {
        Case::Waiting(count) => count + 100_000,
        _ => 100_000,
    };
    let settings = [
        ("BRIDGE_STORE", url),
        ("BRIDGE_SECRET_KEY_FILE", key),
        ("BRIDGE_DISPATCH_QUEUE_LIMIT", limit.to_string()),
    ];
    let kind = kind(case);
    (0..case.bridges().max(1))
        .map(|_| Target::start_with(kind, here, bridge, folder, &settings))
        .collect()
}

fn kind(case: Case) -> Kind {
    match case {
        Case::Rows => Kind::Postgres,
        _ => Kind::Bridge,
    }
}

fn measure(
    plan: &Plan<'_>,
    case: Case,
    concurrency: usize,
    programs: [&Path; 3],
) -> anyhow::Result<Measured> {
    let database = Database::create(plan.server)?;
    let targets = start(&database, case, programs)?;
    if let Case::Waiting(count) = case {
        database.runtime.block_on(async {
            let client = connect(&database.url).await?;
            add_waiting(&client, count).await
        })?;
    }
    let load = load::Plan {
        concurrency,
        duration: plan.duration,
    };
    let before = database.numbers()?;
    let measured = load::run(&load, &targets.iter().collect::<Vec<_>>())?;
    let after = database.numbers()?;
    let [dispatches, bytes, transactions] = [0, 1, 2].map(|n| (after[n] - before[n]) as f64);
    Ok(Measured {
        case,
        sample: Sample {
            kind: kind(case),
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
fn table(plan: &Plan<'_>, cases: &[Case], all: &[Measured]) -> String {
    let (alone, others) = (Case::Rows, &cases[1..]);
    let mut text = format!("| in flight | figure (median) | {alone} |");
    for case in others {
        text += &format!(" {case} | ratio |");
    }
    text += "\n|---|---|---|";
    text += &"---|---|".repeat(others.len());
    for &concurrency in plan.concurrencies {
        for (name, figure) in FIGURES {
            let of = |case| {
                let wanted =
                    |one: &&Measured| one.case == case && one.sample.concurrency == concurrency;
                median(all.iter().filter(wanted).map(figure))
            };
            let alone = of(alone);
            text += &format!("\n| {concurrency} | {name} | {alone:.2} |");
            for &case in others {
                text += &format!(" {:.2} | {:.3} |", of(case), of(case) / alone);
            }
        }
    }
    text
}
