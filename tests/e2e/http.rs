//! The adapter `http` with a real server: another bridge, which runs the dispatches on echo.

use std::time::Duration;

use futures_util::future::join_all;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::harness::process::Home;
use super::harness::{Bridge, until};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A bridge that dispatches to another one, and that other one.
struct Pair {
    front: Bridge,
    back: Bridge,
}

impl Pair {
    async fn start(further: &str) -> Self {
        let back = Bridge::with(&[("BRIDGE_CALLBACK_SECRETS", SECRET)]).await;
        let file = format!(
            "[adapters.custom]\nlibrary = \"http\"\nurl = \"{}/api/v2/dispatch\"\n{further}",
            back.api.url
        );
        let front = Bridge::configured(&file, &[("BRIDGE_ADAPTERS", "custom")]).await;
        Self { front, back }
    }

    async fn stop(self) {
        Box::pin(self.front.stop()).await;
        Box::pin(self.back.stop()).await;
    }
}

fn task(name: &str, model: &str) -> Value {
    json!({"taskId": name, "agentId": "agent", "message": "hello", "model": model, "callbackUrl": null})
}

#[tokio::test]
async fn another_bridge_does_the_work_and_is_asked_or_calls_back() {
    let callback = format!("poll_seconds = 3600\nsecret = \"{SECRET}\"\ncallback = {{}}\n");
    for further in ["poll_seconds = 0.05\n", &callback] {
        let pair = Pair::start(further).await;
        let result = pair.front.api.run(task("t", "ok")).await;
        assert_eq!(result["status"], "ok", "{result}");
        let there = pair.back.api.record("t").await;
        assert_eq!(result["output"], there["result"]["output"]);
        assert_eq!(result["usage"], there["result"]["usage"]);
        assert_eq!(there["status"], "finished");
        if further == callback {
            let id = there["dispatchId"].as_str().unwrap();
            pair.back.api.delivery_is(id, "delivered").await;
        }
        pair.stop().await;
    }
}

#[tokio::test]
async fn a_cancel_goes_through_both_bridges() {
    let pair = Pair::start("poll_seconds = 0.05\n").await;
    let id = pair.front.api.dispatch(task("t", "slow:60000")).await;
    until("the other bridge to run it", || async {
        let (status, record) = pair.back.api.get("/api/v2/dispatch/t").await;
        (status == 200 && record["status"] == "running").then_some(())
    })
    .await;
    assert!(pair.front.api.cancel(&id).await);
    let record = pair.front.api.finished(&id).await;
    assert_eq!(record["result"]["errorCode"], "cancelled", "{record}");
    let there = pair.back.api.finished("t").await;
    assert_eq!(there["result"]["errorCode"], "cancelled", "{there}");
    pair.stop().await;
}

#[tokio::test]
async fn without_the_server_it_is_offline_and_without_an_address_degraded() {
    let bridge = Bridge::configured(
        "[adapters.custom]\nlibrary = \"http\"\nurl = \"http://127.0.0.1:1/run\"\n",
        &[("BRIDGE_ADAPTERS", "custom,http")],
    )
    .await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(
        health["adapters"]["custom"]["status"], "offline",
        "{health}"
    );
    assert_eq!(health["adapters"]["http"]["status"], "degraded", "{health}");
    bridge.stop().await;
}

/// The bridge has 512 descriptors, and 600 callers begin a callback that they never finish.
#[tokio::test]
async fn half_requests_to_the_callback_listener_leave_descriptors_for_the_bridge() {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, all).unwrap();
    let back = Bridge::with(&[("BRIDGE_CALLBACK_SECRETS", SECRET)]).await;
    let mut home = Home::new(&[("BRIDGE_ADAPTERS", "echo,custom")]);
    let file = home.dir.path().join("forge-bridge.toml");
    let table = format!(
        "[adapters.custom]\nlibrary = \"http\"\nurl = \"{}/api/v2/dispatch\"\npoll_seconds = 3600\n\
         secret = \"{SECRET}\"\ncallback = {{}}\n",
        back.api.url
    );
    std::fs::write(&file, table).unwrap();
    home.set("BRIDGE_CONFIG", file.to_str().unwrap());
    let few = ["sh", "-c", "ulimit -n 512; exec \"$@\"", "sh"];
    home.wrapper = few.map(str::to_owned).to_vec();
    let process = home.start();
    let address = until("the callback listener", || async {
        let log = home.log();
        let (_, line) = log.split_once("listening for callbacks")?;
        let (_, port) = line.lines().next()?.split_once("127.0.0.1:")?;
        let end = port.find(|c: char| !c.is_ascii_digit());
        Some(format!("127.0.0.1:{}", &port[..end.unwrap_or(port.len())]))
    })
    .await;

    let half = (0..600).map(|_| async {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(b"POST /callback/0 HT").await.unwrap();
        stream
    });
    // Connections beyond the listen backlog are not made while nothing is accepted.
    let half = join_all(half.map(|caller| timeout(Duration::from_secs(5), caller))).await;
    let mut here = task("here", "ok");
    here["provider"] = "echo".into();
    let result = process.api.run(here).await;
    assert_eq!(result["status"], "ok", "{result}");
    drop(half);
    let mut there = task("there", "ok");
    there["provider"] = "custom".into();
    let result = process.api.run(there).await;
    assert_eq!(result["status"], "ok", "{result}");
    drop(process);
    back.stop().await;
}
