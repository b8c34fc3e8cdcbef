//! Conversation store. The servers keep no conversations, so the adapter stores each and sends it again: in
//! memory, bounded, oldest dropped first and lost with the process; or in a folder, without expiry.

use std::collections::{HashMap, VecDeque};
use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use forge_adapter_api::{AdapterError, ExecutionRequest};
use serde_json::Value;
use tempfile::NamedTempFile;
use uuid::Uuid;

/// Limit of all conversations in memory, as JSON.
const MOST_BYTES: usize = 32 << 20;
const MOST_SESSIONS: usize = 1_000;

/// Stored conversations.
pub struct Sessions(Kept);

enum Kept {
    Memory(Mutex<Memory>),
    Folder(PathBuf),
}

#[derive(Default)]
struct Memory {
    kept: HashMap<Uuid, String>,
    /// Ids in order of their last write, oldest first.
    order: VecDeque<Uuid>,
    bytes: usize,
}

impl Sessions {
    /// Opens the store in `folder`, which is created if missing, or in memory.
    pub fn new(folder: Option<&Path>) -> Result<Self, AdapterError> {
        let Some(folder) = folder else {
            return Ok(Self(Kept::Memory(Mutex::default())));
        };
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| {
            let text = format!("session_dir: cannot make {}: {error}", folder.display());
            AdapterError::new("invalid_config", text)
        })?;
        Ok(Self(Kept::Folder(folder.to_owned())))
    }

    /// The messages of a conversation; `None` if it is unknown. Only UUIDs are valid ids.
    pub fn read(&self, id: &str) -> Result<Option<Vec<Value>>, AdapterError> {
        let Ok(id) = Uuid::parse_str(id) else {
            return Ok(None);
        };
        let text = match &self.0 {
            Kept::Memory(memory) => lock(memory).kept.get(&id).cloned(),
            Kept::Folder(folder) => match fs::read_to_string(file(folder, id)) {
                Ok(text) => Some(text),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(lost("read", &error)),
            },
        };
        let read = |text: String| {
            let mut messages: Vec<Value> =
                serde_json::from_str(&text).map_err(|error| lost("read", &error.into()))?;
            messages.retain(is_accepted);
            Ok(messages)
        };
        text.map(read).transpose()
    }

    /// The id and the messages of the conversation that a request continues, or a new one. `adapter` is the provider
    /// id, for the error `session_not_found`.
    pub fn open(
        &self,
        request: &ExecutionRequest,
        adapter: &str,
    ) -> Result<(String, Vec<Value>), AdapterError> {
        let Some(id) = &request.session_id else {
            return Ok((Uuid::now_v7().to_string(), Vec::new()));
        };
        match self.read(id)? {
            Some(history) => Ok((id.clone(), history)),
            // An interrupted attempt stored no answered message, or the turns contain all of them.
            None if request.resume || !request.turns.is_empty() => Ok((id.clone(), Vec::new())),
            None => {
                let text = format!(
                    "the conversation {id} does not exist: it never belonged to this adapter, or it is no longer \
                     kept (adapters.{adapter}.session_dir keeps conversations across restarts)"
                );
                Err(AdapterError::new("session_not_found", text))
            }
        }
    }

    /// Replaces the messages of a conversation. Ids that are not UUIDs are ignored.
    pub fn write(&self, id: &str, messages: &[Value]) -> Result<(), AdapterError> {
        let Ok(id) = Uuid::parse_str(id) else {
            return Ok(());
        };
        let text = serde_json::to_string(messages).expect("messages are plain JSON");
        match &self.0 {
            Kept::Memory(memory) => {
                lock(memory).keep(id, text);
                Ok(())
            }
            Kept::Folder(folder) => save(folder, id, &text).map_err(|error| lost("write", &error)),
        }
    }
}

/// True if servers accept the message in a later request: they refuse an answer without text and calls, such as one that
/// had only thoughts.
fn is_accepted(message: &Value) -> bool {
    let text = message["content"].as_str().unwrap_or_default();
    let calls = message["tool_calls"].as_array();
    message["role"] != "assistant"
        || !text.trim().is_empty()
        || calls.is_some_and(|calls| !calls.is_empty())
}

impl Memory {
    fn keep(&mut self, id: Uuid, text: String) {
        self.forget(id);
        self.bytes += text.len();
        self.kept.insert(id, text);
        self.order.push_back(id);
        while self.bytes > MOST_BYTES || self.kept.len() > MOST_SESSIONS {
            let Some(oldest) = self.order.front().copied() else {
                return;
            };
            self.forget(oldest);
        }
    }

    fn forget(&mut self, id: Uuid) {
        if let Some(text) = self.kept.remove(&id) {
            self.bytes -= text.len();
            self.order.retain(|other| *other != id);
        }
    }
}

fn lock(memory: &Mutex<Memory>) -> std::sync::MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file(folder: &Path, id: Uuid) -> PathBuf {
    folder.join(format!("{id}.json"))
}

/// Writes the file atomically; readable by its owner only, like all temporary files.
fn save(folder: &Path, id: Uuid, text: &str) -> std::io::Result<()> {
    let mut temporary = NamedTempFile::new_in(folder)?;
    temporary.write_all(text.as_bytes())?;
    temporary.persist(file(folder, id))?;
    Ok(())
}

fn lost(what: &str, error: &std::io::Error) -> AdapterError {
    AdapterError::new(
        "internal",
        format!("cannot {what} the conversation: {error}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_conversation_is_found_again_and_no_other_file_is() {
        let folder = tempfile::tempdir().unwrap();
        let id = Uuid::now_v7().to_string();
        let messages = vec![json!({"role": "user", "content": "hello"})];
        for sessions in [
            Sessions::new(None),
            Sessions::new(Some(&folder.path().join("a/b"))),
        ] {
            let sessions = sessions.unwrap();
            assert_eq!(sessions.read(&id).unwrap(), None);
            sessions.write(&id, &messages).unwrap();
            assert_eq!(sessions.read(&id).unwrap(), Some(messages.clone()));
            assert_eq!(sessions.read("../../etc/passwd").unwrap(), None);
        }
        let again = Sessions::new(Some(&folder.path().join("a/b"))).unwrap();
        assert_eq!(again.read(&id).unwrap(), Some(messages));
    }

    #[test]
    fn the_oldest_go_first() {
        let sessions = Sessions::new(None).unwrap();
        let ids: Vec<String> = (0..=MOST_SESSIONS)
            .map(|_| Uuid::now_v7().to_string())
            .collect();
        for id in &ids {
            sessions.write(id, &[]).unwrap();
        }
        assert_eq!(sessions.read(&ids[0]).unwrap(), None);
        assert!(sessions.read(&ids[1]).unwrap().is_some());
        let large = [json!("x".repeat(MOST_BYTES - 10))];
        sessions.write(&ids[0], &large).unwrap();
        assert!(sessions.read(&ids[0]).unwrap().is_some());
        assert_eq!(sessions.read(&ids[1]).unwrap(), None);
    }
}
