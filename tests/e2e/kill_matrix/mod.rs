//! Kill matrix: the real program is killed at each fail point, during work of each recovery policy, and restarted;
//! its promises are then checked from outside. `FORGE_KILL_ROUNDS` sets the number of rounds: each round kills at a
//! later passing of the point, as far as there is one, and every second round runs the adapter in a child process.
//! `FORGE_KILL_POINT` selects points.

mod evidence;
mod import;
mod load;
mod nodes;
mod signals;

use std::collections::{BTreeMap, VecDeque};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forge_base::failpoint::{POINTS, VARIABLE};
use reqwest::Method;
use rustix::process::Signal;
use serde_json::Value;
use tokio::time::timeout;

use super::harness::process::{Home, Process};
use super::harness::{Api, store};
use evidence::Tally;
use load::{Load, POLICIES, Place, Receiver};

/// Bridges under test at the same time; they wait more than they work.
const LANES: usize = 6;
/// Maximum duration of a load without interruption.
const PATIENCE: Duration = Duration::from_secs(30);

/// Number of rounds, and the beginning of the names of the points, both from the environment.
fn order() -> (u64, String) {
    let rounds = std::env::var("FORGE_KILL_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    (
        rounds,
        std::env::var("FORGE_KILL_POINT").unwrap_or_default(),
    )
}

#[test]
fn whatever_it_was_doing_when_it_was_killed_it_keeps_its_promises() {
    let (rounds, only) = order();
    // No load of dispatches passes the points of imports, signals, runs and copies of a store.
    let is_of_others = |point: &str| {
        import::is_of_import(point)
            || signals::is_of_signals(point)
            || ["run.", "transfer."]
                .iter()
                .any(|kind| point.starts_with(kind))
    };
    let is_passed = |point: &&str| {
        !is_of_others(point) && !is_of_other_store(point) && point.starts_with(&only)
    };
    let chosen = POINTS.iter().copied().filter(is_passed);
    let cells = (0..rounds)
        .flat_map(|round| chosen.clone().flat_map(move |point| Cell::of(point, round)))
        .collect();
    println!("{}", play_all(cells, LANES, async |cell| cell.play().await));
}

/// Plays the cells in this number of lanes, and returns the counts; fails if a promise is broken or a point of the first
/// round is not reached.
fn play_all(
    cells: VecDeque<Cell>,
    lanes: usize,
    play: impl AsyncFn(&Cell) -> (bool, Tally, Vec<String>) + Sync,
) -> String {
    let (begun, count) = (Instant::now(), cells.len());
    let cells = Mutex::new(cells);
    let kills = AtomicU64::new(0);
    let (tallies, broken) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..lanes.min(count) {
            scope.spawn(|| {
                loop {
                    let Some(cell) = cells.lock().unwrap().pop_front() else {
                        return;
                    };
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    let (died, tally, mut found) = runtime.block_on(play(&cell));
                    if !died && cell.round == 0 {
                        found.push("the point was not reached".to_owned());
                    }
                    kills.fetch_add(u64::from(died), Ordering::Relaxed);
                    tallies.lock().unwrap().push(tally);
                    let named = found.iter().map(|what| format!("{cell}: {what}"));
                    broken.lock().unwrap().extend(named);
                }
            });
        }
    });
    let total: Tally = tallies.into_inner().unwrap().into_iter().sum();
    let summary = format!(
        "{count} cells, {} policies, {} kills in {:.0} s: {total}",
        POLICIES.len(),
        kills.into_inner(),
        begun.elapsed().as_secs_f64(),
    );
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "{summary}\n{}\n", broken.join("\n"));
    summary
}

/// True for the points of the store that the tests are not on.
fn is_of_other_store(point: &str) -> bool {
    let others: &[&str] = match store::is_database() {
        true => &["store."],
        false => &["database.", "lease."],
    };
    others.iter().any(|kind| point.starts_with(kind))
}

/// One bridge to be killed at one point.
struct Cell {
    point: &'static str,
    place: Place,
    round: u64,
    /// Number of the passing of the point at which the bridge is killed; 1 is the first.
    passing: u64,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} ({:?})", self.point, self.passing, self.place)
    }
}

