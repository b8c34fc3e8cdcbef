//! Verdicts of rules in the answers of the engine, and the acknowledgement of interventions.

use super::*;

fn rules(rules: &Value) -> Value {
    json!({"version": 1, "rules": rules})
}

fn usage(session: &str, tokens: u64) -> Value {
    json!({
        "type": "post-tool", "adapter": "tool", "session_id": session, "metadata": {"tokens_in": tokens},
    })
}

/// Severity and message of an intervention, and its id.
fn intervention(answer: Answer) -> ((Severity, String), String) {
    match answer.action {
        Action::Intervention {
            id,
            message,
            severity,
        } => ((severity, message), id),
        other @ (Action::Noop | Action::Log) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_budget_warns_once_and_then_intervenes_each_time() {
    let budget = json!({
        "version": 1, "budgets": [{"id": "b", "scope": "user", "window": "1d", "limitTokens": 100}],
    });
    let mut fixture = Fixture::judging(budget).await;
    assert_eq!(fixture.send(&usage("s", 79)).await.action, Action::Noop);
    let warned = fixture.send(&usage("s", 1)).await;
    assert!(warned.logged);
    let message = "Token budget 80% consumed — consider wrapping up this session.";
    let (told, _) = intervention(warned);
    assert_eq!(told, (Severity::Warning, message.to_owned()));
    assert_eq!(fixture.send(&usage("s", 1)).await.action, Action::Noop);
    let ((severity, _), id) = intervention(fixture.send(&usage("s", 19)).await);
    assert_eq!(severity, Severity::Critical);
    fixture.restart().await;
    // Over the sessions of a user, and not for another one.
    for session in ["s", "t"] {
        assert_eq!(intervention(fixture.send(&usage(session, 1)).await).1, id);
    }
    let other = fixture.send_by(2, &usage("s", 1)).await;
    assert_eq!(other.action, Action::Noop);
    let stored = fixture.stored().await;
    let blocked = stored[0].1.iter().map(|record| record.blocked);
    let expected = [false, false, false, true, true];
    assert_eq!(blocked.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn rules_see_the_fields_of_behaviour() {
    let fixture = Fixture::judging(rules(&json!([
        {
            "id": "drift", "scope": "session", "window": "1h", "action": "notify", "severity": "info",
            "message": "Back to it?", "condition": {"drift_score": {"gte": 0.7}},
        },
        {
            "id": "verified", "scope": "session", "window": "1h", "action": "allow",
            "condition": {"confidence": {"gte": 0.5}, "type": {"eq": "completion-verified"}},
        },
    ])))
    .await;
    assert_eq!(fixture.send(&drift("s")).await.action, Action::Noop);
    let far = with(&drift("s"), "drift_score", json!(0.7));
    let (told, _) = intervention(fixture.send(&far).await);
    assert_eq!(told, (Severity::Info, "Back to it?".to_owned()));
    let verified = with(&minimal()[8], "session_id", "s".into());
    assert_eq!(fixture.send(&verified).await.action, Action::Log);
    let unsure = with(&verified, "confidence", json!(0.4));
    assert_eq!(fixture.send(&unsure).await.action, Action::Noop);
    // A milestone of usage, which the engine counts itself.
    assert_eq!(fixture.send(&usage("s", 9_999)).await.action, Action::Noop);
    assert_eq!(fixture.send(&usage("s", 1)).await.action, Action::Log);
}

fn acknowledged(session: &str, intervention: &str, delay_ms: u64) -> Value {
    json!({
        "type": "refocus-ack", "session_id": session, "intervention_id": intervention, "ack_delay_ms": delay_ms,
    })
}

/// Delay of the acknowledgement of each intervention, newest first.
async fn delays(fixture: &Fixture) -> Vec<Option<u64>> {
    let filter = InterventionFilter {
        limit: 10,
        ..InterventionFilter::default()
    };
    let page = fixture.disk.interventions(filter).await.unwrap();
    let all = page.items.into_iter().map(|one| one.acknowledged);
    all.map(|noted| noted.map(|noted| noted.delay_ms)).collect()
}

/// Fixture whose rule has a notification for each session that drifts.
async fn noticing() -> Fixture {
    let rules = rules(&json!([{
        "id": "all", "scope": "session", "window": "1h", "action": "notify", "message": "m",
        "condition": {"drift_score": {"gte": 0}},
    }]));
    Fixture::judging(rules).await
}

#[tokio::test]
async fn an_intervention_is_acknowledged_once_and_by_its_own_token() {
    let fixture = noticing().await;
    let (_, id) = intervention(fixture.send(&drift("s")).await);
    fixture.send(&start("other")).await;
    let foreign = fixture.send_by(2, &acknowledged("s", &id, 1)).await;
    assert_eq!(foreign.action, Action::Log);
    assert_eq!(delays(&fixture).await, [None]);
    for (session, delay) in [("other", 2_500), ("s", 7), ("s", 7)] {
        let answer = fixture.send(&acknowledged(session, &id, delay)).await;
        assert_eq!((answer.action, answer.logged), (Action::Noop, true));
    }
    assert_eq!(delays(&fixture).await, [Some(2_500)]);
    let events = fixture.events().await;
    let acknowledged = events.iter().filter(|kind| *kind == "signal.acknowledged");
    assert_eq!(acknowledged.count(), 1, "{events:?}");
}

/// The user can come back after the session has ended, by itself or not.
#[tokio::test]
async fn an_intervention_is_acknowledged_after_the_end_of_its_session() {
    let mut fixture = noticing().await;
    for (number, ends) in [(1, true), (2, false)] {
        let (_, id) = intervention(fixture.send(&drift("s")).await);
        match ends {
            true => drop(fixture.send(&end("s")).await),
            false => tokio::time::advance(Duration::from_secs(1800)).await,
        }
        fixture.restart().await;
        let answer = fixture.send(&acknowledged("s", &id, number)).await;
        assert_eq!(answer.action, Action::Noop);
        assert_eq!(delays(&fixture).await[0], Some(number));
        fixture.send(&end("s")).await;
    }
}

/// A rule over several users begins an intervention in the session of one of them, and answers all with it.
#[tokio::test]
async fn an_intervention_is_acknowledged_by_a_token_that_is_told_it() {
    let fixture = Fixture::judging(rules(&json!([{
        "id": "much", "scope": "org", "window": "1d", "action": "block", "message": "Stop.",
        "condition": {"tokens": {"gte": 100}},
    }])))
    .await;
    let (_, id) = intervention(fixture.send(&usage("s", 100)).await);
    let (_, told) = intervention(fixture.send_by(2, &usage("t", 1)).await);
    assert_eq!(id, told);
    let answer = fixture.send_by(2, &acknowledged("t", &id, 7)).await;
    assert_eq!(intervention(answer).1, id, "the rule still holds");
    assert_eq!(delays(&fixture).await, [Some(7)]);
}

#[tokio::test]
async fn a_signal_that_is_not_stored_is_judged_from_memory() {
    let fixture = Fixture::judging(rules(&json!([{
        "id": "much", "scope": "session", "window": "1h", "action": "block", "message": "Stop.",
        "condition": {"tokens": {"gte": 100}},
    }])))
    .await;
    assert_eq!(fixture.send(&usage("s", 99)).await.action, Action::Noop);
    for (is_away, hangs) in [(true, false), (false, true)] {
        fixture.disk.is_away.store(is_away, Ordering::Relaxed);
        fixture.disk.hangs.store(hangs, Ordering::Relaxed);
        let begun = Instant::now();
        let answer = fixture.send(&usage("s", 1)).await;
        assert!(begun.elapsed() < STORE_TIMEOUT + Duration::from_millis(2));
        assert!(!answer.logged);
        let (told, _) = intervention(answer);
        assert_eq!(told, (Severity::Critical, "Stop.".to_owned()));
    }
}
