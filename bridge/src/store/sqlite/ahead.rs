//! What is promised ahead of the tables. While no crowd comes, the usual way of a dispatch (accepted and begun at once,
//! gone on, finished, delivered) is decided from memory and written to the journal, and who waits has its answer; the
//! same change is made to the tables soon after. Whatever else is to be decided waits until the tables have all of it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rusqlite::Connection;

use super::journal::{self, Journal, Life, Promise, Promised};
use super::ledger::{Ledger, Numbers, Running, Turn};
use super::op::{Failure, Tx};
use super::schema::{self, Identity};
use super::shared::Shared;
use super::writer::Unwritable;
use super::{accept, deliver, execute};
use crate::crash;
use crate::id::{DeliveryId, DispatchId};
use crate::store::record::{
    Acceptance, AfterAttempt, Claim, EventTotals, Finish, Finished, IdempotencyKey, KeySpace,
    Lease, NewDispatch, Progress, Recorded, Settlement,
};
use crate::store::rules;

/// What is larger goes to the tables at once: it would be written twice, and crowd the journal.
pub(super) const MOST_BYTES: usize = 64 << 10;

/// Deliveries that are remembered until their first attempt, at most.
const MOST_OWED: usize = 4096;

pub(super) struct Ahead {
    pub(super) shared: Arc<Shared>,
    /// Looks for keys in what is committed.
    connection: Connection,
    journal: Journal,
    /// As they will be when all that is promised is in the tables.
    numbers: Numbers,
    /// What runs in this process.
    running: HashMap<DispatchId, Running>,
    /// Deliveries that are pending; not all of them.
    owed: HashSet<DeliveryId>,
    /// The keys of what was accepted here and may not be in the tables yet, with the numbers of their promises.
    keys: HashSet<IdempotencyKey>,
    key_numbers: VecDeque<(u64, IdempotencyKey)>,
}

/// What the tables must come to once a promise is in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) number: u64,
    pub(super) numbers: Numbers,
}

impl Ahead {
    /// Begins when all that was promised is in the tables, up to this number.
    pub(super) fn open(
        file: &Path,
        shared: Arc<Shared>,
        numbers: Numbers,
        last: u64,
    ) -> rusqlite::Result<Self> {
        let connection = schema::open_reader(file)?;
        let path = Journal::path(file.parent().unwrap_or(file));
        let life = Life::new(&shared.store_id, shared.epoch);
        let journal = Journal::open(&path, life, last).map_err(|error| of_the_disk(&error))?;
        Ok(Self {
            shared,
            connection,
            journal,
            numbers,
            running: HashMap::new(),
            owed: HashSet::new(),
            keys: HashSet::new(),
            key_numbers: VecDeque::new(),
        })
    }

    /// All that was promised is in the tables, and what was changed besides.
    pub(super) fn catch_up(&mut self, ledger: &mut Ledger) {
        self.numbers = ledger.numbers;
        self.journal.begin_anew();
        self.keys.clear();
        self.key_numbers.clear();
        for turn in ledger.turns.drain(..) {
            self.follow(turn);
        }
    }

    fn follow(&mut self, turn: Turn) {
        match turn {
            Turn::Runs(id, running) => drop(self.running.insert(id, running)),
            Turn::RunsNot(id) => drop(self.running.remove(&id)),
            Turn::Owed(id) if self.owed.len() < MOST_OWED => drop(self.owed.insert(id)),
            Turn::Owed(_) => {}
            Turn::Settled(id) => drop(self.owed.remove(&id)),
        }
    }

    /// What was just promised, if anything, is to come to this.
    pub(super) fn due(&self, number: u64) -> Due {
        Due {
            number,
            numbers: self.numbers,
        }
    }

    /// Returns when what was promised is on disk.
    pub(super) fn sync(&mut self) -> Result<(), Unwritable> {
        crash::point("journal.before");
        let begun = Instant::now();
        self.journal.sync().map_err(|error| {
            self.shared.meters.failures.one();
            self.unwritable(&of_the_disk(&error))
        })?;
        self.shared.meters.commits.time(begun.elapsed());
        crash::point("journal.synced");
        self.shared
            .publish_promised(&self.numbers, self.journal.last());
        Ok(())
    }

    pub(super) fn unwritable(&self, error: &rusqlite::Error) -> Unwritable {
        self.shared.unwritable(error)
    }

    /// Decides about a few; all of them look into the same commit of the tables.
    pub(super) fn together<T>(&mut self, decide: impl FnOnce(&mut Self) -> T) -> T {
        // Before that commit is chosen: what leaves the memory is in it.
        self.forget_keys();
        // Without it each looks for itself, into a later one.
        let begun = self.statement("BEGIN").is_ok();
        let decided = decide(self);
        if begun && self.statement("COMMIT").is_err() {
            // Nothing was changed in it.
            let _ = self.statement("ROLLBACK");
        }
        decided
    }

    fn statement(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.execute([])?;
        Ok(())
    }

    pub(super) fn accept(&mut self, new: &NewDispatch) -> Option<(u64, Acceptance)> {
        let start = new.start.as_ref()?;
        let is_delayed = new.not_before.is_some_and(|time| time > new.accepted_at);
        let is_own_key = new.key.space == KeySpace::Header || new.key.value == new.task_id;
        let is_full = self.numbers.counts.queued >= new.queue_limit;
        if new.session.is_some() || is_delayed || !is_own_key || is_full || self.knows(&new.key) {
            return None;
        }
        let number = self.journal.add(&Promise::Accept(new))?;
        let events = new.events.len() as u64 + 1;
        self.numbers.last_dispatch += 1;
        self.numbers.bounds.issued += events;
        self.numbers.counts.running += 1;
        self.follow(Turn::Runs(new.id, Running { attempt: 1, events }));
        self.keys.insert(new.key.clone());
        self.key_numbers.push_back((number, new.key.clone()));
        let begun = accept::begun(self.shared.epoch, new, None, start);
        let accepted = Acceptance::Accepted {
            retry_of: None,
            begun: Some(Box::new(begun)),
        };
        Some((number, accepted))
    }

