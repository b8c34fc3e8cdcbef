//! Contents of attachments: become files of a private folder when an attempt starts, and go with it.

use std::error::Error as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use forge_adapter_api::AdapterError;
use forge_adapter_api::folder::{Folder, TempFolder};
use forge_adapter_api::request as api;
use tokio::fs;
use tokio::io::AsyncWriteExt as _;
use tokio::task::spawn_blocking;
use url::Url;

use forge_base::id::DispatchId;
use forge_net as net;
use forge_store::record::Content;

use super::request::{Attachment, Source};
use super::roles::Roles;

/// Maximum bytes of all attachments of a dispatch, and of all its output files.
pub const MAX_BYTES: usize = 20 << 20;

/// Name of the folders, so that those of a killed bridge are found.
const FOLDER: &str = "attachments";
const UNAVAILABLE: &str = "attachment_unavailable";
const PIECE_BYTES: usize = 256 << 10;

/// Removes the contents that a killed bridge left behind.
pub fn remove_leftovers() {
    TempFolder::remove_leftovers(FOLDER);
}

/// Attachments of a running attempt. Their files are removed on drop.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) attachments: Vec<api::Attachment>,
    _folder: TempFolder,
}

/// Sources of the contents.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) store: &'a Roles,
    pub(super) client: &'a net::Client,
    pub(super) workspace: Option<&'a Folder>,
}

impl Sources<'_> {
    /// Makes the contents of all attachments readable for an adapter. The error `attachment_unavailable` names the first
    /// one that cannot be had.
    pub(super) async fn stage(
        self,
        id: DispatchId,
        attachments: &[Attachment],
    ) -> Result<Staged, AdapterError> {
        let unavailable = |text| AdapterError::new(UNAVAILABLE, text);
        let count = attachments.len();
        // All files at once: none is created in a folder that is being removed, whenever this future is dropped.
        let created = spawn_blocking(move || create_files(count)).await;
        let created = created.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let (folder, files) =
            created.map_err(|error| unavailable(format!("no folder for attachments: {error}")))?;
        let mut left = MAX_BYTES as u64;
        let mut staged = Vec::new();
        for (position, (attachment, (path, file))) in attachments.iter().zip(files).enumerate() {
            let target = Target { file, left };
            let written = match &attachment.source {
                Source::Stored { .. } => self.write_stored(id, position, target).await,
                Source::Path(file) => self.copy(file, target).await,
                Source::Url(url) => self.fetch(url, target).await,
            };
            let named = |why| unavailable(format!("attachment {:?} {why}", attachment.name));
            let bytes = written.map_err(named)?;
            left -= bytes;
            staged.push(api::Attachment {
                name: attachment.name.clone(),
                media_type: attachment.media_type.clone(),
                bytes,
                path,
            });
        }
        Ok(Staged {
            attachments: staged,
            _folder: folder,
        })
    }

    async fn write_stored(
        self,
        id: DispatchId,
        position: usize,
        target: Target,
    ) -> Result<u64, String> {
        let mut writer = target.writer();
        loop {
            let content = Content::Attachment(position);
            let records = &self.store.records;
            let read = records.content(id, content, writer.written, PIECE_BYTES);
            let piece = read
                .await
                .map_err(|error| format!("cannot be read: {error}"))?;
            let piece = piece.ok_or("is not in the store")?;
            if piece.bytes.is_empty() {
                return writer.finish().await;
            }
            writer.append(&piece.bytes).await?;
        }
    }

    async fn copy(self, file: &str, target: Target) -> Result<u64, String> {
        let workspace = self.workspace.cloned().ok_or("needs workspace.dir")?;
        let file = PathBuf::from(file);
        let copy = move || {
            let source = workspace.open_below(&file);
            let source = source.map_err(|error| format!("cannot be opened: {error}"))?;
            let mut copy = target.file;
            let copied = io::copy(&mut source.take(target.left + 1), &mut copy);
            let bytes = copied.map_err(|error| format!("cannot be copied: {error}"))?;
            check(bytes, target.left)
        };
        let copied = spawn_blocking(copy).await;
        copied.unwrap_or_else(|panic| Err(panic.to_string()))
    }

    async fn fetch(self, url: &str, target: Target) -> Result<u64, String> {
        let url: Url = url.parse().map_err(|error| format!("{error}"))?;
        let client = self.client.for_streams(&url);
        let client = client.map_err(|refused| format!("cannot be fetched: {refused}"))?;
        let mut answer = client.get(url).send().await.map_err(not_fetched)?;
        if answer.status() != reqwest::StatusCode::OK {
            return Err(format!("cannot be fetched: HTTP {}", answer.status()));
        }
        let mut writer = target.writer();
        while let Some(piece) = answer.chunk().await.map_err(not_fetched)? {
            writer.append(&piece).await?;
        }
        writer.finish().await
    }
}

/// Creates a folder with this many empty files.
fn create_files(count: usize) -> io::Result<(TempFolder, Vec<(PathBuf, File)>)> {
    let folder = TempFolder::create(FOLDER)?;
    let mut files = Vec::new();
    for number in 0..count {
        let path = folder.path().join(number.to_string());
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        files.push((path.clone(), options.open(path)?));
    }
    Ok((folder, files))
}

/// Reason without the URL, whose query can contain a token.
fn not_fetched(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = format!("cannot be fetched: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn check(bytes: u64, left: u64) -> Result<u64, String> {
    match bytes > left {
        true => Err(format!(
            "is too large: all attachments together may have {MAX_BYTES} bytes"
        )),
        false => Ok(bytes),
    }
}

/// The file that a content is written to, and the bytes that it may have.
struct Target {
    file: File,
    left: u64,
}

impl Target {
    fn writer(self) -> Writer {
        Writer {
            file: self.file.into(),
            left: self.left,
            written: 0,
        }
    }
}

/// Writes a content piece by piece.
struct Writer {
    file: fs::File,
    left: u64,
    written: u64,
}

impl Writer {
    async fn append(&mut self, piece: &[u8]) -> Result<(), String> {
        self.written = check(self.written + piece.len() as u64, self.left)?;
        let written = self.file.write_all(piece).await;
        written.map_err(|error| format!("cannot be written: {error}"))
    }

    /// Number of bytes, which are all in the file then.
    async fn finish(mut self) -> Result<u64, String> {
        let flushed = self.file.flush().await;
        flushed.map_err(|error| format!("cannot be written: {error}"))?;
        Ok(self.written)
    }
}
