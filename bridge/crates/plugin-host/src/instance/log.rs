//! Log records of adapters: copied on their threads, written on the bridge's, bounded in bytes and in rate. A breach of
//! the contract is logged the same way, because it is noticed on an adapter's thread.

use forge_adapter_api::foreign_json;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::timeout_at;

use crate::boundary::callbacks::RECORD_BYTES;
use crate::instance::redaction::Redaction;
use forge_base::trace::{TraceContext, TraceId};

/// Limit of records that wait to be written.
const QUEUED_BYTES: usize = 256 * 1024;
/// Records written per second; also the size of a burst.
const RATE: f64 = 200.0;
/// Interval at which dropped records are reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(crate) struct Logs {
    /// Hidden in every record.
    pub secrets: OnceLock<Arc<Redaction>>,
    inner: Mutex<Inner>,
    changed: Notify,
}

#[derive(Default)]
struct Inner {
    lines: VecDeque<Line>,
    bytes: usize,
    /// Records dropped since the last report.
    suppressed: u64,
}

/// One queued record.
#[derive(Debug)]
pub(crate) struct Line {
    pub origin: Origin,
    pub text: Box<[u8]>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// Written by the adapter, at this level of `HostV1::log`.
    Adapter { level: i32 },
    /// A breach of the contract, noticed by the bridge.
    Breach,
}

impl Logs {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a record of the adapter. Never waits.
    pub(crate) fn push(&self, level: i32, record: &[u8]) {
        self.queue(Origin::Adapter { level }, record);
    }

    /// Queues a breach of the contract by the adapter.
    pub(crate) fn breach(&self, message: &str) {
        self.queue(Origin::Breach, message.as_bytes());
    }

    fn queue(&self, origin: Origin, text: &[u8]) {
        // A secret that the cut would part is hidden whole.
        let hidden = self.secrets.get().and_then(|secrets| {
            secrets.in_text(&text[..text.len().min(RECORD_BYTES + secrets.longest)])
        });
        let text = hidden.as_deref().unwrap_or(text);
        let text = &text[..text.len().min(RECORD_BYTES)];
        let mut inner = self.lock();
        if inner.bytes + text.len() > QUEUED_BYTES {
            inner.suppressed += 1;
        } else {
            inner.bytes += text.len() + size_of::<Line>();
            inner.lines.push_back(Line {
                origin,
                text: text.into(),
            });
        }
        drop(inner);
        self.changed.notify_one();
    }

    /// Writes records as they come, until dropped. For one task.
    pub(crate) async fn write(&self, provider: &str) {
        let mut rate = Rate::starting(Instant::now());
        loop {
            let changed = self.changed.notified();
            if self.lock().suppressed == 0 {
                changed.await;
            } else {
                // Returns at the latest when the report is due.
                let _ = timeout_at(rate.report_at.into(), changed).await;
            }
            self.flush(provider, &mut rate);
        }
    }

    /// The next record, for a reader that passes it on. For one reader.
    pub(crate) async fn next(&self) -> Line {
        loop {
            if let Some(line) = self.pop() {
                return line;
            }
            self.changed.notified().await;
        }
    }

    /// Takes the next record that is not yet written.
    pub(crate) fn pop(&self) -> Option<Line> {
        let mut inner = self.lock();
        let line = inner.lines.pop_front()?;
        inner.bytes -= line.text.len() + size_of::<Line>();
        Some(line)
    }

    /// Writes the remaining records.
    pub(crate) fn write_rest(&self, provider: &str) {
        self.flush(provider, &mut Rate::starting(Instant::now()));
    }

    fn flush(&self, provider: &str, rate: &mut Rate) {
        while let Some(line) = self.pop() {
            if rate.allows(Instant::now()) {
                line.write(provider);
            } else {
                self.lock().suppressed += 1;
                self.report(provider, rate, Instant::now());
            }
        }
        self.report(provider, rate, Instant::now());
    }

    /// Logs how many records were dropped, unless that was done within the last second. Returns their number.
    fn report(&self, provider: &str, rate: &mut Rate, now: Instant) -> u64 {
        if now < rate.report_at {
            return 0;
        }
        let count = std::mem::take(&mut self.lock().suppressed);
        if count > 0 {
            rate.report_at = now + REPORT_INTERVAL;
            tracing::warn!(
                target: "adapter",
                { adapter.id = provider, count = count },
                "the adapter logs too much: {count} records were dropped"
            );
        }
        count
    }
}

impl Line {
    fn write(&self, provider: &str) {
        let text = String::from_utf8_lossy(&self.text);
        match self.origin {
            Origin::Breach => tracing::warn!(
                adapter.id = provider,
                code = "protocol_violation",
                "adapter {provider} broke the contract: {text}"
            ),
            Origin::Adapter { level } => {
                let (message, fields, of) = read(&text);
                // Lines about a dispatch get the same span as the bridge's.
                let _dispatch = of.map(|of| of.log_span().entered());
                let fields = fields.map(tracing::field::display);
                match level {
                    1 => {
                        tracing::error!(target: "adapter", { adapter.id = provider, fields }, "{message}");
                    }
                    2 => {
                        tracing::warn!(target: "adapter", { adapter.id = provider, fields }, "{message}");
                    }
                    3 => {
                        tracing::info!(target: "adapter", { adapter.id = provider, fields }, "{message}");
                    }
                    4 => {
                        tracing::debug!(target: "adapter", { adapter.id = provider, fields }, "{message}");
                    }
                    _ => {
                        tracing::trace!(target: "adapter", { adapter.id = provider, fields }, "{message}");
                    }
                }
            }
        }
    }
}

/// The dispatch that a record is about, from the fields that each record of an execution has.
#[derive(Debug, PartialEq)]
pub(crate) struct About {
    dispatch: String,
    trace: Option<TraceId>,
}

