//! Read timeouts of a connection: short within the head of a request, longer between two requests. A client that
//! reuses a connection cannot tell, if it is closed while the next request is sent, whether that request was read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::rt::{self, Timer};
use hyper_util::rt::TokioTimer;
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::socket::ReadActivity;

/// Header timer of one connection. hyper starts it when it begins to wait for a request, and does not distinguish
/// that wait from a slow head.
#[derive(Clone)]
pub(crate) struct KeepAliveTimer(Arc<Inner>);

struct Inner {
    head: Duration,
    idle: Duration,
    /// Connection slots of the listener: while none is free, an idle connection is closed early.
    places: Arc<Semaphore>,
    /// True after the first request.
    asked: AtomicBool,
    heard: ReadActivity,
}

impl KeepAliveTimer {
    pub(crate) fn new(
        head: Duration,
        idle: Duration,
        places: Arc<Semaphore>,
        heard: ReadActivity,
    ) -> Self {
        Self(Arc::new(Inner {
            head,
            idle,
            places,
            asked: AtomicBool::new(false),
            heard,
        }))
    }
}

impl Timer for KeepAliveTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn rt::Sleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn rt::Sleep>> {
        let resting = self.0.asked.swap(true, Ordering::Relaxed);
        self.0.heard.take();
        let end = Instant::now() + self.0.idle;
        let head = deadline.into();
        let first = if resting { end.min(head) } else { head };
        Box::pin(IdleSleep {
            patience: self.clone(),
            resting,
            end,
            sleep: Box::pin(sleep_until(first)),
        })
    }

    fn now(&self) -> std::time::Instant {
        TokioTimer::new().now()
    }
}

/// Completes when a head, or the idle time before it, has taken too long.
struct IdleSleep {
    patience: KeepAliveTimer,
    /// True while the connection is idle between two requests.
    resting: bool,
    end: Instant,
    sleep: Pin<Box<Sleep>>,
}

impl Future for IdleSleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self {
            patience: KeepAliveTimer(patience),
            resting,
            end,
            sleep,
        } = &mut *self;
        loop {
            if *resting && patience.heard.take() {
                *resting = false;
                sleep.as_mut().reset(Instant::now() + patience.head);
            }
            ready!(sleep.as_mut().poll(context));
            let now = Instant::now();
            if !*resting || now >= *end || patience.places.available_permits() == 0 {
                return Poll::Ready(());
            }
            sleep.as_mut().reset((*end).min(now + patience.head));
        }
    }
}

impl rt::Sleep for IdleSleep {}
