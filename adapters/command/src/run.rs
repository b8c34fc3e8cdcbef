//! A run from start to result: starts the program, reads its output, ends it.

use std::io::{self, Read as _};
use std::path::Path;
use std::process::ExitStatus;

use forge_adapter_api::child::{Child, Line, Piece, Program, StartError};
use forge_adapter_api::folder::{Folder, TempFolder};
use forge_adapter_api::foreign_json;
use forge_adapter_api::{
    AdapterError, AdapterEvent, Events, ExecutionRequest, ExecutionResult, Host, OutputStrategy,
    Result, Run, Usage,
};
use forge_adapter_transport::deadline::at;
use forge_adapter_transport::wire::{self, Message};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::argv::Placeholder;
use crate::config::{Output, Settings, Stdin};
use crate::outcome::{self, End};
use crate::transcript::Transcript;

/// Size limit of a usage file; a larger one is ignored.
const USAGE_BYTES: u64 = 1 << 20;
const USAGE_FILE: &str = "usage.json";

pub(crate) async fn execute(
    host: &Host,
    settings: &Settings,
    request: &ExecutionRequest,
    events: &Events,
    run: &Run,
) -> Result<ExecutionResult> {
    let folder = host.temp_folder();
    let folder = folder.map_err(|error| internal("create a folder for the run", &error))?;
    let mut transcript = Transcript::default();
    let session = request
        .session_id
        .clone()
        .unwrap_or_else(|| Uuid::now_v7().to_string());
    if settings.argv.has(Placeholder::NewSessionId)
        && let Some(event) = transcript.session(session.clone())
    {
        events.send(event).await;
    }
    let program = program(settings, request, &session, &folder)?;
    let mut child =
        Child::start(host, Some(&request.execution_id), &program).map_err(not_started)?;
    match settings.stdin() {
        Stdin::Prompt => child.send(&prompt(settings, request)),
        Stdin::Request => {
            let request = serde_json::to_string(request).expect("a request is plain JSON");
            child.send(&request);
        }
        Stdin::Nothing => {}
    }
    child.close_stdin();
    let reading = Reading { settings, events };
    let end = reading
        .until_the_end(&mut child, &mut transcript, run)
        .await;
    if let Some(usage) = read_usage(host, folder.path()) {
        settings.table.usage.read(&usage, &mut transcript);
        if transcript.usage != Usage::default() {
            events
                .send(AdapterEvent::usage(&transcript.usage, transcript.cost_usd))
                .await;
        }
    }
    Ok(outcome::result(settings, request, transcript, end))
}

struct Reading<'a> {
    settings: &'a Settings,
    events: &'a Events,
}

