//! Requirements on runs: their events in the log, their changes, and their removal.

use std::sync::Arc;
use std::time::Duration;

use super::Subject;
use super::sample::{RETENTION, accept, at, event, owner, raw, task};
use crate::record::{
    EventFilter, KeyOwner, NewDispatch, NewRun, RunArtifact, RunChange, RunEvent, RunFilter,
    RunKey, RunOpened, RunRecord, RunStatus,
};
use crate::{Error, Store};
use forge_base::event::Event;
use forge_base::id::RunId;

/// Event of a task in its second attempt.
pub fn of_task(kind: &'static str, seconds: i64) -> RunEvent {
    RunEvent {
        task_id: Some("task".to_owned()),
        attempt: 2,
        event: event(kind, seconds),
    }
}

/// Run opened at second 0 with two events, of which the first belongs to no task.
pub fn run(key: Option<&str>) -> NewRun {
    let created = RunEvent {
        task_id: None,
        attempt: 0,
        event: event("run.created", 0),
    };
    NewRun {
        id: RunId::new(),
        key: key.map(|value| RunKey {
            owner: KeyOwner::EVERYONE,
            value: value.to_owned(),
        }),
        fingerprint: [1; 32],
        trace_id: "trace of the run".to_owned(),
        created_at: at(0),
        request: raw(r#"{"repoUrl":"r"}"#),
        projection: raw(r#"{"n":0}"#),
        events: vec![created, of_task("task.status", 0)],
        is_admitted: true,
    }
}

/// Change of an executing run after this many events, which leaves the rest as it is.
pub fn change(id: RunId, after_seq: u64, events: Vec<RunEvent>) -> RunChange {
    RunChange {
        id,
        after_seq,
        events,
        projection: None,
        taken_over: None,
        status: RunStatus::Executing,
        artifacts: Vec::new(),
        end: None,
    }
}

/// Change that completes a run at this second.
pub fn end(id: RunId, after_seq: u64, seconds: i64, retention: Duration) -> RunChange {
    RunChange {
        status: RunStatus::Completed,
        end: Some((at(seconds), retention)),
        ..change(id, after_seq, vec![of_task("run.completed", seconds)])
    }
}

pub fn artifact(path: &str, bytes: usize) -> RunArtifact {
    RunArtifact {
        path: path.to_owned(),
        kind: "spec".to_owned(),
        updated_at: at(3),
        bytes: vec![7; bytes],
    }
}

async fn open(store: &dyn Store, new: NewRun) -> RunId {
    let id = new.id;
    let opened = store.open_run(new).await.unwrap();
    assert!(matches!(opened, RunOpened::New), "{opened:?}");
    id
}

async fn append(store: &dyn Store, change: RunChange) -> u64 {
    store.append_run(change).await.unwrap()
}

async fn refused(store: &dyn Store, change: RunChange) {
    let refused = store.append_run(change).await.unwrap_err();
    assert!(matches!(refused, Error::InvalidState(_)), "{refused:?}");
}

async fn stored(store: &dyn Store, id: RunId) -> RunRecord {
    store.run(id).await.unwrap().unwrap()
}

fn of(run: RunId) -> EventFilter {
    EventFilter {
        run: Some(run),
        ..EventFilter::default()
    }
}

async fn events(store: &dyn Store, filter: &EventFilter) -> Vec<Arc<Event>> {
    let page = store.events(filter, 0, 1000).await.unwrap();
    assert!(!page.more);
    page.events
}

async fn positions(store: &dyn Store, filter: &EventFilter) -> Vec<u64> {
    let events = events(store, filter).await;
    events.iter().map(|event| event.id.position).collect()
}

pub async fn a_run_reads_as_it_was_changed(subject: impl Subject) {
    let store = subject.open().await;
    let id = open(&*store, run(None)).await;
    let new = stored(&*store, id).await;
    assert_eq!((new.id, new.status), (id, RunStatus::Planning));
    assert_eq!((new.seq, new.last_position), (2, 2));
    assert_eq!((new.created_at, new.ended_at), (at(0), None));
    assert_eq!(new.trace_id, "trace of the run");
    assert_eq!(new.request.get(), r#"{"repoUrl":"r"}"#);
    assert_eq!(new.projection.get(), r#"{"n":0}"#);
    assert!(new.taken_over.is_none());

    let first = RunChange {
        projection: Some(raw(r#"{"n":1}"#)),
        taken_over: Some(raw("[3]")),
        ..change(id, 2, vec![of_task("task.status", 1)])
    };
    assert_eq!(append(&*store, first).await, 3);
    // Without events, and with nothing but a status.
    let paused = RunChange {
        status: RunStatus::Paused,
        ..change(id, 3, Vec::new())
    };
    assert_eq!(append(&*store, paused).await, 3);
    let store = subject.open().await;
    let run = stored(&*store, id).await;
    assert_eq!((run.status, run.seq), (RunStatus::Paused, 3));
    assert_eq!(run.projection.get(), r#"{"n":1}"#);
    assert_eq!(run.taken_over.unwrap().get(), "[3]");

    assert_eq!(append(&*store, end(id, 3, 4, RETENTION)).await, 4);
    let ended = stored(&*store, id).await;
    let end = (ended.status, ended.ended_at);
    assert_eq!(end, (RunStatus::Completed, Some(at(4))));
}

pub async fn a_key_of_a_run_is_used_once(subject: impl Subject) {
    let store = subject.open().await;
    let first = open(&*store, run(Some("key"))).await;
    for other in [None, None, Some("other")] {
        open(&*store, run(other)).await;
    }
    let again = store.open_run(run(Some("key"))).await.unwrap();
    assert!(matches!(again, RunOpened::Known(known) if known.id == first && known.seq == 2));
    let different = NewRun {
        fingerprint: [2; 32],
        ..run(Some("key"))
    };
    let conflict = store.open_run(different).await.unwrap();
    assert!(matches!(conflict, RunOpened::Conflict(holder) if holder == first));
    // Another caller has the same key for itself.
    let of_another = || NewRun {
        key: Some(RunKey {
            owner: owner(1),
            value: "key".to_owned(),
        }),
        ..run(None)
    };
    let before = store.log_bounds();
    let id = open(&*store, of_another()).await;
    let again = store.open_run(of_another()).await.unwrap();
    assert!(matches!(again, RunOpened::Known(known) if known.id == id));
    assert_ne!(store.log_bounds(), before);
    // One that is not admitted is answered with the holder of its key, or not at all.
    let bounds = store.log_bounds();
    for (key, id) in [
        (Some("key"), Some(first)),
        (Some("unused"), None),
        (None, None),
    ] {
        let not_admitted = NewRun {
            is_admitted: false,
            ..run(key)
        };
        let opened = store.open_run(not_admitted).await.unwrap();
        let is_expected = match (&opened, id) {
            (RunOpened::Known(known), Some(id)) => known.id == id,
            (RunOpened::NotAdmitted, None) => true,
            _ => false,
        };
        assert!(is_expected, "{key:?}: {opened:?}");
    }
    let silent = NewRun {
        events: Vec::new(),
        ..run(None)
    };
    let refused = store.open_run(silent).await;
    assert!(matches!(refused, Err(Error::InvalidState(_))));
    assert_eq!(store.log_bounds(), bounds);
}

pub async fn events_of_a_run_are_numbered_in_the_log(subject: impl Subject) {
    let store = subject.open().await;
    let id = open(&*store, run(None)).await;
    // A dispatch of the run, and another run.
    let dispatch = NewDispatch {
        run_id: Some(id.to_string()),
        ..task("task")
    };
    accept(&*store, dispatch).await;
    let other = open(&*store, run(None)).await;
    let of_both = vec![of_task("task.paused", 1), of_task("task.progress", 2)];
    append(&*store, change(id, 2, of_both)).await;
    let store = subject.open().await;
    let called = vec![of_task("tool.call", 3)];
    append(&*store, change(id, 4, called)).await;

    assert_eq!(positions(&*store, &of(id)).await, [1, 2, 7, 8, 9]);
    assert_eq!(positions(&*store, &of(other)).await, [5, 6]);
    let own = events(&*store, &of(id)).await;
    for (seq, event) in (1..).zip(&own) {
        assert_eq!(event.seq, seq);
        assert!(event.dispatch_id.is_none());
        assert!(event.agent_id.is_none() && event.provider.is_none());
        assert_eq!(event.run_id, Some(id.to_string()));
        assert_eq!(event.trace_id.as_deref(), Some("trace of the run"));
        let task = (seq > 1).then_some(("task", 2));
        assert_eq!(event.task_id.as_deref(), task.map(|(task, _)| task));
        assert_eq!(event.attempt, task.map_or(0, |(_, attempt)| attempt));
        let page = store.events(&of(id), event.id.position, 2).await.unwrap();
        let later = seq + 1..=5;
        assert_eq!(page.more, later.clone().count() > 2);
        let found = page.events.iter().map(|event| event.seq);
        assert!(found.eq(later.take(2)));
    }
    assert_eq!((&*own[2].kind, own[2].timestamp), ("task.paused", at(1)));
    assert_eq!(own[2].data.as_ref().unwrap().get(), r#"{"at":1}"#);
}

pub async fn the_whole_log_leaves_out_what_dispatches_report(subject: impl Subject) {
    let store = subject.open().await;
    let id = open(&*store, run(None)).await;
    accept(&*store, task("task")).await;
    let [progress, heartbeat] = ["task.progress", "task.heartbeat"];
    let kinds = [
        "task.status",
        progress,
        heartbeat,
        "tool.call",
        "tool.result",
    ];
    let all = kinds.map(|kind| of_task(kind, 1)).to_vec();
    append(&*store, change(id, 2, all)).await;
    let of_adapter = vec![event("tool.call", 1)];
    store.append_unbound("echo", of_adapter).await.unwrap();
    let of_kind = |filter| EventFilter {
        kind: Some("tool.call".to_owned()),
        ..filter
    };
    let by_task = EventFilter {
        task_id: Some("task".to_owned()),
        ..EventFilter::default()
    };
    for (filter, expected) in [
        (EventFilter::default(), vec![1, 2, 3, 4, 5, 10]),
        (by_task, vec![2, 3, 4, 5]),
        (of_kind(EventFilter::default()), vec![10]),
        (of_kind(of(id)), vec![8]),
        (of(id), vec![1, 2, 5, 6, 7, 8, 9]),
    ] {
        let found = positions(&*store, &filter).await;
        assert_eq!(found, expected, "{filter:?}");
    }
}

pub async fn a_refused_change_of_a_run_changes_nothing(subject: impl Subject) {
    let store = subject.open().await;
    let id = open(&*store, run(None)).await;
    let read = async || {
        let run = stored(&*store, id).await;
        format!("{run:?} {:?}", store.log_bounds())
    };
    let whole = RunChange {
        projection: Some(raw("[]")),
        taken_over: Some(raw("[]")),
        artifacts: vec![artifact("a", 1)],
        ..change(id, 2, vec![of_task("task.status", 1)])
    };
    let before = read().await;
    let faults: [fn(&mut RunChange); 5] = [
        |change| change.after_seq = 1,
        |change| change.after_seq = 3,
        |change| change.status = RunStatus::Failed,
        |change| change.end = Some((at(1), RETENTION)),
        |change| change.artifacts.push(artifact("large", (1 << 20) + 1)),
    ];
    for fault in faults {
        let mut faulty = whole.clone();
        fault(&mut faulty);
        refused(&*store, faulty).await;
    }
    let unknown = store.append_run(change(RunId::new(), 0, Vec::new())).await;
    assert!(matches!(unknown, Err(Error::NotFound)), "{unknown:?}");
    assert!(store.run_artifacts(id).await.unwrap().is_empty());
    assert_eq!(read().await, before);

    append(&*store, whole).await;
    append(&*store, end(id, 3, 2, RETENTION)).await;
    refused(&*store, change(id, 4, Vec::new())).await;
    refused(&*store, end(id, 4, 3, RETENTION)).await;
    assert_eq!(stored(&*store, id).await.ended_at, Some(at(2)));
}

pub async fn a_run_that_ended_without_completing_is_reopened(subject: impl Subject) {
    let store = subject.open().await;
    for status in [RunStatus::Failed, RunStatus::Cancelled] {
        let id = open(&*store, run(None)).await;
        let ended = RunChange {
            status,
            ..end(id, 2, 1, Duration::from_secs(1))
        };
        append(&*store, ended.clone()).await;
        assert!(!store.live_runs(None, 10).await.unwrap().contains(&id));
        refused(&*store, ended).await;
        append(&*store, change(id, 3, vec![of_task("run.reopened", 2)])).await;
        let reopened = stored(&*store, id).await;
        assert_eq!(
            (reopened.status, reopened.ended_at, reopened.seq),
            (RunStatus::Executing, None, 4)
        );
        assert!(store.live_runs(None, 10).await.unwrap().contains(&id));
        // Its retention has been over for long.
        store.sweep(at(1_000), 100).await.unwrap();
        stored(&*store, id).await;
        append(&*store, end(id, 4, 3, RETENTION)).await;
    }
}

pub async fn artifacts_replace_those_of_their_path(subject: impl Subject) {
    let store = subject.open().await;
    let id = open(&*store, run(None)).await;
    let other = open(&*store, run(None)).await;
    let with = |artifacts| RunChange {
        artifacts,
        ..change(id, 2, Vec::new())
    };
    let first = [("b/c", 1 << 20), ("a", 1), ("a", 2), ("empty", 0)];
    let first = first.map(|(path, size)| artifact(path, size));
    append(&*store, with(first.to_vec())).await;
    let newer = RunArtifact {
        kind: "walkthrough".to_owned(),
        updated_at: at(9),
        ..artifact("b/c", 3)
    };
    append(&*store, with(vec![newer.clone()])).await;
    let store = subject.open().await;
    let infos = store.run_artifacts(id).await.unwrap();
    let sizes: Vec<_> = infos.iter().map(|info| (&*info.path, info.size)).collect();
    assert_eq!(sizes, [("a", 2), ("b/c", 3), ("empty", 0)]);
    assert_eq!((&infos[1].kind, infos[1].updated_at), (&newer.kind, at(9)));
    for (run, path, expected) in [
        (id, "b/c", Some(newer.clone())),
        (id, "empty", Some(artifact("empty", 0))),
        (id, "b", None),
        (other, "a", None),
        (RunId::new(), "a", None),
    ] {
        let found = store.run_artifact(run, path).await.unwrap();
        assert_eq!(found, expected, "{path}");
    }
}

pub async fn runs_are_listed_newest_first_and_by_status(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(open(&*store, run(None)).await);
    }
    for id in [ids[0], ids[3]] {
        append(&*store, end(id, 2, 1, RETENTION)).await;
    }
    append(&*store, change(ids[1], 2, Vec::new())).await;
    let list = async |status, limit| {
        let (mut before, mut found) = (None, Vec::new());
        loop {
            let filter = RunFilter {
                status,
                before,
                limit,
            };
            let page = store.runs(filter).await.unwrap();
            assert!(page.items.iter().all(|run| run.projection.get() == "null"));
            found.extend(page.items.iter().map(|run| run.id));
            before = page.next;
            if before.is_none() {
                return found;
            }
        }
    };
    let newest_first: Vec<_> = ids.iter().rev().copied().collect();
    assert_eq!(list(None, 2).await, newest_first);
    for (status, expected) in [
        (RunStatus::Completed, vec![ids[3], ids[0]]),
        (RunStatus::Executing, vec![ids[1]]),
        (RunStatus::Planning, vec![ids[4], ids[2]]),
        (RunStatus::Paused, vec![]),
    ] {
        assert_eq!(list(Some(status), 1).await, expected);
    }
    let live = [ids[1], ids[2], ids[4]];
    assert_eq!(store.live_runs(None, 10).await.unwrap(), live);
    assert_eq!(store.live_runs(None, 2).await.unwrap(), live[..2]);
    assert_eq!(store.live_runs(Some(ids[1]), 10).await.unwrap(), live[1..]);
    assert_eq!(store.live_runs(Some(ids[3]), 10).await.unwrap(), live[2..]);
}

pub async fn an_expired_run_goes_with_all_that_it_has(subject: impl Subject) {
    let store = subject.open().await;
    let stays = open(&*store, run(None)).await;
    let goes = open(&*store, run(Some("key"))).await;
    let artifacts = ["a", "b", "c", "d", "e"].map(|path| artifact(path, 1));
    let with = RunChange {
        artifacts: artifacts.to_vec(),
        ..change(goes, 2, vec![of_task("task.status", 1)])
    };
    append(&*store, with).await;
    append(&*store, end(goes, 3, 2, RETENTION)).await;
    append(&*store, end(stays, 2, 3, RETENTION)).await;
    let swept = store.sweep(at(1) + RETENTION, 10).await.unwrap();
    assert_eq!((swept.runs, swept.more), (0, false));

    let (mut runs, mut more) = (0, true);
    // Gone from the first step on, however many there are.
    while more {
        let swept = store.sweep(at(2) + RETENTION, 10).await.unwrap();
        runs += swept.runs;
        more = swept.more;
        assert!(store.run(goes).await.unwrap().is_none());
        assert!(store.run_artifacts(goes).await.unwrap().is_empty());
        assert!(events(&*store, &of(goes)).await.is_empty());
        let all = positions(&*store, &EventFilter::default()).await;
        assert_eq!(all, [1, 2, 7]);
        assert_eq!(store.log_bounds().removed, 6);
    }
    assert_eq!(runs, 1);
    let store = subject.open().await;
    assert_eq!(store.log_bounds().removed, 6);
    assert_eq!(stored(&*store, stays).await.seq, 3);
    let again = store.append_run(change(goes, 4, Vec::new())).await;
    assert!(matches!(again, Err(Error::NotFound)), "{again:?}");
    // The key is free again.
    open(&*store, run(Some("key"))).await;
}
