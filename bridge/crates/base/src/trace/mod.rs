//! Spans on their way to export. Ids of spans that are passed to others derive from the dispatch's own span, so that
//! they are the same after a restart. Recording a span never waits: spans that find no room are dropped and counted.
//! `otlp` sends them.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::digest::hex_digits;
use crate::metrics::Counter;

/// Longest text in a span; longer ones are cut.
const TEXT_BYTES: usize = 256;
/// Estimated memory of a span without its texts.
const SPAN_BYTES: usize = 256;
const SAMPLED: u8 = 1;
/// Low bits of a trace id that are random according to W3C Trace Context.
const RANDOM_BITS: u32 = 56;

/// Position in a trace: W3C Trace Context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    flags: u8,
}

/// Stage of a dispatch whose span id is passed to an adapter or a receiver.
#[derive(Clone, Copy, Debug)]
pub enum Stage {
    /// Execution, by number of the attempt.
    Execute(u32),
    /// Delivery attempt, by the low half of the delivery's id and the number of the attempt.
    Deliver(u64, u32),
}

impl TraceContext {
    /// Parses a `traceparent` header; `None` if it is malformed.
    pub fn parse(header: &str) -> Option<Self> {
        let hex = |text: &str, len: usize| {
            text.len() == len && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut parts = header.trim().split('-');
        let (version, trace, span, flags) =
            (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        // Version 00 has four parts; later versions can have more.
        let complete = version != "00" || parts.next().is_none();
        let well_formed = hex(version, 2)
            && version != "ff"
            && hex(trace, 32)
            && hex(span, 16)
            && hex(flags, 2)
            && complete;
        if !well_formed {
            return None;
        }
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (high, low) = (number(&trace[..16])?, number(&trace[16..])?);
        let context = Self {
            trace: u128::from(high) << 64 | u128::from(low),
            span: number(span)?,
            flags: u8::from_str_radix(flags, 16).ok()?,
        };
        (context.trace != 0 && context.span != 0).then_some(context)
    }

    /// New trace with the sampled flag set.
    pub fn start() -> Self {
        Self {
            trace: rand::random::<u128>().max(1),
            span: random_id(),
            flags: SAMPLED,
        }
    }

    /// Another span of the same trace.
    #[must_use]
    pub fn with_span(self, span: u64) -> Self {
        Self { span, ..self }
    }

    /// Span of a stage, derived from the dispatch's own span `self`.
    #[must_use]
    pub fn stage(self, stage: Stage) -> Self {
        let salt = match stage {
            Stage::Execute(attempt) => u64::from(attempt),
            Stage::Deliver(delivery, attempt) => mix(delivery ^ u64::from(attempt)),
        };
        self.with_span(mix(self.span ^ mix(salt)).max(1))
    }

    /// Same position without the sampled flag.
    #[must_use]
    pub fn unsampled(self) -> Self {
        Self {
            flags: self.flags & !SAMPLED,
            ..self
        }
    }

    /// True if the sampled flag is set.
    pub fn is_sampled(self) -> bool {
        self.flags & SAMPLED != 0
    }
}

/// Trace id as written on the wire and in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// Format of the `traceparent` header.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Several are written for each dispatch, and `write!` costs a thousand instructions each.
        let mut text = *b"00-................................-................-..";
        for (place, bytes) in [
            (3, &self.trace.to_be_bytes()[..]),
            (36, &self.span.to_be_bytes()),
            (53, &[self.flags]),
        ] {
            let digits = text[place..].iter_mut().zip(hex_digits(bytes));
            digits.for_each(|(to, digit)| *to = digit);
        }
        f.write_str(std::str::from_utf8(&text).expect("digits and dashes"))
    }
}

/// Id for a span that is passed to no other process.
pub fn random_id() -> u64 {
    rand::random::<u64>().max(1)
}

/// Mixing function of splitmix64: each input bit changes about half of the output bits.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Span kind of OpenTelemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal,
    /// Handling of a request from another process.
    Server,
    /// Request to another process.
    Client,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(String),
    Whole(i64),
    Real(f64),
}

/// Span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub context: TraceContext,
    pub parent: Option<u64>,
    pub name: Cow<'static, str>,
    pub kind: Kind,
    pub start: Timestamp,
    pub end: Timestamp,
    pub attributes: Vec<(&'static str, Value)>,
    /// Error code; never a text, which could contain output of the run.
    pub error: Option<String>,
}

impl Span {
    pub fn new(
        context: TraceContext,
        parent: Option<u64>,
        name: impl Into<Cow<'static, str>>,
        start: Timestamp,
        end: Timestamp,
    ) -> Self {
        Self {
            context,
            parent,
            name: name.into(),
            kind: Kind::Internal,
            start,
            end,
            attributes: Vec::new(),
            error: None,
        }
    }

    #[must_use]
    pub fn kind(mut self, kind: Kind) -> Self {
        self.kind = kind;
        self
    }

    #[must_use]
    pub fn text(mut self, name: &'static str, text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        let text = text[..text.floor_char_boundary(TEXT_BYTES)].to_owned();
        self.attributes.push((name, Value::Text(text)));
        self
    }

