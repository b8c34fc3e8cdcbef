//! Writer: takes the queued changes as one batch, and writes it in one transaction of two messages. If the database
//! refuses a statement, the batch is written again in halves, so that one change delays no other for long.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::change::QueuedChange;
use super::doubt::{Doubt, LOST};
use super::instant::Instant as BootInstant;
use super::link::{Idle, Link, LinkError};
use super::outcome::{self, Proof, Sent};
use super::probe::Probe;
use super::timeouts::{check_timeout, write_timeout};
use super::{Shared, TAKEN, lock};
use crate::batch::{Needs, Placed, Rows, Stop, load};
use crate::lineage;
use crate::published::Published;
use crate::rows::statement::{Columns, Statement, params};
use forge_base::failpoint;
use forge_store::Error;
use forge_store::progress::Work;
use forge_store::retry::RetryDelays;

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// True if this process is the node, true if the lease of its epoch has not ended, and the id of the transaction. Rows are
/// read and locked after this: the row of a dispatch decides whose it is if the lease ends now.
///
/// Sets the longest wait of a batch for a row that another transaction has locked, no bound for a statement, as COMMIT waits
/// for standbys and would only warn if it were cancelled, and the longest pause between the two messages: a node that is
/// stopped there must not commit after its lease has ended, nor keep the rows of others for long.
const EPOCH: &str = "SELECT instance = $2, epoch = $3 AND NOT has_ended AND until > pg_catalog.clock_timestamp(), pg_catalog.pg_current_xact_id()::text::int8,
   pg_catalog.set_config('lock_timeout', '100ms', true), pg_catalog.set_config('statement_timeout', '0', true),
   pg_catalog.set_config('idle_in_transaction_session_timeout', $4::int8::text, true)
   FROM node WHERE id = $1";
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a change is refused whose row stays locked. Others are written between its attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LAPSED: &str = "the lease of this node has ended";
/// Attempts to write a change alone, if it met another transaction.
const TRIES: u32 = 3;
/// Messages that read rows for one batch, after the first one.
const ROUNDS: usize = 4;

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// None after it was lost.
    link: Option<Link>,
    /// Changes are refused until it succeeds.
    probe: Option<Probe>,
    delays: RetryDelays,
    /// Value of the last proof; the first one is random.
    proof: i64,
    /// Runs the questions for outcomes.
    tasks: TaskTracker,
}

/// End of a batch that was sent.
enum Written {
    Placed(Placed),
    /// The answer to its commit was lost.
    InDoubt(Sent),
}

/// Time of the next attempt of a change that was rolled back alone.
#[derive(Clone, Copy)]
enum Again {
    Never,
    AtOnce,
    /// Another transaction has locked its row.
    AfterOthers,
}

/// Reason why a batch was not written.
enum Failure {
    /// The transaction is rolled back.
    RolledBack { error: Error, again: Again },
    /// Nothing can be written now, as the connection was lost.
    Unavailable(String),
    /// The store has refused the batch, as it would others.
    OfStore { reason: String, is_read_only: bool },
    /// The lease of this node has ended.
    Lapsed,
    /// Another process is this node.
    Taken,
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        let reason = error.to_string();
        if error.is_of_store() {
            return Self::OfStore {
                reason: format!("the database refuses writes: {reason}"),
                is_read_only: error.is_read_only(),
            };
        }
        match error {
            LinkError::Lost(_) => Self::Unavailable(reason),
            LinkError::Statement(error) => {
                let met_another = [
                    SqlState::UNIQUE_VIOLATION,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::T_R_SERIALIZATION_FAILURE,
                    SqlState::QUERY_CANCELED,
                ];
                let again = match error.code() {
                    Some(&SqlState::LOCK_NOT_AVAILABLE) => Again::AfterOthers,
                    Some(code) if met_another.contains(code) => Again::AtOnce,
                    Some(_) | None => Again::Never,
                };
                Self::RolledBack {
                    error: Error::Unavailable(reason),
                    again,
                }
            }
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::RolledBack {
            error,
            again: Again::Never,
        }
    }
}

