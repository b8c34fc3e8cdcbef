//! Output queue of one call: events in order and, last, the answer. Bounded in bytes; filled by the adapter's threads,
//! drained by one reader. Knows no pointers and no JSON.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::Notify;

use crate::boundary::answer::Answer;
use crate::boundary::callbacks::Emitted;
use crate::instance::backpressure::Backpressure;

/// Bytes charged for a queued entry beyond its content.
const ENTRY_COST: usize = 64;

/// The bounds of one queue, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Limit of the entries that wait for the reader.
    pub queued: usize,
    /// Limit of one event.
    pub event: usize,
    /// Limit of all events of the call together; `None`: unlimited.
    pub total: Option<usize>,
}

/// A message for the reader.
#[derive(Debug, PartialEq)]
pub(crate) enum CallMessage {
    Event(Box<[u8]>),
    /// Number of events lost at this point.
    Dropped(u64),
    Answer(Answer),
}

pub(crate) struct Queue {
    bounds: Bounds,
    inner: Mutex<Inner>,
    changed: Notify,
}

struct Inner {
    entries: VecDeque<CallMessage>,
    queued: usize,
    total: usize,
    refused: Backpressure,
    phase: Phase,
    /// True once `start` has returned.
    begun: bool,
    unreadable: u64,
}

#[derive(PartialEq, Eq)]
enum Phase {
    Open,
    /// The answer is the last of `entries`.
    Answered,
    /// The reader is gone, or the answer was read.
    Closed,
}

impl Queue {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            inner: Mutex::new(Inner {
                entries: VecDeque::new(),
                queued: 0,
                total: 0,
                refused: Backpressure::default(),
                phase: Phase::Open,
                begun: false,
                unreadable: 0,
            }),
            changed: Notify::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Nothing panics while the lock is held; an adapter's thread must not panic at a poisoned lock either.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues one event, or returns why not. Never waits for the reader. While retries of refused events are expected,
    /// new events are refused too, so that a gap is reported at its place.
    pub(crate) fn emit(&self, event: &[u8], now: Instant) -> Emitted {
        let mut inner = self.lock();
        if inner.phase != Phase::Open {
            return Emitted::Closed;
        }
        if event.len() > self.bounds.event {
            // A retry cannot help, since the event would never fit: count it as lost at once.
            inner.drop_here(1);
            drop(inner);
            self.changed.notify_one();
            return Emitted::Taken;
        }
        let total = inner.total.saturating_add(event.len());
        if self.bounds.total.is_some_and(|limit| total > limit) {
            return Emitted::TooMuch;
        }
        let cost = event.len() + ENTRY_COST;
        let expected = !inner.refused.is_empty();
        let returning = expected && inner.refused.knows(event);
        let fits = inner.queued + cost <= self.bounds.queued;
        if !fits || (expected && !returning && !inner.refused.is_stale(now)) {
            inner.refused.note(event, now);
            return Emitted::Full;
        }
        if returning {
            inner.refused.forget(event);
        } else if expected {
            let lost = inner.refused.take_lost(now);
            inner.drop_here(lost);
        }
        inner.total = total;
        inner.queued += cost;
        inner.entries.push_back(CallMessage::Event(event.into()));
        drop(inner);
        self.changed.notify_one();
        Emitted::Taken
    }