/// Passing at which to kill. Some points are passed once per process; at others, work accumulates first.
fn passing(point: &str, place: Place, round: u64) -> u64 {
    let (first, step) = match point.split('.').next().unwrap_or_default() {
        // The first child process only probes the library.
        "child" if point != "child.ended" && point != "child.told" => {
            let step = match point {
                "child.end.before" | "child.end.after" => 0,
                _ => round % 4,
            };
            (1 + u64::from(place == Place::Child), step)
        }
        "key" | "reap" | "adapter" | "stop" | "sweep" | "replay" | "reseal" | "copy" | "copies"
        | "probe" | "pause" | "resume" | "approval" => (1, 0),
        "recover" | "requeue" | "cancel" | "promote" | "tool" | "output" | "child" | "restart"
        | "claim" => (1, round % 3),
        "lease" if point.starts_with("lease.end") => (1, 0),
        "lease" => (2, round % 3),
        "store" | "database" => match point {
            "store.opened" | "store.booted" => (1, 0),
            "store.checkpoint.before" | "store.checkpoint.after" => (1, 0),
            _ => (15, 7 * (round % 20)),
        },
        _ => (6, 5 * (round % 6)),
    };
    first + step
}

impl Cell {
    /// Cells of one point; one for each kind of adapter process if the point concerns these.
    fn of(point: &'static str, round: u64) -> Vec<Self> {
        let hosted = point.starts_with("child.") || point.starts_with("restart.");
        let places = match (hosted, round % 2) {
            (true, _) => vec![Place::Child, Place::Program],
            (false, 0) => vec![Place::Bridge],
            (false, _) => vec![Place::Child],
        };
        let cell = |place| Self {
            point,
            place,
            round,
            passing: passing(point, place, round),
        };
        places.into_iter().map(cell).collect()
    }

