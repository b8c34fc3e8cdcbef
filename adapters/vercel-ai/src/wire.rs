//! Common base of the providers' protocols. Requests are built from a conversation in the form of Chat Completions, and
//! events of an answer are converted to chunks of that form, so text, calls, limits and ends are read in one place.
//! Data that only one protocol understands is stored with the message.

use forge_adapter_api::foreign_json;
use forge_adapter_api::request::Tool;
use forge_adapter_api::{AdapterError, Events, ModelOptions, Result};
use forge_adapter_openai_client::{
    Client, Completion, Follow, Names, options_of, refusal_in, refused,
};
use forge_adapter_transport::attachments::Attachments;
use forge_adapter_transport::http::{Http, Reply};
use serde_json::{Map, Value, json};

use crate::gemini::Gemini;
use crate::messages::Messages;
use crate::providers::Target;
use crate::responses::Responses;
use crate::settings::Api;

/// Member of a message with protocol-specific data, by protocol name.
const NATIVE: &str = "native";

/// A request, independent of the protocol.
#[derive(Clone, Copy)]
pub(crate) struct Ask<'a> {
    pub(crate) model: &'a str,
    pub(crate) system: Option<&'a str>,
    pub(crate) messages: &'a [Value],
    pub(crate) attachments: &'a Attachments,
    pub(crate) tools: &'a [Tool],
    pub(crate) names: &'a Names,
    pub(crate) schema: Option<&'a Value>,
    /// The name in a tool choice is the model's.
    pub(crate) options: &'a ModelOptions,
}

/// Builds requests and reads answers of one protocol.
pub(crate) trait Protocol: Send {
    /// Key of the protocol's data in a message's `native`.
    const NAME: &'static str;

    fn body(ask: &Ask<'_>) -> Value;

    /// Converts an event of the stream to chunks of Chat Completions.
    fn event(&mut self, event: &Value) -> Result<Vec<Value>>;

    /// Protocol-specific form of the answer for later requests; `None` if the common form loses nothing.
    fn native(self) -> Option<Value>;
}

/// Sends the request and reads the answer into `heard` as it arrives. Data to store with the answer's message is added
/// to `native`.
pub(crate) async fn call(
    http: &Http,
    target: &Target,
    ask: &Ask<'_>,
    heard: &mut Completion,
    native: &mut Map<String, Value>,
    events: &Events,
) -> Result<()> {
    match target.api {
        Api::Messages => {
            follow::<Messages>(http, target, "/messages", ask, heard, native, events).await
        }
        Api::Responses => {
            follow::<Responses>(http, target, "/responses", ask, heard, native, events).await
        }
        Api::Gemini => {
            let path = Gemini::path(ask.model)?;
            follow::<Gemini>(http, target, &path, ask, heard, native, events).await
        }
        Api::Chat => {
            let base = &target.base_url;
            let client = Client::new(http.clone(), base, target.key.as_ref(), &target.headers)?;
            let mut body = chat(ask);
            extend(&mut body, &target.extra);
            let body = ask.attachments.fill(&body).await?;
            client.chat(body.into(), heard, events).await
        }
    }
}

async fn follow<P: Protocol + Default>(
    http: &Http,
    target: &Target,
    path: &str,
    ask: &Ask<'_>,
    heard: &mut Completion,
    native: &mut Map<String, Value>,
    events: &Events,
) -> Result<()> {
    let mut body = P::body(ask);
    extend(&mut body, &target.extra);
    let body = ask.attachments.fill(&body).await?;
    let request = http
        .post_text(&target.url(path), body.into())
        .headers(target.header_map()?);
    let stream = match http.reply(request).await.map_err(refused)? {
        Reply::Events(stream) => stream,
        Reply::Whole(answer) => {
            let error = refusal_in(&answer).map(forge_adapter_openai_client::read_refusal);
            return Err(error.unwrap_or_else(|| {
                AdapterError::new("upstream_error", "the server did not answer with a stream")
            }));
        }
    };
    let mut protocol = P::default();
    let mut follow = Follow::new(stream);
    while let Some(event) = follow.next(heard, refused).await? {
        let event: Value = foreign_json::from_str(&event.data).map_err(|error| {
            let text = format!("an event of the stream is not JSON: {error}");
            AdapterError::new("upstream_error", text)
        })?;
        for chunk in protocol.event(&event)? {
            hear(heard, &chunk, events).await?;
        }
    }
    if let Some(own) = protocol.native() {
        native.insert(P::NAME.to_owned(), own);
    }
    Ok(())
}

/// Adds a chunk to `heard` and emits its events.
pub(crate) async fn hear(heard: &mut Completion, chunk: &Value, events: &Events) -> Result<()> {
    for news in heard.chunk(chunk)? {
        events.send(news.into()).await;
    }
    Ok(())
}

/// Body of a Chat Completions request.
fn chat(ask: &Ask<'_>) -> Value {
    let system = ask
        .system
        .map(|text| json!({"role": system_role(ask.model), "content": text}));
    let messages = ask.messages.iter().map(plain);
    let messages: Vec<Value> = system.into_iter().chain(messages).collect();
    let mut body = json!({
        "model": ask.model, "messages": messages, "stream": true, "stream_options": {"include_usage": true},
    });
    let tools = forge_adapter_openai_client::offered(ask.tools, ask.names);
    if !tools.is_empty() {
        body["tools"] = tools.into();
        body["tool_choice"] = "auto".into();
    }
    let tokens = match reasons(ask.model) {
        true => "max_completion_tokens",
        false => "max_tokens",
    };
    extend(&mut body, &options_of(ask.options, ask.names, tokens));
    if let Some(schema) = ask.schema {
        let named = json!({"name": "response", "strict": true, "schema": schema});
        body["response_format"] = json!({"type": "json_schema", "json_schema": named});
    }
    body
}

/// Sets the members that have a value.
pub(crate) fn set<const N: usize>(body: &mut Value, members: [(&str, Option<Value>); N]) {
    for (name, value) in members {
        if let Some(value) = value {
            body[name] = value;
        }
    }
}

/// The texts at which the answer ends, if there are any.
pub(crate) fn stop(options: &ModelOptions) -> Option<Value> {
    (!options.stop.is_empty()).then(|| json!(options.stop))
}

/// Returns true for OpenAI's reasoning models, which take other parameters.
pub(crate) fn reasons(model: &str) -> bool {
    let name = model.rsplit('/').next().unwrap_or_default();
    let is_numbered = |rest: &str| rest.starts_with(|c: char| c.is_ascii_digit());
    name.strip_prefix('o').is_some_and(is_numbered)
        || name.starts_with("gpt-5") && !name.starts_with("gpt-5-chat")
}

/// Role of the system prompt for OpenAI's models.
pub(crate) fn system_role(model: &str) -> &'static str {
    match reasons(model) {
        true => "developer",
        false => "system",
    }
}

