//! Conversion of the end of a run into the bridge's result.

use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;

use forge_adapter_api::foreign_json;
use forge_adapter_api::{ExecutionRequest, ExecutionResult, Status};

use crate::config::{Output, Settings};
use crate::run::schema;
use crate::transcript::Transcript;

pub(crate) enum End {
    Exited {
        status: ExitStatus,
        stderr: String,
    },
    Cancelled,
    /// The output is unreadable, for this reason.
    Unreadable(String),
    /// The output exceeds a limit, which the text names.
    TooMuch(String),
}

pub(crate) fn result(
    settings: &Settings,
    request: &ExecutionRequest,
    mut transcript: Transcript,
    end: End,
) -> ExecutionResult {
    let ended = match end {
        End::Cancelled => ExecutionResult::error("cancelled", "cancelled"),
        End::Unreadable(why) => ExecutionResult::error("upstream_error", settings.redacted(&why)),
        End::TooMuch(text) => ExecutionResult::error("output_too_large", text),
        End::Exited { status, stderr } => {
            if let Some(result) = transcript.result.take() {
                return own_result(transcript, *result);
            }
            exited(settings, &mut transcript, status, &stderr)
        }
    };
    let mut result = transcript.into_result(ended);
    if result.status == Status::Ok
        && schema(request).is_some()
        && result.structured_output.is_none()
    {
        let output = result.output.as_deref().unwrap_or_default();
        match foreign_json::from_str(output) {
            Ok(value) => result.structured_output = Some(value),
            Err(error) => {
                result.status = Status::Error;
                result.error = Some(format!("the program's answer is not JSON: {error}"));
                result.error_code = Some("output_invalid".to_owned());
            }
        }
    }
    result
}

/// The result that the program itself returned.
fn own_result(transcript: Transcript, result: ExecutionResult) -> ExecutionResult {
    let text = Some(transcript.text).filter(|text| !text.is_empty());
    ExecutionResult {
        output: result.output.clone().or(text),
        session_id: result.session_id.clone().or(transcript.session_id),
        ..result
    }
}

fn exited(
    settings: &Settings,
    transcript: &mut Transcript,
    status: ExitStatus,
    stderr: &str,
) -> ExecutionResult {
    if let Some(question) = transcript.input_request.take() {
        return ExecutionResult {
            input_request: Some(question),
            ..ExecutionResult::error("input_required", "the program asks a question")
        };
    }
    let failure = transcript.failure.take();
    let is_mute = settings.table.output == Output::Bridge;
    if status.success() && failure.is_none() && !is_mute {
        return ExecutionResult::default();
    }
    let by_exit = status
        .code()
        .and_then(|code| settings.exit_codes.get(&code))
        .cloned();
    let (code, said) = match failure {
        Some(failure) => (failure.code.or(by_exit), failure.message),
        None => (by_exit, None),
    };
    let (code, said) = match (code, signal(status)) {
        (Some(code), _) => (code, said),
        (None, Some(signal)) => (
            "adapter_crashed".to_owned(),
            said.or(Some(format!("the program was ended by signal {signal}"))),
        ),
        (None, None) if status.success() && is_mute => (
            "adapter_crashed".to_owned(),
            Some("the program ended without a result".to_owned()),
        ),
        (None, None) => ("adapter_error".to_owned(), said),
    };
    let said = said.unwrap_or_else(|| match status.code() {
        Some(exit) => format!("the program ended with exit code {exit}"),
        None => "the program failed".to_owned(),
    });
    let message = match stderr {
        "" => said,
        stderr => format!("{said}: {stderr}"),
    };
    let retryable = matches!(
        code.as_str(),
        "adapter_crashed" | "adapter_unavailable" | "rate_limited" | "upstream_error"
    );
    ExecutionResult {
        retryable: Some(retryable),
        ..ExecutionResult::error(code, settings.redacted(&message))
    }
}

/// The signal that ended the program. A supervisor reports it as an exit code of 128 plus the signal, like
/// a shell.
fn signal(status: ExitStatus) -> Option<i32> {
    status.signal().or_else(|| {
        status
            .code()
            .filter(|code| (129..=159).contains(code))
            .map(|code| code - 128)
    })
}
