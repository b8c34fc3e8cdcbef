//! `forge-bridge runs`, as a shell sees it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::harness::port::Reserved;
use super::harness::process::{Home, Process};
use super::runs::{Origin, plan, task};

/// A bridge with runs on echo, and a repository for them.
struct Shell {
    home: Home,
    bridge: Process,
    origin: Origin,
}

impl Shell {
    fn start(variables: &[(&str, &str)]) -> Self {
        let origin = Origin::new();
        let mut home = Home::new(variables);
        std::fs::write(home.dir.path().join("forge-bridge.toml"), origin.settings()).unwrap();
        home.set("PATH", &std::env::var("PATH").unwrap());
        let bridge = home.start();
        Self {
            home,
            bridge,
            origin,
        }
    }

    /// Runs a command of `runs`. Returns its exit code, answer and remarks.
    fn try_run(&self, arguments: &[&str], input: &str) -> (i32, String, String) {
        let mut command = self.home.command();
        let command = command.args(["--url", &self.bridge.api.url, "runs"]);
        let command = command.args(arguments).stdin(Stdio::piped());
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // A command that does not read it can have ended.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        let output = child.wait_with_output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        (code, text(output.stdout), text(output.stderr))
    }

    /// Runs a command that succeeds; returns its answer without the last line end.
    fn run(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.try_run(arguments, "");
        assert_eq!(code, 0, "{arguments:?}: {out}{err}");
        out.trim_end().to_owned()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.run(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Starts a run with a plan; returns its id.
    fn begin(&self, options: &[&str], tasks: &[Value]) -> String {
        let url = self.origin.url();
        let run = self.run(&[&["start", &url], options].concat());
        let (code, out, err) = self.try_run(&["say", &run, "-"], &plan(tasks));
        assert_eq!((code, out.as_str()), (0, ""), "{err}");
        run
    }

    /// Waits until the run has this status.
    fn until(&self, run: &str, status: &str) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let record = self.json(&["show", run]);
            if record["status"] == status {
                return;
            }
            assert!(Instant::now() < deadline, "not {status}: {record:#}");
            sleep(Duration::from_millis(20));
        }
    }
}

/// Sequence numbers of printed events.
fn numbers(out: &str) -> Vec<u64> {
    let events = out.lines().map(|line| serde_json::from_str(line).unwrap());
    events
        .map(|event: Value| event["seq"].as_u64().unwrap())
        .collect()
}

#[test]
fn a_run_is_started_followed_and_shown() {
    let shell = Shell::start(&[]);
    let tasks = [
        task("a", &[], "write a.txt one\nsay done with a"),
        task("b", &["a"], "fail-once echo_failed\nwrite b.txt b"),
    ];
    let run = shell.begin(&["--message", "hello"], &tasks);
    let followed = shell.run(&["tail", &run]);
    for line in [
        "captain.message       -  What should I build?",
        "task.failed           b/1  canRetry true, counted true, error echo_failed",
        "task.progress         a/1  done with a",
        "refinery.merged       refinery-final/1",
    ] {
        assert!(followed.contains(line), "{line:?} is not in {followed}");
    }
    let events = shell.run(&["tail", &run, "--json"]);
    let numbers = numbers(&events);
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    let last: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let last = last["eventId"].as_str().unwrap();
    for after in [last, "now"] {
        assert_eq!(shell.run(&["tail", &run, "--after", after]), "");
    }

    let tip = shell.origin.git(&[
        "--git-dir=origin.git",
        "rev-parse",
        &format!("forge/integration/{run}"),
    ]);
    let shown = shell.run(&["show", &run]);
    for line in [
        format!("run         {run}\nstatus      completed\n"),
        "from        main at ".to_owned(),
        "task                status  attempt  after  title\na                   MERGED  1        -      Task a\n  b                 MERGED  2        a      Task b\n    refinery-final  MERGED  1        ".to_owned(),
        format!("refinery-final merged 2 results to {tip} of forge/integration/{run}\n"),
        format!(" of forge/{run}/b/2 is an ancestor of it"),
    ] {
        assert!(shown.contains(&line), "{line:?} is not in {shown}");
    }
    let record = shell.json(&["show", &run]);
    assert_eq!(record["merges"][0]["resultRef"], *tip);
    assert_eq!(record["changeRequests"], json!([]));
    let verified = format!("the stored state is the fold of {} events", numbers.len());
    assert_eq!(shell.run(&["verify", &run]), verified);

    let other = shell.begin(&["--plan-review"], &[task("a", &[], "write a.txt a")]);
    let listed = shell.json(&["list", "--limit", "1"]);
    assert_eq!(listed["runs"][0]["runId"], *other);
    let completed = shell.run(&["list", "--status", "completed"]);
    assert!(
        completed.contains(&run) && !completed.contains(&other),
        "{completed}"
    );
    assert_eq!(
        completed,
        shell.run(&["list", "--status", "completed", "--all"])
    );
    shell.run(&["cancel", &other]);
}

