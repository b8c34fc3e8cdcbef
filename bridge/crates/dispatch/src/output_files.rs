//! Output files of a run: their contents are collected when it ends, and described in its result.

use forge_adapter_api::foreign_json;
use std::io::Read as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::folder::Folder;
use forge_adapter_api::result::{FileContent, OutputFile};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use url::Url;

use forge_base::digest::{hex, sha256};
use forge_base::id::DispatchId;
use forge_base::text::is_unseen_in_name;

use super::attachments::MAX_BYTES;
use super::validate::read_media_type;

const MAX_COUNT: usize = 100;
const NAME_BYTES: usize = 200;
const UNKNOWN_TYPE: &str = "application/octet-stream";

/// An output file with its content, or the reason why that cannot be had.
#[derive(Clone, Debug)]
pub struct Collected {
    name: String,
    media_type: String,
    content: Result<Vec<u8>, String>,
}

/// An element of `outputFiles` in the result.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Described<'a> {
    name: &'a str,
    media_type: &'a str,
    #[serde(flatten)]
    kept: Kept<'a>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Kept<'a> {
    Stored {
        bytes: usize,
        sha256: String,
        href: String,
    },
    Lost {
        error: &'a str,
    },
}

/// Collects the files that an adapter's answer names. Those above the limits lose their content.
pub(super) async fn collect(answer: &[u8], workspace: Option<Folder>) -> Vec<Collected> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Answer {
        #[serde(default)]
        output_files: Vec<OutputFile>,
    }
    // An answer that cannot be read is reported with the result.
    let Ok(Answer { output_files }) = foreign_json::from_slice(answer) else {
        return Vec::new();
    };
    if output_files.is_empty() {
        return Vec::new();
    }
    let collected = spawn_blocking(move || collect_now(output_files, workspace.as_ref())).await;
    collected.unwrap_or_default()
}

fn collect_now(files: Vec<OutputFile>, workspace: Option<&Folder>) -> Vec<Collected> {
    let mut left = MAX_BYTES;
    let mut collected: Vec<Collected> = Vec::new();
    for file in files.into_iter().take(MAX_COUNT) {
        let is_free = |name: &str| collected.iter().all(|other| other.name != name);
        let name = free_name(plain_name(&file.name), is_free);
        let media_type = file.media_type.as_deref().and_then(read_media_type);
        let content = match file.content {
            FileContent::Data(text) => STANDARD
                .decode(text)
                .map_err(|error| format!("the adapter gave invalid base64: {error}")),
            FileContent::Path(path) => read(workspace, &path, left),
        };
        let content = content.and_then(|content| match content.len() > left {
            true => Err(format!(
                "does not fit: all output files together may have {MAX_BYTES} bytes"
            )),
            false => Ok(content),
        });
        left -= content.as_ref().map_or(0, Vec::len);
        collected.push(Collected {
            name,
            media_type: media_type.unwrap_or_else(|| UNKNOWN_TYPE.to_owned()),
            content,
        });
    }
    collected
}

/// At most one byte more than `left`.
fn read(workspace: Option<&Folder>, path: &Path, left: usize) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
    let workspace = workspace.ok_or("the adapter gave a path, but there is no workspace.dir")?;
    let opened = workspace.open_below(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let mut limited = opened.take(left as u64 + 1);
    limited.read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The name without folders and unseen characters.
fn plain_name(given: &str) -> String {
    let last = given.rsplit(['/', '\\']).next().unwrap_or_default();
    let mut name: String = last.chars().filter(|c| !is_unseen_in_name(*c)).collect();
    name.truncate(name.floor_char_boundary(NAME_BYTES));
    match name.as_str() {
        "" | "." | ".." => "file".to_owned(),
        _ => name,
    }
}

fn free_name(name: String, is_free: impl Fn(&str) -> bool) -> String {
    if is_free(&name) {
        return name;
    }
    let numbered = (2..).map(|number| format!("{number}-{name}"));
    let free = numbered.into_iter().find(|name| is_free(name));
    free.expect("there are fewer files than numbers")
}

impl Collected {
    /// The content; empty without one.
    pub(super) fn bytes(&self) -> &[u8] {
        self.content.as_deref().unwrap_or_default()
    }

    pub(super) fn describe(&self, id: DispatchId) -> Described<'_> {
        let kept = match &self.content {
            Ok(content) => Kept::Stored {
                bytes: content.len(),
                sha256: hex(&sha256(content)),
                href: href(id, &self.name),
            },
            Err(error) => Kept::Lost { error },
        };
        Described {
            name: &self.name,
            media_type: &self.media_type,
            kept,
        }
    }
}

