//! Rules of executions.

use std::time::Duration;

use serde_json::{Value, json};

use super::bench::{Bench, bytes, ensure, failed, given, unchecked, unique};
use super::recorder::{Ending, Sink};
use super::{Input, Outcome};
use crate::{ExecutionRequest, Status, secret};

pub(super) fn ends_well(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let result = subject.succeed(&bench.options.request)?;
    ensure(
        result.error.is_none() && result.error_code.is_none(),
        || format!("status ok with error {:?}", result.error),
    )?;
    subject.faultless()
}

pub(super) fn streams_text(bench: &Bench) -> Result<(), Outcome> {
    if !bench.profile()?.supports("streaming") {
        return unchecked("streaming is not declared");
    }
    let subject = bench.ready()?;
    let call = subject.execute(&bench.options.request)?;
    subject.success(call)?;
    let kinds: Vec<String> = subject
        .recorder()
        .events(call)
        .into_iter()
        .map(|event| event.kind)
        .collect();
    ensure(kinds.iter().any(|kind| kind == "assistant.text"), || {
        format!("no assistant.text among {kinds:?}")
    })?;
    subject.faultless()
}

pub(super) fn refusing_sink(bench: &Bench) -> Result<(), Outcome> {
    for sink in [Sink::Closed, Sink::FullFor(5)] {
        let subject = bench.ready()?;
        subject.recorder().set_sink(sink);
        if let Err(Outcome::Failed(seen)) = subject.succeed(&bench.options.request) {
            return failed(format!("{sink:?}: {seen}"));
        }
        subject.faultless()?;
    }
    Ok(())
}

pub(super) fn keeps_the_limit(bench: &Bench) -> Result<(), Outcome> {
    let request = ExecutionRequest {
        timeout_seconds: 0.2,
        ..bench.slow()?.clone()
    };
    let subject = bench.ready()?;
    let result = subject.result(subject.execute(&request)?)?;
    ensure(result.error_code.as_deref() == Some("timeout"), || {
        format!("ended with {:?}, expected \"timeout\"", result.error_code)
    })
}

pub(super) fn counts_tokens(bench: &Bench) -> Result<(), Outcome> {
    if !bench.profile()?.supports("cost_tracking") {
        return unchecked("cost_tracking is not declared");
    }
    let usage = bench.ready()?.succeed(&bench.options.request)?.usage;
    ensure(
        usage.input_tokens.is_some() && usage.output_tokens.is_some(),
        || format!("{usage:?}"),
    )
}

pub(super) fn says_what_failed(bench: &Bench) -> Result<(), Outcome> {
    let request = given(&bench.options.failing, Input::Failing)?;
    let subject = bench.ready()?;
    let result = subject.result(subject.execute(request)?)?;
    ensure(result.status == Status::Error, || "it succeeded".to_owned())?;
    let said = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    ensure(said(&result.error) && said(&result.error_code), || {
        let (error, code) = (&result.error, &result.error_code);
        format!("error {error:?}, errorCode {code:?}")
    })
}

pub(super) fn keeps_secrets(bench: &Bench) -> Result<(), Outcome> {
    let secrets = secret::values(&bench.options.config);
    if secrets.is_empty() {
        return Err(Outcome::NoInput(Input::Secret));
    }
    let subject = bench.ready()?;
    let health: Value = subject.ask("health", &json!({}))?;
    let mut said = vec![health.to_string()];
    let requests = [
        Some(&bench.options.request),
        bench.options.failing.as_ref(),
        bench.options.transient.as_ref(),
    ];
    for request in requests.into_iter().flatten() {
        let call = subject.execute(request)?;
        said.push(match subject.answer("execute", call)? {
            Ok(answer) => String::from_utf8_lossy(&answer).into_owned(),
            Err(error) => json!(error).to_string(),
        });
        said.push(json!(subject.recorder().events(call)).to_string());
    }
    said.extend(subject.recorder().logs());
    let said = said.concat();
    ensure(!secrets.iter().any(|secret| said.contains(secret)), || {
        "its health, log, events, results or errors repeat a secret of its configuration".to_owned()
    })
}

