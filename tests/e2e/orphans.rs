//! No process outlives its execution or the bridge: with dispatches to the real program, during the reload of an
//! adapter, when no process can be started any more, and as pid 1. `children.rs` tests the supervisor alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::harness::until;

/// A program whose children leave its group and session in several ways and ignore SIGTERM; four processes with
/// itself.
const AGENT: &str = r#"
trap '' TERM
read -r prompt
case $prompt in quick*) echo '{"status":"ok","output":"pong"}'; exit 0;; esac
setsid -f setsid -f sh -c 'sleep 300 & exec nohup sleep 300' >/dev/null 2>&1
(nohup sleep 300 >/dev/null 2>&1 &)
echo '{"type":"assistant.text","data":{"delta":"begun"}}'
exec sleep 300
"#;
const TREE: usize = 4;

/// Maximum lifetime of processes after their bridge was killed.
const SOON: Duration = Duration::from_secs(2);

fn home(variables: &[(&str, &str)]) -> Home {
    let mut home = Home::new(variables);
    let dir = home.dir.path().to_owned();
    fs::write(dir.join("agent.sh"), AGENT).unwrap();
    let config = format!(
        "[adapters.command]\nprogram = \"sh\"\nargs = [\"{}\"]\noutput = \"bridge\"\nstdin = \"prompt\"\n\
         kill_after_seconds = 0.2\nmax_concurrent = 100\n",
        dir.join("agent.sh").display()
    );
    fs::write(dir.join("forge.toml"), config).unwrap();
    let mut set = |name: &str, value: String| home.variables.insert(name.to_owned(), value);
    set(
        "BRIDGE_CONFIG",
        dir.join("forge.toml").display().to_string(),
    );
    set("BRIDGE_ADAPTERS", "command".to_owned());
    set("PATH", std::env::var("PATH").unwrap());
    home
}

/// A process with this home in its environment.
struct Found {
    pid: i32,
    words: Vec<u8>,
}

impl Found {
    /// Returns true for the bridge, its supervisors and its adapter hosts; false for programs of executions.
    fn is_ours(&self) -> bool {
        let name = Path::new(env!("CARGO_BIN_EXE_forge-bridge"))
            .file_name()
            .unwrap();
        let name = name.to_str().unwrap().as_bytes();
        self.words
            .split(|byte| *byte == 0)
            .take(6)
            .any(|word| word.ends_with(name) || word == b"adapter-host")
    }
}

/// Living processes of this home. Zombies have no environment and are not found.
fn alive(home: &Home) -> Vec<Found> {
    let wanted = format!("HOME={}", home.dir.path().display());
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // It can end during the scan.
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        if environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == wanted.as_bytes())
        {
            let words = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            found.push(Found { pid, words });
        }
    }
    found
}

fn programs(home: &Home) -> usize {
    alive(home).iter().filter(|found| !found.is_ours()).count()
}

/// Waits up to 120 s for this number of programs; a hundred trees grow slowly on a busy machine.
async fn until_programs(home: &Home, wanted: usize) {
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let there = async {
        while programs(home) != wanted {
            tick.tick().await;
        }
    };
    let there = tokio::time::timeout(Duration::from_secs(120), there).await;
    if there.is_err() {
        let found = alive(home);
        let strangers: Vec<_> = found.iter().filter(|found| !found.is_ours()).collect();
        let words = strangers
            .iter()
            .map(|found| format!("{} {}", found.pid, String::from_utf8_lossy(&found.words)));
        let list = words.collect::<Vec<_>>().join("\n");
        panic!("{} programs live, not {wanted}:\n{list}", strangers.len());
    }
}

/// Asserts that all processes of this home end within this time, supervisors included.
fn no_process_is_left(home: &Home, within: Duration) {
    let deadline = Instant::now() + within;
    loop {
        let left = alive(home);
        if left.is_empty() {
            return;
        }
        let words = left
            .iter()
            .map(|found| String::from_utf8_lossy(&found.words).replace('\0', " "));
        assert!(
            Instant::now() < deadline,
            "after {within:?} there are {}",
            words.collect::<Vec<_>>().join(", ")
        );
        std::thread::yield_now();
    }
}

