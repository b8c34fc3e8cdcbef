//! Tests of the ledger with the store in memory.

use forge_store::contract::signals::{record, session, signal};
use forge_store::memory::Memory;
use forge_store::record::{
    EventFilter, InterventionFilter, NewSignal, SignalRecorded, SignalTotals,
};
use forge_store::roles::EventLog as _;
use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::config::Config;
use crate::evaluate::Teams;
use crate::rule::Rules;
use crate::window::{Span, Window};

/// Ledger over a store, on a clock that the tests move.
struct Fixture {
    store: Arc<Memory>,
    clock: Clock,
    ledger: Ledger,
}

fn terms(file: &Value) -> Terms {
    let rules =
        Rules::read(file.to_string().as_bytes()).unwrap_or_else(|found| panic!("{found:?}"));
    Terms {
        rules,
        teams: Teams::from([("u0".to_owned(), vec!["red".to_owned()])]),
        prices: BTreeMap::new(),
    }
}

fn rules(rules: &Value) -> Value {
    json!({"version": 1, "rules": rules})
}

impl Fixture {
    async fn new(file: &Value) -> Self {
        tokio::time::pause();
        let (store, clock) = (Arc::new(Memory::default()), Clock::tokio());
        let ledger = open(&store, clock, file).await;
        let fixture = Self {
            store,
            clock,
            ledger,
        };
        for id in ["a", "b"] {
            let session = SignalSession {
                started_at: clock.now(),
                last_at: clock.now(),
                ..session(id)
            };
            let opened = fixture.store.open_signal_session(session, Vec::new());
            opened.await.unwrap();
        }
        fixture
    }

    async fn restart(&mut self, file: &Value) {
        self.ledger = open(&self.store, self.clock, file).await;
    }

    fn record(&self, user: &str, cost_micros: u64) -> SignalRecord {
        SignalRecord {
            at: self.clock.now(),
            user_id: Some(user.to_owned()),
            cost_micros: Some(cost_micros),
            ..record(0)
        }
    }

    async fn send(&self, session_id: &str, record: SignalRecord) -> SignalVerdict {
        self.send_keyed(session_id, record, None).await
    }

    async fn send_keyed(
        &self,
        session_id: &str,
        record: SignalRecord,
        repeat_key: Option<u8>,
    ) -> SignalVerdict {
        let (session, _) = self
            .store
            .signal_session(session_id, 0)
            .await
            .unwrap()
            .unwrap();
        self.ledger.prepare(&Subject::new(&session, &record)).await;
        let new = NewSignal {
            record,
            repeat_key: repeat_key.map(|key| [key; 32]),
            judge: Some(Arc::new(self.ledger.clone())),
            ..signal(session_id, 0)
        };
        match self.store.record_signal(new).await.unwrap() {
            SignalRecorded::New(verdict) | SignalRecorded::Repeat(_, verdict) => verdict,
        }
    }

    async fn interventions(&self) -> Vec<Intervention> {
        let filter = InterventionFilter {
            limit: 1000,
            ..InterventionFilter::default()
        };
        self.store.interventions(filter).await.unwrap().items
    }

    /// Types of all events.
    async fn kinds(&self) -> Vec<String> {
        let all = EventFilter::default();
        let page = self.store.events(&all, 0, 1000).await.unwrap();
        page.events.iter().map(|event| event.kind.clone()).collect()
    }
}

async fn open(store: &Arc<Memory>, clock: Clock, file: &Value) -> Ledger {
    let setup = Setup {
        store: Arc::clone(store) as _,
        clock,
        milestones: Config::default().milestones,
        terms: terms(file),
        tracker: Tasks::here(),
    };
    Ledger::open(setup).await.unwrap()
}

fn budget(window: &str) -> Value {
    json!({"version": 1, "budgets": [{"id": "b", "scope": "user", "window": window, "limitUsd": 1}]})
}

