//! Attacks on what a bridge with more rights does for an agent: with the folder that it gives to the agent's user, and with
//! the files that it opens for the agent.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use serde_json::json;

use super::super::harness::api::with;
use super::super::harness::process::Home;
use super::{
    PYTHON, UNPRIVILEGED, attack, configure, give_folder, give_user, home, is_root, order, reported,
};

const SECRET: &str = "a secret of the bridge";

/// Names below a folder whose owner is another one than root.
fn of_others(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        if metadata.uid() != 0 {
            found.push(path.display().to_string());
        }
        if metadata.is_dir() {
            found.extend(of_others(&path));
        }
    }
    found
}

/// Each agent exchanges its folder, or what is in it, while it waits for work. Its work starts an MCP server in the same
/// environment, which gave the agent's user everything behind the exchanged names. `FORGE_EXCHANGES` is the number of
/// dispatches for each kind.
#[tokio::test]
async fn an_agent_that_exchanges_its_folder_gets_nothing_else() {
    if !is_root() {
        return;
    }
    let dispatches = std::env::var("FORGE_EXCHANGES").map_or(4, |text| text.parse().unwrap());
    let mut home = home();
    give_user(&mut home);
    let dir = home.dir.path().to_owned();
    let outside = dir.join("outside");
    fs::create_dir_all(outside.join("below")).unwrap();
    for file in ["file", "below/file"].map(|file| outside.join(file)) {
        fs::write(&file, SECRET).unwrap();
        // A second name of a file needs the right to write it.
        fs::set_permissions(&file, Permissions::from_mode(0o666)).unwrap();
    }
    let kinds = ["folder", "inner", "file"];
    let mut more =
        "[mcp]\nrequired = false\n[mcp.servers.tool]\ncommand = \"/bin/true\"\n".to_owned();
    for kind in kinds {
        more.push_str(&format!(
            "[adapters.{kind}]\nlibrary = \"acp\"\nprogram = {PYTHON:?}\nwarm = 1\n\
             args = [{:?}, \"{kind}\", {outside:?}]\n",
            dir.join("agent.py"),
        ));
    }
    configure(&home, &more);
    home.set("BRIDGE_ADAPTERS", &format!("{},echo", kinds.join(",")));
    let bridge = home.start();
    let none: [&str; 0] = [];
    for kind in kinds {
        for _ in 0..dispatches {
            let body = with(order(kind, "open", &[]), &json!({"mcpServers": ["tool"]}));
            let result = bridge.api.run(body).await;
            assert_eq!(reported(&result), none, "{kind}");
            assert_eq!(of_others(&outside), none, "{kind}");
        }
    }
    let agents = dir.join("agents").metadata().unwrap();
    assert_eq!((agents.uid(), agents.mode() & 0o7777), (0, 0o711));
    drop(bridge);
}

/// A workspace of the agents' user with entries of root, as a backup or an administrator leaves them.
fn workspace(home: &Home, name: &str) -> String {
    let dir = home.dir.path().canonicalize().unwrap();
    let dir = dir.join("work").join(name);
    fs::create_dir_all(dir.join(".git/hooks")).unwrap();
    for (file, mode) in [
        ("secret", 0o600),
        ("output.md", 0o600),
        (".git/hooks/pre-commit", 0o644),
    ] {
        let file = dir.join(file);
        fs::write(&file, SECRET).unwrap();
        fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    }
    chown(&dir, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    dir.display().to_string()
}

#[tokio::test]
async fn the_bridge_opens_no_file_for_an_agent_that_its_user_cannot_open() {
    if !is_root() {
        return;
    }
    for apart in ["", "-apart"] {
        let mut home = home();
        give_user(&mut home);
        let bridge = home.start();
        let dir = workspace(&home, "agent");
        let files = ["secret", ".git/hooks/pre-commit", ".git/hooks/new"];
        let arguments = [&[dir.as_str()], &files[..]].concat();
        let body = with(
            order(&format!("agent{apart}"), "lent", &arguments),
            &json!({"workspace": {"dir": dir}}),
        );
        let found = reported(&bridge.api.run(body).await);
        // Every user can read the hook.
        assert_eq!(found, ["read .git/hooks/pre-commit"], "{apart}");
        let own = Path::new(&dir).join("mine").metadata().unwrap();
        assert_eq!(own.uid(), UNPRIVILEGED, "{apart}");
        let body = with(
            order(&format!("program{apart}"), "open", &[]),
            &json!({"outputStrategy": "file", "workspace": {"dir": dir}}),
        );
        let result = bridge.api.run(body).await;
        assert_eq!(result["errorCode"], "output_missing", "{result}");
        let text = result.to_string();
        assert!(text.contains("Permission denied"), "{text}");
        assert!(!text.contains(SECRET), "{text}");
        for file in ["secret", "output.md", ".git/hooks/pre-commit"] {
            let content = fs::read_to_string(Path::new(&dir).join(file)).unwrap();
            assert_eq!(content, SECRET, "{file}");
        }
        drop(bridge);
    }
}

/// A folder that agents could write, or cannot pass, is named at the start.
#[test]
fn a_folder_of_agents_that_is_shared_stops_the_start() {
    if !is_root() {
        return;
    }
    for (mode, wanted) in [(0o1777, "not trusted"), (0o711, "")] {
        let mut home = home();
        give_user(&mut home);
        give_folder(&mut home);
        let folder = home.dir.path().join("agents");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
        match home.launch() {
            Ok(_) => assert_eq!(wanted, "", "{mode:o}"),
            Err(log) => {
                assert!(
                    log.contains("process.folder") && log.contains(wanted),
                    "{log}"
                );
            }
        }
    }
}

/// The attack itself works where it may: the same request for files of the agent's own user.
#[tokio::test]
async fn the_bridge_opens_the_files_of_the_agents_user() {
    if !is_root() {
        return;
    }
    let mut home = home();
    give_user(&mut home);
    let bridge = home.start();
    let dir = workspace(&home, "own");
    chown(
        Path::new(&dir).join("secret"),
        Some(UNPRIVILEGED),
        Some(UNPRIVILEGED),
    )
    .unwrap();
    let body = with(
        order("agent", "lent", &[&dir, "secret"]),
        &json!({"workspace": {"dir": dir}}),
    );
    let found = reported(&bridge.api.run(body).await);
    assert_eq!(found, ["read secret", "written secret"]);
    let none: [&str; 0] = [];
    assert_eq!(attack(&bridge, "agent", "open", &[]).await, none);
}
