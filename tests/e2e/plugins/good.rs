//! Well-behaved adapters, and the lifecycle of an instance.

use std::fs;
use std::process::Command;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use forge_plugin_host::{Error, Item, Relayed, Steered};
use serde_json::{Value, json};

use super::{
    Place, SOON, assert_well, execute, listen, message, refusal, run, start, steers, table,
};

#[tokio::test]
async fn echo_is_found_beside_the_binary_loaded_called_and_ended() {
    let place = Place::new();
    let mut setup = place.setup(&["echo"]);
    setup.tables = [("echo".to_owned(), table(json!({"max_concurrent": 2})))].into();
    let tracker = setup.tracker.clone();
    let (registry, mut relayed) = start(setup).await;
    let echo = registry.get("echo").unwrap();
    assert_eq!(echo.health().status, HealthStatus::Healthy);
    assert!(echo.profile().unwrap().supports("streaming"));
    assert!(echo.version().is_some() && echo.digest().unwrap().len() == 64);
    assert!(echo.has_interface("execution") && !echo.has_interface("nothing"));
    assert_well(&echo).await;

    // The configuration lowers the maximum concurrency.
    assert_eq!(echo.max_concurrent(), 2);
    let permits = [echo.reserve().unwrap(), echo.reserve().unwrap()];
    assert!(echo.reserve().is_none());
    assert_eq!(echo.running(), 2);
    drop(permits);
    assert_eq!(echo.running(), 0);

    let Relayed { provider, event } = relayed.recv().await.unwrap();
    assert_eq!(
        (provider.as_str(), event.kind.as_str()),
        ("echo", "adapter.health")
    );

    registry.shutdown(SOON).await;
    assert_eq!(
        execute(&echo, "ok").unwrap_err().code,
        "adapter_unavailable"
    );
    tracker.close();
    tokio::time::timeout(SOON, tracker.wait()).await.unwrap();
}

#[tokio::test]
async fn what_an_adapter_says_arrives_in_order() {
    let (registry, _relayed) = start(Place::new().setup(&["echo"])).await;
    let echo = registry.get("echo").unwrap();
    let (items, answer) = run(&echo, "stream:200").await;
    assert!(items.len() >= 200);
    let text: String = items
        .iter()
        .filter_map(|item| match item {
            Item::Event(event) => event
                .data
                .as_ref()?
                .get("delta")?
                .as_str()
                .map(str::to_owned),
            Item::Dropped(_) | Item::Done(_) => panic!("{item:?}"),
        })
        .collect();
    assert_eq!(answer.unwrap()["output"], Value::String(text));
}

#[tokio::test]
async fn a_slow_reader_slows_an_adapter_and_loses_nothing() {
    let mut setup = Place::new().setup(&["echo"]);
    setup.config.queue_bytes = 1024;
    let (registry, _relayed) = start(setup).await;
    let (items, answer) = run(&registry.get("echo").unwrap(), "stream:300").await;
    assert!(items.len() >= 300);
    assert!(!items.iter().any(|item| matches!(item, Item::Dropped(_))));
    assert!(answer.is_ok());
}

#[tokio::test]
async fn a_panic_is_a_result_and_others_continue() {
    let (registry, _relayed) = start(Place::new().setup(&["echo"])).await;
    let echo = registry.get("echo").unwrap();
    let slow = execute(&echo, "slow:50").unwrap();
    let (_, answer) = run(&echo, "panic").await;
    assert_eq!(answer.unwrap_err(), "adapter_panic");
    assert_eq!(listen(slow).await.1.unwrap()["status"], "ok");
    assert_well(&echo).await;
}

#[tokio::test]
async fn an_execution_is_cancelled_by_name_or_by_dropping_its_call() {
    let (registry, _relayed) = start(Place::new().setup(&["echo"])).await;
    let echo = registry.get("echo").unwrap();
    let permit = echo.reserve().unwrap();
    assert_eq!(permit.cancel("dsp_1/1", "task").await, Ok(false));
    drop(execute(&echo, "hang").unwrap());

    let call = execute(&echo, "slow:60000").unwrap();
    let known = async { while !permit.cancel("dsp_1/1", "task").await.unwrap() {} };
    tokio::time::timeout(SOON, known).await.unwrap();
    assert_eq!(listen(call).await.1.unwrap_err(), "cancelled");
    assert_well(&echo).await;
}

