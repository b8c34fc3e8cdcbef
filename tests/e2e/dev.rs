//! `forge-bridge dev` in its first use: the commands of the README, copied from there, and those that call a
//! running bridge.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A running `forge-bridge dev` on free ports.
struct Dev {
    child: Child,
    url: String,
    receiver: String,
    /// URL of the sample repository.
    sample: Value,
    home: TempDir,
}

/// `dev --json` on a free port, with the adapters beside this test.
fn dev_command(home: &Path) -> Command {
    let program = std::env::current_exe().unwrap();
    let mut command = command(home);
    command
        .args(["dev", "--json"])
        .env("BRIDGE_LISTEN", "127.0.0.1:0")
        .env("BRIDGE_SIGNALS_LISTEN", "127.0.0.1:0")
        .env("BRIDGE_PLUGIN_PATH", program.parent().unwrap())
        .env("PATH", std::env::var("PATH").unwrap())
        .stdout(Stdio::piped());
    command
}

impl Dev {
    fn start() -> Self {
        let home = tempfile::tempdir().unwrap();
        let mut child = dev_command(home.path())
            .env("BRIDGE_DRAIN_ACCEPT", "0s")
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut first = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut first).unwrap();
        // Drains the printed callbacks, so that the pipe does not fill.
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let greeting: Value = serde_json::from_str(&first).unwrap();
        assert_eq!(greeting["adapters"][0]["provider"], "echo");
        let text = |name: &str| greeting[name].as_str().unwrap().to_owned();
        assert!(text("curl").contains(&text("url")), "{greeting}");
        Self {
            url: text("url"),
            receiver: text("callbackUrl"),
            sample: greeting["repoUrl"].clone(),
            child,
            home,
        }
    }

    fn run(&self, arguments: &[&str]) -> (i32, String) {
        let mut command = command(self.home.path());
        let output = command.env("BRIDGE_URL", &self.url).args(arguments);
        let output = output.output().unwrap();
        let out = String::from_utf8(output.stdout).unwrap();
        (output.status.code().unwrap(), out)
    }

    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, out) = self.run(&[arguments, &["--json"]].concat());
        (code, serde_json::from_str(&out).unwrap())
    }

    /// Sends SIGTERM; returns the exit code.
    fn stop(mut self) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), Signal::TERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // Has already ended unless the test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(home: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forge-bridge"));
    command.env_clear().env("HOME", home).current_dir(home);
    command
}

/// Request of a curl command line; knows only the options in the README.
#[derive(Debug, Default, PartialEq)]
struct Curl {
    method: Option<String>,
    url: String,
    headers: Vec<String>,
    body: String,
}

impl Curl {
    fn parse(line: &str) -> Self {
        let mut curl = Self::default();
        let mut words = words(line).into_iter().skip(1);
        while let Some(word) = words.next() {
            match word.as_str() {
                "-sS" | "-sSN" => {}
                // Format printed after the answer.
                "-sSw" => drop(words.next()),
                "-X" => curl.method = words.next(),
                "-H" => curl.headers.extend(words.next()),
                "-d" => curl.body = words.next().unwrap(),
                option if option.starts_with('-') => panic!("{option} is not known here: {line}"),
                _ => curl.url = word,
            }
        }
        curl
    }

    /// Sends the request; returns the whole answer.
    fn send(&self) -> String {
        let rest = self.url.strip_prefix("http://").unwrap();
        let (host, path) = rest.split_at(rest.find('/').unwrap());
        let method = match (&self.method, self.body.is_empty()) {
            (Some(method), _) => method,
            (None, true) => "GET",
            (None, false) => "POST",
        };
        let headers: String = self.headers.iter().map(|h| format!("{h}\r\n")).collect();
        let length = self.body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}Content-Length: {length}\r\n\r\n{}",
            self.body
        );
        let mut stream = TcpStream::connect(host).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }
}

/// Splits a line into words like a shell, as far as the README needs.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None, ' ') => words.push(String::new()),
            (Some(_) | None, _) => words.last_mut().unwrap().push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn a_line_is_taken_apart_as_a_shell_does() {
    let curl = Curl::parse("curl -sS http://a/b -H 'A: b c' -d '{\"x\": \"y z\"}'");
    let wanted = Curl {
        method: None,
        url: "http://a/b".to_owned(),
        headers: vec!["A: b c".to_owned()],
        body: "{\"x\": \"y z\"}".to_owned(),
    };
    assert_eq!(curl, wanted);
}