    /// Records events that were lost before they reached this queue.
    pub(crate) fn lose(&self, count: u64) {
        let mut inner = self.lock();
        if inner.phase == Phase::Open {
            inner.drop_here(count);
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Queues the answer; false if there was one already or the reader is gone.
    pub(crate) fn answer(&self, answer: Answer) -> bool {
        let mut inner = self.lock();
        if inner.phase != Phase::Open {
            return false;
        }
        let lost = inner.refused.take_all();
        inner.drop_here(lost);
        inner.entries.push_back(CallMessage::Answer(answer));
        inner.phase = Phase::Answered;
        drop(inner);
        self.changed.notify_one();
        true
    }

    /// Closes the queue for the reader; true if the call had not been answered.
    pub(crate) fn close(&self) -> bool {
        let mut inner = self.lock();
        let open = inner.phase == Phase::Open;
        inner.phase = Phase::Closed;
        inner.entries = VecDeque::new();
        inner.queued = 0;
        open
    }

    pub(crate) fn is_open(&self) -> bool {
        self.lock().phase == Phase::Open
    }

    /// Bytes that wait for the reader.
    pub(crate) fn bytes(&self) -> usize {
        self.lock().queued
    }

    /// Records that `start` has returned for this call.
    pub(crate) fn begin(&self) {
        self.lock().begun = true;
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.lock().begun
    }

    /// Counts an unreadable event; returns the count so far.
    pub(crate) fn unreadable(&self) -> u64 {
        let mut inner = self.lock();
        inner.unreadable += 1;
        inner.unreadable
    }

    /// The next message. Cancel-safe; for one reader. Never resolves after the answer.
    pub(crate) async fn next(&self) -> CallMessage {
        loop {
            if let Some(said) = self.pop() {
                return said;
            }
            self.changed.notified().await;
        }
    }

    fn pop(&self) -> Option<CallMessage> {
        let mut inner = self.lock();
        let said = inner.entries.pop_front()?;
        match &said {
            CallMessage::Event(event) => inner.queued -= event.len() + ENTRY_COST,
            CallMessage::Dropped(_) => inner.queued = inner.queued.saturating_sub(ENTRY_COST),
            CallMessage::Answer(_) => inner.phase = Phase::Closed,
        }
        Some(said)
    }
}

impl Inner {
    /// Records a gap; adjacent gaps are merged, so that they cannot fill the queue.
    fn drop_here(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        if let Some(CallMessage::Dropped(before)) = self.entries.back_mut() {
            // A child names the number itself.
            *before = before.saturating_add(count);
        } else {
            self.queued += ENTRY_COST;
            self.entries.push_back(CallMessage::Dropped(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instance::backpressure::COMES_BACK_WITHIN;

    /// Room for two small events.
    const SMALL: Bounds = Bounds {
        queued: 2 * (ENTRY_COST + 8),
        event: 100,
        total: Some(40_000),
    };

    fn drain(queue: &Queue) -> Vec<CallMessage> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    fn event(text: &str) -> CallMessage {
        CallMessage::Event(text.as_bytes().into())
    }

    #[test]
    fn events_and_the_answer_come_in_order_and_the_answer_once() {
        let (queue, now) = (Queue::new(SMALL), Instant::now());
        assert_eq!(queue.emit(b"a", now), Emitted::Taken);
        assert_eq!(queue.emit(b"b", now), Emitted::Taken);
        assert!(queue.answer(Ok(b"done".to_vec())));
        assert!(!queue.answer(Ok(b"again".to_vec())));
        assert_eq!(queue.emit(b"late", now), Emitted::Closed);
        let said = drain(&queue);
        assert_eq!(
            said,
            [
                event("a"),
                event("b"),
                CallMessage::Answer(Ok(b"done".to_vec()))
            ]
        );
    }

    #[test]
    fn emitters_that_come_back_lose_nothing_side_by_side() {
        let (queue, start) = (Queue::new(SMALL), Instant::now());
        assert_eq!(queue.emit(b"a", start), Emitted::Taken);
        assert_eq!(queue.emit(b"b", start), Emitted::Taken);
        // Two emitters retry for longer than one retry can take.
        for attempt in 0..20 {
            let now = start + attempt * COMES_BACK_WITHIN / 5;
            assert_eq!(queue.emit(b"c", now), Emitted::Full);
            assert_eq!(queue.emit(b"d", now), Emitted::Full);
        }
        let now = start + 4 * COMES_BACK_WITHIN;
        assert_eq!(queue.pop(), Some(event("a")));
        assert_eq!(queue.emit(b"new", now), Emitted::Full, "others come first");
        assert_eq!(queue.emit(b"d", now), Emitted::Taken);
        assert_eq!(queue.pop(), Some(event("b")));
        assert_eq!(queue.emit(b"c", now), Emitted::Taken);
        assert_eq!(queue.pop(), Some(event("d")));
        assert_eq!(queue.emit(b"new", now), Emitted::Taken);
        assert!(queue.answer(Ok(Vec::new())));
        let said = drain(&queue);
        assert_eq!(
            said,
            [
                event("c"),
                event("new"),
                CallMessage::Answer(Ok(Vec::new()))
            ]
        );
    }

    #[test]
    fn an_emitter_that_ignores_full_gets_one_gap_in_place() {
        let (queue, start) = (Queue::new(SMALL), Instant::now());
        for text in [b"a", b"b", b"c", b"d", b"e"] {
            queue.emit(text, start);
        }
        assert_eq!(queue.pop(), Some(event("a")));
        assert_eq!(queue.pop(), Some(event("b")));
        assert_eq!(queue.emit(b"f", start), Emitted::Full, "c can be retried");
        assert_eq!(queue.emit(b"g", start + COMES_BACK_WITHIN), Emitted::Taken);
        assert_eq!(drain(&queue), [CallMessage::Dropped(4), event("g")]);
    }

    #[test]
    fn what_never_came_back_is_told_before_the_answer() {
        let (queue, now) = (Queue::new(SMALL), Instant::now());
        for n in 0..2002 {
            queue.emit(n.to_string().as_bytes(), now);
        }
        assert!(queue.answer(Ok(Vec::new())));
        let said = drain(&queue);
        assert_eq!(
            said[2..],
            [
                CallMessage::Dropped(2000),
                CallMessage::Answer(Ok(Vec::new()))
            ]
        );
    }

    #[test]
    fn an_event_beyond_its_bound_is_a_gap() {
        let (queue, now) = (Queue::new(SMALL), Instant::now());
        assert_eq!(queue.emit(&[b'x'; 101], now), Emitted::Taken);
        assert_eq!(queue.emit(&[b'y'; 101], now), Emitted::Taken);
        assert_eq!(drain(&queue), [CallMessage::Dropped(2)]);
    }

    #[test]
    fn gaps_that_a_child_counts_wrongly_stay_a_number() {
        let queue = Queue::new(SMALL);
        queue.lose(u64::MAX - 1);
        queue.lose(7);
        assert_eq!(drain(&queue), [CallMessage::Dropped(u64::MAX)]);
    }

    #[test]
    fn the_total_of_a_call_is_bounded() {
        let bounds = Bounds {
            total: Some(40),
            ..SMALL
        };
        let (queue, now) = (Queue::new(bounds), Instant::now());
        for _ in 0..5 {
            assert_eq!(queue.emit(b"12345678", now), Emitted::Taken);
            queue.pop();
        }
        assert_eq!(queue.emit(b"1", now), Emitted::TooMuch);
    }

    #[test]
    fn nothing_is_kept_for_a_reader_that_left() {
        let (queue, now) = (Queue::new(SMALL), Instant::now());
        queue.emit(b"a", now);
        assert!(queue.close());
        assert_eq!(queue.emit(b"b", now), Emitted::Closed);
        assert!(!queue.answer(Ok(Vec::new())));
        assert!(!queue.close());
        assert_eq!(drain(&queue), []);
    }
}
