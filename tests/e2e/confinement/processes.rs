//! Attacks on the supervision of processes.
//!
//! Not attacked: by the library in the bridge. A process that it starts itself has no supervisor, and is the bridge's.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, chown};

use super::super::harness::process::{Home, Process};
use super::super::harness::until;
use super::{
    AGENTS, LIBRARY_APART, UNPRIVILEGED, assert_unharmed, give_up_root, give_user, home, is_root,
    order,
};

/// Lets an attacker's process escape. The id of the dispatch, and the pid that the process has written.
async fn escape(home: &Home, bridge: &Process, attacker: &str) -> (String, String) {
    let file = home.dir.path().join(format!("tmp/escaped-{attacker}"));
    let file = file.display().to_string();
    let order = order(attacker, "escape", &[&file]);
    let id = bridge.api.dispatch(order).await;
    let pid = until("a process to escape", async || {
        let pid = fs::read_to_string(&file).ok()?;
        Some(pid.trim().to_owned())
    });
    (id, pid.await)
}

async fn is_killed(pid: &str) {
    until("the escaped process to be killed", async || {
        // A process that has ended and is not reaped has no arguments.
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_process_that_is_left_after_killing_its_supervisor_is_killed() {
    let home = home();
    let bridge = home.start();
    for attacker in AGENTS.iter().chain([&LIBRARY_APART]) {
        let (id, pid) = escape(&home, &bridge, attacker).await;
        let record = bridge.api.finished(&id).await;
        assert_eq!(record["result"]["status"], "error", "{attacker}: {record}");
        is_killed(&pid).await;
        until("the adapter to be healthy", async || {
            let (_, health) = bridge.api.get("/api/health").await;
            (health["adapters"][*attacker]["status"] == "healthy").then_some(())
        })
        .await;
        assert_unharmed(&bridge, attacker).await;
    }
}

/// The supervisor is the bridge's: an agent of another user cannot kill it, and the escape ends with the run.
#[tokio::test]
async fn an_agent_of_another_user_cannot_kill_its_supervisor() {
    if !is_root() {
        return;
    }
    let mut home = home();
    give_user(&mut home);
    let folder = home.dir.path().join("tmp");
    chown(folder, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    let bridge = home.start();
    for attacker in AGENTS {
        let (id, pid) = escape(&home, &bridge, attacker).await;
        let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
        assert_eq!(owner, UNPRIVILEGED);
        assert!(bridge.api.cancel(&id).await);
        let record = bridge.api.finished(&id).await;
        let code = &record["result"]["errorCode"];
        assert_eq!(code, "cancelled", "{attacker}: {record}");
        is_killed(&pid).await;
    }
}

/// A user that cannot be switched to is an error at the start, not at the first dispatch.
#[test]
fn a_user_that_is_unknown_or_not_permitted_stops_the_start() {
    let mut unknown = home();
    unknown.set("BRIDGE_ADAPTERS_PROGRAM_USER", "no-such-user");
    let log = unknown.launch().err().unwrap();
    assert!(
        log.contains("adapters.program.user") && log.contains("no-such-user"),
        "{log}"
    );
    if !is_root() {
        return;
    }
    let mut refused = home();
    give_up_root(&mut refused);
    refused.set("BRIDGE_PROCESS_USER", "1:1");
    let log = refused.launch().err().unwrap();
    assert!(
        log.contains("process.user") && log.contains("CAP_SETUID"),
        "{log}"
    );
}
