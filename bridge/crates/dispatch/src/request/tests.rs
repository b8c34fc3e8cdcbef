//! Tests of `request`.

use forge_adapter_api::folder::FolderId;

use super::*;

/// A file of the workspace.
pub(crate) fn attachment() -> Attachment {
    Attachment {
        name: "a".into(),
        media_type: "text/plain".into(),
        source: Source::Path("a".into()),
    }
}

/// The smallest request, for tests of later stages.
pub(crate) fn minimal() -> DispatchRequest {
    DispatchRequest {
        task_id: "task".into(),
        agent_id: "agent".into(),
        message: "hello".into(),
        attachments: Vec::new(),
        callback: None,
        provider: None,
        system_prompt: None,
        model: None,
        options: ModelOptions::default(),
        timeout: Duration::from_secs(600),
        idle_timeout: None,
        queue_timeout: Duration::from_secs(86_400),
        not_before: None,
        deadline: None,
        tools: Vec::new(),
        tool_results: Vec::new(),
        mcp_servers: Vec::new(),
        external_tools: Vec::new(),
        caller: None,
        workspace: None,
        workspace_id: None,
        output_strategy: None,
        output_schema: None,
        output_file: None,
        session_id: None,
        requires: Vec::new(),
        preferences: Preferences::default(),
        priority: 0,
        recovery: Recovery::Fail,
        budget: None,
        user_id: None,
        project_id: None,
        submitter: None,
        is_step: false,
        run_id: None,
        step_id: None,
        gateway_id: None,
        retry_of: None,
        metadata: None,
        trace: Trace::from_header(None),
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn a_dispatch_survives_its_json() {
    let dispatch = DispatchRequest {
        callback: Some(Callback {
            url: "https://a.example/cb".into(),
            origin: "https://a.example:443".into(),
            retry: Policy::MaxElapsed(Duration::from_millis(1500)),
        }),
        idle_timeout: Some(Duration::from_millis(250)),
        deadline: Some(at("2026-01-02T03:04:05.678Z")),
        workspace_id: Some(FolderId {
            device: 3,
            inode: u64::MAX,
        }),
        workspace: Some(Workspace {
            dir: Some("/srv/w".into()),
            files: vec![File {
                path: "a.md".into(),
                content: "x".into(),
            }],
        }),
        recovery: Recovery::Resume,
        ..minimal()
    };
    let text = crate::idempotency::record(&dispatch)
        .request
        .get()
        .to_owned();
    assert_eq!(
        serde_json::from_str::<DispatchRequest>(&text).unwrap(),
        dispatch
    );
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["callback"]["retry"]["maxElapsedSeconds"], 1.5);
    assert_eq!(value["traceparent"], dispatch.trace.traceparent);
}

#[test]
fn the_start_is_bounded_by_queue_timeout_and_deadline() {
    let accepted = at("2026-01-01T00:00:00Z");
    for (not_before, deadline, expected) in [
        (None, None, "2026-01-02T00:00:00Z"),
        (Some("2026-01-03T00:00:00Z"), None, "2026-01-04T00:00:00Z"),
        (Some("2025-01-03T00:00:00Z"), None, "2026-01-02T00:00:00Z"),
        (None, Some("2026-01-01T06:00:00Z"), "2026-01-01T06:00:00Z"),
        (None, Some("2027-01-01T06:00:00Z"), "2026-01-02T00:00:00Z"),
    ] {
        let dispatch = DispatchRequest {
            not_before: not_before.map(at),
            deadline: deadline.map(at),
            ..minimal()
        };
        assert_eq!(dispatch.start_by(accepted), at(expected));
    }
}

#[test]
fn a_time_beyond_the_calendar_is_its_end() {
    let dispatch = DispatchRequest {
        not_before: Some(Timestamp::MAX),
        ..minimal()
    };
    assert_eq!(dispatch.start_by(Timestamp::UNIX_EPOCH), Timestamp::MAX);
}

#[test]
fn the_deadline_shortens_the_timeout() {
    let now = at("2026-01-01T00:00:00Z");
    for (deadline, expected) in [
        (None, 600),
        (Some("2026-01-01T00:00:30Z"), 30),
        (Some("2026-01-02T00:00:00Z"), 600),
        (Some("2025-12-31T00:00:00Z"), 0),
    ] {
        let dispatch = DispatchRequest {
            deadline: deadline.map(at),
            ..minimal()
        };
        assert_eq!(dispatch.time_left(now), Duration::from_secs(expected));
    }
}

#[test]
fn secrets_are_sealed_as_an_object_and_never_shown() {
    let secrets = Secrets {
        bearer: Some("token".to_owned().into()),
        secret: None,
        headers: [("x-key".to_owned(), "hush".into())].into(),
    };
    let sealed = secrets.to_seal().unwrap();
    let expected = br#"{"headers":{"x-key":"hush"},"bearer":"token"}"#;
    assert_eq!(sealed.expose_secret(), expected);
    let shown = format!("{secrets:?}");
    assert!(
        !shown.contains("token") && !shown.contains("hush"),
        "{shown}"
    );
    assert!(Secrets::default().to_seal().is_none());
}
