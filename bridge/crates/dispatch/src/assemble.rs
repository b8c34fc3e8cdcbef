//! Builds the adapter's request from a dispatch: composes the prompt, resolves MCP server names, shortens the
//! timeout to the deadline. Pure.

use std::collections::BTreeMap;

use forge_adapter_api::request::{Budget, Meta, SignalSession, Workspace};
use forge_adapter_api::{ExecutionRequest, OutputStrategy};
use jiff::Timestamp;
use serde_json::Value;

use forge_base::id::DispatchId;

use super::repair;
use super::request::{DispatchRequest, File, Prompt, Recovery};

/// Input about one attempt from the dispatch record and the configuration.
#[derive(Clone, Copy, Debug)]
pub struct Attempt<'a> {
    pub id: DispatchId,
    /// 1 for the first.
    pub number: u32,
    pub now: Timestamp,
    pub strategy: OutputStrategy,
    /// True if the adapter resumes the caller's `sessionId`.
    pub session_honoured: bool,
    /// Session id recorded by an earlier attempt.
    pub recorded_session: Option<&'a str>,
    pub budget_left: Option<Budget>,
    /// The configured MCP servers.
    pub mcp_servers: &'a BTreeMap<String, Value>,
    /// Setting `mcp.required`.
    pub mcp_required: bool,
    /// Session for signals of programs that the adapter starts.
    pub signals: Option<&'a SignalSession>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("MCP server {0:?} is no longer configured")]
    McpServerGone(String),
}

/// Id of an execution: of the dispatch and the number of its attempt.
pub(super) fn execution_id(id: DispatchId, attempt: u32) -> String {
    format!("{id}/{attempt}")
}

/// Builds the request for this attempt. Fails if a named MCP server is no longer configured.
pub fn assemble(
    dispatch: &DispatchRequest,
    prompt: Prompt,
    attempt: &Attempt<'_>,
) -> Result<ExecutionRequest, Error> {
    let (session_id, resume) = session(dispatch, attempt);
    let structured = attempt.strategy == OutputStrategy::Structured;
    let file = attempt.strategy == OutputStrategy::File;
    let asked = repair::instruction(dispatch, attempt.strategy);
    Ok(ExecutionRequest {
        execution_id: execution_id(attempt.id, attempt.number),
        task_id: dispatch.task_id.clone(),
        agent_id: dispatch.agent_id.clone(),
        attempt: attempt.number,
        message: prompt.message,
        // Added once their contents are there.
        attachments: Vec::new(),
        system_prompt: system_prompt(prompt.system_prompt, &prompt.files, asked),
        model: dispatch.model.clone(),
        options: dispatch.options.clone(),
        tools: prompt.tools,
        tool_results: prompt.tool_results,
        turns: Vec::new(),
        timeout_seconds: dispatch.time_left(attempt.now).as_secs_f64(),
        idle_timeout_seconds: dispatch.idle_timeout.map(|idle| idle.as_secs_f64()),
        output_strategy: attempt.strategy,
        output_schema: dispatch.output_schema.clone().filter(|_| structured),
        output_file: file.then(|| dispatch.output_file().to_owned()),
        session_id,
        resume,
        workspace: dispatch.workspace_dir().map(|dir| Workspace {
            // Lossless: validation refuses a path that is not UTF-8.
            dir: Some(dir.to_string_lossy().into_owned()),
            id: dispatch.workspace_id,
        }),
        mcp_servers: mcp_servers(dispatch, attempt.mcp_servers)?,
        mcp_required: attempt.mcp_required,
        requires: dispatch.requires.clone(),
        budget: attempt.budget_left,
        metadata: dispatch.metadata.clone().map(Value::Object),
        meta: Meta {
            traceparent: Some(dispatch.trace.of_attempt(attempt.number)),
            dispatch_id: Some(attempt.id.to_string()),
            run_id: dispatch.run_id.clone(),
            step_id: dispatch.step_id.clone(),
            signals: attempt.signals.cloned(),
        },
    })
}

/// The caller's prompt unchanged, followed by each file under its path and the instruction of the bridge.
fn system_prompt(
    given: Option<String>,
    files: &[File],
    instruction: Option<String>,
) -> Option<String> {
    let prompt = files.iter().fold(given, |prompt, file| {
        let mut prompt = prompt.unwrap_or_default();
        if !prompt.is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str("# ");
        prompt.push_str(&file.path);
        prompt.push_str("\n\n");
        prompt.push_str(&file.content);
        Some(prompt)
    });
    match (prompt, instruction) {
        (Some(prompt), Some(instruction)) => Some(format!("{prompt}\n\n{instruction}")),
        (prompt, instruction) => prompt.or(instruction),
    }
}

/// Session id to use, and true if it resumes an interrupted attempt.
fn session(dispatch: &DispatchRequest, attempt: &Attempt<'_>) -> (Option<String>, bool) {
    let again = attempt.number > 1 && dispatch.recovery == Recovery::Resume;
    match attempt.recorded_session {
        Some(recorded) if again => (Some(recorded.to_owned()), true),
        Some(_) | None => {
            let given = dispatch.session_id.clone();
            (given.filter(|_| attempt.session_honoured), false)
        }
    }
}

