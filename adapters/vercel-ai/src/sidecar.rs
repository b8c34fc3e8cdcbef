//! The `ai` package in a Node process, one per run: the request is one line of JSON, the answer is lines of JSON. Keys
//! are sent over stdin, not in arguments or the environment.

use forge_adapter_api::foreign_json;
use std::path::Path;
use std::time::Duration;

use forge_adapter_api::child::{Child, Program, StartError};
use forge_adapter_api::{AdapterError, Events, Health, Host, Result};
use forge_adapter_openai_client::{Completion, ended_early, read_refusal};
use forge_adapter_transport::json_lines::JsonLines;
use secrecy::ExposeSecret as _;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::parts::{Part, parts};
use crate::providers::split;
use crate::settings::{Provider, Settings};
use crate::wire::{Ask, calls, delta, finish, hear, native, text, usage};

/// Passed to Node as an argument, so that packages resolve from the working directory.
const SCRIPT: &str = include_str!("sidecar.mjs");
/// Key of the package's own messages in `native`.
const NAME: &str = "sidecar";
/// Time for the process to exit after its stdin was closed.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// Time for the process to become ready in a health check.
const PROBE: Duration = Duration::from_millis(1800);

/// Sends the request and reads the answer into `heard` as it arrives.
pub(crate) async fn call(
    host: &Host,
    settings: &Settings,
    execution: &str,
    ask: &Ask<'_>,
    heard: &mut Completion,
    kept: &mut Map<String, Value>,
    events: &Events,
) -> Result<()> {
    let (name, model) = split(settings, ask.model)?;
    let question = question(name, &settings.providers[name], model, ask);
    let question = ask.attachments.fill(&question).await?;
    let mut process = start(host, settings, Some(execution))?;
    process.send_text(&question);
    drop(question);
    let answered = listen(&mut process, settings, heard, kept, events).await;
    // The answer does not depend on the exit; the process is killed after the timeout.
    let stopped = process.stop(END_PATIENCE).await;
    match answered {
        Err(Failure::Told(error)) => Err(error),
        Ok(()) => Ok(()),
        Err(Failure::Lost) => {
            let status =
                stopped.map_or_else(|error| error.to_string(), |status| status.to_string());
            let text = match process.stderr_tail() {
                tail if tail.is_empty() => {
                    format!("the Node process ended before the answer ({status})")
                }
                tail => format!("the Node process ended before the answer ({status}): {tail}"),
            };
            Err(AdapterError::new("adapter_crashed", text).retryable())
        }
    }
}

enum Failure {
    Told(AdapterError),
    /// The process ended early; its exit status and stderr have the reason.
    Lost,
}

impl From<AdapterError> for Failure {
    fn from(error: AdapterError) -> Self {
        Self::Told(error)
    }
}

async fn listen(
    process: &mut JsonLines,
    settings: &Settings,
    heard: &mut Completion,
    kept: &mut Map<String, Value>,
    events: &Events,
) -> std::result::Result<(), Failure> {
    let mut called = 0_u64;
    loop {
        let line = timeout(settings.silence(), process.next())
            .await
            .map_err(|_| {
                let text = format!("the Node process sent nothing for {:?}", settings.silence());
                AdapterError::new("upstream_error", text).retryable()
            })?
            .ok_or(Failure::Lost)?
            .map_err(|long| AdapterError::new("upstream_error", long.to_string()))?;
        let chunk = match line["ev"].as_str().unwrap_or_default() {
            "text-delta" => delta(json!({"content": line["text"]})),
            "reasoning-delta" => delta(json!({"reasoning_content": line["text"]})),
            "tool-call" => {
                let index = called;
                called += 1;
                delta(json!({"tool_calls": [{
                    "index": index, "id": line["id"],
                    "function": {"name": line["name"], "arguments": line["input"].to_string()},
                }]}))
            }
            "step" => {
                let mut chunk = counted(&line["usage"]);
                chunk["model"] = line["model"].clone();
                hear(heard, &chunk, events).await?;
                finish(match line["reason"].as_str().unwrap_or_default() {
                    "length" => "length",
                    "content-filter" => "content_filter",
                    "error" => "error",
                    _ => "stop",
                })
            }
            "missing" => {
                let said = line["error"]["message"].as_str().unwrap_or_default();
                return Err(AdapterError::new("adapter_unavailable", missing(said)).into());
            }
            "error" => return Err(refused(&line["error"]).into()),
            "done" if heard.finish.is_none() => return Err(ended_early().into()),
            "done" => {
                if is_worth_keeping(&line["messages"]) {
                    kept.insert(NAME.to_owned(), line["messages"].clone());
                }
                return Ok(());
            }
            _ => continue,
        };
        hear(heard, &chunk, events).await?;
    }
}

