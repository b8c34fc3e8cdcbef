//! Tests of the evaluation of rules.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::Offline;
use crate::record::{Record, Usage};

fn evaluator(rules: &Value) -> Offline {
    let file = json!({"version": 1, "rules": rules}).to_string();
    let rules = Rules::read(file.as_bytes()).unwrap_or_else(|found| panic!("{found:?}"));
    let teams = [("u1", "red"), ("u2", "red"), ("u3", "blue")];
    let teams = teams.map(|(user, team)| (user.to_owned(), vec![team.to_owned()]));
    Offline::new(rules, Teams::from(teams))
}

fn rule(id: &str, scope: &str, window: &str, condition: &Value, action: &str) -> Value {
    json!({"id": id, "scope": scope, "window": window, "condition": condition, "action": action})
}

fn record(user: &str, cost_micros: u64) -> Record {
    Record {
        adapter: "tool".to_owned(),
        user_id: Some(user.to_owned()),
        model: Some("m".to_owned()),
        usage: Usage {
            cost_micros: Some(cost_micros),
            tokens_in: Some(1),
            ..Usage::default()
        },
        ..Record::default()
    }
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Rule that decides, and true if it holds for the first time.
fn judge(evaluator: &mut Offline, record: &Record, time: &str) -> Option<(String, bool)> {
    let verdict = evaluator.judge(record, "s", at(time));
    let held = verdict.decided.clone()?;
    let is_same = |one: &Held| one.rule == held.rule && one.scope_value == held.scope_value;
    Some((held.rule.id.clone(), verdict.begun.iter().any(is_same)))
}

const NOON: &str = "2026-11-25T12:00:00Z";

#[test]
fn the_record_that_crosses_is_blocked_and_each_one_after_it() {
    let limit = json!({"cost_usd": {"gt": 5}});
    let mut evaluator = evaluator(&json!([rule("limit", "user", "1h", &limit, "block")]));
    assert_eq!(judge(&mut evaluator, &record("u1", 5_000_000), NOON), None);
    let over = record("u1", 1);
    assert_eq!(
        judge(&mut evaluator, &over, NOON),
        Some(("limit".to_owned(), true))
    );
    assert_eq!(
        judge(&mut evaluator, &over, NOON),
        Some(("limit".to_owned(), false))
    );
    assert_eq!(judge(&mut evaluator, &record("u2", 1), NOON), None);
    // The window has passed; the next crossing is told again.
    let later = "2026-11-25T13:01:00Z";
    assert_eq!(judge(&mut evaluator, &over, later), None);
    let more = record("u1", 6_000_000);
    assert_eq!(
        judge(&mut evaluator, &more, later),
        Some(("limit".to_owned(), true))
    );
}

#[test]
fn the_most_restrictive_rule_decides_and_among_equals_the_first() {
    let always = json!({"signals": {"gte": 1}});
    let ids = |actions: &[&str]| {
        let rules: Vec<_> = (0..actions.len())
            .map(|index| {
                rule(
                    &index.to_string(),
                    "org",
                    "all-time",
                    &always,
                    actions[index],
                )
            })
            .collect();
        let mut evaluator = evaluator(&json!(rules));
        judge(&mut evaluator, &record("u1", 0), NOON).unwrap().0
    };
    assert_eq!(ids(&["allow", "notify", "block", "block"]), "2");
    assert_eq!(ids(&["allow", "notify", "notify"]), "1");
    assert_eq!(ids(&["allow", "allow"]), "0");
}

#[test]
fn a_notice_beside_a_block_is_told_once() {
    let always = json!({"signals": {"gte": 1}});
    let rules = json!([
        rule("notice", "org", "1d", &always, "notify"),
        rule("stop", "user", "1d", &always, "block")
    ]);
    let mut evaluator = evaluator(&rules);
    let mut begun = |user: &str| {
        let verdict = evaluator.judge(&record(user, 0), "s", at(NOON)).begun;
        verdict
            .iter()
            .map(|held| held.rule.id.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(begun("u1"), ["notice", "stop"]);
    assert_eq!(begun("u1"), [""; 0]);
    assert_eq!(begun("u2"), ["stop"]);
}

#[test]
fn scopes_add_up_what_is_theirs() {
    let three = json!({"signals": {"gte": 3}});
    let names = ["org", "team", "project", "user", "session"];
    let held = |users: [&str; 3], sessions: [&str; 3], scope: &str| {
        let mut evaluator = evaluator(&json!([rule("r", scope, "month", &three, "notify")]));
        let mut last = false;
        for (user, session) in users.iter().zip(sessions) {
            let mut one = record(user, 0);
            one.project_id = Some(format!("project of {user}"));
            last = evaluator.judge(&one, session, at(NOON)).decided.is_some();
        }
        last
    };
    let all = |users, sessions| names.map(|scope| held(users, sessions, scope));
    assert_eq!(
        all(["u1", "u2", "u3"], ["a", "b", "c"]),
        [true, false, false, false, false]
    );
    assert_eq!(
        all(["u1", "u2", "u1"], ["a", "b", "c"]),
        [true, true, false, false, false]
    );
    assert_eq!(
        all(["u1", "u1", "u1"], ["a", "b", "c"]),
        [true, true, true, true, false]
    );
    assert_eq!(
        all(["u4", "u4", "u4"], ["a", "a", "a"]),
        [true, false, true, true, true]
    );
}

#[test]
fn a_window_of_a_session_begins_with_each_session() {
    let two = json!({"signals": {"gte": 2}});
    let mut evaluator = evaluator(&json!([rule("r", "user", "session", &two, "block")]));
    let one = record("u1", 0);
    assert!(!evaluator.judge(&one, "a", at(NOON)).is_blocked());
    assert!(!evaluator.judge(&one, "b", at(NOON)).is_blocked());
    assert!(evaluator.judge(&one, "a", at(NOON)).is_blocked());
}

#[test]
fn each_operator_and_a_missing_field() {
    let holds = |condition: Value| {
        let mut evaluator = evaluator(&json!([rule("r", "org", "1h", &condition, "notify")]));
        let mut one = record("u1", 2_500_000);
        one.latency_ms = Some(10.0);
        evaluator.judge(&one, "s", at(NOON)).decided.is_some()
    };
    for (condition, expected) in [
        (json!({"cost_usd": {"eq": 2.5}}), true),
        (json!({"cost_usd": {"in": [1, 2.5]}}), true),
        (json!({"cost_usd": {"not_in": [1, 2.5]}}), false),
        (json!({"tokens": {"gt": 0, "lt": 2}}), true),
        (json!({"latency_ms": {"lte": 10}}), true),
        (json!({"latency_ms": {"lt": 10}}), false),
        (json!({"model": {"eq": "m"}}), true),
        (json!({"model": {"not_in": ["m"]}}), false),
        (
            json!({"user_id": {"in": ["u1"]}, "adapter": {"eq": "other"}}),
            false,
        ),
        // The record has none of these.
        (json!({"error_code": {"not_in": ["a"]}}), false),
        (json!({"tool": {"eq": "x"}}), false),
        (json!({"confidence": {"gte": 0}}), false),
        (json!({"errors": {"eq": 0}}), true),
    ] {
        assert_eq!(holds(condition.clone()), expected, "{condition}");
    }
}

proptest! {
    /// The totals are the sum of all records, in any mix of users.
    #[test]
    fn an_all_time_budget_is_exact(costs in prop::collection::vec((0..3_u8, 0..1_000_000_u64), 1..80)) {
        let limit = json!({"cost_usd": {"gte": 3}});
        let mut evaluator = evaluator(&json!([rule("r", "user", "all-time", &limit, "block")]));
        let mut sums = [0; 3];
        for (user, cost) in costs {
            sums[usize::from(user)] += cost;
            let record = record(&format!("u{user}"), cost);
            let blocked = evaluator.judge(&record, "s", at(NOON)).is_blocked();
            prop_assert_eq!(blocked, sums[usize::from(user)] >= 3_000_000);
        }
    }
}

#[test]
fn records_of_other_bridges_are_added_once() {
    let limit = json!({"signals": {"gte": 100}});
    let file = json!({"version": 1, "rules": [rule("limit", "user", "all-time", &limit, "block")]});
    let rules = Rules::read(file.to_string().as_bytes()).unwrap();
    let mut evaluator = Evaluator::new(rules, Teams::new());
    let now = at(NOON);
    let amounts = SignalTotals::of_one(false, [Some(1), None], None);
    let other = |position, user: &str| OtherSignal {
        position,
        session: "s".to_owned(),
        user_id: Some(user.to_owned()),
        project_id: None,
        at: now,
        amounts,
    };
    let key = Key {
        scope: Scope::User,
        value: "u1".to_owned(),
    };
    // Not counted yet: the count reads it.
    evaluator.add_others(&[other(1, "u1")]);
    evaluator.begin(&key, 1);
    // The count finds 1, 2 and, after its beginning, 3; 4 is learnt of meanwhile.
    evaluator.add_others(&[
        other(2, "u1"),
        other(3, "u1"),
        other(4, "u1"),
        other(5, "u2"),
    ]);
    let stored = Stored {
        amounts: vec![(now, amounts), (now, amounts)],
        others: vec![other(3, "u1"), other(3, "u2")],
        last: 3,
    };
    evaluator.complete(&key, 1, &stored);
    let signals = |evaluator: &Evaluator| {
        let rule = Arc::clone(&evaluator.rules()[0]);
        evaluator.totals(&rule, now)[0].1.signals
    };
    assert_eq!(signals(&evaluator), 4);
    evaluator.add_others(&[other(3, "u1"), other(6, "u1"), other(7, "u2")]);
    assert_eq!(signals(&evaluator), 5);
}