impl Reading<'_> {
    async fn until_the_end(
        &self,
        child: &mut Child,
        transcript: &mut Transcript,
        run: &Run,
    ) -> End {
        let mut deadline: Option<Instant> = None;
        let mut whole = String::new();
        let mut read = 0_usize;
        // Bytes of the current line that were read as pieces.
        let mut given = 0_usize;
        loop {
            let piece = tokio::select! {
                piece = self.next(child) => piece,
                () = run.cancelled(), if deadline.is_none() => {
                    child.terminate();
                    deadline = Some(Instant::now() + self.settings.kill_after());
                    continue;
                }
                () = at(deadline) => break,
            };
            let (line, ends) = match piece {
                None => break,
                Some(Piece::Open(text)) => (text, false),
                Some(Piece::Rest(Line::Text(line))) => (line, true),
                Some(Piece::Rest(Line::TooLong { bytes, start })) => {
                    child.kill();
                    let fresh = start.get(given..).unwrap_or_default();
                    self.keep(fresh, given == 0, transcript).await;
                    return End::TooMuch(format!(
                        "the program wrote a line of {bytes} bytes; the limit is {}",
                        self.settings.table.line_bytes
                    ));
                }
            };
            let limit = self.settings.table.output_bytes;
            if read + line.len() >= limit {
                child.kill();
                let fits = line.floor_char_boundary(limit - read);
                self.keep(&line[..fits], given == 0, transcript).await;
                return End::TooMuch(format!("the program wrote more than {limit} bytes"));
            }
            read += line.len() + usize::from(ends);
            let begins = given == 0;
            given = if ends { 0 } else { given + line.len() };
            match self.settings.table.output {
                Output::Text => self.text(&line, begins, transcript).await,
                Output::Json => {
                    whole.push_str(&line);
                    whole.push('\n');
                }
                Output::JsonLines => self.json(&line, transcript).await,
                Output::Bridge => self.bridge(&line, transcript).await,
            }
        }
        if deadline.is_some() {
            // Waits for the program, so that no process is left when the run ends.
            if timeout(self.settings.kill_after(), child.wait())
                .await
                .is_err()
            {
                child.kill();
            }
            return End::Cancelled;
        }
        let status = child.wait().await;
        if !whole.trim().is_empty() {
            match foreign_json::from_str(&whole) {
                Ok(value) => self.apply(&value, transcript).await,
                Err(error) if status.as_ref().is_ok_and(ExitStatus::success) => {
                    return End::Unreadable(format!("the program's output is not JSON: {error}"));
                }
                // The exit code is more informative.
                Err(_) => transcript.text = whole,
            }
        }
        match status {
            Ok(status) => End::Exited {
                status,
                stderr: child.stderr_tail(),
            },
            Err(error) => End::Unreadable(format!("the program's exit status is unknown: {error}")),
        }
    }

    /// The next output: plain text as it arrives, unless lines of usage are to be found in it; anything else by lines.
    async fn next(&self, child: &mut Child) -> Option<Piece> {
        let table = &self.settings.table;
        if table.output == Output::Text && table.usage_line.is_none() {
            return child.next_piece().await;
        }
        child.next().await.map(Piece::Rest)
    }

    /// Adds text that exceeds a limit to the answer, if that is plain text.
    async fn keep(&self, text: &str, begins: bool, transcript: &mut Transcript) {
        if self.settings.table.output == Output::Text {
            self.text(text, begins, transcript).await;
        }
    }

    /// Adds a line or a part of one; `begins` is false for a further part.
    async fn text(&self, line: &str, begins: bool, transcript: &mut Transcript) {
        if let Some(prefix) = &self.settings.table.usage_line
            && let Some(rest) = line.strip_prefix(prefix.as_str())
            && let Ok(usage) = foreign_json::from_str::<Value>(rest)
        {
            if self.settings.table.usage.read(&usage, transcript) {
                self.events
                    .send(AdapterEvent::usage(&transcript.usage, transcript.cost_usd))
                    .await;
            }
            return;
        }
        // The line end goes before each further line, so that the last one is not part of the answer.
        let is_first = transcript.text.is_empty() && transcript.output.is_none();
        let delta = match begins && !is_first {
            true => format!("\n{line}"),
            false => line.to_owned(),
        };
        // `Some` marks that a first line was read, even an empty one.
        let text = transcript.output.get_or_insert_default();
        text.push_str(&delta);
        if !delta.is_empty() {
            self.events.send(AdapterEvent::text(delta)).await;
        }
    }

    async fn json(&self, line: &str, transcript: &mut Transcript) {
        // Programs print greetings and warnings to stdout.
        if let Ok(value) = foreign_json::from_str(line) {
            self.apply(&value, transcript).await;
        } else if !line.trim().is_empty() {
            tracing::debug!(bytes = line.len(), "a line that is not JSON was skipped");
        }
    }

    async fn bridge(&self, line: &str, transcript: &mut Transcript) {
        let Ok(value) = foreign_json::from_str::<Value>(line) else {
            return;
        };
        match wire::message(&value) {
            Ok(Message::Event(event)) => {
                if event.kind == "assistant.text"
                    && let Some(delta) = event.data.as_ref().and_then(|data| data["delta"].as_str())
                {
                    transcript.text.push_str(delta);
                }
                self.events.send(event).await;
            }
            Ok(Message::Result(result)) => transcript.result = Some(result),
            Err(error) => tracing::warn!("an invalid line of the program was dropped: {error}"),
        }
    }

    async fn apply(&self, value: &Value, transcript: &mut Transcript) {
        for rule in &self.settings.table.rules {
            for event in rule.apply(value, transcript) {
                self.events.send(event).await;
            }
        }
    }
}

