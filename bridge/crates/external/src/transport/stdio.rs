//! Services that are programs: one supervised process for each call. The envelope goes to stdin, the answer is all of
//! stdout. Dropping the call kills the program and its children.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{self, Path};
use std::process::ExitStatus;

use bytes::Bytes;
use secrecy::ExposeSecret as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout_at};

use forge_base::ownership::{self, LastLink, Objection, Trust};
use forge_base::trace::{TraceContext, TraceId};
use forge_process::program::{Launcher, Program, Purpose, RunningProgram};

use super::{End, envelope, too_long};
use crate::answer::{BAD_RESPONSE, FAILED, Status};
use crate::call::Call;

/// Exit codes by which the supervisor reports that a program could not be started.
const NOT_STARTED: [i32; 2] = [126, 127];
/// Length from which a variable is taken out of error texts; shorter ones would make them unreadable.
const SECRET_BYTES: usize = 4;

/// Call that is ready to be written.
#[derive(Debug)]
pub(crate) struct Message {
    envelope: Bytes,
    trace: TraceContext,
}

impl Message {
    pub(crate) fn new(call: &Call<'_>) -> Self {
        Self {
            envelope: envelope(call),
            trace: call.trace,
        }
    }

    /// Starts the program, and waits for its end or the deadline. Refuses one that another user can exchange, unless it is
    /// only warned of.
    pub(crate) async fn send(
        &self,
        trust: Trust,
        launcher: &Launcher,
        program: &Program,
        deadline: Instant,
        answer_bytes: usize,
    ) -> End {
        if let Some(objection) = objection(&program.command).await {
            match trust {
                Trust::Enforce => return not_started(&objection.to_string()),
                Trust::Warn => tracing::warn!("external services: {objection}"),
            }
        }
        let purpose = Purpose {
            execution: &format!("external/{}", TraceId(self.trace.trace)),
            traceparent: Some(&self.trace.to_string()),
        };
        let (mut running, stdout, stdin) = match launcher.start(program, purpose) {
            Ok(started) => started,
            Err(error) => return not_started(&error.to_string()),
        };
        let exchange = exchange(&mut running, stdout, stdin, &self.envelope, answer_bytes);
        let (body, status) = match timeout_at(deadline, exchange).await {
            Ok(Ok(ended)) => ended,
            Ok(Err(end)) => return end,
            Err(_) => return End::TimedOut,
        };
        let said = without_secrets(running.last_words().await, program);
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        if NOT_STARTED.contains(&code) && body.is_empty() {
            return not_started(said.trim_start_matches("; "));
        }
        End::Answered {
            status: Status::Exit(code),
            body,
            said,
            retry_after: None,
        }
    }
}

/// Reason why another user can exchange a program; `None` for one that is searched in `PATH`, or is not there.
async fn objection(command: &Path) -> Option<Objection> {
    if command.components().count() < 2 {
        return None;
    }
    let command = command.to_owned();
    let look = move || ownership::open(&path::absolute(command)?, LastLink::Follow);
    let opened = tokio::task::spawn_blocking(look).await.ok()?.ok()?;
    opened.objections.into_iter().next()
}

fn not_started(reason: &str) -> End {
    let reason = format!("external stdio command failed to start: {reason}");
    End::Refused(FAILED, reason)
}

/// Writes the envelope and reads all of stdout, then waits for the exit.
async fn exchange(
    running: &mut RunningProgram,
    stdout: ChildStdout,
    mut stdin: ChildStdin,
    envelope: &[u8],
    limit: usize,
) -> Result<(Vec<u8>, ExitStatus), End> {
    let writing = async move {
        // A program may answer without reading.
        let _ = stdin.write_all(envelope).await;
        Ok(())
    };
    let reading = async move {
        let mut body = Vec::new();
        let read = stdout.take(limit as u64 + 1).read_to_end(&mut body).await;
        match read {
            Ok(_) if body.len() > limit => Err(End::Broken(BAD_RESPONSE, too_long(limit))),
            Ok(_) => Ok(body),
            Err(error) => Err(End::Broken(
                FAILED,
                format!("cannot read its answer: {error}"),
            )),
        }
    };
    let ((), body) = tokio::try_join!(writing, reading)?;
    match running.wait().await {
        Ok(status) => Ok((body, status)),
        Err(error) => Err(End::Broken(
            FAILED,
            format!("its end is not known: {error}"),
        )),
    }
}

fn without_secrets(mut said: String, program: &Program) -> String {
    for value in program.env.values() {
        let value = value.expose_secret();
        if value.len() >= SECRET_BYTES {
            said = said.replace(value, "[hidden]");
        }
    }
    said
}
