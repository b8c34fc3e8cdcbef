//! The bridge with command-line programs: under its supervisor, with its limits, and after a kill of the bridge.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use super::harness::process::Home;
use super::harness::{CallbackSink, until};

/// Answers, works slowly or fails, depending on the prompt.
const SCRIPT: &str = r#"
echo $$ >> "$HOME/pids"
read -r prompt
case $prompt in
  slow*) sleep 300 & echo $! >> "$HOME/pids"; echo '{"type":"assistant.text","data":{"delta":"begun"}}'; wait;;
  held*) until [ -e "$HOME/open" ]; do sleep 0.05; done; cd "$PWD" || exit 5;;
  fail*) echo 'no such thing' >&2; exit 4;;
esac
echo "{\"type\":\"assistant.text\",\"data\":{\"delta\":\"pong\"}}"
echo "{\"status\":\"ok\",\"sessionId\":\"s-1\",\"usage\":{\"inputTokens\":3,\"outputTokens\":2}}"
"#;

fn home() -> Home {
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "command")]);
    let dir = home.dir.path().to_owned();
    fs::write(dir.join("agent.sh"), SCRIPT).unwrap();
    let config = format!(
        "[adapters.command]\nprogram = \"sh\"\nargs = [\"{}\", [\"--resume\", \"{{session_id}}\"]]\noutput = \"bridge\"\n\
         stdin = \"prompt\"\nkill_after_seconds = 1.0\nmax_concurrent = 10\n",
        dir.join("agent.sh").display()
    );
    fs::write(dir.join("forge.toml"), config).unwrap();
    let file = dir.join("forge.toml").display().to_string();
    home.variables.insert("BRIDGE_CONFIG".to_owned(), file);
    home.variables
        .insert("PATH".to_owned(), std::env::var("PATH").unwrap());
    home
}

fn task(name: &str, message: &str) -> Value {
    json!({"taskId": name, "agentId": "agent", "message": message, "callbackUrl": null})
}

#[tokio::test]
async fn a_run_ends_in_a_callback_with_its_usage_and_session() {
    let sink = CallbackSink::start().await;
    let home = home();
    let bridge = home.start();
    let mut body = task("t", "hello");
    body["callbackUrl"] = sink.url("/cb").into();
    let id = bridge.api.dispatch(body).await;
    let callback = sink.until(1).await.remove(0);
    let result: Value = serde_json::from_slice(&callback.body).unwrap();
    assert_eq!(
        (&result["status"], &result["output"]),
        (&json!("ok"), &json!("pong")),
        "{result}"
    );
    assert_eq!(
        (&result["sessionId"], &result["usage"]["inputTokens"]),
        (&json!("s-1"), &json!(3))
    );
    let events = bridge.api.events(&id).await;
    assert!(events.iter().any(|event| event["type"] == "assistant.text"));
}

#[tokio::test]
async fn a_failure_and_a_timeout_have_their_codes() {
    let home = home();
    let bridge = home.start();
    let failed = bridge.api.run(task("f", "fail now")).await;
    assert_eq!(failed["errorCode"], "adapter_error", "{failed}");
    assert!(
        failed["error"].as_str().unwrap().ends_with("no such thing"),
        "{failed}"
    );
    let mut body = task("s", "slow one");
    body["timeoutSeconds"] = json!(1);
    let late = bridge.api.run(body).await;
    assert_eq!(late["errorCode"], "timeout", "{late}");
    no_process_lives(&home).await;
}

#[tokio::test]
async fn thirty_cancelled_runs_leave_no_process() {
    let home = home();
    let bridge = home.start();
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(
            bridge
                .api
                .dispatch(task(&format!("t{n}"), "slow one"))
                .await,
        );
    }
    for id in &ids {
        until("a text", || async {
            let events = bridge.api.events(id).await;
            events
                .iter()
                .any(|event| event["type"] == "assistant.text")
                .then_some(())
        })
        .await;
        assert!(bridge.api.cancel(id).await);
    }
    for id in &ids {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    }
    assert!(pids(&home).len() >= 60, "each had a program and its child");
    no_process_lives(&home).await;
}

#[tokio::test]
async fn a_killed_bridge_takes_its_programs_along() {
    let home = home();
    let bridge = home.start();
    bridge.api.dispatch(task("t", "slow one")).await;
    until("the program and its child", || async {
        (pids(&home).len() == 2).then_some(())
    })
    .await;
    bridge.kill();
    no_process_lives(&home).await;
}

#[tokio::test]
async fn a_reload_leaves_the_folder_of_what_runs_and_a_new_boot_that_of_nothing() {
    let home = home();
    let bridge = home.start();
    let id = bridge.api.dispatch(task("t", "held here")).await;
    until("the program", || async {
        (pids(&home).len() == 1).then_some(())
    })
    .await;
    let path = "/api/v2/adapters/command/reload";
    let (status, answer) = bridge.api.post(path, &Value::Null).await;
    assert_eq!(answer["leaving"][0]["running"], 1, "{status} {answer}");
    assert_eq!(folders(&home).len(), 1);
    fs::write(home.dir.path().join("open"), "").unwrap();
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["output"], "pong", "{record}");

    bridge.api.dispatch(task("u", "slow one")).await;
    until("the next program and its child", || async {
        (pids(&home).len() == 3).then_some(())
    })
    .await;
    let left = folders(&home);
    bridge.kill();
    assert_eq!((folders(&home), left.len()), (left, 1));
    let _bridge = home.start();
    assert_eq!(folders(&home), Vec::<OsString>::new());
}

fn folders(home: &Home) -> Vec<OsString> {
    let entries = fs::read_dir(home.dir.path().join("tmp")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name());
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"forge-command."))
        .collect()
}

#[tokio::test]
async fn the_second_signal_takes_the_programs_along() {
    let mut home = home();
    for bound in ["BRIDGE_DRAIN_ACCEPT", "BRIDGE_DRAIN_GRACE"] {
        home.variables.insert(bound.to_owned(), "1h".to_owned());
    }
    let bridge = home.start();
    for n in 0..3 {
        bridge
            .api
            .dispatch(task(&format!("t{n}"), "slow one"))
            .await;
    }
    until("the programs and their children", || async {
        (pids(&home).len() == 6).then_some(())
    })
    .await;
    bridge.terminate();
    until("the drain to begin", || async {
        let (_, answer) = bridge.api.get("/api/health/ready").await;
        (answer["status"] == "draining").then_some(())
    })
    .await;
    bridge.terminate();
    assert_eq!(bridge.ended().await.code(), Some(130));
    no_process_lives(&home).await;
}

fn pids(home: &Home) -> Vec<String> {
    let pids = fs::read_to_string(home.dir.path().join("pids")).unwrap_or_default();
    pids.lines().map(str::to_owned).collect()
}

async fn no_process_lives(home: &Home) {
    let gone = until("the programs to be gone", || async {
        let alive = |pid: &String| fs::metadata(format!("/proc/{pid}")).is_ok();
        (!pids(home).iter().any(alive)).then_some(())
    });
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .unwrap();
}
