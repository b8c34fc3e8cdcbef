//! Tests of `fields`.

use serde_json::json;

use super::*;

/// Reads one object and returns the complaints as texts.
fn complaints(value: &Value, read: impl Fn(&Fields<'_>)) -> Vec<String> {
    let complaints = Complaints::default();
    let fields = Fields::read(value, "", &complaints).unwrap();
    read(&fields);
    complaints
        .into_vec()
        .into_iter()
        .map(|e| format!("{}: {}", e.field, e.message))
        .collect()
}

#[test]
fn either_spelling_is_read_and_both_must_agree() {
    for (body, expected) in [
        (json!({"runId": "r"}), 0),
        (json!({"run_id": "r"}), 0),
        (json!({"runId": "r", "run_id": "r"}), 0),
        (json!({"runId": "r", "run_id": "s"}), 1),
        (json!({"runId": null, "run_id": "s"}), 1),
    ] {
        let found = complaints(&body, |f| {
            f.id("runId");
        });
        assert_eq!(found.len(), expected, "{body}: {found:?}");
    }
}

#[test]
fn times_are_rfc3339_only() {
    for (text, good) in [
        ("2026-01-31T08:00:00Z", true),
        ("2026-01-31T08:00:00.123+02:00", true),
        ("2026-01-31t08:00:00z", true),
        ("2026-01-31 08:00:00Z", false),
        ("2026-01-31T08:00:00", false),
        ("2026-01-31T08:00:00+02:00[Europe/Berlin]", false),
        ("20260131T080000Z", false),
        ("2026-02-31T08:00:00Z", false),
        ("tomorrow", false),
        ("", false),
    ] {
        let found = complaints(&json!({"deadline": text}), |f| {
            f.time("deadline");
        });
        assert_eq!(found.is_empty(), good, "{text}");
    }
}

#[test]
fn numbers_keep_to_their_bounds() {
    let day = Duration::from_secs(86_400);
    for (value, good) in [
        (json!(1), true),
        (json!(0.25), true),
        (json!(86_400), true),
        (json!(86_400.1), false),
        (json!(0), false),
        (json!(1e-12), false),
        (json!(-1), false),
        (json!(1e308), false),
        (json!("600"), false),
        (json!(true), false),
    ] {
        let found = complaints(&json!({"timeout": value}), |f| {
            f.seconds("timeout", day);
        });
        assert_eq!(found.is_empty(), good, "seconds {value}");
    }
    for (value, good) in [
        (json!(-10), true),
        (json!(10), true),
        (json!(3.0), true),
        (json!(3.5), false),
        (json!(11), false),
        (json!(u64::MAX), false),
        (json!(1e300), false),
    ] {
        let found = complaints(&json!({"priority": value}), |f| {
            f.integer("priority", -10, 10);
        });
        assert_eq!(found.is_empty(), good, "integer {value}");
    }
}
