//! Registration of the bridge in a gateway registry, over restarts and outages of both.

use forge_base::digest;
use reqwest::{Method, StatusCode};
use serde_json::json;

use super::harness::Bridge;
use super::harness::api::{answer, quiet};
use super::harness::port::Reserved;
use super::harness::process::{Home, Process};
use super::harness::registry::{self, Manner, Registry};

const OFTEN: (&str, &str) = ("BRIDGE_REGISTRATION_EVERY", "50ms");
/// Interval longer than a test: registers at the start, and for other reasons only.
const ONCE: (&str, &str) = ("BRIDGE_REGISTRATION_EVERY", "1h");
const ID: (&str, &str) = ("BRIDGE_REGISTRATION_GATEWAY_ID", "gw");

fn sha256(token: &str) -> String {
    digest::hex(&digest::sha256(token))
}

/// Starts a bridge that often registers with this registry.
async fn registering(url: &str) -> Bridge {
    Bridge::with(&[("BRIDGE_REGISTRATION_URL", url), ID, OFTEN]).await
}

/// Asserts that the bridge is healthy and executes dispatches.
async fn serves(bridge: &Bridge, task: &str) {
    let (status, health) = bridge.api.get("/api/health").await;
    assert_eq!(status, StatusCode::OK, "{health}");
    let result = bridge.api.run(quiet(task, "ok")).await;
    assert_eq!(result["status"], "ok", "{result}");
}

#[tokio::test]
async fn a_bridge_registers_itself_and_takes_it_back_when_it_stops() {
    let registry = Registry::start();
    let bridge = Bridge::with(&[
        ("BRIDGE_REGISTRATION_URL", &registry.url()),
        ("BRIDGE_REGISTRATION_TOKEN", "registry-token"),
        ("BRIDGE_REGISTRATION_NAME", "Ours"),
        ("BRIDGE_REGISTRATION_ENVIRONMENT", "staging"),
        ("BRIDGE_REGISTRATION_PUBLIC_URL", "https://bridge.example/"),
        ("BRIDGE_ADAPTERS_ECHO_MAX_CONCURRENT", "3"),
        ID,
        ONCE,
    ])
    .await;
    let mut entry = registry.holds("gw", |_| true).await;
    let (_, health) = bridge.api.get("/api/health").await;
    assert_eq!(entry["instanceId"], health["instanceId"]);
    let profile = entry["capabilities"].take();
    assert_eq!(profile["maxConcurrent"], 3, "{profile}");
    let capabilities = profile["capabilities"].as_array().unwrap();
    assert!(capabilities.contains(&json!("streaming")), "{profile}");
    let expected = json!({
        "gatewayId": "gw", "name": "Ours", "environment": "staging",
        "url": "https://bridge.example", "instanceId": health["instanceId"],
        "registrationSource": "self", "capabilities": null,
    });
    assert_eq!(entry, expected);

    bridge.stop().await;
    assert!(registry.gateways().is_empty(), "{:?}", registry.gateways());
    let calls = registry.calls();
    let methods: Vec<_> = calls.iter().map(|call| call.method).collect();
    assert_eq!(methods, ["POST", "DELETE"]);
    for call in calls {
        assert_eq!(call.authorization.as_deref(), Some("Bearer registry-token"));
    }
}

#[tokio::test]
async fn without_a_name_of_its_own_a_bridge_keeps_its_id_over_restarts() {
    let registry = Registry::start();
    let home = Home::new(&[("BRIDGE_REGISTRATION_URL", &registry.url()), ONCE]);
    let mut seen = Vec::new();
    for starts in 1..=2 {
        let process = home.start();
        registry.until_calls(starts).await;
        let call = registry.calls().remove(starts - 1);
        seen.push((call.gateway, call.instance));
        process.kill();
    }
    let [(first, before), (second, after)] = &seen[..] else {
        panic!("{seen:?}");
    };
    assert!(!first.is_empty() && first == second, "{seen:?}");
    assert_ne!(before, after);
}

