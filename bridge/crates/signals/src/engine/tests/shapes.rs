//! Shapes of signals: which are read, which are refused, and what is stored of them.

use super::*;

#[tokio::test]
async fn each_type_is_taken_with_its_fields_alone() {
    let fixture = Fixture::plain().await;
    for signal in minimal() {
        let name = signal["type"].as_str().unwrap().to_owned();
        let answer = fixture
            .send(&with(&signal, "session_id", name.clone().into()))
            .await;
        // A milestone is only logged, as is the acknowledgement of an intervention that is not known.
        let is_log = ["token-milestone", "refocus-ack"].contains(&name.as_str());
        let action = if is_log { Action::Log } else { Action::Noop };
        assert_eq!((answer.action, answer.logged), (action, true), "{name}");
        assert_eq!((answer.session_id, answer.signal_id), (name, None));
    }
    assert_eq!(fixture.counts().await, [1; 10]);
}

#[tokio::test]
async fn each_required_field_is_required() {
    let fixture = Fixture::plain().await;
    for signal in minimal() {
        for name in signal.as_object().unwrap().keys() {
            let mut without = signal.clone();
            without.as_object_mut().unwrap().remove(name);
            for signal in [without, with(&signal, name, Value::Null)] {
                assert_eq!(fixture.refused(&signal).await, [name.as_str()], "{signal}");
            }
        }
    }
    assert_eq!(fixture.counts().await, [0_u64; 0]);
}

#[tokio::test]
async fn each_wrong_type_and_range_is_named() {
    let fixture = Fixture::plain().await;
    for signal in minimal() {
        for (name, value) in signal.as_object().unwrap() {
            let wrong = match value {
                Value::String(_) => vec![json!(5), json!(["a"])],
                _ => vec![
                    json!("1"),
                    json!(true),
                    json!(-0.01),
                    json!({}),
                    json!(-1e300),
                ],
            };
            for wrong in wrong {
                let signal = with(&signal, name, wrong);
                assert_eq!(fixture.refused(&signal).await, [name.as_str()], "{signal}");
            }
        }
    }
    let [_, ended, paused, drifted, _, _, passed, _, verified, _] = &minimal()[..] else {
        panic!("there are ten types");
    };
    for (signal, name, wrong, right) in [
        (drifted, "drift_score", vec![-0.01, 1.01], vec![0.0, 1.0]),
        (verified, "confidence", vec![-0.01, 1.01], vec![0.0, 1.0]),
        (passed, "tokens_used", vec![0.5, 1e16], vec![0.0, 3.0]),
        (ended, "tasks_completed", vec![1.5, -1.0], vec![2.0]),
        (ended, "duration_ms", vec![-1.0], vec![0.25, 1e300]),
    ] {
        for value in wrong {
            let signal = with(signal, name, value.into());
            assert_eq!(fixture.refused(&signal).await, [name], "{value}");
        }
        for value in right {
            let signal = with(signal, name, value.into());
            assert_eq!(fixture.refused(&signal).await, [""; 0], "{value}");
        }
    }
    for (reason, is_known) in [
        ("idle", true),
        ("explicit", true),
        ("window_blur", true),
        ("Idle", false),
        ("bored", false),
        ("", false),
    ] {
        let refused = fixture
            .refused(&with(paused, "pause_reason", reason.into()))
            .await;
        assert_eq!(refused.is_empty(), is_known, "{reason}");
    }
    for body in [json!([]), json!("a"), json!(1), json!(null)] {
        assert_eq!(fixture.refused(&body).await, [""], "{body}");
    }
    // All problems at once.
    let all = json!({"type": "goal-drift", "drift_score": 2, "ts": "now", "session_id": 1});
    let expected = [
        "session_id",
        "ts",
        "drift_score",
        "original_goal",
        "current_trajectory",
    ];
    assert_eq!(fixture.refused(&all).await, expected);
}

#[tokio::test]
async fn times_are_read_in_each_form_that_names_an_instant() {
    let fixture = Fixture::plain().await;
    for (ts, is_read) in [
        (json!("2025-05-29T10:00:00.000Z"), true),
        (json!("2025-05-29T10:00:00Z"), true),
        (json!("2025-05-29T12:00:00+02:00"), true),
        (json!(1_748_512_800_000_u64), true),
        (json!("2999-01-01T00:00:00Z"), true),
        (Value::Null, true),
        (json!("2025-05-29T10:00:00"), false),
        (json!("2025-05-29"), false),
        (json!(1.5), false),
    ] {
        let refused = fixture.refused(&with(&drift("s"), "ts", ts.clone())).await;
        assert_eq!(refused.is_empty(), is_read, "{ts}");
    }
}

