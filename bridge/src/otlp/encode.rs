//! Conversion of spans to OTLP.

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{
    ResourceSpans, ScopeSpans, Span as Wire, Status, span, status,
};
use prost::Message;

use forge_base::trace::{Kind, Span, Value};

/// Bits of `flags`: "has is-remote information", and "parent is remote".
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;

/// Attributes of the sending process.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) service: String,
    pub(super) instance: String,
    pub(super) resource: Vec<(String, String)>,
}

/// Body of one request.
pub(super) fn request(source: &Source, spans: &[Span]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let own = [
        ("service.name", source.service.as_str()),
        ("service.version", version),
        ("service.instance.id", &source.instance),
    ];
    let further = source
        .resource
        .iter()
        .map(|(n, v)| (n.as_str(), v.as_str()));
    // Attributes set by the operator override the bridge's own.
    let said = |name: &str| source.resource.iter().any(|(other, _)| other == name);
    let own = own.into_iter().filter(|(name, _)| !said(name));
    let attributes = own
        .chain(further)
        .map(|(name, value)| attribute(name, &Value::Text(value.to_owned())));
    let request = ExportTraceServiceRequest {
        resource_spans: vec![ResourceSpans {
            resource: Some(Resource {
                attributes: attributes.collect(),
                ..Resource::default()
            }),
            scope_spans: vec![ScopeSpans {
                scope: Some(InstrumentationScope {
                    name: "forge-bridge".to_owned(),
                    version: version.to_owned(),
                    ..InstrumentationScope::default()
                }),
                spans: spans.iter().map(wire).collect(),
                ..ScopeSpans::default()
            }],
            ..ResourceSpans::default()
        }],
    };
    request.encode_to_vec()
}

fn wire(span: &Span) -> Wire {
    let remote = match span.kind {
        Kind::Server => PARENT_IS_REMOTE,
        Kind::Internal | Kind::Client => 0,
    };
    let kind = match span.kind {
        Kind::Internal => span::SpanKind::Internal,
        Kind::Server => span::SpanKind::Server,
        Kind::Client => span::SpanKind::Client,
    };
    let mut attributes: Vec<_> = span
        .attributes
        .iter()
        .map(|(n, v)| attribute(n, v))
        .collect();
    if let Some(error) = &span.error {
        attributes.push(attribute("error.type", &Value::Text(error.clone())));
    }
    let status = span.error.as_ref().map(|error| Status {
        code: status::StatusCode::Error.into(),
        message: error.clone(),
    });
    Wire {
        trace_id: span.context.trace.to_be_bytes().to_vec(),
        span_id: span.context.span.to_be_bytes().to_vec(),
        parent_span_id: span
            .parent
            .map_or(Vec::new(), |id| id.to_be_bytes().to_vec()),
        // Only sampled spans are queued.
        flags: 1 | PARENT_IS_KNOWN | remote,
        name: span.name.clone().into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end.max(span.start)),
        attributes,
        status,
        ..Wire::default()
    }
}

fn nanos(at: jiff::Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

fn attribute(name: &str, value: &Value) -> KeyValue {
    let value = match value {
        Value::Text(text) => any_value::Value::StringValue(text.clone()),
        Value::Whole(number) => any_value::Value::IntValue(*number),
        Value::Real(number) => any_value::Value::DoubleValue(*number),
    };
    KeyValue {
        key: name.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}