#[tokio::test]
async fn a_budget_warns_once_and_then_blocks_with_one_intervention() {
    let mut fixture = Fixture::new(&budget("month")).await;
    let told = fixture.send("a", fixture.record("u0", 799_999)).await;
    assert_eq!(told, SignalVerdict::default());
    let warned = fixture.send("a", fixture.record("u0", 1)).await;
    let warning = warned.intervention.unwrap();
    assert!(!warned.blocked && !warning.blocks);
    assert_eq!(
        warning.message,
        "Cost budget 80% consumed — consider wrapping up this session."
    );
    let told = fixture.send("b", fixture.record("u0", 1)).await;
    assert_eq!(told.intervention, None);
    let blocked = fixture.send("a", fixture.record("u0", 200_000)).await;
    let block = blocked.intervention.unwrap();
    assert!(blocked.blocked && block.blocks);
    // Another user is not concerned.
    let other = fixture.send("a", fixture.record("u1", 9)).await;
    assert_eq!(other, SignalVerdict::default());
    fixture.restart(&budget("month")).await;
    let again = fixture.send("b", fixture.record("u0", 0)).await;
    assert!(again.blocked);
    assert_eq!(again.intervention.unwrap().id, block.id);
    assert_eq!(fixture.interventions().await, [block, warning]);
    let expected = [
        "signal.intervention",
        "signal.intervention",
        "signal.blocked",
    ];
    assert_eq!(fixture.kinds().await, expected);
}

#[tokio::test]
async fn a_rolling_rule_that_holds_again_is_another_intervention() {
    let mut fixture = Fixture::new(&budget("1h")).await;
    let over = 1_000_000;
    let first = fixture.send("a", fixture.record("u0", over)).await;
    tokio::time::advance(Duration::from_secs(2 * 3600)).await;
    let between = fixture.send("a", fixture.record("u0", 1)).await;
    assert!(!between.blocked);
    let open = fixture.store.open_interventions(10).await.unwrap();
    assert_eq!(open, []);
    fixture.restart(&budget("1h")).await;
    let second = fixture.send("a", fixture.record("u0", over)).await;
    assert!(first.blocked && second.blocked);
    assert_ne!(
        first.intervention.unwrap().id,
        second.intervention.unwrap().id
    );
}

#[tokio::test]
async fn a_repeat_is_not_counted_and_has_the_same_answer() {
    let fixture = Fixture::new(&budget("all-time")).await;
    let half = fixture.record("u0", 500_000);
    for _ in 0..5 {
        let told = fixture.send_keyed("a", half.clone(), Some(1)).await;
        assert!(!told.blocked);
    }
    let blocked = fixture.send_keyed("a", half.clone(), Some(2)).await;
    assert!(blocked.blocked);
    assert_eq!(fixture.send_keyed("a", half, Some(2)).await, blocked);
}

#[tokio::test]
async fn a_raised_limit_keeps_what_was_spent() {
    let fixture = Fixture::new(&budget("all-time")).await;
    assert!(
        fixture
            .send("a", fixture.record("u0", 2_000_000))
            .await
            .blocked
    );
    let raise = |limit: u64| {
        let mut file = budget("all-time");
        file["budgets"][0]["limitUsd"] = limit.into();
        fixture.ledger.replace(terms(&file));
    };
    raise(3);
    assert!(
        !fixture
            .send("a", fixture.record("u0", 999_999))
            .await
            .blocked
    );
    assert!(fixture.send("a", fixture.record("u0", 1)).await.blocked);
    // A new rule counts what was stored before it.
    let more = json!([{"id": "n", "scope": "team", "window": "7d", "action": "block",
        "condition": {"cost_usd": {"gte": 3}}}]);
    fixture.ledger.replace(terms(&rules(&more)));
    assert!(fixture.send("a", fixture.record("u0", 0)).await.blocked);
}

