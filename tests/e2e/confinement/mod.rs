//! One hostile library in C and one hostile agent (`tests/fixtures/hostile`) attack the bridge: its memory and files, its
//! processes, its listeners and its bounds. The library runs in the bridge and in a process of its own, the agent under
//! `acp` and `command`, in both isolations. Each reports what succeeded.
//!
//! A library in the bridge's process has its memory, files, descriptors and rights, and so has one in a process of its own
//! the files of the bridge's user. No test pretends otherwise: `processes` and `secrets` name what is left out.

mod bounds;
mod files;
mod folders;
mod processes;
mod secrets;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use super::harness::api::with;
use super::harness::library;
use super::harness::plugins;
use super::harness::process::{Home, Process};

/// Adapters that run the attacks, by their ids in [`home`].
const LIBRARY: &str = "library";
const LIBRARY_APART: &str = "library-apart";
const AGENTS: [&str; 4] = ["agent", "agent-apart", "program", "program-apart"];
const ALL: [&str; 6] = [
    "library",
    "library-apart",
    "agent",
    "agent-apart",
    "program",
    "program-apart",
];

/// The system's Python: every user can run it, and it is no script that looks for another one.
pub(super) const PYTHON: &str = "/usr/bin/python3";

/// A user without rights: that of files without a known owner.
const UNPRIVILEGED: u32 = 65534;

/// A home with all attackers, and with echo. Other users can enter it, as `/var/lib/forge-bridge` can be; the bridge itself
/// closes what is secret.
fn home() -> Home {
    let mut home = Home::new(&[
        ("BRIDGE_ADAPTERS", &format!("{},echo", ALL.join(","))),
        ("COMMAND_API_KEY", "key-of-a-provider"),
    ]);
    let dir = home.dir.path().to_owned();
    open_to_all(&dir);
    open_to_all(&dir.join("tmp"));
    let libraries = dir.join("plugins");
    fs::create_dir(&libraries).unwrap();
    open_to_all(&libraries);
    let hostile = libraries.join(library::file_name("hostile"));
    library::compile(&hostile, "hostile/plugin.c", &[]);
    let agent = dir.join("agent.py");
    fs::copy(
        library::root().join("tests/fixtures/hostile/agent.py"),
        &agent,
    )
    .unwrap();
    let mut config = String::new();
    for attacker in ALL {
        let (library, apart) = match attacker.split_once('-') {
            Some((library, _)) => (library, "isolation = \"process\"\n"),
            None => (attacker, ""),
        };
        let start = format!("program = {PYTHON:?}\nargs = [{agent:?}]\n");
        let (library, settings) = match library {
            "library" => ("hostile", String::new()),
            "agent" => ("acp", start),
            _ => (
                "command",
                format!("{start}stdin = \"prompt\"\nenv = {{ TMPDIR = \".\" }}\n"),
            ),
        };
        config.push_str(&format!(
            "[adapters.{attacker}]\nlibrary = \"{library}\"\n{apart}{settings}"
        ));
    }
    let file = dir.join("forge.toml");
    fs::write(&file, config).unwrap();
    home.set("BRIDGE_CONFIG", &file.display().to_string());
    home.set("PATH", &std::env::var("PATH").unwrap());
    let path = format!("{},{}", libraries.display(), plugins().display());
    home.set("BRIDGE_PLUGIN_PATH", &path);
    home
}

/// Adds settings to a home.
fn configure(home: &Home, more: &str) {
    let file = home.dir.path().join("forge.toml");
    let config = fs::read_to_string(&file).unwrap() + more;
    fs::write(&file, config).unwrap();
}

fn open_to_all(folder: &Path) {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

/// Lets agents run as a user without rights, with a folder for theirs.
fn give_user(home: &mut Home) {
    let user = format!("{UNPRIVILEGED}:{UNPRIVILEGED}");
    home.set("BRIDGE_PROCESS_USER", &user);
    give_folder(home);
}

/// Sets the folder of the folders of executions.
fn give_folder(home: &mut Home) {
    let folder = home.dir.path().join("agents").display().to_string();
    home.set("BRIDGE_PROCESS_FOLDER", &folder);
}

/// Lets the bridge of this home run without rights: program, libraries and home belong to another user.
fn give_up_root(home: &mut Home) {
    let dir = home.dir.path();
    let program = dir.join("forge-bridge");
    fs::copy(env!("CARGO_BIN_EXE_forge-bridge"), &program).unwrap();
    for name in ["acp", "command", "echo"].map(library::file_name) {
        let copy = dir.join("plugins").join(&name);
        fs::copy(plugins().join(&name), &copy).unwrap();
        library::make_safe(&copy);
    }
    for owned in ["", "tmp", "work"] {
        chown(dir.join(owned), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    let id = UNPRIVILEGED.to_string();
    let words = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    // The program is appended; `sh` drops it for the copy.
    let copy = format!("exec {} \"$@\"", program.display());
    let all = words.into_iter().chain(["sh", "-c", &copy]);
    home.wrapper = all.map(str::to_owned).collect();
    let libraries = dir.join("plugins").display().to_string();
    home.set("BRIDGE_PLUGIN_PATH", &libraries);
}

#[expect(clippy::print_stdout, reason = "a test that does not run says why")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: this test needs to be started as root");
    }
    root
}

/// A dispatch of an attack to an attacker.
fn order(attacker: &str, attack: &str, arguments: &[&str]) -> Value {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let words = [&[attack], arguments].concat();
    json!({
        "taskId": format!("{attacker}-{attack}-{number}"), "agentId": "a", "provider": attacker,
        "message": words.join(" "), "callbackUrl": null,
    })
}

/// Successes in the result of an attack.
fn reported(result: &Value) -> Vec<String> {
    assert_eq!(result["status"], "ok", "{result}");
    let report = serde_json::from_str(result["output"].as_str().unwrap());
    report.unwrap_or_else(|_| panic!("no report: {result}"))
}

/// Runs an attack; returns what succeeded.
async fn attack(bridge: &Process, attacker: &str, attack: &str, arguments: &[&str]) -> Vec<String> {
    reported(&bridge.api.run(order(attacker, attack, arguments)).await)
}

/// Asserts that the bridge and the attacker run another dispatch.
async fn assert_unharmed(bridge: &Process, attacker: &str) {
    let echo = json!({"provider": "echo", "model": "ok"});
    let result = bridge
        .api
        .run(with(order("echo", "open", &[]), &echo))
        .await;
    assert_eq!(result["status"], "ok", "{attacker}: {result}");
    let none: [&str; 0] = [];
    assert_eq!(attack(bridge, attacker, "open", &[]).await, none);
}