async fn dispatch(bridge: &Process, name: &str, message: &str) -> String {
    let body = json!({"taskId": name, "agentId": "a", "message": message, "callbackUrl": null});
    bridge.api.dispatch(body).await
}

async fn trees(bridge: &Process, name: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for n in 0..count {
        ids.push(dispatch(bridge, &format!("{name}-{n}"), "slow").await);
    }
    ids
}

async fn reload(bridge: &Process) -> Value {
    let path = "/api/v2/adapters/command/reload";
    let (status, answer) = bridge.api.post(path, &Value::Null).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    answer
}

#[tokio::test]
async fn a_hundred_executions_die_with_the_bridge() {
    let home = home(&[]);
    let bridge = home.start();
    trees(&bridge, "t", 100).await;
    until_programs(&home, 100 * TREE).await;
    bridge.kill();
    no_process_is_left(&home, SOON);
}

#[tokio::test]
async fn two_editions_with_programs_die_with_the_bridge() {
    two_editions(&home(&[])).await;
}

#[tokio::test]
async fn two_editions_in_processes_of_their_own_die_with_the_bridge() {
    let isolation = ("BRIDGE_ADAPTERS_COMMAND_ISOLATION", "process");
    two_editions(&home(&[isolation])).await;
}

async fn two_editions(home: &Home) {
    let bridge = home.start();
    trees(&bridge, "old", 8).await;
    until_programs(home, 8 * TREE).await;
    let answer = reload(&bridge).await;
    assert_eq!(answer["leaving"][0]["running"], 8);
    trees(&bridge, "new", 4).await;
    until_programs(home, 12 * TREE).await;
    bridge.kill();
    no_process_is_left(home, SOON);
}

#[tokio::test]
async fn the_end_of_a_drain_is_the_end_of_its_programs_and_of_no_others() {
    let home = home(&[("BRIDGE_PLUGIN_RELOAD_DRAIN", "3s")]);
    let bridge = home.start();
    let old = trees(&bridge, "old", 8).await;
    until_programs(&home, 8 * TREE).await;
    reload(&bridge).await;
    let new = trees(&bridge, "new", 4).await;
    for id in &old {
        let record = bridge.api.finished(id).await;
        assert_eq!(
            record["result"]["errorCode"], "adapter_unavailable",
            "{record}"
        );
    }
    until_programs(&home, 4 * TREE).await;
    for id in &new {
        assert_eq!(bridge.api.record(id).await["status"], "running");
        assert!(bridge.api.cancel(id).await);
        bridge.api.finished(id).await;
    }
    until_programs(&home, 0).await;
}

/// A cgroup of this test.
struct Pids(PathBuf);

impl Pids {
    fn new() -> Option<Self> {
        let name = format!("forge-e2e-{}", std::process::id());
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let group = roots
            .map(|root| Path::new(root).join(&name))
            .into_iter()
            .find(|folder| {
                let made = fs::create_dir(folder).is_ok();
                let usable = folder.join("pids.max").exists();
                if made && !usable {
                    let _ = fs::remove_dir(folder);
                }
                made && usable
            });
        group.map(Self)
    }

    fn set(&self, most: &str) {
        fs::write(self.0.join("pids.max"), most).unwrap();
    }

    fn now(&self) -> usize {
        let text = fs::read_to_string(self.0.join("pids.current")).unwrap();
        text.trim().parse().unwrap()
    }

    /// Number of forks refused by the limit.
    fn refused(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("pids.events")).unwrap();
        let count = text.trim().strip_prefix("max ").unwrap();
        count.parse().unwrap()
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        // Its processes might still be exiting.
        let deadline = Instant::now() + SOON;
        while fs::remove_dir(&self.0).is_err() && Instant::now() < deadline {
            std::thread::yield_now();
        }
    }
}

