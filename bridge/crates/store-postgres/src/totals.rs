//! Numbers of records: counted in the database, and kept up to date by what this node commits. One of several nodes counts
//! for all, because a count of a million queued dispatches takes a while.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use forge_store::record::{Counts, DeliveryState};
use forge_store::{Error, Result};

use crate::rows::statement::{Columns, Statement};
use crate::tables::rows::{DeliveryRow, DispatchRow, phase};

const COUNTS: &str = "SELECT (SELECT pg_catalog.count(*) FROM dispatch WHERE phase = 4),
   (SELECT pg_catalog.count(*) FROM delivery WHERE state = 0), (SELECT pg_catalog.count(*) FROM delivery WHERE state = 2)";
const QUEUES: &str =
    "SELECT provider, pg_catalog.count(*) FROM dispatch WHERE phase < 4 GROUP BY provider";

#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) counts: Counts,
    /// Queued dispatches of each adapter.
    pub(crate) queues: BTreeMap<String, u64>,
}

/// Questions that `read` takes the answers of.
pub(crate) fn statements() -> [Statement<'static>; 2] {
    [COUNTS, QUEUES].map(|sql| Statement::new(sql, Vec::new()))
}

pub(crate) fn read(counts: &[Row], queues: &[Row]) -> Result<Numbers> {
    let mut columns = Columns::of(counts.first().ok_or(Error::NotFound)?);
    let (running, pending, dead) = (columns.next()?, columns.next()?, columns.next()?);
    let queues = queues.iter().map(|row| {
        let mut columns = Columns::of(row);
        Ok((columns.next()?, columns.next()?))
    });
    let queues = queues.collect::<Result<_>>()?;
    Ok(Numbers::new(running, pending, dead, queues))
}

impl Numbers {
    fn new(running: u64, pending: u64, dead: u64, queues: BTreeMap<String, u64>) -> Self {
        let counts = Counts {
            queued: queues.values().sum(),
            running,
            deliveries_pending: pending,
            deliveries_dead: dead,
        };
        Self { counts, queues }
    }

    /// The form in which nodes tell each other.
    pub(crate) fn to_json(&self) -> String {
        let counts = &self.counts;
        let numbers = (
            counts.running,
            counts.deliveries_pending,
            counts.deliveries_dead,
        );
        serde_json::to_string(&(numbers, &self.queues)).unwrap_or_default()
    }

    pub(crate) fn from_json(json: &str) -> Option<Self> {
        let ((running, pending, dead), queues) = serde_json::from_str(json).ok()?;
        Some(Self::new(running, pending, dead, queues))
    }

    pub(crate) fn count_dispatch(&mut self, dispatch: Option<&DispatchRow>, by: i64) {
        let Some(dispatch) = dispatch else { return };
        let add = |count: &mut u64| *count = count.saturating_add_signed(by);
        match dispatch.phase {
            phase::FINISHED => {}
            phase::RUNNING => add(&mut self.counts.running),
            _ => {
                add(&mut self.counts.queued);
                add(self.queues.entry(dispatch.provider.clone()).or_insert(0));
            }
        }
    }

    pub(crate) fn count_delivery(&mut self, delivery: Option<&DeliveryRow>, by: i64) {
        let counts = &mut self.counts;
        let count = match delivery.map(|delivery| delivery.state) {
            Some(DeliveryState::Pending) => &mut counts.deliveries_pending,
            Some(DeliveryState::Dead) => &mut counts.deliveries_dead,
            Some(DeliveryState::Delivered | DeliveryState::Superseded) | None => return,
        };
        *count = count.saturating_add_signed(by);
    }
}
