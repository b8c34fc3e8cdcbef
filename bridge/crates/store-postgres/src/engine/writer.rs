//! Writer: takes the queued changes as one batch, and writes it in one transaction of two messages. If the database
//! refuses a statement, the batch is written again in halves, so that one change delays no other for long.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::change::QueuedChange;
use super::link::{Link, LinkError};
use super::outcome::Outcome;
use super::{Shared, TAKEN, outcome};
use crate::batch::{Needs, Placed, Rows, Stop, load};
use crate::lineage;
use crate::published::Published;
use crate::rows::statement::{Columns, Statement, params};
use forge_base::failpoint;
use forge_store::Error;
use forge_store::progress::Work;
use forge_store::retry::RetryDelays;

const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";
/// Longest wait of a batch for a row that another transaction has locked, no bound for a statement, as COMMIT waits for
/// standbys and would only warn if it were cancelled, and longest pause between the two messages: a node that is stopped
/// there must not commit after its lease has ended, nor keep the rows of others for long.
const SETTINGS: &str =
    "SELECT pg_catalog.set_config('lock_timeout', '100ms', true), pg_catalog.set_config('statement_timeout', '0', true),
   pg_catalog.set_config('idle_in_transaction_session_timeout', $1::int8::text, true)";
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Time after which a change is refused whose row stays locked. Others are written between its attempts.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
/// True if this process is the node, true if the lease of its epoch has not ended, and the id of the transaction. Rows are
/// read and locked after this: the row of a dispatch decides whose it is if the lease ends now.
const EPOCH: &str = "SELECT instance = $2, epoch = $3 AND NOT has_ended AND until > pg_catalog.clock_timestamp(), pg_catalog.pg_current_xact_id()::text::int8
   FROM node WHERE id = $1";
const LAPSED: &str = "the lease of this node has ended";
/// Attempts to write a change alone, if it met another transaction.
const TRIES: u32 = 3;
/// Messages that read rows for one batch, after the first one.
const ROUNDS: usize = 4;

pub(super) struct Writer {
    shared: Arc<Shared>,
    /// None after it was lost.
    link: Option<Link>,
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
    /// Nothing can be written now.
    Unavailable(String),
    /// The lease of this node has ended.
    Lapsed,
    /// Another process is this node.
    Taken,
}