    /// Runs the cell; returns true if the bridge died at the point, the counts, and the broken promises.
    async fn play(&self) -> (bool, Tally, Vec<String>) {
        let Self { point, place, .. } = *self;
        let receiver = Receiver::start().await;
        let mut home = Home::new(&[("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "6")]);
        load::prepare(&mut home, &receiver, point, place);
        let load = Load::new(&home, &receiver, point, place);
        if ["recover", "requeue", "reap"].contains(&point.split('.').next().unwrap()) {
            // Leaves work to recover.
            let bridge = home.start();
            until_some_run(&load, &bridge).await;
            bridge.kill();
        }
        if point.starts_with("reseal.") {
            // Leaves secrets encrypted with an older key.
            home.start().kill();
            let rotated = home.command().args(["secrets", "rotate"]).status();
            assert!(rotated.unwrap().success());
        }
        home.set(VARIABLE, &format!("{point}:{}", self.passing));
        let ended = torture(&home, &load, point).await;
        home.variables.remove(VARIABLE);
        let mut broken = Vec::new();
        let died = match ended {
            Ended::Early(log) if log.contains("error: ") => {
                broken.push(format!("it did not start: {log}"));
                true
            }
            Ended::Early(_) => true,
            Ended::As(status) => {
                if status.signal() != Some(Signal::KILL.as_raw()) {
                    broken.push(format!("it ended otherwise: {status}"));
                }
                true
            }
            Ended::Never(bridge) => {
                bridge.kill();
                false
            }
        };
        let bridge = home.start();
        if died && (point.starts_with("pause.") || point.starts_with("resume.")) {
            broken.extend(take_back_the_pause(&bridge.api, point).await);
        }
        load.repeat(&bridge.api).await;
        evidence::until_quiet(&bridge.api).await;
        let (tally, found) = evidence::examine(&bridge.api, &load, &receiver).await;
        broken.extend(found);
        broken.extend(half_done(&home));
        if !broken.is_empty() {
            let log = home.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            broken.push(format!("its log ends:\n  {}", tail.join("\n  ")));
        }
        (died, tally, broken)
    }
}

/// Resumes the adapter; returns an error if the recorded pause does not match the point of the kill.
async fn take_back_the_pause(api: &Api, point: &str) -> Option<String> {
    let wanted = ["pause.after", "resume.before"].contains(&point);
    let (_, shown) = api.get("/api/v2/adapters/echo").await;
    api.post("/api/v2/adapters/echo/resume", &Value::Null).await;
    // The row for the other bridges is committed before the mark of this one.
    let is_either = store::is_database() && point.ends_with(".before");
    let is_wrong = shown["pausedAt"].is_string() != wanted && !is_either;
    is_wrong.then(|| format!("paused is not {wanted}: {shown}"))
}

/// Returns an error if incomplete copies or notes are left, which the next start has to remove.
fn half_done(home: &Home) -> Option<String> {
    let copies = home.dir.path().join("data/state/adapters/echo");
    let files = std::fs::read_dir(copies).ok()?.flatten();
    let names: Vec<_> = files.map(|file| file.file_name()).collect();
    let whole = |name: &OsString| {
        let name = name.to_string_lossy();
        name.ends_with(".json") || name.ends_with(std::env::consts::DLL_EXTENSION)
    };
    (!names.iter().all(whole)).then(|| format!("half a copy is left: {names:?}"))
}

/// End of a bridge with a point to be killed at.
enum Ended {
    /// Ended before it listened; contains its log.
    Early(String),
    As(ExitStatus),
    Never(Process),
}

/// Runs the load until the bridge dies.
async fn torture(home: &Home, load: &Load, point: &str) -> Ended {
    let mut bridge = match home.launch() {
        Ok(bridge) => bridge,
        Err(log) => return Ended::Early(log),
    };
    let api = bridge.api.clone();
    let orders: &[&str] = match point {
        "adapter.swap.before"
        | "adapter.swap.after"
        | "adapter.drained"
        | "adapter.ended"
        | "child.end.before"
        | "child.end.after" => &["reload"],
        "pause.before" | "pause.after" => &["pause"],
        "resume.before" | "resume.after" => &["pause", "resume"],
        _ => &[],
    };
    let manage = async {
        if !orders.is_empty() {
            load.in_the_middle(&api).await;
        }
        for order in orders {
            let path = format!("/api/v2/adapters/echo/{order}");
            // The bridge can die before it answers.
            let _ = api.request(Method::POST, &path).send().await;
        }
    };
    let work = async {
        tokio::join!(load.run(&api), manage);
        evidence::until_quiet(&api).await;
    };
    let ended = if point.starts_with("stop") || point.starts_with("lease.end") {
        tokio::select! {
            () = work => {}
            () = load.in_the_middle(&api) => {}
        }
        bridge.terminate();
        timeout(PATIENCE, end_of(&mut bridge)).await.ok()
    } else {
        tokio::select! {
            // Background work, such as a checkpoint, follows soon after the load.
            () = async { work.await; tokio::time::sleep(Duration::from_secs(2)).await } => None,
            ended = end_of(&mut bridge) => Some(ended),
        }
    };
    match ended {
        Some(status) => Ended::As(status),
        None => Ended::Never(bridge),
    }
}

async fn until_some_run(load: &Load, bridge: &Process) {
    tokio::select! {
        () = async { load.run(&bridge.api).await; std::future::pending().await } => {}
        () = load.in_the_middle(&bridge.api) => {}
    }
}

async fn end_of(bridge: &mut Process) -> ExitStatus {
    loop {
        if let Some(status) = bridge.has_ended() {
            return status;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn the_list_of_points_is_what_the_sources_have() {
    fn collect(folder: &Path, found: &mut BTreeMap<String, usize>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for rest in text.split("failpoint::point(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                *found.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    let mut found = BTreeMap::new();
    let bridge = Path::new(env!("CARGO_MANIFEST_DIR"));
    for folder in ["src", "crates"] {
        collect(&bridge.join(folder), &mut found);
    }
    let listed = POINTS.iter().map(|point| ((*point).to_owned(), 1));
    assert_eq!(found, listed.collect::<BTreeMap<_, _>>());
}
