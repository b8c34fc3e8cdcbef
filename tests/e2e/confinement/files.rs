//! Attacks on files by way of the bridge and its adapters: with a workspace that leads out of itself.

use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use serde_json::json;

use super::super::harness::api::with;
use super::super::harness::process::{Home, Process};
use super::{ALL, assert_unharmed, attack, home, order, reported};

const SECRET: &str = "a secret";

/// A bridge, and a file next to the workspaces.
fn start() -> (Home, Process, String) {
    let mut home = home();
    for attacker in ALL {
        let name = attacker.replace('-', "_").to_uppercase();
        home.set(&format!("BRIDGE_ADAPTERS_{name}_MAX_CONCURRENT"), "1");
    }
    let secret = home.dir.path().join("work/secret").display().to_string();
    fs::write(&secret, SECRET).unwrap();
    let bridge = home.start();
    (home, bridge, secret)
}

fn workspace(home: &Home, name: &str) -> String {
    let dir = home
        .dir
        .path()
        .canonicalize()
        .unwrap()
        .join("work")
        .join(name);
    fs::create_dir(&dir).unwrap();
    dir.display().to_string()
}

fn assert_untouched(secret: &str, by: &str) {
    assert_eq!(fs::read_to_string(secret).unwrap(), SECRET, "{by}");
}

#[tokio::test]
async fn no_output_comes_from_a_link_a_second_name_a_pipe_or_a_folder() {
    let (home, bridge, secret) = start();
    for attacker in ALL {
        for kind in ["link", "name", "pipe", "folder"] {
            let dir = workspace(&home, &format!("{attacker}-{kind}"));
            let path = format!("{dir}/output.md");
            let body = with(
                order(attacker, "output", &[kind, &path, &secret]),
                &json!({"outputStrategy": "file", "workspace": {"dir": dir}}),
            );
            let result = bridge.api.run(body).await;
            let left = Path::new(&path).symlink_metadata().unwrap().file_type();
            assert_eq!(left.is_file(), kind == "name", "{attacker} {kind}");
            assert_eq!(left.is_fifo(), kind == "pipe", "{attacker} {kind}");
            let code = &result["errorCode"];
            assert_eq!(code, "output_missing", "{attacker} {kind}: {result}");
            assert!(!result.to_string().contains(SECRET), "{result}");
        }
        assert_untouched(&secret, attacker);
        assert_unharmed(&bridge, attacker).await;
    }
}

#[tokio::test]
async fn an_adapter_reads_and_writes_for_an_agent_in_its_workspace_only() {
    let (home, bridge, secret) = start();
    for attacker in ["agent", "agent-apart"] {
        let dir = workspace(&home, attacker);
        let body = with(
            order(attacker, "files", &[&dir, &secret]),
            &json!({"workspace": {"dir": dir}}),
        );
        let found = reported(&bridge.api.run(body).await);
        let none: [&str; 0] = [];
        assert_eq!(found, none, "{attacker}");
        assert_untouched(&secret, attacker);
    }
}

#[tokio::test]
async fn a_workspace_that_was_replaced_before_the_start_is_not_used() {
    let (home, bridge, _) = start();
    for attacker in ALL {
        let dir = workspace(&home, attacker);
        let outside = home.dir.path().join(attacker).display().to_string();
        fs::create_dir(&outside).unwrap();
        let gate = format!("{outside}.gate");
        let first = order(attacker, "replace", &[&dir, &outside, &gate]);
        let first = bridge.api.dispatch(first).await;
        bridge.api.running(&first).await;
        let second = with(
            order(attacker, "output", &["folder", &format!("{dir}/made"), "-"]),
            &json!({"workspace": {"dir": dir}}),
        );
        let second = bridge.api.dispatch(second).await;
        fs::write(&gate, "").unwrap();
        assert_eq!(
            reported(&bridge.api.finished(&first).await["result"]),
            [dir]
        );
        let result = bridge.api.finished(&second).await["result"].clone();
        let code = &result["errorCode"];
        assert_eq!(code, "workspace_unavailable", "{attacker}: {result}");
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{attacker}");
        let none: [&str; 0] = [];
        assert_eq!(attack(&bridge, attacker, "open", &[]).await, none);
    }
}