impl About {
    fn read(object: &serde_json::Map<String, serde_json::Value>) -> Option<Self> {
        let text = |name: &str| object.get(name)?.as_str();
        let (dispatch, _attempt) = text("execution.id")?.split_once('/')?;
        let context = text("traceparent").and_then(TraceContext::parse);
        Some(Self {
            dispatch: dispatch.to_owned(),
            trace: context.map(|context| TraceId(context.trace)),
        })
    }

    fn log_span(&self) -> tracing::Span {
        let trace = self.trace.map(tracing::field::display);
        tracing::error_span!("dispatch", dispatch.id = self.dispatch, trace.id = trace)
    }
}

/// Splits a JSON record into its message, the other fields (`fields` unwrapped, without those that the line shows
/// anyway) and its dispatch. A record that is not a JSON object is a message.
pub(crate) fn read(record: &str) -> (String, Option<String>, Option<About>) {
    let Ok(serde_json::Value::Object(mut object)) = foreign_json::from_str(record) else {
        return (record.to_owned(), None, None);
    };
    let message = match object.remove("message") {
        Some(serde_json::Value::String(message)) => message,
        Some(other) => other.to_string(),
        None => String::new(),
    };
    object.remove("level");
    object.remove("target");
    if let Some(serde_json::Value::Object(fields)) = object.remove("fields") {
        object.extend(fields);
    }
    object.remove("adapter.id");
    let about = About::read(&object);
    if about.is_some() {
        object.remove("traceparent");
    }
    let rest = (!object.is_empty()).then(|| serde_json::Value::Object(object).to_string());
    (message, rest, about)
}

/// A token bucket, and the time of the next report of what it held back.
struct Rate {
    tokens: f64,
    at: Instant,
    report_at: Instant,
}

impl Rate {
    fn starting(at: Instant) -> Self {
        Self {
            tokens: RATE,
            at,
            report_at: at,
        }
    }

    fn allows(&mut self, now: Instant) -> bool {
        let elapsed: Duration = now.saturating_duration_since(self.at);
        self.at = now;
        self.tokens = (self.tokens + elapsed.as_secs_f64() * RATE).min(RATE);
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_bounded_in_bytes_and_counted() {
        let logs = Logs::default();
        for _ in 0..10_000 {
            logs.push(3, &[b'x'; 1000]);
        }
        let inner = logs.lock();
        assert!(inner.bytes <= QUEUED_BYTES + RECORD_BYTES);
        assert_eq!(inner.lines.len() as u64 + inner.suppressed, 10_000);
    }

    #[test]
    fn the_rate_is_bounded_and_recovers() {
        let start = Instant::now();
        let mut rate = Rate::starting(start);
        let burst = (0..1000).filter(|_| rate.allows(start)).count();
        assert_eq!(burst, 200);
        assert!(rate.allows(start + Duration::from_secs(1)));
    }

    #[test]
    fn dropped_records_are_reported_once_a_second_and_all_of_them() {
        let start = Instant::now();
        let logs = Logs::default();
        let mut rate = Rate::starting(start);
        let mut reported = Vec::new();
        for tenth in 0..30 {
            logs.lock().suppressed += 7;
            let now = start + Duration::from_millis(100 * tenth);
            reported.push(logs.report("test", &mut rate, now));
        }
        reported.retain(|count| *count > 0);
        assert_eq!(reported, [7, 70, 70]);
        let end = start + Duration::from_secs(3);
        assert_eq!(logs.report("test", &mut rate, end), 63);
        assert_eq!(logs.report("test", &mut rate, end + REPORT_INTERVAL), 0);
    }

    #[test]
    fn a_record_is_a_message_and_the_rest() {
        let table = [
            (r#"{"message":"hello","n":1}"#, "hello", Some(r#"{"n":1}"#)),
            (r#"{"message":"hello","level":"info"}"#, "hello", None),
            (
                r#"{"message":"hello","fields":{"a":1,"adapter.id":"x"},"target":"t"}"#,
                "hello",
                Some(r#"{"a":1}"#),
            ),
            ("plain", "plain", None),
            ("[1]", "[1]", None),
        ];
        for (record, message, rest) in table {
            let (found, fields, about) = read(record);
            assert_eq!((found.as_str(), fields.as_deref()), (message, rest));
            assert_eq!(about, None);
        }
    }

    #[test]
    fn a_secret_is_hidden_in_records_also_where_they_are_cut() {
        let logs = Logs::default();
        let settings = serde_json::json!({"api_key": "sk-12345678"});
        let secrets = Redaction::of(&settings).unwrap();
        logs.secrets.set(secrets).unwrap();
        let long = "x".repeat(RECORD_BYTES - 4);
        for (record, expected) in [
            ("key sk-12345678", "key [REDACTED]".to_owned()),
            (&format!("{long}sk-12345678"), format!("{long}[RED")),
        ] {
            logs.push(1, record.as_bytes());
            assert_eq!(*logs.pop().unwrap().text, *expected.as_bytes());
        }
    }

    #[test]
    fn a_record_of_an_execution_names_its_dispatch_and_trace() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let record = serde_json::json!({"message": "hello", "fields": {
            "execution.id": "dsp_1/2", "traceparent": format!("00-{trace}-b7ad6b7169203331-01"),
        }});
        let (_, fields, about) = read(&record.to_string());
        assert_eq!(fields.as_deref(), Some(r#"{"execution.id":"dsp_1/2"}"#));
        let about = about.unwrap();
        let found = about.trace.map(|trace| trace.to_string());
        assert_eq!(
            (about.dispatch.as_str(), found.as_deref()),
            ("dsp_1", Some(trace))
        );
    }
}