/// The message without protocol-specific data.
fn plain(message: &Value) -> Value {
    let mut message = message.clone();
    if let Some(members) = message.as_object_mut() {
        members.remove(NATIVE);
    }
    message
}

/// The message with protocol-specific data.
pub(crate) fn with_native(mut message: Value, native: Map<String, Value>) -> Value {
    if !native.is_empty() {
        message[NATIVE] = native.into();
    }
    message
}

/// This protocol's data of a message.
pub(crate) fn native<'a>(message: &'a Value, protocol: &str) -> Option<&'a Value> {
    message.get(NATIVE)?.get(protocol)
}

/// The calls of a message: id, name, arguments.
pub(crate) fn calls(message: &Value) -> impl Iterator<Item = (&str, &str, Value)> {
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    calls.map(|call| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap_or_default();
        (
            call["id"].as_str().unwrap_or_default(),
            function["name"].as_str().unwrap_or_default(),
            foreign_json::from_str(arguments).unwrap_or_else(|_| json!({})),
        )
    })
}

/// The text of a message; empty if it has only white space, which providers refuse in an answer.
pub(crate) fn text(message: &Value) -> &str {
    let text = message["content"].as_str().unwrap_or_default();
    if text.trim().is_empty() { "" } else { text }
}

/// Parts of an answer that its provider accepts again: without empty texts, and not ending with thoughts, which have to
/// be followed by a text or a call.
pub(crate) fn accepted(parts: &[Value], is_thought: fn(&Value) -> bool) -> Vec<Value> {
    let is_empty = |part: &&Value| {
        part.as_object().is_some_and(|members| {
            let is_blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
            members.get("text").is_some_and(is_blank) && !members.contains_key("thoughtSignature")
        })
    };
    let end = parts
        .iter()
        .rposition(|part| !is_thought(part) && !is_empty(&part))
        .map_or(0, |last| last + 1);
    parts[..end]
        .iter()
        .filter(|part| !is_empty(part))
        .cloned()
        .collect()
}

/// A chunk with this delta.
#[expect(
    clippy::needless_pass_by_value,
    reason = "the delta becomes the chunk's"
)]
pub(crate) fn delta(delta: Value) -> Value {
    json!({"choices": [{"delta": delta}]})
}

