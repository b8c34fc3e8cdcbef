//! Work in progress when the bridge is killed, and the observations of its clients until then. Clients behave like
//! real ones: they repeat requests that were not answered or that no adapter could accept.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt as _, StreamExt as _};
use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::super::external::register;
use super::super::harness::api::{JsonBody, owed, with};
use super::super::harness::library;
use super::super::harness::process::Home;
use super::super::harness::{Answer, Api, CallbackSink, until};
use forge_test_support::callback::Received;

pub(super) const POLICIES: [&str; 3] = ["fail", "retry", "resume"];

/// Action of a client besides waiting for the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Nothing,
    /// Cancels the dispatch as soon as it is accepted.
    Cancel,
    /// Cancels the dispatch once it runs.
    Stop,
    /// Repeats the request when the dispatch is finished.
    Repeat,
    /// Retries the delivery of the callback.
    Replay,
    /// Approves the held command, or rejects it.
    Decide(&'static str),
}

struct Request {
    body: Value,
    wish: Wish,
}

/// All requests, and the answers to them.
pub(super) struct Load {
    requests: Vec<Request>,
    pub(super) journal: PathBuf,
    /// True if the adapter's process crashes repeatedly and is restarted.
    crashes: bool,
    pub(super) seen: Mutex<Seen>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// Ids of dispatches that were answered 202, by task.
    pub(super) accepted: BTreeMap<String, BTreeSet<String>>,
    pub(super) policies: BTreeMap<String, &'static str>,
    pub(super) results: BTreeMap<String, Value>,
    pub(super) cancelled: BTreeSet<String>,
    pub(super) events: Vec<Value>,
    /// Tasks whose approval or rejection was answered with 200.
    pub(super) decided: BTreeSet<String>,
    /// Descriptions of invalid answers.
    pub(super) strange: Vec<String>,
}

/// A receiver that accepts, refuses permanently, or accepts the second attempt, depending on the path.
pub(super) struct Receiver {
    pub(super) sink: CallbackSink,
    /// External service, whose command waits for an approval.
    pub(super) service: CallbackSink,
}

impl Receiver {
    pub(super) async fn start() -> Self {
        let sink = CallbackSink::start().await;
        let refused = Mutex::new(HashSet::new());
        sink.answer_with(move |received: &Received| {
            let id = received.headers["webhook-id"].clone();
            match received.path.as_str() {
                "/dead" => Answer::status(410),
                "/busy" if refused.lock().unwrap().insert(id) => Answer::status(503),
                "/late" => Answer::status(200).after(Duration::from_millis(50)),
                _ => Answer::status(200),
            }
        });
        let service = CallbackSink::start().await;
        service.answer(Answer::status(200).body(r#"{"result":"done"}"#));
        Self { sink, service }
    }
}

fn needs_tools(point: &str) -> bool {
    point.starts_with("tool.")
}

/// True if commands that wait for an approval are part of the load.
fn needs_service(point: &str) -> bool {
    point.starts_with("approval.")
}

/// Backend of the adapter under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Bridge,
    /// The same library in a child process.
    Child,
    /// An equivalent program that speaks the line protocol.
    Program,
}

impl Place {
    /// Returns true if the adapter's process has to crash at this point, so that it is restarted.
    fn crashes(self, point: &str) -> bool {
        let hosted = point.starts_with("child.") || point.starts_with("restart.");
        // A process that a reload ends must live until then.
        self != Self::Bridge && hosted && !point.starts_with("child.end.")
    }

