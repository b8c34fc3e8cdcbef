//! Rows of the tables of signals.

use jiff::Timestamp;
use uuid::Uuid;

use forge_base::digest::Digest;
use forge_base::time::nanos;
use forge_store::Result;
use forge_store::record::{
    Acknowledgement, Intervention, SignalRecord, SignalSession, SignalTotals,
};

use crate::rows::statement::{Columns, Param, sent};
use crate::rows::table::{Fields, fields, keyed, row};

fields!(SignalTotals { signals errors tokens_in tokens_out cost_micros unpriced });
fields!(SignalSession {
    id key_id source adapter user_id project_id client_session_id owner started_at last_at paused_at ended_at
} totals: SignalTotals);
keyed!(SignalSession in "signal_session" by id: String);

fields!(SignalRecord {
    at ts kind model tool user_id project_id error_code tokens_in tokens_out cost_micros cache_read_tokens
    cache_write_tokens latency_ms drift_score confidence details blocked intervention_id
});

row! {
    /// Signal of a session, by its id; with the key of the session and that of the signal, if there is one, and the process
    /// that recorded it.
    SignalRow {
        session: String, key_id: Option<String>, repeat_key: Option<Digest>, instance: Uuid
    } record: SignalRecord
}

fields!(Intervention {
    id rule_id blocks severity message scope_value period session_id at is_open
} acknowledged: Option<Acknowledgement>);

impl Fields for Option<Acknowledgement> {
    fn names(names: &mut Vec<&'static str>) {
        names.extend(["acknowledged_at", "ack_delay_ms"]);
    }

    fn read(columns: &mut Columns<'_>) -> Result<Self> {
        let (at, delay_ms): (Option<Timestamp>, Option<u64>) = (columns.next()?, columns.next()?);
        let both = at.zip(delay_ms);
        Ok(both.map(|(at, delay_ms)| Acknowledgement { at, delay_ms }))
    }

    fn send<'a>(all: &[&'a Self], params: &mut Vec<Param<'a>>) {
        let at = all.iter().map(|one| one.map(|one| nanos(one.at)));
        let delay = |one: &&Self| one.and_then(|one| i64::try_from(one.delay_ms).ok());
        let delays = all.iter().map(delay);
        params.push(sent::<Option<Timestamp>>(at));
        params.push(sent::<Option<u64>>(delays));
    }
}
