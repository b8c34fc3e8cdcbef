//! Rules of the boundary itself: identity, required and unsupported ops, malformed input.

use serde_json::{Value, json};

use super::Outcome;
use super::bench::{Bench, bytes, ensure, failed, unchecked};
use crate::CancelAnswer;
use crate::manage::Interface;
use crate::profile::{Manifest, SCHEMA};

pub(super) fn identity(bench: &Bench) -> Result<(), Outcome> {
    let manifest: Manifest = match serde_json::from_slice(&bench.entry.manifest()) {
        Ok(manifest) => manifest,
        Err(error) => return failed(format!("the manifest is malformed: {error}")),
    };
    ensure(manifest.provider == bench.name, || {
        format!("provider {:?} is not {:?}", manifest.provider, bench.name)
    })?;
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    ensure(
        !bench.name.is_empty() && bench.name.chars().all(fits),
        || {
            let name = &bench.name;
            format!("{name:?} must consist of lower case letters, digits and dashes")
        },
    )?;
    ensure(
        !bench.version.is_empty() && manifest.version == bench.version,
        || format!("version {:?}", manifest.version),
    )?;
    ensure(manifest.schema == SCHEMA, || {
        format!("schema {:?}", manifest.schema)
    })?;
    // Only Rust code can panic; the SDK sets this member.
    ensure(["unwind", ""].contains(&manifest.panic.as_str()), || {
        format!("panic {:?}", manifest.panic)
    })?;
    ensure(
        manifest.interfaces.first().map(String::as_str) == Some("execution@1"),
        || format!("interfaces {:?}", manifest.interfaces),
    )
}

pub(super) fn required_methods(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    subject.ask::<_, Value>("health", &json!({}))?;
    subject.ask::<_, Value>("capabilities", &json!({}))?;
    subject.ask::<_, CancelAnswer>("cancel", &json!({"executionId": "", "taskId": "none"}))?;
    subject.ask::<_, Value>("events.start", &json!({}))?;
    subject.ask::<_, Value>("events.stop", &json!({}))?;
    subject.ask::<_, Value>("shutdown", &json!({}))?;
    subject.faultless()
}

pub(super) fn interfaces(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    for interface in Interface::ALL {
        // A method without arguments and side effects. It can fail: the runtime might be unreachable.
        let op = match interface {
            Interface::Runtime => "runtime.discoverModels",
            Interface::Agents => "agents.list",
            Interface::Skills => "skills.list",
            Interface::System => "system.listModels",
        };
        let call = subject.start(op, b"{}".to_vec())?;
        let answer = subject.answer(op, call)?;
        let declared = bench.interfaces.contains(&interface);
        let unsupported = matches!(&answer, Err(error) if error.code == "unsupported_op");
        // A declared `system` interface can lack this optional method.
        let may_lack = interface == Interface::System;
        ensure(declared != unsupported || declared && may_lack, || {
            format!("declared: {declared}, but {op} answered {answer:?}")
        })?;
    }
    subject.faultless()
}

pub(super) fn garbage(bench: &Bench) -> Result<(), Outcome> {
    let subject = bench.ready()?;
    let table: [(&str, &[u8], &str); 6] = [
        ("no.such.op", b"{}", "unsupported_op"),
        ("", b"", "unsupported_op"),
        ("execute", b"", "invalid_request"),
        ("execute", b"{\"message\": 1}", "invalid_request"),
        ("execute", b"\xff\xfe not json", "invalid_request"),
        ("cancel", b"[]", "invalid_request"),
    ];
    // Over a line protocol every payload is JSON, otherwise the line would be malformed.
    let spoken =
        |payload: &[u8]| payload.is_empty() || serde_json::from_slice::<Value>(payload).is_ok();
    for (op, payload, expected) in table {
        if bench.entry.is_spoken() && !spoken(payload) {
            continue;
        }
        let error = subject.refusal(op, payload.to_vec())?;
        ensure(error.code == expected, || {
            format!("{op:?} answered {error:?}, expected {expected}")
        })?;
    }
    let raw = bench.created()?;
    let early = raw.refusal("execute", bytes(&bench.options.request))?;
    ensure(early.code == "invalid_request", || {
        format!("execute before initialize answered {early:?}")
    })?;
    subject.ask::<_, Value>("health", &json!({}))?;
    subject.faultless()
}

pub(super) fn loads(_bench: &Bench) -> Result<(), Outcome> {
    unchecked("needs the bridge: forge-bridge adapters inspect <provider>")
}