/// A chunk with the end of the answer.
pub(crate) fn finish(reason: &str) -> Value {
    json!({"choices": [{"delta": {}, "finish_reason": reason}]})
}

/// A usage chunk of Chat Completions; unknown counts are `null`.
pub(crate) fn usage(
    input: Option<u64>,
    output: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
    thought: Option<u64>,
) -> Value {
    json!({"usage": {
        "prompt_tokens": input, "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": read, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": thought},
    }})
}

fn extend(body: &mut Value, extra: &Map<String, Value>) {
    let members = body.as_object_mut().expect("a body is an object");
    for (name, value) in extra {
        // Objects set by both the adapter and the operator are merged.
        match (members.get_mut(name), value) {
            (Some(Value::Object(ours)), Value::Object(theirs)) => ours.extend(theirs.clone()),
            (Some(_) | None, value) => {
                members.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::{AdapterEvent, Usage};
    use forge_adapter_openai_client::usage_of;

    use super::*;

    /// Chunks and events of a recorded stream, and the message of the next round.
    fn translated<P: Protocol + Default>(events: &str) -> Value {
        let (mut heard, mut told, mut error) = (Completion::default(), Vec::new(), None);
        let mut protocol = P::default();
        for line in events.lines() {
            let chunks = protocol.event(&serde_json::from_str(line).unwrap());
            for chunk in chunks.unwrap() {
                match heard.chunk(&chunk) {
                    Ok(news) => told.extend(news.into_iter().map(AdapterEvent::from)),
                    Err(failure) => error = Some(failure),
                }
            }
        }
        let names = Names::new(&["find", "look"].map(|name| Tool {
            name: name.to_owned(),
            description: None,
            input_schema: json!({}),
        }));
        let mut result = error.map_or_else(|| heard.result(&names), Into::into);
        result.usage = usage_of(&heard.usage);
        let message =
            forge_adapter_openai_client::assistant(&heard.text, &result.tool_calls, &names);
        let native = protocol
            .native()
            .map(|own| (P::NAME.to_owned(), own))
            .into_iter();
        let ask = Ask {
            model: "m",
            system: None,
            messages: &[with_native(message, native.collect())],
            attachments: &Attachments::default(),
            tools: &[],
            names: &names,
            schema: None,
            options: &ModelOptions::default(),
        };
        json!({"events": told, "result": result, "text": heard.text, "model": heard.model, "again": P::body(&ask)})
    }

    #[test]
    fn recorded_streams_become_events_results_and_what_is_said_again() {
        macro_rules! golden {
            ($protocol:ty: $($name:literal),*) => {
                $(insta::with_settings!({snapshot_path => "../tests/golden", prepend_module_to_snapshot => false}, {
                    let events = include_str!(concat!("../tests/golden/", $name, ".jsonl"));
                    insta::assert_json_snapshot!($name, translated::<$protocol>(events));
                });)*
            };
        }
        golden!(Messages: "messages", "messages_overloaded", "messages_too_long");
        golden!(Responses: "responses", "responses_at_the_end", "responses_by_item", "responses_failed", "responses_filtered");
        golden!(Gemini: "gemini", "gemini_blocked");
    }

    #[test]
    fn nonsense_is_no_panic_and_no_answer() {
        fn hear<P: Protocol + Default>(event: &Value) {
            let mut heard = Completion::default();
            let mut protocol = P::default();
            for chunk in protocol.event(event).unwrap() {
                // An unknown event is neither an error nor an end.
                let _ = heard.chunk(&chunk);
            }
            assert_eq!(heard.finish, None, "{event}");
            assert_eq!(usage_of(&heard.usage), Usage::default(), "{event}");
        }
        for event in [
            json!(null),
            json!([]),
            json!({"type": "message_start", "message": 7}),
            json!({"type": "message_delta", "delta": [], "usage": {"output_tokens": -1}}),
            json!({"type": "content_block_delta", "index": "x", "delta": {"type": "text_delta"}}),
            json!({"type": "content_block_start", "content_block": 3}),
            json!({"type": "response.output_item.added", "item": {"type": "function_call"}}),
            json!({"type": "response.output_item.done"}),
            json!({"candidates": [{"content": {"parts": [null, 3, {"functionCall": []}]}}]}),
            json!({"candidates": {}, "usageMetadata": []}),
        ] {
            hear::<Messages>(&event);
            hear::<Responses>(&event);
            hear::<Gemini>(&event);
        }
    }
}
