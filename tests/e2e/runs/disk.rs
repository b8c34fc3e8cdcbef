//! Disk space of runs: checkouts while they are needed, folders of ended runs, and a disk that becomes full.

use super::*;

/// Size of the repository of the tests of space; it does not compress.
const SIZE: u64 = 4 << 20;

/// Bytes below a folder, without files that are removed meanwhile.
pub(super) fn used(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return 0;
    };
    let sizes = entries.flatten().map(|entry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => used(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    });
    sizes.sum()
}

fn folder(bridge: &Bridge, run: &str) -> PathBuf {
    bridge.home.path().join("data/runs").join(run)
}

/// A repository of [`SIZE`].
fn large() -> Origin {
    let origin = Origin::new();
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..SIZE)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[3]
        })
        .collect();
    std::fs::write(origin.root.path().join("work/noise"), noise).unwrap();
    origin.git(&["-C", "work", "add", "."]);
    origin.git(&["-C", "work", "commit", "--quiet", "-m", "noise"]);
    let path = origin.path().display().to_string();
    origin.git(&["-C", "work", "push", "--quiet", &path, "main"]);
    origin
}

/// Six tasks at width 2 need the space of two of them, twice the repository, and little else.
#[tokio::test]
async fn tasks_need_the_space_of_those_that_run_at_once() {
    const WIDTH: u64 = 2;
    let origin = large();
    let settings = format!("{}max_parallel = {WIDTH}\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let ids = ["a", "b", "c", "d", "e", "f"];
    let orders = |id: &str| format!("await .git/go\nwrite {id}.txt {id}");
    let tasks = ids.map(|id| task(id, &[], &orders(id)));
    say(api, &run, &plan(&tasks)).await;
    let runs = folder(&bridge, &run).parent().unwrap().to_owned();
    let mut peak = 0;
    for number in 0..ids.len() {
        // In the order of the plan: one ends, the next one begins.
        let last = (number + 2).min(ids.len()) - 1;
        for id in [ids[number], ids[last]] {
            until("the attempt to run", async || {
                let (_, task) = api.get(&format!("/api/v1/runs/{run}/tasks/{id}")).await;
                (task["status"] == "RUNNING").then_some(())
            })
            .await;
        }
        peak = peak.max(used(&runs));
        release(&bridge, &run, ids[number], 1);
    }
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let most = (WIDTH + 2) * SIZE;
    assert!(peak < most + most / 20, "{peak} of {most}");
    assert!(
        peak > most - SIZE / 2,
        "{peak} of {most}: not measured at the peak"
    );
    until("the folder to be removed", async || {
        (used(&runs) == 0).then_some(())
    })
    .await;
    bridge.stop().await;
}

/// What a run with another end than `completed` holds can be needed: it stays until its retention is over.
#[tokio::test]
async fn folders_of_ended_runs_stay_as_long_as_they_can_be_needed() {
    let origin = Origin::new();
    let records = "[retention]\nrecords = \"2s\"\nevery = \"100ms\"\n";
    for (push, orders, status) in [
        ("always", "fail broken", "failed"),
        ("never", "write a.txt a", "completed"),
    ] {
        let settings = format!("{}push = \"{push}\"\n{records}", origin.settings());
        let bridge = Bridge::configured(&settings, &[]).await;
        let api = &bridge.api;
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        say(api, &run, &plan(&[task("a", &[], orders)])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], status, "{record}");
        let kept = folder(&bridge, &run);
        assert!(kept.join("repository.git").exists(), "{push}");
        assert_eq!(std::fs::read_dir(kept.join("attempts")).unwrap().count(), 0);
        until("the record to expire", async || {
            let answer = api.get(&format!("/api/v1/runs/{run}")).await;
            (answer.0 == StatusCode::NOT_FOUND).then_some(())
        })
        .await;
        let bridge = bridge.restarted(&settings, &[]).await;
        until("the folder to be removed", async || {
            (!kept.exists()).then_some(())
        })
        .await;
        bridge.stop().await;
    }
}
