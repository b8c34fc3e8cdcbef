//! Traces and the log lines that name them: the real program, a collector that decodes the exported spans, and a
//! command-line agent that reports the trace context it received.

use std::collections::BTreeMap;
use std::fs;

use forge_base::digest::hex;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use reqwest::Method;
use serde_json::{Value, json};

use super::harness::api::{JsonBody, owed};
use super::harness::port::Reserved;
use super::harness::process::{Home, Process};
use super::harness::{Answer, CallbackSink, until};

pub(crate) const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
pub(crate) const CALLER: &str = "b7ad6b7169203331";

/// Agent that makes one tool call and answers with the trace context it received.
const AGENT: &str = r#"
read -r prompt
echo '{"type":"tool.invoked","data":{"toolCallId":"c-1","name":"read_file","input":{"path":"secret.txt"}}}'
echo '{"type":"tool.completed","data":{"toolCallId":"c-1","name":"read_file","output":"hush","isError":true}}'
case $prompt in slow*) sleep 300;; esac
echo "{\"status\":\"ok\",\"output\":\"$TRACEPARENT\",\"model\":\"m-1\",\"sessionId\":\"s-1\",\"costUsd\":0.25,\"usage\":{\"inputTokens\":3,\"outputTokens\":2}}"
"#;

/// A span decoded from an export request.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) name: String,
    pub(crate) trace: String,
    pub(crate) id: String,
    pub(crate) parent: String,
    pub(crate) error: bool,
    pub(crate) attributes: BTreeMap<String, Value>,
}

fn attribute(pair: KeyValue) -> (String, Value) {
    let value = match pair.value.unwrap().value.unwrap() {
        any_value::Value::StringValue(text) => json!(text),
        any_value::Value::IntValue(number) => json!(number),
        any_value::Value::DoubleValue(number) => json!(number),
        other => panic!("{other:?}"),
    };
    (pair.key, value)
}

impl Told {
    fn read(span: Span) -> Self {
        assert!(
            span.end_time_unix_nano >= span.start_time_unix_nano,
            "{span:?}"
        );
        Self {
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            error: span.status.is_some_and(|status| status.code == 2),
            attributes: span.attributes.into_iter().map(attribute).collect(),
        }
    }
}

/// A collector that keeps the export requests it received.
pub(crate) struct Collector(pub(crate) CallbackSink);

impl Collector {
    pub(crate) async fn start() -> Self {
        Self(CallbackSink::start().await)
    }

    pub(crate) fn spans(&self) -> Vec<Told> {
        let mut spans = Vec::new();
        for request in self.0.received() {
            assert_eq!(request.path, "/v1/traces");
            assert_eq!(request.headers["content-type"], "application/x-protobuf");
            assert_eq!(request.headers["x-key"], "k-1");
            let body = ExportTraceServiceRequest::decode(request.body.as_slice()).unwrap();
            for told in body.resource_spans {
                let resource = told.resource.unwrap().attributes;
                let resource: BTreeMap<_, _> = resource.into_iter().map(attribute).collect();
                assert_eq!(resource["service.name"], "bridge-under-test");
                assert_eq!(resource["deployment.environment.name"], "test");
                for scope in told.scope_spans {
                    spans.extend(scope.spans.into_iter().map(Told::read));
                }
            }
        }
        spans
    }

    /// Waits for the spans of these names in a trace.
    pub(crate) async fn until(&self, trace: &str, names: &[&str]) -> BTreeMap<String, Told> {
        until("the spans", || async {
            let spans = self.spans().into_iter();
            let spans: BTreeMap<_, _> = spans
                .filter(|span| span.trace == trace)
                .map(|span| (span.name.clone(), span))
                .collect();
            names
                .iter()
                .all(|name| spans.contains_key(*name))
                .then_some(spans)
        })
        .await
    }
}

/// A home whose bridge runs the agent and exports to this collector, set by OpenTelemetry's standard variables.
pub(crate) fn home(collector: &str, variables: &[(&str, &str)]) -> Home {
    let mut home = Home::new(variables);
    let dir = home.dir.path().to_owned();
    fs::write(dir.join("agent.sh"), AGENT).unwrap();
    let config = format!(
        "[adapters.command]\nprogram = \"sh\"\nargs = [\"{}\"]\noutput = \"bridge\"\nstdin = \"prompt\"\n",
        dir.join("agent.sh").display()
    );
    fs::write(dir.join("forge.toml"), config).unwrap();
    let settings = [
        ("BRIDGE_ADAPTERS", "command".to_owned()),
        (
            "BRIDGE_CONFIG",
            dir.join("forge.toml").display().to_string(),
        ),
        ("PATH", std::env::var("PATH").unwrap()),
        ("BRIDGE_OTLP_EVERY", "10ms".to_owned()),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.to_owned()),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-key=k-1".to_owned()),
        ("OTEL_SERVICE_NAME", "bridge-under-test".to_owned()),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "deployment.environment.name=test".to_owned(),
        ),
    ];
    for (name, value) in settings {
        home.variables.insert(name.to_owned(), value);
    }
    home
}

