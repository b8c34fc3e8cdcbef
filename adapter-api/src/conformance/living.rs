//! Rules of an adapter's lifecycle: configuration, health, profile, cancel, shutdown.

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::{Value, json};

use super::bench::{Bench, Subject, bytes, ensure, failed, given, unchecked, unique};
use super::recorder::Ending;
use super::{Input, Outcome};
use crate::{
    CancelAnswer, ExecutionRequest, ExecutionResult, Health, HealthStatus, Profile, SteerAnswer,
    SteerRequest,
};

/// The message of the checks of steering.
const STEERING: &str = "steered by the conformance checks";

pub(super) fn capabilities(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let profile: Profile = subject.ask("capabilities", &json!({}))?;
    let again: Profile = subject.ask("capabilities", &json!({}))?;
    ensure(profile == again, || {
        format!("first {profile:?}, then {again:?}")
    })?;
    if let Some(expected) = &bench.options.profile {
        ensure(profile == *expected, || {
            format!("{profile:?} is not {expected:?}")
        })?;
    }
    ensure(profile.max_concurrent >= 1, || {
        "maxConcurrent is 0: no execution could run".to_owned()
    })?;
    ensure(!profile.output_strategies.is_empty(), || {
        "no output strategy: no result could be returned".to_owned()
    })?;
    let different: BTreeSet<&String> = profile.capabilities.iter().collect();
    ensure(different.len() == profile.capabilities.len(), || {
        format!("duplicate capability in {:?}", profile.capabilities)
    })
}

pub(super) fn health(bench: &Bench) -> Result<(), Outcome> {
    let expected = bench.options.health_without_config;
    let table = [
        (json!({}), expected),
        (bench.options.config.clone(), HealthStatus::Healthy),
    ];
    for (config, expected) in table {
        let health: Health = bench.initialized(&config)?.ask("health", &json!({}))?;
        ensure(health.status == expected, || {
            let message = health.message.as_deref().unwrap_or("without a message");
            let needs = match (health.status, expected, &config) {
                (HealthStatus::Degraded, HealthStatus::Healthy, given) if *given == json!({}) => {
                    "; if it needs settings: --needs-settings, health_without_config in Rust"
                }
                _ => "",
            };
            format!(
                "{:?} ({message}), expected {expected:?}{needs}",
                health.status
            )
        })?;
        ensure(
            health.status == HealthStatus::Healthy || health.message.is_some(),
            || format!("{:?} without a reason", health.status),
        )?;
    }
    Ok(())
}

pub(super) fn cancel_unknown(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let cancelled = cancel(&subject, "no-such-task")?;
    ensure(!cancelled, || {
        "true for a task that does not exist".to_owned()
    })
}

pub(super) fn cancel_active(bench: &Bench) -> Result<(), Outcome> {
    let request = bench.slow()?;
    let subject = bench.ready()?;
    let call = subject.execute(request)?;
    if !cancel_soon(&subject, request)? {
        if !subject.recorder().is_open(call) {
            subject.success(call)?;
            return failed("execute ended before the cancel");
        }
        return failed("false for a task that runs");
    }
    ended_as(&subject.result(call)?, &["cancelled"])?;
    ensure(!cancel(&subject, &request.task_id)?, || {
        "true again after the task has ended".to_owned()
    })?;
    subject.faultless()
}

pub(super) fn steer_unknown(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let steered = steer(&subject, &unique(&bench.options.request))?;
    ensure(steered != Some(true), || {
        "true for an execution that does not exist".to_owned()
    })?;
    subject.faultless()
}

pub(super) fn steer_active(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    if steer(&subject, &unique(&bench.options.request))?.is_none() {
        return unchecked("steer is not supported");
    }
    let request = unique(given(&bench.options.steerable, Input::Steerable)?);
    let call = subject.start("execute", bytes(&request))?;
    // It takes messages once it is far enough.
    let deadline = Instant::now() + subject.patience();
    while steer(&subject, &request)? != Some(true) {
        ensure(Instant::now() < deadline, || {
            "false for an execution that runs".to_owned()
        })?;
    }
    let output = subject.success(call)?.output.unwrap_or_default();
    ensure(output.contains(STEERING), || {
        format!("{STEERING:?} is not in the output {output:?}")
    })?;
    ensure(steer(&subject, &request)? == Some(false), || {
        "true again after the execution has ended".to_owned()
    })?;
    subject.faultless()
}

