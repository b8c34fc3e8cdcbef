//! Rule of attachments.

use std::io;
use std::path::Path;

use super::bench::{Bench, ensure, failed, given, unchecked};
use super::{Input, Outcome};
use crate::folder::TempFolder;
use crate::request::Attachment;
use crate::{ExecutionRequest, Status};

/// Picture of one pixel.
const PNG: &[u8] =
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89\
    \0\0\0\rIDATx\xdacd\xf8\xcfP\x0f\0\x03\x86\x01\x80Z4}k\0\0\0\0IEND\xaeB`\x82";

/// Document of one empty page.
const PDF: &[u8] = b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n\
    2 0 obj<</Type/Pages/Kids[3 0 R]/Count 1>>endobj\n\
    3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>endobj\n\
    trailer<</Root 1 0 R>>\n%%EOF\n";

pub(super) fn takes_attachments(bench: &Bench) -> Result<(), Outcome> {
    if !bench.profile()?.supports("attachments") {
        return unchecked("attachments is not declared: the bridge sends none");
    }
    let folder = TempFolder::create("conformance");
    let written = folder.and_then(|folder| {
        let image = write(folder.path(), "picture.png", "image/png", PNG)?;
        let document = write(folder.path(), "page.pdf", "application/pdf", PDF)?;
        Ok((folder, vec![image, document]))
    });
    let (_folder, attachments) = written.map_err(|error| Outcome::NotChecked(error.to_string()))?;
    let media_types: Vec<String> = (attachments.iter())
        .map(|attachment| attachment.media_type.clone())
        .collect();
    let options = &bench.options;
    let request = ExecutionRequest {
        attachments,
        ..options
            .attaching
            .as_ref()
            .unwrap_or(&options.request)
            .clone()
    };
    let subject = bench.ready()?;
    let result = subject.result(subject.execute(&request)?)?;
    if result.status == Status::Error {
        let error = result.error.unwrap_or_default();
        return match result.error_code.as_deref() {
            Some("attachment_not_supported") => unchecked(&error),
            code => failed(format!("{code:?}: {error}")),
        };
    }
    // The request succeeds without it, too, but a dropped attachment would not be noticed.
    given(&options.attaching, Input::Attaching)?;
    let output = result.output.unwrap_or_default();
    for media_type in media_types {
        ensure(output.contains(&media_type), || {
            format!("{media_type} did not reach the runtime, which answered {output:?}")
        })?;
    }
    subject.faultless()
}

fn write(folder: &Path, name: &str, media_type: &str, content: &[u8]) -> io::Result<Attachment> {
    let path = folder.join(name);
    std::fs::write(&path, content)?;
    Ok(Attachment {
        name: name.to_owned(),
        media_type: media_type.to_owned(),
        bytes: content.len() as u64,
        path,
    })
}