impl From<LinkError> for Failure {
    fn from(error: LinkError) -> Self {
        let reason = error.to_string();
        match error {
            LinkError::Lost(_) => Self::Unavailable(reason),
            LinkError::Statement(error) => {
                let met_another = [
                    SqlState::UNIQUE_VIOLATION,
                    SqlState::T_R_DEADLOCK_DETECTED,
                    SqlState::T_R_SERIALIZATION_FAILURE,
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
    pub(super) fn new(shared: Arc<Shared>, link: Link) -> Self {
        let link = Some(link);
        Self { shared, link }
    }

    pub(super) async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let mut delays = RetryDelays::default();
        loop {
            let Some(link) = &mut self.link else {
                if let Err(reason) = self.reconnect().await {
                    shared.queue.set_unavailable(&reason);
                    if shared.queue.is_closing() {
                        break;
                    }
                    tokio::time::sleep(delays.next_delay()).await;
                } else {
                    shared.queue.set_available();
                    delays = RetryDelays::default();
                }
                continue;
            };
            tokio::select! {
                batch = shared.queue.next() => match batch {
                    Some(batch) => {
                        if !self.write(batch).await {
                            break;
                        }
                    }
                    None => break,
                },
                error = link.ended() => {
                    tracing::warn!(%error, "the store connects again");
                    self.link = None;
                }
            }
        }
    }

    async fn reconnect(&mut self) -> Result<(), String> {
        let _working = self.shared.progress.working(Work::Connect);
        let store_id = &self.shared.published.identity.store_id;
        self.link = Some(lineage::connect(&self.shared.target, store_id).await?);
        Ok(())
    }

    /// Writes and answers a batch, in halves if it is refused. False if the epoch of this node has ended.
    async fn write(&mut self, batch: Vec<QueuedChange>) -> bool {
        let mut left = vec![(batch, 1)];
        while let Some((mut batch, tries)) = left.pop() {
            let begun = Instant::now();
            match self.commit(&mut batch).await {
                Ok(placed) => {
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
                Err(failure @ (Failure::Unavailable(_) | Failure::Lapsed | Failure::Taken)) => {
                    let (reason, is_over) = match &failure {
                        Failure::Unavailable(reason) => (reason.as_str(), false),
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
    async fn commit(&mut self, batch: &mut Vec<QueuedChange>) -> Result<Placed, Failure> {
        let published = &self.shared.published;
        let mut rows = Rows::new(published);
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
        let placed = written?;
        self.shared.published.apply(&mut rows, placed);
        Ok(placed)
    }

    async fn decide_and_write(
        &mut self,
        batch: &mut Vec<QueuedChange>,
        rows: &mut Rows,
    ) -> Result<Placed, Failure> {
        let lost = || Failure::Unavailable("the connection to the database was lost".to_owned());
        let link = self.link.as_mut().ok_or_else(lost)?;
        link.has_warned = false;
        let progress = &self.shared.progress;
        let _working = progress.working(Work::Statement);
        let published = &self.shared.published;
        let needs: Vec<_> = batch.iter().map(QueuedChange::needs).collect();
        let (xid, mut answers) = begin(link, published, &needs, rows).await?;
        failpoint::point("database.begun");
        let later = decide(link, batch, &mut answers, rows).await?;
        self.shared.queue.put_back(later);
        let event_count = rows.event_count();
        let own = rows.row_statements();
        let log = rows.log_statements(&event_count);
        let mut all: Vec<_> = own
            .iter()
            .chain(rows.further_statements())
            .chain(&log)
            .collect();
        let end = Statement::new(
            if all.is_empty() { "ROLLBACK" } else { "COMMIT" },
            Vec::new(),
        );
        all.push(&end);
        failpoint::point("database.commit.before");
        let committing = progress.working(Work::Commit);
        let sent = link.send(&all).await;
        drop(committing);
        failpoint::point("database.commit.after");
        let base = match sent {
            Ok(answers) if !link.has_warned => outcome::base(&answers, event_count)?,
            Err(error @ LinkError::Statement(_)) => return Err(error.into()),
            // The server can have committed.
            Ok(_) | Err(LinkError::Lost(_)) => {
                let life = link.life;
                self.link = None;
                let sent = outcome::Sent { xid, life, rows };
                let store_id = &published.identity.store_id;
                let asking = progress.working(Work::Outcome);
                let (outcome, link) = outcome::resolve(&self.shared.target, store_id, &sent).await;
                drop(asking);
                self.link = link;
                self.shared.meters.shared.lost_answers[outcome.place()].inc();
                match outcome {
                    Outcome::Committed { base } => base,
                    Outcome::RolledBack => return Err(lost()),
                    Outcome::Unknown => {
                        if rows.owned_event().is_some() {
                            let doubted = &self.shared.doubted_epoch;
                            doubted.store(rows.epoch, Ordering::Release);
                        }
                        let reason = "the outcome of a commit is not known".to_owned();
                        return Err(Failure::Unavailable(reason));
                    }
                }
            }
        };
        Ok(Placed { base })
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
        Statement::new(SETTINGS, params![pause]),
        Statement::new(
            EPOCH,
            params![published.node.id, published.identity.instance, epoch],
        ),
    ];
    let tables = load::statements(needs);
    let reads = needs.iter().flat_map(|needs| &needs.reads);
    let parts = tables.iter().map(|(_, statement)| statement);
    let all: Vec<_> = first.iter().chain(parts).chain(reads).collect();
    let mut found = link.send(&all).await?.into_iter().skip(2);
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
