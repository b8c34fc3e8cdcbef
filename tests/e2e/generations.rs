//! Reload and pause of an adapter while dispatches run, through the HTTP interface.

use std::collections::BTreeMap;
use std::fs;

use futures_util::future::join_all;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::harness::api::owed;
use super::harness::library::{compile, file_name};
use super::harness::process::{Home, Process};
use super::harness::{Api, CallbackSink, plugins, until};

/// A home with one adapter, `edition`, of which several versions are built.
fn home(variables: &[(&str, &str)]) -> Home {
    let mut home = Home::new(variables);
    let folder = home.dir.path().join("plugins");
    fs::create_dir(&folder).unwrap();
    put(&home, 1);
    let mut set = |name: &str, value: &str| home.variables.insert(name.into(), value.into());
    set("BRIDGE_PLUGIN_PATH", &folder.display().to_string());
    set("BRIDGE_ADAPTERS", "edition");
    home
}

/// Replaces the library by a rename, as recommended to operators.
fn put(home: &Home, edition: usize) {
    let folder = home.dir.path().join("plugins");
    let next = folder.join(file_name("next"));
    compile(
        &next,
        "edition/edition.c",
        &[&format!("EDITION=\"{edition}\"")],
    );
    fs::rename(next, folder.join(file_name("edition"))).unwrap();
}

async fn ask(api: &Api, what: &str) -> (StatusCode, Value) {
    api.post(&format!("/api/v2/adapters/edition/{what}"), &Value::Null)
        .await
}

async fn adapter(api: &Api) -> Value {
    api.get("/api/v2/adapters/edition").await.1
}

fn gate(home: &Home, name: &str) -> String {
    home.dir.path().join(name).display().to_string()
}

fn open(gate: &str) {
    fs::write(gate, "").unwrap();
}

/// Number of loaded images of the adapter; asserts that none of their files is deleted.
fn images(bridge: &Process, home: &Home) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", bridge.id())).unwrap();
    let copies = home.dir.path().join("data/state/adapters/edition");
    let copies = copies.display().to_string();
    let found = maps.lines().filter_map(|line| line.split_once(&copies));
    let mut files: Vec<_> = found.map(|(_, file)| file).collect();
    files.sort_unstable();
    files.dedup();
    assert!(
        files.iter().all(|file| !file.contains("(deleted)")),
        "{files:?}"
    );
    files.len()
}

