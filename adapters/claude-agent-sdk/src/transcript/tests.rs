//! Tests of the transcript, with recorded lines of the real program.

use std::fs;

use super::*;
use crate::outcome::{End, Wanted, outcome};

/// Recorded lines of the real program.
#[test]
fn recorded_runs_become_events_and_a_result() {
    let cases = [
        ("background_subagent", Wanted::Text),
        ("callers_tool", Wanted::Text),
        ("foreground_subagent", Wanted::Text),
        ("interrupted", Wanted::Text),
        ("max_turns", Wanted::Text),
        ("overloaded", Wanted::Text),
        ("permission", Wanted::Text),
        ("refused", Wanted::Text),
        ("structured", Wanted::Structured),
        ("structured_missing", Wanted::Structured),
        ("two_turns", Wanted::Text),
        ("unknown_session", Wanted::Text),
    ];
    for (name, wanted) in cases {
        let path = format!("{}/tests/golden/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
        let mut transcript = Transcript::default();
        let mut events = Vec::new();
        for line in fs::read_to_string(path).unwrap().lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            events.extend(transcript.line(&line, |_| false));
        }
        let told = json!({
            "over": transcript.is_over(),
            "events": events,
            "result": outcome(transcript, End::Result, &wanted),
        });
        insta::with_settings!({snapshot_path => "../../tests/golden", prepend_module_to_snapshot => false}, {
            insta::assert_json_snapshot!(name, told);
        });
    }
}

/// A tool of the service has the name of a caller's tool.
#[test]
fn the_services_own_tools_are_never_handed_over() {
    let line = json!({"type": "assistant", "message": {"id": "m", "content": [
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        {"type": "web_search_tool_result", "tool_use_id": "s", "content": [
            {"type": "web_search_result", "title": "t"}]},
        {"type": "tool_use", "id": "c", "name": "web_search", "input": {}},
    ]}});
    let mut transcript = Transcript::default();
    let events = transcript.line(&line, |tool| tool == "web_search");
    let told: Vec<_> = events
        .iter()
        .map(|event| {
            (
                event.kind.as_str(),
                &event.data.as_ref().unwrap()["toolCallId"],
            )
        })
        .collect();
    assert_eq!(
        told,
        [
            ("tool.invoked", &json!("s")),
            ("tool.completed", &json!("s"))
        ]
    );
}

/// Older programs do not mark the end of an abandoned message.
#[test]
fn a_message_that_starts_before_the_last_has_ended_withdraws_it() {
    let event = |event: Value| json!({"type": "stream_event", "event": event});
    let start = |id: &str| event(json!({"type": "message_start", "message": {"id": id}}));
    let text = |index: u64| {
        event(json!({"type": "content_block_delta", "index": index, "delta": {"text": "x"}}))
    };
    let mut transcript = Transcript::default();
    let mut withdrawn = Vec::new();
    let stop = event(json!({"type": "message_stop"}));
    for line in [
        start("a"),
        text(0),
        text(2),
        start("b"),
        text(0),
        stop,
        start("c"),
    ] {
        let events = transcript.line(&line, |_| false).into_iter();
        withdrawn.extend(events.filter(|event| event.kind == "assistant.retracted"));
    }
    let ids: Vec<_> = withdrawn
        .iter()
        .map(|event| event.data.as_ref().unwrap()["messageId"].clone())
        .collect();
    assert_eq!(ids, ["a", "a/2"]);
}

#[test]
fn a_run_is_over_once_its_messages_are_answered() {
    let mut transcript = Transcript::default();
    let line = |transcript: &mut Transcript, line: Value| {
        transcript.line(&line, |_| false);
        (transcript.is_over(), transcript.may_be_over())
    };
    let lifecycle =
        |state: &str| json!({"type": "command_lifecycle", "command_uuid": "m", "state": state});
    transcript.steered("m".to_owned());
    let result = json!({"type": "result", "subtype": "success", "result": "one"});
    // A program that does not report messages ends by silence.
    assert_eq!(line(&mut transcript, result.clone()), (false, true));
    assert_eq!(line(&mut transcript, lifecycle("queued")), (false, false));
    assert_eq!(line(&mut transcript, lifecycle("started")), (false, false));
    assert_eq!(line(&mut transcript, result), (false, false));
    assert_eq!(line(&mut transcript, lifecycle("completed")), (true, true));
}