#[tokio::test]
async fn where_no_process_can_be_started_the_bridge_continues_and_leaves_none() {
    let Some(pids) = Pids::new() else {
        println!("not run: no cgroup for pids can be made here");
        return;
    };
    let mut home = home(&[]);
    let enter = format!("echo $$ > {}/cgroup.procs; exec \"$@\"", pids.0.display());
    home.wrapper = ["sh", "-c", &enter, "sh"].map(str::to_owned).to_vec();
    let bridge = home.start();
    let first = dispatch(&bridge, "first", "quick").await;
    assert_eq!(
        bridge.api.finished(&first).await["result"]["output"],
        "pong"
    );
    let room = pids.now() + 40;
    pids.set(&room.to_string());

    // Five processes each, so that some trees are complete and most are not.
    let ids = trees(&bridge, "t", 40).await;
    let ended = async || {
        let mut running = 0;
        for id in &ids {
            running += usize::from(bridge.api.record(id).await["status"] != "finished");
        }
        (running < 20).then_some(())
    };
    until("most to have found no room", ended).await;
    let mut failed = 0;
    for id in &ids {
        let record = bridge.api.record(id).await;
        if record["status"] == "finished" {
            assert_eq!(record["result"]["status"], "error", "{record}");
            failed += 1;
        }
    }
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(status, StatusCode::OK, "{health}");

    // Work continues as soon as processes can be started again.
    for id in &ids {
        bridge.api.cancel(id).await;
    }
    until_programs(&home, 0).await;
    let after = dispatch(&bridge, "after", "quick").await;
    assert_eq!(
        bridge.api.finished(&after).await["result"]["output"],
        "pong"
    );

    let before = pids.refused();
    trees(&bridge, "last", 40).await;
    let full = async || (pids.refused() > before).then_some(());
    until("no room again", full).await;
    bridge.kill();
    no_process_is_left(&home, SOON);
    assert!(failed > 0);
}

/// Pid, in this namespace, of the bridge that is the first process of its own.
fn innermost(home: &Home) -> i32 {
    let ours = alive(home).into_iter().filter(Found::is_ours);
    let bridges = ours.filter(|found| {
        let status = fs::read_to_string(format!("/proc/{}/status", found.pid)).unwrap_or_default();
        let inside = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
        inside.is_some_and(|numbers| numbers.split_whitespace().last() == Some("1"))
    });
    let found: Vec<_> = bridges.map(|found| found.pid).collect();
    assert_eq!(found.len(), 1, "one bridge is pid 1");
    found[0]
}

/// Number of zombies of this parent.
fn zombies_of(parent: i32) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let stats = processes.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let dead = stats.filter(|stat| {
        let rest = stat.rsplit(')').next().unwrap_or_default();
        let mut fields = rest.split_whitespace();
        fields.next() == Some("Z") && fields.next() == Some(&parent.to_string())
    });
    dead.count()
}

#[tokio::test]
async fn as_pid_1_it_ends_when_told_takes_all_along_and_leaves_no_dead() {
    let unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let tried = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg("true")
        .status();
    if !tried.is_ok_and(|status| status.success()) {
        println!("not run: no namespace for pids can be made here");
        return;
    }
    let mut home = home(&[("BRIDGE_DRAIN_GRACE", "1s")]);
    home.wrapper = unshare.map(str::to_owned).to_vec();

    let bridge = home.start();
    let ids = trees(&bridge, "t", 10).await;
    until_programs(&home, 10 * TREE).await;
    let pid = innermost(&home);
    for id in &ids[..5] {
        assert!(bridge.api.cancel(id).await);
        bridge.api.finished(id).await;
    }
    until_programs(&home, 5 * TREE).await;
    until("the dead to be waited for", async || {
        (zombies_of(pid) == 0).then_some(())
    })
    .await;
    kill_process(Pid::from_raw(pid).unwrap(), Signal::TERM).unwrap();
    assert!(bridge.ended().await.success(), "{}", home.log());
    no_process_is_left(&home, SOON);

    let bridge = home.start();
    trees(&bridge, "u", 10).await;
    until_programs(&home, 10 * TREE).await;
    kill_process(Pid::from_raw(innermost(&home)).unwrap(), Signal::KILL).unwrap();
    no_process_is_left(&home, SOON);
    bridge.ended().await;
}
