//! Disk space of runs: checkouts while they are needed, folders of ended runs, and a disk that becomes full.

use super::super::harness::process::Home;
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
pub(super) fn large() -> Origin {
    let origin = Origin::new();
    grow(&origin, "main");
    origin
}

/// Adds [`SIZE`] to a branch at the origin, which begins with the first commit if there is no such branch.
pub(super) fn grow(origin: &Origin, branch: &str) {
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
    let push = format!("HEAD:refs/heads/{branch}");
    origin.git(&["-C", "work", "push", "--quiet", &path, &push]);
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
        (!folder(&bridge, &run).exists()).then_some(())
    })
    .await;
    bridge.stop().await;
}

/// The folder of a run that did not complete, or that keeps its results, stays until its retention is over.
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

/// A small file system in memory, which is gone with the value.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None` where nothing can be mounted.
    #[expect(clippy::print_stdout, reason = "a test that does not run says why")]
    fn mount(megabytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let options = format!("size={megabytes}m,mode=0700");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "runs-test"])
            .arg(folder.path())
            .output();
        if mounted.is_ok_and(|output| output.status.success()) {
            return Some(Self(folder));
        }
        println!("not run: this test needs to mount a file system");
        None
    }

    fn free(&self) -> u64 {
        let stat = rustix::fs::statvfs(self.0.path()).unwrap();
        stat.f_bavail * stat.f_frsize
    }

    /// Writes a file until this many bytes are free.
    fn fill(&self, file: &Path, free: u64) {
        let size = self.free().saturating_sub(free);
        let zeros = vec![0; usize::try_from(size).unwrap()];
        // A file that does not fit is written as far as it does.
        let _: std::io::Result<()> = std::fs::write(file, zeros);
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(self.0.path()).status();
        assert!(unmounted.unwrap().success());
    }
}

const MIB: u64 = 1 << 20;

/// Store and runs are on one disk, which one agent fills: it is ended without a fault of the run, the other run
/// completes, and so does this one once there is space.
#[tokio::test]
async fn an_agent_that_fills_the_disk_is_ended_before_the_store_suffers() {
    let Some(disk) = SmallDisk::mount(96) else {
        return;
    };
    let origin = Origin::new();
    let settings = format!("{}free_bytes = {}\n", origin.settings(), 24 * MIB);
    let data = disk.0.path().join("data").display().to_string();
    let bridge = Bridge::configured(&settings, &[("BRIDGE_DATA_DIR", &data)]).await;
    let api = &bridge.api;
    let mut runs = Vec::new();
    for id in ["large", "small"] {
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        let orders = format!("await .git/go\nwrite {id}.txt {id}");
        say(api, &run, &plan(&[task(id, &[], &orders)])).await;
        running(api, &run, 1).await;
        runs.push(run);
    }
    let [large, small] = [&runs[0], &runs[1]];
    let checkout = |run: &str, task: &str, attempt: u32| {
        let attempts = disk.0.path().join("data/runs").join(run);
        attempts.join(format!("attempts/{task}/{attempt}"))
    };
    disk.fill(&checkout(large, "large", 1).join("filler"), 16 * MIB);
    let stale = until("the attempt to be ended", async || {
        let events = page(api, large, "0").await;
        let stale = of(&events, "task.stale").into_iter().next();
        stale.cloned()
    })
    .await;
    let error = stale["error"].as_str().unwrap();
    assert!(error.starts_with("disk_full: "), "{error}");
    assert_eq!(stale["counted"], false, "{stale}");
    std::fs::write(checkout(small, "small", 1).join(".git/go"), "").unwrap();
    assert_eq!(ended(api, small).await["status"], "completed");
    until("the next attempt", async || {
        checkout(large, "large", 2).exists().then_some(())
    })
    .await;
    assert!(!checkout(large, "large", 1).exists() && disk.free() > 24 * MIB);
    running(api, large, 1).await;
    std::fs::write(checkout(large, "large", 2).join(".git/go"), "").unwrap();
    let record = ended(api, large).await;
    assert_eq!(
        (&record["status"], &record["wait"]),
        (&json!("completed"), &json!(null))
    );
    verified(api, large).await;
    bridge.stop().await;
}