#[tokio::test]
async fn several_adapters_are_several_gateways() {
    let registry = Registry::start();
    let bridge = Bridge::with(&[
        ("BRIDGE_REGISTRATION_URL", &registry.url()),
        ("BRIDGE_ADAPTERS", "echo,second,third"),
        ("BRIDGE_ADAPTERS_SECOND_LIBRARY", "echo"),
        ID,
        ONCE,
    ])
    .await;
    registry.holds("gw:echo", |_| true).await;
    registry.holds("gw:second", |_| true).await;
    let ids: Vec<_> = registry.gateways().into_keys().collect();
    assert_eq!(ids, ["gw:echo", "gw:second"], "third has no library");
    bridge.stop().await;
    assert!(registry.gateways().is_empty());
}

#[tokio::test]
async fn a_registration_is_repeated_and_so_outlives_the_registrys_memory() {
    let registry = Registry::start();
    let bridge = registering(&registry.url()).await;
    let first = registry.holds("gw", |_| true).await;
    registry.until_calls(3).await;
    registry.forget();
    assert_eq!(registry.holds("gw", |_| true).await, first);
    bridge.stop().await;
}

#[tokio::test]
async fn an_outage_ends_by_itself_and_disturbs_no_dispatch() {
    let registry = Registry::start();
    let bridge = registering(&registry.url()).await;
    registry.holds("gw", |_| true).await;
    for (round, status) in [503, 500, 429, 401].into_iter().enumerate() {
        registry.is(Manner::Failing(StatusCode::from_u16(status).unwrap()));
        registry.forget();
        registry.until_calls(registry.calls().len() + 2).await;
        serves(&bridge, &format!("t{round}")).await;
        assert!(registry.gateways().is_empty());
        registry.is(Manner::Well);
        registry.holds("gw", |_| true).await;
    }
    bridge.stop().await;
    assert!(registry.gateways().is_empty());
}

#[tokio::test]
async fn a_registry_that_is_away_at_the_start_is_found_when_it_comes() {
    let reserved = Reserved::new();
    let bridge = registering(&registry::url(reserved.address())).await;
    serves(&bridge, "t").await;
    let registry = Registry::open(reserved);
    registry.holds("gw", |_| true).await;
    bridge.stop().await;
    assert!(registry.gateways().is_empty());
}

