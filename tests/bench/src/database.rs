//! Storage of a dispatch in PostgreSQL without a bridge: the tables of the bridge, and the same rows in batches of two
//! messages. One connection writes, with all waiting changes in one transaction.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

const SCHEMA: &str = include_str!("../../../bridge/crates/store-postgres/src/schema.sql");
const BATCH: usize = 1024;
/// Time that changes without a waiting caller wait for others to share their commit, as in the bridge.
const RIDE: Duration = Duration::from_millis(5);
/// Text of the events of one write, in bytes; about what the bridge's have.
const EVENTS_BYTES: usize = 300;

const SETTINGS: &str =
    "SELECT set_config('lock_timeout', '1s', true), set_config('statement_timeout', '0', true)";
const KEYS: &str =
    "SELECT value, dispatch FROM key WHERE value = ANY($1) ORDER BY value FOR UPDATE";
const DISPATCHES: &str = "SELECT * FROM dispatch WHERE id = ANY($1) ORDER BY id FOR UPDATE";
const DELIVERIES: &str = "SELECT * FROM delivery WHERE id = ANY($1) ORDER BY id FOR UPDATE";
const NEW_KEYS: &str =
    "INSERT INTO key (value, dispatch) SELECT * FROM unnest($1::bytea[], $2::uuid[])";
/// With `accept` and `start` in one, as the bridge does with an empty queue.
const NEW_DISPATCHES: &str = "INSERT INTO dispatch (id, phase, provider, pinned, priority, attempts, epoch, events,
     cancel_requested, origin, start_by, first_started_at, started_at)
   SELECT id, 4, 'echo', true, 0, 1, 1, 2, false, 'http://127.0.0.1:1', 1, 1, 1 FROM unnest($1::uuid[]) AS n (id)";
const NEW_BODIES: &str = "INSERT INTO body (id, task_id, agent_id, run_id, trace_id, key, fingerprint, callback_url,
     accepted_at, routing, request)
   SELECT id, task, 'bench', 'run-bench', decode(repeat('00', 16), 'hex'), task, decode(repeat('00', 32), 'hex'),
     'http://127.0.0.1:1/cb', 1, '{}', request FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) AS n (id, task, request)";
const NEW_DELIVERIES: &str = "INSERT INTO delivery (id, state, epoch, origin, attempts, since, due_at, give_up_after, retention)
   SELECT id, 0, 1, 'http://127.0.0.1:1', 0, 1, 1, 1, 1 FROM unnest($1::uuid[]) AS n (id)";
const FINISHED: &str = "UPDATE dispatch d SET phase = 5, finished_at = 1, events = 4 FROM unnest($1::uuid[]) AS n (id) WHERE d.id = n.id";
const RESULTS: &str = "INSERT INTO result (id, events, body) SELECT id, 4, body FROM unnest($1::uuid[], $2::bytea[]) AS n (id, body)";
const SETTLED: &str = "UPDATE delivery d SET state = 1, attempts = 1, settled_at = 1 FROM unnest($1::uuid[]) AS n (id) WHERE d.id = n.id";
const EXPIRES: &str = "UPDATE dispatch d SET expires_at = 1, events = 5 FROM unnest($1::uuid[]) AS n (id) WHERE d.id = n.id";
const ATTEMPTS: &str = "INSERT INTO attempt (id, number, at, duration_ms, status) SELECT id, 1, 1, 1, 200 FROM unnest($1::uuid[]) AS n (id)";
const EVENTS: &str = "WITH log AS MATERIALIZED (SELECT assign_positions($1) AS base)
   INSERT INTO event (first, last, dispatch, seq, attempt, provider, body)
   SELECT log.base + 2 * n - 1, log.base + 2 * n, id, 1, 1, 'echo', $3
   FROM log, unnest($2::uuid[]) WITH ORDINALITY AS e (id, n)";

pub(crate) struct Database {
    changes: mpsc::UnboundedSender<Change>,
    ids: Mutex<HashMap<String, Uuid>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Accepted,
    Finished,
    Delivered,
}

struct Change {
    step: Step,
    id: Uuid,
    task: Vec<u8>,
    text: Vec<u8>,
    /// Notified after the commit.
    waits: Option<oneshot::Sender<()>>,
}

impl Database {
    /// Creates the tables in the empty database of this URL.
    pub(crate) async fn open(url: &str) -> anyhow::Result<Self> {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
        let handle = Handle::current();
        handle.spawn(connection);
        client.batch_execute(SCHEMA).await?;
        let (changes, mut inbox) = mpsc::unbounded_channel();
        handle.spawn(async move {
            while let Some(batch) = next(&mut inbox).await {
                write(&client, batch)
                    .await
                    .expect("writes to the database succeed");
            }
        });
        Ok(Self {
            changes,
            ids: Mutex::default(),
        })
    }

    pub(crate) async fn accepted(&self, task: &str, text: String) {
        let id = Uuid::now_v7();
        self.ids().insert(task.to_owned(), id);
        self.keep(Step::Accepted, id, task, text).await;
    }

    pub(crate) async fn finished(&self, task: &str, result: String) {
        let id = self.ids()[task];
        self.keep(Step::Finished, id, task, result).await;
    }

