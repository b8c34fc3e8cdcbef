//! The trace that an execution belongs to, for whatever the adapter does in the execution's own task.

tokio::task_local! {
    static TRACEPARENT: Option<String>;
}

/// The `traceparent` (W3C Trace Context) to hand on to whoever is called for this execution: a header of
/// a request, the variable `TRACEPARENT` of a program. [`child::Child`](crate::child::Child) hands it on by
/// itself. `None` outside of an execution, and in tasks that it spawned.
pub fn traceparent() -> Option<String> {
    TRACEPARENT.try_with(Clone::clone).ok().flatten()
}

/// Runs an execution in its trace.
pub(crate) async fn within<T>(traceparent: Option<String>, run: impl Future<Output = T>) -> T {
    TRACEPARENT.scope(traceparent, run).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_execution_knows_its_trace_and_nobody_else_does() {
        assert_eq!(traceparent(), None);
        let inside = within(Some("00-1-2-01".to_owned()), async { traceparent() });
        assert_eq!(inside.await.as_deref(), Some("00-1-2-01"));
        assert_eq!(traceparent(), None);
    }
}