impl Writer {
    pub(super) fn new(shared: Arc<Shared>, link: Link, tasks: TaskTracker) -> Self {
        let (_, proof) = Uuid::now_v7().as_u64_pair();
        Self {
            shared,
            link: Some(link),
            probe: None,
            delays: RetryDelays::default(),
            proof: proof.cast_signed(),
            tasks,
        }
    }

    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        loop {
            let Some(link) = self.link.as_mut().filter(|_| self.probe.is_none()) else {
                if let Err(reason) = self.recover().await {
                    shared.queue.set_unavailable(&reason);
                    shared.queue.end_batch();
                    if shared.queue.is_closing() {
                        break;
                    }
                    tokio::time::sleep(self.delays.next_delay()).await;
                } else {
                    shared.queue.set_available();
                }
                continue;
            };
            *lock(&shared.busy_since) = None;
            tokio::select! {
                // No batch is begun on a connection that is to be checked.
                biased;
                idle = link.idle() => {
                    *lock(&shared.busy_since) = Some(BootInstant::now());
                    let usable = match idle {
                        Idle::Ended(error) => Err(error),
                        Idle::Suspected => {
                            let _working = shared.progress.working(Work::Statement);
                            link.check(check_timeout(shared.published.node.lease)).await
                        }
                    };
                    if let Err(error) = usable {
                        tracing::warn!(%error, "the store connects again");
                        self.link = None;
                    }
                }
                batch = shared.queue.next() => match batch {
                    Some(batch) => {
                        *lock(&shared.busy_since) = Some(BootInstant::now());
                        if !self.write(batch).await {
                            break;
                        }
                    }
                    None => break,
                },
            }
        }
    }

    /// Connects if there is no connection, and then repeats what the store has refused, if it did.
    async fn recover(&mut self) -> Result<(), String> {
        let shared = &self.shared;
        let link = match &mut self.link {
            Some(link) => link,
            None => {
                let _working = shared.progress.working(Work::Connect);
                let limit = write_timeout(shared.published.node.lease);
                let link = lineage::connect(&shared.target, &shared.published, limit).await?;
                self.link.insert(link)
            }
        };
        // Its answers are those of a store that fails, and not of a connection: the lease is kept.
        *lock(&shared.busy_since) = None;
        let Some(probe) = &self.probe else {
            return Ok(());
        };
        let _working = shared.progress.working(Work::Statement);
        match probe.run(link).await {
            Ok(()) => {
                self.probe = None;
                Ok(())
            }
            Err(error) => {
                if error.is_read_only() || matches!(error, LinkError::Lost(_)) {
                    self.link = None;
                }
                Err(format!("the database refuses writes: {error}"))
            }
        }
    }

    /// Writes and answers a batch, in halves if it is refused. False if the epoch of this node has ended.
    async fn write(&mut self, batch: Vec<QueuedChange>) -> bool {
        let mut left = vec![(batch, 1)];
        while let Some((mut batch, tries)) = left.pop() {
            let begun = Instant::now();
            match self.commit(&mut batch).await {
                Ok((Written::InDoubt(sent), rows)) => {
                    // The others were not sent.
                    let others = left.drain(..).rev().flat_map(|(batch, _)| batch);
                    self.shared.queue.put_back(others.collect());
                    let doubt = Doubt { batch, rows, sent };
                    doubt.begin(&self.shared);
                    self.tasks.spawn(doubt.settle(Arc::clone(&self.shared)));
                    return true;
                }
                Ok((Written::Placed(placed), _)) => {
                    self.delays = RetryDelays::default();
                    self.shared.progress.committed();
                    self.shared.meters.commits.time(begun.elapsed());
                    self.shared.meters.batches.number(batch.len() as u64);
                    for change in batch {
                        change.answer(Ok(placed));
                    }
                    failpoint::point("database.answered");
                }
                Err(Failure::RolledBack { .. }) if batch.len() > 1 => {
                    let second = batch.split_off(batch.len() / 2);
                    left.extend([(second, 1), (batch, 1)]);
                }
                Err(Failure::RolledBack {
                    again: Again::AtOnce,
                    ..
                }) if tries < TRIES => left.push((batch, tries + 1)),
                Err(Failure::RolledBack {
                    again: Again::AfterOthers,
                    ..
                }) if batch
                    .iter()
                    .all(|change| change.arrived.elapsed() < LOCK_PATIENCE) =>
                {
                    self.shared.queue.put_behind(batch);
                }
                Err(Failure::RolledBack { error, .. }) => {
                    self.shared.meters.failures.inc();
                    tracing::error!(%error, "the database refused a change");
                    let refuse = |change: QueuedChange| change.answer(Err(error.clone()));
                    batch.into_iter().for_each(refuse);
                }
                Err(
                    failure @ (Failure::Unavailable(_)
                    | Failure::OfStore { .. }
                    | Failure::Lapsed
                    | Failure::Taken),
                ) => {
                    let (reason, is_over) = match &failure {
                        Failure::Unavailable(reason) => {
                            self.link = None;
                            (reason.as_str(), false)
                        }
                        Failure::OfStore {
                            reason,
                            is_read_only,
                        } => {
                            let refused = self.link.as_mut().and_then(Link::take_refused);
                            self.probe = refused.map(Probe::of);
                            if *is_read_only {
                                self.link = None;
                            }
                            self.shared.queue.set_unavailable(reason);
                            (reason.as_str(), false)
                        }
                        Failure::Lapsed => (LAPSED, false),
                        Failure::Taken | Failure::RolledBack { .. } => (TAKEN, true),
                    };
                    self.shared.meters.failures.inc();
                    tracing::warn!(reason, "a batch was not written");
                    let rest = left.drain(..).flat_map(|(batch, _)| batch);
                    let all = batch.into_iter().chain(rest);
                    all.for_each(|change| change.refuse(reason));
                    if is_over {
                        self.shared.queue.set_unavailable(TAKEN);
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Writes a batch in one transaction. Changes that have to wait for the next one are put back.
    async fn commit(
        &mut self,
        batch: &mut Vec<QueuedChange>,
    ) -> Result<(Written, Box<Rows>), Failure> {
        let mut rows = Box::new(Rows::new(&self.shared.published));
        let written = self.decide_and_write(batch, &mut rows).await;
        if written.is_err() {
            rows.roll_back();
        }
        // The transaction has ended if it was committed, and the next one must not find it open if it was not.
        if written.is_err()
            && let Some(link) = &mut self.link
            && link
                .send(&[&Statement::new("ROLLBACK", Vec::new())])
                .await
                .is_err()
        {
            self.link = None;
        }
        let written = written?;
        if let Written::Placed(placed) = written {
            self.shared.published.apply(&mut rows, placed);
        }
        Ok((written, rows))
    }

    async fn decide_and_write(
        &mut self,
        batch: &mut Vec<QueuedChange>,
        rows: &mut Rows,
    ) -> Result<Written, Failure> {
        let lost = || Failure::Unavailable(LOST.to_owned());
        let progress = Arc::clone(&self.shared.progress);
        let asking = progress.working(Work::Outcome);
        let slot = self.shared.slots.free().await;
        drop(asking);
        let working = progress.working(Work::Statement);
        let link = self.link.as_mut().ok_or_else(lost)?;
        link.has_warned = false;
        let published = &self.shared.published;
        let needs: Vec<_> = batch.iter().map(QueuedChange::needs).collect();
        let (xid, mut answers) = begin(link, published, &needs, rows).await?;
        failpoint::point("database.begun");
        let later = decide(link, batch, &mut answers, rows).await?;
        self.shared.queue.put_back(later);
        let event_count = rows.event_count();
        self.proof = self.proof.wrapping_add(1);
        let proof = Proof::new(&rows.node, slot, self.proof);
        let writes = rows.writes(&event_count, proof.write());
        let mut all: Vec<_> = writes.all().collect();
        let end = Statement::new(
            if all.is_empty() { "ROLLBACK" } else { "COMMIT" },
            Vec::new(),
        );
        all.push(&end);
        failpoint::point("database.commit.before");
        drop(working);
        let working = progress.working(Work::Commit);
        let sent = link.send(&all).await;
        drop(working);
        failpoint::point("database.commit.after");
        match sent {
            Ok(answers) if !link.has_warned => {
                let base = outcome::base(&answers, event_count)?;
                Ok(Written::Placed(Placed { base }))
            }
            Err(error @ LinkError::Statement(_)) => Err(error.into()),
            // The server can have committed.
            Ok(_) | Err(LinkError::Lost(_)) => {
                drop(writes);
                self.link = None;
                Ok(Written::InDoubt(Sent { xid, proof }))
            }
        }
    }
}

/// Answers to the questions of each change.
type Answers = Vec<Vec<Vec<Row>>>;

/// Begins the transaction and reads the rows that the batch needs. Returns the id of the transaction, and the answers to
/// the questions of each change.
async fn begin(
    link: &mut Link,
    published: &Published,
    needs: &[&Needs],
    rows: &mut Rows,
) -> Result<(u64, Answers), Failure> {
    let epoch = rows.epoch;
    let pause = published
        .node
        .lease
        .map_or(LONGEST_PAUSE, |lease| lease / 3);
    let pause = pause.min(LONGEST_PAUSE).as_millis() as u64;
    let first = [
        Statement::new(BEGIN, Vec::new()),
        Statement::new(
            EPOCH,
            params![published.node.id, published.identity.instance, epoch, pause],
        ),
    ];
    let tables = load::statements(needs);
    let reads = needs.iter().flat_map(|needs| &needs.reads);
    let parts = tables.iter().map(|(_, statement)| statement);
    let all: Vec<_> = first.iter().chain(parts).chain(reads).collect();
    let mut found = link.send(&all).await?.into_iter().skip(1);
    let xid = match found.next().as_deref() {
        Some([row]) => {
            let mut columns = Columns::of(row);
            match (columns.next()?, columns.next()?) {
                (false, _) => return Err(Failure::Taken),
                (true, false) => return Err(Failure::Lapsed),
                (true, true) => columns.next()?,
            }
        }
        Some(_) | None => return Err(Failure::Taken),
    };
    rows.load(needs, &tables, &mut found)?;
    let answers = needs
        .iter()
        .map(|needs| found.by_ref().take(needs.reads.len()).collect());
    Ok((xid, answers.collect()))
}

/// Decides the changes of a batch, and returns those that have to wait for the next one.
async fn decide(
    link: &mut Link,
    batch: &mut Vec<QueuedChange>,
    answers: &mut Answers,
    rows: &mut Rows,
) -> Result<Vec<QueuedChange>, Failure> {
    let mut undecided: Vec<usize> = (0..batch.len()).collect();
    let mut later = Vec::new();
    for _ in 0..ROUNDS {
        let mut more = Vec::new();
        for place in undecided.drain(..) {
            rows.answers = mem::take(&mut answers[place]);
            let decided = batch[place].decide(rows);
            answers[place] = mem::take(&mut rows.answers);
            match decided {
                Ok(()) => {}
                Err(Stop::More(needs)) => more.push((place, needs)),
                Err(Stop::Later) => later.push(place),
                Err(Stop::Refused(error)) => return Err(error.into()),
                Err(Stop::Panicked) => {
                    return Err(Error::Unavailable("a decision panicked".to_owned()).into());
                }
            }
        }
        if more.is_empty() {
            break;
        }
        let needs: Vec<_> = more.iter().map(|(_, needs)| &**needs).collect();
        let tables = load::statements(&needs);
        let found = link
            .send(&tables.iter().map(|(_, one)| one).collect::<Vec<_>>())
            .await?;
        rows.load(&needs, &tables, &mut found.into_iter())?;
        undecided.extend(more.iter().map(|(place, _)| *place));
    }
    // What it needed was removed between two messages.
    later.extend(undecided);
    later.sort_unstable();
    let later = later.into_iter().rev().map(|place| batch.remove(place));
    let mut waiting: Vec<_> = later.filter_map(QueuedChange::put_off).collect();
    waiting.reverse();
    Ok(waiting)
}
