//! Requirements on judgements of signals, interventions and amounts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;

use super::Subject;
use super::sample::{accept, at, begin, event, ok, task};
use super::signals::{kinds, open, record, session, signal, stored};
use crate::Store;
use crate::record::{
    Acknowledged, Acknowledgement, Charge, Claim, Finish, Intervention, InterventionFilter, Judge,
    Judgement, NewSignal, Progress, Severity, SignalGroup, SignalProperty, SignalRecord,
    SignalRecorded, SignalSession, SignalSource, SignalTotals, SignalVerdict,
};

const BEGUN: &str = "signal.intervention";

/// Judge that blocks a record of more than ten tokens out, by a new intervention for each of a session, and that ends
/// those it is told to end. It counts how often it was asked, and the records that were not taken back.
#[derive(Debug, Default)]
pub struct Strict {
    pub asked: AtomicU64,
    pub judged: Arc<AtomicU64>,
    pub ends: Vec<String>,
}

/// Intervention of this id, which began at this time.
pub fn intervention(id: &str, session_id: &str, at: Timestamp) -> Intervention {
    Intervention {
        id: id.to_owned(),
        rule_id: "rule".to_owned(),
        blocks: at.as_second() % 2 == 0,
        severity: Severity::Critical,
        message: "Enough.".to_owned(),
        scope_value: "user".to_owned(),
        period: -7,
        session_id: session_id.to_owned(),
        at,
        is_open: true,
        acknowledged: None,
    }
}

impl Judge for Strict {
    fn judge(&self, session: &SignalSession, record: &SignalRecord) -> Judgement {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let judged = Arc::clone(&self.judged);
        judged.fetch_add(1, Ordering::Relaxed);
        let blocks = record.tokens_out > Some(10);
        let id = format!("int {} {}", session.id, session.totals.signals);
        let begun = blocks.then(|| intervention(&id, &session.id, record.at));
        Judgement {
            begins: begun.iter().cloned().collect(),
            ends: self.ends.clone(),
            events: begun.iter().map(|_| event(BEGUN, 1)).collect(),
            undo: Box::new(move || {
                judged.fetch_sub(1, Ordering::Relaxed);
            }),
            ..Judgement::of(SignalVerdict {
                blocked: blocks,
                intervention: begun,
                is_noted: false,
            })
        }
    }
}

/// Signal with these tokens out that the judge sees.
fn judged(id: &str, seconds: i64, tokens_out: u64, judge: &Arc<Strict>) -> NewSignal {
    NewSignal {
        record: SignalRecord {
            tokens_out: Some(tokens_out),
            ..record(seconds)
        },
        judge: Some(Arc::clone(judge) as _),
        ..signal(id, seconds)
    }
}

async fn verdict(store: &dyn Store, signal: NewSignal) -> SignalVerdict {
    match store.record_signal(signal).await.unwrap() {
        SignalRecorded::New(verdict) => verdict,
        SignalRecorded::Repeat(..) => panic!("it is new"),
    }
}

async fn listed(store: &dyn Store) -> Vec<Intervention> {
    let filter = InterventionFilter {
        limit: 100,
        ..InterventionFilter::default()
    };
    store.interventions(filter).await.unwrap().items
}

pub async fn a_record_is_judged_as_it_is_stored(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let judge = Arc::new(Strict::default());
    let kept = verdict(&*store, judged("s", 1, 10, &judge)).await;
    assert_eq!(kept, SignalVerdict::default());
    let blocked = verdict(&*store, judged("s", 2, 11, &judge)).await;
    let begun = intervention("int s 1", "s", at(2));
    assert!(blocked.blocked);
    assert_eq!(blocked.intervention, Some(begun.clone()));
    let ending = Arc::new(Strict {
        ends: vec!["int s 1".to_owned(), "unknown".to_owned()],
        judged: Arc::clone(&judge.judged),
        ..Strict::default()
    });
    assert!(verdict(&*store, judged("s", 4, 12, &ending)).await.blocked);
    assert_eq!(judge.judged.load(Ordering::Relaxed), 3);

    let store = subject.open().await;
    let (_, records) = stored(&*store, "s").await;
    let told = records.iter().map(|one| one.intervention_id.as_deref());
    assert_eq!(
        Vec::from_iter(told),
        [Some("int s 2"), Some("int s 1"), None]
    );
    let blocked: Vec<_> = records.iter().map(|one| one.blocked).collect();
    assert_eq!(blocked, [true, true, false]);
    let newest = intervention("int s 2", "s", at(4));
    let open = store.open_interventions(100).await.unwrap();
    assert_eq!(open, std::slice::from_ref(&newest));
    let closed = Intervention {
        is_open: false,
        ..begun
    };
    assert_eq!(listed(&*store).await, [newest, closed]);
    assert_eq!(kinds(&*store).await[1..], [BEGUN, BEGUN]);
}

