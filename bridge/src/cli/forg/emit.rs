//! `forg emit`: a record of the caller, a step in the life of a caller's own tool, or a hook of a tool.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::super::screen::{self, Tone};
use super::super::{BLOCKED, Context, USAGE, block_on};
use super::agent::{Agent, Error, Start, Verdict, now};
use super::hook;
use forge_base::json as bounded;

/// Own session id of records that name none, so that successive commands share a session.
const OWN_SESSION: &str = "forg";

const AFTERWORD: &str = "\
Environment:
  FORG_AGENT_URL                      the agent; defaults to http://127.0.0.1:FORG_PORT (6247)
  FORG_SESSION_KEY, FORG_SESSION_ID   a session that exists; otherwise one is opened

Exit codes:
  0  sent; with a hook always, since a tool takes others for a refusal
  1  failure
  2  invalid arguments
  3  the agent is unreachable
  4  the agent answered with an error
  5  a rule blocks";

#[derive(Debug, Args)]
#[command(after_help = AFTERWORD, after_long_help = AFTERWORD)]
pub(super) struct Arguments {
    /// Record as JSON, which is sent as it is
    #[arg(required_unless_present = "event", conflicts_with = "event")]
    record: Option<String>,
    /// Event: session.start, model.call or session.end of --adapter; or a hook such as PreToolUse, whose JSON is read
    /// from standard input
    #[arg(long)]
    event: Option<String>,
    #[command(flatten)]
    fields: Fields,
}