fn program(
    settings: &Settings,
    request: &ExecutionRequest,
    session: &str,
    folder: &TempFolder,
) -> Result<Program> {
    let path = settings.table.program.as_ref();
    let path = path.ok_or_else(|| AdapterError::new("adapter_unavailable", crate::NO_PROGRAM))?;
    let workspace = request.open_workspace()?;
    let dir = match &workspace {
        Some(workspace) => workspace.path().to_owned(),
        None => folder
            .subfolder("work")
            .map_err(|error| internal("create a folder for the program", &error))?,
    };
    let args = settings
        .argv
        .fill(|placeholder| value(settings, request, session, &dir, folder, placeholder));
    let args = args.map_err(|error| AdapterError::new("invalid_request", error.to_string()))?;
    let mut program = Program::new(path);
    program.args = args.into_iter().map(Into::into).collect();
    program.dir = Some(dir);
    program.workspace = workspace;
    program.folder = Some(folder.clone());
    program.line_bytes = settings.table.line_bytes;
    program
        .env
        .insert("FORGE_TASK_ID".to_owned(), request.task_id.clone());
    program
        .env
        .insert("FORGE_AGENT_ID".to_owned(), request.agent_id.clone());
    if let Some(traceparent) = &request.meta.traceparent {
        program
            .env
            .insert("TRACEPARENT".to_owned(), traceparent.clone());
    }
    for (name, value) in &settings.env {
        program
            .env
            .insert(name.clone(), value.expose_secret().to_owned());
    }
    Ok(program)
}

fn value(
    settings: &Settings,
    request: &ExecutionRequest,
    session: &str,
    dir: &Path,
    folder: &TempFolder,
    placeholder: Placeholder,
) -> Option<String> {
    match placeholder {
        Placeholder::Prompt => Some(prompt(settings, request)),
        Placeholder::Message => Some(request.message.clone()),
        Placeholder::SystemPrompt => request.system_prompt.clone(),
        Placeholder::Model => request.model.clone(),
        Placeholder::SessionId => request.session_id.clone(),
        Placeholder::NewSessionId => request.session_id.is_none().then(|| session.to_owned()),
        Placeholder::Workspace => Some(dir.display().to_string()),
        Placeholder::OutputFile => request.output_file.clone(),
        Placeholder::OutputSchema => schema(request).map(Value::to_string),
        Placeholder::UsageFile => Some(folder.path().join(USAGE_FILE).display().to_string()),
        Placeholder::TaskId => Some(request.task_id.clone()),
        Placeholder::AgentId => Some(request.agent_id.clone()),
    }
}

/// The message, preceded by the instructions unless these are a separate argument.
fn prompt(settings: &Settings, request: &ExecutionRequest) -> String {
    match &request.system_prompt {
        Some(system) if !settings.argv.has(Placeholder::SystemPrompt) => {
            format!("{system}\n\n{}", request.message)
        }
        Some(_) | None => request.message.clone(),
    }
}

pub(crate) fn schema(request: &ExecutionRequest) -> Option<&Value> {
    match request.output_strategy {
        OutputStrategy::Structured => request.output_schema.as_ref(),
        OutputStrategy::File | OutputStrategy::Stream => None,
    }
}

/// Reads the usage file in the folder of the run, which the program can have replaced by anything.
fn read_usage(host: &Host, folder: &Path) -> Option<Value> {
    // A failed program writes no usage file.
    let folder = Folder::open(folder).map(|folder| host.confine(folder));
    let file = folder.and_then(|folder| folder.open_below(Path::new(USAGE_FILE)));
    let mut usage = Vec::new();
    file.and_then(|file| file.take(USAGE_BYTES + 1).read_to_end(&mut usage))
        .ok()
        .filter(|read| *read as u64 <= USAGE_BYTES)?;
    match foreign_json::from_slice(&usage) {
        Ok(usage) => Some(usage),
        Err(error) => {
            tracing::warn!(error = %error, "the usage file is not JSON");
            None
        }
    }
}

fn not_started(error: StartError) -> AdapterError {
    match error {
        StartError::Missing(path) => {
            AdapterError::new("adapter_unavailable", crate::missing(&path))
        }
        StartError::Start { path, source } => AdapterError::new(
            "adapter_unavailable",
            format!("cannot start {}: {source}", path.display()),
        ),
    }
}

fn internal(what: &str, error: &io::Error) -> AdapterError {
    AdapterError::new("internal", format!("cannot {what}: {error}")).retryable()
}
