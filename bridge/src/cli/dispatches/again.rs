//! `forge-bridge dispatches retry`: the request of a dispatch as another task, also edited before.

use std::io::{self, Write as _};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::Value;
use tempfile::NamedTempFile;

use super::super::client::{Client, Target};
use super::super::screen::{Screen, text};
use super::super::{Context, Unusable, block_on};
use super::{bulk, path};

/// Bytes of a former task id that are kept in the new one, which has at most 256.
const KEPT_BYTES: usize = 200;

#[derive(Debug, Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    bulk: bulk::Selection,
    /// Open the request in VISUAL or EDITOR first; only with one id
    #[arg(long, conflicts_with_all = ["status", "provider", "agent", "run", "since", "dry_run"])]
    edit: bool,
}

pub(super) fn run(context: &Context, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    match (arguments.edit, arguments.bulk.ids.as_slice()) {
        (false, _) => bulk::run(context, bulk::Action::Retry, &arguments.bulk),
        (true, [id]) => edit(context, id),
        (true, _) => bail!(Unusable("--edit takes one id".to_owned())),
    }
}

/// The request of a dispatch under a new task id, which names the dispatch as `retryOf`. It starts at once: without the
/// times of the former one.
pub(super) async fn request(client: &Client, id: &str) -> anyhow::Result<Value> {
    let record = client.get(Target::path(&path(id, &[]))).await?;
    let id = text(&record, "/dispatchId");
    let mut request = client.get(Target::path(&path(&id, &["request"]))).await?;
    let members = request
        .as_object_mut()
        .context("the request is no JSON object; is it from a forge-bridge?")?;
    members.remove("notBefore");
    members.remove("deadline");
    let task = text(&record, "/taskId");
    let task = &task[..task.floor_char_boundary(KEPT_BYTES)];
    let suffix = rand::random::<u32>();
    members.insert(
        "taskId".to_owned(),
        format!("{task}-retry-{suffix:08x}").into(),
    );
    members.insert("retryOf".to_owned(), id.into());
    Ok(request)
}

/// Posts a request; the answer gets its `retryOf`.
pub(super) async fn post(client: &Client, request: &Value) -> anyhow::Result<Value> {
    let target = Target::path(&["api", "v2", "dispatch"]);
    let mut accepted = client.post(target, request).await?;
    accepted["retryOf"] = request["retryOf"].clone();
    Ok(accepted)
}

pub(super) fn announce(screen: &Screen, accepted: &Value) -> io::Result<()> {
    let [id, task, former] =
        ["/dispatchId", "/taskId", "/retryOf"].map(|name| text(accepted, name));
    screen.line(format_args!("{id} as task {task}, retry of {former}"))?;
    for warning in accepted["warnings"].as_array().into_iter().flatten() {
        screen.aside(format_args!("warning: {}", text(warning, "")))?;
    }
    Ok(())
}

fn edit(context: &Context, id: &str) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let screen = context.screen();
    let request = block_on(request(&client, id))?;
    let mut file = tempfile::Builder::new()
        .prefix("forge-dispatch-")
        .suffix(".json")
        .tempfile()
        .context("cannot create a file for the request")?;
    writeln!(file, "{request:#}").context("cannot write the request into a file")?;
    open(context, &file)?;
    let accepted = block_on(async {
        let edited = std::fs::read_to_string(file.path())?;
        let edited = serde_json::from_str(&edited).context("it is not JSON")?;
        post(&client, &edited).await
    });
    let accepted = match accepted {
        Ok(accepted) => accepted,
        Err(error) => {
            // The work of the editor is not lost.
            let (_, kept) = file.keep().context("cannot keep the edited request")?;
            let again = format!("the edited request is kept in {}", kept.display());
            screen.aside(format_args!("{again}; `dispatch --body` posts it"))?;
            return Err(error);
        }
    };
    match context.global.json {
        true => screen.value(&accepted)?,
        false => announce(&screen, &accepted)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Waits until the editor has ended. Its setting can have arguments, as in other programs.
fn open(context: &Context, file: &NamedTempFile) -> anyhow::Result<()> {
    let names = ["VISUAL", "EDITOR"].into_iter();
    let mut given = names.filter_map(|name| context.environment.get(name));
    let editor = given.find(|editor| !editor.is_empty());
    let editor = editor.map_or("vi", String::as_str);
    let status = Command::new("/bin/sh")
        .args(["-c", &format!("{editor} \"$1\""), "sh"])
        .arg(file.path())
        .status()
        .with_context(|| format!("cannot start the editor {editor}"))?;
    if !status.success() {
        bail!("the editor {editor} ended with {status}; nothing was dispatched");
    }
    Ok(())
}
