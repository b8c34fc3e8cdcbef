//! Files of an execution: its attachments, and those below its workspace.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::folder::Folder;
use forge_adapter_api::request::Attachment;
use forge_adapter_api::result::{FileContent, OutputFile};
use forge_adapter_api::{AdapterError, ExecutionRequest, ExecutionResult, OutputStrategy, Result};

/// The workspace of an execution that needs one.
pub(crate) fn workspace(request: &ExecutionRequest) -> Result<Folder> {
    let missing = || AdapterError::new("invalid_request", "the model needs workspace.dir");
    request.open_workspace()?.ok_or_else(missing)
}

/// The error of an operation on a file.
pub(crate) fn failed(what: &str, file: &str, error: &io::Error) -> AdapterError {
    let code = match error.kind() {
        ErrorKind::InvalidInput => "invalid_request",
        _ => "internal",
    };
    AdapterError::new(code, format!("{what} {file:?}: {error}"))
}

/// Returns each attachment as an output file, and a line about each as the output.
pub(crate) fn return_attachments(attachments: &[Attachment]) -> Result<ExecutionResult> {
    let mut lines = String::new();
    let mut output_files = Vec::new();
    for attachment in attachments {
        let Attachment {
            name,
            media_type,
            bytes,
            path,
        } = attachment;
        let content = fs::read(path).map_err(|error| failed("read", name, &error))?;
        let _ = writeln!(lines, "{name} {media_type} {bytes}");
        output_files.push(OutputFile {
            name: name.clone(),
            media_type: Some(media_type.clone()),
            content: FileContent::Data(STANDARD.encode(content)),
        });
    }
    Ok(ExecutionResult {
        output_files,
        ..ExecutionResult::ok(lines)
    })
}

pub(crate) fn write_file(request: &ExecutionRequest) -> Result<ExecutionResult> {
    let folder = workspace(request)?;
    let file = request.output_file.as_deref().unwrap_or("output.md");
    let written = folder.write_below(Path::new(file), request.message.as_bytes());
    written.map_err(|error| failed("write", file, &error))?;
    let output_files = match request.output_strategy {
        // The bridge reads it as the output.
        OutputStrategy::File => Vec::new(),
        OutputStrategy::Stream | OutputStrategy::Structured => vec![OutputFile {
            name: file.to_owned(),
            media_type: None,
            content: FileContent::Path(file.into()),
        }],
    };
    Ok(ExecutionResult {
        output_files,
        ..ExecutionResult::default()
    })
}