/// Sends a dispatch in a caller's trace; returns its id.
async fn send(bridge: &Process, body: &Value, traceparent: &str) -> String {
    let request = bridge.api.request(Method::POST, "/api/v2/dispatch");
    let request = request.header("traceparent", traceparent).json_body(body);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 202);
    let answer: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    answer["dispatchId"].as_str().unwrap().to_owned()
}

pub(crate) fn sampled(trace: &str) -> String {
    format!("00-{trace}-{CALLER}-01")
}

#[tokio::test]
async fn a_dispatch_is_one_trace_from_its_caller_to_its_callback() {
    let (collector, sink) = (Collector::start().await, CallbackSink::start().await);
    let home = home(&collector.0.url(""), &[]);
    let bridge = home.start();
    let id = send(
        &bridge,
        &owed("t", "m-0", &sink.url("/cb?token=hush")),
        &sampled(TRACE),
    )
    .await;
    let callback = sink.until(1).await.remove(0);
    let result: Value = serde_json::from_slice(&callback.body).unwrap();
    let agent = format!("invoke_agent {}", result["agentId"].as_str().unwrap());
    let tool = "execute_tool read_file";
    let stages = ["dispatch", "accept", "queue", &agent, tool, "deliver"];
    let spans = collector.until(TRACE, &stages).await;
    assert_eq!(spans.len(), stages.len(), "{spans:?}");

    let own = spans["dispatch"].id.clone();
    let parents = |name: &str| spans[name].parent.as_str();
    assert_eq!(parents("dispatch"), CALLER);
    for stage in ["accept", "queue", &agent, "deliver"] {
        assert_eq!(parents(stage), own, "{stage}");
        assert_eq!(spans[stage].attributes["forge.dispatch.id"], id, "{stage}");
    }
    assert_eq!(parents(tool), spans[&agent].id);
    // The program received the execution's span, the receiver that of its delivery attempt.
    let told = |id: &str| format!("00-{TRACE}-{id}-01");
    assert_eq!(result["output"], told(&spans[&agent].id));
    assert_eq!(callback.headers["traceparent"], told(&spans["deliver"].id));
    assert_eq!(result["traceId"], TRACE);

    let run = &spans[&agent].attributes;
    for (name, value) in [
        ("gen_ai.operation.name", json!("invoke_agent")),
        ("gen_ai.provider.name", json!("command")),
        ("gen_ai.request.model", json!("m-0")),
        ("gen_ai.response.model", json!("m-1")),
        ("gen_ai.usage.input_tokens", json!(3)),
        ("gen_ai.usage.output_tokens", json!(2)),
        ("forge.cost.usd", json!(0.25)),
        ("forge.attempt", json!(1)),
    ] {
        assert_eq!(run[name], value, "{name}");
    }
    let failed: Vec<_> = stages
        .into_iter()
        .filter(|name| spans[*name].error)
        .collect();
    assert_eq!(failed, [tool]);
    assert_eq!(
        spans["deliver"].attributes["http.response.status_code"],
        200
    );
    // Spans contain neither contents nor paths of tool calls.
    for request in collector.0.received() {
        let text = String::from_utf8_lossy(&request.body);
        assert!(
            !text.contains("hush") && !text.contains("secret.txt"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn what_the_caller_does_not_want_recorded_is_not() {
    let (collector, sink) = (Collector::start().await, CallbackSink::start().await);
    let home = home(&collector.0.url("/v1/traces"), &[]);
    let bridge = home.start();
    let quiet = format!("00-{TRACE}-{CALLER}-00");
    send(&bridge, &owed("quiet", "m", &sink.url("/cb")), &quiet).await;
    let received = sink.until(1).await;
    let header = &received[0].headers["traceparent"];
    assert!(
        header.starts_with(&format!("00-{TRACE}-")) && header.ends_with("-00"),
        "{header}"
    );
    let other = TRACE.replace('0', "1");
    send(
        &bridge,
        &owed("loud", "m", &sink.url("/cb")),
        &sampled(&other),
    )
    .await;
    collector.until(&other, &["dispatch", "deliver"]).await;
    assert!(collector.spans().iter().all(|span| span.trace == other));
}

#[tokio::test]
async fn a_trace_goes_on_after_the_bridge_was_killed() {
    let (collector, sink) = (Collector::start().await, CallbackSink::start().await);
    sink.answer(Answer::status(503));
    let home = home(&collector.0.url(""), &[]);
    let bridge = home.start();
    send(&bridge, &owed("t", "m", &sink.url("/cb")), &sampled(TRACE)).await;
    let mut slow = owed("slow", "m", &sink.url("/slow"));
    slow["message"] = "slow".into();
    let other = TRACE.replace('0', "1");
    let id = send(&bridge, &slow, &sampled(&other)).await;
    bridge.api.running(&id).await;
    sink.until(1).await;
    let own = collector.until(TRACE, &["dispatch"]).await["dispatch"]
        .id
        .clone();
    bridge.kill();

    sink.answer(Answer::status(200));
    let bridge = home.start();
    let delivered = |spans: &[Told]| {
        let mut spans = spans.iter();
        spans.any(|span| span.trace == TRACE && span.name == "deliver" && !span.error)
    };
    let spans = until("the delivery's span", || async {
        let spans = collector.spans();
        delivered(&spans).then_some(spans)
    })
    .await;
    for span in spans
        .iter()
        .filter(|span| span.trace == TRACE && span.name == "deliver")
    {
        assert_eq!(span.parent, own, "{span:?}");
    }
    // The interrupted execution is exported as well, with the span that its program received.
    let spans = collector
        .until(&other, &["dispatch", "invoke_agent agent"])
        .await;
    let run = &spans["invoke_agent agent"];
    assert!(run.error && run.parent == spans["dispatch"].id, "{spans:?}");
    assert_eq!(run.attributes["error.type"], "interrupted");
    drop(bridge);
}

#[tokio::test]
async fn a_collector_that_is_away_costs_nothing_but_spans() {
    let sink = CallbackSink::start().await;
    let closed = Reserved::new();
    let small = [("BRIDGE_OTLP_QUEUE_BYTES", "4096")];
    let home = home(&format!("http://{}", closed.address()), &small);
    let bridge = home.start();
    for number in 0..20 {
        let body = owed(&format!("t-{number}"), "m", &sink.url("/cb"));
        send(&bridge, &body, &sampled(TRACE)).await;
    }
    sink.until(20).await;
    let metrics = bridge
        .api
        .request(Method::GET, "/metrics")
        .send()
        .await
        .unwrap();
    let metrics = metrics.text().await.unwrap();
    let value = |name: &str| {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().parse::<f64>().ok())
            .unwrap()
    };
    assert!(
        value("forge_bridge_trace_spans_total{outcome=\"dropped\"}") > 10.0,
        "{metrics}"
    );
    assert!(value("forge_bridge_buffer_bytes{buffer=\"spans\"}") <= 4096.0);
}

/// Dispatch and trace that a line names.
fn about(line: &Value) -> [Option<&str>; 2] {
    ["dispatch.id", "trace.id"].map(|name| line[name].as_str())
}

#[tokio::test]
async fn every_line_about_a_dispatch_names_it_and_its_trace() {
    let sink = CallbackSink::start().await;
    sink.answer(Answer::status(400));
    for (format, level) in [("json", "debug"), ("json", "warn"), ("text", "debug")] {
        let home = home(
            "",
            &[("BRIDGE_LOG_FORMAT", format), ("BRIDGE_LOG_LEVEL", level)],
        );
        // The test reads the address from this line.
        let level = format!("{level},forge_bridge::app=info");
        let mut home = home;
        home.variables.insert("BRIDGE_LOG_LEVEL".to_owned(), level);
        let bridge = home.start();
        let id = send(&bridge, &owed("t", "m", &sink.url("/cb")), &sampled(TRACE)).await;
        bridge.api.delivery_is(&id, "dead").await;
        until("the line about the dead letter", || async {
            home.log().contains("is a dead letter").then_some(())
        })
        .await;
        drop(bridge);
        let log = home.log();
        let lines: Vec<_> = log
            .lines()
            .filter(|line| {
                line.contains(&id) && !line.contains("\"GET\"") && !line.contains("=GET")
            })
            .collect();
        assert!(!lines.is_empty(), "{log}");
        for line in lines {
            match format {
                "json" => {
                    let line: Value = serde_json::from_str(line).unwrap();
                    assert_eq!(about(&line), [Some(id.as_str()), Some(TRACE)], "{line}");
                }
                _ => assert!(line.contains(TRACE), "{line}"),
            }
        }
    }
}
