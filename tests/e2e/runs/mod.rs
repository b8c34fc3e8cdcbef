//! Runs on the echo adapter: from the interview to a proved merge, with failures, pauses and a killed bridge. "Check N"
//! counts the 40 checks of runs. Check 1 is a test of the TypeScript SDK, check 20 one of `store-sqlite`.

mod agents;
mod bounds;
mod captain;
mod conflicts;
mod credentials;
mod disk;
mod greeting;
mod hostile;
mod killed;
mod leavings;
mod lifecycle;
mod members;
mod pause;
mod random;
mod real;
mod refinery;
pub(crate) mod remote;
mod repositories;
mod results;
mod steering;
mod streams;
mod surface;
mod trouble;
mod users;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use super::harness::api::{self, Api};
use super::harness::socket::{connect, rest};
use super::harness::{Bridge, until};

/// Limit of a stream that is open while much happens.
const LONG: Duration = Duration::from_secs(600);

/// A repository with one commit.
pub(crate) struct Origin {
    root: tempfile::TempDir,
}

impl Origin {
    pub(crate) fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let origin = Self { root };
        let work = origin.root.path().join("work");
        origin.git(&["init", "--quiet", "--initial-branch=main", "work"]);
        std::fs::write(work.join("README.md"), "a\nb\nc\n").unwrap();
        origin.git(&["-C", "work", "add", "."]);
        origin.git(&["-C", "work", "commit", "--quiet", "-m", "first"]);
        origin.git(&["clone", "--quiet", "--bare", "work", "origin.git"]);
        origin
    }

    /// Folder with the repository and a checkout of it.
    pub(crate) fn root(&self) -> &Path {
        self.root.path()
    }

    pub(crate) fn git(&self, args: &[&str]) -> String {
        let text = String::from_utf8(self.git_bytes(args)).unwrap();
        text.trim_end().to_owned()
    }

    /// Output of a command of git.
    pub(crate) fn git_bytes(&self, args: &[&str]) -> Vec<u8> {
        let mut git = Command::new("git");
        let git = git.args(args).current_dir(self.root.path());
        let git = git.env("GIT_CONFIG_GLOBAL", "/dev/null");
        let name = [("NAME", "tester"), ("EMAIL", "tester@example.org")];
        for (part, value) in name {
            git.env(format!("GIT_AUTHOR_{part}"), value);
            git.env(format!("GIT_COMMITTER_{part}"), value);
        }
        let output = git.output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
        output.stdout
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("origin.git")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// File of a branch, as the origin has it.
    pub(super) fn file(&self, branch: &str, path: &str) -> String {
        self.git(&["--git-dir=origin.git", "show", &format!("{branch}:{path}")])
    }

    pub(crate) fn settings(&self) -> String {
        let root = self.root.path().display();
        // The answers to messages are counted; `greeting.rs` has the Captain speak first.
        let own = "provider = \"echo\"\nmodel = \"run\"\ngreeting = \"none\"";
        format!("[runs]\n{own}\nlocal_roots = [\"{root}\"]\n")
    }
}

/// Number in a variable of the environment.
fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

async fn create(api: &Api, body: &Value) -> String {
    let (status, answer) = api.post("/api/v1/runs", body).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    assert_eq!(answer["status"], "planning");
    answer["runId"].as_str().unwrap().to_owned()
}

async fn say(api: &Api, run: &str, message: &str) -> StatusCode {
    let body = json!({"runId": run, "message": message});
    api.post("/api/v1/captain/message", &body).await.0
}

/// Posts a request without a body.
async fn command(api: &Api, run: &str, name: &str) -> (StatusCode, Value) {
    let request = api.request(Method::POST, &format!("/api/v1/runs/{run}/{name}"));
    api::answer(request).await
}

/// Task for the Captain of the echo adapter.
pub(crate) fn task(id: &str, dependencies: &[&str], instructions: &str) -> Value {
    json!({
        "id": id, "title": format!("Task {id}"), "type": 2, "dependencies": dependencies, "instructions": instructions
    })
}

