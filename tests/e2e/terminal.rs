//! Commands on a terminal and in a pipe: colour, progress, streamed text, and no unseen characters of others.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Output, Stdio};

use forge_base::text::is_unseen;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink};

/// Python program that runs its arguments on a new terminal and prints their output.
const ON_A_TERMINAL: &str = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";

fn program(home: &Home, bridge: &Process) -> Command {
    let mut command = home.command();
    command.args(["--url", &bridge.api.url]);
    command
}

/// Wraps a command to run on a terminal.
pub(super) fn on_a_terminal(command: &Command) -> Command {
    let mut python = Command::new("python3");
    python
        .args(["-c", ON_A_TERMINAL])
        .arg(command.get_program());
    python
        .args(command.get_args())
        .env_clear()
        .stdin(Stdio::null());
    python.env("PATH", std::env::var_os("PATH").unwrap());
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            python.env(name, value);
        }
    }
    python
}

fn said(command: &mut Command) -> (String, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(stdout), text(stderr));
    assert!(status.success(), "{out}{err}");
    (out, err)
}

#[test]
fn a_pipe_gets_the_answer_and_nothing_else() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let message = "red \x1b[31mis not\tours\n";
    let (out, err) = said(program(&home, &bridge).args(["dispatch", message]));
    assert_eq!(out, message, "as it came");
    assert!(
        err.contains("started, attempt 1") && err.contains("ok in "),
        "{err}"
    );
    assert!(!err.contains('\x1b') && !err.contains('\r'), "{err:?}");

    let stream = [
        "dispatch",
        "one two three",
        "--model",
        "stream:3",
        "--task",
        "t-1",
    ];
    let (out, _) = said(program(&home, &bridge).args(stream));
    assert_eq!(out, "one two three 1\none two three 2\none two three 3\n");
    let (told, _) = said(program(&home, &bridge).args(["tail", "t-1"]));
    assert!(
        told.contains("execution.completed") && !told.contains('\x1b'),
        "{told}"
    );
    assert!(!told.contains("\"delta\""), "{told}");
}

#[test]
fn an_interrupted_dispatch_goes_on_and_says_how_to_end_it() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let mut command = program(&home, &bridge);
    command.args(["dispatch", "Hello", "--model", "slow:600000"]);
    let mut waiting = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(waiting.stderr.take().unwrap()).lines();
    let mut until = |part: &str| {
        let found = lines.find(|line| line.as_ref().unwrap().contains(part));
        found.unwrap().unwrap()
    };
    until("started, attempt 1");
    kill_process(Pid::from_child(&waiting), Signal::INT).unwrap();
    let told = until("the execution goes on");
    assert_eq!(waiting.wait().unwrap().code(), Some(130));
    for action in ["show", "cancel"] {
        let begin = told.find(&format!("dispatches {action} dsp_")).unwrap();
        let words = told[begin..].split([' ', ',']);
        let (out, _) = said(program(&home, &bridge).args(words.take(3)));
        let state = ["running", "cancel"][usize::from(action == "cancel")];
        assert!(out.contains(state), "{action}: {out}");
    }
}

#[test]
fn a_terminal_gets_colour_unless_it_is_not_wanted_and_no_orders_of_agents() {
    let home = Home::new(&[]);
    let bridge = home.start();
    let dispatch = |model: &str| {
        let mut command = program(&home, &bridge);
        command.args(["dispatch", "title \x1b]0;mine\x07", "--model", model]);
        command
    };
    let (out, _) = said(&mut on_a_terminal(&dispatch("slow:1200")));
    for wanted in [
        "\x1b[32mok\x1b[0m in ",
        r"title \u{1b}]0;mine\u{7}",
        // Progress line, which is erased afterwards.
        "\r\x1b[K\x1b[2mstarted, attempt 1, ",
    ] {
        assert!(out.contains(wanted), "{wanted:?} is not in {out:?}");
    }
    assert!(!out.contains("\x1b]0;"), "{out:?}");
    let (out, _) = said(on_a_terminal(&dispatch("ok")).env("NO_COLOR", "1"));
    assert!(
        out.contains("ok in ") && !out.contains("\x1b[32m"),
        "{out:?}"
    );
    let (out, _) = said(on_a_terminal(&dispatch("ok")).env("TERM", "dumb"));
    assert!(out.contains("ok in ") && !out.contains('\x1b'), "{out:?}");
}

