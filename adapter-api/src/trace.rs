//! Context of an execution, available within the execution's own task: its trace, and its session for signals.

use crate::request::{Meta, SignalSession};

tokio::task_local! {
    static META: Meta;
}

/// The `traceparent` (W3C Trace Context) to pass on to services called for this execution: as a request
/// header, or as the variable `TRACEPARENT` of a program. [`child::Child`](crate::child::Child) sets that
/// variable itself. `None` outside an execution, and in tasks spawned by it.
pub fn traceparent() -> Option<String> {
    META.try_with(|meta| meta.traceparent.clone())
        .ok()
        .flatten()
}

/// Session for signals of programs of this execution.
pub(crate) fn signals() -> Option<SignalSession> {
    META.try_with(|meta| meta.signals.clone()).ok().flatten()
}

/// Runs an execution within its context.
pub(crate) async fn within<T>(meta: Meta, run: impl Future<Output = T>) -> T {
    META.scope(meta, run).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_execution_knows_its_trace_and_no_other_does() {
        assert_eq!(traceparent(), None);
        let meta = Meta {
            traceparent: Some("00-1-2-01".to_owned()),
            ..Meta::default()
        };
        let inside = within(meta, async { traceparent() });
        assert_eq!(inside.await.as_deref(), Some("00-1-2-01"));
        assert_eq!(traceparent(), None);
    }
}
