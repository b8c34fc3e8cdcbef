//! Panic containment: every entry into an adapter and every poll of its futures passes through here.

use std::any::Any;
use std::cell::RefCell;
use std::future::Future;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::AdapterError;

thread_local! {
    /// Place of the last panic of this thread, which its payload does not have.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the place of a panic for the error that it becomes. Called by the panic hook.
pub(crate) fn keep_place(place: Option<String>) {
    let _ = PLACE.try_with(|kept| kept.replace(place));
}

/// Runs `f`; a panic becomes an error with the code `adapter_panic` and the panic's message and place.
pub(crate) fn caught<T>(f: impl FnOnce() -> T) -> Result<T, AdapterError> {
    panic::catch_unwind(AssertUnwindSafe(f)).map_err(|payload| {
        let mut message = message_of(&*payload);
        if let Ok(Some(place)) = PLACE.try_with(RefCell::take) {
            message += &format!(" (at {place})");
        }
        discard(payload);
        AdapterError::new("adapter_panic", message)
    })
}

/// A future that cannot panic when polled or dropped. A panic in a poll becomes its error.
pub(crate) struct Guarded<F>(Option<Pin<Box<F>>>);

impl<F: Future> Guarded<F> {
    pub(crate) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future> Future for Guarded<F> {
    type Output = Result<F::Output, AdapterError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(future) = self.0.as_mut() else {
            return Poll::Pending;
        };
        match caught(|| future.as_mut().poll(context)) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panicked) => Poll::Ready(Err(panicked)),
        }
    }
}

impl<F> Drop for Guarded<F> {
    fn drop(&mut self) {
        let future = self.0.take();
        // The panic hook has logged the panic, and a drop cannot report it.
        let _ = caught(|| drop(future));
    }
}

/// The message of a panic.
pub(crate) fn message_of(payload: &(dyn Any + Send)) -> String {
    if let Some(text) = payload.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = payload.downcast_ref::<String>() {
        text.clone()
    } else {
        "a panic without a message".to_owned()
    }
}

/// Drops a panic payload. Its drop can panic too; the payload of that second panic is leaked.
fn discard(payload: Box<dyn Any + Send>) {
    if let Err(second) = panic::catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        mem::forget(second);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Grenade;

    impl Drop for Grenade {
        fn drop(&mut self) {
            panic!("boom in drop");
        }
    }

    #[test]
    fn a_panic_becomes_its_message() {
        let error = caught(|| panic!("boom {}", 7)).unwrap_err();
        assert_eq!(error.code, "adapter_panic");
        assert_eq!(error.message, "boom 7");
    }

    #[test]
    fn a_payload_that_panics_when_dropped_is_survived() {
        let error = caught(|| panic::panic_any(Grenade)).unwrap_err();
        assert_eq!(error.message, "a panic without a message");
    }

    #[tokio::test]
    async fn a_polled_panic_is_the_error_of_the_future() {
        let error = Guarded::new(async { panic!("boom in poll") })
            .await
            .map(|(): ()| ())
            .unwrap_err();
        assert_eq!(error.message, "boom in poll");
    }

    #[test]
    fn dropping_a_future_that_panics_in_drop_is_survived() {
        let grenade = Grenade;
        drop(Guarded::new(async move {
            let _grenade = grenade;
        }));
    }
}
