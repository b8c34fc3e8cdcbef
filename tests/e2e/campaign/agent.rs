//! Programs that adapters start, and a library in its own process: they attack the bridge's processes, key, store, settings and
//! plugins, the files of others, and what the bridge opens for them. `confinement` has the single attacks, one by one.

use super::super::confinement::PYTHON;
use super::super::harness::library;
use super::*;

const AGENTS: [&str; 2] = ["agent", "program"];
const LIBRARY: &str = "hostile";
/// A file that every user can open, which shows that the attack works.
const PUBLIC: &str = "/etc/passwd";

/// Dispatches to a library that is being started again.
const RESTART_TRIES: usize = 1000;

/// Settings of the attackers.
fn settings() -> String {
    let start = format!("program = {PYTHON:?}\nargs = [\"{{opt}}/agent.py\"]\n");
    format!(
        "[adapters.agent]\nlibrary = \"acp\"\n{start}[adapters.program]\nlibrary = \"command\"\n{start}\
         stdin = \"prompt\"\nenv = {{ TMPDIR = \".\" }}\n[adapters.{LIBRARY}]\nisolation = \"process\"\n"
    )
}

fn prepare(folder: &Path) {
    let source = library::root().join("tests/fixtures/hostile/agent.py");
    fs::copy(source, folder.join("agent.py")).unwrap();
    let library = folder.join("plugins").join(library::file_name(LIBRARY));
    library::compile(&library, "hostile/plugin.c", &[]);
}

/// The bridge and its descendants, without those that run the agent.
fn processes(campaign: &Campaign) -> Vec<u32> {
    let parent = |pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        rest.split(' ').nth(1)?.parse::<u32>().ok()
    };
    let all = fs::read_dir("/proc").unwrap().flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let root = campaign.bridge.id();
    let below = all.filter(|pid| {
        let mut pid = *pid;
        while pid != root {
            match parent(pid) {
                Some(next) if next > 1 => pid = next,
                _ => return false,
            }
        }
        true
    });
    let runs_agent = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains("agent.py")
    };
    below.filter(|pid| !runs_agent(pid)).collect()
}

/// Dispatches an attack; returns its result.
async fn dispatched(
    campaign: &mut Campaign,
    attacker: &str,
    words: &[&str],
    extra: &Value,
) -> Value {
    let task = format!("{attacker}-{}", campaign.attempts);
    let body = json!({
        "taskId": task, "agentId": "a", "provider": attacker, "message": words.join(" "), "callbackUrl": null,
    });
    let id = campaign.accepted(ATTACKER, None, &with(body, extra)).await;
    let record = campaign
        .get(&format!("/api/v2/dispatch/{id}?wait=60"))
        .await;
    assert_eq!(
        record["status"], "finished",
        "{attacker} {words:?}: {record}"
    );
    record["result"].clone()
}

/// Runs an attack of so many attempts; returns what succeeded.
async fn attack(
    campaign: &mut Campaign,
    attacker: &str,
    words: &[&str],
    extra: &Value,
) -> Vec<String> {
    let result = dispatched(campaign, attacker, words, extra).await;
    let text = result["output"]
        .as_str()
        .unwrap_or_else(|| panic!("{attacker} {words:?}: {result}"));
    for _ in 0..words.len().saturating_sub(1).max(1) {
        campaign.tried(text.as_bytes());
    }
    serde_json::from_str(text)
        .unwrap_or_else(|error| panic!("{attacker} {words:?}: {error}: {text}"))
}

/// Memory, variables and rights of the bridge and its processes; what belongs to the bridge, for a user of its own.
async fn reaching(campaign: &mut Campaign, attacker: &str) {
    let pids: Vec<String> = processes(campaign).iter().map(u32::to_string).collect();
    let files = [
        "environ", "mem", "maps", "exe", "cwd", "root", "fd/0", "fd/3",
    ];
    let files = files.map(|file| {
        let all = pids.iter().map(|pid| format!("/proc/{pid}/{file}"));
        all.collect::<Vec<_>>()
    });
    let has_user = campaign.places.agents().is_some();
    let mut paths: Vec<String> = files.into_iter().flatten().collect();
    let mut folders = Vec::new();
    if has_user {
        let opt = "/opt/forge-bridge";
        let closed = [
            "/var/lib/forge-bridge",
            "/var/lib/forge-bridge/store",
            "/var/lib/forge-bridge/store/state",
            "/var/lib/forge-bridge/secret.key",
            "/var/cache/forge-bridge",
            "/srv/work",
            "/srv/work/private",
            "/srv/runs",
            "/opt/forge-bridge/forge-bridge.toml",
        ];
        paths.extend(closed.map(str::to_owned));
        let store = campaign.places.store();
        let entries = fs::read_dir(store).unwrap().flatten();
        let names = entries.map(|entry| entry.file_name().into_string().unwrap());
        paths.extend(names.map(|name| format!("/var/lib/forge-bridge/store/{name}")));
        folders = vec![
            "/var/lib/forge-bridge/store".to_owned(),
            "/var/lib/forge-bridge/secret.key".to_owned(),
            "/srv/work/private".to_owned(),
            format!("{opt}/plugins"),
            format!("{opt}/forge-bridge"),
            format!("{opt}/forge-bridge.toml"),
            "/etc/passwd".to_owned(),
        ];
    }
    paths.push(PUBLIC.to_owned());
    let none: [&str; 0] = [];
    let words = |name: &'static str, list: &[String]| -> Vec<String> {
        [vec![name.to_owned()], list.to_vec()].concat()
    };
    let all = words("open", &paths);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        attack(campaign, attacker, &all, &json!({})).await,
        [PUBLIC],
        "{attacker}"
    );
    let all = words("attach", &pids);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        attack(campaign, attacker, &all, &json!({})).await,
        ["own"],
        "{attacker}"
    );
    if !has_user {
        return;
    }
    let all = words("signal", &pids);
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    assert_eq!(
        attack(campaign, attacker, &all, &json!({})).await,
        none,
        "{attacker}"
    );
    for folder in &folders {
        assert_eq!(
            attack(campaign, attacker, &["remove", folder], &json!({})).await,
            none,
            "{attacker}"
        );
    }
}

