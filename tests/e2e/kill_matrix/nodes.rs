//! Three bridges on one database, of which one is killed at a fail point and the others take over what it ran. All
//! points that dispatches pass are chosen by more rounds than one; the first has those at which nodes meet.

use std::time::Duration;

use forge_base::failpoint::{POINTS, VARIABLE};
use forge_test_postgres::cluster;
use tokio::time::timeout;

use super::super::harness::process::{Home, Process};
use super::super::harness::{Api, store, until};
use super::evidence::{self, Tally};
use super::load::{self, Load, Place, Receiver};
use super::{Cell, PATIENCE, order, passing, play_all};

/// Cells at the same time, with three bridges each.
const LANES: usize = 3;
const LEASE: &str = "3s";
const MEETING: [&str; 6] = [
    "database.",
    "lease.renew.",
    "claim.",
    "finish.",
    "recover.",
    "delivery.settle.",
];
const PASSED: [&str; 6] = [
    "accept.",
    "execute.",
    "promote.",
    "cancel.",
    "delivery.",
    "replay.",
];
/// True if a node has ended and nothing is left that ran under an ended epoch.
const IS_TAKEN_OVER: &str =
    "SELECT NOT EXISTS (SELECT FROM node WHERE id = '{}' AND until > clock_timestamp())
    AND NOT EXISTS (SELECT FROM dispatch d WHERE phase = 4 AND NOT EXISTS (
      SELECT FROM node n WHERE n.epoch = d.epoch AND NOT has_ended AND until > clock_timestamp()))";

const IS_QUIET: &str = "SELECT NOT EXISTS (SELECT FROM dispatch WHERE phase < 5)
    AND NOT EXISTS (SELECT FROM delivery WHERE state = 0)";

#[test]
fn whichever_node_is_killed_the_others_keep_its_promises() {
    let (rounds, only) = order();
    let cells = (0..rounds).flat_map(|round| {
        let kinds = MEETING
            .iter()
            .chain(PASSED.iter().filter(move |_| rounds > 1));
        let chosen = POINTS.iter().filter(move |point| {
            let mut kinds = kinds.clone();
            kinds.any(|kind| point.starts_with(kind))
        });
        chosen.map(move |point| Cell {
            point,
            place: Place::Bridge,
            round,
            passing: passing(point, Place::Bridge, round),
        })
    });
    let cells = cells.filter(|cell| cell.point.starts_with(&only));
    println!("{}", play_all(cells.collect(), LANES, play));
}

/// Homes of three bridges on this new database, with one key and one journal.
fn homes(url: &str, receiver: &Receiver, point: &str) -> Vec<Home> {
    let mut homes: Vec<Home> = Vec::new();
    for _ in 0..3 {
        let mut home = Home::new(&[
            ("BRIDGE_STORE", url),
            ("BRIDGE_STORE_LEASE", LEASE),
            ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "6"),
        ]);
        load::prepare(&mut home, receiver, point, Place::Bridge);
        if let Some(first) = homes.first() {
            for shared in ["BRIDGE_SECRET_KEY_FILE", "BRIDGE_ADAPTERS_ECHO_JOURNAL"] {
                home.set(shared, &first.variables[shared]);
            }
        }
        homes.push(home);
    }
    homes
}

/// Plays a cell; all clients use the first bridge. It is the one with the fail point, except at points that a node passes
/// when it takes over: then the others have it, and the first is killed in the middle.
async fn play(cell: &Cell) -> (bool, Tally, Vec<String>) {
    let point = cell.point;
    let receiver = Receiver::start().await;
    let (database, url) = store::database();
    let mut homes = homes(&url, &receiver, point);
    let load = Load::new(&homes[0], &receiver, point, Place::Bridge);
    let is_taking = point.starts_with("recover.");
    let order = format!("{point}:{}", cell.passing);
    // The tables are there before anybody is killed.
    drop(homes[1].start());
    let armed: &[usize] = if is_taking { &[1, 2] } else { &[0] };
    for number in armed {
        homes[*number].set(VARIABLE, &order);
    }
    let mut nodes: Vec<Option<Process>> = homes.iter().map(|home| home.launch().ok()).collect();
    let mut died = nodes.iter().any(Option::is_none);
    if let Some(entry) = nodes[0].take() {
        let api = entry.api.clone();
        let node = std::fs::read_to_string(homes[0].dir.path().join("data/node")).unwrap();
        let work = async {
            load.run(&api).await;
            evidence::until_quiet(&api).await;
        };
        if is_taking {
            tokio::select! {
                () = work => {}
                () = load.in_the_middle(&api) => {}
            }
            entry.kill();
        } else {
            let mut entry = entry;
            let ended = tokio::select! {
                () = async { work.await; tokio::time::sleep(Duration::from_secs(2)).await } => false,
                _ = super::end_of(&mut entry) => true,
            };
            died |= ended;
        }
        let query = IS_TAKEN_OVER.replace("{}", node.trim());
        let taken = until("the take-over", async || {
            (cluster().run(&database, &query) == "t").then_some(())
        });
        // Where those that take over are killed, too, none is left to.
        let _ = timeout(PATIENCE / 2, taken).await;
    }
    for (home, node) in homes.iter_mut().zip(&mut nodes) {
        home.variables.remove(VARIABLE);
        if let Some(running) = node
            && running.has_ended().is_some()
        {
            died = true;
            *node = None;
        }
        if node.is_none() {
            *node = Some(home.start());
        }
    }
    let [first, _, last] = nodes.as_slice() else {
        panic!("three were started");
    };
    let api: Api = last.as_ref().unwrap().api.clone();
    // Its clients name folders that the others have not.
    load.repeat(&first.as_ref().unwrap().api).await;
    // The counts of bridges that share a store can be 2 s old.
    until("the last callback", async || {
        (cluster().run(&database, IS_QUIET) == "t").then_some(())
    })
    .await;
    let (tally, mut broken) = evidence::examine(&api, &load, &receiver).await;
    if !broken.is_empty() {
        for home in &homes {
            let log = home.log();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(30)..];
            broken.push(format!("the log of a node ends:\n  {}", tail.join("\n  ")));
        }
    }
    drop(nodes);
    cluster().run(
        "postgres",
        &format!("DROP DATABASE {database} WITH (FORCE)"),
    );
    (died, tally, broken)
}