#[tokio::test]
async fn a_running_execution_is_steered_and_no_other() {
    let (registry, _relayed) = start(Place::new().setup(&["echo"])).await;
    let echo = registry.get("echo").unwrap();
    steers(&echo).await;
    assert_well(&echo).await;
}

#[tokio::test]
async fn many_calls_at_once_are_answered_each_or_dropped_each() {
    let (registry, _relayed) = start(Place::new().setup(&["echo"])).await;
    let echo = registry.get("echo").unwrap();
    let calls: Vec<_> = (0..200)
        .map(|n| execute(&echo, &format!("stream:{}", n % 7 + 1)).unwrap())
        .enumerate()
        .filter(|(n, _)| n % 3 != 0)
        .collect();
    for (n, call) in calls {
        let (items, answer) = listen(call).await;
        assert!(items.len() > n % 7);
        assert_eq!(answer.unwrap()["status"], "ok");
    }
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn an_adapter_in_c_runs_through_the_plain_entry() {
    let place = Place::new();
    place.compile("c-echo", "c-adapter/adapter.c", &[]);
    let (registry, _relayed) = start(place.setup(&["c-echo"])).await;
    let plain = registry.get("c-echo").unwrap();
    assert_eq!(plain.health().status, HealthStatus::Healthy);
    let (items, answer) = run(&plain, "ok").await;
    assert_eq!(items.len(), 1);
    assert_eq!(answer.unwrap()["output"], "hello from C");
    let steered = plain
        .reserve()
        .unwrap()
        .steering()
        .steer(&message("dsp_1/1"))
        .await;
    assert_eq!(steered, Ok(Steered::Unsupported));
    let unknown = plain.call("agents.list", b"{}".to_vec(), SOON).await;
    assert_eq!(unknown.unwrap_err().code, "unsupported_op");
}

/// Runs in a separate process, this binary with only this test, because the interest in log callsites is cached for
/// all threads.
#[tokio::test]
async fn what_adapters_log_and_break_is_in_our_log() {
    const ROLE: &str = "FORGE_E2E_LOGS";
    if std::env::var_os(ROLE).is_some() {
        tracing_subscriber::fmt().with_ansi(false).init();
        let place = Place::new();
        place.compile("rogue", "rogue/rogue.c", &[]);
        let setup = place.setup(&["echo", "rogue"]);
        let tracker = setup.tracker.clone();
        let (registry, _relayed) = start(setup).await;
        let rogue = registry.get("rogue").unwrap();
        for model in ["twice", "garbage"] {
            assert!(run(&rogue, model).await.1.is_ok());
        }
        registry.shutdown(SOON).await;
        // The last lines are written by a task of the adapter.
        tracker.close();
        tracker.wait().await;
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args([
            "plugins::good::what_adapters_log_and_break_is_in_our_log",
            "--exact",
        ])
        .arg("--nocapture")
        .env(ROLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("INFO adapter: echo 0.1.0 initialized"),
        "{text}"
    );
    let broken: Vec<_> = text
        .lines()
        .filter(|line| line.contains("adapter rogue broke the contract"))
        .collect();
    assert!(broken[0].contains("completion of call"), "{text}");
    // Eight unreadable events are logged by four lines: for the 1st, 2nd, 4th and 8th.
    assert_eq!(broken.len(), 5, "{text}");
}

#[tokio::test]
async fn one_library_serves_several_ids_from_one_image() {
    let place = Place::new();
    let mut setup = place.setup(&["echo", "custom"]);
    setup.tables = [("custom".to_owned(), table(json!({"library": "echo"})))].into();
    let (registry, _relayed) = start(setup).await;
    for adapter in registry.adapters() {
        assert_eq!(adapter.library().as_deref(), Some("echo"));
        assert_well(&adapter).await;
    }
    let copies = place.folder.path().join("state/adapters/echo");
    let copies: Vec<_> = fs::read_dir(copies).unwrap().collect();
    assert_eq!(copies.len(), 1);
}

#[tokio::test]
async fn a_failing_or_hanging_initialize_takes_only_that_adapter_offline() {
    let place = Place::new();
    place.compile("rogue", "rogue/rogue.c", &[]);
    let cases = [
        (
            "failing",
            json!({"initialize": "fail"}),
            "initialize failed: no such service",
        ),
        (
            "hanging",
            json!({"initialize": "hang"}),
            "initialize was not answered within 5s",
        ),
        (
            "profile",
            json!({"capabilities": "bad"}),
            "capabilities returned no valid profile",
        ),
    ];
    let mut setup = place.setup(&["echo", "failing", "hanging", "profile"]);
    for (id, mut settings, _) in cases.clone() {
        settings["library"] = "rogue".into();
        setup.tables.insert(id.to_owned(), table(settings));
    }
    // Echo is a large file in a debug build, and the same timeout applies to loading it.
    setup.config.initialize_timeout = Duration::from_secs(5);
    let (registry, _relayed) = start(setup).await;
    for (id, _, line) in cases {
        let adapter = registry.get(id).unwrap();
        let health = adapter.health();
        assert_eq!(health.status, HealthStatus::Offline);
        assert!(
            health.message.as_ref().unwrap().contains(line),
            "{health:?}"
        );
        assert!(adapter.profile().is_none() && adapter.reserve().is_none());
        assert_eq!(
            adapter
                .call("agents.list", b"{}".to_vec(), SOON)
                .await
                .unwrap_err()
                .code,
            "adapter_unavailable"
        );
    }
    assert_well(&registry.get("echo").unwrap()).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn health_is_polled_with_a_bound_and_its_changes_are_told() {
    let place = Place::new();
    place.compile("rogue", "rogue/rogue.c", &[]);
    let mut setup = place.setup(&["hanging", "strange", "rogue"]);
    for (id, health) in [("hanging", "hang"), ("strange", "fail")] {
        setup.tables.insert(
            id.to_owned(),
            table(json!({"library": "rogue", "health": health})),
        );
    }
    setup.config.health_timeout = Duration::from_millis(50);
    setup.config.health_age = Duration::ZERO;
    let (registry, mut relayed) = start(setup).await;
    registry.refresh_health().await;
    let expected = [
        (
            HealthStatus::Offline,
            Some("health was not answered within 50ms"),
        ),
        (
            HealthStatus::Degraded,
            Some("health returned an unreadable answer"),
        ),
        (HealthStatus::Healthy, None),
    ];
    for (adapter, (status, message)) in registry.adapters().iter().zip(expected) {
        let health = adapter.health();
        assert_eq!(health.status, status);
        assert!(
            health
                .message
                .unwrap_or_default()
                .contains(message.unwrap_or_default())
        );
        assert_eq!(adapter.history().len(), 1);
        assert_eq!(relayed.recv().await.unwrap().event.kind, "adapter.health");
    }
}

#[tokio::test]
async fn names_that_are_not_unique_or_nothing_loadable_stop_the_start() {
    let place = Place::new();
    let twice = refusal(place.setup(&["echo", "echo"])).await;
    assert!(matches!(twice, Error::DuplicateId { .. }));

    let nothing = refusal(place.setup(&["missing"])).await.to_string();
    assert!(
        nothing.contains("no libforge_adapter_missing.so in"),
        "{nothing}"
    );

    let mut strict = place.setup(&["echo", "missing"]);
    strict.config.strict = true;
    assert!(matches!(refusal(strict).await, Error::NotEveryLoadable(_)));

    let mut unknown = place.setup(&["echo"]);
    unknown.config.default_provider = Some("other".to_owned());
    assert!(matches!(
        refusal(unknown).await,
        Error::UnknownDefault { .. }
    ));

    fs::write(place.folder.path().join("plugins/forge-adapter-echo"), "").unwrap();
    place.echo_as("echo", |bytes| bytes);
    let both = refusal(place.setup(&["echo"])).await;
    assert!(matches!(both, Error::DuplicateFile { .. }));
}

#[tokio::test]
async fn a_missing_adapter_is_offline_and_the_others_serve() {
    let (registry, _relayed) = start(Place::new().setup(&["echo", "missing"])).await;
    let missing = registry.get("missing").unwrap();
    assert_eq!(missing.health().status, HealthStatus::Offline);
    assert!(missing.load_error().unwrap().contains("BRIDGE_PLUGIN_PATH"));
    assert_well(&registry.get("echo").unwrap()).await;
}
