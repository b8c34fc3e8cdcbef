//! A store as it is copied into another database: rows of tables that both name alike. The tables are those of PostgreSQL;
//! a source answers with its own rows in their form. Texts are bytes.

use crate::{Error, Result};
use forge_base::digest::sha256;
use forge_base::event::LogName;

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Integer of 64 bits.
    Number,
    /// 0 or 1.
    Flag,
    Real,
    Bytes,
    /// 16 bytes.
    Id,
}
use Kind::{Bytes, Flag, Id, Number, Real};

#[derive(Debug)]
pub struct Table {
    pub name: &'static str,
    pub columns: &'static [(&'static str, Kind)],
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Number(i64),
    Real(f64),
    Bytes(Vec<u8>),
}

/// Values of the columns of a table, in their order.
pub type Row = Vec<Value>;

/// Values that are copied besides tables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    pub store_id: String,
    pub log: LogName,
    /// Last epoch: no bridge has written since, if it is still the same.
    pub epoch: u64,
    /// Highest position that was assigned, and that was removed, in the log.
    pub issued: u64,
    pub removed: u64,
    /// Highest position of a signal, there or removed.
    pub last_signal: u64,
    /// Position up to which signals were forwarded.
    pub forwarded: Option<u64>,
    /// A copy has begun, and no bridge opens the store.
    pub has_begun: bool,
    /// The copy was complete before; the target can be in use since.
    pub is_complete: bool,
}

/// Store that is copied. It is open for nothing else, and the same rows come in the same order each time.
/// Nothing is changed in it before `begin`.
pub trait Source: Send + 'static {
    fn head(&self) -> Result<Head>;
    /// Passes the rows of a table on until `each` returns false.
    fn read(&self, table: &Table, each: &mut dyn FnMut(Row) -> bool) -> Result<()>;
    /// Records, on disk, that a copy has begun: no bridge opens the store from then on. Does nothing the second time.
    fn begin(&self) -> Result<()>;
    /// Records that the copy is complete.
    fn complete(&self) -> Result<()>;
}

/// Number of rows, and the sum of their digests, which does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub rows: u64,
    sum: [u64; 4],
}

impl Tally {
    pub fn add(&mut self, row: &[Value]) {
        let mut text = Vec::new();
        for value in row {
            let (kind, bytes): (u8, &[u8]) = match value {
                Value::Null => (0, &[]),
                Value::Number(number) => (1, &number.to_be_bytes()),
                Value::Real(real) => (2, &real.to_bits().to_be_bytes()),
                Value::Bytes(bytes) => (3, bytes),
            };
            text.push(kind);
            text.extend((bytes.len() as u64).to_be_bytes());
            text.extend(bytes);
        }
        self.rows += 1;
        let digest = sha256(text);
        for (sum, part) in self.sum.iter_mut().zip(digest.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_be_bytes(*part));
        }
    }

    /// The sum in hexadecimal.
    pub fn digest(&self) -> String {
        self.sum.map(|part| format!("{part:016x}")).concat()
    }
}

impl Table {
    /// Refuses rows with other columns.
    pub fn check<'a>(&self, columns: impl IntoIterator<Item = &'a str>) -> Result<()> {
        match columns
            .into_iter()
            .eq(self.columns.iter().map(|(name, _)| *name))
        {
            true => Ok(()),
            false => Err(Error::Unreadable(format!(
                "the table {} has other columns",
                self.name
            ))),
        }
    }
}

macro_rules! tables {
    ($($name:ident { $($column:ident: $kind:expr),* $(,)? })*) => {
        /// All tables, in the order in which they are copied.
        pub const TABLES: &[Table] = &[$(Table {
            name: stringify!($name),
            columns: &[$((stringify!($column), $kind)),*],
        }),*];
    };
}