/// Health check: Node starts and finds `ai`.
pub(crate) async fn probe(host: &Host, settings: &Settings) -> Health {
    let mut process = match start(host, settings, None) {
        Ok(process) => process,
        Err(error) => return Health::degraded(error.message),
    };
    let said = timeout(PROBE, process.next()).await;
    match said {
        Ok(Some(Ok(line))) if line["ev"] == "ready" => Health::healthy(),
        Ok(Some(Ok(line))) => Health::degraded(missing(
            line["error"]["message"].as_str().unwrap_or_default(),
        )),
        Ok(Some(Err(_)) | None) => {
            // Stopping also reads the rest of stderr.
            let _ = process.stop(END_PATIENCE).await;
            // For the log only: health is shown to more people, and a program writes secrets there too.
            tracing::warn!(
                "the Node process exited at start: {}",
                process.stderr_tail()
            );
            Health::offline(
                "the Node process exited at start; Node 22 or newer is required: see the log",
            )
        }
        Err(_) => Health::degraded(format!("the Node process was not ready after {PROBE:?}")),
    }
}

fn start(host: &Host, settings: &Settings, execution: Option<&str>) -> Result<JsonLines> {
    let sidecar = &settings.sidecar;
    let Some(packages) = &sidecar.packages else {
        return Err(AdapterError::new(
            "adapter_unavailable",
            missing("no folder is set"),
        ));
    };
    let mut program = Program::new(&sidecar.node);
    program.args = ["--input-type=module", "--eval", SCRIPT]
        .map(Into::into)
        .to_vec();
    program.dir = Some(packages.clone());
    program.env = sidecar.env.clone();
    let child =
        Child::start(host, execution, &program).map_err(|error| not_started(&error, packages))?;
    Ok(JsonLines::new(child))
}

fn missing(why: &str) -> String {
    format!(
        "the `ai` package cannot be used: {why}: install it with `npm install ai` and its providers such as \
         `@ai-sdk/anthropic`, and name the folder that holds node_modules in VERCEL_AI_PACKAGES or \
         adapters.vercel-ai.sidecar.packages"
    )
}

fn not_started(error: &StartError, packages: &Path) -> AdapterError {
    let text = match error {
        StartError::Missing(path) => format!(
            "the program {} does not exist: install Node 22 or newer, or set its path in adapters.vercel-ai.sidecar.node",
            path.display()
        ),
        StartError::Start { path, source } => {
            format!(
                "cannot start {} in {}: {source}",
                path.display(),
                packages.display()
            )
        }
    };
    AdapterError::new("adapter_unavailable", text)
}