/// Task of a type.
fn typed(id: &str, kind: Value, dependencies: &[&str], instructions: &str) -> Value {
    let mut task = task(id, dependencies, instructions);
    task["type"] = kind;
    task
}

pub(crate) fn plan(tasks: &[Value]) -> String {
    json!({"specs": {"style": "Short lines."}, "tasks": tasks}).to_string()
}

/// Waits until the run has a status.
async fn status_is(api: &Api, run: &str, wanted: &str) {
    until("the status of the run", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["status"] == wanted).then_some(())
    })
    .await;
}

/// Events after a cursor, at most 1,000.
async fn page(api: &Api, run: &str, after: &str) -> Vec<Value> {
    let path = format!("/api/v1/runs/{run}/events?limit=1000&after={after}");
    let (status, page) = api.get(&path).await;
    assert_eq!(status, StatusCode::OK, "{page}");
    page["events"].as_array().unwrap().clone()
}

/// Waits until the run has this number of answers of the Captain, and returns them.
async fn answers(api: &Api, run: &str, count: usize) -> Vec<String> {
    let path = format!("/api/v1/runs/{run}/stream");
    let stream = api.request(Method::GET, &path).timeout(LONG);
    let mut stream = stream.send().await.unwrap();
    let (mut said, mut rest) = (Vec::new(), Vec::new());
    while said.len() < count {
        rest.extend_from_slice(&stream.chunk().await.unwrap().unwrap());
        let end = rest.iter().rposition(|byte| *byte == b'\n');
        let lines: Vec<u8> = rest.drain(..end.map_or(0, |end| end + 1)).collect();
        let lines = std::str::from_utf8(&lines).unwrap().lines();
        let lines = lines.filter(|line| line.contains("\"captain.message\""));
        let events = lines.map(|line| serde_json::from_str::<Value>(line).unwrap());
        said.extend(events.map(|event| event["data"]["content"].as_str().unwrap().to_owned()));
    }
    said
}

/// Answer to a GET with a path that a library would rewrite: head and body.
async fn raw(api: &Api, path: &str) -> String {
    let mut stream = connect(api).await;
    let ask = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(ask.as_bytes()).await.unwrap();
    rest(stream).await
}

/// Folder of an attempt.
fn checkout(bridge: &Bridge, run: &str, task: &str, attempt: u32) -> PathBuf {
    let attempts = bridge.home.path().join("data/runs").join(run);
    attempts.join(format!("attempts/{task}/{attempt}"))
}

/// Lets an attempt with the order `await .git/go` continue.
fn release(bridge: &Bridge, run: &str, task: &str, attempt: u32) {
    let checkout = checkout(bridge, run, task, attempt);
    std::fs::write(checkout.join(".git/go"), "").unwrap();
}

/// Waits until this number of tasks are running.
async fn running(api: &Api, run: &str, count: u64) {
    until("the attempts to run", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["runningTasks"] == count).then_some(())
    })
    .await;
}

/// All events of a run that has ended, read as a stream to its end.
async fn events(api: &Api, run: &str) -> Vec<Value> {
    let stream = api.request(Method::GET, &format!("/api/v1/runs/{run}/stream"));
    let text = stream.send().await.unwrap().text().await.unwrap();
    let lines = text.lines().filter(|line| !line.starts_with(':'));
    let events: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    events
}

fn kinds<'a>(events: &'a [Value], prefix: &str) -> Vec<&'a str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.filter(|kind| kind.starts_with(prefix)).collect()
}

fn of<'a>(events: &'a [Value], kind: &str) -> Vec<&'a Value> {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .map(|event| &event["data"])
        .collect()
}

async fn verified(api: &Api, run: &str) {
    let (_, verified) = api.get(&format!("/api/v1/runs/{run}/verify")).await;
    assert_eq!(verified["ok"], true, "{verified}");
}

async fn ended(api: &Api, run: &str) -> Value {
    until("the run to end", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        let is_ended = ["completed", "failed", "cancelled"]
            .iter()
            .any(|status| record["status"] == *status);
        is_ended.then_some(record)
    })
    .await
}
