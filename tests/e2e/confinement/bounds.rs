//! Attacks on the store, the listeners and the bounds of the bridge.

use std::fs;

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::super::harness::api::{answer, quiet, with};
use super::super::harness::process::{Home, Process};
use super::super::harness::{Bridge, until};
use super::{
    AGENTS, ALL, LIBRARY, LIBRARY_APART, assert_unharmed, attack, configure, home, order, reported,
};

/// An attacker has the rights of the bridge's user here, so it can remove the folder; the bridge notices it.
#[tokio::test]
async fn a_bridge_whose_data_folder_an_attacker_removes_accepts_nothing_more() {
    for attacker in [LIBRARY, LIBRARY_APART, "agent"] {
        let home = home();
        let bridge = home.start();
        let data = home.dir.path().join("data").display().to_string();
        let body = order(attacker, "remove", &[&data]);
        let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        until("a refusal", async || {
            let body = order("echo", "open", &[]);
            let (status, answer) = bridge.api.post("/api/v2/dispatch", &body).await;
            let refused = status == StatusCode::SERVICE_UNAVAILABLE;
            assert!(refused || status == StatusCode::ACCEPTED, "{answer}");
            refused.then(|| assert_eq!(answer["code"], "STORE_UNAVAILABLE"))
        })
        .await;
        assert!(fs::exists(format!("{data}.gone")).unwrap(), "{attacker}");
        let (status, health) = bridge.api.get("/api/health").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{health}");
        assert_eq!(health["store"]["status"], "offline", "{health}");
    }
}

/// Starts the attack `connect` and waits until its connections are made.
async fn connected(
    home: &Home,
    bridge: &Process,
    attacker: &str,
    token: &str,
    addresses: &[&str],
) -> (String, String) {
    let ready = home.dir.path().join(format!("ready-{attacker}"));
    let ready = ready.display().to_string();
    let arguments = [&["600", &ready, token], addresses].concat();
    let body = order(attacker, "connect", &arguments);
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request.bearer_auth(token).json(&body);
    let (status, accepted) = answer(request).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
    until("the connections", async || {
        fs::exists(&ready).unwrap().then_some(())
    })
    .await;
    let id = accepted["dispatchId"].as_str().unwrap().to_owned();
    (id, format!("{ready}.go"))
}

/// The bridge has 512 descriptors, and attackers begin hundreds of requests to both listeners that they never finish.
#[tokio::test]
async fn half_requests_to_both_listeners_leave_descriptors_for_the_bridge() {
    const KEY: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let back = Bridge::with(&[("BRIDGE_CALLBACK_SECRETS", KEY)]).await;
    let mut home = home();
    let table = format!(
        "[adapters.custom]\nlibrary = \"http\"\nurl = \"{}/api/v2/dispatch\"\npoll_seconds = 3600\n\
         secret = \"{KEY}\"\ncallback = {{}}\n",
        back.api.url
    );
    configure(&home, &table);
    let adapters = format!("{},custom", home.variables["BRIDGE_ADAPTERS"]);
    home.set("BRIDGE_ADAPTERS", &adapters);
    home.set("BRIDGE_HTTP_HEADER_TIMEOUT", "1s");
    let few = ["sh", "-c", "ulimit -n 512; exec \"$@\"", "sh"];
    home.wrapper = few.map(str::to_owned).to_vec();
    let bridge = home.start();
    let callbacks = until("the callback listener", async || {
        let log = home.log();
        let (_, line) = log.split_once("listening for callbacks")?;
        let (_, port) = line.lines().next()?.split_once("127.0.0.1:")?;
        let end = port.find(|c: char| !c.is_ascii_digit());
        Some(format!("127.0.0.1:{}", &port[..end.unwrap_or(port.len())]))
    })
    .await;
    let main = bridge.api.url.strip_prefix("http://").unwrap();
    for attacker in ALL {
        let addresses = [callbacks.as_str(), main];
        let (id, release) = connected(&home, &bridge, attacker, "-", &addresses).await;
        let name = |provider: &str| format!("{provider}-behind-{attacker}");
        let result = bridge.api.run(with(
            quiet(&name("echo"), "ok"),
            &json!({"provider": "echo"}),
        ));
        let result = result.await;
        assert_eq!(result["status"], "ok", "{attacker}: {result}");
        fs::write(release, "").unwrap();
        let begun = reported(&bridge.api.finished(&id).await["result"]);
        assert_eq!(begun, addresses, "{attacker}");
        let result = bridge.api.run(with(
            quiet(&name("custom"), "ok"),
            &json!({"provider": "custom"}),
        ));
        let result = result.await;
        assert_eq!(result["status"], "ok", "{attacker}: {result}");
    }
    drop(bridge);
    back.stop().await;
}

