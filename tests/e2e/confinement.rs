//! Hostile programs, started by the adapter `command`: they cannot open the memory and, as another user, the files of
//! the bridge, and nothing of them is left. With the library in the bridge and in a process of its own.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::harness::library;
use super::harness::process::{Home, Process};
use super::harness::{plugins, until};

/// Prints those of the paths on stdin that it can open, or list.
const PROBE: &str = r#"
read -r paths
for path in $paths; do
  if [ -d "$path" ]; then ls "$path" >/dev/null 2>&1 && echo "$path"; continue; fi
  (: < "$path") 2>/dev/null && echo "$path"
done
kill -0 $PPID 2>/dev/null && echo "supervisor"
echo own > "$TMPDIR/file" && echo more > file && cat file > /dev/stdout
exit 0
"#;

/// Leaves a process without environment, in a session of its own, and kills the supervisor.
const ESCAPE: &str = r#"
read -r prompt
env -i setsid -f sh -c 'setsid -f sh -c "echo \$\$ > '"$ESCAPED"'; exec sleep 1000"'
until [ -s "$ESCAPED" ]; do sleep 0.01; done
kill -KILL $PPID
sleep 1000
"#;

const IN_PROCESS: &str = "in_process";
const APART: &str = "process";

/// A user without rights: that of files without a known owner.
const UNPRIVILEGED: u32 = 65534;

/// A home that other users can enter, as `/var/lib/forge-bridge` can be; the bridge itself closes what is secret.
fn home(script: &str, isolation: &str) -> Home {
    let mut home = Home::new(&[
        ("BRIDGE_ADAPTERS", "command"),
        ("BRIDGE_ADAPTERS_COMMAND_ISOLATION", isolation),
        ("COMMAND_API_KEY", "key-of-a-provider"),
    ]);
    let dir = home.dir.path().to_owned();
    open_to_all(&dir);
    open_to_all(&dir.join("tmp"));
    fs::write(dir.join("agent.sh"), script).unwrap();
    let config = format!(
        "[adapters.command]\nprogram = \"/bin/sh\"\nargs = [\"{0}/agent.sh\"]\nstdin = \"prompt\"\nenv = {{ ESCAPED = \
         \"{0}/tmp/escaped\", TMPDIR = \".\" }}\n",
        dir.display()
    );
    fs::write(dir.join("forge.toml"), config).unwrap();
    home.set(
        "BRIDGE_CONFIG",
        &dir.join("forge.toml").display().to_string(),
    );
    home.set("PATH", &std::env::var("PATH").unwrap());
    home
}

fn open_to_all(folder: &Path) {
    fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
}