/// Path of a file in the HTTP interface.
fn href(id: DispatchId, name: &str) -> String {
    let mut url: Url = "http://bridge".parse().expect("it is a URL");
    let segments = ["api", "v2", "dispatch", &id.to_string(), "files", name];
    let mut path = url.path_segments_mut().expect("the URL has a path");
    path.clear().extend(segments);
    drop(path);
    url.path().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    async fn described(answer: &Value, workspace: Option<Folder>) -> (Value, Vec<Vec<u8>>) {
        let answer = answer.to_string();
        let collected = collect(answer.as_bytes(), workspace).await;
        let id = DispatchId::new();
        let described: Vec<_> = collected.iter().map(|file| file.describe(id)).collect();
        let contents = collected.iter().map(|file| file.bytes().to_vec());
        (json!(described), contents.collect())
    }

    #[tokio::test]
    async fn names_are_plain_and_distinct_and_every_file_is_described() {
        let held = tempfile::tempdir().unwrap();
        let dir = held.path().canonicalize().unwrap();
        std::fs::create_dir(dir.join("sub")).unwrap();
        std::fs::write(dir.join("sub/a.txt"), "read").unwrap();
        let answer = json!({"status": "ok", "outputFiles": [
            {"name": "../a.txt", "data": "b25l", "mediaType": "Text/Plain"},
            {"name": "x/a.txt", "path": "sub/a.txt"},
            {"name": "..", "data": "", "mediaType": "not one"},
            {"name": "b", "data": "%"},
            {"name": "c", "path": "../outside"},
            {"name": "ü ?#", "data": "dHdv"},
        ]});
        let (described, contents) = described(&answer, Some(Folder::open(&dir).unwrap())).await;
        let names = described.as_array().unwrap().iter();
        let names: Vec<_> = names.map(|file| file["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a.txt", "2-a.txt", "file", "b", "c", "ü ?#"]);
        assert_eq!(contents[..3], [&b"one"[..], b"read", b""]);
        assert_eq!(described[0]["mediaType"], "text/plain");
        assert_eq!(described[0]["bytes"], 3);
        assert_eq!(described[0]["sha256"], hex(&sha256("one")));
        assert_eq!(described[2]["mediaType"], UNKNOWN_TYPE);
        let href = described[5]["href"].as_str().unwrap();
        assert!(href.ends_with("/files/%C3%BC%20%3F%23"), "{href}");
        for lost in [3, 4] {
            assert!(described[lost]["error"].is_string(), "{described}");
            assert_eq!(described[lost].get("href"), None);
        }
    }

    #[tokio::test]
    async fn files_above_the_limit_lose_their_content() {
        let large = STANDARD.encode(vec![7; MAX_BYTES]);
        let answer = json!({"outputFiles": [
            {"name": "large", "data": large},
            {"name": "small", "data": "b25l"},
            {"name": "empty", "data": ""},
        ]});
        let (described, contents) = described(&answer, None).await;
        assert_eq!(contents[0].len(), MAX_BYTES);
        assert!(
            described[1]["error"]
                .as_str()
                .unwrap()
                .contains("does not fit")
        );
        assert_eq!(described[2]["bytes"], 0);
    }
}
