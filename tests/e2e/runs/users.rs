//! Agents that run as another user than the bridge.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::super::harness::process::{Home, Process};
use super::*;

const USER: u32 = 65534;

/// Captain and agent in one: a plan of one task if it is offered `set_dag`, else the work of an agent, which uses git as
/// usual and tries to reach what is not its own.
const AGENT: &str = r#"
read -r request
case $request in
*set_dag*toolResults\":\[{*) echo '{"status":"ok","sessionId":"s","output":"planned"}' ;;
*set_dag*) echo '{"status":"ok","sessionId":"s","toolCalls":[
{"toolCallId":"1","name":"create_task","input":{"id":"a","title":"A","type":1,"dependencies":[],"instructions":"work"}},
{"toolCallId":"2","name":"set_dag","input":{"nodes":[{"id":"a","type":"task","agentType":1,"dependencies":[]}]}}]}' |
    tr -d '\n'; echo ;;
*)
    id -u > who.txt
    echo mine >> README.md
    git log --format=%an > log.txt && git add -A && git commit -qm mine || echo "git fails" > who.txt
    cd "$PWD" || echo "no way to the folder" > who.txt
    run=$(dirname "$(dirname "$(dirname "$PWD")")")
    for closed in "$run" "$run/repository.git" "$(dirname "$run")"; do
        ls "$closed" > /dev/null 2>&1 && echo "reads $closed" >> who.txt
    done
    touch "$run/shared.git/objects/mine" 2> /dev/null && echo "writes to the shared objects" >> who.txt
    echo '{"status":"ok","output":"done"}' ;;
esac
"#;

fn start(home: &mut Home, origin: &Origin, runs: &Path) -> Process {
    let script = home.dir.path().join("agent.sh");
    std::fs::write(&script, AGENT).unwrap();
    let [root, runs] = [origin.root.path(), runs].map(|path| path.display().to_string());
    let settings = format!(
        "[runs]\nprovider = \"command\"\nfolder = \"{runs}\"\nlocal_roots = [\"{root}\"]\n\
         checks = {{ \"file://\" = [[\"sh\", \"-c\", \"id -u > made-by-a-check && test $(cat made-by-a-check) = {USER}\"]] }}\n\
         [adapters.command]\nprogram = \"/bin/sh\"\nargs = [\"-c\", '. \"$0\"', \"{script}\", [\"{{session_id}}\"]]\n\
         stdin = \"request\"\noutput = \"bridge\"\n",
        script = script.display()
    );
    std::fs::write(home.dir.path().join("forge-bridge.toml"), settings).unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(home.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    home.set("PATH", &std::env::var("PATH").unwrap());
    home.set("BRIDGE_ADAPTERS", "command");
    let folder = home.dir.path().join("agents").display().to_string();
    home.set("BRIDGE_PROCESS_FOLDER", &folder);
    home.start()
}

#[expect(clippy::print_stdout, reason = "a test that does not run says why")]
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("not run: this test needs to be started as root");
    }
    root
}

/// By `process.user`, and by the setting of the adapter, where the checks run as the user of the bridge.
#[tokio::test]
async fn an_agent_of_another_user_works_in_its_checkout_and_nowhere_else() {
    if !is_root() {
        return;
    }
    let runs = tempfile::tempdir().unwrap();
    std::fs::set_permissions(runs.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let origin = Origin::new();
    let mut home = Home::new(&[]);
    home.set("BRIDGE_PROCESS_USER", &format!("{USER}:{USER}"));
    let folder = runs.path().join("runs");
    let bridge = start(&mut home, &origin, &folder);
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, "Begin").await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "who.txt"), USER.to_string());
    assert_eq!(origin.file(&target, "README.md"), "a\nb\nc\nmine");
    assert_eq!(origin.file(&target, "log.txt"), "tester");
    let events = events(api, &run).await;
    assert_eq!(of(&events, "refinery.tests")[0]["passed"], 1, "{events:?}");
    let metadata = std::fs::metadata(&folder).unwrap();
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o711));
    bridge.kill();
}

/// A folder that an agent of another user cannot reach is named at the start, and no run begins.
#[tokio::test]
async fn a_folder_that_agents_cannot_reach_makes_runs_unavailable() {
    if !is_root() {
        return;
    }
    let closed = tempfile::tempdir().unwrap();
    std::fs::set_permissions(closed.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let origin = Origin::new();
    let mut home = Home::new(&[]);
    home.set("BRIDGE_ADAPTERS_COMMAND_USER", &format!("{USER}:{USER}"));
    let bridge = start(&mut home, &origin, &closed.path().join("runs"));
    let (status, answer) = bridge
        .api
        .post("/api/v1/runs", &json!({"repoUrl": origin.url()}))
        .await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
    let text = answer.to_string();
    let path = closed.path().display().to_string();
    assert!(
        text.contains(&path) && text.contains("runs.folder"),
        "{text}"
    );
    bridge.kill();
}
