//! Adapters in child processes: the same behaviour as in the bridge, and crashes that affect no other adapter.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forge_adapter_api::HealthStatus;
use forge_plugin_host::{Adapter, Isolation, Item, Registry, Relayed, Setup};
use forge_process::{self as process, Children, STORE_VARIABLE};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tokio::sync::mpsc;

use super::{Place, SOON, assert_well, execute, listen, refusal, run, start, steers, table};
use crate::harness::until;

/// A setup with a supervisor and a store id unique to the test.
pub(super) fn setup(place: &Place, ids: &[&str]) -> Setup {
    let mut setup = place.setup(ids);
    setup.store_id = place.folder.path().display().to_string();
    let config = process::Config {
        supervisor: Some(PathBuf::from(env!("CARGO_BIN_EXE_forge-bridge"))),
        ..process::Config::default()
    };
    let children = Children::new(&config, &setup.store_id).unwrap();
    setup.supervisor = children.supervisor().to_vec();
    setup
}

/// Starts echo in a child process and, as a bystander, the same library in this process.
async fn echoes(place: &Place) -> (Registry, Adapter, mpsc::Receiver<Relayed>) {
    place.echo_as("echo", |bytes| bytes);
    let mut setup = setup(place, &["echo", "here"]);
    setup.tables = [
        ("echo".to_owned(), table(json!({"isolation": "process"}))),
        ("here".to_owned(), table(json!({"library": "echo"}))),
    ]
    .into();
    let (registry, relayed) = start(setup).await;
    for adapter in registry.adapters() {
        let health = adapter.health();
        assert_eq!(health.status, HealthStatus::Healthy, "{health:?}");
    }
    let echo = registry.get("echo").unwrap();
    assert_eq!(echo.isolation(), Isolation::Process);
    (registry, echo, relayed)
}

/// Processes of this place with this word in their command line; that of supervisors contains `exec`.
fn processes(place: &Place, word: &str) -> Vec<i32> {
    let store = place.folder.path().display();
    let (tag, argument) = (
        format!("{STORE_VARIABLE}={store}"),
        format!("--store={store}"),
    );
    let holds = |pid: i32, file: &str, part: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        bytes
            .split(|byte| *byte == 0)
            .any(|text| text == part.as_bytes())
    };
    let ours = |pid: i32| match word {
        "exec" => holds(pid, "cmdline", &argument),
        _ => holds(pid, "environ", &tag),
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| ours(*pid) && holds(*pid, "cmdline", word))
        .collect()
}

pub(super) async fn serves_again(adapter: &Adapter, model: &str) {
    until("the adapter to serve again", || async {
        let healthy = adapter.health().status == HealthStatus::Healthy;
        (healthy && adapter.reserve().is_some()).then_some(())
    })
    .await;
    let (_, answer) = run(adapter, model).await;
    assert!(answer.is_ok(), "{answer:?}: {:?}", adapter.history());
}

#[tokio::test]
async fn echo_behaves_as_it_does_in_the_bridge() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    let here = registry.get("here").unwrap();
    assert_eq!(processes(&place, "adapter-host").len(), 1);
    assert_eq!(echo.profile(), here.profile());
    assert_eq!(echo.interfaces(), here.interfaces());
    for model in [
        "ok",
        "stream:1000",
        "usage:2",
        "tools",
        "structured",
        "fail",
        "panic",
        "large:3000000",
        "large:50000000",
        "slow:soon",
    ] {
        let (mut ours, mut theirs) = (run(&echo, model).await, run(&here, model).await);
        for (_, answer) in [&mut ours, &mut theirs] {
            if let Ok(result) = answer {
                result.as_object_mut().unwrap().remove("durationMs");
            }
        }
        assert_eq!(ours, theirs, "{model}");
    }
    registry.shutdown(SOON).await;
    assert_eq!(processes(&place, "adapter-host"), [] as [i32; 0]);
}

