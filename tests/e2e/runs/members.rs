//! Types of events, each with exactly its members.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Types that the public design names.
pub(super) const DESIGN: [&str; 20] = [
    "run.started",
    "run.paused",
    "run.completed",
    "captain.message",
    "captain.tool_call",
    "captain.tool_result",
    "plan.finalized",
    "task.scheduled",
    "task.started",
    "task.heartbeat",
    "task.progress",
    "task.completed",
    "task.failed",
    "tool.call",
    "tool.result",
    "artifact.written",
    "branch.pushed",
    "refinery.started",
    "refinery.merged",
    "cr.emitted",
];

/// Members of the data of each type; those with `?` can be absent. Members after `+` are additions to the design.
const MEMBERS: &[(&str, &str)] = &[
    ("run.started", "repoUrl"),
    ("run.attached", "ref commit"),
    ("run.executing", ""),
    ("run.paused", "reason + crId?"),
    ("run.resumed", "reason + crId?"),
    ("run.cancelling", ""),
    (
        "run.completed",
        "totalCompleted totalFailed duration + refineriesCompleted refineriesFailed status error?",
    ),
    ("captain.greeting", ""),
    ("captain.user_message", "content"),
    ("captain.message", "content role"),
    ("captain.tool_call", "toolName args + callId"),
    ("captain.tool_result", "toolName result + callId isError"),
    ("plan.finalized", "totalTasks totalRefineries specCount"),
    ("plan.approved", ""),
    ("plan.reopened", ""),
    ("task.scheduled", "taskId agentType"),
    ("task.started", "taskId agentId sandboxId branch"),
    ("task.heartbeat", "taskId agentId uptimeSeconds + agent?"),
    ("task.progress", "taskId content contentType + agent?"),
    (
        "task.completed",
        "taskId walkthroughPath + changedFiles leftOut leftOutCount?",
    ),
    ("task.failed", "taskId error canRetry + counted resultKept?"),
    ("task.stale", "taskId error counted"),
    ("task.waiting", "taskId cause reason until"),
    (
        "task.status",
        "taskId previousStatus newStatus attempt reason?",
    ),
    ("task.retried", "taskId byUser?"),
    ("task.exhausted", "taskId"),
    ("tool.call", "taskId toolName args + callId agent?"),
    ("tool.result", "taskId toolName result isError + callId"),
    ("artifact.written", "path type"),
    ("branch.pushed", "taskId branch ref"),
    ("refinery.started", "taskId dependencyCount"),
    ("refinery.conflict", "taskId branch paths onto commit files"),
    (
        "refinery.merged",
        "taskId mergedBranches conflicts + resultRef proof ontoRef decisions",
    ),
    (
        "usage",
        "dispatchId taskId? agent? sessionId? tokens costUsd repeats?",
    ),
];

/// Members of types that occur in runs with change requests, started agents, pauses of running agents, and checks.
const FURTHER: &[(&str, &str)] = &[
    ("cr.emitted", "crId title emittedBy"),
    ("cr.resolved", "crId status reason?"),
    ("dag.overlay_applied", "crId addedNodes addedEdges"),
    ("agent.started", "taskId agent agentType title branch"),
    ("agent.ended", "taskId agent error?"),
    ("task.pause_ack", "taskId effect agent?"),
    ("run.waiting", "cause reason until"),
    ("run.reopened", "budget?"),
    ("refinery.tests", "taskId passed failed skipped report?"),
    ("refinery.settled", "taskId branch? commit decisions"),
];

/// Types of events that belong to an attempt.
const OF_ATTEMPTS: [&str; 5] = ["task.", "tool.", "branch.", "refinery.", "agent."];

