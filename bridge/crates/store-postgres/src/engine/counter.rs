//! Count of the records: of several nodes one counts for all, every 2 s at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::task::TaskTracker;

use super::Shared;
use crate::batch::{Needs, Rows};
use crate::rows::statement::params;
use crate::totals;

pub(super) struct Counter {
    shared: Arc<Shared>,
    tasks: TaskTracker,
    is_counting: Arc<AtomicBool>,
}

impl Counter {
    pub(super) fn new(shared: Arc<Shared>, tasks: TaskTracker) -> Self {
        Self {
            shared,
            tasks,
            is_counting: Arc::default(),
        }
    }

    /// Counts in a task of its own, between two batches of this node, for all nodes or for this one only.
    pub(super) fn count(&self, is_shared: bool) {
        if self.is_counting.swap(true, Ordering::AcqRel) {
            return;
        }
        let (shared, is_counting) = (Arc::clone(&self.shared), Arc::clone(&self.is_counting));
        self.tasks.spawn(async move {
            let needs = Needs {
                reads: totals::statements().into(),
                is_alone: true,
                ..Needs::default()
            };
            let decide = move |rows: &mut Rows| {
                let [counts, queues] = rows.answers.as_slice() else {
                    return Ok(());
                };
                let numbers = totals::read(counts, queues)?;
                if is_shared {
                    let body = numbers.to_json();
                    rows.execute(
                        "UPDATE counted SET number = number + 1, at = pg_catalog.clock_timestamp(), body = $1
                         WHERE at < pg_catalog.clock_timestamp() - interval '1 s'",
                        params![body],
                    );
                }
                rows.counted = Some(numbers);
                Ok(())
            };
            if let Err(error) = shared.queue.submit(0, needs, decide).await {
                tracing::debug!(%error, "the records were not counted");
            }
            is_counting.store(false, Ordering::Release);
        });
    }
}