/// A repository that does not fit beside `runs.free_bytes` is not kept, and is fetched once there is space.
#[tokio::test]
async fn a_download_ends_before_the_disk_is_full() {
    let Some(disk) = SmallDisk::mount(64) else {
        return;
    };
    let origin = large();
    let folder = disk.0.path().join("runs").display().to_string();
    let own = format!("folder = {folder:?}\nfree_bytes = {}\n", 24 * MIB);
    let settings = format!("{}{own}", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let filler = disk.0.path().join("filler");
    disk.fill(&filler, 24 * MIB + SIZE / 2);
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let waiting = until("the run to wait", async || {
        let events = page(api, &run, "0").await;
        of(&events, "run.waiting").into_iter().next().cloned()
    })
    .await;
    assert_eq!(waiting["cause"], "disk", "{waiting}");
    let reason = waiting["reason"].as_str().unwrap();
    assert!(
        reason.contains("below `runs.free_bytes` (25165824)"),
        "{reason}"
    );
    std::fs::remove_file(filler).unwrap();
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    bridge.stop().await;
}

/// A folder above `runs.attempt_bytes` ends its attempt, which is the fault of its agent: it counts.
#[tokio::test]
async fn an_attempt_above_its_bound_fails() {
    let origin = Origin::new();
    let settings = format!("{}attempt_bytes = {MIB}\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let orders = "await .git/go\nwrite a.txt a";
    say(api, &run, &plan(&[task("a", &[], orders)])).await;
    running(api, &run, 1).await;
    let filler = checkout(&bridge, &run, "a", 1).join("filler");
    std::fs::write(filler, vec![1; 2 << 20]).unwrap();
    let failed = until("the attempt to be ended", async || {
        let events = page(api, &run, "0").await;
        of(&events, "task.failed").into_iter().next().cloned()
    })
    .await;
    let error = failed["error"].as_str().unwrap();
    assert!(error.starts_with("attempt_too_large: "), "{error}");
    assert!(error.contains("`runs.attempt_bytes` (1048576)"), "{error}");
    assert_ne!(failed["counted"], false, "{failed}");
    until("the next attempt", async || {
        checkout(&bridge, &run, "a", 2).exists().then_some(())
    })
    .await;
    running(api, &run, 1).await;
    release(&bridge, &run, "a", 2);
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    bridge.stop().await;
}

/// The disk is full of what is no attempt: the run says that it waits, and requests are answered.
#[tokio::test]
async fn a_full_disk_lets_runs_wait_with_a_reason_and_no_request_hangs() {
    let Some(disk) = SmallDisk::mount(96) else {
        return;
    };
    let origin = Origin::new();
    let settings = format!("{}free_bytes = {}\n", origin.settings(), 24 * MIB);
    let data = disk.0.path().join("data").display().to_string();
    let home = [("BRIDGE_DATA_DIR", data.as_str())];
    let bridge = Bridge::configured(&settings, &home).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(
        api,
        &run,
        &plan(&[
            task("a", &[], "await .git/go"),
            task("b", &[], "write b.txt b"),
        ]),
    )
    .await;
    running(api, &run, 1).await;
    let filler = disk.0.path().join("filler");
    disk.fill(&filler, 20 * MIB);
    let other = create(api, &json!({"repoUrl": origin.url()})).await;
    let reason = until("the run to wait", async || {
        let (_, record) = api.get(&format!("/api/v1/runs/{other}")).await;
        record["wait"]["reason"].as_str().map(str::to_owned)
    })
    .await;
    assert!(reason.contains("runs.free_bytes"), "{reason}");
    // Nothing can be written at all.
    disk.fill(&disk.0.path().join("more"), 0);
    let (status, answer) = command(api, &other, "cancel").await;
    assert!(
        status == StatusCode::OK || status == StatusCode::SERVICE_UNAVAILABLE,
        "{status} {answer}"
    );
    for file in ["filler", "more"] {
        std::fs::remove_file(disk.0.path().join(file)).unwrap();
    }
    until("the run to be cancelled", async || {
        let (_, record) = api.get(&format!("/api/v1/runs/{other}")).await;
        if record["status"] != "cancelled" {
            command(api, &other, "cancel").await;
        }
        (record["status"] == "cancelled").then_some(())
    })
    .await;
    command(api, &run, "cancel").await;
    ended(api, &run).await;
    bridge.stop().await;
}

/// A bridge that was killed leaves a disk that a dead attempt has filled: the next one starts all the same, and the
/// attempt is repeated.
#[tokio::test]
async fn a_bridge_starts_on_a_disk_that_a_dead_attempt_has_filled() {
    let Some(disk) = SmallDisk::mount(96) else {
        return;
    };
    let origin = Origin::new();
    let mut home = Home::new(&[]);
    let settings = format!("{}free_bytes = {}\n", origin.settings(), 24 * MIB);
    std::fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    home.set(
        "BRIDGE_DATA_DIR",
        &disk.0.path().join("data").display().to_string(),
    );
    let bridge = home.start();
    let run = create(&bridge.api, &json!({"repoUrl": origin.url()})).await;
    let orders = "await .git/go\nwrite a.txt a";
    say(&bridge.api, &run, &plan(&[task("a", &[], orders)])).await;
    running(&bridge.api, &run, 1).await;
    bridge.kill();
    let task = disk
        .0
        .path()
        .join("data/runs")
        .join(&run)
        .join("attempts/a");
    disk.fill(&task.join("1/filler"), 0);
    assert_eq!(disk.free(), 0);

    let bridge = home.start();
    let api = &bridge.api;
    until("the next attempt", async || {
        task.join("2").exists().then_some(())
    })
    .await;
    assert!(!task.join("1").exists() && disk.free() > 24 * MIB);
    running(api, &run, 1).await;
    std::fs::write(task.join("2/.git/go"), "").unwrap();
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    let error = of(&events, "task.stale")[0]["error"].as_str().unwrap();
    assert!(error.starts_with("disk_full: "), "{error}");
    bridge.kill();
}