/// Checks the envelope and the members of each event.
fn check(run: &str, events: &[Value]) {
    let members: BTreeMap<_, _> = MEMBERS.iter().chain(FURTHER).copied().collect();
    for event in events {
        let kind = event["type"].as_str().unwrap();
        let names: BTreeSet<_> = event
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let is_of_attempt = OF_ATTEMPTS.iter().any(|prefix| kind.starts_with(prefix));
        let mut envelope = BTreeSet::from(["eventId", "seq", "timestamp", "type", "runId", "data"]);
        if is_of_attempt {
            envelope.extend(["taskId", "attemptId"]);
            assert_eq!(event["taskId"], event["data"]["taskId"], "{event}");
            let number = event["attemptId"].as_str().unwrap().parse::<u32>().unwrap();
            assert!(number > 0, "{event}");
        }
        if kind == "usage" && event["taskId"].is_string() {
            envelope.insert("taskId");
            envelope.extend(names.get("attemptId"));
        }
        assert_eq!(names, envelope, "{event}");
        assert_eq!(event["runId"], run, "{event}");
        assert!(
            event["timestamp"].as_str().unwrap().ends_with('Z'),
            "{event}"
        );
        let data: BTreeSet<_> = event["data"]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let wanted = members
            .get(kind)
            .unwrap_or_else(|| panic!("undocumented: {event}"));
        let wanted = wanted.split_whitespace().filter(|name| *name != "+");
        let (optional, required): (Vec<_>, Vec<_>) = wanted.partition(|name| name.ends_with('?'));
        assert!(required.iter().all(|name| data.contains(name)), "{event}");
        let is_known = |name: &&str| {
            required.contains(name)
                || optional
                    .iter()
                    .any(|known| known.trim_end_matches('?') == *name)
        };
        assert!(data.iter().all(is_known), "{event}");
    }
}

/// Check 2. A run with every type that a run without a failure can have, and runs for the others.
#[tokio::test]
async fn each_type_occurs_with_exactly_its_members() {
    let origin = Origin::new();
    let settings = origin.settings().replace("\"none\"", "\"agent\"");
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let mut found = BTreeSet::new();
    let mut add = |events: &[Value]| {
        found.extend(
            events
                .iter()
                .map(|event| event["type"].as_str().unwrap().to_owned()),
        );
    };

    let run = create(api, &json!({"repoUrl": origin.url(), "planReview": true})).await;
    answers(api, &run, 1).await;
    say(api, &run, "hello").await;
    // A heartbeat is due after 30 s in which the agent shows signs of life.
    let slow = "say one\ntool read 10\nsleep 30500\nsay two\nwrite a.txt a";
    let plan = plan(&[
        task("a", &[], slow),
        task("b", &[], "fail-once echo_failed\nwrite b.txt b"),
        task("c", &[], "fail-once stalled\nwrite c.txt c"),
        task("d", &[], "fail-once rate_limited\nwrite d.txt d"),
    ]);
    for end in ["plan/reopen", "plan/approve"] {
        say(api, &run, &plan).await;
        status_is(api, &run, "plan_review").await;
        assert_eq!(command(api, &run, end).await.0, StatusCode::OK, "{end}");
    }
    for name in ["pause", "resume"] {
        assert_eq!(command(api, &run, name).await.0, StatusCode::OK, "{name}");
    }
    // Meanwhile, runs that fail.
    let failing = create(api, &json!({"repoUrl": origin.url()})).await;
    let conflict = [task("a", &[], "write x one"), task("b", &[], "write x two")];
    say(api, &failing, &super::plan(&conflict)).await;
    let cancelled = create(api, &json!({"repoUrl": origin.url()})).await;
    command(api, &cancelled, "cancel").await;
    for (run, status) in [
        (cancelled, "cancelled"),
        (failing, "failed"),
        (run, "completed"),
    ] {
        let record = ended(api, &run).await;
        assert_eq!(record["status"], status, "{record}");
        let events = events(api, &run).await;
        check(&run, &events);
        add(&events);
        verified(api, &run).await;
    }
    let missing: Vec<_> = MEMBERS
        .iter()
        .filter(|(kind, _)| !found.contains(*kind))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
    bridge.stop().await;
}
