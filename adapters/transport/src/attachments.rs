//! Attachments in the JSON of a request. The JSON is built with a short placeholder for each content, which is encoded
//! straight into the finished text: a content is in memory once.

use std::fs::File;
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Read as _};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderStringWriter;
use forge_adapter_api::request::Attachment;
use forge_adapter_api::{AdapterError, Result};
use serde_json::Value;
use tokio::task::spawn_blocking;

/// Error code for a media type that the runtime does not take.
pub const NOT_SUPPORTED: &str = "attachment_not_supported";

/// The allocator of glibc returns a block of this size to the system as soon as it is free, whatever was allocated before;
/// it can keep a smaller one. Capacity that is not used takes no memory.
const RETURNED_BYTES: usize = 33 << 20;
const LARGE_BYTES: usize = 1 << 20;

/// Kinds of attachments that runtimes treat differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// JPEG, PNG, GIF or WebP: the formats that all model services take.
    Image,
    Pdf,
    /// Text in UTF-8.
    Text,
    Other,
}

impl Kind {
    /// The kind of a media type in lower case.
    pub fn of(media_type: &str) -> Self {
        match media_type {
            "image/jpeg" | "image/png" | "image/gif" | "image/webp" => Self::Image,
            "application/pdf" => Self::Pdf,
            "application/json" | "application/xml" | "application/yaml" => Self::Text,
            other if other.starts_with("text/") => Self::Text,
            _ => Self::Other,
        }
    }
}

/// The attachments of a request.
#[derive(Clone, Debug, Default)]
pub struct Attachments {
    all: Vec<Attachment>,
    /// Unique and not to be guessed, so that no text of a caller is a placeholder.
    mark: String,
}

/// One attachment, whose content is a placeholder until [`Attachments::fill`].
#[derive(Clone, Debug)]
pub struct Part<'a> {
    pub name: &'a str,
    pub media_type: &'a str,
    pub kind: Kind,
    /// Stands for the content in base64, also inside a longer string.
    pub base64: String,
}

