//! Short identifiers: cursors of the event log, ids, and a caller's trace context.

use forge_base::event::LogName;
use forge_base::id::{DeliveryId, DispatchId};
use forge_dispatch::trace::Trace;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let log = LogName::from_stored("0123456789ab".to_owned());
    if let Ok(position) = log.position(&text) {
        assert_eq!(log.cursor(position).to_string(), *text, "one spelling each");
        let other = LogName::from_stored("0123456789ac".to_owned());
        assert!(other.position(&text).is_err(), "it is of another history");
    }
    if let Ok(id) = text.parse::<DispatchId>() {
        assert_eq!(id.to_string(), *text);
        assert!(text.parse::<DeliveryId>().is_err());
    }
    let trace = Trace::from_header(Some(&text));
    assert_eq!(trace.trace_id.len(), 32);
    assert_eq!(trace.traceparent.len(), 55);
    assert_eq!(trace.traceparent[3..35], trace.trace_id);
    assert!(
        trace
            .traceparent
            .bytes()
            .all(|b| b.is_ascii_hexdigit() || b == b'-')
    );
    if let Some(parent) = &trace.parent_span_id {
        assert!(text.contains(parent.as_str()) && text.contains(&trace.trace_id));
    }
}
