//! Attachments of a dispatch. Contents in the body are decoded and leave the request here.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use forge_base::digest::{hex, sha256};
use forge_base::text::is_unseen_in_name;

use crate::attachments::MAX_BYTES;
use crate::request::{Attachment, Source};

use super::callback::{Guard, parse_url};
use super::fields::Fields;
use super::spelling;
use super::workspace::path_complaint;

const MAX_COUNT: usize = 20;
const NAME_BYTES: usize = 255;
const MEDIA_TYPE_BYTES: usize = 127;

/// Reads `attachments`, and the contents in the body by position: empty for an attachment that is read or fetched later.
pub(super) fn read(
    dispatch: &Fields<'_>,
    guard: Guard<'_>,
    has_folder: bool,
) -> (Vec<Attachment>, Vec<Vec<u8>>) {
    let elements = dispatch.list("attachments");
    if elements.len() > MAX_COUNT {
        dispatch.complain(
            "attachments",
            format!("must be at most {MAX_COUNT}, not {}", elements.len()),
        );
        return (Vec::new(), Vec::new());
    }
    let mut attachments: Vec<Attachment> = Vec::new();
    let mut contents = Vec::new();
    for (path, element) in elements {
        let Some((attachment, content)) = read_one(dispatch, &path, element, guard, has_folder)
        else {
            continue;
        };
        if attachments
            .iter()
            .any(|other| other.name == attachment.name)
        {
            let message = format!("{:?} is the name of an earlier one too", attachment.name);
            dispatch.complaints().add(format!("{path}.name"), message);
        }
        attachments.push(attachment);
        contents.push(content);
    }
    let bytes: usize = contents.iter().map(Vec::len).sum();
    if bytes > MAX_BYTES {
        let message = format!("must have at most {MAX_BYTES} bytes together, not {bytes}");
        dispatch.complain("attachments", message);
    }
    (attachments, contents)
}

fn read_one(
    dispatch: &Fields<'_>,
    path: &str,
    element: &Value,
    guard: Guard<'_>,
    has_folder: bool,
) -> Option<(Attachment, Vec<u8>)> {
    let fields = Fields::read(element, path, dispatch.complaints())?;
    spelling::warn(&fields, spelling::ATTACHMENT);
    let name = fields.required_text("name").and_then(|name| {
        let complaint = name_complaint(name);
        complaint.map_or(Some(name.to_owned()), |complaint| {
            fields.complain("name", complaint);
            None
        })
    });
    let media_type = fields.required_text("mediaType").and_then(|given| {
        let read = read_media_type(given);
        if read.is_none() {
            let message = "must be a media type without parameters, such as image/png";
            fields.complain("mediaType", message);
        }
        read
    });
    let given = ["data", "path", "url"].map(|name| fields.value(name));
    let source = match given {
        [Some(_), None, None] => fields.required_text("data").and_then(|text| {
            let decoded = STANDARD.decode(text);
            let decoded = decoded.map_err(|error| format!("is not base64: {error}"));
            let content = decoded.map_err(|complaint| fields.complain("data", complaint));
            content.ok().map(|content| {
                let source = Source::Stored {
                    bytes: content.len(),
                    sha256: hex(&sha256(&content)),
                };
                (source, content)
            })
        }),
        [None, Some(_), None] => fields.required_text("path").and_then(|path| {
            let no_folder = (!has_folder).then_some("needs workspace.dir, which it is relative to");
            match path_complaint(path).or(no_folder) {
                Some(complaint) => {
                    fields.complain("path", complaint);
                    None
                }
                None => Some((Source::Path(path.to_owned()), Vec::new())),
            }
        }),
        [None, None, Some(_)] => fields.required_text("url").and_then(|url| {
            let read = parse_url(url, guard, "must not contain credentials");
            let url = read.map_err(|complaint| fields.complain("url", complaint));
            Some((Source::Url(url.ok()?.into()), Vec::new()))
        }),
        [_, _, _] => {
            let message = "must have exactly one of data, path and url";
            dispatch.complaints().add(path, message);
            None
        }
    };
    let (source, content) = source?;
    let attachment = Attachment {
        name: name?,
        media_type: media_type?,
        source,
    };
    Some((attachment, content))
}

