//! Access to files and folders that a bridge and its adapters create: for its user only, whatever the umask.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::{Value, json};

use super::harness::process::Home;
use super::harness::until;

/// Writes its id and waits until the test opens the gate. It creates nothing.
const PROGRAM: &str = r#"
case "$*" in *--version*) echo "2.0.0 (Claude Code)"; exit;; esac
echo $$ >> "$HOME/pids"
until [ -e "$HOME/open" ]; do sleep 0.05; done
echo done
"#;

/// The same as an agent of the protocol, which lets the adapter write a file.
const AGENT: &str = r#"
import json, os, sys, time
def send(message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    method = message.get("method")
    if method == "session/new":
        cwd = message["params"]["cwd"]
        send({"id": message["id"], "result": {"sessionId": "s"}})
    elif method == "session/prompt":
        asked = message["id"]
        send({"id": 99, "method": "fs/write_text_file",
              "params": {"sessionId": "s", "path": cwd + "/of/agent.txt", "content": "x"}})
    elif message.get("id") == 99:
        with open(os.environ["HOME"] + "/pids", "a") as pids:
            print(os.getpid(), file=pids)
        while not os.path.exists(os.environ["HOME"] + "/open"):
            time.sleep(0.05)
        send({"id": asked, "result": {"stopReason": "end_turn"}})
    elif "id" in message:
        send({"id": message["id"], "result": {"protocolVersion": 1}})
"#;

/// A home whose programs run with umask 0, and a workspace in it.
fn home(variables: &[(&str, &str)]) -> (Home, PathBuf) {
    let mut home = Home::new(variables);
    home.set("PATH", &std::env::var("PATH").unwrap());
    let script = "umask 0 && exec \"$0\" \"$@\"";
    home.wrapper = ["sh", "-c", script].map(str::to_owned).into();
    let dir = home.dir.path().canonicalize().unwrap();
    let workspace = dir.join("work/w");
    fs::create_dir(&workspace).unwrap();
    fs::set_permissions(&workspace, fs::Permissions::from_mode(0o700)).unwrap();
    (home, workspace)
}

/// Everything below a folder, without following links.
pub(super) fn below(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    // What goes away meanwhile is left out.
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&entry.path()));
        }
        found.insert(entry.path());
    }
    found
}

/// Asserts that other users cannot access these.
pub(super) fn assert_private(paths: &BTreeSet<PathBuf>) {
    let open: Vec<String> = paths
        .iter()
        .filter_map(|path| Some((path, path.symlink_metadata().ok()?)))
        .filter(|(_, metadata)| !metadata.is_symlink() && metadata.mode() & 0o7077 != 0)
        .map(|(path, metadata)| format!("{:o} {}", metadata.mode(), path.display()))
        .collect();
    assert!(open.is_empty(), "{open:#?}");
}

fn assert_found(paths: &BTreeSet<PathBuf>, names: &[&str]) {
    for name in names {
        let found = paths.iter().any(|path| path.ends_with(name));
        assert!(found, "no {name} in {paths:#?}");
    }
}

#[tokio::test]
async fn other_users_cannot_access_what_a_bridge_and_its_adapters_create() {
    let (home, workspace) = home(&[
        (
            "BRIDGE_ADAPTERS",
            "echo,apart,command,agent,claude-agent-sdk",
        ),
        ("BRIDGE_DISPATCH_MAX_TIMEOUT", "1h"),
    ]);
    let dir = home.dir.path();
    fs::write(dir.join("pids"), "").unwrap();
    fs::write(dir.join("agent.py"), AGENT).unwrap();
    let program = dir.join("program.sh");
    fs::write(&program, format!("#!/bin/sh{PROGRAM}")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let file = format!(
        "[adapters.echo]\njournal = {:?}\n\
         [adapters.apart]\nlibrary = \"echo\"\nisolation = \"process\"\n\
         [adapters.command]\nprogram = {program:?}\n\
         [adapters.agent]\nlibrary = \"acp\"\nprogram = \"python3\"\nargs = [{:?}]\n\
         [adapters.claude-agent-sdk]\nprogram = {program:?}\n",
        dir.join("journal"),
        dir.join("agent.py"),
    );
    fs::write(dir.join("forge-bridge.toml"), file).unwrap();
    // The test itself writes the log.
    fs::write(dir.join("log"), "").unwrap();
    let ours = below(dir);

    let bridge = home.start();
    let task = |provider: &str, more: Value| {
        let mut body = json!({
            "taskId": provider, "agentId": "agent", "provider": provider, "message": "hello",
            "callbackUrl": null, "workspace": {"dir": workspace},
        });
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        body
    };
    for provider in ["echo", "apart"] {
        let output = json!({
            "model": "file", "outputStrategy": "file", "outputFile": format!("of/{provider}/output.md"),
        });
        let result = bridge.api.run(task(provider, output)).await;
        assert_eq!(result["status"], "ok", "{result}");
    }
    let mut ids = Vec::new();
    let tool = json!([{"name": "find", "inputSchema": {"type": "object"}}]);
    for (provider, more) in [
        ("command", json!({"workspace": null})),
        ("agent", json!({"tools": tool})),
        ("claude-agent-sdk", json!({"workspace": null})),
    ] {
        ids.push(bridge.api.dispatch(task(provider, more)).await);
    }
    until("the programs", || async {
        let pids = fs::read_to_string(dir.join("pids")).unwrap();
        (pids.lines().count() == 3).then_some(())
    })
    .await;
    let path = "/api/v2/adapters/echo/pause";
    let (status, answer) = bridge.api.post(path, &Value::Null).await;
    assert_eq!(status, 200, "{answer}");

    let created = &below(dir) - &ours;
    assert_found(
        &created,
        &[
            "secret.key",
            "bridge.db",
            "bridge.db-wal",
            "paused/echo",
            "journal",
            "of/apart/output.md",
            "of/agent.txt",
            "mcp.json",
            "system-prompt",
            "tools",
            "work",
            "tmp",
        ],
    );
    assert_private(&created);
    fs::write(dir.join("open"), "").unwrap();
    for id in ids {
        bridge.api.finished(&id).await;
    }
}

#[tokio::test]
async fn the_folder_of_a_killed_dev_bridge_is_private_and_gone_after_the_next_start() {
    let (home, _) = home(&[]);
    let temporary = home.dir.path().join("tmp");
    let start = |command: &str| -> Child {
        let mut started = home.command();
        started
            .arg(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        started.env_remove("BRIDGE_DATA_DIR");
        started.env_remove("BRIDGE_SECRET_KEY_FILE");
        started.spawn().unwrap()
    };
    let mut dev = start("dev");
    let created = until("the store", || async {
        let created = below(&temporary);
        let there = |name: &&str| created.iter().any(|path| path.ends_with(name));
        ["bridge.db-wal", "secret.key"]
            .iter()
            .all(there)
            .then_some(created)
    })
    .await;
    assert_private(&created);
    dev.kill().unwrap();
    dev.wait().unwrap();
    assert!(!below(&temporary).is_empty());
    assert!(start("demo").wait().unwrap().success());
    assert_eq!(below(&temporary), BTreeSet::new());
}
