//! The bridge on an agent of the real A2A SDK, whose model is the harness's.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use forge_test_model::Model;
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::harness::process::Home;
use super::harness::{Api, Bridge, api, until};

/// The agent's process; killed on drop.
struct Agent {
    process: Child,
    port: String,
    folder: TempDir,
}

impl Agent {
    fn start(model: &Model) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let script = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../adapters/a2a/tests/real/agent.py"
        );
        let mut process = Command::new(forge_test_runtimes::a2a_python())
            .arg(script)
            .env("MODEL_URL", model.url())
            .env("CANCELS", folder.path().join("cancels"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut port = String::new();
        let stdout = process.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut port).unwrap();
        Self {
            process,
            port: port.trim().to_owned(),
            folder,
        }
    }

    fn cancels(&self) -> PathBuf {
        self.folder.path().join("cancels")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // The test might have killed it.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn task(name: &str, message: &str) -> Value {
    json!({"taskId": name, "agentId": "agent", "message": message, "callbackUrl": null})
}

/// Returns true if the agent has reported its task.
async fn has_news(api: &Api, id: &str) -> bool {
    let events = api.events(id).await;
    events.iter().any(|event| event["type"] == "exec.progress")
}

#[tokio::test]
async fn a_question_is_answered_by_the_next_dispatch_and_a_cancel_reaches_the_agent() {
    let model = Model::start().await;
    let mut agent = Agent::start(&model);
    let file = format!(
        "[adapters.a2a]\nurl = \"http://127.0.0.1:{}\"\n",
        agent.port
    );
    let bridge = Bridge::configured(&file, &[("BRIDGE_ADAPTERS", "a2a")]).await;
    let api = &bridge.api;

    let answer = api.run(task("hello", "hello")).await;
    assert_eq!(answer["status"], "ok", "{answer}");
    assert!(
        answer["output"].as_str().unwrap().starts_with("pong: "),
        "{answer}"
    );
    assert_eq!(answer["usage"]["inputTokens"], Value::Null);

    // One artifact of 6 MiB is several events, none of them lost.
    let id = api.dispatch(task("huge", "HUGE please")).await;
    let huge = api.finished(&id).await;
    assert_eq!(
        huge["result"]["outputTruncated"]["bytes"],
        6 << 20,
        "{}",
        huge["errorCode"]
    );
    let (mut streamed, mut after) = (0, "0".to_owned());
    while streamed < 6 << 20 {
        let path = format!("/api/v2/dispatch/{id}/events?after={after}");
        let request = api.request(Method::GET, &path);
        let (_, page) = api::answer(request.header("accept", "application/json")).await;
        let events = page["events"].as_array().unwrap().iter();
        let texts = events.filter_map(|event| event["data"]["delta"].as_str());
        streamed += texts.map(str::len).sum::<usize>();
        after = page["nextCursor"].as_str().unwrap().to_owned();
    }
    assert_eq!(streamed, 6 << 20);

    let asked = api.run(task("ask", "ASK me")).await;
    assert_eq!(asked["errorCode"], "input_required", "{asked}");
    assert_eq!(asked["inputRequest"]["text"], "which?");
    let mut reply = task("reply", "plums");
    reply["sessionId"] = asked["sessionId"].clone();
    let replied = api.run(reply).await;
    assert_eq!(replied["status"], "ok", "{replied}");

    // Nothing can be cancelled before the agent has reported its task, which takes long on a busy machine.
    let mut seconds = 10;
    loop {
        let mut slow = task(&format!("late-{seconds}"), "SLOW please");
        slow["timeoutSeconds"] = json!(seconds);
        let id = api.dispatch(slow).await;
        let late = api.finished(&id).await;
        assert_eq!(late["result"]["errorCode"], "timeout", "{late}");
        if has_news(api, &id).await {
            break;
        }
        seconds *= 2;
    }
    until("the task to be cancelled", || async {
        agent.cancels().exists().then_some(())
    })
    .await;

    let id = api.dispatch(task("slow", "SLOW please")).await;
    until("news of the task", || async {
        has_news(api, &id).await.then_some(())
    })
    .await;
    assert!(api.cancel(&id).await);
    let record = api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    until("the second cancel", || async {
        let cancels = std::fs::read_to_string(agent.cancels()).unwrap();
        (cancels.lines().count() == 2).then_some(())
    })
    .await;

    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
    until("the adapter to be offline", || async {
        let (_, health) = api.get("/api/health").await;
        (health["adapters"]["a2a"]["status"] == "offline").then_some(())
    })
    .await;
    bridge.stop().await;
}

/// Home of bridges that use this agent.
fn home_of(agent: &Agent) -> Home {
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "a2a")]);
    let url = format!("http://127.0.0.1:{}", agent.port);
    home.set("BRIDGE_ADAPTERS_A2A_URL", &url);
    home
}

#[tokio::test]
async fn text_of_a_task_that_is_told_again_after_a_crash_counts_once() {
    let model = Model::start().await;
    let agent = Agent::start(&model);
    let home = home_of(&agent);
    let process = home.start();
    let mut waits = task("pieces", "PIECES WAIT");
    waits["recovery"] = "resume".into();
    let id = process.api.dispatch(waits).await;
    process.api.told(&id, "assistant.text", 1).await;
    process.kill();
    let process = home.start();
    std::fs::write(agent.cancels().with_extension("go"), "").unwrap();
    let record = process.api.finished(&id).await;
    let result = &record["result"];
    assert_eq!(result["output"], "one two three", "{record}");
    assert_eq!(result["attempt"], 2, "{record}");
    let expected = ("one two three".to_owned(), vec![json!(1)]);
    assert_eq!(process.api.kept_text(&id).await, expected);
}

#[tokio::test]
async fn after_a_crash_the_task_is_followed_again_and_not_sent_twice() {
    let model = Model::start().await;
    let agent = Agent::start(&model);
    let home = home_of(&agent);
    let process = home.start();
    let mut slow = task("slow", "SLOW please");
    slow["recovery"] = "resume".into();
    let id = process.api.dispatch(slow).await;
    until("news of the task", || async {
        has_news(&process.api, &id).await.then_some(())
    })
    .await;
    process.kill();
    let process = home.start();
    let record = process.api.finished(&id).await;
    let result = &record["result"];
    assert_eq!(result["status"], "ok", "{record}");
    assert_eq!(result["attempt"], 2, "{record}");
    let output = result["output"].as_str().unwrap();
    assert!(output.starts_with("tick000"), "{output}");
    assert_eq!(model.requests().len(), 1, "the work was done once");
    // The task is not part of the session that later dispatches continue.
    let session = result["sessionId"].as_str().unwrap();
    assert!(!session.contains('|'), "{session}");
}
