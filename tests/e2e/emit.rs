//! `forg emit`: signed records and hooks of a tool, against a real agent and against one that fails.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use forge_base::digest::{MacKey, hex};
use forge_test_support::callback::Received;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use super::harness::{Answer, Bridge, CallbackSink};

/// Record of the protocol's section on tests, as printed there.
pub(super) const RECORD: &str = r#"{
  "adapter": "test",
  "model": "claude-opus-4-5",
  "tokens_in": 100,
  "tokens_out": 50,
  "latency_ms": 500,
  "ts": "2025-05-28T10:00:00Z"
}"#;

/// Runs `forg` without waiting on the test's runtime, which answers it.
pub(super) async fn forg(
    home: &Path,
    variables: &[(&str, &str)],
    arguments: &[&str],
    input: &str,
) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forg"));
    command
        .env_clear()
        .env("HOME", home)
        .current_dir(home)
        .envs(variables.iter().copied())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut running = command.spawn().unwrap();
    let mut stdin = running.stdin.take().unwrap();
    // A command that does not read its input closes it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = spawn_blocking(move || running.wait_with_output());
    output.await.unwrap().unwrap()
}

pub(super) fn code(output: &Output) -> i32 {
    output.status.code().unwrap()
}

/// Agent with one answer to all requests.
pub(super) struct Fake {
    pub(super) sink: CallbackSink,
    pub(super) home: TempDir,
}

impl Fake {
    pub(super) async fn start() -> Self {
        Self {
            sink: CallbackSink::start().await,
            home: tempfile::tempdir().unwrap(),
        }
    }

    pub(super) fn answer(&self, members: &Value) {
        self.sink.answer(Answer::status(200).body(started(members)));
    }

    async fn emit(&self, arguments: &[&str], input: &str) -> Output {
        let url = self.sink.url("");
        let arguments = [&["emit"], arguments].concat();
        let variables = [("FORG_AGENT_URL", url.as_str())];
        forg(self.home.path(), &variables, &arguments, input).await
    }

    pub(super) async fn hook(&self, event: &str) -> Output {
        self.emit(&["--event", event], &self.input()).await
    }

    pub(super) fn transcript(&self) -> String {
        self.home.path().join("t.jsonl").display().to_string()
    }

    /// Input of a hook; its content is long, and must not be sent.
    fn input(&self) -> String {
        let content = "secret ".repeat(50_000);
        json!({
            "session_id": "own", "transcript_path": self.transcript(), "hook_event_name": "PreToolUse",
            "tool_name": "Bash", "tool_input": {"command": content},
        })
        .to_string()
    }
}

/// Answer to both calls: a session, and the given members.
fn started(members: &Value) -> String {
    let mut answer =
        json!({"session_id": "sess_1", "session_key": BASE64_STANDARD.encode([7; 32])});
    answer
        .as_object_mut()
        .unwrap()
        .extend(members.as_object().unwrap().clone());
    answer.to_string()
}

/// Line of a transcript.
pub(super) fn message(id: &str) -> String {
    let usage = json!({
        "input_tokens": 25, "cache_creation_input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 12,
    });
    let message = json!({"id": id, "model": "m", "content": "secret", "usage": usage});
    format!("{}\n", json!({"type": "assistant", "message": message}))
}

pub(super) fn records(received: &[Received]) -> Vec<Value> {
    let emitted = received.iter().filter(|one| one.path == "/emit");
    emitted
        .map(|one| serde_json::from_slice(&one.body).unwrap())
        .collect()
}