#[test]
fn a_run_is_paused_approved_and_cancelled() {
    let shell = Shell::start(&[]);
    let tasks = [task("a", &[], "hang")];
    let run = shell.begin(
        &[
            "--plan-review",
            "--provider",
            "echo",
            "--model",
            "run",
            "--ref",
            "main",
        ],
        &tasks,
    );
    shell.until(&run, "plan_review");
    assert_eq!(shell.run(&["pause", &run]), "paused");
    let (code, out, err) = shell.try_run(&["approve", &run], "");
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    assert!(err.contains("INVALID_STATE"), "{err}");
    assert_eq!(
        shell.json(&["resume", &run]),
        json!({"status": "plan_review"})
    );
    assert_eq!(shell.run(&["approve", &run]), "executing");
    assert_eq!(shell.run(&["pause", &run, "--abort"]), "paused");
    assert_eq!(shell.run(&["cancel", &run]), "cancelled");
    let (code, out, _) = shell.try_run(&["tail", &run, "--core", "--json"], "");
    assert_eq!(code, 1, "{out}");
    assert!(
        out.contains("run.completed") && !out.contains("task.status"),
        "{out}"
    );
    assert!(
        shell
            .run(&["show", &run])
            .contains("status      cancelled\n")
    );
    let (code, ..) = shell.try_run(&["tail", &run, "--after", "now"], "");
    assert_eq!(code, 1, "the run has ended, but was not completed");
}

#[test]
fn a_change_request_is_shown_and_settled() {
    let shell = Shell::start(&[]);
    let ask = |reason: &str| {
        let node = json!({
            "id": "b", "title": "B", "type": 2, "dependencies": [], "instructions": "write b.txt b",
        });
        let ask = json!({
            "title": "Add b", "reason": reason, "affectedTasks": [], "overlay": {"addedNodes": [node]},
        });
        let tasks = [
            task("a", &[], "write a.txt a"),
            json!({"id": "r", "title": "Merge", "type": "refinery", "dependencies": ["a"], "instructions": format!("cr {ask}")}),
        ];
        let run = shell.begin(&[], &tasks);
        shell.until(&run, "paused");
        let requests = shell.json(&["show", &run])["changeRequests"].clone();
        let id = requests[0]["crId"].as_str().unwrap().to_owned();
        let shown = shell.run(&["show", &run]);
        let line = format!("change request {id} of r: Add b\n  {reason}\n  affects -");
        assert!(shown.contains(&line), "{line:?} is not in {shown}");
        (run, id)
    };
    let (run, id) = ask("b is missing");
    assert_eq!(shell.run(&["approve", &run, &id]), "approved");
    let (code, out, err) = shell.try_run(&["approve", &run, &id], "");
    assert_eq!((code, out.as_str()), (4, ""), "{err}");
    shell.run(&["tail", &run]);
    let target = format!("forge/integration/{run}");
    assert_eq!(shell.origin.file(&target, "b.txt"), "b");

    let (run, id) = ask("b is nice");
    assert_eq!(
        shell.run(&["reject", &run, &id, "--reason", "not now"]),
        "rejected"
    );
    shell.run(&["tail", &run]);
    let shown = shell.run(&["show", &run]);
    assert!(
        !shown.contains("change request") && !shown.contains("b.txt"),
        "{shown}"
    );
    let (code, _, err) = shell.try_run(&["reject", &run, "cr-9"], "");
    assert_eq!(code, 4, "{err}");
}

/// The events are printed once each, although the bridge is killed while they are followed.
#[test]
fn a_tail_continues_after_a_restart() {
    let address = Reserved::new().address().to_string();
    let shell = Shell::start(&[("BRIDGE_LISTEN", &address)]);
    let tasks = [
        task("a", &[], "say one\nsleep 1000"),
        task("b", &["a"], "write b.txt b"),
    ];
    let run = shell.begin(&[], &tasks);
    let mut tail = shell.home.command();
    let tail = tail.args([
        "--url",
        &shell.bridge.api.url,
        "runs",
        "tail",
        &run,
        "--json",
    ]);
    let mut tail = tail.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(tail.stdout.take().unwrap())
        .lines()
        .map(Result::unwrap);
    let mut seen = String::new();
    for line in lines.by_ref() {
        seen += &format!("{line}\n");
        if line.contains("task.progress") {
            break;
        }
    }
    let Shell { home, bridge, .. } = shell;
    bridge.kill();
    let _bridge = home.start();
    lines.for_each(|line| seen += &format!("{line}\n"));
    assert_eq!(tail.wait().unwrap().code(), Some(0), "{seen}");
    let numbers = numbers(&seen);
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
}

#[test]
fn bad_input_is_told_apart_from_a_refusal() {
    let shell = Shell::start(&[]);
    let run = "run_01890a5d-ac96-774b-bcce-b302099a8057";
    for (arguments, code, text) in [
        (&["start", "ext::sh"][..], 4, "repoUrl: "),
        (&["start"], 2, "<REPO_URL>"),
        (&["show", run], 4, "RUN_NOT_FOUND"),
        (&["tail", run], 4, "RUN_NOT_FOUND"),
        (&["say", run, "hello"], 4, "RUN_NOT_FOUND"),
        (&["pause", ".."], 2, "an id cannot be empty"),
        (&["approve", run, "."], 2, "an id cannot be empty"),
        (&["reject", run], 2, "<CHANGE>"),
        (&["list", "--status", "done"], 2, "plan_review"),
    ] {
        let (status, out, err) = shell.try_run(arguments, "");
        assert_eq!((status, out.as_str()), (code, ""), "{arguments:?}: {err}");
        assert!(err.contains(text), "{arguments:?}: {err}");
    }
}
