//! Command line of the program for one request. Large or secret values are passed in files of the run's own directory,
//! because arguments are bounded and readable by all users.

use std::io;
use std::path::Path;

use forge_adapter_api::child::Program;
use forge_adapter_api::folder::{Folder, TempFolder};
use forge_adapter_api::{ExecutionRequest, OutputStrategy};
use forge_adapter_transport::caller_tools::{self, CallerTools};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::config::{Settings, SystemPrompt};
use crate::options::{Mode, Options};

/// Events of the program that signals report.
const HOOKS: [&str; 7] = [
    "SessionStart",
    "UserPromptSubmit",
    "PreToolUse",
    "PostToolUse",
    "PreCompact",
    "Stop",
    "SessionEnd",
];
/// Time that the program gives a hook, which itself ends within three seconds.
const HOOK_SECONDS: u64 = 10;

/// Session of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Conversation {
    New(String),
    Resumed(String),
    /// A new session that starts as a copy of this one.
    ForkOf(String),
}

impl Conversation {
    pub(crate) fn of(request: &ExecutionRequest, options: &Options) -> Self {
        match &request.session_id {
            None => Self::fresh(),
            Some(id) if options.fork_session => Self::ForkOf(id.clone()),
            Some(id) => Self::Resumed(id.clone()),
        }
    }

    pub(crate) fn fresh() -> Self {
        Self::New(Uuid::now_v7().to_string())
    }
}

/// Command of the program. `folder` is the run's own directory and outlives the process.
pub(crate) fn program(
    settings: &Settings,
    request: &ExecutionRequest,
    options: &Options,
    conversation: &Conversation,
    tools: &CallerTools,
    workspace: Option<Folder>,
    folder: &TempFolder,
) -> io::Result<Program> {
    let table = &settings.table;
    let files = Folder::open(folder.path())?;
    let mut args = Arguments::default();
    for (name, value) in [
        ("output-format", "stream-json"),
        ("input-format", "stream-json"),
    ] {
        args.value(name, value);
    }
    args.flag("verbose");
    args.flag("include-partial-messages");
    args.flag("strict-mcp-config");
    args.value("permission-prompt-tool", "stdio");
    // Without sources, as by default, settings files of the user or the project cannot grant permissions.
    args.value("setting-sources", &table.sources());
    if table.signals && request.meta.signals.is_some() {
        args.value("settings", &file(&files, "signals.json", &hooks())?);
    }
    let prompt = file(&files, "system-prompt", &system_prompt(request))?;
    match table.system_prompt {
        SystemPrompt::Replace => args.value("system-prompt-file", &prompt),
        SystemPrompt::Append => args.value("append-system-prompt-file", &prompt),
    }
    args.value(
        "mcp-config",
        &file(&files, "mcp.json", &mcp_config(request, tools).to_string())?,
    );
    match conversation {
        Conversation::New(id) => args.value("session-id", id),
        Conversation::Resumed(id) => args.value("resume", id),
        Conversation::ForkOf(id) => {
            args.value("resume", id);
            args.flag("fork-session");
        }
    }
    if let Some(model) = request.model.as_ref().or(table.model.as_ref()) {
        args.value("model", model);
    }
    if let Some((name, value)) = options.effort(request.options.reasoning) {
        args.value(name, value);
    }
    if let Some(turns) = max_turns(settings, options) {
        args.value("max-turns", &turns.to_string());
    }
    if let Some(cost) = request.budget.and_then(|budget| budget.max_cost_usd) {
        args.value("max-budget-usd", &cost.to_string());
    }
    if let Some(schema) = schema(request) {
        args.value("json-schema", &schema.to_string());
    }
    if let Some(names) = options.allowed_tools.as_ref().or(table.tools.as_ref()) {
        args.value("tools", &names.join(","));
    }
    args.list("allowedTools", &allowed_tools(settings, request, tools));
    args.list("disallowedTools", &table.disallowed_tools);
    let mode = options.permission_mode.map(Mode::name);
    if let Some(mode) = mode.or(table.permission_mode.as_deref()) {
        args.value("permission-mode", mode);
    }
    let mut program = Program::new(&table.program);
    program.args = args.0.into_iter().map(Into::into).collect();
    match workspace {
        Some(workspace) => program.workspace = Some(workspace),
        None => program.dir = Some(folder.subfolder("work")?),
    }
    program.folder = Some(folder.clone());
    // Temporary files of the program are removed with the run's directory.
    let temporary = folder.subfolder("tmp")?;
    for name in ["TMPDIR", "CLAUDE_CODE_TMPDIR"] {
        program
            .env
            .insert(name.to_owned(), temporary.display().to_string());
    }
    program.env.extend(settings.env.clone());
    Ok(program)
}

