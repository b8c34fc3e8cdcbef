//! Forwards the adapter's `tracing` output and panics to the bridge's log. A library has its own copy of
//! `tracing` and of the panic hook, so the bridge sees neither without this.

use std::cell::Cell;
use std::fmt;
use std::panic;
use std::sync::Once;

use serde_json::{Map, Value, json};
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::export::HostLink;
use crate::guard::{self, message_of};

/// Span field with the call number, which the bridge maps to the execution.
pub(crate) const CALL_FIELD: &str = "forge.call";

thread_local! {
    static LINK: Cell<Option<HostLink>> = const { Cell::new(None) };
}

/// Forwards panics and `tracing` output of this thread to `link`. For threads of an instance's runtime.
pub(crate) fn adopt_thread(link: HostLink, dispatch: &tracing::Dispatch) {
    install_panic_hook();
    LINK.set(Some(link));
    // Leaks the guard: the dispatcher stays for the life of the thread.
    std::mem::forget(tracing::dispatcher::set_default(dispatch));
}

/// The subscriber that forwards to `link`, up to `level` (default: `info`).
pub(crate) fn dispatch(link: HostLink, level: Option<&str>) -> tracing::Dispatch {
    let most = level
        .and_then(|level| level.parse().ok())
        .unwrap_or(LevelFilter::INFO);
    tracing::Dispatch::new(tracing_subscriber::registry().with(ToHost { link }.with_filter(most)))
}

/// Logs one line without `tracing`.
pub(crate) fn line(link: HostLink, level: Level, message: &str) {
    send(link, 0, level, "adapter", message, &Map::new());
}

struct ToHost {
    link: HostLink,
}

/// Fields of a span, stored in its extensions.
struct SpanFields(Map<String, Value>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ToHost {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(SpanFields(fields.0));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        if let Some(span) = context.span(id) {
            if let Some(SpanFields(known)) = span.extensions_mut().get_mut() {
                known.extend(fields.0);
            }
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Map::new();
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(SpanFields(known)) = span.extensions().get() {
                for (name, value) in known {
                    // Inner spans come first and take precedence.
                    fields.entry(name.clone()).or_insert_with(|| value.clone());
                }
            }
        }
        let mut own = Fields::default();
        event.record(&mut own);
        fields.extend(own.0);
        let call = fields
            .remove(CALL_FIELD)
            .and_then(|call| call.as_u64())
            .unwrap_or(0);
        let message = match fields.remove("message") {
            Some(Value::String(text)) => text,
            Some(other) => other.to_string(),
            None => String::new(),
        };
        let metadata = event.metadata();
        send(
            self.link,
            call,
            *metadata.level(),
            metadata.target(),
            &message,
            &fields,
        );
    }
}

fn send(
    link: HostLink,
    call: u64,
    level: Level,
    target: &str,
    message: &str,
    fields: &Map<String, Value>,
) {
    let (number, name) = match level {
        Level::ERROR => (1, "error"),
        Level::WARN => (2, "warn"),
        Level::INFO => (3, "info"),
        Level::DEBUG => (4, "debug"),
        Level::TRACE => (5, "trace"),
    };
    let record = json!({"level": name, "target": target, "message": message, "fields": fields});
    link.log(call, number, record.to_string().as_bytes());
}

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
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

/// Installs a hook that logs panics of an instance's threads to the bridge. Other threads keep the previous
/// hook, for example when an adapter's tests run in the same process.
fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            // A thread that is being torn down no longer has a link.
            let Some(link) = LINK.try_with(Cell::get).ok().flatten() else {
                return previous(info);
            };
            let mut fields = Map::new();
            let place = info.location().map(ToString::to_string);
            if let Some(place) = &place {
                fields.insert("location".to_owned(), place.as_str().into());
            }
            guard::keep_place(place);
            let message = format!("the adapter panicked: {}", message_of(info.payload()));
            send(link, 0, Level::ERROR, "panic", &message, &fields);
        }));
    });
}
