//! Fail points: named places where the kill matrix ends the process as `kill -9` does, before and after each step
//! that waits for the disk, an adapter, a child or a receiver. Without the feature `crash-points`, which only test
//! builds have, they compile to nothing.

/// Selects a fail point and the pass that kills: `store.commit.after:3`; without a number, the first.
pub const VARIABLE: &str = "BRIDGE_CRASH_POINT";

/// All fail points. A test compares them with the sources.
pub const POINTS: &[&str] = &[
    "approval.approve.before",
    "approval.approve.after",
    "approval.reject.before",
    "approval.reject.after",
    "run.fetch",
    "run.submit",
    "run.take_over",
    "run.settle",
    "run.commit",
    "run.committed",
    "run.push",
    "run.pushed",
    "run.merge",
    "run.merged",
    "run.ended",
    "signal.record.before",
    "signal.record.after",
    "signal.engine.before",
    "signal.engine.after",
    "signal.forward.before",
    "signal.forward.after",
    "store.opened",
    "store.booted",
    "store.batch",
    "store.commit.before",
    "store.commit.after",
    "store.answered",
    "store.checkpoint.before",
    "store.checkpoint.after",
    "database.begun",
    "database.commit.before",
    "database.commit.after",
    "database.answered",
    "lease.renew.before",
    "lease.renew.after",
    "lease.end.before",
    "lease.end.after",
    "transfer.created",
    "transfer.marked",
    "transfer.chunk",
    "transfer.compared",
    "transfer.complete",
    "key.written",
    "reap.before",
    "reap.after",
    "recover.settle.before",
    "recover.settle.after",
    "adapter.load.before",
    "adapter.load.after",
    "adapter.initialize.after",
    "adapter.swap.before",
    "adapter.swap.after",
    "adapter.drained",
    "adapter.ended",
    "adapter.relay.before",
    "adapter.relay.after",
    "copy.before",
    "copy.written",
    "copy.after",
    "copies.cleared",
    "probe.before",
    "probe.answered",
    "probe.after",
    "child.start.before",
    "child.start.after",
    "child.ready",
    "child.ended",
    "child.told",
    "child.end.before",
    "child.end.after",
    "restart.before",
    "restart.connected",
    "restart.after",
    "pause.before",
    "pause.after",
    "resume.before",
    "resume.after",
    "accept.before",
    "accept.after",
    "claim.before",
    "claim.after",
    "execute.call.before",
    "execute.call.after",
    "execute.item",
    "execute.answered",
    "execute.append.before",
    "execute.append.after",
    "output.read.before",
    "output.read.after",
    "tool.open.before",
    "tool.open.after",
    "tool.call.before",
    "tool.call.after",
    "cancel.recorded",
    "cancel.adapter.before",
    "cancel.adapter.after",
    "finish.before",
    "finish.after",
    "requeue.before",
    "requeue.after",
    "promote.before",
    "promote.after",
    "delivery.due",
    "delivery.send.before",
    "delivery.send.after",
    "delivery.settle.before",
    "delivery.settle.after",
    "replay.before",
    "replay.after",
    "import.locked",
    "import.read",
    "file.written",
    "file.synced",
    "file.renamed",
    "file.replaced",
    "sweep.before",
    "sweep.after",
    "reseal.before",
    "reseal.after",
    "stop.draining",
    "stop.drained",
    "stop.closing",
    "stop.closed",
];

#[cfg(not(feature = "crash-points"))]
#[inline(always)]
pub fn point(_name: &str) {}

#[cfg(feature = "crash-points")]
pub fn point(name: &str) {
    armed::pass(name);
}

/// Reads the process environment itself and keeps global state, an exception: it is not part of the released program,
/// and a fail point cannot be given any other state.
#[cfg(feature = "crash-points")]
mod armed {
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    struct Armed {
        point: String,
        left: AtomicU64,
    }

    static ARMED: LazyLock<Option<Armed>> = LazyLock::new(|| {
        let order = std::env::var(super::VARIABLE).ok()?;
        let (point, passing) = order.split_once(':').unwrap_or((&order, "1"));
        assert!(
            super::POINTS.contains(&point),
            "{order}: unknown fail point"
        );
        Some(Armed {
            point: point.to_owned(),
            left: passing.parse::<u64>().expect("a number of passes").into(),
        })
    });

    pub(super) fn pass(name: &str) {
        let Some(armed) = ARMED.as_ref().filter(|armed| armed.point == name) else {
            return;
        };
        if armed.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // The signal is delivered before the call returns.
            let _ = kill_process(getpid(), Signal::KILL);
        }
    }
}
