//! Parts of a user's message: its text and its attachments.

use serde_json::Value;

/// The parts of a user's message in the form of Chat Completions.
pub(crate) fn parts(message: &Value) -> Vec<Part<'_>> {
    match &message["content"] {
        Value::Array(parts) => parts.iter().filter_map(Part::of).collect(),
        content => vec![Part::Text(content.as_str().unwrap_or_default())],
    }
}

pub(crate) enum Part<'a> {
    Text(&'a str),
    Image(DataUrl<'a>),
    File { name: &'a str, content: DataUrl<'a> },
}

/// A URL with its content.
#[derive(Clone, Copy)]
pub(crate) struct DataUrl<'a> {
    pub(crate) whole: &'a str,
    pub(crate) media_type: &'a str,
    pub(crate) base64: &'a str,
}

impl<'a> DataUrl<'a> {
    fn of(url: &'a Value) -> Option<Self> {
        let whole = url.as_str()?;
        let (media_type, base64) = whole.strip_prefix("data:")?.split_once(";base64,")?;
        Some(Self {
            whole,
            media_type,
            base64,
        })
    }
}

impl<'a> Part<'a> {
    fn of(part: &'a Value) -> Option<Self> {
        match part["type"].as_str()? {
            "text" => Some(Self::Text(part["text"].as_str()?)),
            "image_url" => DataUrl::of(&part["image_url"]["url"]).map(Self::Image),
            "file" => Some(Self::File {
                name: part["file"]["filename"].as_str()?,
                content: DataUrl::of(&part["file"]["file_data"])?,
            }),
            _ => None,
        }
    }
}