/// Settings with a hook for each event of the program that signals report.
fn hooks() -> String {
    // The command stands beside the bridge's own program.
    let beside = std::env::current_exe().map(|own| own.with_file_name("forg"));
    let command = beside.ok().filter(|command| command.exists());
    let command = command.unwrap_or_else(|| "forg".into());
    let quoted = command.display().to_string().replace('\'', r"'\''");
    let hook = |event: &str| {
        let command = format!("'{quoted}' emit --event {event}");
        let hook = json!({"type": "command", "command": command, "timeout": HOOK_SECONDS});
        (
            event.to_owned(),
            json!([{ "matcher": "", "hooks": [hook] }]),
        )
    };
    let hooks: Map<String, Value> = HOOKS.map(hook).into_iter().collect();
    json!({ "hooks": hooks }).to_string()
}

/// Schema of the structured output; `None` for other output strategies.
pub(crate) fn schema(request: &ExecutionRequest) -> Option<&Value> {
    match request.output_strategy {
        OutputStrategy::Structured => request.output_schema.as_ref(),
        OutputStrategy::File | OutputStrategy::Stream => None,
    }
}

/// Upper bound of turns; the request can only lower the operator's value.
fn max_turns(settings: &Settings, options: &Options) -> Option<u64> {
    let wanted = options.max_turns.filter(|turns| *turns > 0);
    let limit = settings.table.max_turns.map(u64::from);
    match (wanted, limit) {
        (Some(wanted), Some(limit)) => Some(wanted.min(limit)),
        (wanted, limit) => wanted.or(limit),
    }
}

fn system_prompt(request: &ExecutionRequest) -> String {
    let mut prompt = request.system_prompt.clone().unwrap_or_default();
    if request.output_strategy == OutputStrategy::File {
        let file = request.output_file.as_deref().unwrap_or("output.md");
        if !prompt.is_empty() {
            prompt.push_str("\n\n");
        }
        prompt.push_str(&format!(
            "Write the final result of your work to the file `{file}` in the working directory."
        ));
    }
    prompt
}

fn mcp_config(request: &ExecutionRequest, tools: &CallerTools) -> Value {
    let mut servers: Map<String, Value> = request
        .mcp_servers
        .iter()
        .map(|(name, server)| (name.clone(), with_transport(server)))
        .collect();
    if !tools.is_empty() {
        servers.insert(
            caller_tools::SERVER.to_owned(),
            json!({"type": "sdk", "name": caller_tools::SERVER}),
        );
    }
    json!({ "mcpServers": servers })
}

/// Adds the transport if the server's configuration leaves it out.
fn with_transport(server: &Value) -> Value {
    let mut server = server.clone();
    if let Some(members) = server.as_object_mut()
        && !members.contains_key("type")
    {
        let transport = if members.contains_key("command") {
            "stdio"
        } else {
            "http"
        };
        members.insert("type".to_owned(), transport.into());
    }
    server
}

/// The operator's rules, plus the MCP servers that the dispatch names, which the operator has defined.
fn allowed_tools(
    settings: &Settings,
    request: &ExecutionRequest,
    tools: &CallerTools,
) -> Vec<String> {
    let mut allowed = settings.table.allowed_tools.clone();
    allowed.extend(
        request
            .mcp_servers
            .keys()
            .map(|name| format!("mcp__{name}")),
    );
    if !tools.is_empty() {
        allowed.push(format!("mcp__{}", caller_tools::SERVER));
    }
    allowed
}

/// Command-line arguments. Values are joined to names by `=`, so a value with a leading dash is not parsed as a name.
#[derive(Default)]
struct Arguments(Vec<String>);

impl Arguments {
    fn flag(&mut self, name: &str) {
        self.0.push(format!("--{name}"));
    }

    fn value(&mut self, name: &str, value: &str) {
        self.0.push(format!("--{name}={value}"));
    }

    fn list(&mut self, name: &str, values: &[String]) {
        if !values.is_empty() {
            self.value(name, &values.join(","));
        }
    }
}

/// Writes a file that only this user can read, like its folder; returns its path.
fn file(folder: &Folder, name: &str, content: &str) -> io::Result<String> {
    folder.write_below(Path::new(name), content.as_bytes())?;
    Ok(folder.path().join(name).display().to_string())
}
