//! Identity of this bridge among those of one database: a file in `data_dir`, which one process at a time uses.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use tempfile::NamedTempFile;
use uuid::Uuid;

use forge_base::folder_lock::{FolderLock, sync_name};

const FILE: &str = "node";
/// Longest id, in bytes.
const MAX_ID: usize = 64;

/// A locked `data_dir`, and the id in it.
pub(super) struct Node {
    pub(super) id: String,
    _lock: FolderLock,
}

impl Node {
    /// Locks the folder and reads the id, which is created once. Blocks.
    pub(super) fn open(data_dir: &Path) -> anyhow::Result<Self> {
        let lock = FolderLock::take(data_dir)?;
        let file = data_dir.join(FILE);
        let id = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => create(&file),
            read => read,
        };
        let id = id.with_context(|| format!("cannot use {}", file.display()))?;
        let id = id.trim().to_owned();
        anyhow::ensure!(is_id(&id), Damaged(file));
        Ok(Self { id, _lock: lock })
    }
}

#[derive(Debug, thiserror::Error)]
#[error(
    "{} does not hold the id of a node: up to {MAX_ID} letters, digits, dots and dashes; restore it from a backup, or remove it to begin as another node",
    .0.display()
)]
struct Damaged(PathBuf);

fn is_id(text: &str) -> bool {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    (1..=MAX_ID).contains(&text.len()) && text.bytes().all(is_part)
}

/// Writes another file and renames it, so that a crash leaves the whole id or none.
fn create(file: &Path) -> io::Result<String> {
    let id = Uuid::now_v7().simple().to_string();
    let mut draft = NamedTempFile::new_in(file.parent().unwrap_or(file))?;
    writeln!(draft, "{id}")?;
    draft.as_file().sync_all()?;
    draft.persist_noclobber(file).map_err(|error| error.error)?;
    sync_name(file)?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_stays_and_one_process_has_it() {
        let folder = tempfile::tempdir().unwrap();
        let data_dir = folder.path().join("data");
        let node = Node::open(&data_dir).unwrap();
        let Err(error) = Node::open(&data_dir) else {
            panic!("the folder was locked twice");
        };
        let holder = format!("another bridge (process {})", std::process::id());
        assert!(error.to_string().starts_with(&holder), "{error}");
        let id = node.id.clone();
        drop(node);
        assert_eq!(Node::open(&data_dir).unwrap().id, id);
        let file = data_dir.join(FILE);
        fs::write(&file, "rack-7.b\n").unwrap();
        assert_eq!(Node::open(&data_dir).unwrap().id, "rack-7.b");
        for damaged in ["", "a b", &"x".repeat(MAX_ID + 1)] {
            fs::write(&file, damaged).unwrap();
            let Err(error) = Node::open(&data_dir) else {
                panic!("{damaged:?} was taken for an id");
            };
            assert!(error.to_string().contains("remove it"), "{error}");
        }
    }
}