fn question(name: &str, provider: &Provider, model: &str, ask: &Ask<'_>) -> Value {
    let mut options = provider.options.clone();
    if let Some(url) = &provider.base_url {
        options.insert("baseURL".to_owned(), url.as_str().into());
    }
    if let Some(key) = &provider.api_key {
        options.insert("apiKey".to_owned(), key.expose_secret().into());
    }
    if !provider.headers.is_empty() {
        options.insert("headers".to_owned(), json!(provider.headers));
    }
    let package = provider
        .package
        .clone()
        .unwrap_or_else(|| format!("@ai-sdk/{name}"));
    let tools = ask.tools.iter().map(|tool| {
        json!({
            "name": ask.names.to_model(&tool.name), "description": tool.description,
            "inputSchema": tool.input_schema,
        })
    });
    json!({
        "provider": {
            "package": package, "factory": provider.factory, "method": provider.method, "options": options,
        },
        "model": model, "system": ask.system, "messages": messages(ask.messages),
        "tools": tools.collect::<Value>(), "schema": ask.schema, "options": ask.options,
        "providerOptions": (!provider.extra.is_empty()).then_some(&provider.extra),
    })
}

/// Converts the conversation to the package's messages.
fn messages(history: &[Value]) -> Value {
    let mut names: Vec<(&str, &str)> = Vec::new();
    let mut all: Vec<Value> = Vec::new();
    for message in history {
        match message["role"].as_str().unwrap_or_default() {
            "assistant" => {
                names.extend(calls(message).map(|(id, name, _)| (id, name)));
                match native(message, NAME) {
                    Some(Value::Array(own)) => all.extend(own.clone()),
                    Some(_) | None => all.push(said(message)),
                }
            }
            "tool" => {
                let id = message["tool_call_id"].as_str().unwrap_or_default();
                let named = names.iter().rfind(|(known, _)| *known == id);
                let output = json!({"type": "text", "value": message["content"]});
                let result = json!({
                    "type": "tool-result", "toolCallId": id, "toolName": named.map(|(_, name)| *name),
                    "output": output,
                });
                all.push(json!({"role": "tool", "content": [result]}));
            }
            _ => {
                let content: Value = parts(message).iter().map(part).collect();
                all.push(json!({"role": "user", "content": content}));
            }
        }
    }
    Value::Array(all)
}

fn part(part: &Part<'_>) -> Value {
    match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image(content) => {
            json!({"type": "file", "mediaType": content.media_type, "data": content.base64})
        }
        Part::File { name, content } => json!({
            "type": "file", "mediaType": content.media_type, "data": content.base64, "filename": name,
        }),
    }
}

fn said(message: &Value) -> Value {
    let text = text(message);
    let text = (!text.is_empty()).then(|| json!({"type": "text", "text": text}));
    let calls = calls(message).map(|(id, name, input)| {
        json!({"type": "tool-call", "toolCallId": id, "toolName": name, "input": input})
    });
    let parts: Vec<Value> = text.into_iter().chain(calls).collect();
    json!({"role": "assistant", "content": parts})
}

/// Returns true for reasoning and provider options, which the common form cannot hold.
fn is_worth_keeping(messages: &Value) -> bool {
    let messages = messages.as_array().into_iter().flatten();
    let mut parts =
        messages.flat_map(|message| message["content"].as_array().into_iter().flatten());
    parts.any(|part| part["type"] == "reasoning" || part.get("providerOptions").is_some())
}

/// Usage of the single step; calls are handed back, so there is only one.
fn counted(told: &Value) -> Value {
    let count = |path: &str| told.pointer(path).and_then(foreign_json::count);
    usage(
        count("/inputTokens"),
        count("/outputTokens"),
        count("/inputTokenDetails/cacheReadTokens"),
        count("/inputTokenDetails/cacheWriteTokens"),
        count("/outputTokenDetails/reasoningTokens"),
    )
}

fn refused(error: &Value) -> AdapterError {
    let message = error["message"].as_str().unwrap_or("no reason given");
    let mut read = read_refusal(&json!({
        "message": message, "status": error["status"], "type": error["name"],
    }));
    if let Some(is_retryable) = error["isRetryable"].as_bool() {
        read.retryable = is_retryable;
    }
    let asked = |name: &str| error[name].as_str()?.parse::<u64>().ok();
    let seconds = asked("retryAfter").map(|seconds| seconds.saturating_mul(1000));
    read.retry_after_ms = asked("retryAfterMs").or(seconds);
    read
}
