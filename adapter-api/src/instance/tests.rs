//! Tests of `instance`.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use crate::conformance::recorder::Ending;
use crate::export::{Loopback, c_entry};
use crate::*;

/// Adapter that behaves as the request's message says.
struct Puppet;

struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("boom in drop");
    }
}

#[async_trait]
impl ExecutionAdapter for Puppet {
    const NAME: &'static str = "puppet";
    const VERSION: &'static str = "1.0.0";

    async fn initialize(_host: Host, _config: Config) -> Result<Self> {
        Ok(Self)
    }
    async fn shutdown(&self) -> Result<()> {
        panic!("boom in shutdown");
    }
    async fn check_health(&self) -> Health {
        Health::healthy()
    }
    fn capabilities(&self) -> Profile {
        panic!("boom in capabilities");
    }
    async fn execute(&self, request: ExecutionRequest, _events: Events) -> Result<ExecutionResult> {
        match request.message.as_str() {
            "panic" => panic!("boom in execute"),
            "grenade" => std::panic::panic_any(Grenade),
            "hold a grenade" => {
                let _grenade = Grenade;
                std::future::pending::<()>().await;
            }
            "log" => tracing::warn!(answer = 42, "a line of the adapter"),
            _ => {}
        }
        Ok(ExecutionResult::ok("done"))
    }
    async fn cancel(&self, _task_handle: &str) -> Result<bool> {
        Ok(false)
    }
}

fn puppet() -> Loopback {
    let loopback = Loopback::create(&c_entry::<Puppet>(), b"{\"schema\": 1}".to_vec()).unwrap();
    ask(&loopback, 1, "initialize", &json!({})).unwrap();
    loopback
}

fn ending(loopback: &Loopback, call: u64) -> Ending {
    loopback
        .recorder()
        .ending(call, Duration::from_secs(10))
        .expect("the call ends within ten seconds")
}

fn ask(loopback: &Loopback, call: u64, op: &str, arguments: &Value) -> Result<Vec<u8>> {
    assert_eq!(
        loopback.start(call, op, arguments.to_string().into_bytes()),
        0
    );
    match ending(loopback, call) {
        Ending::Answered(answer) => answer,
        Ending::Abandoned => panic!("{op} was abandoned"),
    }
}

fn request(message: &str) -> Value {
    json!(ExecutionRequest::sample(message))
}

#[test]
fn panics_anywhere_are_answers_and_log_lines() {
    let loopback = puppet();
    let table = [
        (2, "execute", request("panic"), "boom in execute"),
        (3, "execute", request("grenade"), "without a message"),
        (4, "capabilities", json!({}), "boom in capabilities"),
        (5, "shutdown", json!({}), "boom in shutdown"),
    ];
    for (call, op, arguments, words) in table {
        let error = ask(&loopback, call, op, &arguments).unwrap_err();
        assert_eq!(error.code, "adapter_panic", "{op}");
        assert!(error.message.contains(words), "{op}: {}", error.message);
        let place = "instance/tests.rs:";
        assert!(error.message.contains(place), "{op}: {}", error.message);
    }
    ask(&loopback, 6, "health", &json!({})).unwrap();
    let logs = loopback.recorder().logs().join("\n");
    assert!(logs.contains("the adapter panicked: boom in execute"));
    assert!(
        logs.contains("instance/tests.rs"),
        "where it happened: {logs}"
    );
}

#[test]
fn what_panics_when_dropped_is_survived() {
    let loopback = puppet();
    let held = ExecutionRequest {
        timeout_seconds: 0.05,
        ..ExecutionRequest::sample("hold a grenade")
    };
    let error = ask(&loopback, 2, "execute", &json!(held)).unwrap_err();
    assert_eq!(error.code, "timeout");
    let arguments = request("hold a grenade").to_string().into_bytes();
    assert_eq!(loopback.start(3, "execute", arguments), 0);
    assert_eq!(loopback.cancel(3), 0);
    assert!(matches!(ending(&loopback, 3), Ending::Abandoned));
    ask(&loopback, 4, "health", &json!({})).unwrap();
    assert!(loopback.recorder().faults().is_empty());
}

#[test]
fn a_log_line_carries_its_fields_and_its_execution() {
    let loopback = puppet();
    ask(&loopback, 2, "execute", &request("log")).unwrap();
    let logs = loopback.recorder().logs();
    let line = logs
        .iter()
        .find(|line| line.contains("a line of the adapter"))
        .expect("the line arrives");
    let line: Value = serde_json::from_str(line).unwrap();
    assert_eq!(line["level"], "warn");
    assert_eq!(line["fields"]["answer"], 42);
    assert_eq!(line["fields"]["execution.id"], "dsp_sample/1");
}

#[test]
fn a_limit_that_is_no_time_is_refused() {
    let loopback = puppet();
    for (call, seconds) in [(2, json!(0)), (3, json!(-1.5))] {
        let mut arguments = request("x");
        arguments["timeoutSeconds"] = seconds;
        let error = ask(&loopback, call, "execute", &arguments).unwrap_err();
        assert_eq!(error.code, "invalid_request");
    }
}

#[test]
fn destroying_with_a_call_under_way_abandons_it() {
    let loopback = puppet();
    let arguments = request("hold a grenade").to_string().into_bytes();
    assert_eq!(loopback.start(2, "execute", arguments), 0);
    let recorder = loopback.recorder();
    drop(loopback);
    let ending = recorder.ending(2, Duration::from_secs(10));
    assert!(matches!(ending, Some(Ending::Abandoned)), "{ending:?}");
}

#[test]
fn a_schema_of_another_time_is_refused_with_both_ranges() {
    let refused = Loopback::create(&c_entry::<Puppet>(), b"{\"schema\": 9}".to_vec());
    let error = refused.err().expect("schema 9 does not exist");
    assert!(error.message.contains("schema 9"), "{}", error.message);
    assert!(error.message.contains("1 to 1"), "{}", error.message);
}
