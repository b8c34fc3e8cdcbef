//! Scripts of agents that have not ended, by session. Stored in the adapter's folder if it has one, so that a run continues
//! after a restart of the bridge; else in memory.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use forge_adapter_api::folder::Folder;
use forge_adapter_api::{Host, Result};

use crate::agent::{Script, not_found};
use crate::files::failed;
use crate::run::MOST_SESSIONS;

/// Folder of the scripts in that of the adapter.
const FOLDER: &str = "runs";

pub(crate) struct Suspended {
    folder: Option<Folder>,
    memory: Mutex<HashMap<String, Vec<u8>>>,
}

impl Suspended {
    pub(crate) fn new(host: &Host) -> Result<Self> {
        let open = |dir: &Path| dir.canonicalize().and_then(|dir| Folder::open(&dir));
        let folder = host.state_dir().map(open).transpose();
        Ok(Self {
            folder: folder.map_err(|error| failed("open", "the state folder", &error))?,
            memory: Mutex::default(),
        })
    }

    /// Stores a script. Above the limit all others are dropped.
    pub(crate) fn keep(&self, session_id: &str, script: &Script) -> Result<()> {
        let content = serde_json::to_vec(script).expect("a script is plain JSON");
        let Some(folder) = &self.folder else {
            let mut memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
            if memory.len() >= MOST_SESSIONS {
                memory.clear();
            }
            memory.insert(session_id.to_owned(), content);
            return Ok(());
        };
        let path = path_of(session_id);
        let entries = fs::read_dir(folder.path().join(FOLDER))
            .into_iter()
            .flatten();
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        if names.len() >= MOST_SESSIONS {
            for name in names {
                // One that stays is tried again by the next call.
                let _ = folder.remove_below(&Path::new(FOLDER).join(name));
            }
        }
        let written = folder.write_below(Path::new(&path), &content);
        written.map_err(|error| failed("store", &path, &error))
    }

    /// Returns the script of a session.
    pub(crate) fn read(&self, session_id: &str) -> Result<Script> {
        let content = match &self.folder {
            None => {
                let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner);
                memory.get(session_id).cloned()
            }
            Some(folder) => {
                let path = path_of(session_id);
                let content = folder.open_below(Path::new(&path));
                let content = content.and_then(std::io::read_to_string);
                content.ok().map(String::into_bytes)
            }
        };
        let script = content.and_then(|content| serde_json::from_slice(&content).ok());
        script.ok_or_else(|| not_found(session_id))
    }
}

/// Path of a session's file. Ids that a caller made up lead to no other file.
fn path_of(session_id: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    format!(
        "{FOLDER}/{}.json",
        session_id.chars().map(plain).collect::<String>()
    )
}