pub async fn a_repeat_is_answered_as_the_first_was(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let judge = Arc::new(Strict::default());
    let keyed = || NewSignal {
        repeat_key: Some([1; 32]),
        ..judged("s", 2, 11, &judge)
    };
    let first = verdict(&*store, keyed()).await;
    assert!(first.blocked && first.intervention.is_some());
    let again = store.record_signal(keyed()).await.unwrap();
    assert_eq!(again, SignalRecorded::Repeat("s".to_owned(), first));
    assert_eq!(judge.judged.load(Ordering::Relaxed), 1);
    // A refused signal is not judged either.
    let refused = NewSignal {
        opens: Some(session("s")),
        ..judged("s", 3, 11, &judge)
    };
    assert!(store.record_signal(refused).await.is_err());
    assert_eq!(judge.judged.load(Ordering::Relaxed), 1);
    assert_eq!(listed(&*store).await.len(), 1);
}

pub async fn an_intervention_is_acknowledged_once(subject: impl Subject) {
    let store = subject.open().await;
    let (own, other) = (Some([1; 32]), Some([2; 32]));
    let owned = SignalSession {
        owner: own,
        ..session("s")
    };
    for one in [owned, session("free")] {
        open(&*store, one).await;
    }
    let judge = Arc::new(Strict::default());
    for (id, seconds) in [("s", 2), ("free", 3)] {
        verdict(&*store, judged(id, seconds, 11, &judge)).await;
    }
    let acknowledge = async |id, owner, delay_ms| {
        let acknowledged = Acknowledgement {
            at: at(9),
            delay_ms,
        };
        let events = vec![event("signal.acknowledged", 9)];
        let outcome = store.acknowledge_intervention(id, owner, acknowledged, events);
        outcome.await.unwrap()
    };
    for (id, owner, delay_ms, expected) in [
        ("none", own, 1, Acknowledged::Unknown),
        ("none", None, 1, Acknowledged::Unknown),
        ("int s 0", other, 1, Acknowledged::Unknown),
        ("int s 0", own, 40, Acknowledged::First),
        ("int s 0", own, 50, Acknowledged::Again),
        ("int s 0", other, 50, Acknowledged::Unknown),
        ("int free 0", own, 1, Acknowledged::Unknown),
        ("int free 0", None, 41, Acknowledged::First),
        ("int free 0", None, 51, Acknowledged::Again),
    ] {
        assert_eq!(acknowledge(id, owner, delay_ms).await, expected, "{id}");
    }
    let store = subject.open().await;
    let noted = listed(&*store).await.into_iter();
    let noted = noted.map(|one| one.acknowledged.map(|one| (one.at, one.delay_ms)));
    let expected = [Some((at(9), 41)), Some((at(9), 40))];
    assert_eq!(Vec::from_iter(noted), expected);
    assert_eq!(kinds(&*store).await[4..], ["signal.acknowledged"; 2]);
}