#[tokio::test]
async fn reloads_under_load_fail_no_dispatch_and_neither_does_a_kill_while_one_drains() {
    let sink = CallbackSink::start().await;
    let home = home(&[]);
    let bridge = home.start();
    let mut expected = BTreeMap::new();
    let mut dispatches = Vec::new();
    let mut count = 0;
    let mut next = |model: &str| {
        count += 1;
        let mut body = owed(&format!("t-{count}"), model, &sink.url("/cb"));
        body["recovery"] = json!("retry");
        body
    };
    // One execution of each generation is held; it ends on that generation.
    let mut held = Vec::new();
    for edition in 1..=6 {
        if edition > 1 {
            put(&home, edition);
        }
        let gate = gate(&home, &format!("gate-{edition}"));
        let load: Vec<_> = (0..40).map(|n| next(&format!("wait:{}", n % 20))).collect();
        let reload = async {
            if edition == 1 {
                return;
            }
            let (status, answer) = ask(&bridge.api, "reload").await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            assert_eq!(answer["version"], json!(format!("{edition}.0.0")));
        };
        let work = join_all(load.into_iter().map(|body| bridge.api.dispatch(body)));
        let (ids, ()) = tokio::join!(work, reload);
        dispatches.extend(ids);
        let id = bridge.api.dispatch(next(&format!("hold:{gate}"))).await;
        bridge.api.running(&id).await;
        expected.insert(id.clone(), edition.to_string());
        held.push(gate);
        dispatches.push(id);
    }
    let leaving = adapter(&bridge.api).await["leaving"].clone();
    let versions: Vec<_> = leaving
        .as_array()
        .unwrap()
        .iter()
        .map(|l| l["version"].as_str().unwrap())
        .collect();
    assert_eq!(versions, ["1.0.0", "2.0.0", "3.0.0", "4.0.0", "5.0.0"]);
    assert_eq!(images(&bridge, &home), 6);

    // The first three end on their own generation.
    for gate in &held[..3] {
        open(gate);
    }
    for (id, edition) in &expected {
        if edition.as_str() <= "3" {
            assert_eq!(
                bridge.api.finished(id).await["result"]["output"],
                json!(edition)
            );
        }
    }
    until("the drained generations to be gone", || async {
        let leaving = adapter(&bridge.api).await["leaving"].clone();
        (leaving.as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    assert_eq!(images(&bridge, &home), 6, "an image is never unloaded");

    // The bridge is killed while the others drain. Their next attempt uses the library that is installed then.
    bridge.kill();
    for gate in &held[3..] {
        open(gate);
    }
    let bridge = home.start();
    for id in &dispatches {
        let record = bridge.api.finished(id).await;
        assert_eq!(record["result"]["status"], "ok", "{record}");
        bridge.api.delivery_is(id, "delivered").await;
    }
    for (id, edition) in &expected {
        let output = bridge.api.record(id).await["result"]["output"].clone();
        let wanted = if edition.as_str() <= "3" {
            edition
        } else {
            "6"
        };
        assert_eq!(output, json!(wanted));
    }
    assert_eq!(dispatches.len(), 6 * 41);
    assert_eq!(images(&bridge, &home), 1);
}

#[tokio::test]
async fn a_reload_that_cannot_serve_says_why_and_costs_nothing() {
    let home = home(&[]);
    let bridge = home.start();
    let before = adapter(&bridge.api).await;
    let library = home.dir.path().join("plugins").join(file_name("edition"));
    compile(
        &library.with_extension("new"),
        "edition/edition.c",
        &["EDITION=\"2\"", "INITIALIZE"],
    );
    fs::rename(library.with_extension("new"), &library).unwrap();
    let (status, answer) = ask(&bridge.api, "reload").await;
    assert_eq!(
        (status, &answer["code"]),
        (StatusCode::BAD_GATEWAY, &json!("ADAPTER_ERROR"))
    );
    let text = answer["error"].as_str().unwrap();
    assert!(
        text.contains("initialize failed: no such service"),
        "{text}"
    );
    let mut after = adapter(&bridge.api).await;
    after["health"] = before["health"].clone();
    assert_eq!(after, before);

    let (status, answer) = bridge
        .api
        .post("/api/v2/adapters/other/reload", &Value::Null)
        .await;
    assert_eq!(
        (status, &answer["code"]),
        (StatusCode::NOT_FOUND, &json!("NOT_FOUND"))
    );
}

#[tokio::test]
async fn a_pause_outlives_the_process_and_what_waits_runs_at_its_end() {
    let sink = CallbackSink::start().await;
    let home = home(&[]);
    let bridge = home.start();
    let gate = gate(&home, "gate");
    let running = bridge
        .api
        .dispatch(owed("runs", &format!("hold:{gate}"), &sink.url("/cb")))
        .await;
    bridge.api.running(&running).await;
    let (status, paused) = ask(&bridge.api, "pause").await;
    assert_eq!(status, StatusCode::OK);
    let since = paused["pausedAt"].clone();
    assert!(since.is_string(), "{paused}");
    assert_eq!(ask(&bridge.api, "pause").await.1["pausedAt"], since);
    let mut waiting = Vec::new();
    for n in 0..5 {
        waiting.push(
            bridge
                .api
                .dispatch(owed(&format!("waits-{n}"), "now", &sink.url("/cb")))
                .await,
        );
    }
    // A running execution continues to its end.
    open(&gate);
    bridge.api.finished(&running).await;
    bridge.api.delivery_is(&running, "delivered").await;
    let (_, health) = bridge.api.get("/api/health").await;
    let line = &health["adapters"]["edition"];
    assert_eq!(
        (&line["pausedAt"], &line["status"]),
        (&since, &json!("healthy"))
    );
    assert_eq!((&line["queued"], &line["running"]), (&json!(5), &json!(0)));

    bridge.kill();
    let bridge = home.start();
    assert_eq!(adapter(&bridge.api).await["pausedAt"], since);
    let (status, reloaded) = ask(&bridge.api, "reload").await;
    assert_eq!(
        (status, &reloaded["pausedAt"]),
        (StatusCode::OK, &since),
        "a reload resumes nothing"
    );
    for id in &waiting {
        assert_eq!(bridge.api.record(id).await["status"], "queued");
    }
    let (status, resumed) = ask(&bridge.api, "resume").await;
    assert_eq!(
        (status, &resumed["pausedAt"]),
        (StatusCode::OK, &Value::Null)
    );
    for id in &waiting {
        assert_eq!(bridge.api.finished(id).await["result"]["output"], "1");
        bridge.api.delivery_is(id, "delivered").await;
    }
    let log = home.log();
    assert!(log.contains("adapter edition is paused since"), "{log}");
}

#[tokio::test]
async fn while_one_is_paused_another_is_chosen_unless_it_is_named() {
    let mut home = home(&[]);
    let path = format!(
        "{},{}",
        home.variables["BRIDGE_PLUGIN_PATH"],
        plugins().display()
    );
    home.variables.insert("BRIDGE_PLUGIN_PATH".into(), path);
    home.variables
        .insert("BRIDGE_ADAPTERS".into(), "edition,echo".into());
    let bridge = home.start();
    ask(&bridge.api, "pause").await;
    let body =
        |task: &str| json!({"taskId": task, "agentId": "a", "message": "m", "callbackUrl": null});
    let free = bridge.api.dispatch(body("free")).await;
    let record = bridge.api.finished(&free).await;
    assert_eq!(record["provider"], "echo", "{record}");
    let mut named = body("named");
    named["provider"] = json!("edition");
    let named = bridge.api.dispatch(named).await;
    assert_eq!(bridge.api.record(&named).await["status"], "queued");
    ask(&bridge.api, "resume").await;
    assert_eq!(bridge.api.finished(&named).await["result"]["output"], "1");
}

#[tokio::test]
async fn only_administrators_reload_and_pause() {
    // Hash of the token "reader".
    let hash = "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30";
    let home = home(&[("BRIDGE_TOKENS", "one")]);
    let file = home.dir.path().join("forge-bridge.toml");
    let text = format!("auth.token = [{{ hash = \"{hash}\", scopes = [\"read\", \"dispatch\"] }}]");
    fs::write(file, text).unwrap();
    let bridge = home.start();
    for what in ["reload", "pause", "resume"] {
        for (token, wanted) in [("reader", StatusCode::FORBIDDEN), ("one", StatusCode::OK)] {
            let path = format!("/api/v2/adapters/edition/{what}");
            let request = bridge.api.request(Method::POST, &path).bearer_auth(token);
            assert_eq!(
                request.send().await.unwrap().status(),
                wanted,
                "{what} {token}"
            );
        }
    }
}

#[tokio::test]
async fn the_command_line_reloads_and_pauses() {
    let home = home(&[]);
    let bridge = home.start();
    let run = |arguments: &[&str]| {
        let mut command = home.command();
        command
            .args(["--url", &bridge.api.url, "adapters"])
            .args(arguments);
        let output = command.output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    };
    put(&home, 2);
    let gate = gate(&home, "gate");
    let id = bridge
        .api
        .dispatch(
            json!({"taskId": "t", "agentId": "a", "message": "m", "callbackUrl": null,
            "model": format!("hold:{gate}")}),
        )
        .await;
    bridge.api.running(&id).await;
    for (arguments, code, wanted) in [
        (
            &["reload", "edition"][..],
            0,
            &[
                "edition was reloaded: version 2.0.0",
                "1 still running on 1.0.0",
            ][..],
        ),
        (&["pause", "edition"], 0, &["edition is paused since"]),
        (
            &["inspect", "edition"],
            0,
            &["paused since", "1 still running on 1.0.0"],
        ),
        (&["list"], 0, &["healthy, paused"]),
        (&["resume", "edition"], 0, &["edition is resumed"]),
        (&["reload", "other"], 4, &["there is no adapter \"other\""]),
    ] {
        let (found, text) = run(arguments);
        assert_eq!(found, code, "{arguments:?}: {text}");
        for wanted in wanted {
            assert!(text.contains(wanted), "{wanted:?} is not in {text}");
        }
    }
    open(&gate);
    bridge.api.finished(&id).await;
}