#[tokio::test]
async fn a_session_window_is_that_of_the_session_in_every_scope() {
    let file = rules(
        &json!([{"id": "r", "scope": "org", "window": "session", "action": "block",
        "condition": {"signals": {"gte": 2}}}]),
    );
    let mut fixture = Fixture::new(&file).await;
    assert!(!fixture.send("a", fixture.record("u0", 0)).await.blocked);
    assert!(!fixture.send("b", fixture.record("u0", 0)).await.blocked);
    fixture.restart(&file).await;
    let of_a = fixture.send("a", fixture.record("u0", 0)).await;
    let of_b = fixture.send("b", fixture.record("u0", 0)).await;
    assert!(of_a.blocked && of_b.blocked);
    assert_ne!(of_a.intervention, of_b.intervention);
}

#[tokio::test]
async fn milestones_are_events_once_each() {
    let fixture = Fixture::new(&rules(&json!([]))).await;
    let mut seen = Vec::new();
    for tokens in [9_999, 1, 1, 90_000] {
        let record = SignalRecord {
            tokens_in: Some(tokens),
            tokens_out: None,
            ..fixture.record("u0", 0)
        };
        let told = fixture.send("a", record).await;
        assert_eq!(
            told.is_noted,
            [1, 90_000].contains(&tokens) && !seen.contains(&tokens)
        );
        seen.push(tokens);
    }
    assert_eq!(fixture.kinds().await, ["signal.milestone"; 3]);
}

#[tokio::test]
async fn a_signal_that_cannot_be_stored_is_judged_and_not_counted() {
    let fixture = Fixture::new(&budget("all-time")).await;
    fixture.send("a", fixture.record("u0", 600_000)).await;
    let (session, _) = fixture.store.signal_session("a", 0).await.unwrap().unwrap();
    for _ in 0..3 {
        let record = fixture.record("u0", 500_000);
        let told = fixture
            .ledger
            .judge_unstored(&Subject::new(&session, &record));
        assert!(told.blocked);
    }
    assert!(
        !fixture
            .send("a", fixture.record("u0", 300_000))
            .await
            .blocked
    );
}

#[test]
fn a_price_counts_cached_tokens_by_their_own() {
    let price = Price {
        input: 3.0,
        output: 15.0,
        cache_read: Some(0.3),
        cache_write: None,
    };
    let usage = Usage {
        tokens_in: Some(1_000),
        tokens_out: Some(100),
        cache_read_tokens: Some(600),
        cache_write_tokens: Some(100),
        cost_micros: None,
    };
    assert_eq!(price.cost(&usage), Some(300 * 3 + 180 + 300 + 1_500));
    let none = Usage::default();
    assert_eq!(price.cost(&none), None);
}

#[derive(Clone, Debug)]
enum Step {
    Send(u8, u64),
    Wait(u64),
    Restart,
    Replace(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3u8, 0..400_000u64).prop_map(|(user, cost)| Step::Send(user, cost)),
        3 => (0..3 * 86_400u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
        1 => (0..3u8).prop_map(Step::Replace),
    ]
}

/// Rules over windows of users; some of the spans in each variant.
fn variant(number: u8) -> Value {
    let spans = ["1h", "1d", "7d", "month", "all-time"];
    let spans = &spans[usize::from(number)..];
    let rules = spans.iter().map(|span| {
        json!({"id": span, "scope": "user", "window": span, "action": "block",
            "condition": {"cost_usd": {"gte": 1}}})
    });
    rules.collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Each verdict is that of windows over all records, whatever happened in between.
    #[test]
    fn totals_are_those_of_the_stored_records(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let mut current = 0;
            let mut fixture = Fixture::new(&rules(&variant(current))).await;
            let mut records: Vec<SignalRecord> = Vec::new();
            for step in steps {
                match step {
                    Step::Wait(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
                    Step::Restart => fixture.restart(&rules(&variant(current))).await,
                    Step::Replace(number) => {
                        current = number;
                        fixture.ledger.replace(terms(&rules(&variant(number))));
                    }
                    Step::Send(user, cost) => {
                        let record = fixture.record(&format!("u{user}"), cost);
                        let told = fixture.send("a", record.clone()).await;
                        records.push(record.clone());
                        let spans = [Span::Hour, Span::Day, Span::Week, Span::Month, Span::AllTime];
                        let mut spans = spans[usize::from(current)..].iter();
                        let expected = spans.any(|span| {
                            let mut window = Window::new(*span);
                            for one in records.iter().filter(|one| one.user_id == record.user_id) {
                                window.add(one.at, &SignalTotals::of(one));
                            }
                            window.totals(record.at).cost_micros >= 1_000_000
                        });
                        assert_eq!(told.blocked, expected, "{record:?}");
                    }
                }
            }
        });
    }
}