#[tokio::test]
async fn strict_takes_only_known_types_within_five_minutes() {
    let strict = Config {
        strict: true,
        ..Config::default()
    };
    let fixture = Fixture::new(strict).await;
    let now = fixture.clock.now();
    for (seconds, is_taken) in [
        (0, true),
        (299, true),
        (-299, true),
        (301, false),
        (-301, false),
    ] {
        let ts = (now + jiff::SignedDuration::from_secs(seconds)).to_string();
        let refused = fixture.refused(&with(&drift("s"), "ts", ts.into())).await;
        assert_eq!(refused.is_empty(), is_taken, "{seconds}");
    }
    assert_eq!(fixture.refused(&drift("s")).await, ["ts"]);
    let unknown = json!({"type": "later", "ts": now.to_string()});
    assert_eq!(fixture.refused(&unknown).await, ["type"]);
}

#[tokio::test]
async fn an_unknown_type_is_kept_by_its_name_only() {
    let fixture = Fixture::plain().await;
    let signal = json!({
        "type": "mood", "session_id": "s", "adapter_id": "tool", "tool": "t", "drift_score": "not a number",
        "tokens_used": 7, "latency_ms": 5,
    });
    let answer = fixture.send(&signal).await;
    assert_eq!((answer.action, answer.logged), (Action::Log, true));
    // Types of the other shape are not known in this one.
    let more = fixture
        .send(&json!({"type": "post-tool", "session_id": "s"}))
        .await;
    assert_eq!(more.action, Action::Log);
    let stored = fixture.stored().await;
    let (session, records) = &stored[0];
    assert_eq!(session.adapter, "tool");
    let record = &records[0];
    assert_eq!(record.kind.as_deref(), Some("mood"));
    assert_eq!((&record.tool, &record.details), (&None, &None));
    assert_eq!((record.drift_score, record.latency_ms), (None, None));
}

