//! `forge-bridge dispatches show`: a dispatch on one page.

use std::collections::VecDeque;
use std::io;
use std::process::ExitCode;

use serde_json::Value;

use super::super::client::{Client, Error, Target};
use super::super::screen::{Screen, Tone, text};
use super::super::{Context, block_on, deliveries, tail};
use super::{path, status};

/// Events of a page of the log; the most that the bridge answers.
const PAGE: &str = "1000";
/// Events shown from the start and from the end.
const SHOWN: usize = 30;
/// Lines of the message and of the output that are shown.
const TEXT_LINES: usize = 20;
/// Characters of another member of the request that are shown.
const LONGEST_MEMBER: usize = 200;
/// Members of the request that are shown elsewhere on the page.
const ABOVE: [&str; 10] = [
    "agentId",
    "callbackUrl",
    "message",
    "notBefore",
    "priority",
    "provider",
    "retryOf",
    "runId",
    "sessionId",
    "taskId",
];
/// Types of events whose content is in the result, or is too much for a page.
const PIECES: [&str; 3] = ["assistant.text", "assistant.thinking", "exec.progress"];

pub(super) fn show(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    block_on(async {
        let mut record = client.get(Target::path(&path(id, &[]))).await?;
        for delivery in record["deliveries"].as_array_mut().into_iter().flatten() {
            let id = text(delivery, "/id");
            let path = ["api", "v2", "deliveries", &id];
            *delivery = client.get(Target::path(&path)).await?;
        }
        let id = text(&record, "/dispatchId");
        record["request"] = client.get(Target::path(&path(&id, &["request"]))).await?;
        if context.global.json {
            screen.value(&record)?;
            return Ok(ExitCode::SUCCESS);
        }
        let events = Timeline::read(&client, &id).await?;
        describe(&screen, &record, &events)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// First and last events of a dispatch.
#[derive(Default)]
struct Timeline {
    first: Vec<Value>,
    last: VecDeque<Value>,
    /// Number of events between them.
    omitted: usize,
}

impl Timeline {
    async fn read(client: &Client, id: &str) -> Result<Self, Error> {
        let mut timeline = Self::default();
        let mut after = "0".to_owned();
        loop {
            let query = [("limit", PAGE), ("after", &after), ("until", "delivered")];
            let page = Target {
                path: &path(id, &["events"]),
                query: &query,
            };
            // No content once the last event has been read.
            let mut page = client.get(page).await?;
            let events = match page["events"].take() {
                Value::Array(events) if !events.is_empty() => events,
                _ => return Ok(timeline),
            };
            let is_whole = |event: &Value| !PIECES.iter().any(|kind| event["type"] == *kind);
            events
                .into_iter()
                .filter(is_whole)
                .for_each(|event| timeline.add(event));
            match page["nextCursor"].as_str() {
                Some(next) if next != after => next.clone_into(&mut after),
                Some(_) | None => return Ok(timeline),
            }
        }
    }

    fn add(&mut self, event: Value) {
        if self.first.len() < SHOWN {
            return self.first.push(event);
        }
        if self.last.len() == SHOWN {
            self.last.pop_front();
            self.omitted += 1;
        }
        self.last.push_back(event);
    }
}

fn describe(screen: &Screen, record: &Value, events: &Timeline) -> io::Result<()> {
    for (name, value) in members(record) {
        let shown = match name {
            "status" => screen.paint(tone(record), value),
            _ => value,
        };
        member(screen, name, &shown)?;
    }
    request(screen, &record["request"])?;
    routing(screen, record)?;
    attempts(screen, record)?;
    timeline(screen, events, &text(record, "/dispatchId"))?;
    if record["result"].is_object() {
        result(screen, &record["result"])?;
    }
    let deliveries = record["deliveries"].as_array().into_iter().flatten();
    for delivery in deliveries {
        heading(screen, "Delivery")?;
        deliveries::describe(screen, delivery)?;
    }
    Ok(())
}

fn heading(screen: &Screen, name: &str) -> io::Result<()> {
    screen.line("")?;
    screen.line(screen.paint(Tone::Strong, name))
}

fn member(screen: &Screen, name: &str, value: &str) -> io::Result<()> {
    let name = screen.paint(Tone::Quiet, format_args!("{name:<12}"));
    screen.line(format_args!("{name}{value}"))
}

fn tone(record: &Value) -> Tone {
    match record["outcome"].as_str() {
        Some("ok") => Tone::Good,
        Some(_) => Tone::Bad,
        None => Tone::Name,
    }
}

/// Members at the top, without those that the dispatch does not have.
fn members(record: &Value) -> Vec<(&'static str, String)> {
    let provider = match record["pinned"].as_bool() {
        Some(true) => format!("{}, pinned", text(record, "/provider")),
        Some(false) | None => text(record, "/provider"),
    };
    let mut state = status(record);
    if record["cancelRequested"] == true && record["status"] != "finished" {
        state.push_str(", cancellation requested");
    }
    let mut members = vec![
        ("dispatch", text(record, "/dispatchId")),
        ("task", text(record, "/taskId")),
        ("agent", text(record, "/agentId")),
        ("adapter", provider),
        ("status", state),
        ("waits", text(record, "/waitReason/message")),
        ("given up", text(record, "/waitReason/givenUpAt")),
        ("priority", text(record, "/priority")),
        ("accepted", text(record, "/acceptedAt")),
        ("not before", text(record, "/notBefore")),
        ("started", text(record, "/startedAt")),
        ("finished", text(record, "/finishedAt")),
        ("run", text(record, "/runId")),
        ("session", text(record, "/sessionId")),
        ("retry of", text(record, "/retryOf")),
        ("callback", text(record, "/callbackUrl")),
        ("trace", text(record, "/traceId")),
    ];
    members.retain(|(name, value)| value != "-" && !(*name == "priority" && value == "0"));
    members
}

/// Members of the request besides those at the top, on one line each; its message as text.
fn request(screen: &Screen, request: &Value) -> io::Result<()> {
    heading(screen, "Request")?;
    let members = request.as_object().into_iter().flatten();
    for (name, value) in members.filter(|(name, _)| !ABOVE.contains(&name.as_str())) {
        let value = tail::shortened(&text(value, ""), LONGEST_MEMBER);
        let name = screen.paint(Tone::Quiet, format_args!("{name:<19}"));
        screen.line(format_args!("{name} {}", value.replace('\n', " ")))?;
    }
    lines(screen, &text(request, "/message"))
}

/// First lines of a text, and the number of the others.
fn lines(screen: &Screen, text: &str) -> io::Result<()> {
    for line in text.lines().take(TEXT_LINES) {
        screen.line(line)?;
    }
    let rest = text.lines().skip(TEXT_LINES).count();
    if rest > 0 {
        let note = format!("… {rest} more lines");
        screen.line(screen.paint(Tone::Quiet, note))?;
    }
    Ok(())
}

fn routing(screen: &Screen, record: &Value) -> io::Result<()> {
    let mut rows = vec![["step", "kept", "dropped"].map(str::to_owned).to_vec()];
    for step in record["routing"].as_array().into_iter().flatten() {
        let dropped = step["dropped"].as_array().into_iter().flatten();
        let dropped = dropped.map(|dropped| {
            let name = dropped.get("model").or(dropped.get("provider"));
            let name = name.map_or_else(String::new, |name| text(name, ""));
            format!("{name}: {}", text(dropped, "/reason"))
        });
        let dropped: Vec<_> = dropped.collect();
        rows.push(vec![
            text(step, "/name"),
            text(step, "/kept"),
            dropped.join("; "),
        ]);
    }
    if rows.len() > 1 {
        heading(screen, "Routing")?;
        screen.table(&rows)?;
    }
    Ok(())
}

fn attempts(screen: &Screen, record: &Value) -> io::Result<()> {
    let heading_row = ["attempt", "started", "ended", "repeated because"];
    let mut rows = vec![heading_row.map(str::to_owned).to_vec()];
    for attempt in record["attempts"].as_array().into_iter().flatten() {
        let columns = ["/number", "/startedAt", "/endedAt", "/retriedBecause"];
        rows.push(columns.map(|column| text(attempt, column)).to_vec());
    }
    if rows.len() > 1 {
        heading(screen, "Attempts")?;
        screen.table(&rows)?;
    }
    Ok(())
}

fn timeline(screen: &Screen, events: &Timeline, id: &str) -> io::Result<()> {
    if events.first.is_empty() {
        return Ok(());
    }
    heading(screen, "Events")?;
    for event in &events.first {
        screen.line(tail::line(screen, event))?;
    }
    if events.omitted > 0 {
        let omitted = events.omitted;
        let note = format!("… {omitted} more: forge-bridge tail {id} --after 0");
        screen.line(screen.paint(Tone::Quiet, note))?;
    }
    for event in &events.last {
        screen.line(tail::line(screen, event))?;
    }
    Ok(())
}

fn result(screen: &Screen, result: &Value) -> io::Result<()> {
    heading(screen, "Result")?;
    let tokens = ["/usage/inputTokens", "/usage/outputTokens"].map(|count| text(result, count));
    let [input, output] = &tokens;
    let tokens = match tokens.iter().all(|count| count == "-") {
        true => "-".to_owned(),
        false => format!("{input} in, {output} out"),
    };
    let cost = result["costUsd"].as_f64();
    let cost = cost.map_or("-".to_owned(), |cost| {
        format!("{} USD", tail::rounded(cost))
    });
    let took = match result["durationMs"].as_u64() {
        Some(duration_ms) => format!("{duration_ms} ms"),
        None => "-".to_owned(),
    };
    for (name, value) in [
        ("took", took),
        ("model", text(result, "/model")),
        ("tokens", tokens),
        ("cost", cost),
        ("error", text(result, "/error")),
        ("details", text(result, "/details")),
        ("files", files(result)),
    ] {
        if value != "-" {
            member(screen, name, &value)?;
        }
    }
    if !result["structuredOutput"].is_null() {
        return screen.value(&result["structuredOutput"]);
    }
    lines(screen, result["output"].as_str().unwrap_or_default())
}

fn files(result: &Value) -> String {
    let files = result["outputFiles"].as_array().into_iter().flatten();
    let names: Vec<_> = files.map(|file| text(file, "/name")).collect();
    match names.is_empty() {
        true => "-".to_owned(),
        false => names.join(", "),
    }
}