#[tokio::test]
async fn the_commands_of_the_protocol_work_as_printed() {
    let bridge = Bridge::start().await;
    let (_, health) = bridge.api.get("/api/health").await;
    let url = format!("http://{}", health["signals"]["agent"].as_str().unwrap());
    let emit = async |arguments: &[&str]| {
        let arguments = [&["emit"], arguments].concat();
        forg(
            bridge.home.path(),
            &[("FORG_AGENT_URL", &url)],
            &arguments,
            "",
        )
        .await
    };
    let output = emit(&[RECORD]).await;
    assert_eq!(code(&output), 0, "{output:?}");
    assert!(output.stdout.starts_with(b"sent in session sess_"));

    let own = ["--adapter", "cli", "--user", "ana", "--project", "web"];
    let usage = [
        "--model",
        "m",
        "--input-tokens",
        "70",
        "--output-tokens",
        "8",
        "--cost",
        "0.25",
    ];
    let mut sessions = Vec::new();
    for more in [
        vec!["--event", "session.start"],
        [
            &["--event", "model.call", "--status", "success"],
            &usage[..],
        ]
        .concat(),
        [
            &["--event", "model.call", "--status", "rate_limited"],
            &usage[..],
        ]
        .concat(),
        vec!["--event", "session.end"],
    ] {
        let output = emit(&[&own[..], &more].concat()).await;
        assert_eq!(code(&output), 0, "{output:?}");
        sessions.push(output.stdout);
    }
    sessions.dedup();
    assert_eq!(sessions.len(), 1, "the commands share a session");
    let log = bridge.api.event_log().await;
    let ended = log
        .iter()
        .filter(|event| event["type"] == "signal.session.ended");
    let ended: Vec<_> = ended.collect();
    assert_eq!(ended.len(), 1);
    let data = &ended[0]["data"];
    assert_eq!(
        (&data["adapter"], &data["userId"]),
        (&json!("cli"), &json!("ana"))
    );
    let totals = json!({
        "signalCount": 3, "errorCount": 1, "totalTokensIn": 140, "totalTokensOut": 16, "totalCostUsd": 0.5,
    });
    assert_eq!(data["totals"], totals);

    // A refusal names the fields.
    let output = emit(&[r#"{"adapter": "test", "ts": "now", "prompt": "secret"}"#]).await;
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(4) && told.contains("prompt: "),
        "{told}"
    );
    bridge.stop().await;
}

#[tokio::test]
async fn the_bytes_of_a_record_are_signed_and_sent_as_they_are() {
    let fake = Fake::start().await;
    fake.answer(&json!({"blocked": false}));
    assert_eq!(code(&fake.emit(&[RECORD], "").await), 0);
    let received = fake.sink.received();
    let start: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(received[0].path, "/session/start");
    assert_eq!(start["adapter"], "test");
    assert_eq!(received[1].body, RECORD.as_bytes());
    let digits = hex(&MacKey::new(&[7; 32]).mac([RECORD.as_bytes()]));
    assert_eq!(
        received[1].headers["x-forg-signature"],
        format!("sha256={digits}")
    );

    // A vector of another implementation, with the session of the environment.
    let key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8";
    let record = r#"{"adapter":"my-tool-forg","ts":"2025-05-28T10:00:00.000Z","model":"claude-opus-4-5","tokens_in":100,"tokens_out":50,"latency_ms":500,"cost_usd":null,"error_code":null,"session_id":"sess_4f9a2e1b8c3d","project_id":null}"#;
    let url = fake.sink.url("");
    let given = [
        ("FORG_AGENT_URL", url.as_str()),
        ("FORG_SESSION_KEY", key),
        ("FORG_SESSION_ID", "sess_4f9a2e1b8c3d"),
        ("http_proxy", "http://127.0.0.1:1"),
    ];
    let output = forg(fake.home.path(), &given, &["emit", record], "").await;
    assert_eq!(code(&output), 0, "{output:?}");
    let received = fake.sink.received();
    assert_eq!(received.len(), 3);
    assert_eq!(
        received[2].headers["x-forg-signature"],
        "sha256=92db0a8143ba87968cf8ec0f01042c2f035bb096d01b0b36f7f6752c38b12f4b"
    );
}

#[tokio::test]
async fn exit_codes_say_how_a_record_ended() {
    let fake = Fake::start().await;
    let blocks = started(&json!({"blocked": true, "message": "Enough."}));
    let other = CallbackSink::start().await;
    let usage = ["--adapter", "a", "--event", "model.call"];
    for (answer, arguments, expected) in [
        (Answer::status(200).body(blocks), vec![RECORD], 5),
        (
            Answer::status(401).body("{\"error\": \"no\"}"),
            vec![RECORD],
            4,
        ),
        (Answer::status(500), usage.to_vec(), 4),
        (Answer::redirect(&other.url("/emit")), vec![RECORD], 4),
        (Answer::status(200).body("<html>"), vec![RECORD], 4),
        (Answer::status(200).body("{}"), vec![RECORD], 4),
        (Answer::close(), vec![RECORD], 3),
        (Answer::status(200), vec!["no JSON"], 2),
        (Answer::status(200), vec!["{}"], 2),
        (Answer::status(200), vec![], 2),
        (
            Answer::status(200),
            vec!["--event", "model.call", "--model", "m"],
            2,
        ),
        (
            Answer::status(200),
            vec!["--adapter", "a", "--event", "model.cal"],
            2,
        ),
    ] {
        fake.sink.answer(answer.clone());
        let output = fake.emit(&arguments, "").await;
        assert_eq!(code(&output), expected, "{answer:?} {output:?}");
        if expected == 5 {
            assert_eq!(output.stderr, b"blocked: Enough.\n");
        }
    }
    assert!(other.received().is_empty());
    let away = [("FORG_PORT", "1")];
    let output = forg(fake.home.path(), &away, &["emit", RECORD], "").await;
    assert_eq!(code(&output), 3);
    let wrong = [("FORG_AGENT_URL", "http://agent.example")];
    let output = forg(fake.home.path(), &wrong, &["emit", RECORD], "").await;
    assert_eq!(code(&output), 2);
}

#[tokio::test]
async fn a_hook_fails_open() {
    let fake = Fake::start().await;
    let blocked = |value: Value| Answer::status(200).body(started(&json!({ "blocked": value })));
    let answers = [
        blocked(json!("true")),
        blocked(json!(1)),
        blocked(Value::Null),
        Answer::status(200).body(""),
        Answer::status(200).body("null"),
        Answer::status(200).body("[]"),
        Answer::status(200).body("<html>"),
        Answer::cut(started(&json!({"blocked": true}))),
        Answer::status(401),
        Answer::status(429).header("retry-after", "1"),
        Answer::status(500).body(started(&json!({"blocked": true}))),
        Answer::redirect("/other"),
        Answer::close(),
    ];
    for answer in answers {
        fake.sink.answer(answer.clone());
        let output = fake.hook("PreToolUse").await;
        assert_eq!(
            (code(&output), output.stdout.len()),
            (0, 0),
            "{answer:?} {output:?}"
        );
    }
    fake.answer(&json!({"blocked": true}));
    let arguments = ["--event", "PreToolUse"];
    for input in [
        "",
        "no JSON",
        "[]",
        "{\"session_id\": 1}",
        "{\"session_id\": \"a\"",
    ] {
        let output = fake.emit(&arguments, input).await;
        assert_eq!((code(&output), output.stdout.len()), (0, 0), "{input}");
    }
    let unknown = fake.emit(&["--event", "PreToolUse", "--unknown"], "").await;
    assert_eq!((code(&unknown), unknown.stdout.len()), (0, 0));
    let home = fake.home.path();
    for variable in [
        ("FORG_PORT", "1"),
        ("FORG_PORT", "x"),
        ("FORG_AGENT_URL", "http://agent.example"),
    ] {
        let output = forg(
            home,
            &[variable],
            &["emit", "--event", "Stop"],
            &fake.input(),
        )
        .await;
        assert_eq!((code(&output), output.stdout.len()), (0, 0), "{variable:?}");
    }
}

#[tokio::test]
async fn an_agent_that_hangs_delays_a_tool_by_three_seconds_at_most() {
    let fake = Fake::start().await;
    // The start is slow and the rest hangs: one limit holds for both.
    fake.sink.answer_with(|received| match &*received.path {
        "/emit" => Answer::hang(),
        _ => Answer::status(200)
            .body(started(&json!({})))
            .after(Duration::from_secs(1)),
    });
    let begin = Instant::now();
    let (hook, record) = tokio::join!(fake.hook("PreToolUse"), fake.emit(&[RECORD], ""));
    let took = begin.elapsed();
    assert_eq!((code(&hook), hook.stdout.len(), code(&record)), (0, 0, 3));
    assert!(
        (Duration::from_millis(2_900)..Duration::from_millis(4_500)).contains(&took),
        "{took:?}"
    );
}

#[tokio::test]
async fn a_hook_answers_a_block_in_the_way_of_its_event() {
    let fake = Fake::start().await;
    fake.answer(&json!({"blocked": true, "message": "Budget is used up."}));
    fs::write(fake.transcript(), message("msg_1")).unwrap();
    for (event, expected) in [
        (
            "PreToolUse",
            json!({
                "continue": false, "stopReason": "Budget is used up.",
                "hookSpecificOutput": {
                    "hookEventName": "PreToolUse", "permissionDecision": "deny",
                    "permissionDecisionReason": "Budget is used up.",
                },
            }),
        ),
        (
            "UserPromptSubmit",
            json!({"decision": "block", "reason": "Budget is used up."}),
        ),
        (
            "PostToolUse",
            json!({"continue": false, "stopReason": "Budget is used up."}),
        ),
        (
            "Stop",
            json!({"continue": false, "stopReason": "Budget is used up."}),
        ),
        ("SessionEnd", Value::Null),
        ("PreCompact", Value::Null),
    ] {
        let output = fake.hook(event).await;
        assert_eq!(code(&output), 0, "{output:?}");
        match expected {
            Value::Null => {
                assert_eq!(
                    (&*output.stdout, &*output.stderr),
                    (&b""[..], &b"Budget is used up.\n"[..])
                );
            }
            expected => {
                let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
                assert_eq!(printed, expected);
            }
        }
    }
}

#[tokio::test]
async fn hooks_report_the_usage_of_each_message_once_and_no_content() {
    let fake = Fake::start().await;
    fake.answer(&json!({"blocked": false}));
    fake.hook("SessionStart").await;
    fs::write(fake.transcript(), message("msg_1") + &message("msg_1")).unwrap();
    fake.hook("PreToolUse").await;
    fake.hook("PostToolUse").await;
    fs::write(fake.transcript(), message("msg_1") + &message("msg_2")).unwrap();
    fake.hook("Stop").await;
    fake.hook("SessionEnd").await;

    let received = fake.sink.received();
    let start: Value = serde_json::from_slice(&received[0].body).unwrap();
    let own = json!({"adapter": "claude-code-forg", "client_session_id": "own"});
    assert_eq!(start, own);
    let mut sent = records(&received);
    for record in &mut sent {
        let members = record.as_object_mut().unwrap();
        assert!(
            members
                .remove("ts")
                .unwrap()
                .as_str()
                .unwrap()
                .ends_with('Z')
        );
        assert_eq!(members.remove("adapter"), Some(json!("claude-code-forg")));
        assert_eq!(members.remove("session_id"), Some(json!("sess_1")));
    }
    let usage = |id: &str| {
        json!({
            "call_id": id, "model": "m", "tokens_in": 35, "tokens_out": 12, "cache_read_tokens": 7, "cache_write_tokens": 3,
        })
    };
    let hook = |event: &str| json!({"hook": event, "tool": "Bash", "model": "m"});
    assert_eq!(
        sent,
        [
            json!({"hook": "SessionStart", "tool": "Bash"}),
            usage("msg_1"),
            hook("PreToolUse"),
            json!({"hook": "PostToolUse", "tool": "Bash", "model": "m", "tokens_in": 0, "tokens_out": 0, "cost_usd": 0}),
            usage("msg_2"),
            hook("Stop"),
            hook("SessionEnd"),
        ]
    );
    let all = received
        .iter()
        .map(|one| String::from_utf8_lossy(&one.body));
    assert!(!all.collect::<String>().contains("secret"));
}