#[tokio::test]
async fn listed_fields_are_stored_and_others_are_not() {
    let fixture = Fixture::plain().await;
    for signal in minimal() {
        let mut signal = with(&signal, "session_id", "s".into());
        signal["extra"] = json!({"deep": ["x"]});
        signal["model"] = json!(7);
        fixture.send(&signal).await;
    }
    let stored = fixture.stored().await;
    let records: Vec<_> = stored.iter().flat_map(|(_, records)| records).collect();
    let of = |name: &str| {
        let mut found = records.iter();
        *found
            .find(|record| record.kind.as_deref() == Some(name))
            .unwrap()
    };
    assert_eq!(of("goal-drift").drift_score, Some(0.5));
    assert_eq!(of("completion-verified").confidence, Some(1.0));
    assert_eq!(of("adapter-heartbeat").latency_ms, Some(4.0));
    assert_eq!(of("tool-switch").tool.as_deref(), Some("cursor"));
    for (name, details) in [
        ("session-start", None),
        (
            "session-end",
            Some(r#"{"duration_ms":1.5,"tasks_completed":0}"#),
        ),
        (
            "session-pause",
            Some(r#"{"context_snapshot_id":"c","pause_reason":"idle"}"#),
        ),
        ("goal-drift", None),
        (
            "context-switch",
            Some(r#"{"from_tool":"editor","to_tool":"browser"}"#),
        ),
        ("tool-switch", Some(r#"{"previous_tool":"vim"}"#)),
        (
            "token-milestone",
            Some(r#"{"milestone":10000,"tokens_used":10001}"#),
        ),
        (
            "refocus-ack",
            Some(r#"{"ack_delay_ms":7,"intervention_id":"int_1"}"#),
        ),
        ("completion-verified", Some(r#"{"goal_id":"g"}"#)),
        ("adapter-heartbeat", None),
    ] {
        assert_eq!(of(name).details.as_deref(), details, "{name}");
    }
    // A count that an adapter states about its session is no usage.
    assert!(records.iter().all(|record| record.tokens_in.is_none()));
    assert!(
        records
            .iter()
            .all(|record| record.user_id.as_deref() == Some("user 1"))
    );
}

#[tokio::test]
async fn goals_are_stored_shortened_and_only_where_that_is_set() {
    tokio::time::pause();
    for (store_goals, expected) in [(false, None), (true, Some(256))] {
        let config = Config {
            store_goals,
            ..Config::default()
        };
        let fixture = Fixture::another(config).await;
        let goal = "é".repeat(300);
        fixture
            .send(&with(&start("s"), "goal_declared", goal.into()))
            .await;
        let stored = fixture.stored().await;
        let details = stored[0].1[0].details.as_deref();
        let goal = details.map(|details| {
            let details: Value = serde_json::from_str(details).unwrap();
            details["goal_declared"].as_str().unwrap().chars().count()
        });
        assert_eq!(goal, expected, "{store_goals}");
    }
    let fixture = Fixture::another(Config::default()).await;
    let wrong = with(&start("s"), "goal_declared", json!(["a"]));
    assert_eq!(fixture.refused(&wrong).await, ["goal_declared"]);
}

#[tokio::test]
async fn the_shape_with_metadata_has_the_same_answer_and_an_id() {
    let fixture = Fixture::plain().await;
    let signal = json!({
        "type": "post-tool", "adapter": "tool", "session_id": "s", "metadata": {
            "model": "m", "tokens_in": 10, "tokens_out": 5.0, "cost_usd": 0.25, "tool": "Bash", "cwd": "/home/ana",
            "cache_read_tokens": 3,
        },
    });
    let answer = fixture.send(&signal).await;
    assert_eq!((answer.action, answer.logged), (Action::Noop, true));
    let id = answer.signal_id.unwrap();
    assert!(id.starts_with("sig_") && id.len() == 36, "{id}");
    let stored = fixture.stored().await;
    let (session, records) = &stored[0];
    let totals = &session.totals;
    assert_eq!(
        (totals.tokens_in, totals.tokens_out, totals.cost_micros),
        (10, 5, 250_000)
    );
    let record = &records[0];
    assert_eq!(
        (record.model.as_deref(), record.tool.as_deref()),
        (Some("m"), Some("Bash"))
    );
    assert_eq!((&record.details, record.cache_read_tokens), (&None, None));
    // All 17 types, those of the first shape without its fields.
    let names = minimal().into_iter().map(|signal| signal["type"].clone());
    let more = [
        "user-prompt",
        "post-tool",
        "pre-compact",
        "stop",
        "hesitation",
        "deletion",
        "correction",
    ];
    for name in names.chain(more.map(Value::from)) {
        let answer = fixture
            .send(&json!({"type": name, "adapter": "tool"}))
            .await;
        let is_log = name == "token-milestone";
        assert_eq!(answer.action == Action::Log, is_log, "{name}");
        assert!(answer.signal_id.is_some(), "{name}");
    }
    let unknown = fixture
        .send(&json!({"type": "mood", "adapter": "tool"}))
        .await;
    assert_eq!(unknown.action, Action::Log);
    for (metadata, field) in [
        (json!([]), "metadata"),
        (json!({"tokens_in": "1"}), "metadata.tokens_in"),
        (json!({"cost_usd": -1}), "metadata.cost_usd"),
        (json!({"tool": 5}), "metadata.tool"),
        (json!({"Tool_Input": {}}), "metadata.Tool_Input"),
    ] {
        assert_eq!(
            fixture.refused(&with(&signal, "metadata", metadata)).await,
            [field]
        );
    }
}

#[tokio::test]
async fn content_is_refused_wherever_it_stands() {
    let fixture = Fixture::plain().await;
    for name in [
        "prompt",
        "completion",
        "input",
        "output",
        "user_input",
        "messages",
        "content",
        "tool_input",
        "tool_response",
        "transcript",
        "file_content",
        "PROMPT",
        "Tool-Input",
    ] {
        assert_eq!(
            fixture.refused(&with(&drift("s"), name, Value::Null)).await,
            [name]
        );
        let deep = json!({ "a": [{ name: 1 }] });
        let expected = format!("metadata.a[0].{name}");
        assert_eq!(
            fixture.refused(&with(&drift("s"), "metadata", deep)).await,
            [expected]
        );
    }
    assert_eq!(fixture.counts().await, [0_u64; 0]);
}