    /// Records the delivery without waiting for the commit.
    pub(crate) fn delivered(&self, task: &str) {
        let id = self.ids().remove(task).expect("a finished task has an id");
        self.submit(Step::Delivered, id, task, String::new(), None);
    }

    fn ids(&self) -> std::sync::MutexGuard<'_, HashMap<String, Uuid>> {
        self.ids.lock().expect("no code panics with the ids")
    }

    async fn keep(&self, step: Step, id: Uuid, task: &str, text: String) {
        let (done, kept) = oneshot::channel();
        self.submit(step, id, task, text, Some(done));
        kept.await.expect("the writer outlives this handle");
    }

    fn submit(
        &self,
        step: Step,
        id: Uuid,
        task: &str,
        text: String,
        waits: Option<oneshot::Sender<()>>,
    ) {
        let change = Change {
            step,
            id,
            task: task.as_bytes().to_vec(),
            text: text.into_bytes(),
            waits,
        };
        let handed = self.changes.send(change);
        assert!(handed.is_ok(), "the writer outlives this handle");
    }
}

/// Next batch: all waiting changes.
async fn next(inbox: &mut mpsc::UnboundedReceiver<Change>) -> Option<Vec<Change>> {
    let mut batch = vec![inbox.recv().await?];
    while batch.iter().all(|change| change.waits.is_none()) {
        match timeout(RIDE, inbox.recv()).await {
            Ok(Some(change)) => batch.push(change),
            Ok(None) | Err(_) => break,
        }
    }
    while batch.len() < BATCH
        && let Ok(change) = inbox.try_recv()
    {
        batch.push(change);
    }
    Some(batch)
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// Sends statements without waiting between them.
async fn send(client: &Client, all: &[(&str, Vec<Param<'_>>)]) -> anyhow::Result<()> {
    let sent = all
        .iter()
        .map(|(sql, params)| client.query_typed(sql, params));
    try_join_all(sent).await?;
    Ok(())
}

async fn write(client: &Client, batch: Vec<Change>) -> anyhow::Result<()> {
    let of = |step| batch.iter().filter(move |change| change.step == step);
    let ids = |step| of(step).map(|change| change.id).collect::<Vec<_>>();
    let texts = |step| {
        of(step)
            .map(|change| change.text.as_slice())
            .collect::<Vec<_>>()
    };
    let (accepted, finished, delivered) = (
        ids(Step::Accepted),
        ids(Step::Finished),
        ids(Step::Delivered),
    );
    let (requests, results) = (texts(Step::Accepted), texts(Step::Finished));
    let tasks: Vec<_> = of(Step::Accepted)
        .map(|change| change.task.as_slice())
        .collect();
    let changed: Vec<_> = finished.iter().chain(&delivered).copied().collect();
    let all: Vec<_> = batch.iter().map(|change| change.id).collect();
    let (count, events) = (2 * all.len() as i64, vec![b'.'; EVENTS_BYTES]);
    let (uuids, bytes) = (Type::UUID_ARRAY, Type::BYTEA_ARRAY);
    let mut first: Vec<(&str, Vec<Param<'_>>)> = vec![
        ("BEGIN ISOLATION LEVEL READ COMMITTED", Vec::new()),
        (SETTINGS, Vec::new()),
    ];
    let mut second: Vec<(&str, Vec<Param<'_>>)> = Vec::new();
    if !accepted.is_empty() {
        first.push((KEYS, vec![(&tasks, bytes.clone())]));
        second.push((
            NEW_KEYS,
            vec![(&tasks, bytes.clone()), (&accepted, uuids.clone())],
        ));
        second.push((NEW_DISPATCHES, vec![(&accepted, uuids.clone())]));
        let bodies: Vec<Param<'_>> = vec![
            (&accepted, uuids.clone()),
            (&tasks, bytes.clone()),
            (&requests, bytes.clone()),
        ];
        second.push((NEW_BODIES, bodies));
        second.push((NEW_DELIVERIES, vec![(&accepted, uuids.clone())]));
    }
    if !changed.is_empty() {
        first.push((DISPATCHES, vec![(&changed, uuids.clone())]));
        first.push((DELIVERIES, vec![(&changed, uuids.clone())]));
    }
    if !finished.is_empty() {
        second.push((FINISHED, vec![(&finished, uuids.clone())]));
        second.push((RESULTS, vec![(&finished, uuids.clone()), (&results, bytes)]));
    }
    if !delivered.is_empty() {
        second.push((SETTLED, vec![(&delivered, uuids.clone())]));
        second.push((EXPIRES, vec![(&delivered, uuids.clone())]));
        second.push((ATTEMPTS, vec![(&delivered, uuids.clone())]));
    }
    let log: Vec<Param<'_>> = vec![(&count, Type::INT8), (&all, uuids), (&events, Type::BYTEA)];
    second.push((EVENTS, log));
    second.push(("COMMIT", Vec::new()));
    send(client, &first).await?;
    send(client, &second).await?;
    drop((first, second));
    for waits in batch.into_iter().filter_map(|change| change.waits) {
        // The client might have disconnected.
        let _ = waits.send(());
    }
    Ok(())
}