    fn prepare(self, home: &mut Home) {
        match self {
            Self::Bridge => return,
            Self::Child => home.set("BRIDGE_ADAPTERS_ECHO_ISOLATION", "process"),
            Self::Program => {
                let plugins = home.dir.path().join("plugins");
                std::fs::create_dir(&plugins).unwrap();
                for program in [
                    "plugins/examples/python-echo/forge-adapter-python-echo",
                    "tests/fixtures/lines/forge-adapter-echo-lines",
                ] {
                    let from = library::root().join(program);
                    let to = plugins.join(from.file_name().unwrap());
                    std::fs::copy(from, &to).unwrap();
                    library::make_safe(&to);
                }
                library::make_safe(&plugins);
                home.set("BRIDGE_PLUGIN_PATH", &plugins.display().to_string());
                home.set("BRIDGE_ADAPTERS_ECHO_LIBRARY", "echo-lines");
                home.set("PATH", &std::env::var("PATH").unwrap_or_default());
            }
        }
        home.set("BRIDGE_PLUGIN_RESTART_BACKOFF", "1ms");
        home.set("BRIDGE_PLUGIN_RESTART_CRASH_LIMIT", "100");
    }
}

/// Sets the settings that the load needs.
pub(super) fn prepare(home: &mut Home, receiver: &Receiver, point: &str, place: Place) {
    place.prepare(home);
    let folder = home.dir.path().to_owned();
    if needs_service(point) {
        let url = receiver.service.url("/");
        let manifest = json!({
            "forgeProtocol": "1.0", "language": "rust",
            "service": {"name": "probe", "transport": "http", "baseUrl": url},
            "entries": [{"name": "run", "kind": "command", "path": "/run", "needsApproval": true}],
        });
        register(&folder, &[manifest]);
        let file = folder.join("forge-bridge.toml");
        let text = format!("[external]\nroot = {folder:?}\nenforce = [\"approval\"]\n");
        std::fs::write(&file, text).unwrap();
        home.set("BRIDGE_CONFIG", &file.display().to_string());
    }
    for policy in POLICIES {
        std::fs::create_dir(folder.join("work").join(policy)).unwrap();
    }
    let journal = folder.join("journal").display().to_string();
    home.set("BRIDGE_ADAPTERS_ECHO_JOURNAL", &journal);
    if needs_tools(point) {
        let script = library::root().join("tests/fixtures/mcp-server/server.py");
        let file = folder.join("forge-bridge.toml");
        let text = format!(
            "[mcp.servers.fixture]\ncommand = \"python3\"\nargs = [{:?}, \"--normal\"]\n",
            script.display().to_string()
        );
        std::fs::write(&file, text).unwrap();
        home.set("BRIDGE_CONFIG", &file.display().to_string());
        home.set("PATH", &std::env::var("PATH").unwrap_or_default());
    }
}

impl Load {
    pub(super) fn new(home: &Home, receiver: &Receiver, point: &str, place: Place) -> Self {
        let mut load = Self {
            requests: Vec::new(),
            journal: home.dir.path().join("journal"),
            crashes: place.crashes(point),
            seen: Mutex::default(),
        };
        let url = |path: &str| receiver.sink.url(path);
        let soon = Timestamp::now() + SignedDuration::from_millis(1500);
        for policy in POLICIES {
            let dir = home.dir.path().join("work").join(policy);
            let mut add = |task: &str, model: &str, path: &str, wish, extra: Value| {
                let body = owed(&format!("{task}-{policy}"), model, &url(path));
                let body = with(with(body, &json!({"recovery": policy})), &extra);
                load.requests.push(Request { body, wish });
                let mut seen = load.seen.lock().unwrap();
                seen.policies.insert(format!("{task}-{policy}"), policy);
            };
            let deaf = json!({"timeoutSeconds": 2});
            // Not longer than `deaf`, and long enough to be observed on a busy machine.
            add("long", "slow:2000", "/ok", Wish::Nothing, json!({}));
            add("deaf", "hang", "/ok", Wish::Stop, deaf);
            add("plain", "ok", "/ok", Wish::Nothing, json!({}));
            add("stream", "stream:20", "/late", Wish::Replay, json!({}));
            add("slow", "slow:120", "/busy", Wish::Nothing, json!({}));
            add("steps", "usage:4", "/ok", Wish::Repeat, json!({}));
            add("refused", "ok", "/dead", Wish::Nothing, json!({}));
            add("failing", "fail:broken", "/ok", Wish::Repeat, json!({}));
            add("unwanted", "slow:3000", "/ok", Wish::Cancel, json!({}));
            let unowed = json!({"callbackUrl": null});
            add("silent", "stream:5", "/ok", Wish::Nothing, unowed);
            let delayed = json!({"notBefore": soon});
            add("later", "ok", "/ok", Wish::Nothing, delayed);
            let file = json!({"outputStrategy": "file", "workspace": {"dir": dir}});
            add("file", "file", "/ok", Wish::Nothing, file);
            for turn in 1..=2 {
                let session = json!({"sessionId": format!("s-{policy}")});
                add(
                    &format!("turn-{turn}"),
                    "session",
                    "/ok",
                    Wish::Nothing,
                    session,
                );
            }
            if needs_service(point) {
                let call =
                    json!({"provider": "external", "message": "{}", "queueTimeoutSeconds": 60});
                for (task, decision) in [("held", "approve"), ("denied", "reject")] {
                    add(
                        task,
                        "probe.run",
                        "/ok",
                        Wish::Decide(decision),
                        call.clone(),
                    );
                }
            }
            if load.crashes {
                add("crash", "crash", "/ok", Wish::Nothing, json!({}));
            }
            if needs_tools(point) {
                let call = r#"{"mcp__fixture__add":{"a":2,"b":3}}"#;
                let tools = json!({"mcpServers": ["fixture"], "message": call});
                add("tools", "tools", "/ok", Wish::Nothing, tools);
            }
        }
        load
    }

    /// Runs all clients at once, and a reader of all events, until the work is done or the bridge is gone.
    pub(super) async fn run(&self, api: &Api) {
        let clients = join_all(
            self.requests
                .iter()
                .map(|request| self.client(api, request)),
        );
        tokio::select! {
            _ = clients => {}
            () = self.read(api).then(|()| std::future::pending()) => {}
        }
    }

    /// Waits until work is running that a kill interrupts and that has to be repeated.
    pub(super) async fn in_the_middle(&self, api: &Api) {
        let runs = async |task| {
            let record = ask_for(api, task).await.unwrap_or_default();
            record["status"] == "running"
        };
        until("the execution to begin", async || {
            (runs("long-retry").await || runs("long-resume").await).then_some(())
        })
        .await;
    }

