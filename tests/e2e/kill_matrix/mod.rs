//! The real program is killed at each named point, in the middle of work of each recovery policy, and
//! started again; what it owes is then looked at from outside. `FORGE_KILL_ROUNDS` repeats it, each
//! round at a later passing of the points, as far as there is one; `FORGE_KILL_POINT` chooses points.

mod evidence;
mod load;

use std::collections::{BTreeMap, VecDeque};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::ExitStatus;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use forge_bridge::crash::{POINTS, VARIABLE};
use reqwest::Method;
use rustix::process::Signal;
use tokio::time::timeout;

use super::harness::process::{Home, Process};
use evidence::Tally;
use load::{Load, POLICIES, Receiver};

/// Bridges that are tortured at the same time; they wait more than they work.
const LANES: usize = 6;
/// What a load that nobody interrupts may take.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn whatever_it_was_doing_when_it_was_killed_it_keeps_its_promises() {
    let rounds = std::env::var("FORGE_KILL_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let only = std::env::var("FORGE_KILL_POINT").unwrap_or_default();
    let chosen = POINTS.iter().filter(|point| point.starts_with(&only));
    let cells: VecDeque<(u64, &str)> = (0..rounds)
        .flat_map(|round| chosen.clone().map(move |point| (round, *point)))
        .collect();
    let (begun, count) = (Instant::now(), cells.len());
    let cells = Mutex::new(cells);
    let kills = AtomicU64::new(0);
    let (tallies, broken) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..LANES.min(count) {
            scope.spawn(|| {
                loop {
                    let Some((round, point)) = cells.lock().unwrap().pop_front() else {
                        return;
                    };
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    let passing = passing(point, round);
                    let (died, tally, mut found) = runtime.block_on(cell(point, passing));
                    if !died && round == 0 {
                        found.push("the point was not reached".to_owned());
                    }
                    kills.fetch_add(u64::from(died), Ordering::Relaxed);
                    tallies.lock().unwrap().push(tally);
                    let named = found
                        .iter()
                        .map(|what| format!("{point}:{passing}: {what}"));
                    broken.lock().unwrap().extend(named);
                }
            });
        }
    });
    let total: Tally = tallies.into_inner().unwrap().into_iter().sum();
    println!(
        "{} points, {} policies, {rounds} rounds, {} kills in {:.0} s: {total}",
        count as u64 / rounds,
        POLICIES.len(),
        kills.into_inner(),
        begun.elapsed().as_secs_f64(),
    );
    let broken = broken.into_inner().unwrap();
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

/// Which passing of a point is the last. Some places are passed once in the life of a process; at others
/// much is under way only after a while.
fn passing(point: &str, round: u64) -> u64 {
    let (first, step) = match point.split('.').next().unwrap_or_default() {
        "key" | "reap" | "adapter" | "stop" | "sweep" | "replay" | "reseal" => (1, 0),
        "recover" | "requeue" | "cancel" | "promote" | "tool" | "output" => (1, round % 3),
        "store" => match point {
            "store.opened" | "store.booted" => (1, 0),
            "store.checkpoint.before" | "store.checkpoint.after" => (1, 0),
            _ => (15, 7 * (round % 20)),
        },
        _ => (6, 5 * (round % 6)),
    };
    first + step
}

/// One bridge, killed at one point, if it comes there; what is broken then.
async fn cell(point: &str, passing: u64) -> (bool, Tally, Vec<String>) {
    let receiver = Receiver::start().await;
    let mut home = Home::new(&[("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "6")]);
    load::prepare(&mut home, point);
    let load = Load::new(&home, &receiver, point);
    if ["recover", "requeue", "reap"].contains(&point.split('.').next().unwrap()) {
        // There has to be something to recover.
        let bridge = home.start();
        until_some_run(&load, &bridge).await;
        bridge.kill();
    }
    if point.starts_with("reseal.") {
        // There has to be something under an older key.
        home.start().kill();
        let rotated = home.command().args(["secrets", "rotate"]).status();
        assert!(rotated.unwrap().success());
    }
    let order = format!("{point}:{passing}");
    home.variables.insert(VARIABLE.to_owned(), order);
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
    load.repeat(&bridge.api).await;
    evidence::until_quiet(&bridge.api).await;
    let (tally, found) = evidence::examine(&bridge.api, &load, &receiver).await;
    broken.extend(found);
    if !broken.is_empty() {
        let log = home.log();
        let lines: Vec<_> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(30)..];
        broken.push(format!("its log ends:\n  {}", tail.join("\n  ")));
    }
    (died, tally, broken)
}

/// What became of a bridge with a point to die at.
enum Ended {
    /// Before it listened; its log.
    Early(String),
    As(ExitStatus),
    Never(Process),
}

/// Works until it dies.
async fn torture(home: &Home, load: &Load, point: &str) -> Ended {
    let mut bridge = match home.launch() {
        Ok(bridge) => bridge,
        Err(log) => return Ended::Early(log),
    };
    let api = bridge.api.clone();
    let reload = async {
        if [
            "adapter.swap.before",
            "adapter.swap.after",
            "adapter.drained",
        ]
        .contains(&point)
        {
            load.in_the_middle(&api).await;
            let path = "/api/v2/adapters/echo/reload";
            // It may not live to answer.
            let _ = api.request(Method::POST, path).send().await;
        }
    };
    let work = async {
        tokio::join!(load.run(&api), reload);
        evidence::until_quiet(&api).await;
    };
    let ended = if point.starts_with("stop") {
        tokio::select! {
            () = work => {}
            () = load.in_the_middle(&api) => {}
        }
        bridge.terminate();
        timeout(PATIENCE, end_of(&mut bridge)).await.ok()
    } else {
        tokio::select! {
            // What comes by itself, a checkpoint for example, comes soon after the work.
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
            for rest in text.split("crash::point(\"").skip(1) {
                let name = rest.split('"').next().unwrap();
                *found.entry(name.to_owned()).or_default() += 1;
            }
        }
    }
    let mut found = BTreeMap::new();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    collect(&sources, &mut found);
    let listed = POINTS.iter().map(|point| ((*point).to_owned(), 1));
    assert_eq!(found, listed.collect::<BTreeMap<_, _>>());
}