#[tokio::test]
async fn a_running_execution_is_steered_across_the_boundary() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    steers(&echo).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn calls_are_cancelled_and_dropped_across_the_boundary() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    let slow = execute(&echo, "slow:60000").unwrap();
    until("the run to be known", || async {
        let permit = echo.reserve().unwrap();
        permit
            .cancel("dsp_1/1", "task")
            .await
            .unwrap()
            .then_some(())
    })
    .await;
    assert_eq!(listen(slow).await.1.unwrap_err(), "cancelled");
    drop(execute(&echo, "hang").unwrap());
    assert_well(&echo).await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_crash_ends_what_runs_there_and_the_next_call_finds_it_again() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    let bystander = execute(&echo, "hang").unwrap();
    let mut crash = execute(&echo, "crash").unwrap();
    let Item::Done(Err(error)) = crash.next().await else {
        panic!("it survived");
    };
    assert_eq!(error.code, "adapter_crashed");
    assert!(error.message.contains("signal 6 (SIGABRT)"), "{error}");
    assert_eq!(listen(bystander).await.1.unwrap_err(), "adapter_crashed");
    serves_again(&echo, "ok").await;
    assert_well(&registry.get("here").unwrap()).await;
    let told: Vec<_> = echo
        .history()
        .into_iter()
        .map(|report| report.status)
        .collect();
    let (well, away) = (HealthStatus::Healthy, HealthStatus::Offline);
    assert_eq!(told, [well, away, well]);
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_host_that_is_killed_or_stopped_is_replaced() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    for (role, signal) in [("adapter-host", Signal::KILL), ("exec", Signal::KILL)] {
        let [victim] = processes(&place, role)[..] else {
            panic!("one {role}");
        };
        let hang = execute(&echo, "hang").unwrap();
        kill_process(Pid::from_raw(victim).unwrap(), signal).unwrap();
        assert_eq!(
            listen(hang).await.1.unwrap_err(),
            "adapter_crashed",
            "{role}"
        );
        serves_again(&echo, "ok").await;
    }
    until("the old processes to be gone", || async {
        (processes(&place, "adapter-host").len() == 1).then_some(())
    })
    .await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_crash_loop_is_quarantined_until_an_operator_ends_it() {
    let place = Place::new();
    place.echo_as("echo", |bytes| bytes);
    let mut setup = setup(&place, &["echo"]);
    setup.config.restart.backoff = Duration::from_millis(1);
    setup.config.restart.crash_limit = 3;
    setup.tables = [("echo".to_owned(), table(json!({"isolation": "process"})))].into();
    let (registry, _relayed) = start(setup).await;
    let echo = registry.get("echo").unwrap();
    for _ in 0..3 {
        serves_again(&echo, "ok").await;
        assert_eq!(run(&echo, "crash").await.1.unwrap_err(), "adapter_crashed");
    }
    let line = until("the quarantine", || async {
        let message = echo.health().message?;
        message.starts_with("quarantined").then_some(message)
    })
    .await;
    for part in [
        "3 times within 60s",
        "SIGABRT",
        "forge-bridge adapters reload echo",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert!(echo.reserve().is_none(), "nothing starts there");
    assert_eq!(processes(&place, "adapter-host"), [] as [i32; 0]);
    registry.refresh_health().await;
    assert_eq!(echo.health().message, Some(line), "asking changes nothing");

    echo.reload().await.unwrap();
    serves_again(&echo, "ok").await;
    registry.shutdown(SOON).await;
}

/// Starts the rogue in a child process with this memory limit in bytes.
async fn rogue(place: &Place, memory: u64) -> (Registry, Adapter, mpsc::Receiver<Relayed>) {
    place.compile("rogue", "rogue/rogue.c", &[]);
    let mut setup = setup(place, &["rogue"]);
    setup.config.call_timeout = Duration::from_secs(2);
    setup.config.health_timeout = Duration::from_millis(500);
    setup.config.health_age = Duration::ZERO;
    setup.config.restart.crash_limit = 100;
    setup.config.restart.backoff = Duration::from_millis(1);
    let own = json!({"isolation": "process", "memory_limit_bytes": memory});
    setup.tables = [("rogue".to_owned(), table(own))].into();
    let (registry, relayed) = start(setup).await;
    let rogue = registry.get("rogue").unwrap();
    assert_eq!(
        rogue.health().status,
        HealthStatus::Healthy,
        "{:?}",
        rogue.health()
    );
    (registry, rogue, relayed)
}

/// Prints the cost of a child process: `cargo test -p forge-bridge --test e2e costs -- --nocapture`.
#[tokio::test]
async fn what_a_process_costs_is_told() {
    let place = Place::new();
    let (registry, echo, _relayed) = echoes(&place).await;
    for adapter in [registry.get("here").unwrap(), echo.clone()] {
        let mut rounds = Vec::new();
        for _ in 0..200 {
            let began = Instant::now();
            assert!(run(&adapter, "ok").await.1.is_ok());
            rounds.push(began.elapsed());
        }
        rounds.sort_unstable();
        let (best, median) = (rounds[0], rounds[100]);
        eprintln!(
            "{:?}: best {best:?}, median {median:?}",
            adapter.isolation()
        );
    }
    let mut back = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        assert!(run(&echo, "crash").await.1.is_err());
        let told = began.elapsed();
        serves_again(&echo, "ok").await;
        back.push((told, began.elapsed()));
    }
    eprintln!("a crash: until it is told, and until it serves again: {back:?}");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_fault_a_limit_or_a_thread_that_does_not_return_costs_one_adapter_and_is_named() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place, 32 << 20).await;
    for (model, wanted) in [
        ("segfault", "signal 11 (SIGSEGV)"),
        ("exit:3", "exit code 3"),
        ("memory:1000", "out of memory after "),
        ("spin", "blocked in start"),
        ("block:/nonexistent/gate", "blocked in start"),
    ] {
        let mut call = execute(&rogue, model).unwrap();
        let done = tokio::time::timeout(SOON, call.next()).await.unwrap();
        let Item::Done(Err(error)) = done else {
            panic!("{model}: {done:?}");
        };
        assert_eq!(error.code, "adapter_crashed", "{model}");
        assert!(error.message.contains(wanted), "{model}: {error}");
        serves_again(&rogue, "ok").await;
    }
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn who_does_not_answer_for_its_health_twice_is_replaced() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place, 1 << 30).await;
    let never = execute(&rogue, "mute").unwrap();
    registry.refresh_health().await;
    assert_eq!(rogue.health().status, HealthStatus::Offline);
    assert_eq!(listen(never).await.1.unwrap_err(), "adapter_crashed");
    serves_again(&rogue, "ok").await;
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn floods_and_bad_answers_are_bounded_there_as_here() {
    let place = Place::new();
    let (registry, rogue, _relayed) = rogue(&place, 1 << 30).await;
    let (items, answer) = run(&rogue, "flood:100000").await;
    assert!(answer.is_ok());
    let mut next = 0;
    for item in items {
        match item {
            Item::Event(event) => {
                assert_eq!(
                    event.data.unwrap()["n"],
                    next,
                    "gaps are where they are told to be"
                );
                next += 1;
            }
            Item::Dropped(count) => next += count,
            Item::Done(_) => panic!("done comes last"),
        }
    }
    assert_eq!(next, 100_000);
    for (model, code) in [
        ("threads", None),
        ("large:104857600", Some("output_too_large")),
        ("length", Some("protocol_violation")),
        ("null", Some("protocol_violation")),
        ("error-text", Some("protocol_violation")),
        ("refuse", Some("adapter_error")),
        ("abandon", Some("adapter_error")),
        ("twice", None),
        ("large-event", None),
    ] {
        let (_, answer) = run(&rogue, model).await;
        assert_eq!(answer.err().as_deref(), code, "{model}");
    }
    assert_eq!(rogue.history().len(), 1, "it never went away");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_library_that_crashes_or_hangs_when_it_is_opened_never_comes_into_the_bridge() {
    let place = Place::new();
    for (name, define) in [
        ("crasher", "CRASH_WHEN_OPENED"),
        ("sleeper", "HANG_WHEN_OPENED"),
    ] {
        place.compile(name, "opened/opened.c", &[define]);
    }
    place.echo_as("echo", |bytes| bytes);
    let (registry, _relayed) = start(setup(&place, &["crasher", "echo"])).await;
    let crashed = registry.get("crasher").unwrap().load_error().unwrap();
    // Long enough that a slow start on a busy machine is not taken for a hang.
    let mut impatient = setup(&place, &["sleeper"]);
    impatient.config.initialize_timeout = Duration::from_secs(3);
    let hung = refusal(impatient).await.to_string();
    for (line, wanted) in [
        (crashed, "signal 11 (SIGSEGV)"),
        (hung, "did not respond within 1s"),
    ] {
        assert!(
            line.contains("failed its probe") && line.contains(wanted),
            "{line}"
        );
        assert!(!line.contains('\n'), "{line}");
    }
    let echo = registry.get("echo").unwrap();
    assert_well(&echo).await;
    let digest = echo.digest().unwrap();
    let note = place
        .folder
        .path()
        .join(format!("state/adapters/echo/{digest}.json"));
    assert!(note.exists(), "a passed probe is recorded");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn a_process_sees_few_variables_and_no_secret_of_the_bridge() {
    let place = Place::new();
    place.echo_as("echo", |bytes| bytes);
    let mut setup = setup(&place, &["echo"]);
    setup.env = [
        ("ECHO_KEY", "its own"),
        ("OTHER_KEY", "of another adapter"),
        ("BRIDGE_SECRET_KEY", "ours"),
        ("PATH", "/usr/bin:/bin"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    setup.tables = [("echo".to_owned(), table(json!({"isolation": "process"})))].into();
    let (registry, _relayed) = start(setup).await;
    let [host] = processes(&place, "adapter-host")[..] else {
        panic!("one host");
    };
    let environ = std::fs::read(format!("/proc/{host}/environ")).unwrap();
    let mut names: Vec<_> = environ
        .split(|byte| *byte == 0)
        .filter_map(|line| Some(std::str::from_utf8(line).unwrap().split_once('=')?.0))
        .collect();
    names.sort_unstable();
    assert_eq!(names, ["ECHO_KEY", "FORGE_BRIDGE_STORE", "PATH"]);
    registry.shutdown(SOON).await;
}