    /// Repeats, after the restart, the unanswered requests and a few answered ones.
    pub(super) async fn repeat(&self, api: &Api) {
        let again = self.requests.iter().filter(|request| {
            let task = request.body["taskId"].as_str().unwrap();
            let seen = self.seen.lock().unwrap();
            request.wish == Wish::Repeat || !seen.accepted.contains_key(task)
        });
        join_all(again.map(|request| self.submit(api, &request.body))).await;
        for request in &self.requests {
            if let Wish::Decide(decision) = request.wish {
                let task = request.body["taskId"].as_str().unwrap();
                let before = self.seen.lock().unwrap().decided.contains(task);
                let (status, answer) = self.decide(api, task, decision).await.unwrap();
                if before && status != StatusCode::CONFLICT {
                    let strange = format!("{task}: the decision was forgotten: {status} {answer}");
                    self.seen.lock().unwrap().strange.push(strange);
                }
            }
        }
    }

    async fn decide(&self, api: &Api, task: &str, decision: &str) -> Option<(StatusCode, Value)> {
        let path = format!("/api/v2/approvals/{task}/{decision}");
        let answered = ask(api.request(Method::POST, &path).json_body(&json!({}))).await?;
        if answered.0 == StatusCode::OK {
            self.seen.lock().unwrap().decided.insert(task.to_owned());
        }
        Some(answered)
    }

    async fn client(&self, api: &Api, request: &Request) -> Option<()> {
        let id = self.submit(api, &request.body).await?;
        if request.wish == Wish::Stop {
            while ask_for(api, &id).await?["status"] == "queued" {}
        }
        if let Wish::Cancel | Wish::Stop = request.wish {
            let cancel = format!("/api/v2/dispatch/{id}/cancel");
            let (_, answer) = ask(api.request(Method::POST, &cancel).json_body(&json!({}))).await?;
            if answer["cancelled"] == true {
                self.seen.lock().unwrap().cancelled.insert(id.clone());
            }
        }
        if let Wish::Decide(decision) = request.wish {
            self.decide(api, request.body["taskId"].as_str()?, decision)
                .await?;
        }
        let wait = format!("/api/v2/dispatch/{id}?wait=30");
        let (_, record) = ask(api.request(Method::GET, &wait)).await?;
        if record["status"] == "finished" {
            let result = record["result"].clone();
            self.seen.lock().unwrap().results.insert(id, result);
        }
        match request.wish {
            Wish::Nothing | Wish::Cancel | Wish::Stop | Wish::Decide(_) => {}
            Wish::Repeat => {
                self.submit(api, &request.body).await?;
            }
            Wish::Replay => {
                let delivery = record["deliveries"][0]["id"].as_str()?.to_owned();
                let path = format!("/api/v2/deliveries/{delivery}/retry");
                ask(api.request(Method::POST, &path).json_body(&json!({}))).await?;
            }
        }
        Some(())
    }

    async fn submit(&self, api: &Api, body: &Value) -> Option<String> {
        let answered = until("an adapter to be there", async || {
            let post = api.request(Method::POST, "/api/v2/dispatch");
            let answered = ask(post.json_body(body)).await;
            let refused = answered.as_ref().is_some_and(|(status, answer)| {
                *status == StatusCode::SERVICE_UNAVAILABLE
                    && answer["code"] == "ADAPTER_UNAVAILABLE"
            });
            // A crashed adapter is restarted soon.
            (!(self.crashes && refused)).then_some(answered)
        });
        let (status, answer) = answered.await?;
        let mut seen = self.seen.lock().unwrap();
        let task = body["taskId"].as_str().unwrap().to_owned();
        if status != StatusCode::ACCEPTED {
            seen.strange
                .push(format!("{task} was answered {status}: {answer}"));
            return None;
        }
        let id = answer["dispatchId"].as_str().unwrap().to_owned();
        seen.accepted.entry(task).or_default().insert(id.clone());
        Some(id)
    }

    async fn read(&self, api: &Api) {
        let request = api
            .request(Method::GET, "/api/v2/events?after=0")
            .header("accept", "application/x-ndjson");
        let Ok(response) = request.send().await else {
            return;
        };
        let mut pieces = response.bytes_stream();
        let mut unread = Vec::new();
        while let Some(Ok(piece)) = pieces.next().await {
            unread.extend_from_slice(&piece);
            while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = unread.drain(..=end).collect();
                if let Ok(event) = serde_json::from_slice(&line) {
                    self.seen.lock().unwrap().events.push(event);
                }
            }
        }
    }
}

async fn ask_for(api: &Api, id: &str) -> Option<Value> {
    let (_, record) = ask(api.request(Method::GET, &format!("/api/v2/dispatch/{id}"))).await?;
    Some(record)
}

/// Sends a request; `None` if the bridge is gone.
pub(super) async fn ask(request: reqwest::RequestBuilder) -> Option<(StatusCode, Value)> {
    let response = request.send().await.ok()?;
    let status = response.status();
    let body = response.bytes().await.ok()?;
    Some((status, serde_json::from_slice(&body).ok()?))
}
