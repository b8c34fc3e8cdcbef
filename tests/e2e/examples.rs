//! The files of `examples/`, run against a bridge as their heads say.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Once;

use super::harness::library::root;
use super::harness::process::{Home, Process};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

const CALLERS: [&str; 3] = [
    "callers/dispatch.sh",
    "callers/dispatch.py",
    "callers/dispatch.ts",
];

/// Command that runs an example by its extension.
fn example(path: &str) -> Command {
    let file = root().join("examples").join(path);
    let mut command = match path.rsplit_once('.').unwrap().1 {
        "py" => Command::new("python3"),
        "ts" => {
            let mut node = Command::new(forge_test_runtimes::node());
            node.args([
                "--disable-warning=ExperimentalWarning",
                "--experimental-strip-types",
            ]);
            node
        }
        _ => Command::new("sh"),
    };
    command
        .arg(file)
        .stdin(Stdio::null())
        .stderr(Stdio::piped());
    command
}

/// Standard output of a program that must succeed.
pub(super) fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}{complained}");
    said
}

fn call(bridge: &Process, path: &str) -> Command {
    let mut command = example(path);
    command.arg("Hello").env("BRIDGE_URL", &bridge.api.url);
    command
}

/// A receiver on a free port.
struct Receiver {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    url: String,
}

impl Receiver {
    fn start(path: &str) -> Self {
        let mut child = example(path)
            .env("WEBHOOK_SECRET", SECRET)
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let url = first.trim().trim_start_matches("listening on ").to_owned();
        assert!(url.starts_with("http://127.0.0.1:"), "{first}");
        Self { child, output, url }
    }

    /// The next line that it prints about a verified callback.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Installs and builds the TypeScript client unless a former check has done so; one test does it for all.
pub(super) fn build_sdk() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        let sdk: PathBuf = root().join("sdk/typescript");
        let built = ["dist/index.js", "node_modules/vitest"].map(|path| sdk.join(path).exists());
        if built == [true, true] {
            return;
        }
        let node = forge_test_runtimes::node();
        let path = format!(
            "{}:{}",
            node.parent().unwrap().display(),
            std::env::var("PATH").unwrap()
        );
        for arguments in [
            vec!["ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            vec!["run", "build"],
        ] {
            let mut npm = Command::new("npm");
            output(npm.args(arguments).current_dir(&sdk).env("PATH", &path));
        }
    });
}

#[tokio::test]
async fn callers_submit_follow_and_read() {
    build_sdk();
    let home = Home::new(&[]);
    let bridge = home.start();
    for path in CALLERS {
        let said = output(&mut call(&bridge, path));
        for part in ["dsp_", "on echo", "execution.completed", "Hello 3"] {
            let left_out = part == "on echo" && path.ends_with("sh");
            assert!(left_out || said.contains(part), "{path}: {part}: {said}");
        }
    }
}

#[tokio::test]
async fn callers_say_what_was_refused() {
    build_sdk();
    let home = Home::new(&[]);
    let bridge = home.start();
    for path in CALLERS {
        let output = call(&bridge, path)
            .env("TASK_ID", "dsp_mine")
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(!output.status.success(), "{path}: {said}");
        assert!(
            said.contains("taskId") || said.contains("400"),
            "{path}: {said}"
        );
    }
}

#[tokio::test]
async fn receivers_take_a_signed_callback_and_refuse_others() {
    let home = Home::new(&[]);
    let bridge = home.start();
    for path in ["receivers/receive.py", "receivers/receive.ts"] {
        assert_eq!(output(example(path).arg("--self-test")), "ok\n");
        let mut receiver = Receiver::start(path);
        let ask = |task: &str, secret: &str| {
            let mut caller = call(&bridge, "callers/dispatch.py");
            caller
                .env("CALLBACK_URL", &receiver.url)
                .env("TASK_ID", task);
            output(caller.env("WEBHOOK_SECRET", secret));
        };
        let (bad, good) = (format!("{path}-bad"), format!("{path}-good"));
        ask(&bad, "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD");
        ask(&good, SECRET);
        let line = receiver.line();
        assert!(line.starts_with(&format!("{good} ok ")), "{path}: {line}");
        receiver.child.kill().unwrap();
        let mut refused = String::new();
        receiver
            .child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut refused)
            .unwrap();
        assert!(refused.contains("no signature fits"), "{path}: {refused}");
    }
}
