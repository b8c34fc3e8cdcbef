//! Attacks on secrets: memory and environment of the bridge and of its adapters' processes, key, store, workspaces, and
//! all that belongs to the agents of another adapter.
//!
//! Not attacked: by the library in the bridge its process, which is its own; by the one apart its own process, and the
//! files of its user; by an agent of the bridge's user these files (`docs/security.md`).

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;
use std::slice;

use serde_json::{Value, json};

use super::super::harness::process::{Home, Process};
use super::super::harness::until;
use super::super::private::{assert_private, below};
use super::{
    AGENTS, LIBRARY, LIBRARY_APART, PYTHON, UNPRIVILEGED, attack, configure, give_up_root,
    give_user, home, is_root, order, reported,
};

/// A file that every user can open, which shows that the attack works.
const PUBLIC: &str = "/etc/passwd";

/// Pids of the bridge, of the processes of its adapters, and of the supervisors of these.
fn bridge_and_hosts(home: &Home) -> Vec<String> {
    let data = format!("BRIDGE_DATA_DIR={}/data", home.dir.path().display());
    let tag = format!("HOME={}", home.dir.path().display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| {
        let pid = entry.file_name().into_string().ok()?;
        let environ = fs::read(entry.path().join("environ")).ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let has = |wanted: &str| {
            environ
                .split(|byte| *byte == 0)
                .any(|v| v == wanted.as_bytes())
        };
        let words: Vec<_> = words.split(|byte| *byte == 0).collect();
        let is_host = match words.get(1) {
            Some(&b"exec") => words.contains(&&b"adapter-host"[..]),
            Some(word) => *word == b"adapter-host",
            None => false,
        };
        (has(&data) || has(&tag) && is_host).then_some(pid)
    });
    pids.collect()
}

/// Ways into a process.
fn memory_of(pids: &[String]) -> Vec<String> {
    let files = pids.iter().flat_map(|pid| {
        ["environ", "mem", "maps", "exe", "cwd", "root", "fd/0"]
            .map(|file| format!("/proc/{pid}/{file}"))
    });
    files.collect()
}

/// Asserts that the attacker can open only what is public, and trace only its own process.
async fn assert_closed(bridge: &Process, attacker: &str, pids: &[String], files: &[String]) {
    let mut paths = memory_of(pids);
    paths.extend(files.iter().cloned());
    paths.push(PUBLIC.to_owned());
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    let opened = attack(bridge, attacker, "open", &paths).await;
    assert_eq!(opened, [PUBLIC], "{attacker}");
    let pids: Vec<&str> = pids.iter().map(String::as_str).collect();
    let traced = attack(bridge, attacker, "attach", &pids).await;
    assert_eq!(traced, ["own"], "{attacker}");
}

async fn assert_memory_closed(home: &Home, bridge: &Process) {
    let pids = bridge_and_hosts(home);
    assert_eq!(
        pids.len(),
        7,
        "the bridge and three supervised hosts: {pids:?}"
    );
    for attacker in AGENTS.iter().chain([&LIBRARY_APART]) {
        assert_closed(bridge, attacker, &pids, &[]).await;
        // The supervisor has only what the program has.
        let signalled = attack(bridge, attacker, "signal", &[]).await;
        assert_eq!(signalled, ["supervisor"], "{attacker}");
    }
}

#[tokio::test]
async fn the_bridges_user_cannot_open_the_memory_of_the_bridge() {
    if !is_root() {
        return;
    }
    let mut home = home();
    give_up_root(&mut home);
    let bridge = home.start();
    assert_memory_closed(&home, &bridge).await;
}

/// In a `/proc` that shows no closed process, as under `ProtectProc=invisible` of the unit.
#[tokio::test]
async fn attacks_run_where_the_bridge_is_invisible_to_their_supervisor() {
    let hide = "mount -t proc -o hidepid=invisible proc /proc";
    let unshare = ["unshare", "--mount", "sh", "-c"];
    let tried = Command::new(unshare[0])
        .args(&unshare[1..])
        .arg(hide)
        .status();
    if !is_root() || !tried.is_ok_and(|status| status.success()) {
        println!("not run: /proc cannot be mounted here");
        return;
    }
    let mut home = home();
    give_up_root(&mut home);
    let inner = format!("{hide} && exec \"$0\" \"$@\"");
    let outer = unshare.into_iter().chain([inner.as_str()]);
    let words = outer.map(str::to_owned).chain(home.wrapper.clone());
    home.wrapper = words.collect();
    let bridge = home.start();
    assert_memory_closed(&home, &bridge).await;
}

fn user(id: u32) -> String {
    format!("{id}:{id}")
}

fn closed_folder(path: &Path, owner: Option<u32>) {
    fs::create_dir(path).unwrap();
    fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    chown(path, owner, owner).unwrap();
}

