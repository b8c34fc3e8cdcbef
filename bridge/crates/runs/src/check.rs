//! Checks of a merged commit: commands of the operator, each in a folder with exactly that commit.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::timeout;

use forge_process::program::{Program, Purpose};

use crate::context::Context;
use crate::event::Event;
use crate::git::{self, BadRule, ByUrl, CommitId};

/// End of the output of a check that is kept.
const TAIL_BYTES: usize = 16 * 1024;

/// Checks of all repositories: the setting `runs.checks`.
#[derive(Clone, Debug)]
pub struct Checks(ByUrl<Vec<Vec<String>>>);

impl Checks {
    pub fn new(setting: &BTreeMap<String, Vec<Vec<String>>>) -> Result<Self, BadRule> {
        ByUrl::parse(setting.clone()).map(Self)
    }
}

/// Result of the checks of a commit.
#[derive(Clone, Debug)]
pub(crate) struct Checked {
    passed: usize,
    skipped: usize,
    /// The check that failed, and the end of its output.
    pub(crate) report: Option<String>,
}

impl Checked {
    pub(crate) fn event(&self, refinery: &str) -> Event {
        Event::RefineryTests {
            task_id: refinery.to_owned(),
            passed: self.passed,
            failed: usize::from(self.report.is_some()),
            skipped: self.skipped,
            report: self.report.clone(),
        }
    }
}

/// Runs the checks of the repository, up to the first that fails; `None` if it has none.
pub(crate) async fn run(
    context: &Context,
    commit: &CommitId,
) -> Result<Option<Checked>, git::Error> {
    let config = &context.inner.config;
    let repository = context.repository().await?;
    let Some(commands) = context.inner.checks.0.get(repository.url()) else {
        return Ok(None);
    };
    let folder = repository.folder_of(commit).await?;
    if let Some(user) = context.inner.check_user {
        git::give(&folder, user).await?;
    }
    let mut checked = Checked {
        passed: 0,
        skipped: 0,
        report: None,
    };
    for command in commands {
        if checked.report.is_some() {
            checked.skipped += 1;
            continue;
        }
        match one(context, &folder, command, config.check_timeout).await {
            Ok(()) => checked.passed += 1,
            Err(report) => {
                checked.report = Some(format!("`{}` failed: {report}", command.join(" ")));
            }
        }
    }
    repository.discard_checks(commit).await?;
    Ok(Some(checked))
}

/// Runs one check; the error is the end of its output.
async fn one(
    context: &Context,
    folder: &Path,
    command: &[String],
    limit: Duration,
) -> Result<(), String> {
    let [program, args @ ..] = command else {
        return Err("it names no program".to_owned());
    };
    let program = Program {
        command: program.into(),
        args: args.to_vec(),
        env: [].into(),
    };
    let purpose = Purpose {
        execution: "run/check",
        traceparent: context.traceparent.as_deref(),
    };
    let launcher = context.inner.launcher.in_folder(folder);
    let started = launcher.start(&program, purpose);
    let (mut running, stdout, stdin) = started.map_err(|error| error.to_string())?;
    drop(stdin);
    let whole = async {
        let printed = tail(stdout).await;
        (printed, running.wait().await)
    };
    let Ok((mut printed, status)) = timeout(limit, whole).await else {
        running.end().await;
        return Err(format!("it did not end within {limit:?}"));
    };
    if status.as_ref().is_ok_and(ExitStatus::success) {
        return Ok(());
    }
    let said = running.last_words().await;
    printed += said.trim_start_matches("; stderr: ");
    Err(match status {
        Ok(status) => format!("{status}\n\n{printed}"),
        Err(error) => error.to_string(),
    })
}

/// End of an output.
async fn tail(mut output: impl AsyncRead + Unpin) -> String {
    let (mut kept, mut piece) = (Vec::new(), vec![0; TAIL_BYTES]);
    while let Ok(read @ 1..) = output.read(&mut piece).await {
        kept.extend_from_slice(&piece[..read]);
        let surplus = kept.len().saturating_sub(TAIL_BYTES);
        kept.drain(..surplus);
    }
    String::from_utf8_lossy(&kept).into_owned()
}
