//! `forge-bridge dispatches`: list, page, cancellation and retry from a shell.

use serde_json::{Value, json};

use super::harness::api::{owed, quiet, with};
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink};

/// A second adapter, which is offline where it is loaded.
const AWAY: &str = r#"
[adapters.acme-ai]
library = "echo"
health = "offline"
health_message = "api.acme.example does not answer"
"#;

/// A bridge whose adapter runs one dispatch at a time, and a shell beside it.
struct Shell {
    home: Home,
    bridge: Process,
}

impl Shell {
    fn start() -> Self {
        Self::with(&[])
    }

    fn with(variables: &[(&str, &str)]) -> Self {
        let ours = [
            ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "1"),
            ("BRIDGE_DISPATCH_CANCEL_GRACE", "50ms"),
        ];
        let home = Home::new(&[&ours, variables].concat());
        std::fs::write(home.dir.path().join("forge-bridge.toml"), AWAY).unwrap();
        let bridge = home.start();
        Self { home, bridge }
    }

    /// Exit code, standard output and standard error of `dispatches` with these arguments.
    fn run(&self, arguments: &[&str]) -> (i32, String, String) {
        self.run_with("", arguments)
    }

    /// The same with this editor.
    fn run_with(&self, editor: &str, arguments: &[&str]) -> (i32, String, String) {
        let mut command = self.home.command();
        command.env("EDITOR", editor);
        command.arg("dispatches").args(arguments);
        let output = command.args(["--url", &self.bridge.api.url]).output();
        let output = output.unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap();
        (code, text(output.stdout), text(output.stderr))
    }

    /// Tasks that a list names, in its order.
    fn tasks(&self, arguments: &[&str]) -> Vec<String> {
        let (code, out, err) = self.run(arguments);
        assert_eq!(code, 0, "{arguments:?}: {err}");
        let mut lines = out.lines().map(|line| line.split_whitespace());
        let column = lines.next().unwrap().position(|name| name == "task");
        let column = column.unwrap();
        lines
            .map(|mut line| line.nth(column).unwrap().to_owned())
            .collect()
    }

    /// Occupies the adapter.
    async fn blocker(&self) -> String {
        let id = self.bridge.api.dispatch(quiet("blocker", "hang")).await;
        self.bridge.api.running(&id).await;
        id
    }
}

#[tokio::test]
async fn a_list_is_filtered_and_continues() {
    let shell = Shell::start();
    let api = &shell.bridge.api;
    for (task, model, more) in [
        ("t-0", "ok", json!({})),
        ("t-1", "fail:quota", json!({"agentId": "other"})),
        ("t-2", "ok", json!({"runId": "run-1"})),
    ] {
        let id = api.dispatch(with(quiet(task, model), &more)).await;
        api.finished(&id).await;
    }
    shell.blocker().await;
    api.dispatch(quiet("t-3", "ok")).await;
    let all = ["t-3", "blocker", "t-2", "t-1", "t-0"];
    for (arguments, expected) in [
        (&[][..], &all[..]),
        (&["list", "--since", "1h"], &all),
        (
            &["list", "--provider", "echo", "--limit", "2", "--all"],
            &all,
        ),
        (&["list", "--provider", "none"], &[]),
        (&["list", "--status", "queued"], &["t-3"]),
        (&["--status", "queued", "--provider", "echo"], &["t-3"]),
        (&["list", "--status", "running"], &["blocker"]),
        (&["list", "--status", "finished"], &["t-2", "t-1", "t-0"]),
        (&["list", "--status", "error"], &["t-1"]),
        (&["list", "--status", "ok", "--run", "run-1"], &["t-2"]),
        (&["list", "--agent", "other"], &["t-1"]),
    ] {
        assert_eq!(shell.tasks(arguments), expected, "{arguments:?}");
    }
    let (code, _, err) = shell.run(&["--status", "queued", "list"]);
    assert!(code == 1 && err.contains("behind `list`"), "{code}: {err}");
    let (_, out, err) = shell.run(&["list", "--limit", "4"]);
    assert!(
        out.contains(" quota "),
        "the outcome is the error code: {out}"
    );
    assert!(err.contains("older dispatches exist: --cursor"), "{err}");
    let (_, page, _) = shell.run(&["list", "--json", "--limit=1"]);
    let page: Value = serde_json::from_str(&page).unwrap();
    assert_eq!(page["dispatches"][0]["taskId"], "t-3");
}