#[test]
fn the_lines_of_the_readme_work_when_copied() {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    let lines: Vec<&str> = readme
        .lines()
        .filter(|line| line.starts_with("curl "))
        .collect();
    assert_eq!(lines.len(), 9);
    let dev = Dev::start();
    let health = dev.json(&["health"]).1;
    let agent = health["signals"]["agent"].as_str().unwrap();
    let expected = [
        ("202", "\"duplicate\":false"),
        ("200", "event: callback.delivered"),
        ("200", "\"status\":\"finished\""),
        ("200", "\"status\":\"delivered\""),
        ("200", "\"provider\":\"echo\""),
        ("200", "\"status\":\"healthy\""),
        ("202", "\"duplicate\":false"),
        ("200", "{\"cancelled\":true}"),
        ("200", "\"status\":\"ok\""),
    ];
    for (line, (status, part)) in lines.iter().zip(expected) {
        let here = line
            .replace("http://127.0.0.1:7421/callback", &dev.receiver)
            .replace("http://127.0.0.1:7420", &dev.url)
            .replace("127.0.0.1:6247", agent);
        let answer = Curl::parse(&here).send();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status} ")),
            "{line}\n{answer}"
        );
        assert!(
            answer.contains(part),
            "{part:?} is not in the answer to {line}\n{answer}"
        );
    }
    let mut said = String::new();
    for line in readme.lines().filter(|line| line.starts_with("forg ")) {
        let line = line.split(" #").next().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_forg"))
            .args(words(line).into_iter().skip(1))
            .env_clear()
            .env("HOME", dev.home.path())
            .env("BRIDGE_URL", &dev.url)
            .env("FORG_AGENT_URL", format!("http://{agent}"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{line}\n{output:?}");
        said += &String::from_utf8(output.stdout).unwrap();
    }
    assert!(said.contains("Adapter: test (connected)"), "{said}");
    assert_eq!(dev.stop(), Some(0));
}

#[test]
fn the_commands_ask_the_bridge() {
    let dev = Dev::start();
    let hello = [
        "dispatch",
        "Hello",
        "--task",
        "t-1",
        "--callback",
        &dev.receiver,
    ];
    let (code, out) = dev.run(&hello);
    assert_eq!((code, out.as_str()), (0, "Hello\n"));
    let (code, record) = dev.json(&["dispatch", "x", "--task", "t-2", "--model", "fail"]);
    assert_eq!(code, 1);
    assert_eq!(record["result"]["status"], "error");

    let (code, out) = dev.run(&["tail", "t-1", "--until-delivered", "--json"]);
    assert_eq!(code, 0);
    let events = out
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kinds: Vec<Value> = events.map(|event| event["type"].clone()).collect();
    assert_eq!(kinds.first(), Some(&json!("execution.accepted")));
    assert_eq!(kinds.last(), Some(&json!("callback.delivered")));

    let (code, page) = dev.json(&["deliveries", "list", "--status", "delivered"]);
    assert_eq!(code, 0);
    let delivery = page["deliveries"][0]["id"].as_str().unwrap();
    let (code, out) = dev.run(&["deliveries", "show", delivery]);
    assert_eq!(code, 0);
    assert!(out.contains("delivered") && out.contains(" 204"), "{out}");
    let (code, retried) = dev.json(&["deliveries", "retry", delivery]);
    assert_eq!((code, &retried["retried"]), (0, &json!(1)));
    assert_eq!(dev.run(&["deliveries", "show", "dlv_nothing"]).0, 4);

    let (code, out) = dev.run(&["adapters"]);
    assert_eq!(code, 0);
    assert!(out.contains("echo") && out.contains("healthy"), "{out}");
    let (code, adapter) = dev.json(&["adapters", "inspect", "echo"]);
    assert_eq!((code, &adapter["provider"]), (0, &json!("echo")));
    assert_eq!(dev.run(&["adapters", "inspect", "absent"]).0, 4);
}

#[test]
fn a_run_on_the_sample_repository_needs_no_settings() {
    let dev = Dev::start();
    let url = dev.sample.as_str().unwrap();
    let plan = json!({"tasks": [
        {"id": "a", "title": "A", "type": 2, "dependencies": [], "instructions": "write a.txt a"},
    ]});
    let (code, run) = dev.run(&["runs", "start", url, "--message", &plan.to_string()]);
    assert_eq!(code, 0);
    let (code, out) = dev.run(&["runs", "tail", run.trim()]);
    assert_eq!(code, 0, "{out}");
    assert!(out.contains("refinery.merged"), "{out}");
    assert_eq!(dev.stop(), Some(0));
}

#[test]
fn a_closed_output_stops_it_like_a_signal() {
    let home = tempfile::tempdir().unwrap();
    let mut child = dev_command(home.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut first).unwrap();
    drop(out);
    let greeting: Value = serde_json::from_str(&first).unwrap();
    let answer = Curl::parse(greeting["curl"].as_str().unwrap()).send();
    assert!(answer.contains("dispatchId"), "{answer}");
    let output = child.wait_with_output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{log}");
    assert!(
        log.contains("INFO stopped") && !log.contains("panicked"),
        "{log}"
    );
}
