//! Random graphs with planted conflicts of all kinds, deaths of the bridge, a remote that drops requests, and agents that
//! are interrupted: a run whose conflicts are settled completes, and each proof holds for plain git.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::conflicts::faults;
use super::remote::{Before, serve, settings};
use super::*;
use crate::harness::process::Home;

/// A small generator whose numbers follow from its seed (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below this one.
    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Changes to a few shared places, so that tasks conflict in every way.
fn change(random: &mut Random, id: &str, is_first: bool) -> String {
    let n = random.below(4);
    match random.below(9) {
        // Only at the beginning is neither of them there.
        5 | 6 if !is_first => format!("append text-{n} {id}"),
        // Contents, and modify/delete.
        0 => format!("write text-{n} {id}"),
        1 => format!("append text-{n} {id}"),
        2 => format!("delete text-{n}"),
        // Renamed differently, or renamed and deleted.
        3 => format!(
            "delete moved-{n}\nwrite moved-{n}-{} moved {n}",
            random.below(3)
        ),
        4 => format!("delete moved-{n}"),
        // A file where another task has a folder.
        5 => format!("write place-{n} {id}"),
        6 => format!("write place-{n}/{} {id}", random.below(2)),
        // Added by both.
        7 => format!("write new-{n} {id}"),
        _ => format!("write own/{id}-{n} {id}"),
    }
}

/// False if the same agent has the file in one change and the folder in another one, which none can do.
fn fits(orders: &str, change: &str) -> bool {
    let place = |line: &str| {
        let rest = line.strip_prefix("write place-")?.as_bytes();
        Some((*rest.first()?, rest.get(1) == Some(&b'/')))
    };
    let Some((place_of, is_folder)) = place(change) else {
        return true;
    };
    let mut others = orders.lines().filter_map(place);
    others.all(|(other, is_other_folder)| other != place_of || is_other_folder == is_folder)
}

fn tasks(random: &mut Random, count: u64) -> Vec<Value> {
    let tasks = (0..count).map(|n| {
        let id = format!("t{n}");
        let mut before: Vec<String> = Vec::new();
        for m in 0..n {
            if before.len() < 3 && random.percent(18) {
                before.push(format!("t{m}"));
            }
        }
        let mut orders = format!("write own/{id} {id}\n");
        for _ in 0..=random.below(3) {
            let change = change(random, &id, before.is_empty());
            if fits(&orders, &change) {
                let _ = writeln!(orders, "{change}");
            }
        }
        if random.percent(15) {
            let _ = writeln!(orders, "fail-first 1 interrupted");
        }
        let _ = writeln!(orders, "sleep {}", random.below(400));
        let before: Vec<&str> = before.iter().map(String::as_str).collect();
        task(&id, &before, &orders)
    });
    tasks.collect()
}

/// Adds what the tasks change.
fn prepare(origin: &Origin) {
    let work = origin.root.path().join("work");
    for n in 0..4 {
        std::fs::write(work.join(format!("text-{n}")), format!("base {n}\n")).unwrap();
        std::fs::write(work.join(format!("moved-{n}")), format!("moved {n}\n")).unwrap();
    }
    origin.git(&["-C", "work", "add", "."]);
    origin.git(&["-C", "work", "commit", "--quiet", "-m", "more"]);
    origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "main"]);
}

#[tokio::test]
async fn random_plans_complete_with_proofs_that_hold() {
    let rounds = number("FORGE_RUN_ROUNDS", 1);
    let (runs, most) = (number("FORGE_RUN_PLANS", 3), number("FORGE_RUN_TASKS", 14));
    let first = number("FORGE_RUN_SEED", std::process::id().into());
    for seed in first..first + rounds {
        eprintln!("FORGE_RUN_SEED={seed}");
        round(seed, runs, most).await;
    }
}

/// Some runs at once on one bridge, which is killed twice.
async fn round(seed: u64, runs: u64, most: u64) {
    let mut random = Random(seed);
    let drops = Arc::new(AtomicU64::new(random.next()));
    let before: Arc<Before> = {
        let drops = Arc::clone(&drops);
        Arc::new(move |_, _| {
            let mut random = Random(drops.fetch_add(1, Ordering::SeqCst));
            !random.percent(3)
        })
    };
    let origins: Vec<_> = (0..runs).map(|_| Origin::new()).collect();
    origins.iter().for_each(prepare);
    let addresses = origins.iter();
    let addresses = addresses.map(|origin| serve(origin.root.path(), Arc::clone(&before)));
    let addresses: Vec<_> = addresses.collect();
    let mut home = Home::new(&[]);
    let text = format!(
        "{}\n[adapters.echo]\nsettle = \"both\"\n",
        settings(&addresses)
    );
    std::fs::write(home.dir.path().join("forge-bridge.toml"), text).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    let mut bridge = home.start();
    let mut started = Vec::new();
    for address in &addresses {
        let body = json!({"repoUrl": format!("{address}/origin.git")});
        let run = create(&bridge.api, &body).await;
        let count = 5 + random.below(most.saturating_sub(4));
        say(&bridge.api, &run, &plan(&tasks(&mut random, count))).await;
        started.push(run);
    }
    for _ in 0..2 {
        let wanted = random.below(4) + 1;
        until("work to be killed", || async {
            let mut merged = 0;
            let mut is_ended = true;
            for run in &started {
                let (_, record) = bridge.api.get(&format!("/api/v1/runs/{run}")).await;
                merged += record["completedTasks"].as_u64()?;
                is_ended &= record["completedAt"].is_string();
            }
            (is_ended || merged >= wanted * runs).then_some(())
        })
        .await;
        bridge.kill();
        bridge = home.start();
    }
    for (run, origin) in started.iter().zip(&origins) {
        let record = ended(&bridge.api, run).await;
        assert_eq!(record["status"], "completed", "seed {seed}: {record}");
        let events = events(&bridge.api, run).await;
        let failed = of(&events, "task.failed");
        for (id, task) in record["tasks"].as_object().unwrap() {
            let failed = failed.iter().filter(|event| event["taskId"] == **id);
            let failed: Vec<_> = failed.collect();
            assert!(
                task["failures"].is_null(),
                "seed {seed}: {task}: {failed:?}"
            );
        }
        let base = of(&events, "run.attached")[0]["commit"].as_str().unwrap();
        let merges = of(&events, "refinery.merged");
        assert!(!merges.is_empty(), "seed {seed}");
        for merged in merges {
            assert_eq!(faults(origin, base, merged), "", "seed {seed}: {merged}");
        }
        verified(&bridge.api, run).await;
    }
    bridge.kill();
}