/// Bodies of an agent's token that never arrive take up the memory for them, but not all of it.
#[tokio::test]
async fn bodies_of_one_token_that_never_end_leave_memory_for_another_token() {
    let (agent, other) = ("token-of-the-agent", "token-of-another-caller");
    let mut home = home();
    home.set("BRIDGE_TOKENS", &format!("{agent},{other}"));
    home.set("BRIDGE_HTTP_BODY_TIMEOUT", "1h");
    let bridge = home.start();
    let main = bridge.api.url.strip_prefix("http://").unwrap();
    let (_, release) = connected(&home, &bridge, AGENTS[0], agent, &[main]).await;
    let message = "x".repeat(1024 * 1024);
    let body = with(
        quiet("t", "ok"),
        &json!({"message": message, "provider": "echo"}),
    );
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let (status, accepted) = answer(request.bearer_auth(other).json(&body)).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{accepted}");
    fs::write(release, "").unwrap();
}

#[tokio::test]
async fn lengths_beyond_the_memory_behind_them_are_bounded() {
    let home = home();
    let bridge = home.start();
    for attacker in [LIBRARY, LIBRARY_APART] {
        let none: [&str; 0] = [];
        assert_eq!(attack(&bridge, attacker, "log", &[]).await, none);
        let result = bridge.api.run(order(attacker, "answer", &[])).await;
        let code = &result["errorCode"];
        assert_eq!(code, "output_too_large", "{attacker}: {result}");
        assert_eq!(result["output"], "all there is", "{attacker}");
        assert_unharmed(&bridge, attacker).await;
    }
    for attacker in AGENTS {
        let result = bridge.api.run(order(attacker, "endless", &[])).await;
        assert_eq!(result["status"], "error", "{attacker}: {result}");
        assert_unharmed(&bridge, attacker).await;
    }
}

#[tokio::test]
async fn numbers_above_the_largest_one_end_nothing() {
    let home = home();
    let bridge = home.start();
    let id = bridge
        .api
        .dispatch(order(LIBRARY_APART, "counts", &[]))
        .await;
    let result = bridge.api.finished(&id).await["result"].clone();
    assert_eq!(reported(&result), ["counts"]);
    let events = bridge.api.events(&id).await;
    let mut lost = events.iter().map(|event| &event["data"]["count"]);
    assert!(lost.any(|count| *count == u64::MAX), "{events:#?}");
    assert_unharmed(&bridge, LIBRARY_APART).await;
    for attacker in ["agent", "agent-apart"] {
        let none: [&str; 0] = [];
        assert_eq!(attack(&bridge, attacker, "counts", &[]).await, none);
        assert_unharmed(&bridge, attacker).await;
    }
}

#[tokio::test]
async fn a_frame_without_bounds_ends_its_process_alone() {
    let home = home();
    let bridge = home.start();
    let result = bridge.api.run(order(LIBRARY_APART, "frame", &[])).await;
    assert_eq!(result["errorCode"], "adapter_crashed", "{result}");
    let error = result["error"].as_str().unwrap();
    assert!(error.contains("a frame of 4294967295 bytes"), "{error}");
    until("the adapter to be healthy", async || {
        let (_, health) = bridge.api.get("/api/health").await;
        (health["adapters"][LIBRARY_APART]["status"] == "healthy").then_some(())
    })
    .await;
    assert_unharmed(&bridge, LIBRARY_APART).await;
}
