//! The blocks of the pages in `docs/`: `tests/docs` runs the programs and commands against a bridge; the program in Rust is
//! compiled and run here.

#[allow(
    clippy::print_stdout,
    unreachable_pub,
    reason = "the program of docs/receive.md, word for word"
)]
mod receiver;

use std::process::{Command, Stdio};

use tokio_util::task::TaskTracker;

use super::examples::{build_sdk, output};
use super::harness::library::root;
use super::harness::plugins;
use super::harness::process::Home;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

#[test]
fn the_blocks_of_the_pages_run() {
    build_sdk();
    let mut python = Command::new(forge_test_runtimes::sdk_python());
    python
        .args(["-m", "pytest", "--quiet", "-p", "no:cacheprovider"])
        .arg("tests/docs")
        .current_dir(root())
        .env("FORGE_BRIDGE", env!("CARGO_BIN_EXE_forge-bridge"))
        .env("FORGE_NODE", forge_test_runtimes::node())
        .env("FORGE_PLUGINS", plugins())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null());
    output(&mut python);
}

#[tokio::test]
async fn the_receiver_in_rust_accepts_what_the_bridge_sends_and_refuses_the_rest() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/results", listener.local_addr().unwrap());
    let router = receiver::receiver(SECRET).unwrap();
    let server = TaskTracker::new().spawn(axum::serve(listener, router).into_future());
    let home = Home::new(&[]);
    let mut test = home.command();
    test.args(["callback", "test", &url, "--secret", SECRET]);
    // On a blocking thread, so that the receiver can answer meanwhile.
    let said = tokio::task::spawn_blocking(move || output(&mut test));
    let said = said.await.unwrap();
    assert_eq!(said.matches("\n  ok ").count(), 5, "{said}");
    server.abort();
}