tables! {
    sealed { name: Bytes, value: Bytes }
    breaker { origin: Bytes, opened_at: Number, until: Number, times: Number, reason: Bytes }
    dispatch {
        id: Id, seq: Number, phase: Number, provider: Bytes, pinned: Flag, priority: Number, attempts: Number,
        epoch: Number, events: Number, cancel_requested: Flag, session: Bytes, queue: Bytes, turn: Number,
        origin: Bytes, not_before: Number, start_by: Number, first_started_at: Number, started_at: Number,
        finished_at: Number, expires_at: Number, error_code: Bytes, recorded_session: Bytes, spent: Bytes,
    }
    body {
        id: Id, task_id: Bytes, agent_id: Bytes, run_id: Bytes, trace_id: Bytes, key: Bytes, fingerprint: Bytes,
        retry_of: Id, callback_url: Bytes, accepted_at: Number, routing: Bytes, secrets: Bytes, request: Bytes,
    }
    key { value: Bytes, dispatch: Id }
    session { name: Bytes, head: Number, last: Number }
    result { id: Id, events: Number, body: Bytes }
    spending {
        id: Id, at: Number, model: Bytes, tokens_in: Number, tokens_out: Number, cost_micros: Number,
    }
    content { id: Id, number: Number, part: Number, bytes: Bytes }
    decision { id: Id, approved: Flag, at: Number, by: Bytes, reason: Bytes }
    delivery {
        id: Id, state: Number, origin: Bytes, attempts: Number, since: Number, due_at: Number, settled_at: Number,
        give_up_after: Number, retention: Number,
    }
    attempt {
        id: Id, number: Number, at: Number, duration_ms: Number, status: Number, error: Bytes, answer: Bytes,
    }
    event {
        first: Number, last: Number, dispatch: Id, run: Id, seq: Number, attempt: Number, provider: Bytes,
        unbound_at: Number, body: Bytes,
    }
    run {
        id: Id, place: Number, status: Number, seq: Number, artifact_bytes: Number, created_at: Number,
        ended_at: Number, expires_at: Number, key: Bytes, fingerprint: Bytes, trace_id: Bytes, taken_over: Bytes,
    }
    run_body { id: Id, request: Bytes, projection: Bytes }
    run_artifact { id: Id, path: Bytes, kind: Bytes, updated_at: Number, bytes: Bytes }
    signal_session {
        id: Bytes, place: Number, key_id: Bytes, source: Number, adapter: Bytes, user_id: Bytes, project_id: Bytes,
        client_session_id: Bytes, owner: Bytes, started_at: Number, last_at: Number, paused_at: Number,
        ended_at: Number, signals: Number, errors: Number, tokens_in: Number, tokens_out: Number,
        cost_micros: Number, unpriced: Number,
    }
    signal {
        seq: Number, session: Bytes, key_id: Bytes, repeat_key: Bytes, at: Number, ts: Number, kind: Bytes,
        model: Bytes, tool: Bytes, user_id: Bytes, project_id: Bytes, error_code: Bytes, tokens_in: Number,
        tokens_out: Number, cost_micros: Number, cache_read_tokens: Number, cache_write_tokens: Number,
        latency_ms: Real, drift_score: Real, confidence: Real, details: Bytes, blocked: Flag,
        intervention_id: Bytes,
    }
    signal_intervention {
        id: Bytes, seq: Number, rule_id: Bytes, blocks: Flag, severity: Number, message: Bytes, scope_value: Bytes,
        period: Number, session_id: Bytes, at: Number, is_open: Flag, acknowledged_at: Number, ack_delay_ms: Number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_knows_each_value_and_no_order() {
        let rows = [
            vec![Value::Number(1), Value::Bytes(b"a".to_vec())],
            vec![Value::Null, Value::Bytes(b"a".to_vec())],
            vec![Value::Real(1.0), Value::Bytes(Vec::new())],
            vec![Value::Bytes(b"a".to_vec()), Value::Bytes(Vec::new())],
            vec![Value::Bytes(Vec::new()), Value::Bytes(b"a".to_vec())],
        ];
        let tally = |rows: &[&Row]| {
            let mut tally = Tally::default();
            rows.iter().for_each(|row| tally.add(row));
            (tally.rows, tally.digest())
        };
        let alone: std::collections::BTreeSet<_> = rows.iter().map(|row| tally(&[row])).collect();
        assert_eq!(alone.len(), rows.len());
        let forth: Vec<_> = rows.iter().collect();
        let back: Vec<_> = rows.iter().rev().collect();
        assert_eq!(tally(&forth), tally(&back));
        assert_ne!(tally(&forth[1..]), tally(&forth[..4]));
    }
}