fn name_complaint(name: &str) -> Option<String> {
    if name.len() > NAME_BYTES {
        Some(format!("must have at most {NAME_BYTES} bytes"))
    } else if name.contains(is_unseen_in_name) {
        Some("must not contain control characters or others that cannot be seen".into())
    } else if name.contains(['/', '\\']) || matches!(name, "." | "..") {
        Some("must be the name of a file, without folders".into())
    } else {
        None
    }
}

/// The media type in lower case; `None` unless it is `type/subtype` (RFC 6838 §4.2).
pub(crate) fn read_media_type(given: &str) -> Option<String> {
    let part = |part: &str| {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte);
        part.starts_with(|first: char| first.is_ascii_alphanumeric()) && part.bytes().all(known)
    };
    let (main, sub) = given.split_once('/')?;
    let valid = given.len() <= MEDIA_TYPE_BYTES && part(main) && part(sub);
    valid.then(|| given.to_ascii_lowercase())
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::super::rows::Row;
    use super::*;

    /// One attachment with the content in this member.
    fn attached(name: &str, media_type: &str, member: &str, content: &str) -> Value {
        json!([{"name": name, "mediaType": media_type, member: content}])
    }

    pub(crate) fn row() -> Row {
        let good = json!([
            [],
            [{"name": "a b.png", "mediaType": "image/PNG", "data": "YQ=="}],
            [{"name": "a", "media_type": "image/svg+xml", "url": "https://a.example/x?y"}],
        ]);
        Row {
            name: "attachments",
            good: good.as_array().unwrap().clone(),
            bad: vec![
                (json!({}), "attachments"),
                (json!([5]), "attachments[0]"),
                (
                    json!([{"mediaType": "a/b", "data": "YQ=="}]),
                    "attachments[0].name",
                ),
                (
                    json!([{"name": "a", "data": "YQ=="}]),
                    "attachments[0].mediaType",
                ),
                (json!([{"name": "a", "mediaType": "a/b"}]), "attachments[0]"),
                (
                    attached("a/b", "a/b", "data", "YQ=="),
                    "attachments[0].name",
                ),
                (attached("..", "a/b", "data", "YQ=="), "attachments[0].name"),
                (
                    attached("a\n", "a/b", "data", "YQ=="),
                    "attachments[0].name",
                ),
                (
                    attached("a", "png", "data", "YQ=="),
                    "attachments[0].mediaType",
                ),
                (
                    attached("a", "a/b; c=d", "data", "YQ=="),
                    "attachments[0].mediaType",
                ),
                (attached("a", "a/b", "data", "Y Q"), "attachments[0].data"),
                (attached("a", "a/b", "data", ""), "attachments[0].data"),
                // Without `workspace.dir`.
                (attached("a", "a/b", "path", "x"), "attachments[0].path"),
                (attached("a", "a/b", "path", "../x"), "attachments[0].path"),
                (
                    attached("a", "a/b", "url", "ftp://a.example"),
                    "attachments[0].url",
                ),
                (
                    attached("a", "a/b", "url", "https://u:p@a.example"),
                    "attachments[0].url",
                ),
                (
                    json!([{"name": "a", "mediaType": "a/b", "data": "YQ==", "url": "https://a.example"}]),
                    "attachments[0]",
                ),
                (
                    json!([
                        {"name": "a", "mediaType": "a/b", "data": "YQ=="},
                        {"name": "a", "mediaType": "a/b", "data": "Yg=="},
                    ]),
                    "attachments[1].name",
                ),
                (json!(vec![json!({}); 21]), "attachments"),
            ],
        }
    }
}
