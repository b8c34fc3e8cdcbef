//! No process outlives the bridge, its own supervisor or the program that started it.
//!
//! A bridge that is killed must be a separate process: this test binary, started again in that role.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use forge_process::{Children, Config, EXECUTION_VARIABLE, STORE_VARIABLE};
use rustix::process::{Pid, Signal, kill_process};

/// A program whose children leave its group and session in several ways and ignore SIGTERM; four processes with
/// itself.
const TREE: &str = "
    trap '' TERM
    setsid -f setsid -f sh -c 'sleep 300 & exec nohup sleep 300' >/dev/null 2>&1
    (nohup sleep 300 >/dev/null 2>&1 &)
    read line || exec sleep 300
    exit 7";
const TREE_SIZE: usize = 4;

const ROLE: &str = "FORGE_E2E_TREES";
const ALONE: &str = "FORGE_E2E_ALONE";

#[test]
fn trees_live_while_their_spawning_threads_end_and_die_with_the_bridge() {
    let store = Store::new("bridge");
    let mut bridge = Bridge::start(&store, 20);
    store.until_living(20 * TREE_SIZE, Duration::from_secs(20));
    bridge.kill();
    store.until_living(0, Duration::from_secs(2));
}

#[test]
fn a_hundred_at_once_die_with_the_bridge() {
    let store = Store::new("hundred");
    let mut bridge = Bridge::start(&store, 100);
    store.until_living(100 * TREE_SIZE, Duration::from_secs(60));
    bridge.kill();
    store.until_living(0, Duration::from_secs(2));
}

#[test]
fn a_cancelled_program_takes_its_tree_along() {
    let store = Store::new("cancel");
    let mut supervised: Vec<Child> = (0..20).map(|n| supervise(&store, n)).collect();
    store.until_living(20 * TREE_SIZE, Duration::from_secs(20));
    for child in &supervised {
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    }
    store.until_living(0, Duration::from_secs(2));
    for child in &mut supervised {
        assert_eq!(
            child.wait().unwrap().code(),
            Some(128 + 9),
            "it ignores SIGTERM"
        );
    }
}

#[test]
fn the_end_of_the_program_is_the_end_of_its_tree_and_its_code_is_passed_on() {
    let store = Store::new("own-end");
    let mut supervised: Vec<Child> = (0..20).map(|n| supervise(&store, n)).collect();
    store.until_living(20 * TREE_SIZE, Duration::from_secs(20));
    for child in &mut supervised {
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
    store.until_living(0, Duration::from_secs(2));
    for child in &mut supervised {
        assert_eq!(child.wait().unwrap().code(), Some(7));
    }
}

#[test]
fn the_tree_of_a_killed_supervisor_is_swept_at_once_and_no_other() {
    let store = Store::new("swept");
    let mut bridge = Bridge::start(&store, 5);
    store.until_living(5 * TREE_SIZE, Duration::from_secs(20));
    let victim = bridge.supervisors[0];
    kill_process(Pid::from_raw(victim).unwrap(), Signal::KILL).unwrap();
    store.until_living(4 * TREE_SIZE, Duration::from_secs(2));
    bridge.kill();
    store.until_living(0, Duration::from_secs(2));
}

#[test]
fn what_outlived_bridge_and_supervisors_is_killed_at_the_next_boot() {
    // In a process of its own: what is left becomes a child of the nearest subreaper, and this process has bridges of
    // other tests, which kill orphans at once.
    alone("children::role_of_a_next_boot");
}

/// The test above, without a running bridge in the process. Does nothing outside of it.
#[test]
fn role_of_a_next_boot() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let store = Store::new("boot");
    let other = Store::new("other");
    let children = Children::new(&config(), &store.id).unwrap();
    let mut bridge = Bridge::start(&store, 5);
    let mut foreign = Bridge::start(&other, 1);
    store.until_living(5 * TREE_SIZE, Duration::from_secs(20));
    other.until_living(TREE_SIZE, Duration::from_secs(20));
    for signal in [Signal::STOP, Signal::KILL] {
        for supervisor in &bridge.supervisors {
            kill_process(Pid::from_raw(*supervisor).unwrap(), signal).unwrap();
        }
        if signal == Signal::STOP {
            bridge.kill();
        }
    }
    // No process is left to kill them.
    store.until_living(5 * TREE_SIZE, Duration::from_secs(2));

    assert_eq!(children.living(), 5 * TREE_SIZE);
    let swept = children.reap_leftovers();

    // Supervisors that are still exiting are killed again.
    assert!(swept.killed >= 5 * TREE_SIZE, "{swept:?}");
    assert_eq!(swept.left, 0);
    assert_eq!((store.living(), children.living()), (0, 0));
    assert_eq!(
        other.living(),
        TREE_SIZE,
        "processes of another store are not touched"
    );
    foreign.kill();
    other.until_living(0, Duration::from_secs(2));
}

#[test]
fn what_is_left_without_a_supervisor_at_the_end_is_killed() {
    alone("children::role_of_an_end");
}

