//! `forge run` and `forge query`: call an entry of an external service through a running bridge.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};

use super::super::client::{self, Target};
use super::super::{Context, FAILED, block_on};
use super::print_diagnostic;
use forge_external::diagnostic::Diagnostic;
use forge_external::manifest::EntryKind;

#[derive(Debug, Args)]
pub(super) struct RunArguments {
    /// `service.entry` of a command; or `query` and `service.entry` of a query
    #[arg(required = true, num_args = 1..=2, value_name = "[query] SERVICE.ENTRY")]
    words: Vec<String>,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
pub(super) struct QueryArguments {
    /// `service.entry` of a query
    #[arg(value_name = "SERVICE.ENTRY")]
    name: String,
    #[command(flatten)]
    call: Call,
}

#[derive(Debug, Args)]
struct Call {
    /// Arguments of the entry, as JSON
    #[arg(long, value_name = "JSON", default_value = "{}")]
    args: String,
    /// User of the call, for a bridge with `external.auth = "dev-headers"`; it needs a role, too
    #[arg(long)]
    user_id: Option<String>,
    /// Tenant of the user
    #[arg(long)]
    tenant_id: Option<String>,
    /// Role of the user
    #[arg(long)]
    role: Option<String>,
}

/// Members of the JSON output that describe the entry; the protocol's tool has three forms.
#[derive(Clone, Copy)]
enum Form {
    Entry,
    Query,
    Raw,
}

pub(super) fn run(context: &Context, arguments: &RunArguments) -> anyhow::Result<ExitCode> {
    let call = &arguments.call;
    match arguments.words.as_slice() {
        [name] => send(context, EntryKind::Command, name, Form::Entry, call),
        [word, name] if word == "query" => send(context, EntryKind::Query, name, Form::Raw, call),
        _ => anyhow::bail!("write `forge run SERVICE.ENTRY` or `forge run query SERVICE.ENTRY`"),
    }
}

pub(super) fn query(context: &Context, arguments: &QueryArguments) -> anyhow::Result<ExitCode> {
    let QueryArguments { name, call } = arguments;
    send(context, EntryKind::Query, name, Form::Query, call)
}

fn send(
    context: &Context,
    kind: EntryKind,
    qualified: &str,
    form: Form,
    call: &Call,
) -> anyhow::Result<ExitCode> {
    let (service, entry) = qualified.split_once('.').with_context(|| {
        format!("{qualified:?} is not the name of an entry; write SERVICE.ENTRY")
    })?;
    let args: Value = serde_json::from_str(&call.args).context("--args is not JSON")?;
    let answer = block_on(async {
        let path = ["external", service, kind.plural(), entry];
        let client = context.client()?;
        let (headers, body) = (call.headers(), json!({"args": args}));
        match client.post_with(Target::path(&path), &headers, &body).await {
            Ok(answer) => Ok(answer),
            // The envelope of a call that failed; anything else has no diagnostics.
            Err(client::Error::Refused { refusal, .. })
                if refusal.body["diagnostics"].is_array() =>
            {
                Ok(refusal.body)
            }
            Err(error) => Err(error.into()),
        }
    })?;
    let ok = answer["ok"] == json!(true);
    let code = if ok { 0 } else { FAILED };
    let screen = context.screen();
    if context.global.json {
        screen.value(&output(&answer, kind, (service, entry), form, code))?;
        return Ok(ExitCode::from(code));
    }
    for found in answer["diagnostics"].as_array().into_iter().flatten() {
        // A service's own diagnostics can have any form.
        match serde_json::from_value::<Diagnostic>(found.clone()) {
            Ok(found) => print_diagnostic(&screen, &found)?,
            Err(_) => screen.aside(found)?,
        }
    }
    if ok {
        screen.value(&answer["result"])?;
    }
    Ok(ExitCode::from(code))
}

fn output(
    answer: &Value,
    kind: EntryKind,
    (service, entry): (&str, &str),
    form: Form,
    code: u8,
) -> Value {
    let (kind, file) = (kind.as_str(), format!("external:{service}"));
    let id = format!("{file}:{kind}:{entry}");
    let qualified = format!("{service}.{entry}");
    let mut run = json!({
        "ok": answer["ok"],
        "diagnostics": answer["diagnostics"],
        "traceId": answer["traceId"],
        "exitCode": code,
    });
    if let Some(result) = answer.get("result") {
        run["result"] = result.clone();
    }
    match form {
        Form::Entry => {
            run["entry"] = json!({
                "id": id, "kind": kind, "name": entry, "qualifiedName": qualified, "file": file,
                "moduleId": file, "runtimeContext": "external", "dependencies": [],
            });
        }
        Form::Query => {
            run["query"] = json!({
                "name": entry, "qualifiedName": qualified, "file": file, "symbolId": id, "moduleId": file,
            });
        }
        Form::Raw => {
            run["service"] = service.into();
            run["entry"] = entry.into();
            return json!({ "run": run });
        }
    }
    json!({"run": run, "exitCode": code})
}

impl Call {
    fn headers(&self) -> Vec<(&'static str, &str)> {
        let headers = [
            ("x-forge-user-id", &self.user_id),
            ("x-forge-tenant-id", &self.tenant_id),
            ("x-forge-role", &self.role),
        ];
        let given = headers.into_iter();
        given
            .filter_map(|(name, value)| Some((name, value.as_deref()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_has_the_forms_of_the_reference() {
        let answer = json!({"ok": true, "result": null, "diagnostics": [], "traceId": "t", "requestId": "r"});
        let of = |form| output(&answer, EntryKind::Query, ("a", "b.c"), form, 0);
        assert_eq!(
            of(Form::Query),
            json!({"exitCode": 0, "run": {
                "ok": true, "result": null, "diagnostics": [], "traceId": "t", "exitCode": 0,
                "query": {
                    "name": "b.c", "qualifiedName": "a.b.c", "file": "external:a",
                    "symbolId": "external:a:query:b.c", "moduleId": "external:a",
                },
            }})
        );
        assert_eq!(
            of(Form::Raw),
            json!({"run": {
                "ok": true, "result": null, "diagnostics": [], "traceId": "t", "exitCode": 0,
                "service": "a", "entry": "b.c",
            }})
        );
        assert_eq!(
            of(Form::Entry)["run"]["entry"]["id"],
            "external:a:query:b.c"
        );
    }
}