#[tokio::test]
async fn a_registry_that_stays_away_does_not_keep_a_bridge_from_stopping() {
    let reserved = Reserved::new();
    let bridge = registering(&registry::url(reserved.address())).await;
    serves(&bridge, "t").await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_registry_that_never_answers_delays_neither_start_nor_work_nor_stop() {
    let registry = Registry::start();
    registry.is(Manner::Silent);
    let url = registry.url();
    // The request has no effective timeout, so only the limit on stopping ends the wait.
    let bridge = Bridge::with(&[
        ("BRIDGE_REGISTRATION_URL", &url),
        ("BRIDGE_REGISTRATION_TIMEOUT", "1d"),
        ID,
        ONCE,
    ])
    .await;
    registry.until_calls(1).await;
    serves(&bridge, "t").await;
    bridge.stop().await;
    // The registry might have stored the registration that it never confirmed, so it is removed.
    let methods: Vec<_> = registry.calls().iter().map(|call| call.method).collect();
    assert_eq!(methods, ["POST", "DELETE"]);
}

#[tokio::test]
async fn a_slow_registry_is_asked_again() {
    let registry = Registry::start();
    registry.is(Manner::Silent);
    let bridge = Bridge::with(&[
        ("BRIDGE_REGISTRATION_URL", &registry.url()),
        ("BRIDGE_REGISTRATION_TIMEOUT", "100ms"),
        ID,
        OFTEN,
    ])
    .await;
    registry.until_calls(2).await;
    registry.is(Manner::Well);
    registry.holds("gw", |_| true).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_new_token_is_registered_by_its_hash_and_never_itself() {
    let registry = Registry::start();
    let mut home = Home::new(&[("BRIDGE_REGISTRATION_URL", &registry.url()), ID, ONCE]);
    // The first token is announced; the former one stays valid.
    for tokens in ["token-a", "token-b,token-a"] {
        home.variables.insert("BRIDGE_TOKENS".into(), tokens.into());
        let process = home.start();
        let hash = sha256(tokens.split(',').next().unwrap());
        let entry = registry
            .holds("gw", |entry| entry["tokenHash"] == hash.as_str())
            .await;
        assert!(!entry.to_string().contains("token-"), "{entry}");
        process.kill();
    }
}

#[tokio::test]
async fn a_token_that_changes_while_the_bridge_serves_is_registered_at_once() {
    let registry = Registry::start();
    let home = Home::new(&[("BRIDGE_REGISTRATION_URL", &registry.url()), ID, ONCE]);
    let file = home.dir.path().join("forge-bridge.toml");
    let tokens =
        |tokens: &str| std::fs::write(&file, format!("[auth]\ntokens = {tokens}")).unwrap();
    let asks = async |process: &Process, token: &str| {
        let request = process.api.request(Method::GET, "/api/v2/adapters");
        answer(request.bearer_auth(token)).await.0
    };
    tokens(r#"["token-a"]"#);
    let process = home.start();
    registry
        .holds("gw", |entry| {
            entry["tokenHash"] == sha256("token-a").as_str()
        })
        .await;
    assert_eq!(asks(&process, "token-b").await, StatusCode::UNAUTHORIZED);

    tokens(r#"["token-b", "token-a"]"#);
    process.hang_up();
    registry
        .holds("gw", |entry| {
            entry["tokenHash"] == sha256("token-b").as_str()
        })
        .await;
    for token in ["token-a", "token-b"] {
        assert_eq!(asks(&process, token).await, StatusCode::OK);
    }

    // Invalid settings change nothing.
    tokens("7");
    process.hang_up();
    tokens(r#"["token-c"]"#);
    process.hang_up();
    registry
        .holds("gw", |entry| {
            entry["tokenHash"] == sha256("token-c").as_str()
        })
        .await;
    assert_eq!(asks(&process, "token-a").await, StatusCode::UNAUTHORIZED);
    process.kill();
}

// Multi-threaded, because the registry must answer while the test waits for the end of a process.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_rolling_deploy_the_old_instance_leaves_the_new_ones_registration_alone() {
    let registry = Registry::start();
    let start = || Home::new(&[("BRIDGE_REGISTRATION_URL", &registry.url()), ID, ONCE]);
    let (old_home, new_home) = (start(), start());
    let old = old_home.start();
    let first = registry.holds("gw", |_| true).await;
    let new = new_home.start();
    let second = registry
        .holds("gw", |entry| entry["instanceId"] != first["instanceId"])
        .await;

    old.terminate();
    assert!(old.wait().success());
    let call = registry.calls().pop().unwrap();
    assert_eq!((call.method, call.gateway.as_str()), ("DELETE", "gw"));
    assert_eq!(first["instanceId"], call.instance.as_str());
    assert_eq!(registry.gateways()["gw"], second);

    new.terminate();
    assert!(new.wait().success());
    assert!(registry.gateways().is_empty());
}

#[tokio::test]
async fn a_draining_bridge_deregisters_while_work_still_runs() {
    let registry = Registry::start();
    let home = Home::new(&[
        ("BRIDGE_REGISTRATION_URL", &registry.url()),
        ("BRIDGE_DRAIN_ACCEPT", "60s"),
        ("BRIDGE_DRAIN_GRACE", "60s"),
        ID,
        ONCE,
    ]);
    let process = home.start();
    registry.holds("gw", |_| true).await;
    process.terminate();
    registry.until_calls(2).await;
    assert_eq!(registry.calls()[1].method, "DELETE");
    let (_, health) = process.api.get("/api/health").await;
    assert_eq!(health["draining"], true, "it still answers: {health}");
    process.kill();
}
