//! Log line as one flat JSON object: fields of the enclosing spans, outermost first, then those of the event. Every
//! line of a dispatch thus has `dispatch.id` and `trace.id` at the top level.

use std::fmt;

use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::registry::LookupSpan;

/// Needs the span fields to be formatted as JSON.
pub(super) struct Flat;

impl<S, N> FormatEvent<S, N> for Flat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'w> FormatFields<'w> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        let scope = context.event_scope();
        for span in scope.into_iter().flat_map(|scope| scope.from_root()) {
            let extensions = span.extensions();
            let fields = extensions.get::<FormattedFields<N>>();
            let fields = fields.map_or("", |fields| fields.as_str());
            if let Ok(Value::Object(fields)) = serde_json::from_str(fields) {
                line.0.extend(fields);
            }
        }
        event.record(&mut line);
        let metadata = event.metadata();
        for (name, text) in [
            (
                "timestamp",
                forge_base::time::format(jiff::Timestamp::now()),
            ),
            ("level", metadata.level().to_string()),
            ("target", metadata.target().to_owned()),
        ] {
            line.0.insert(name.to_owned(), Value::String(text));
        }
        writeln!(writer, "{}", Value::Object(line.0))
    }
}

#[derive(Default)]
struct Line(Map<String, Value>);

impl Line {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field, value);
    }
}
