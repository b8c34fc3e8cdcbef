//! Server-sent events, and lines over HTTP: parsed as the WHATWG standard requires, however the bytes are cut.

use std::cell::LazyCell;

use bytes::Bytes;
use forge_adapter_transport::fuzzing;
use forge_adapter_transport::http::{Break, Failure, ServerEvent, ServerEvents};
use tokio::runtime::{Builder, Runtime};

use crate::pieces::cut;

thread_local! {
    static RUNTIME: LazyCell<Runtime> =
        LazyCell::new(|| Builder::new_current_thread().enable_time().build().unwrap());
}

/// End of a stream.
#[derive(Debug, PartialEq)]
enum End {
    Whole,
    InEvent,
    TooLong,
}

pub(crate) fn run(data: &[u8]) {
    let (whole, pieces) = cut(data);
    let all = read(fuzzing::events, &[whole], usize::MAX);
    let cut = read(fuzzing::events, &pieces, usize::MAX);
    let lines = read(fuzzing::lines, &pieces, usize::MAX);
    let text = &String::from_utf8_lossy(whole);
    let expected = expected(text);
    assert_eq!(all, expected, "in one piece");
    assert_eq!(cut, expected, "in {} pieces", pieces.len());
    let found: Vec<&str> = lines.0.iter().map(|line| line.data.as_str()).collect();
    assert_eq!(found, expected_lines(text));
    let limit = 16;
    let (events, _) = read(fuzzing::events, &pieces, limit);
    for event in events {
        assert!(
            event.data.len() + event.name.len() <= limit + "message".len(),
            "{event:?}"
        );
    }
}

fn read(
    reader: fn(Vec<Bytes>, usize) -> ServerEvents,
    pieces: &[&[u8]],
    limit: usize,
) -> (Vec<ServerEvent>, End) {
    let pieces = pieces.iter().map(|piece| Bytes::copy_from_slice(piece));
    let mut stream = reader(pieces.collect(), limit);
    let mut events = Vec::new();
    let next = async {
        loop {
            match stream.next().await {
                Some(Ok(event)) => events.push(event),
                None => return End::Whole,
                Some(Err(Failure::TooLong(_))) => return End::TooLong,
                Some(Err(Failure::Broken(Break::InEvent))) => return End::InEvent,
                Some(Err(other)) => panic!("{other}"),
            }
        }
    };
    let end = RUNTIME.with(|runtime| runtime.block_on(next));
    (events, end)
}

fn expected_lines(text: &str) -> Vec<&str> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines: Vec<&str> = text.split('\n').collect();
    if lines.last().is_some_and(|rest| rest.is_empty()) {
        lines.pop();
    }
    lines
        .into_iter()
        .map(|line| line.strip_suffix('\r').unwrap_or(line))
        .collect()
}

/// Reference implementation of the standard's event stream interpretation, but for events without data, which are
/// skipped.
fn expected(text: &str) -> (Vec<ServerEvent>, End) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut lines: Vec<&str> = text.split('\n').collect();
    let rest = lines.pop().unwrap_or_default();
    let (mut id, mut name, mut data) = (String::new(), String::new(), None::<String>);
    let mut events = Vec::new();
    for line in lines {
        if line.is_empty() {
            let (name, data) = (std::mem::take(&mut name), data.take());
            if let Some(data) = data.filter(|data| !data.is_empty()) {
                let name = if name.is_empty() { "message" } else { &name };
                events.push(ServerEvent {
                    id: id.clone(),
                    name: name.to_owned(),
                    data,
                });
            }
            continue;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut name),
            "data" => match &mut data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => data = Some(value.to_owned()),
            },
            "id" if !value.contains('\0') => value.clone_into(&mut id),
            _ => {}
        }
    }
    let begins_data = !rest.is_empty() && ("data".starts_with(rest) || rest.starts_with("data"));
    let end = match data.is_some() || begins_data {
        true => End::InEvent,
        false => End::Whole,
    };
    (events, end)
}