/// Lets the bridge of this home run without rights: program, library and home belong to another user.
fn give_up_root(home: &mut Home) {
    let dir = home.dir.path();
    let program = dir.join("forge-bridge");
    fs::copy(env!("CARGO_BIN_EXE_forge-bridge"), &program).unwrap();
    let libraries = dir.join("plugins");
    fs::create_dir(&libraries).unwrap();
    let name = library::file_name("command");
    fs::copy(plugins().join(&name), libraries.join(&name)).unwrap();
    library::make_safe(&libraries.join(&name));
    for owned in ["", "tmp", "work"] {
        chown(dir.join(owned), Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    let id = UNPRIVILEGED.to_string();
    let words = ["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"];
    // The program is appended; `sh` drops it for the copy.
    let copy = format!("exec {} \"$@\"", program.display());
    let all = words.into_iter().chain(["sh", "-c", &copy]);
    home.wrapper = all.map(str::to_owned).collect();
    let libraries = libraries.display().to_string();
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

/// Pids of the bridge and of the adapter's process, if there is one.
fn bridge_and_host(home: &Home) -> Vec<i32> {
    let data = format!("BRIDGE_DATA_DIR={}/data", home.dir.path().display());
    let tag = format!("HOME={}", home.dir.path().display());
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let environ = fs::read(entry.path().join("environ")).ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let has = |wanted: &str| {
            environ
                .split(|byte| *byte == 0)
                .any(|v| v == wanted.as_bytes())
        };
        let is_host = words.split(|byte| *byte == 0).nth(1) == Some(b"adapter-host");
        (has(&data) || has(&tag) && is_host).then_some(pid)
    });
    pids.collect()
}

async fn run(bridge: &Process, message: &str) -> Value {
    let body = json!({
        "taskId": "t", "agentId": "a", "provider": "command", "message": message, "callbackUrl": null,
    });
    bridge.api.run(body).await
}

/// Runs the probe; returns what it could open.
async fn opened(bridge: &Process, paths: &[String]) -> Vec<String> {
    let mut all = paths.to_vec();
    // Shows that the probe works.
    all.push("/etc/passwd".to_owned());
    let result = run(bridge, &all.join(" ")).await;
    assert_eq!(result["status"], "ok", "{result}");
    let output = result["output"].as_str().unwrap().trim();
    let mut lines: Vec<String> = output.lines().map(str::to_owned).collect();
    assert_eq!(lines.pop().as_deref(), Some("more"), "{result}");
    let known = lines.iter().position(|line| line == "/etc/passwd");
    lines.remove(known.unwrap());
    lines
}

fn memory_of(pids: &[i32]) -> Vec<String> {
    let files = pids
        .iter()
        .flat_map(|pid| ["environ", "mem", "maps"].map(|file| format!("/proc/{pid}/{file}")));
    files.collect()
}

async fn same_user(isolation: &str, processes: usize) {
    if !is_root() {
        return;
    }
    let mut home = home(PROBE, isolation);
    give_up_root(&mut home);
    let bridge = home.start();
    let pids = bridge_and_host(&home);
    assert_eq!(pids.len(), processes, "{pids:?}");
    // The supervisor has only what the program has.
    assert_eq!(opened(&bridge, &memory_of(&pids)).await, ["supervisor"]);
}

#[tokio::test]
async fn an_agent_of_the_same_user_cannot_open_the_memory_of_the_bridge() {
    same_user(IN_PROCESS, 1).await;
}

#[tokio::test]
async fn an_agent_of_the_same_user_cannot_open_the_memory_of_its_adapters_process() {
    same_user(APART, 2).await;
}

/// In a `/proc` that shows no closed process, as under `ProtectProc=invisible` of the unit.
#[tokio::test]
async fn programs_run_where_the_bridge_is_invisible_to_their_supervisor() {
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
    let mut home = home(PROBE, IN_PROCESS);
    give_up_root(&mut home);
    let inner = format!("{hide} && exec \"$0\" \"$@\"");
    let outer = unshare.into_iter().chain([inner.as_str()]);
    let words = outer.map(str::to_owned).chain(home.wrapper.clone());
    home.wrapper = words.collect();
    let bridge = home.start();
    let pids = bridge_and_host(&home);
    assert_eq!(pids.len(), 1, "{pids:?}");
    assert_eq!(opened(&bridge, &memory_of(&pids)).await, ["supervisor"]);
}

async fn other_user(isolation: &str) {
    if !is_root() {
        return;
    }
    let mut home = home(PROBE, isolation);
    home.set(
        "BRIDGE_PROCESS_USER",
        &format!("{UNPRIVILEGED}:{UNPRIVILEGED}"),
    );
    let dir = home.dir.path().to_owned();
    let other = dir.join("work/other");
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, Permissions::from_mode(0o700)).unwrap();
    let bridge = home.start();

    let mut closed = memory_of(&bridge_and_host(&home));
    let names = ["secret.key", "data", "data/state", "work/other"];
    for path in names.map(|name| dir.join(name)) {
        assert!(path.exists(), "{}", path.display());
        closed.push(path.display().to_string());
    }
    for entry in fs::read_dir(dir.join("data")).unwrap() {
        closed.push(entry.unwrap().path().display().to_string());
    }
    let none: [String; 0] = [];
    assert_eq!(opened(&bridge, &closed).await, none);
    until("the folder of the run to be removed", async || {
        fs::read_dir(dir.join("tmp"))
            .unwrap()
            .next()
            .is_none()
            .then_some(())
    })
    .await;
}

#[tokio::test]
async fn an_agent_of_another_user_can_open_nothing_of_the_bridge() {
    other_user(IN_PROCESS).await;
}

#[tokio::test]
async fn an_agent_of_another_user_can_open_nothing_of_its_adapters_process() {
    other_user(APART).await;
}

/// Pids of the processes of a user that run this script.
fn running(user: u32, script: &Path) -> Vec<i32> {
    let script = script.as_os_str().as_encoded_bytes();
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let runs = words.split(|byte| *byte == 0).nth(1) == Some(script);
        (entry.metadata().ok()?.uid() == user && runs).then_some(pid)
    });
    pids.collect()
}

