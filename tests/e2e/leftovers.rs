//! Many executions of each adapter that starts programs leave no process, no file and no descriptor, and a killed bridge
//! leaves no folder of a run after the next start. `FORGE_E2E_EXECUTIONS` sets the number of executions.

use std::fs;
use std::time::Instant;

use forge_test_model::Model;
use serde_json::{Value, json};

use super::confinement::PYTHON;
use super::harness::process::{Home, Process};
use super::harness::until;

/// Executions of an adapter whose program is a script, and of one whose program takes a second to start.
const OF_SCRIPTS: usize = 50;
const OF_PROGRAMS: usize = 3;
/// Connections of the client and of the bridge to the model, which come and go.
const CONNECTIONS: usize = 8;

const SCRIPT: &str = r#"
read -r prompt
echo "$prompt" > file
case $prompt in SLOW*) sleep 300;; esac
setsid -f sleep 300 >/dev/null 2>&1
echo pong
"#;

/// Minimal agent of the Agent Client Protocol; each turn leaves a process in a session of its own.
const AGENT: &str = r#"
import json, subprocess, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "session/prompt":
        subprocess.Popen(["sleep", "300"], start_new_session=True)
        if "SLOW" in line:
            time.sleep(300)
    result = {"protocolVersion": 1, "sessionId": "s", "stopReason": "end_turn"}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"#;

fn home(model: &Model) -> Home {
    let home = Home::new(&[
        ("BRIDGE_ADAPTERS", "command,acp,claude-agent-sdk,vercel-ai"),
        ("PATH", &std::env::var("PATH").unwrap()),
        ("ANTHROPIC_BASE_URL", model.url()),
        ("ANTHROPIC_API_KEY", "fake"),
    ]);
    let dir = home.dir.path();
    fs::write(dir.join("agent.sh"), SCRIPT).unwrap();
    fs::write(dir.join("agent.py"), AGENT).unwrap();
    let file = format!(
        "[adapters.command]\nprogram = \"sh\"\nargs = [{:?}]\nstdin = \"prompt\"\n\
         [adapters.acp]\nprogram = {PYTHON:?}\nargs = [{:?}]\n\
         [adapters.claude-agent-sdk]\nprogram = {:?}\n\
         [adapters.vercel-ai]\nmode = \"sidecar\"\nmodel = \"anthropic/claude-sonnet-4-5\"\n\
         [adapters.vercel-ai.providers]\nanthropic = {{ base_url = \"{}/v1\", api_key = \"k\" }}\n\
         [adapters.vercel-ai.sidecar]\nnode = {:?}\npackages = {:?}\n",
        dir.join("agent.sh"),
        dir.join("agent.py"),
        forge_test_runtimes::claude(),
        model.url(),
        forge_test_runtimes::node(),
        forge_test_runtimes::ai(),
    );
    fs::write(dir.join("forge-bridge.toml"), file).unwrap();
    home
}

fn task(provider: &str, number: usize, message: &str) -> Value {
    let mut body = json!({
        "taskId": format!("{provider}-{number}"), "agentId": "a", "provider": provider, "message": message,
        "callbackUrl": null,
    });
    if provider == "claude-agent-sdk" {
        body["model"] = "claude-sonnet-4-5".into();
    }
    body
}

async fn run_all(bridge: &Process, provider: &str, numbers: std::ops::Range<usize>) {
    let mut ids = Vec::new();
    for number in numbers {
        ids.push(bridge.api.dispatch(task(provider, number, "ping")).await);
    }
    for id in ids {
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
    }
}

/// Processes started for executions in this home, supervisors included.
fn processes(home: &Home) -> usize {
    let mark = format!("HOME={}", home.dir.path().display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let found = entries.filter(|entry| {
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        let variables: Vec<&[u8]> = environ.split(|byte| *byte == 0).collect();
        variables.contains(&mark.as_bytes())
            && (variables.iter()).any(|variable| variable.starts_with(b"FORGE_EXECUTION="))
    });
    found.count()
}

fn temporary_files(home: &Home) -> usize {
    fs::read_dir(home.dir.path().join("tmp")).unwrap().count()
}

fn descriptors(bridge: &Process) -> usize {
    let folder = format!("/proc/{}/fd", bridge.id());
    fs::read_dir(folder).unwrap().count()
}

#[tokio::test]
async fn many_executions_leave_no_process_no_file_and_no_descriptor() {
    let number = std::env::var("FORGE_E2E_EXECUTIONS").ok();
    let number = number.map(|number| number.parse::<usize>().unwrap());
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    let adapters = [
        ("command", OF_SCRIPTS),
        ("acp", OF_SCRIPTS),
        ("claude-agent-sdk", OF_PROGRAMS),
        ("vercel-ai", OF_PROGRAMS),
    ];
    for (provider, _) in adapters {
        run_all(&bridge, provider, 0..1).await;
    }
    until("the first programs to be gone", async || {
        (processes(&home) == 0).then_some(())
    })
    .await;
    let before = descriptors(&bridge);
    for (provider, usual) in adapters {
        let (number, began) = (number.unwrap_or(usual), Instant::now());
        run_all(&bridge, provider, 1..1 + number).await;
        let (took, open) = (began.elapsed(), descriptors(&bridge));
        eprintln!(
            "{provider}: {number} executions in {took:.1?}, descriptors {before} before and {open} after"
        );
    }
    until("all programs and folders to be gone", async || {
        (processes(&home) == 0 && temporary_files(&home) == 0).then_some(())
    })
    .await;
    until("all descriptors to be closed", async || {
        (descriptors(&bridge) <= before + CONNECTIONS).then_some(())
    })
    .await;
}

#[tokio::test]
async fn folders_of_runs_are_gone_after_a_kill_and_a_start() {
    let model = Model::start().await;
    let home = home(&model);
    let bridge = home.start();
    for provider in ["command", "acp", "claude-agent-sdk"] {
        let body = task(provider, 0, "SLOW please");
        bridge.api.dispatch(body).await;
    }
    let folder_of = |name: &str| {
        let prefix = format!("forge-{name}.");
        let entries = fs::read_dir(home.dir.path().join("tmp")).unwrap().flatten();
        entries.into_iter().any(|entry| {
            let name = entry.file_name();
            name.to_str().is_some_and(|name| name.starts_with(&prefix))
        })
    };
    until("a folder of each run", async || {
        let all = ["command", "acp", "claude-agent-sdk"].iter();
        all.into_iter().all(|name| folder_of(name)).then_some(())
    })
    .await;
    bridge.kill();
    assert!(temporary_files(&home) >= 3);
    let bridge = home.start();
    until("the folders to be removed", async || {
        (temporary_files(&home) == 0).then_some(())
    })
    .await;
    drop(bridge);
}
