//! Records of all kinds.

use std::sync::Arc;
use std::time::Duration;

use forge_base::event::kind;
use forge_store::Store;
use forge_store::contract::judgement::{Strict, charge};
use forge_store::contract::runs::{artifact, change, end, of_task, run as new_run};
use forge_store::contract::sample::{
    PROVIDER, accept, at, begin, event, failed, ok, owner, raw, run, settlement, task,
};
use forge_store::contract::signals::{record, session, signal};
use forge_store::destination::OpenBreaker;
use forge_store::record::{
    Acknowledgement, AfterAttempt, Claim, Decision, DeliveryAttempt, Finish, IdempotencyKey,
    KeySpace, NewDispatch, NewSignal, Progress, Reroute, RunChange, Settlement, SignalRecord,
    Spending,
};

fn in_session(id: &str) -> NewDispatch {
    NewDispatch {
        session: Some("conversation".to_owned()),
        ..task(id)
    }
}

/// Writes dispatches in each phase, with deliveries in each state.
async fn fill_dispatches(store: &dyn Store) {
    let files = Finish {
        output: Some("x".repeat(300_000)),
        output_files: vec![vec![1; 10], vec![2; 300_000]],
        result: raw(r#"{"status":"ok","events":{"count":1,"of":"another"}}"#),
        ..ok(3)
    };
    let attached = NewDispatch {
        attachments: vec![vec![0, 255], vec![9; 600_000]],
        ..task("attached")
    };
    let (_, delivered) = run(store, attached, files).await;
    let nul = Settlement {
        attempt: Some(DeliveryAttempt {
            number: 1,
            at: at(4),
            duration_ms: 1,
            status: Some(500),
            error: Some("refused".to_owned()),
            answer: Some("with\0NUL".to_owned()),
        }),
        ..settlement(1, 4, AfterAttempt::Retry { due: at(5) })
    };
    store.settle(delivered.unwrap(), nul).await.unwrap();
    let done = settlement(2, 5, AfterAttempt::Delivered);
    store.settle(delivered.unwrap(), done).await.unwrap();
    let (_, dead) = run(store, task("dead"), failed("timeout", 3)).await;
    let given_up = settlement(1, 4, AfterAttempt::Dead);
    store.settle(dead.unwrap(), given_up).await.unwrap();
    // Supersedes the delivery of the one before, and takes its key.
    run(store, task("dead"), ok(6)).await;
    let charged = Finish {
        charge: Some(charge(20, 7, &Arc::new(Strict::default()))),
        delivery: None,
        result: raw("{}"),
        spending: Some(Spending {
            model: Some("m\0".to_owned()),
            tokens_in: Some(1),
            tokens_out: None,
            cost_micros: Some(u64::from(u32::MAX)),
        }),
        ..ok(7)
    };
    let keyed = NewDispatch {
        key: IdempotencyKey {
            owner: owner(1),
            space: KeySpace::Header,
            value: "key".to_owned(),
        },
        callback: None,
        run_id: Some("run".to_owned()),
        ..task("keyed")
    };
    run(store, keyed, charged).await;

    let running = accept(store, in_session("running")).await;
    for waiting in ["second", "third"] {
        accept(store, in_session(waiting)).await;
    }
    let begun = begin(store, running, 8).await;
    let progress = Progress {
        events: vec![event("custom", 9)],
        session: Some("of the runtime".to_owned()),
        spent: Some(raw(r#"{"tokens":7}"#)),
        charge: None,
    };
    store.append(&begun.lease, progress).await.unwrap();
    let held = NewDispatch {
        is_held: true,
        ..task("held")
    };
    accept(store, held).await;
    for (id, approves) in [("approved", true), ("rejected", false)] {
        let held = NewDispatch {
            is_held: true,
            ..task(id)
        };
        let id = accept(store, held).await;
        let decision = Decision {
            at: at(9),
            by: "operator".to_owned(),
            reason: approves.then(|| "seen".to_owned()),
        };
        if approves {
            let approved = event(kind::APPROVAL_APPROVED, 9);
            store.approve(id, decision, approved).await.unwrap();
        } else {
            let claim = Claim::Rejected(id, decision);
            let rejected = failed("blocked_by_policy", 9);
            store.finish(claim, rejected).await.unwrap();
        }
    }
    let delayed = NewDispatch {
        not_before: Some(at(50)),
        priority: 5,
        pinned: true,
        secrets: None,
        ..task("delayed")
    };
    accept(store, delayed).await;
    let cancelled = accept(store, in_session("cancelled")).await;
    store.request_cancel(cancelled, at(9)).await.unwrap();
    let moved = Reroute {
        id: accept(store, task("moved")).await,
        provider: "other".to_owned(),
        session: Some("elsewhere".to_owned()),
        routing: raw("[]"),
    };
    store.reroute(moved).await.unwrap();
}

async fn fill_runs(store: &dyn Store) {
    for (key, seconds) in [(None, 10), (Some("run key"), 11)] {
        let new = new_run(key);
        let id = new.id;
        store.open_run(new).await.unwrap();
        let more = RunChange {
            artifacts: vec![artifact("a.md", 700), artifact("b.md", 0)],
            projection: Some(raw(r#"{"n":1}"#)),
            taken_over: Some(raw("[1]")),
            ..change(id, 2, vec![of_task("task.status", seconds)])
        };
        store.append_run(more).await.unwrap();
    }
    // One that is being removed: its row is gone, its artifacts are not.
    let new = new_run(None);
    let id = new.id;
    store.open_run(new).await.unwrap();
    let artifacts = (0..30).map(|number| artifact(&number.to_string(), 5));
    let many = RunChange {
        artifacts: artifacts.collect(),
        ..change(id, 2, Vec::new())
    };
    store.append_run(many).await.unwrap();
    store
        .append_run(end(id, 2, 12, Duration::ZERO))
        .await
        .unwrap();
    assert!(store.sweep(at(12), 1).await.unwrap().more);
}

async fn fill_signals(store: &dyn Store) {
    for id in ["one", "two"] {
        let opened = vec![event("signal.session.started", 0)];
        store
            .open_signal_session(session(id), opened)
            .await
            .unwrap();
    }
    store.keep_forwarded(0).await.unwrap();
    let judge = Arc::new(Strict::default());
    for (seconds, tokens) in [(1, 5), (2, 50), (3, 60)] {
        let judged = NewSignal {
            record: SignalRecord {
                tokens_out: Some(tokens),
                project_id: None,
                ..record(seconds)
            },
            repeat_key: Some([u8::try_from(seconds).unwrap(); 32]),
            judge: Some(Arc::clone(&judge) as _),
            ..signal("one", seconds)
        };
        store.record_signal(judged).await.unwrap();
    }
    let first = store.signals_to_forward(1).await.unwrap().unwrap();
    store.keep_forwarded(first[0].position).await.unwrap();
    let acknowledged = Acknowledgement {
        at: at(9),
        delay_ms: 7,
    };
    let open = store.open_interventions(1).await.unwrap();
    let done = store.acknowledge_intervention(&open[0].id, None, acknowledged, Vec::new());
    done.await.unwrap();
    let ends = vec![("two".to_owned(), at(9))];
    store.end_signal_sessions(ends, Vec::new()).await.unwrap();
}

pub(super) async fn fill(store: &dyn Store) {
    fill_dispatches(store).await;
    fill_runs(store).await;
    fill_signals(store).await;
    store
        .append_unbound(PROVIDER, vec![event("adapter.ready", 1)])
        .await
        .unwrap();
    for name in ["signing", "mark"] {
        store
            .seal_once(name, name.as_bytes().to_vec())
            .await
            .unwrap();
    }
    let open = OpenBreaker {
        origin: "https://a.example:443".to_owned(),
        opened_at: at(1),
        until: at(2),
        times: 2,
        reason: "answered 503".to_owned(),
    };
    store.keep_breakers(vec![open], Vec::new()).await.unwrap();
}