#[tokio::test]
async fn a_page_shows_how_a_dispatch_went() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(410));
    let shell = Shell::start();
    let api = &shell.bridge.api;
    let pinned = with(
        owed("t-1", "ok", &sink.url("/cb")),
        &json!({"provider": "echo"}),
    );
    let id = api.dispatch(pinned).await;
    api.delivery_is(&id, "dead").await;
    for named in ["t-1", &id] {
        let (code, page, err) = shell.run(&["show", named]);
        assert_eq!(code, 0, "{err}");
        for part in [
            "adapter     echo, pinned",
            "status      ok",
            "Request\n",
            "model               ok\n",
            "Routing\n",
            "Attempts\n",
            "Events\n",
            "execution.completed",
            "callback.dead",
            "Result\n",
            "\nhello\n",
            "Delivery\n",
            "dead",
            "410",
        ] {
            assert!(page.contains(part), "{part:?} is not in {page}");
        }
    }
    let (_, record, _) = shell.run(&["show", &id, "--json"]);
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["dispatchId"], id);
    assert_eq!(record["request"]["message"], "hello");
    let attempt = &record["deliveries"][0]["attempts"][0];
    assert_eq!(attempt["status"], 410, "{record}");
    let (code, _, err) = shell.run(&["show", "unknown"]);
    assert!(code == 4 && err.contains("there is no dispatch"), "{err}");
}

#[tokio::test]
async fn a_long_life_is_shown_from_both_ends() {
    let shell = Shell::start();
    let id = shell.bridge.api.dispatch(quiet("t-1", "usage:70")).await;
    shell.bridge.api.finished(&id).await;
    let events = shell.bridge.api.events(&id).await.len();
    let (_, page, err) = shell.run(&["show", "t-1"]);
    let omitted = format!("… {} more: forge-bridge tail {id} --after 0", events - 60);
    assert!(page.contains(&omitted), "{omitted}: {page}{err}");
    for kind in ["execution.accepted", "execution.completed"] {
        assert!(page.contains(kind), "{kind}: {page}");
    }
}

#[tokio::test]
async fn many_are_cancelled_only_after_a_yes() {
    let shell = Shell::start();
    let api = &shell.bridge.api;
    let blocker = shell.blocker().await;
    for number in 0..3 {
        let body = quiet(&format!("t-{number}"), "ok");
        api.dispatch(with(body, &json!({"agentId": "many"}))).await;
    }
    let (code, out, err) = shell.run(&["cancel", "t-0"]);
    assert_eq!((code, &*out, &*err), (0, "1 cancelled\n", ""));
    let (code, out, err) = shell.run(&["cancel", "t-0"]);
    assert_eq!((code, &*out), (1, "0 cancelled\n"));
    assert!(err.contains("1 had finished before"), "{err}");
    let (code, out, err) = shell.run(&["cancel", "unknown", "t-1"]);
    assert_eq!((code, &*out), (4, "1 cancelled\n"));
    assert!(err.contains("there is no dispatch"), "{err}");

    api.dispatch(quiet("t-3", "ok")).await;
    let (code, out, _) = shell.run(&["cancel", "--since", "1h", "--dry-run"]);
    assert_eq!((code, &*out), (0, "3 would be cancelled\n"));
    // Standard input is empty.
    let (code, _, err) = shell.run(&["cancel", "--agent", "many"]);
    assert!(code == 1 && err.contains("Cancel 1 dispatches?"), "{err}");
    assert!(err.contains("none was cancelled"), "{err}");
    assert_eq!(shell.tasks(&["list", "--status", "queued"]).len(), 2);
    let (code, out, _) = shell.run(&["cancel", "--status", "queued", "--yes"]);
    assert_eq!((code, &*out), (0, "2 cancelled\n"));
    let (code, out, _) = shell.run(&["cancel", "--provider=echo", "--yes", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, answer), (0, json!({"cancelled": 1, "finished": 0})));
    assert_eq!(api.finished(&blocker).await["errorCode"], "cancelled");

    let (code, _, err) = shell.run(&["cancel", "--since", "1h", "--yes"]);
    assert!(
        code == 1 && err.contains("no such dispatch matches"),
        "{err}"
    );
    for unusable in [
        &["cancel"][..],
        &["cancel", "--status", "ok"],
        &["cancel", "t-1", "--run=r"],
    ] {
        let (code, _, err) = shell.run(unusable);
        assert_eq!(code, 2, "{err}");
    }
}

