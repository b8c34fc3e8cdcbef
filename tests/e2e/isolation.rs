//! Adapters in child processes, through the HTTP interface: the effect of a crash on dispatches and on health, and no
//! process that outlives the bridge.

use std::fs;

use serde_json::{Value, json};

use super::harness::api::{quiet, with};
use super::harness::process::Home;
use super::harness::{Bridge, until};

/// Configuration with echo in a child process and, under another name, in the bridge.
const ECHOES: &str = "
[plugin]
adapters = [\"echo\", \"bystander\"]
[plugin.restart]
backoff = \"1ms\"
[adapters.echo]
isolation = \"process\"
[adapters.bystander]
library = \"echo\"
";

fn crash(task: &str, recovery: &str) -> Value {
    with(
        quiet(task, "crash"),
        &json!({"provider": "echo", "recovery": recovery}),
    )
}

fn at(provider: &str, task: &str) -> Value {
    with(quiet(task, "stream:3"), &json!({"provider": provider}))
}

async fn health(bridge: &Bridge) -> Value {
    bridge.api.get("/api/health").await.1["adapters"]["echo"].take()
}

async fn healthy(bridge: &Bridge) {
    until("echo to be healthy", || async {
        (health(bridge).await["status"] == "healthy").then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_crash_ends_as_the_recovery_policy_says_and_the_next_dispatch_is_served() {
    let bridge = Bridge::configured(ECHOES, &[("BRIDGE_ADAPTERS", "echo,bystander")]).await;
    let (_, shown) = bridge.api.get("/api/v2/adapters/echo").await;
    assert_eq!(shown["isolation"], "process");
    let (_, shown) = bridge.api.get("/api/v2/adapters/bystander").await;
    assert_eq!(shown["isolation"], "in_process");

    let result = bridge.api.run(crash("fail", "fail")).await;
    assert_eq!(
        (&result["errorCode"], &result["attempt"]),
        (&json!("adapter_crashed"), &json!(1))
    );
    assert!(
        result["error"].as_str().unwrap().contains("SIGABRT"),
        "{result}"
    );
    let next = bridge.api.run(at("echo", "next")).await;
    assert_eq!(
        (&next["status"], &next["attempt"]),
        (&json!("ok"), &json!(1)),
        "{next}"
    );

    let result = bridge.api.run(crash("retry", "retry")).await;
    assert_eq!(
        (&result["errorCode"], &result["attempt"]),
        (&json!("adapter_crashed"), &json!(3))
    );
    let next = bridge.api.run(at("bystander", "other")).await;
    assert_eq!(next["status"], "ok");
    healthy(&bridge).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_crash_loop_is_shown_by_health_and_ended_by_a_reload() {
    let bridge = Bridge::configured(ECHOES, &[("BRIDGE_ADAPTERS", "echo,bystander")]).await;
    let mut crashes = 0;
    for n in 0.. {
        let result = bridge.api.run(crash(&format!("crash-{n}"), "fail")).await;
        // A call that reaches the process as it exits is refused, and is no crash of its own.
        let is_late = result["errorCode"] == "adapter_unavailable" && result["retryable"] == true;
        if is_late && n < 50 {
            continue;
        }
        assert_eq!(result["errorCode"], "adapter_crashed", "{result}");
        crashes += 1;
        if crashes == 5 {
            break;
        }
    }
    let line = until("the quarantine", || async {
        let echo = health(&bridge).await;
        let message = echo["message"].as_str().unwrap_or_default().to_owned();
        (echo["status"] == "offline" && message.starts_with("quarantined")).then_some(message)
    })
    .await;
    for part in [
        "5 times within 60s",
        "SIGABRT",
        "forge-bridge adapters reload echo",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert_eq!(
        bridge.api.run(at("bystander", "other")).await["status"],
        "ok"
    );
    let (_, shown) = bridge.api.get("/api/v2/adapters/echo").await;
    assert_eq!(shown["health"]["message"], line);
    let quarantine = &shown["quarantine"];
    assert_eq!(quarantine["crashes"], 5, "{shown}");
    assert!(line.contains(quarantine["since"].as_str().unwrap()));
    assert!(line.contains(quarantine["reason"].as_str().unwrap()));
    assert_eq!(&health(&bridge).await["quarantine"], quarantine);

    let waiting = bridge.api.dispatch(at("echo", "waiting")).await;
    let echo = bridge.app.as_ref().unwrap().registry.get("echo").unwrap();
    echo.reload().await.unwrap();
    assert_eq!(
        bridge.api.finished(&waiting).await["result"]["status"],
        "ok"
    );
    healthy(&bridge).await;
    let (_, shown) = bridge.api.get("/api/v2/adapters/echo").await;
    assert_eq!(shown["quarantine"], json!(null));
    bridge.stop().await;
}

#[tokio::test]
async fn a_killed_bridge_leaves_no_host_and_no_grandchild() {
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "command,lines")]);
    let dir = home.dir.path().to_owned();
    let script = "echo $$ >> \"$HOME/pids\"; setsid -f sleep 300; sleep 300 & echo $! >> \"$HOME/pids\"; wait";
    fs::write(dir.join("agent.sh"), script).unwrap();
    let plugins = dir.join("plugins");
    fs::create_dir(&plugins).unwrap();
    let lines = plugins.join("forge-adapter-lines");
    fs::copy(
        super::harness::library::root().join("tests/fixtures/lines/forge-adapter-lines"),
        &lines,
    )
    .unwrap();
    super::harness::library::make_safe(&lines);
    super::harness::library::make_safe(&plugins);
    let config = format!(
        "[plugin]\npath = [{:?}, {:?}]\n[adapters.command]\nisolation = \"process\"\nprogram = \"sh\"\nargs = [{:?}]\noutput = \"bridge\"\n",
        plugins.display().to_string(),
        super::harness::plugins().display().to_string(),
        dir.join("agent.sh").display().to_string(),
    );
    fs::write(dir.join("forge.toml"), config).unwrap();
    let variables = [
        (
            "BRIDGE_CONFIG",
            dir.join("forge.toml").display().to_string(),
        ),
        ("PATH", std::env::var("PATH").unwrap()),
    ];
    home.variables.remove("BRIDGE_PLUGIN_PATH");
    home.variables
        .extend(variables.map(|(name, value)| (name.to_owned(), value)));

    let bridge = home.start();
    let there = |word: &str| {
        living(&home)
            .into_iter()
            .filter(|line| line.contains(word))
            .count()
    };
    let agent = |task: &str, provider: &str, model: &str| {
        with(quiet(task, model), &json!({"provider": provider}))
    };
    bridge.api.dispatch(agent("a", "command", "x")).await;
    bridge.api.dispatch(agent("b", "lines", "child")).await;
    until("everything to run", || async {
        let (_, health) = bridge.api.get("/api/health").await;
        (there("sleep\x00300") >= 3).then_some(()).or_else(|| {
            assert_ne!(health["adapters"]["lines"]["status"], "offline", "{health}");
            assert_ne!(
                health["adapters"]["command"]["status"], "offline",
                "{health}"
            );
            None
        })
    })
    .await;
    let kept = (there("adapter-host"), there("forge-adapter-lines"));
    assert_eq!(kept, (2, 2), "each with its supervisor");
    bridge.kill();
    until("all of them to be gone", || async {
        living(&home).is_empty().then_some(())
    })
    .await;
}

/// Command lines of all processes with this home in their environment.
fn living(home: &Home) -> Vec<String> {
    let wanted = format!("HOME={}", home.dir.path().display());
    let all = fs::read_dir("/proc").unwrap().flatten();
    all.filter(|entry| {
        let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
        environ
            .split(|byte| *byte == 0)
            .any(|line| line == wanted.as_bytes())
    })
    .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default())
    .collect()
}