    /// Those that are in the tables.
    fn forget_keys(&mut self) {
        let in_tables = self.shared.in_tables.borrow().number;
        while let Some((number, key)) = self.key_numbers.front()
            && *number <= in_tables
        {
            self.keys.remove(key);
            self.key_numbers.pop_front();
        }
    }

    /// Whether a key was accepted before.
    fn knows(&self, key: &IdempotencyKey) -> bool {
        // Who cannot tell asks the tables again, and says why.
        self.keys.contains(key) || accept::is_known(&self.connection, key).unwrap_or(true)
    }

    pub(super) fn append(&mut self, lease: &Lease, progress: &Progress) -> Option<(u64, ())> {
        let mut running = self.current(lease)?;
        let number = self.journal.add(&Promise::Append(lease, progress))?;
        let events = progress.events.len() as u64;
        self.numbers.bounds.issued += events;
        running.events += events;
        self.follow(Turn::Runs(lease.id, running));
        Some((number, ()))
    }

    pub(super) fn finish(&mut self, claim: &Claim, finish: &Finish) -> Option<(u64, Finished)> {
        let Claim::Attempt(lease) = claim else {
            return None;
        };
        let running = self.current(lease)?;
        let events = finish.events.len() as u64;
        if events == 0 {
            return None;
        }
        let totals = EventTotals {
            count: running.events + events,
            last: self.numbers.bounds.issued + events,
        };
        let body = rules::with_events(&finish.result, &self.shared.log, totals).ok()?;
        let number = self.journal.add(&Promise::Finish(lease, finish))?;
        self.numbers.bounds.issued += events;
        self.numbers.counts.running -= 1;
        self.follow(Turn::RunsNot(lease.id));
        if let Some(delivery) = &finish.delivery {
            self.numbers.counts.deliveries_pending += 1;
            self.follow(Turn::Owed(delivery.id));
        }
        Some((number, Finished::Recorded(Recorded { totals, body })))
    }

    pub(super) fn settle(&mut self, id: DeliveryId, settlement: &Settlement) -> Option<(u64, ())> {
        if settlement.next != AfterAttempt::Delivered || !self.owed.contains(&id) {
            return None;
        }
        let number = self.journal.add(&Promise::Settle(&id, settlement))?;
        self.numbers.bounds.issued += settlement.events.len() as u64;
        self.numbers.counts.deliveries_pending -= 1;
        self.follow(Turn::Settled(id));
        Some((number, ()))
    }

    fn current(&self, lease: &Lease) -> Option<Running> {
        let running = self.running.get(&lease.id).copied();
        running
            .filter(|running| (running.attempt, self.shared.epoch) == (lease.attempt, lease.epoch))
    }
}

/// What stands in the journal beside a file and is not in its tables.
pub(super) fn journaled(
    connection: &Connection,
    file: &Path,
    identity: &Identity,
) -> rusqlite::Result<Vec<(u64, Promised)>> {
    let life = Life::new(&identity.store_id, identity.epoch);
    let path = Journal::path(file.parent().unwrap_or(file));
    let in_tables = schema::promised(connection)?;
    journal::read(&path, &life, in_tables).map_err(|error| of_the_disk(&error))
}

/// Makes to the tables what was promised and is not in them by now. The number of the last promise.
pub(super) fn redo(
    connection: &Connection,
    identity: &Identity,
    mut left: Vec<(u64, Promised)>,
) -> Result<u64, Failure> {
    let in_tables = schema::promised(connection)?;
    left.retain(|(number, _)| *number > in_tables);
    let (Some((first, _)), Some((last, _))) = (left.first(), left.last()) else {
        return Ok(in_tables);
    };
    if *first != in_tables + 1 {
        return Err(torn("the journal begins after what the tables have").into());
    }
    let last = *last;
    let mut ledger = Ledger::load(connection)?;
    let transaction = connection.unchecked_transaction()?;
    let mut tx = Tx {
        conn: &transaction,
        ledger: &mut ledger,
        log: &identity.log,
        epoch: identity.epoch,
        is_promised: true,
    };
    for (_, promised) in &left {
        make(&mut tx, promised)?;
    }
    schema::keep_promised(&transaction, last)?;
    transaction.commit()?;
    tracing::info!("made {} promises of the journal to the tables", left.len());
    Ok(last)
}

fn make(tx: &mut Tx<'_>, promised: &Promised) -> Result<(), Failure> {
    match promised {
        Promised::Accept(new) => accept::accept(tx, new).map(drop),
        Promised::Append(lease, progress) => execute::append(tx, lease, progress),
        Promised::Finish(lease, finish) => {
            execute::finish(tx, &Claim::Attempt(lease.clone()), finish).map(drop)
        }
        Promised::Settle(id, settlement) => deliver::settle(tx, *id, settlement),
    }
}

pub(super) fn torn(what: &str) -> rusqlite::Error {
    let corrupt = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_CORRUPT);
    rusqlite::Error::SqliteFailure(corrupt, Some(what.to_owned()))
}

fn of_the_disk(error: &std::io::Error) -> rusqlite::Error {
    let code = match error.kind() {
        std::io::ErrorKind::StorageFull => rusqlite::ffi::SQLITE_FULL,
        _ => rusqlite::ffi::SQLITE_IOERR,
    };
    let failed = rusqlite::ffi::Error::new(code);
    rusqlite::Error::SqliteFailure(failed, Some(format!("the journal: {error}")))
}