    #[must_use]
    pub fn maybe_text(self, name: &'static str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.text(name, text),
            None => self,
        }
    }

    #[must_use]
    pub fn whole(mut self, name: &'static str, number: Option<u64>) -> Self {
        let number = number.map(|number| i64::try_from(number).unwrap_or(i64::MAX));
        self.attributes
            .extend(number.map(|number| (name, Value::Whole(number))));
        self
    }

    #[must_use]
    pub fn real(mut self, name: &'static str, number: Option<f64>) -> Self {
        self.attributes
            .extend(number.map(|number| (name, Value::Real(number))));
        self
    }

    #[must_use]
    pub fn failed(mut self, code: Option<&str>) -> Self {
        self.error = code.map(|code| code[..code.floor_char_boundary(TEXT_BYTES)].to_owned());
        self
    }

    /// Estimated memory in bytes.
    fn size(&self) -> usize {
        let text = |value: &Value| match value {
            Value::Text(text) => text.len(),
            Value::Whole(_) | Value::Real(_) => 0,
        };
        let texts: usize = self
            .attributes
            .iter()
            .map(|(_, value)| 40 + text(value))
            .sum();
        SPAN_BYTES + texts + self.name.len() + self.error.as_ref().map_or(0, String::len)
    }
}

/// Handle for recording spans. Cheap to clone; the default discards them.
#[derive(Clone, Debug, Default)]
pub struct Spans(Option<Arc<SpanQueue>>);

#[derive(Debug)]
struct SpanQueue {
    sender: UnboundedSender<Span>,
    load: Arc<SpanCounts>,
    most_bytes: usize,
    /// A trace that begins here is recorded if the random bits of its id are below this.
    threshold: u64,
}

/// Size of the queue, and counts of spans that left it.
#[derive(Debug, Default)]
pub struct SpanCounts {
    bytes: AtomicUsize,
    pub sent: Counter,
    /// Spans that found no room in the queue.
    pub dropped: Counter,
    /// Spans that could not be sent.
    pub failed: Counter,
}

impl SpanCounts {
    /// Size of the queued spans.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Receiving end of `Spans`.
#[derive(Debug)]
pub struct QueuedSpans {
    receiver: UnboundedReceiver<Span>,
    pub load: Arc<SpanCounts>,
}

impl Spans {
    /// Queue of at most `most_bytes`. `share`, from 0 to 1, is the part of the traces that begin here to record.
    pub fn bounded(most_bytes: usize, share: f64) -> (Self, QueuedSpans) {
        let (sender, receiver) = unbounded_channel();
        let load = Arc::new(SpanCounts::default());
        let waiting = QueuedSpans {
            receiver,
            load: Arc::clone(&load),
        };
        let way = SpanQueue {
            sender,
            load,
            most_bytes,
            threshold: (share * (1_u64 << RANDOM_BITS) as f64) as u64,
        };
        (Self(Some(Arc::new(way))), waiting)
    }

    /// Unsampled form of a new trace that is not to be recorded; otherwise `None`. The decision depends on the trace
    /// id alone, so that other processes which sample by it decide alike. `None` also if no spans are exported here:
    /// other processes can still record the trace.
    pub fn unsampled(&self, begun: impl FnOnce() -> Option<TraceContext>) -> Option<TraceContext> {
        let way = self.0.as_ref()?;
        let begun = begun()?;
        let random = begun.trace as u64 & ((1 << RANDOM_BITS) - 1);
        (random >= way.threshold).then(|| begun.unsampled())
    }

    /// Returns the context if its spans are to be recorded; call this before building a span. `context` is evaluated
    /// only if spans are exported.
    pub fn wanted(&self, context: impl FnOnce() -> Option<TraceContext>) -> Option<TraceContext> {
        self.0.as_ref()?;
        context().filter(|context| context.is_sampled())
    }

    /// Queues a span without waiting; drops and counts it if the queue is full.
    pub fn put(&self, span: Span) {
        let Some(way) = &self.0 else {
            return;
        };
        let size = span.size();
        let before = way.load.bytes.fetch_add(size, Ordering::Relaxed);
        // Sending fails only at shutdown, when the receiver is gone.
        if before + size > way.most_bytes || way.sender.send(span).is_err() {
            way.load.bytes.fetch_sub(size, Ordering::Relaxed);
            way.load.dropped.inc();
        }
    }

    /// `None` if spans are not exported.
    pub fn load(&self) -> Option<&SpanCounts> {
        self.0.as_ref().map(|way| &*way.load)
    }
}

impl QueuedSpans {
    /// Waits for a span, then takes up to `most` of those queued. Returns 0 if all senders are gone. Cancel-safe.
    pub async fn take(&mut self, into: &mut Vec<Span>, most: usize) -> usize {
        let begin = into.len();
        let taken = self.receiver.recv_many(into, most).await;
        let bytes: usize = into[begin..].iter().map(Span::size).sum();
        self.load.bytes.fetch_sub(bytes, Ordering::Relaxed);
        taken
    }

    /// Takes the spans queued now, until `into` holds `most`.
    pub fn take_rest(&mut self, into: &mut Vec<Span>, most: usize) {
        while into.len() < most
            && let Ok(span) = self.receiver.try_recv()
        {
            self.load.bytes.fetch_sub(span.size(), Ordering::Relaxed);
            into.push(span);
        }
    }
}

#[cfg(test)]
mod tests;