#[tokio::test]
async fn an_agent_of_another_user_can_open_nothing_of_the_bridge() {
    if !is_root() {
        return;
    }
    let mut home = home();
    give_user(&mut home);
    let dir = home.dir.path().to_owned();
    closed_folder(&dir.join("work/other"), None);
    let bridge = home.start();
    let pids = bridge_and_hosts(&home);
    assert_eq!(
        pids.len(),
        7,
        "the bridge and three supervised hosts: {pids:?}"
    );

    let names = ["secret.key", "data", "data/state", "work/other"];
    let mut files: Vec<String> = names
        .map(|name| dir.join(name).display().to_string())
        .into();
    for entry in fs::read_dir(dir.join("data")).unwrap() {
        files.push(entry.unwrap().path().display().to_string());
    }
    for file in &files {
        assert!(Path::new(file).exists(), "{file}");
    }
    let data = dir.join("data").display().to_string();
    let signalled: Vec<&str> = pids.iter().map(String::as_str).collect();
    let none: [&str; 0] = [];
    for attacker in AGENTS {
        assert_closed(&bridge, attacker, &pids, &files).await;
        let found = attack(&bridge, attacker, "signal", &signalled).await;
        assert_eq!(found, none, "{attacker}");
        let found = attack(&bridge, attacker, "remove", &[&data]).await;
        assert_eq!(found, none, "{attacker}");
        let own = attack(&bridge, attacker, "own", &[]).await;
        assert_eq!(own.len(), 2, "{attacker} has folders of its own: {own:?}");
    }
    until("the folders of the runs to be removed", async || {
        let mut entries = fs::read_dir(dir.join("agents")).unwrap();
        entries.next().is_none().then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_agent_can_open_nothing_of_an_agent_of_another_user() {
    if !is_root() {
        return;
    }
    let others = UNPRIVILEGED - 1;
    let mut home = home();
    let more = format!(
        "[adapters.other]\nlibrary = \"acp\"\nprogram = {PYTHON:?}\nargs = [{:?}]\nuser = \"{}\"\n",
        home.dir.path().join("agent.py"),
        user(others),
    );
    configure(&home, &more);
    give_user(&mut home);
    let adapters = format!("{},other", home.variables["BRIDGE_ADAPTERS"]);
    home.set("BRIDGE_ADAPTERS", &adapters);
    let dir = home.dir.path().to_owned();
    let workspace = dir.join("work/other");
    closed_folder(&workspace, Some(others));
    let bridge = home.start();
    let ready = workspace.join("ready").display().to_string();
    let mut waiting = order("other", "wait", &[&ready]);
    waiting["workspace"] = json!({ "dir": workspace });
    let id = bridge.api.dispatch(waiting).await;
    let pid = until("the other agent to work", async || {
        let pid = fs::read_to_string(&ready).ok()?;
        Some(pid.trim().to_owned())
    })
    .await;

    let entries = fs::read_dir(dir.join("agents")).unwrap().flatten();
    let run_folders = entries.filter(|entry| entry.metadata().unwrap().uid() == others);
    let run_folders = run_folders.map(|entry| entry.path().display().to_string());
    let mut files: Vec<String> = run_folders.collect();
    assert_eq!(files.len(), 1, "the folder of the other run");
    files.extend([workspace.display().to_string(), ready.clone()]);
    let none: [&str; 0] = [];
    for attacker in AGENTS {
        assert_closed(&bridge, attacker, slice::from_ref(&pid), &files).await;
        let found = attack(&bridge, attacker, "signal", &[&pid]).await;
        assert_eq!(found, none, "{attacker}");
    }
    fs::write(format!("{ready}.go"), "").unwrap();
    reported(&bridge.api.finished(&id).await["result"]);
}

/// A library in the bridge sets the umask of the bridge.
#[tokio::test]
async fn with_the_umask_of_a_library_other_users_still_cannot_access_what_is_created() {
    let home = home();
    let bridge = home.start();
    let dir = home.dir.path();
    let none: [&str; 0] = [];
    for attacker in [LIBRARY, LIBRARY_APART] {
        assert_eq!(attack(&bridge, attacker, "umask", &[]).await, none);
    }
    let before = below(dir);
    let ready = dir.join("ready");
    let mut ids = Vec::new();
    for attacker in AGENTS {
        let ready = format!("{}-{attacker}", ready.display());
        ids.push(
            bridge
                .api
                .dispatch(order(attacker, "wait", &[&ready]))
                .await,
        );
        until("the agent to work", async || {
            fs::exists(&ready).unwrap().then_some(())
        })
        .await;
    }
    let (status, answer) = bridge
        .api
        .post("/api/v2/adapters/echo/pause", &Value::Null)
        .await;
    assert_eq!(status, 200, "{answer}");
    let mut created = &below(dir) - &before;
    // The agents' own files have the umask that they inherit.
    created.retain(|path| path.parent() != Some(dir));
    for attacker in AGENTS {
        let prefix = dir.join(format!("tmp/forge-{attacker}."));
        let prefix = prefix.to_str().unwrap();
        let mut paths = created.iter().filter_map(|path| path.to_str());
        assert!(
            paths.any(|path| path.starts_with(prefix)),
            "{attacker}: {created:#?}"
        );
    }
    assert!(
        created.iter().any(|path| path.ends_with("paused/echo")),
        "{created:#?}"
    );
    assert_private(&created);
    for (attacker, id) in AGENTS.into_iter().zip(ids) {
        fs::write(format!("{}-{attacker}.go", ready.display()), "").unwrap();
        reported(&bridge.api.finished(&id).await["result"]);
    }
}