pub(super) fn shutdown(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    if let Some(slow) = &bench.options.slow {
        let call = subject.execute(slow)?;
        subject.ask::<_, Value>("shutdown", &json!({}))?;
        match subject.ending("execute", call)? {
            Ending::Abandoned => {}
            // `adapter_unavailable` when shutdown overtook the start.
            Ending::Answered(_) => {
                let codes = ["cancelled", "adapter_unavailable"];
                ended_as(&subject.result(call)?, &codes)?;
            }
        }
        ensure(!cancel(&subject, &slow.task_id)?, || {
            "a task from before the shutdown is still known".to_owned()
        })?;
    } else {
        subject.ask::<_, Value>("shutdown", &json!({}))?;
    }
    subject.refusal("execute", bytes(&bench.options.request))?;
    subject.faultless()
}

pub(super) fn bad_config(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.created()?;
    // Every configuration is a JSON object, so this one is invalid for every adapter.
    not_a_panic(&subject, &json!("not an object"))?;
    let config = given(&bench.options.bad_config, Input::BadConfig)?;
    not_a_panic(&subject, config)?;
    // `initialize` must be repeatable in the same process once the configuration is fixed.
    subject.ask::<_, Value>("initialize", &bench.options.config)?;
    subject.faultless()
}

pub(super) fn logs_startup(bench: &Bench) -> Result<(), Outcome> {
    let logs = bench.ready()?.recorder().logs();
    ensure(logs.iter().any(|line| line.contains("\"info\"")), || {
        format!("the log after initialize: {logs:?}")
    })
}

fn not_a_panic(subject: &Subject<'_>, config: &Value) -> Result<(), Outcome> {
    let error = subject.refusal("initialize", bytes(config))?;
    ensure(error.code != "adapter_panic", || {
        format!("panicked with {:?}", error.message)
    })?;
    ensure(!error.message.is_empty(), || {
        "an error without a message".to_owned()
    })
}

fn cancel(subject: &Subject<'_>, task_id: &str) -> Result<bool, Outcome> {
    let request = json!({"executionId": "", "taskId": task_id});
    let CancelAnswer { cancelled } = subject.ask("cancel", &request)?;
    Ok(cancelled)
}

/// Steers the execution of this request; `None` if the adapter does not support it.
fn steer(subject: &Subject<'_>, request: &ExecutionRequest) -> Result<Option<bool>, Outcome> {
    let arguments = SteerRequest {
        execution_id: request.execution_id.clone(),
        task_id: request.task_id.clone(),
        message: STEERING.to_owned(),
    };
    let call = subject.start("steer", bytes(&arguments))?;
    match subject.answer("steer", call)? {
        Ok(answer) => match serde_json::from_slice(&answer) {
            Ok(SteerAnswer { steered }) => Ok(Some(steered)),
            Err(error) => failed(format!("steer: {error}")),
        },
        Err(error) if error.code == "unsupported_op" => Ok(None),
        Err(error) => failed(format!("steer: {}: {error}", error.code)),
    }
}

/// Cancels repeatedly until the adapter knows the task, because the execution might not be registered yet.
fn cancel_soon(subject: &Subject<'_>, request: &ExecutionRequest) -> Result<bool, Outcome> {
    let deadline = Instant::now() + subject.patience();
    while Instant::now() < deadline {
        if cancel(subject, &request.task_id)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ended_as(result: &ExecutionResult, codes: &[&str]) -> Result<(), Outcome> {
    let (status, found) = (result.status, &result.error_code);
    if found.as_deref().is_some_and(|found| codes.contains(&found)) {
        return Ok(());
    }
    failed(format!("ended {status:?} with {found:?}, not {codes:?}"))
}