/// Fields of a record.
#[derive(Debug, Args)]
pub(super) struct Fields {
    /// Adapter, the name of the tool
    #[arg(long, requires = "event", value_name = "NAME")]
    pub(super) adapter: Option<String>,
    /// Session id of the tool, which leads to the same session while it is live
    #[arg(long, requires = "event", value_name = "ID")]
    session: Option<String>,
    #[arg(long, env = "FORG_PROJECT_ID", value_name = "ID")]
    pub(super) project: Option<String>,
    #[arg(long, requires = "event", value_name = "ID")]
    user: Option<String>,
    #[arg(long, requires = "event")]
    model: Option<String>,
    /// Input tokens, with those that a cache served
    #[arg(long, requires = "event", value_name = "COUNT")]
    input_tokens: Option<u64>,
    #[arg(long, requires = "event", value_name = "COUNT")]
    output_tokens: Option<u64>,
    /// Cost in US dollars
    #[arg(long, requires = "event", value_name = "USD")]
    cost: Option<f64>,
    /// Milliseconds to the first byte
    #[arg(long, requires = "event", value_name = "MS")]
    latency: Option<f64>,
    /// Outcome: `success`, or the code of an error
    #[arg(long, requires = "event")]
    status: Option<String>,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let fields = &arguments.fields;
    let sent = match (&arguments.record, arguments.event.as_deref()) {
        (Some(record), _) => own_record(context, record),
        (None, Some(event)) if hook::is_event(event) => {
            hook::run(context, event, fields);
            return Ok(ExitCode::SUCCESS);
        }
        (None, event) => own_tool(context, event.unwrap_or_default(), fields),
    };
    match sent {
        Ok(verdict) => report(context, verdict),
        Err(failed) => {
            let code = failed.code();
            screen::error(&failed.into());
            Ok(ExitCode::from(code))
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error("the record is not valid: {0}")]
    Record(String),
    #[error("{0:?} is no event: wanted session.start, model.call or session.end, or a hook")]
    Event(String),
    #[error("the event {0} needs --adapter")]
    Adapter(String),
    #[error("no runtime")]
    Runtime(#[source] anyhow::Error),
    #[error(transparent)]
    Agent(#[from] Error),
}

impl Failed {
    fn code(&self) -> u8 {
        match self {
            Failed::Record(_) | Failed::Event(_) | Failed::Adapter(_) => USAGE,
            Failed::Runtime(_) => super::super::FAILED,
            Failed::Agent(error) => error.code(),
        }
    }
}

/// Sends a record of the caller, byte by byte as it was given.
fn own_record(context: &Context, record: &str) -> Result<Verdict, Failed> {
    let tree = bounded::parse(record.as_bytes());
    let tree = tree.map_err(|error| Failed::Record(error.to_string()))?;
    let Some(adapter) = tree["adapter"].as_str() else {
        return Err(Failed::Record("it has no `adapter`".to_owned()));
    };
    let start = Start {
        adapter,
        user: tree["user_id"].as_str(),
        own_id: Some(OWN_SESSION),
    };
    send(context, &start, |_| record.as_bytes().to_vec())
}

/// Sends a step in the life of the caller's own tool.
fn own_tool(context: &Context, event: &str, fields: &Fields) -> Result<Verdict, Failed> {
    let hook = match event {
        "session.start" => Some("SessionStart"),
        "session.end" => Some("SessionEnd"),
        "model.call" => None,
        other => return Err(Failed::Event(other.to_owned())),
    };
    let Some(adapter) = &fields.adapter else {
        return Err(Failed::Adapter(event.to_owned()));
    };
    let start = Start {
        adapter,
        user: fields.user.as_deref(),
        own_id: Some(fields.session.as_deref().unwrap_or(OWN_SESSION)),
    };
    let error_code = fields.status.as_ref().filter(|status| *status != "success");
    send(context, &start, |session| {
        let members = [
            ("adapter", json!(adapter)),
            ("ts", now().into()),
            ("hook", json!(hook)),
            ("session_id", session.into()),
            ("user_id", json!(fields.user)),
            ("project_id", json!(fields.project)),
            ("model", json!(fields.model)),
            ("tokens_in", json!(fields.input_tokens)),
            ("tokens_out", json!(fields.output_tokens)),
            ("cost_usd", json!(fields.cost)),
            ("latency_ms", json!(fields.latency)),
            ("error_code", json!(error_code)),
        ];
        record(members)
    })
}

/// Bytes of a record; members without a value are left out.
pub(super) fn record<const N: usize>(members: [(&str, Value); N]) -> Vec<u8> {
    let members = members.into_iter().filter(|(_, value)| !value.is_null());
    let members: Map<_, _> = members
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    Value::from(members).to_string().into_bytes()
}

fn send(
    context: &Context,
    start: &Start<'_>,
    record: impl Fn(&str) -> Vec<u8>,
) -> Result<Verdict, Failed> {
    let sending = async {
        let agent = Agent::new(&context.environment)?;
        let session = agent.session(&context.environment, start).await?;
        let sent = agent.emit(&session, record(&session.id)).await;
        if session.is_given || !sent.as_ref().is_err_and(Error::is_unauthorized) {
            return sent;
        }
        // The session ended between the two calls, or is not among the newest ones that a key is compared with.
        let fresh = Start {
            own_id: None,
            ..*start
        };
        let session = agent.session(&context.environment, &fresh).await?;
        agent.emit(&session, record(&session.id)).await
    };
    let sent = block_on(async { Ok(sending.await) });
    Ok(sent.map_err(Failed::Runtime)??)
}

fn report(context: &Context, verdict: Verdict) -> anyhow::Result<ExitCode> {
    let screen = context.screen();
    if context.global.json {
        screen.value(&verdict.answer)?;
    } else if verdict.blocked.is_none() {
        let session = verdict.answer["session_id"].as_str().unwrap_or_default();
        screen.line(format_args!("sent in session {session}"))?;
    }
    if !verdict.is_logged && !context.global.json {
        screen.aside("the bridge has not stored it")?;
    }
    let Some(message) = verdict.blocked else {
        return Ok(ExitCode::SUCCESS);
    };
    if !context.global.json {
        let blocked = screen.paint_aside(Tone::Bad, "blocked");
        screen.aside(format_args!("{blocked}: {message}"))?;
    }
    Ok(ExitCode::from(BLOCKED))
}