#[tokio::test]
async fn a_report_has_the_fullest_windows_after_a_restart_too() {
    let off = json!({
        "id": "off", "scope": "org", "window": "1h", "action": "block", "enabled": false,
        "condition": {"signals": {"gte": 1}},
    });
    let file = json!({
        "version": 1,
        "rules": [
            off,
            {"id": "life", "scope": "user", "window": "session", "action": "notify", "condition": {"tokens": {"gt": 400}}},
            {"id": "model", "scope": "user", "window": "1d", "action": "block", "condition": {"model": {"eq": "x"}}},
        ],
        "budgets": [
            {"id": "daily", "scope": "user", "window": "1d", "limitUsd": 2},
            {"id": "month", "scope": "org", "window": "month", "limitTokens": 1000},
        ],
    });
    let mut fixture = Fixture::new(&file).await;
    fixture.send("a", fixture.record("user", 500_000)).await;
    fixture.send("a", fixture.record("user", 500_000)).await;
    for restart in [false, true] {
        if restart {
            fixture.restart(&file).await;
        }
        let (session, _) = fixture.store.signal_session("a", 0).await.unwrap().unwrap();
        let report = fixture.ledger.report(std::slice::from_ref(&session)).await;
        let ids = report.iter().map(|one| one.file["id"].as_str().unwrap());
        assert_eq!(
            Vec::from_iter(ids),
            ["off", "life", "model", "daily", "month"]
        );
        assert_eq!(report[0].file, off);
        assert!(report.iter().all(|one| !one.is_counting));
        let amounts = report.iter().map(|one| {
            let windows = one.windows.iter();
            let all = windows.map(|one| (one.scope_value.as_str(), one.used, one.limit, one.left));
            all.collect::<Vec<_>>()
        });
        let expected = [
            vec![],
            vec![("a", 220.0, 400.0, 180.0)],
            vec![],
            vec![("user", 1.0, 2.0, 1.0)],
            vec![("", 220.0, 1000.0, 780.0)],
        ];
        assert_eq!(Vec::from_iter(amounts), expected, "restart: {restart}");
        let month = &report[4].windows[0];
        assert_eq!(month.since, Some(Span::Month.since(fixture.clock.now())));
        assert!(month.until.unwrap() > fixture.clock.now());
        assert_eq!(report[1].windows[0].since, Some(session.started_at));
    }
}

#[tokio::test]
async fn a_report_has_twenty_windows_of_a_rule_at_most() {
    let file = json!({
        "version": 1,
        "budgets": [{"id": "daily", "scope": "user", "window": "1d", "limitUsd": 0.00001}],
    });
    let fixture = Fixture::new(&file).await;
    for cost in 1..=25 {
        fixture
            .send("a", fixture.record(&format!("user {cost}"), cost))
            .await;
    }
    let windows = &fixture.ledger.report(&[]).await[0].windows;
    let first = &windows[0];
    assert_eq!(
        (windows.len(), first.scope_value.as_str(), first.left),
        (20, "user 25", 0.0)
    );
}