#[tokio::test]
async fn an_agent_cannot_open_what_an_agent_of_another_user_has() {
    if !is_root() {
        return;
    }
    let (own, others) = (UNPRIVILEGED, UNPRIVILEGED - 1);
    let mut home = home(PROBE, IN_PROCESS);
    let dir = home.dir.path().to_owned();
    let waiting = dir.join("waiting.sh");
    fs::write(&waiting, "sleep 1000\n").unwrap();
    let mut config = fs::read_to_string(dir.join("forge.toml")).unwrap();
    config.push_str(&format!(
        "user = \"{own}:{own}\"\n[adapters.other]\nlibrary = \"command\"\nprogram = \"/bin/sh\"\nargs = \
         [{waiting:?}]\nuser = \"{others}:{others}\"\n"
    ));
    fs::write(dir.join("forge.toml"), config).unwrap();
    home.set("BRIDGE_ADAPTERS", "command,other");
    let bridge = home.start();
    let body = json!({"taskId": "o", "agentId": "a", "provider": "other", "message": "go", "callbackUrl": null});
    bridge.api.dispatch(body).await;
    let pid = until("the other agent to work", async || {
        running(others, &waiting).first().copied()
    })
    .await;
    let entries = fs::read_dir(dir.join("tmp")).unwrap().flatten();
    let run_folders = entries.filter(|entry| entry.metadata().unwrap().uid() == others);
    let run_folders = run_folders.map(|entry| entry.path().display().to_string());
    let mut closed: Vec<String> = run_folders.collect();
    assert_eq!(closed.len(), 1, "the folder of the other run");
    closed.extend(memory_of(&[pid]));
    let none: [String; 0] = [];
    assert_eq!(opened(&bridge, &closed).await, none);
}

/// Pid that an escaped process has written.
async fn escaped(home: &Home) -> String {
    let file = home.dir.path().join("tmp/escaped");
    until("a process to escape", async || {
        let pid = fs::read_to_string(&file).ok()?;
        pid.ends_with('\n').then(|| pid.trim().to_owned())
    })
    .await
}

fn lives(pid: &str) -> bool {
    // A process that has ended and is not reaped has no arguments.
    fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty())
}

async fn escape(isolation: &str) {
    let home = home(ESCAPE, isolation);
    let bridge = home.start();
    let body = json!({"taskId": "t", "agentId": "a", "message": "go", "callbackUrl": null});
    let id = bridge.api.dispatch(body).await;
    let pid = escaped(&home).await;
    bridge.api.finished(&id).await;
    until("the escaped process to be killed", async || {
        (!lives(&pid)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn what_an_agent_leaves_after_killing_its_supervisor_is_killed() {
    escape(IN_PROCESS).await;
}

#[tokio::test]
async fn what_an_agent_leaves_after_killing_its_supervisor_is_killed_by_the_adapters() {
    escape(APART).await;
}

/// The supervisor is the bridge's: an agent of another user cannot kill it, and the escape ends with the run.
#[tokio::test]
async fn an_agent_of_another_user_cannot_kill_its_supervisor() {
    if !is_root() {
        return;
    }
    let mut home = home(ESCAPE, IN_PROCESS);
    home.set(
        "BRIDGE_ADAPTERS_COMMAND_USER",
        &format!("{UNPRIVILEGED}:{UNPRIVILEGED}"),
    );
    chown(
        home.dir.path().join("tmp"),
        Some(UNPRIVILEGED),
        Some(UNPRIVILEGED),
    )
    .unwrap();
    let bridge = home.start();
    let body = json!({"taskId": "t", "agentId": "a", "message": "go", "callbackUrl": null});
    let id = bridge.api.dispatch(body).await;
    let pid = escaped(&home).await;
    let owner = fs::metadata(format!("/proc/{pid}")).unwrap().uid();
    assert_eq!(owner, UNPRIVILEGED);
    assert!(bridge.api.cancel(&id).await);
    let record = bridge.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    until("the process to end with its run", async || {
        (!lives(&pid)).then_some(())
    })
    .await;
}

/// A user that cannot be switched to is an error at the start, not at the first dispatch.
#[test]
fn a_user_that_is_unknown_or_not_permitted_stops_the_start() {
    let mut unknown = home(PROBE, IN_PROCESS);
    unknown.set("BRIDGE_ADAPTERS_COMMAND_USER", "no-such-user");
    let log = unknown.launch().err().unwrap();
    assert!(
        log.contains("adapters.command.user") && log.contains("no-such-user"),
        "{log}"
    );
    if !is_root() {
        return;
    }
    let mut refused = home(PROBE, IN_PROCESS);
    give_up_root(&mut refused);
    refused.set("BRIDGE_PROCESS_USER", "1:1");
    let log = refused.launch().err().unwrap();
    assert!(
        log.contains("process.user") && log.contains("CAP_SETUID"),
        "{log}"
    );
}
