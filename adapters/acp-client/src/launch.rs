//! Inputs of an agent's start: its command line, the MCP servers of its session, and its prompt.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use forge_adapter_api::child::Program;
use forge_adapter_api::folder::TempFolder;
use forge_adapter_api::{ExecutionRequest, OutputStrategy};
use forge_adapter_transport::caller_tools;
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::config::Settings;
use crate::preset::Preset;

/// Prefix of the prompt on an attempt that resumes an interrupted one.
const RESUME_PROMPT: &str =
    "You were interrupted in the middle of your work. Go on where you stopped. The task was:\n\n";

/// Command of the agent, without a working directory. `options` precede the configured arguments; `folder` is the run's
/// own directory and outlives the process.
pub(crate) fn program(
    settings: &Settings,
    options: &[String],
    path: &Path,
    folder: &TempFolder,
) -> io::Result<Program> {
    let mut program = Program::new(path);
    let args = options.iter().chain(&settings.table.args);
    program.args = args.map(Into::into).collect();
    program.folder = Some(folder.clone());
    // Kept for error texts.
    program.stderr_bytes = 2 << 10;
    // Temporary files of the agent are removed with the run's directory.
    let temporary = folder.subfolder("tmp")?;
    program
        .env
        .insert("TMPDIR".to_owned(), temporary.display().to_string());
    program.env.extend(settings.env.clone());
    Ok(program)
}

/// Converts the MCP servers that the dispatch names to the protocol's form. `Err` names a server that the agent cannot
/// reach.
pub(crate) fn servers(
    servers: &BTreeMap<String, Value>,
    agent: &Agent,
) -> Result<Vec<Value>, String> {
    servers
        .iter()
        .map(|(name, server)| {
            let transport = server["type"].as_str();
            let pairs = |member: &str| -> Vec<Value> {
                let members = server[member].as_object().into_iter().flatten();
                members
                    .map(|(name, value)| json!({"name": name, "value": value}))
                    .collect()
            };
            let can = match (transport, server.get("command")) {
                (Some("stdio"), _) | (None, Some(_)) => {
                    let args = server.get("args").cloned().unwrap_or_else(|| json!([]));
                    return Ok(json!({
                        "name": name, "command": server["command"], "args": args, "env": pairs("env"),
                    }));
                }
                (Some("sse"), _) => agent.takes_sse_servers,
                (Some(_) | None, _) => agent.takes_http_servers,
            };
            if !can {
                return Err(format!(
                    "the agent does not support MCP servers over HTTP, such as {name}"
                ));
            }
            Ok(json!({
                "type": transport.unwrap_or("http"), "name": name, "url": server["url"], "headers": pairs("headers"),
            }))
        })
        .collect()
}

/// Origin of the session.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    New,
    Loaded,
}

/// Content blocks of the prompt. The protocol has no field for instructions, so they precede the first message of a
/// session.
pub(crate) fn prompt(request: &ExecutionRequest, session: Session) -> Vec<Value> {
    let mut texts = Vec::new();
    match (session, &request.system_prompt) {
        (Session::New, Some(instructions)) => texts.push(instructions.clone()),
        (Session::New, None) | (Session::Loaded, _) => {}
    }
    if request.output_strategy == OutputStrategy::File {
        let file = request.output_file.as_deref().unwrap_or("output.md");
        texts.push(format!(
            "Write the final result of your work to the file `{file}` in the working directory."
        ));
    }
    if !request.tool_results.is_empty() {
        texts.push(caller_tools::results(&request.tool_results));
    }
    texts.push(match session {
        Session::Loaded if request.resume => format!("{RESUME_PROMPT}{}", request.message),
        Session::Loaded | Session::New => request.message.clone(),
    });
    let blocks = texts
        .iter()
        .map(|text| json!({"type": "text", "text": text}));
    blocks.collect()
}

/// Error text when no program is configured.
pub(crate) fn not_named(instance: &str) -> String {
    format!(
        "no agent is configured: set adapters.{instance}.program and .args to one that speaks the Agent Client \
         Protocol, such as `hermes` with `acp`"
    )
}

/// Error text when the program does not exist.
pub(crate) fn missing(instance: &str, preset: &Preset, path: &Path) -> String {
    format!(
        "the program {} does not exist: {}, or set its path in adapters.{instance}.program",
        path.display(),
        preset.install
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_get_the_protocols_form() {
        let all = Agent::read(&json!({"protocolVersion": 1, "agentCapabilities": {
            "mcpCapabilities": {"http": true, "sse": true}}}))
        .unwrap();
        let none = Agent::read(&json!({"protocolVersion": 1})).unwrap();
        let stdio = json!({"name": "s", "command": "c", "args": ["-x"], "env": [{"name": "K", "value": "v"}]});
        let http = json!({"type": "http", "name": "s", "url": "u", "headers": [{"name": "A", "value": "b"}]});
        let cases = [
            (
                json!({"command": "c", "args": ["-x"], "env": {"K": "v"}}),
                &none,
                Some(stdio),
            ),
            (json!({"url": "u", "headers": {"A": "b"}}), &all, Some(http)),
            (json!({"url": "u"}), &none, None),
            (json!({"type": "sse", "url": "u"}), &none, None),
        ];
        for (server, agent, wanted) in cases {
            let named = BTreeMap::from([("s".to_owned(), server)]);
            let found = servers(&named, agent).ok().map(|mut list| list.remove(0));
            assert_eq!(found, wanted, "{named:?}");
        }
    }

    #[test]
    fn instructions_begin_a_session_and_are_not_said_again() {
        let request = ExecutionRequest {
            system_prompt: Some("be brief".to_owned()),
            resume: true,
            ..ExecutionRequest::sample("hello")
        };
        let texts = |session| -> Vec<String> {
            let blocks = prompt(&request, session);
            let texts = blocks.iter();
            texts
                .map(|block| block["text"].as_str().unwrap().to_owned())
                .collect()
        };
        assert_eq!(texts(Session::New), ["be brief", "hello"]);
        assert_eq!(texts(Session::Loaded), [format!("{RESUME_PROMPT}hello")]);
    }
}