/// The test above. Does nothing outside of it.
#[test]
fn role_of_an_end() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let store = Store::new("end");
    let children = Children::new(&config(), &store.id).unwrap();
    let mut supervised: Vec<Child> = (0..5).map(|n| supervise(&store, n)).collect();
    store.until_living(5 * TREE_SIZE, Duration::from_secs(20));
    for child in &mut supervised {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(store.living(), 5 * TREE_SIZE);
    let mut stranger = Command::new("sleep").arg("300").spawn().unwrap();

    let swept = children.end();

    assert!(
        swept.killed >= 5 * TREE_SIZE && swept.left == 0,
        "{swept:?}"
    );
    assert_eq!(store.living(), 0);
    assert_eq!(
        stranger.try_wait().unwrap(),
        None,
        "started by this process itself"
    );
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

/// Runs one test of this binary in a process of its own.
fn alone(test: &str) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(ALONE, "1")
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn a_supervisor_is_transparent() {
    let cases: [(&[&str], &str, i32); 5] = [
        (&["sh", "-c", "cat; exit 3"], "given", 3),
        (&["sh", "-c", "cat; kill -TERM $$"], "given", 128 + 15),
        (&["/nowhere/program"], "", 127),
        (&["/etc/passwd"], "", 126),
        (&[], "", 125),
    ];
    for (program, stdout, code) in cases {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
            .args(["exec", "--"])
            .args(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A program that cannot be started reads nothing.
        let _ = child.stdin.take().unwrap().write_all(b"given");
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{program:?}");
        assert_eq!(
            String::from_utf8(output.stdout).unwrap(),
            stdout,
            "{program:?}"
        );
        assert_eq!(
            output.stderr.is_empty(),
            code != 127 && code != 126 && code != 125
        );
    }
}

#[test]
fn a_supervisor_starts_nothing_for_a_bridge_that_is_gone() {
    let mut gone = Command::new("true").spawn().unwrap();
    let pid = gone.id();
    gone.wait().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_forge-bridge"))
        .args([
            "exec",
            &format!("--bridge={pid}:1"),
            "--",
            "echo",
            "started",
        ])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(125));
    assert!(output.stdout.is_empty());
}

/// The role: starts trees from threads that end, prints the ids of their supervisors, and acts as a bridge until it
/// is killed. Does nothing without the role.
#[test]
fn role_of_a_bridge() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let (store, trees) = role.split_once(' ').unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let children = Children::new(&config(), store).unwrap();
    let supervised: Vec<Child> = (0..trees.parse().unwrap())
        .map(|n| {
            let prefix = children.supervisor().to_vec();
            let store = store.to_owned();
            thread::spawn(move || start(&prefix, &store, n))
                .join()
                .unwrap()
        })
        .collect();
    let pids: Vec<String> = supervised
        .iter()
        .map(|child| child.id().to_string())
        .collect();
    println!("\nsupervisors {}", pids.join(" "));
    runtime.block_on(children.run(Default::default())).unwrap();
}

fn config() -> Config {
    Config {
        supervisor: Some(PathBuf::from(env!("CARGO_BIN_EXE_forge-bridge"))),
        grace: Duration::from_millis(200),
        ..Config::default()
    }
}

fn start(prefix: &[String], store: &str, n: usize) -> Child {
    Command::new(&prefix[0])
        .args(&prefix[1..])
        .args(["sh", "-c", TREE])
        .env(STORE_VARIABLE, store)
        .env(EXECUTION_VARIABLE, format!("dsp_{n}/1"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Starts a supervisor whose bridge is this process.
fn supervise(store: &Store, n: usize) -> Child {
    let children = Children::new(&config(), &store.id).unwrap();
    start(children.supervisor(), &store.id, n)
}

struct Bridge {
    process: Child,
    supervisors: Vec<i32>,
}

impl Bridge {
    fn start(store: &Store, trees: usize) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "children::role_of_a_bridge", "--nocapture"])
            .env(ROLE, format!("{} {trees}", store.id))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let supervisors = BufReader::new(process.stdout.take().unwrap())
            .lines()
            .find_map(|line| {
                let line = line.unwrap();
                let pids = line.strip_prefix("supervisors ")?;
                Some(pids.split(' ').map(|pid| pid.parse().unwrap()).collect())
            })
            .expect("the role prints the ids of its supervisors");
        Self {
            process,
            supervisors,
        }
    }

    fn kill(&mut self) -> ExitStatus {
        self.process.kill().unwrap();
        self.process.wait().unwrap()
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A store id unique to a test, and the processes that carry it. Reads `/proc` itself, since the bridge's reading is
/// under test.
struct Store {
    id: String,
}

impl Store {
    fn new(name: &str) -> Self {
        Self {
            id: format!("e2e-{name}-{}", std::process::id()),
        }
    }

    /// Ids of all processes, supervisors included.
    fn processes(&self) -> Vec<i32> {
        let wanted = format!("{STORE_VARIABLE}={}", self.id);
        fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter(|entry| {
                fs::read(entry.path().join("environ")).is_ok_and(|environ| {
                    environ
                        .split(|byte| *byte == 0)
                        .any(|variable| variable == wanted.as_bytes())
                })
            })
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect()
    }

    /// Number of processes without supervisors.
    fn living(&self) -> usize {
        self.processes()
            .into_iter()
            .filter(|pid| {
                fs::read(format!("/proc/{pid}/cmdline"))
                    .is_ok_and(|line| !line.windows(6).any(|part| part == b"\0exec\0"))
            })
            .count()
    }

    fn until_living(&self, wanted: usize, limit: Duration) {
        let deadline = Instant::now() + limit;
        loop {
            let living = self.living();
            if living == wanted {
                return;
            }
            assert!(
                Instant::now() < deadline,
                "{living} live, not {wanted}, after {limit:?}"
            );
            thread::yield_now();
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        for pid in self.processes() {
            // It can end during the scan.
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }
}