/// Title, clipboard, cursor and colour, by the seven-bit and the eight-bit introducer; another direction; a line that only
/// some programs end; letters that are not shown.
const ORDERS: &str = "\x1b]0;mine\x07\x1b]52;c;aGk=\x07\u{9b}2J\x1b[31m\r\x7f\u{202e}\u{2066}\u{2028}\u{200b}\u{ad}\u{feff}\u{e0041}";

/// Answer of a bridge with orders to the terminal in every text.
fn hostile(path: &str) -> Value {
    let adapter = json!({
        "provider": ORDERS, "version": ORDERS, "path": ORDERS, "digest": ORDERS, "pausedAt": ORDERS,
        "health": {"status": ORDERS, "message": ORDERS}, "running": 1, "queued": 2,
        "profile": {"capabilities": [ORDERS]}, "leaving": [{"version": ORDERS, "digest": ORDERS}],
    });
    let attempt = json!({"number": 1, "at": ORDERS, "error": ORDERS, "answer": ORDERS});
    let delivery = json!({
        "id": ORDERS, "status": ORDERS, "taskId": ORDERS, "url": ORDERS, "dueAt": ORDERS,
        "attempts": [attempt],
    });
    let destination =
        json!({"origin": ORDERS, "state": "open", "probeAt": ORDERS, "reason": ORDERS});
    let dispatch = json!({
        "dispatchId": "one", "taskId": ORDERS, "agentId": ORDERS, "provider": ORDERS, "status": ORDERS,
        "outcome": ORDERS, "waitReason": {"message": ORDERS}, "routing": [{"name": ORDERS, "dropped": [{"provider": ORDERS, "reason": ORDERS}]}],
        "attempts": [{"number": 1, "startedAt": ORDERS, "retriedBecause": ORDERS}],
        "result": {"output": ORDERS, "error": ORDERS, "model": ORDERS}, "deliveries": [{"id": "one"}],
    });
    match path.trim_start_matches("/api/").split('?').next().unwrap() {
        "health/ready" => json!({"status": ORDERS}),
        "health" => {
            json!({"status": ORDERS, "adapters": {ORDERS: {"status": ORDERS, "message": ORDERS}}})
        }
        "v2/adapters" => json!({"adapters": [adapter]}),
        "v2/deliveries" => json!({"deliveries": [delivery], "nextCursor": ORDERS}),
        "v2/deliveries/destinations" => json!({"destinations": [destination]}),
        "v2/deliveries/one" => delivery,
        "v2/deliveries/one/retry" => json!({"retried": 1, "destinations": [destination]}),
        "v2/dispatch" => json!({"dispatchId": ORDERS}),
        "v2/dispatches" => json!({"dispatches": [dispatch], "nextCursor": ORDERS}),
        "v2/dispatch/one" => dispatch,
        "v2/dispatch/one/events" => {
            json!({"events": [{"type": ORDERS, "taskId": ORDERS, "data": {ORDERS: ORDERS}}]})
        }
        _ => adapter,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_command_passes_on_unseen_characters_of_others() {
    let home = Home::new(&[]);
    let fake = CallbackSink::start().await;
    fake.answer_with(|request| {
        let body = hostile(&request.path).to_string();
        Answer::status(200)
            .header("content-type", "application/json")
            .body(body)
    });
    let refusing = CallbackSink::start().await;
    let refusal =
        json!({"error": ORDERS, "code": ORDERS, "details": [{"field": ORDERS, "message": ORDERS}]});
    refusing.answer(Answer::status(400).body(refusal.to_string()));
    for arguments in [
        ["health"].as_slice(),
        &["adapters"],
        &["adapters", "inspect", "one"],
        &["adapters", "reload", "one"],
        &["adapters", "pause", "one"],
        &["adapters", "resume", "one"],
        &["deliveries"],
        &["deliveries", "show", "one"],
        &["deliveries", "destinations"],
        &["deliveries", "retry", "one"],
        &["dispatch", "hello", "--no-wait"],
        &["dispatches"],
        &["dispatches", "show", "one"],
    ] {
        for (sink, json) in [(&fake, false), (&fake, true), (&refusing, false)] {
            let mut command = home.command();
            command.args(arguments).args(["--url", &sink.url("")]);
            command.args(json.then_some("--json"));
            let Output { stdout, stderr, .. } = command.output().unwrap();
            let said = String::from_utf8([stdout, stderr].concat()).unwrap();
            let order = said
                .chars()
                .find(|c| is_unseen(*c) && !['\n', '\t'].contains(c));
            assert_eq!(order, None, "{arguments:?}: {said:?}");
            assert!(said.contains("mine"), "{arguments:?}: {said:?}");
        }
    }
}