impl Attachments {
    pub fn new(attachments: &[Attachment]) -> Self {
        let random = || RandomState::new().hash_one(0);
        let mark = match attachments {
            [] => String::new(),
            _ => format!("attachment-{:016x}{:016x}-", random(), random()),
        };
        Self {
            all: attachments.to_vec(),
            mark,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All attachments in their order.
    pub fn parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.all.iter().enumerate().map(|(position, attachment)| {
            let Attachment {
                name, media_type, ..
            } = attachment;
            Part {
                name,
                media_type,
                kind: Kind::of(media_type),
                base64: self.placeholder(position),
            }
        })
    }

    /// The message followed by the text attachments, for services of models. Fails with the first attachment of a kind
    /// that these do not take.
    pub async fn prompt(&self, message: &str) -> Result<String> {
        if let Some(part) = self.parts().find(|part| part.kind == Kind::Other) {
            let text = format!(
                "attachment {:?} is {}; this adapter takes JPEG, PNG, GIF and WebP images, PDF, and text",
                part.name, part.media_type
            );
            return Err(AdapterError::new(NOT_SUPPORTED, text));
        }
        let said = std::iter::once(message.to_owned()).chain(self.texts().await?);
        Ok(said.collect::<Vec<_>>().join("\n\n"))
    }

    /// The text attachments, each under its name.
    pub async fn texts(&self) -> Result<Vec<String>> {
        let texts = self
            .all
            .iter()
            .filter(|attachment| Kind::of(&attachment.media_type) == Kind::Text);
        let mut read = Vec::new();
        for attachment in texts {
            let content = tokio::fs::read(&attachment.path).await;
            let content = content.map_err(|error| unreadable(attachment, &error))?;
            let content = String::from_utf8(content).map_err(|_| {
                let text = format!("attachment {:?} is not UTF-8 text", attachment.name);
                AdapterError::new(NOT_SUPPORTED, text)
            })?;
            read.push(format!("# {}\n\n{content}", attachment.name));
        }
        Ok(read)
    }

    /// The JSON text of `body`, with the contents in place of their placeholders.
    pub async fn fill(&self, body: &Value) -> Result<String> {
        let text = body.to_string();
        if self.is_empty() || !text.contains(&self.mark) {
            return Ok(text);
        }
        let this = self.clone();
        let filled = spawn_blocking(move || this.fill_now(&text)).await;
        filled.unwrap_or_else(|panic| Err(AdapterError::new("internal", panic.to_string())))
    }

    fn fill_now(&self, text: &str) -> Result<String> {
        let mut found: Vec<(usize, usize)> = (0..self.all.len())
            .flat_map(|position| {
                let placeholder = self.placeholder(position);
                let all = text.match_indices(&placeholder);
                all.map(|(at, _)| (at, position)).collect::<Vec<_>>()
            })
            .collect();
        found.sort_unstable();
        let encoded = |(_, position): &(usize, usize)| {
            usize::try_from(self.all[*position].bytes).map_or(0, |bytes| bytes.div_ceil(3) * 4)
        };
        let bytes = text.len() + found.iter().map(encoded).sum::<usize>();
        let mut filled = String::with_capacity(match bytes > LARGE_BYTES {
            true => bytes.max(RETURNED_BYTES),
            false => bytes,
        });
        let mut rest = 0;
        for (at, position) in found {
            let attachment = &self.all[position];
            filled.push_str(&text[rest..at]);
            rest = at + self.placeholder(position).len();
            let mut encoder = EncoderStringWriter::from_consumer(&mut filled, &STANDARD);
            // One byte more than was promised: a longer file is an error below.
            let file = File::open(&attachment.path).map(|file| file.take(attachment.bytes + 1));
            let copied = file.and_then(|mut file| io::copy(&mut file, &mut encoder));
            encoder.into_inner();
            let copied = copied.map_err(|error| unreadable(attachment, &error))?;
            if copied != attachment.bytes {
                let changed = io::Error::other("its length has changed");
                return Err(unreadable(attachment, &changed));
            }
        }
        filled.push_str(&text[rest..]);
        Ok(filled)
    }

    fn placeholder(&self, position: usize) -> String {
        // A fixed width, so that none is the beginning of another one.
        format!("{}{position:04}", self.mark)
    }
}

fn unreadable(attachment: &Attachment, error: &io::Error) -> AdapterError {
    let text = format!("attachment {:?} cannot be read: {error}", attachment.name);
    AdapterError::new("attachment_unavailable", text)
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use forge_test_support::attachment::attached;
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn contents_replace_their_placeholders_wherever_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let contents = [vec![], vec![1], vec![2; 2], (0..=255).collect::<Vec<u8>>()];
        let all: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(n, content)| attached(folder.path(), &n.to_string(), "image/png", content))
            .collect();
        let attachments = Attachments::new(&all);
        let parts: Vec<_> = attachments.parts().collect();
        let url = |n: usize| format!("data:{};base64,{}", parts[n].media_type, parts[n].base64);
        let body =
            json!({"z": url(3), "a": [parts[1].base64, url(0), parts[1].base64], "m": url(2)});
        let filled: Value = serde_json::from_str(&attachments.fill(&body).await.unwrap()).unwrap();
        let base64 = |n: usize| STANDARD.encode(&contents[n]);
        let url = |n: usize| format!("data:image/png;base64,{}", base64(n));
        let wanted = json!({"z": url(3), "a": [base64(1), url(0), base64(1)], "m": url(2)});
        assert_eq!(filled, wanted);
    }

    #[tokio::test]
    async fn a_file_that_changed_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let all = [attached(folder.path(), "a", "application/pdf", b"long")];
        for content in [&b"longer"[..], b""] {
            std::fs::write(&all[0].path, content).unwrap();
            let attachments = Attachments::new(&all);
            let part = attachments.parts().next().unwrap();
            let error = attachments.fill(&json!(part.base64)).await.unwrap_err();
            assert_eq!(error.code, "attachment_unavailable");
        }
    }

    #[tokio::test]
    async fn texts_stand_under_their_names_and_other_kinds_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let all = [
            attached(folder.path(), "a.md", "text/markdown", b"one"),
            attached(folder.path(), "b", "application/zip", b"PK"),
            attached(folder.path(), "c.json", "application/json", b"{}"),
        ];
        let attachments = Attachments::new(&all);
        let texts = attachments.texts().await.unwrap();
        assert_eq!(texts, ["# a.md\n\none", "# c.json\n\n{}"]);
        let error = attachments.prompt("look").await.unwrap_err();
        assert_eq!(error.code, NOT_SUPPORTED);
        assert!(error.message.contains("\"b\" is application/zip"));
        let latin = attached(folder.path(), "d", "text/plain", b"\xff");
        let error = Attachments::new(&[latin]).texts().await.unwrap_err();
        assert_eq!(error.code, NOT_SUPPORTED);
    }
}