/// A workspace of the attacker: as the test and as the bridge know it.
fn workspace(campaign: &Campaign, name: &str) -> (PathBuf, String) {
    let folder = campaign.places.work().join(name);
    fs::create_dir(&folder).unwrap();
    let user = campaign.places.agents().unwrap_or(campaign.places.owner());
    chown(&folder, Some(user), Some(user)).unwrap();
    let seen = campaign.places.seen(&folder);
    (folder, seen)
}

/// Something else in the place of an output, and files of others by way of the adapter.
async fn lending(campaign: &mut Campaign, attacker: &str) {
    let private = campaign
        .places
        .seen(&campaign.places.work().join("private"));
    let none: [&str; 0] = [];
    // The user of an agent cannot give a file of others a second name.
    let kinds = ["link", "pipe", "folder"];
    for kind in kinds {
        let (_, folder) = workspace(campaign, &format!("{attacker}-{kind}"));
        let path = format!("{folder}/output.md");
        let extra = json!({"outputStrategy": "file", "workspace": {"dir": folder}});
        let result = dispatched(
            campaign,
            attacker,
            &["output", kind, &path, &private],
            &extra,
        )
        .await;
        campaign.tried(result.to_string().as_bytes());
        assert_eq!(
            result["errorCode"], "output_missing",
            "{attacker} {kind}: {result}"
        );
    }
    if attacker != "agent" {
        return;
    }
    let (_, folder) = workspace(campaign, "files");
    let extra = json!({"workspace": {"dir": folder}});
    assert_eq!(
        attack(campaign, attacker, &["files", &folder, &private], &extra).await,
        none
    );
    if campaign.places.agents().is_none() {
        return;
    }
    let (inner, folder) = workspace(campaign, "lent");
    let secret = inner.join("secret");
    fs::write(&secret, FILE).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    campaign.files.insert(secret.clone(), fingerprint(&secret));
    let extra = json!({"workspace": {"dir": folder}});
    assert_eq!(
        attack(campaign, attacker, &["lent", &folder, "secret"], &extra).await,
        none
    );
}

/// Floods, which end nothing but the attacker's own execution or process.
async fn flooding(campaign: &mut Campaign) {
    for agent in AGENTS {
        let result = dispatched(campaign, agent, &["endless"], &json!({})).await;
        campaign.tried(result.to_string().as_bytes());
        assert_eq!(result["status"], "error", "{agent}: {result}");
    }
    for (attack, code) in [("answer", "output_too_large"), ("frame", "adapter_crashed")] {
        let mut result = dispatched(campaign, LIBRARY, &[attack], &json!({})).await;
        // The process of the attack before can still be ending.
        for _ in 0..RESTART_TRIES {
            if result["errorCode"] != "adapter_unavailable" {
                break;
            }
            result = dispatched(campaign, LIBRARY, &[attack], &json!({})).await;
        }
        campaign.tried(result.to_string().as_bytes());
        assert_eq!(result["errorCode"], code, "{attack}: {result}");
    }
}

async fn campaign(setting: Setting) {
    let needs = Needs {
        adapters: [&AGENTS[..], &[LIBRARY]].concat(),
        settings: settings(),
        prepare: Some(Box::new(prepare)),
        ..Needs::default()
    };
    let Some(mut campaign) = Campaign::start("agents and a library apart", setting, needs).await
    else {
        return;
    };
    for agent in AGENTS {
        reaching(&mut campaign, agent).await;
        lending(&mut campaign, agent).await;
    }
    lending(&mut campaign, LIBRARY).await;
    flooding(&mut campaign).await;
    campaign.prove().await;
}

#[tokio::test]
async fn an_agent_reads_and_changes_nothing_of_others() {
    for setting in [Setting::Shipped, Setting::Ordinary] {
        campaign(setting).await;
    }
}