fn mcp_servers(
    dispatch: &DispatchRequest,
    configured: &BTreeMap<String, Value>,
) -> Result<BTreeMap<String, Value>, Error> {
    let named = dispatch.mcp_servers.iter();
    named
        .map(|name| match configured.get(name) {
            Some(server) => Ok((name.clone(), server.clone())),
            None => Err(Error::McpServerGone(name.clone())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::request;
    use crate::request::tests::minimal;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn asked(dispatch: &DispatchRequest, attempt: &Attempt<'_>) -> Result<ExecutionRequest, Error> {
        assemble(dispatch, dispatch.clone().take_prompt(), attempt)
    }

    fn first(servers: &BTreeMap<String, Value>) -> Attempt<'_> {
        Attempt {
            id: DispatchId::new(),
            number: 1,
            now: NOW.parse().unwrap(),
            strategy: OutputStrategy::Stream,
            session_honoured: true,
            recorded_session: None,
            budget_left: None,
            mcp_servers: servers,
            mcp_required: true,
            signals: None,
        }
    }

    fn with_files(prompt: Option<&str>, files: &[(&str, &str)]) -> DispatchRequest {
        let file = |(path, content): &(&str, &str)| request::File {
            path: (*path).to_owned(),
            content: (*content).to_owned(),
        };
        DispatchRequest {
            system_prompt: prompt.map(str::to_owned),
            workspace: Some(request::Workspace {
                dir: None,
                files: files.iter().map(file).collect(),
            }),
            ..minimal()
        }
    }

    #[test]
    fn the_prompt_comes_first_and_files_keep_their_order() {
        for (prompt, files, expected) in [
            (None, &[][..], None),
            (Some("  As it is.\n"), &[], Some("  As it is.\n")),
            (
                Some("You help."),
                &[("b.md", "B\n"), ("a/c.md", "C")],
                Some("You help.\n\n# b.md\n\nB\n\n\n# a/c.md\n\nC"),
            ),
            (None, &[("b.md", "B")], Some("# b.md\n\nB")),
        ] {
            let taken = with_files(prompt, files).take_prompt();
            let prompt = system_prompt(taken.system_prompt, &taken.files, None);
            assert_eq!(prompt.as_deref(), expected);
        }
    }

    #[test]
    fn the_adapter_is_given_the_smaller_bound() {
        let servers = BTreeMap::new();
        let dispatch = DispatchRequest {
            timeout: Duration::from_secs(60),
            deadline: Some("2026-01-01T00:00:20Z".parse().unwrap()),
            ..minimal()
        };
        let request = asked(&dispatch, &first(&servers)).unwrap();
        assert_eq!(request.timeout_seconds, 20.0);
    }

    #[test]
    fn schema_and_file_go_with_their_strategy() {
        let servers = BTreeMap::new();
        let dispatch = DispatchRequest {
            output_schema: Some(json!({"type": "object"})),
            ..minimal()
        };
        for (strategy, schema, file) in [
            (OutputStrategy::Stream, false, None),
            (OutputStrategy::Structured, true, None),
            (OutputStrategy::File, false, Some("output.md")),
        ] {
            let attempt = Attempt {
                strategy,
                ..first(&servers)
            };
            let request = asked(&dispatch, &attempt).unwrap();
            assert_eq!(request.output_schema.is_some(), schema, "{strategy:?}");
            assert_eq!(request.output_file.as_deref(), file, "{strategy:?}");
        }
    }

    #[test]
    fn a_recorded_session_is_resumed_only_when_asked_for() {
        let servers = BTreeMap::new();
        for (recovery, number, recorded, honoured, expected) in [
            (Recovery::Fail, 1, None, true, (Some("given"), false)),
            (Recovery::Fail, 1, None, false, (None, false)),
            (Recovery::Resume, 1, None, true, (Some("given"), false)),
            (Recovery::Resume, 2, Some("rec"), true, (Some("rec"), true)),
            (Recovery::Resume, 2, None, true, (Some("given"), false)),
            (
                Recovery::Retry,
                2,
                Some("rec"),
                true,
                (Some("given"), false),
            ),
        ] {
            let dispatch = DispatchRequest {
                recovery,
                session_id: Some("given".into()),
                ..minimal()
            };
            let attempt = Attempt {
                number,
                recorded_session: recorded,
                session_honoured: honoured,
                ..first(&servers)
            };
            let request = asked(&dispatch, &attempt).unwrap();
            let found = (request.session_id.as_deref(), request.resume);
            assert_eq!(found, expected, "{recovery:?} {number}");
        }
    }

    #[test]
    fn servers_are_given_by_name_and_must_still_be_there() {
        let servers = BTreeMap::from([("files".to_owned(), json!({"command": ["x"]}))]);
        let dispatch = DispatchRequest {
            mcp_servers: vec!["files".into()],
            ..minimal()
        };
        let request = asked(&dispatch, &first(&servers)).unwrap();
        assert_eq!(request.mcp_servers, servers);
        let none = BTreeMap::new();
        let error = asked(&dispatch, &first(&none)).unwrap_err();
        assert_eq!(error, Error::McpServerGone("files".into()));
    }
}