pub(super) fn hints_at_retry(bench: &Bench) -> Result<(), Outcome> {
    let request = given(&bench.options.transient, Input::Transient)?;
    let subject = bench.ready()?;
    let result = subject.result(subject.execute(request)?)?;
    ensure(result.status == Status::Error, || "it succeeded".to_owned())?;
    let (code, wait) = (&result.error_code, result.retry_after_ms);
    ensure(result.retryable == Some(true), || {
        format!("{code:?} with retryable {:?}", result.retryable)
    })?;
    let expected = bench.options.retry_after;
    ensure(
        expected.is_none() || wait.map(Duration::from_millis) == expected,
        || format!("{code:?} with retryAfterMs {wait:?}, the runtime asked for {expected:?}"),
    )
}

pub(super) fn retracts(bench: &Bench) -> Result<(), Outcome> {
    let request = given(&bench.options.retracting, Input::Retracting)?;
    let subject = bench.ready()?;
    let call = subject.execute(request)?;
    let result = subject.success(call)?;
    let mut retracted = false;
    // Text of the messages that remain, with their ids.
    let mut texts: Vec<(Value, String)> = Vec::new();
    for event in subject.recorder().events(call) {
        let data = event.data.unwrap_or_default();
        let id = data["messageId"].clone();
        match event.kind.as_str() {
            "assistant.text" => {
                let delta = data["delta"].as_str().unwrap_or_default();
                texts.push((id, delta.to_owned()));
            }
            "assistant.retracted" => {
                let Some(at) = texts
                    .iter()
                    .position(|(known, _)| *known == id && id.is_string())
                else {
                    return failed(format!("{id} is the messageId of no text before"));
                };
                texts.truncate(at);
                retracted = true;
            }
            _ => {}
        }
    }
    ensure(retracted, || "no assistant.retracted".to_owned())?;
    let left: String = texts.into_iter().map(|(_, text)| text).collect();
    let output = result.output.unwrap_or_default();
    ensure(left.contains(output.trim()), || {
        format!("the output is {output:?}, but the text that remains {left:?}")
    })?;
    subject.faultless()
}

pub(super) fn ignores_unknown_fields(bench: &Bench) -> Result<(), Outcome> {
    let mut request = json!(unique(&bench.options.request));
    if let Some(members) = request.as_object_mut() {
        members.insert("ofALaterSchema".to_owned(), json!({"deep": [1, 2]}));
    }
    let subject = bench.ready()?;
    let call = subject.start("execute", bytes(&request))?;
    subject.success(call)?;
    let config = match bench.options.config.clone() {
        Value::Object(mut members) => {
            members.insert("PATH".to_owned(), "/bin".into());
            Value::Object(members)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            return failed("Options::config is not an object");
        }
    };
    bench.initialized(&config).map(drop)
}

pub(super) fn two_at_once(bench: &Bench) -> Result<(), Outcome> {
    if bench.profile()?.max_concurrent < 2 {
        return unchecked("maxConcurrent is 1");
    }
    let slow = bench.slow()?;
    let subject = bench.ready()?;
    let held = subject.execute(slow)?;
    let other = ExecutionRequest {
        execution_id: "dsp_other/1".to_owned(),
        task_id: "task-other".to_owned(),
        ..bench.options.request.clone()
    };
    subject.succeed(&other)?;
    subject.drop_call(held);
    Ok(())
}

pub(super) fn dropped_call(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let call = subject.execute(bench.slow()?)?;
    ensure(subject.drop_call(call) == 0, || {
        "the call was unknown".to_owned()
    })?;
    match subject.ending("execute", call)? {
        Ending::Abandoned => {}
        Ending::Answered(answer) => return failed(format!("answered {answer:?}")),
    }
    ensure(subject.drop_call(call) != 0, || {
        "the call was still known after it was dropped".to_owned()
    })?;
    subject.succeed(&bench.options.request)?;
    subject.faultless()
}
