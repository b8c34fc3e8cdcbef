//! Trace context of an execution, available within the execution's own task.

tokio::task_local! {
    static TRACEPARENT: Option<String>;
}

/// The `traceparent` (W3C Trace Context) to pass on to services called for this execution: as a request
/// header, or as the variable `TRACEPARENT` of a program. [`child::Child`](crate::child::Child) sets that
/// variable itself. `None` outside an execution, and in tasks spawned by it.
pub fn traceparent() -> Option<String> {
    TRACEPARENT.try_with(Clone::clone).ok().flatten()
}

/// Runs an execution within its trace context.
pub(crate) async fn within<T>(traceparent: Option<String>, run: impl Future<Output = T>) -> T {
    TRACEPARENT.scope(traceparent, run).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_execution_knows_its_trace_and_no_other_does() {
        assert_eq!(traceparent(), None);
        let inside = within(Some("00-1-2-01".to_owned()), async { traceparent() });
        assert_eq!(inside.await.as_deref(), Some("00-1-2-01"));
        assert_eq!(traceparent(), None);
    }
}
