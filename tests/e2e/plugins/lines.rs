//! Programs that speak the line protocol: the examples, and one that breaks every rule.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use forge_base::digest::{hex, sha256};
use forge_plugin_host::{Adapter, Isolation, Item, Registry, Relayed, Setup, Steered};
use rustix::process::{Pid, test_kill_process};
use serde_json::json;
use tokio::sync::mpsc;

use super::apart::{serves_again, setup};
use super::{Place, SOON, appears, execute, listen, message, run, start};
use crate::harness::library::root;
use crate::harness::until;

/// Copies a program to the plug-in folder.
fn install(place: &Place, from: &str) {
    let from = root().join(from);
    let to = place
        .folder
        .path()
        .join("plugins")
        .join(from.file_name().unwrap());
    fs::copy(&from, &to).unwrap();
    fs::set_permissions(&to, Permissions::from_mode(0o755)).unwrap();
}

/// Writes a shell script to the plug-in folder.
fn write(place: &Place, name: &str, script: &str) {
    let path: PathBuf = place.folder.path().join("plugins").join(name);
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
}

/// Adds the `PATH` of the tests, with their Node in front.
fn with_path(mut setup: Setup) -> Setup {
    let node = forge_test_runtimes::node();
    let path = format!(
        "{}:{}",
        node.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    setup.env.insert("PATH".to_owned(), path);
    if let Ok(home) = std::env::var("HOME") {
        setup.env.insert("HOME".to_owned(), home);
    }
    setup
}

fn text(items: &[Item]) -> String {
    let deltas = items.iter().filter_map(|item| match item {
        Item::Event(event) => event.data.as_ref()?["delta"].as_str(),
        Item::Dropped(_) | Item::Done(_) => None,
    });
    deltas.collect()
}

fn request(model: &str, message: &str) -> Vec<u8> {
    let request = json!({
        "executionId": "dsp_1/1", "taskId": "task", "agentId": "agent", "attempt": 1,
        "message": message, "model": model, "timeoutSeconds": 60, "outputStrategy": "stream",
    });
    request.to_string().into_bytes()
}

#[tokio::test]
async fn the_examples_stream_and_are_cancelled() {
    let place = Place::new();
    install(
        &place,
        "plugins/examples/python-echo/forge-adapter-python-echo",
    );
    install(&place, "plugins/examples/node-echo/forge-adapter-node-echo");
    let (registry, _relayed) = start(with_path(setup(&place, &["python-echo", "node-echo"]))).await;
    for adapter in registry.adapters() {
        let name = adapter.provider();
        assert_eq!(
            adapter.health().status,
            HealthStatus::Healthy,
            "{:?}",
            adapter.health()
        );
        assert_eq!(adapter.isolation(), Isolation::Process, "{name}");
        let permit = adapter.reserve().unwrap();
        let said = permit.execute(request("ok", "one two \"three\"")).unwrap();
        let (items, answer) = listen(said).await;
        assert_eq!(text(&items), "one two \"three\" ", "{name}");
        assert_eq!(answer.unwrap()["output"], "one two \"three\"", "{name}");

        let mut slow = permit
            .execute(request("slow:20", &"word ".repeat(10_000)))
            .unwrap();
        assert!(matches!(slow.next().await, Item::Event(_)), "it streams");
        let steered = permit.steering().steer(&message("dsp_1/1")).await;
        assert_eq!(steered, Ok(Steered::Unsupported), "{name}");
        assert_eq!(permit.cancel("dsp_1/1", "task").await, Ok(true), "{name}");
        assert_eq!(listen(slow).await.1.unwrap_err(), "cancelled", "{name}");
        assert_eq!(permit.cancel("dsp_1/1", "task").await, Ok(false), "{name}");
    }
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn the_example_in_c_streams_and_is_cancelled() {
    let place = Place::new();
    let source = root().join("plugins/examples/c-echo/adapter.c");
    place.compile("c-echo", source.to_str().unwrap(), &["_GNU_SOURCE"]);
    let mut setup = setup(&place, &["c-echo"]);
    setup.tables = [("c-echo".to_owned(), super::table(json!({"pause": 2})))].into();
    let (registry, _relayed) = start(setup).await;
    let adapter = registry.get("c-echo").unwrap();
    let permit = adapter.reserve().unwrap();
    let (items, answer) = listen(permit.execute(request("ok", "one two")).unwrap()).await;
    assert_eq!(text(&items), "one two ");
    assert_eq!(answer.unwrap()["output"], "one two");
    let mut slow = permit
        .execute(request("ok", &"word ".repeat(10_000)))
        .unwrap();
    assert!(matches!(slow.next().await, Item::Event(_)), "it streams");
    assert_eq!(permit.cancel("dsp_1/1", "task").await, Ok(true));
    assert_eq!(listen(slow).await.1.unwrap_err(), "cancelled");
    registry.shutdown(SOON).await;
}

/// Starts the program that breaks every rule; the limit on messages is 100 kB.
async fn lines(place: &Place) -> (Registry, Adapter, mpsc::Receiver<Relayed>) {
    install(place, "tests/fixtures/lines/forge-adapter-lines");
    let mut setup = with_path(setup(place, &["lines"]));
    setup.config.payload_bytes = 100_000;
    setup.config.health_timeout = Duration::from_secs(1);
    setup.config.health_age = Duration::ZERO;
    setup.config.restart.crash_limit = 100;
    setup.config.restart.backoff = Duration::from_millis(1);
    let (registry, relayed) = start(setup).await;
    let lines = registry.get("lines").unwrap();
    assert_eq!(
        lines.health().status,
        HealthStatus::Healthy,
        "{:?}",
        lines.health()
    );
    (registry, lines, relayed)
}

/// The file is replaced while its process runs.
#[tokio::test]
async fn a_pinned_program_is_checked_before_each_start() {
    let place = Place::new();
    install(&place, "tests/fixtures/lines/forge-adapter-lines");
    let program = place.folder.path().join("plugins/forge-adapter-lines");
    let code = fs::read(&program).unwrap();
    let pin = json!([{"name": "lines", "sha256": hex(&sha256(&code))}]);
    let mut setup = with_path(setup(&place, &["lines"]));
    setup.config.allow = serde_json::from_value(pin).unwrap();
    setup.config.restart.crash_limit = 100;
    setup.config.restart.backoff = Duration::from_millis(1);
    let (registry, _relayed) = start(setup).await;
    let lines = registry.get("lines").unwrap();
    assert!(run(&lines, "exit").await.1.is_err());
    serves_again(&lines, "ok").await;

    fs::write(&program, [&code[..], b"\n# changed\n"].concat()).unwrap();
    assert!(run(&lines, "exit").await.1.is_err());
    until("the changed program to be refused", || async {
        let message = lines.health().message.unwrap_or_default();
        message.contains("the allow-list wants").then_some(())
    })
    .await;

    fs::write(&program, code).unwrap();
    serves_again(&lines, "ok").await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn what_is_no_message_is_left_out_and_what_is_too_long_ends_its_call() {
    let place = Place::new();
    let (registry, lines, _relayed) = lines(&place).await;
    for model in ["ok", "garbage", "stray", "twice", "ok"] {
        let (_, answer) = run(&lines, model).await;
        assert_eq!(answer.unwrap()["output"], "done", "{model}");
    }
    let mut call = execute(&lines, "huge").unwrap();
    let Item::Done(Err(error)) = call.next().await else {
        panic!("a megabyte was taken");
    };
    assert_eq!(error.code, "output_too_large");
    let kept = error.details.unwrap();
    assert!(kept["output"].as_str().unwrap().len() > 90_000);
    let (items, answer) = run(&lines, "flood:20000").await;
    assert_eq!(
        (items.len(), answer.is_ok()),
        (20_000, true),
        "nothing is lost"
    );
    assert_eq!(lines.history().len(), 1, "it never went away");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_program_that_cannot_be_followed_is_stopped_and_started_again() {
    let place = Place::new();
    let (registry, lines, _relayed) = lines(&place).await;
    // More than is read of a line: the call has its output, and the program is stopped.
    let mut call = execute(&lines, "vast").unwrap();
    let done = tokio::time::timeout(SOON, call.next()).await.unwrap();
    let Item::Done(Err(error)) = done else {
        panic!("{done:?}");
    };
    assert_eq!(error.code, "output_too_large");
    assert!(error.details.unwrap()["output"].as_str().unwrap().len() > 90_000);
    until("the program to be stopped", || async {
        (lines.history().len() > 1).then_some(())
    })
    .await;
    serves_again(&lines, "ok").await;
    for (model, wanted) in [
        ("unnamed", "does not begin with its \"id\""),
        ("endless", "a line without end"),
        ("exit", "exit code 7; it said: giving up"),
        ("closed", "the adapter's process"),
    ] {
        let mut call = execute(&lines, model).unwrap();
        let done = tokio::time::timeout(SOON, call.next()).await.unwrap();
        let Item::Done(Err(error)) = done else {
            panic!("{model}: {done:?}");
        };
        assert_eq!(error.code, "adapter_crashed", "{model}");
        assert!(error.message.contains(wanted), "{model}: {error}");
        serves_again(&lines, "ok").await;
    }
    // The program has closed its input: the next call fails, and later ones go to a new process.
    let mut shut = execute(&lines, "shut").unwrap();
    assert!(matches!(shut.next().await, Item::Event(_)));
    let lost = run(&lines, "ok").await.1.unwrap_err();
    assert!(["adapter_crashed", "adapter_unavailable"].contains(&lost.as_str()));
    serves_again(&lines, "ok").await;
    assert_eq!(listen(shut).await.1.unwrap_err(), "adapter_crashed");
    let deaf = execute(&lines, "deaf").unwrap();
    registry.refresh_health().await;
    assert_eq!(listen(deaf).await.1.unwrap_err(), "adapter_crashed");
    serves_again(&lines, "ok").await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_dropped_call_is_told_and_children_go_with_the_program() {
    let place = Place::new();
    let (registry, lines, _relayed) = lines(&place).await;
    let report = place.folder.path().join("report");
    let permit = lines.reserve().unwrap();
    let silent = permit
        .execute(request("silent", report.to_str().unwrap()))
        .unwrap();
    // The call has reached the program: a later one is answered.
    assert!(run(&lines, "ok").await.1.is_ok());
    drop(silent);
    assert_eq!(appears(&report).await, "dropped");

    let mut call = execute(&lines, "child").unwrap();
    let Item::Event(event) = call.next().await else {
        panic!("it says who its child is");
    };
    let child = event.data.unwrap()["delta"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let child = Pid::from_raw(child).unwrap();
    assert!(test_kill_process(child).is_ok());
    assert_eq!(run(&lines, "exit").await.1.unwrap_err(), "adapter_crashed");
    until("the child to be gone", || async {
        test_kill_process(child).is_err().then_some(())
    })
    .await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_program_that_never_says_who_it_is_is_offline_in_one_line() {
    let place = Place::new();
    let manifest = |provider: &str, schema: u32| {
        format!(
            r#"echo '{{"manifest":{{"name":"x","version":"1","provider":"{provider}","schema":{{"min":{schema},"max":9}}}}}}'; cat >/dev/null"#
        )
    };
    let table = [
        ("ends", "echo sorry >&2; exit 3".to_owned(), "exit code 3"),
        ("silent", "sleep 300".to_owned(), "longer than"),
        (
            "early",
            r#"echo '{"event":{"type":"x"}}'; sleep 300"#.to_owned(),
            "a message before its manifest",
        ),
        (
            "other",
            manifest("another", 1),
            "is the adapter \"another\"",
        ),
        ("future", manifest("future", 7), "JSON schemas 7 to 9"),
    ];
    for (name, script, _) in &table {
        write(&place, &format!("forge-adapter-{name}"), script);
    }
    write(&place, "forge-adapter-plain", "");
    let plain = place.folder.path().join("plugins/forge-adapter-plain");
    fs::set_permissions(plain, Permissions::from_mode(0o644)).unwrap();
    place.echo_as("echo", |bytes| bytes);
    let ids = [
        "ends", "silent", "early", "other", "future", "plain", "echo",
    ];
    let mut setup = with_path(setup(&place, &ids));
    setup.config.initialize_timeout = Duration::from_secs(4);
    let (registry, _relayed) = start(setup).await;
    let rows = table.iter().map(|(name, _, wanted)| (*name, *wanted));
    for (name, wanted) in rows.chain([("plain", "is not executable")]) {
        let line = registry.get(name).unwrap().load_error().unwrap();
        assert!(
            line.contains(wanted) && !line.contains('\n'),
            "{name}: {line}"
        );
        // Health shows this line; what the program writes on stderr is in the log.
        assert!(!line.contains("sorry"), "{name}: {line}");
    }
    registry.shutdown(SOON).await;
}