pub async fn interventions_are_listed_newest_first(subject: impl Subject) {
    let store = subject.open().await;
    let judge = Arc::new(Strict::default());
    for id in ["a", "b"] {
        open(&*store, session(id)).await;
    }
    for (seconds, id) in [(2, "a"), (3, "b"), (4, "a"), (5, "a")] {
        verdict(&*store, judged(id, seconds, 11, &judge)).await;
    }
    for (session, expected) in [
        (None, vec![5, 4, 3, 2]),
        (Some("a"), vec![5, 4, 2]),
        (Some("b"), vec![3]),
        (Some("c"), vec![]),
    ] {
        let mut found = Vec::new();
        let mut before = None;
        loop {
            let filter = InterventionFilter {
                session: session.map(str::to_owned),
                before,
                limit: 2,
            };
            let page = store.interventions(filter).await.unwrap();
            assert!(page.items.len() <= 2);
            found.extend(page.items.iter().map(|one| one.at.as_second()));
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        let expected: Vec<_> = expected
            .iter()
            .map(|second| at(*second).as_second())
            .collect();
        assert_eq!(found, expected, "{session:?}");
    }
}

pub async fn amounts_are_added_up_by_minute_up_to_a_mark(subject: impl Subject) {
    let store = subject.open().await;
    for id in ["a", "b"] {
        open(&*store, session(id)).await;
    }
    let base = 60 * 1000;
    let of = |id: &str, seconds: i64, user: Option<&str>, project: Option<&str>| NewSignal {
        record: SignalRecord {
            user_id: user.map(str::to_owned),
            project_id: project.map(str::to_owned),
            ..record(base + seconds)
        },
        ..signal(id, base + seconds)
    };
    for signal in [
        of("a", 1, Some("u"), Some("p")),
        of("a", 59, Some("v"), None),
        of("b", 60, Some("u"), Some("q")),
        of("b", 61, None, Some("p")),
    ] {
        verdict(&*store, signal).await;
    }
    let marks = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&marks);
    let mark = Arc::new(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    let last = store.mark_signals(mark).await.unwrap();
    assert_eq!(marks.load(Ordering::Relaxed), 1);
    verdict(&*store, of("a", 62, Some("u"), Some("p"))).await;

    let minutes = async |group: SignalGroup, since: i64| {
        let sums = store.signal_amounts(group, at(base + since), last).await;
        let sums = sums.unwrap().into_iter();
        let minute = |time: Timestamp| (time.as_second() - at(base).as_second()).div_euclid(60);
        sums.map(|(at, sum)| (minute(at), sum.signals))
            .collect::<Vec<_>>()
    };
    let base_is_a_minute = at(base).as_second() % 60 == 0;
    assert!(base_is_a_minute);
    let text = str::to_owned;
    assert_eq!(minutes(SignalGroup::All, 0).await, [(0, 2), (1, 2)]);
    assert_eq!(minutes(SignalGroup::All, 59).await, [(0, 1), (1, 2)]);
    let users = |names: &[&str]| SignalGroup::Users(names.iter().map(|name| text(name)).collect());
    assert_eq!(minutes(users(&["u"]), 0).await, [(0, 1), (1, 1)]);
    assert_eq!(minutes(users(&["u", "v", "w"]), 0).await, [(0, 2), (1, 1)]);
    assert_eq!(minutes(users(&[]), 0).await, []);
    let project = SignalGroup::Project(text("p"));
    assert_eq!(minutes(project, 0).await, [(0, 1), (1, 1)]);
    assert_eq!(minutes(SignalGroup::Session(text("b")), 0).await, [(1, 2)]);
    assert_eq!(minutes(SignalGroup::Session(text("c")), 0).await, []);
    let all = store.signal_amounts(SignalGroup::All, at(base + 61), last);
    let expected = SignalTotals {
        signals: 1,
        errors: 0,
        tokens_in: 100,
        tokens_out: 10,
        cost_micros: 7,
        unpriced: 0,
    };
    assert_eq!(all.await.unwrap()[0].1, expected);
}

pub async fn amounts_are_added_up_by_property(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let other = SignalSession {
        adapter: "other".to_owned(),
        ..session("o")
    };
    open(&*store, other).await;
    for (session_id, seconds, user, error) in [
        ("s", 5, Some("old"), None),
        ("s", 20, Some("ana"), None),
        // Arrival decides, not the order in which they are stored.
        ("o", 10, Some("ana"), Some("failed")),
        ("o", 30, None, None),
    ] {
        let record = SignalRecord {
            user_id: user.map(str::to_owned),
            error_code: error.map(str::to_owned),
            ..record(seconds)
        };
        let new = NewSignal {
            record,
            ..signal(session_id, seconds)
        };
        store.record_signal(new).await.unwrap();
    }
    for (by, expected) in [
        (
            SignalProperty::User,
            vec![(None, 1, 0), (Some("ana"), 2, 1)],
        ),
        (SignalProperty::Project, vec![(Some("project"), 3, 1)]),
        (
            SignalProperty::Adapter,
            vec![(Some("claude-code"), 1, 0), (Some("other"), 2, 1)],
        ),
        (SignalProperty::Model, vec![(Some("model"), 3, 1)]),
    ] {
        let sums = store.signal_sums(by, at(10)).await.unwrap();
        let found = sums.values.iter();
        let found = found.map(|(value, sum)| (value.as_deref(), sum.signals, sum.errors));
        assert_eq!(Vec::from_iter(found), expected, "{by:?}");
        let tokens = sums
            .values
            .values()
            .map(|sum| (sum.tokens_in, sum.cost_micros));
        let tokens = tokens.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        assert_eq!((tokens, sums.left_out), ((300, 21), None), "{by:?}");
    }
}

pub async fn old_interventions_go(subject: impl Subject) {
    let store = subject.open().await;
    open(&*store, session("s")).await;
    let judge = Arc::new(Strict::default());
    for seconds in [2, 3, 4, 50] {
        verdict(&*store, judged("s", seconds, 11, &judge)).await;
    }
    let mut swept = 0;
    loop {
        let step = store.sweep_signals(at(10), 2).await.unwrap();
        swept += step.interventions;
        if !step.more {
            break;
        }
    }
    assert_eq!(swept, 3);
    assert_eq!(listed(&*store).await.len(), 1);
}

/// Charge of a dispatch whose usage is so many tokens in so far, at this second.
pub fn charge(tokens_in: u64, seconds: i64, judge: &Arc<Strict>) -> Charge {
    Charge {
        session: SignalSession {
            source: SignalSource::Execution,
            client_session_id: None,
            ..session("sess_1")
        },
        record: SignalRecord {
            tokens_in: Some(tokens_in),
            tokens_out: None,
            cost_micros: Some(2 * tokens_in),
            ..record(seconds)
        },
        judge: Arc::clone(judge) as _,
    }
}

pub async fn usage_of_a_dispatch_is_charged_once(subject: impl Subject) {
    let store = subject.open().await;
    let judge = Arc::new(Strict::default());
    let id = accept(&*store, task("t")).await;
    let lease = begin(&*store, id, 1).await.lease;
    let progress = |tokens_in, seconds| Progress {
        charge: Some(charge(tokens_in, seconds, &judge)),
        ..Progress::default()
    };
    for (tokens_in, seconds) in [(0, 1), (30, 2), (30, 3), (50, 4)] {
        let appended = store.append(&lease, progress(tokens_in, seconds)).await;
        appended.unwrap();
    }
    let finish = Finish {
        charge: Some(charge(80, 5, &judge)),
        ..ok(5)
    };
    let claim = Claim::Attempt(lease.clone());
    store.finish(claim, finish).await.unwrap();
    // One that is refused charges nothing.
    let late = store.append(&lease, progress(90, 6)).await;
    assert!(late.is_err());
    let store = subject.open().await;
    let (session, records) = stored(&*store, "sess_1").await;
    assert_eq!(session.source, SignalSource::Execution);
    assert_eq!(session.ended_at, Some(at(5)));
    let (tokens, cost) = (session.totals.tokens_in, session.totals.cost_micros);
    assert_eq!((tokens, cost, session.last_at), (80, 160, at(5)));
    let parts = records.iter().map(|one| one.tokens_in.unwrap());
    assert_eq!(Vec::from_iter(parts), [30, 20, 30]);
    assert_eq!(judge.judged.load(Ordering::Relaxed), 3);
}