#[tokio::test]
async fn the_list_and_the_page_say_why_a_dispatch_waits() {
    let shell = Shell::with(&[("BRIDGE_ADAPTERS", "echo,acme-ai")]);
    let api = &shell.bridge.api;
    let pinned = with(quiet("t-0", "ok"), &json!({"provider": "acme-ai"}));
    let (_, accepted) = api.post("/api/v2/dispatch", &pinned).await;
    let offline = "acme-ai is offline: api.acme.example does not answer";
    let warning = format!("the dispatch waits, at most 86400 s: {offline}");
    assert_eq!(accepted["warnings"], json!([warning]));

    let blocker = with(
        quiet("blocker", "hang"),
        &json!({"provider": "echo", "sessionId": "s"}),
    );
    let blocker = api.dispatch(blocker).await;
    api.running(&blocker).await;
    for (task, more) in [
        ("t-1", json!({})),
        ("t-2", json!({"priority": 1})),
        ("t-3", json!({"sessionId": "s"})),
        ("t-4", json!({"notBefore": "2126-11-27T00:00:00Z"})),
    ] {
        let body = with(quiet(task, "ok"), &json!({"provider": "echo"}));
        api.dispatch(with(body, &more)).await;
    }
    let session = format!("{blocker} of the same session \"s\" runs");
    let (_, list, _) = shell.run(&["list"]);
    for (task, message) in [
        ("t-0", offline),
        ("t-1", "echo runs 1 of 1, 1 wait before it"),
        ("t-2", "echo runs 1 of 1, 0 wait before it"),
        ("t-3", &session),
        (
            "t-4",
            "it starts at 2126-11-27T00:00:00.000Z at the earliest",
        ),
    ] {
        let mut lines = list.lines();
        let line = lines
            .find(|line| line.contains(&format!(" {task} ")))
            .unwrap();
        assert!(line.ends_with(message), "{message}: {line}");
        let (_, page, _) = shell.run(&["show", task]);
        assert!(page.contains(&format!("waits       {message}\n")), "{page}");
        let record = api.record(task).await;
        assert_eq!(record["waitReason"]["message"], message, "{record}");
        let given_up = &record["waitReason"]["givenUpAt"];
        let start_by = if task == "t-4" {
            &Value::Null
        } else {
            &record["startBy"]
        };
        assert_eq!(given_up, start_by, "{record}");
    }
    assert_eq!(api.record("t-1").await["waitReason"]["place"], 2);
    assert_eq!(api.record(&blocker).await["waitReason"], Value::Null);
}

#[tokio::test]
async fn a_retry_is_another_task_that_names_the_first() {
    let shell = Shell::start();
    let api = &shell.bridge.api;
    let mut failed = Vec::new();
    for (task, model) in [("t-0", "ok"), ("t-1", "fail:quota"), ("t-2", "fail:quota")] {
        let times = json!({"deadline": "2126-11-27T00:00:00Z", "metadata": {"a": 1}});
        let id = api.dispatch(with(quiet(task, model), &times)).await;
        api.finished(&id).await;
        failed.push(id);
    }
    let (code, out, err) = shell.run(&["retry", "t-1"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    let words: Vec<_> = out.split_whitespace().collect();
    let again = api.finished(words[0]).await;
    assert_eq!(again["retryOf"], failed[1], "{again}");
    assert_eq!(again["result"]["retryOf"], failed[1], "{again}");
    assert_eq!(again["errorCode"], "quota", "{again}");
    let task = again["taskId"].as_str().unwrap();
    assert!(task.starts_with("t-1-retry-"), "{again}");
    let path = format!("/api/v2/dispatch/{}/request", words[0]);
    let (_, request) = api.get(&path).await;
    assert_eq!(request["metadata"], json!({"a": 1}), "{request}");
    assert_eq!(request.get("deadline"), None, "{request}");
    assert!(out.ends_with("1 dispatched again\n"), "{out}");

    let (code, out, _) = shell.run(&["retry", "--since", "1h", "--dry-run"]);
    assert_eq!((code, &*out), (0, "3 would be dispatched again\n"));
    let (code, _, err) = shell.run(&["retry", "--agent", "agent"]);
    assert!(
        code == 1 && err.contains("Dispatch again 3 dispatches?"),
        "{err}"
    );
    let (code, out, _) = shell.run(&["retry", "--status", "ok", "--yes", "--json"]);
    let answer: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(
        (code, &answer["dispatched"][0]["retryOf"]),
        (0, &json!(failed[0]))
    );
    for unusable in [
        &["retry"][..],
        &["retry", "--status", "queued"],
        &["retry", "a", "b", "--edit"],
    ] {
        let (code, _, err) = shell.run(unusable);
        assert_eq!(code, 2, "{err}");
    }
    let (code, _, err) = shell.run(&["retry", "unknown"]);
    assert!(code == 4 && err.contains("there is no dispatch"), "{err}");
}

#[tokio::test]
async fn a_request_is_edited_before_its_retry() {
    let shell = Shell::start();
    let api = &shell.bridge.api;
    let id = api.dispatch(quiet("t-1", "fail:quota")).await;
    api.finished(&id).await;
    let edit = ["retry", "t-1", "--edit", "--json"];
    let (code, out, err) = shell.run_with("sed -i s/fail:quota/ok/", &edit);
    assert_eq!(code, 0, "{err}");
    let accepted: Value = serde_json::from_str(&out).unwrap();
    let again = accepted["dispatchId"].as_str().unwrap();
    let record = api.finished(again).await;
    assert_eq!(
        (&record["outcome"], &record["retryOf"]),
        (&json!("ok"), &json!(id))
    );

    let (code, _, err) = shell.run_with("false", &edit);
    assert!(code == 1 && err.contains("nothing was dispatched"), "{err}");
    let (code, _, err) = shell.run_with("sed -i 1d", &edit);
    assert!(code == 1 && err.contains("it is not JSON"), "{err}");
    let kept = err.split_once("is kept in ").unwrap().1;
    let kept = std::fs::read_to_string(kept.split_once(';').unwrap().0).unwrap();
    assert!(kept.contains("\"fail:quota\""), "{kept}");
    let all = shell.tasks(&["list"]);
    assert_eq!(all.len(), 2, "{all:?}");
}
