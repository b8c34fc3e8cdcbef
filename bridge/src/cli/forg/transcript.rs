//! Usage in the transcript of Claude Code: identity, model and tokens of each message, from the end of the file. Nothing
//! else of it is kept. The last message that was reported is noted in a file of the user's state folder, so that no hook
//! reports a message again.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use forge_adapter_api::foreign_json;
use serde::Deserialize;

use super::super::Environment;
use super::files::{self, Access};
use forge_base::digest::{hex, sha256};

/// Ends of the file that are read, until the last reported message is found.
const TAILS_BYTES: [u64; 2] = [64 * 1024, 4 * 1024 * 1024];
/// Messages that one hook reports at most; the newest ones.
const MOST_MESSAGES: usize = 32;
const MARK_BYTES: u64 = 256;
/// Age at which the mark of a session that did not end in order is removed.
const MARK_LIFE: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Usage of one answer of the model.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) usage: Usage,
    /// `None` if only the tokens are known, as in a transcript.
    pub(super) cost_usd: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Usage {
    /// Without those of the cache.
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
}

/// Messages of a session, and the file with the last one that was reported.
pub(super) struct Transcript {
    messages: Vec<Message>,
    /// `None` if nothing was noted, or there is no folder for it.
    reported: Option<String>,
    mark: Option<PathBuf>,
    has_call: bool,
}

impl Transcript {
    pub(super) fn read(
        path: &Path,
        environment: &Environment,
        session_id: &str,
        call: Option<&str>,
    ) -> io::Result<Self> {
        let mark = mark(environment, session_id);
        let reported = mark.as_deref().and_then(noted);
        let (mut messages, mut has_call) = (Vec::new(), false);
        for bytes in TAILS_BYTES {
            let (tail, is_whole) = tail(path, bytes)?;
            let tail = String::from_utf8_lossy(&tail);
            has_call = call.is_none_or(|call| tail.contains(call));
            messages = messages_of(&tail);
            let is_found = |id: &String| messages.iter().any(|message| message.id == *id);
            if is_whole || reported.as_ref().is_some_and(is_found) {
                break;
            }
        }
        Ok(Self {
            messages,
            reported,
            mark,
            has_call,
        })
    }

    /// True if it contains the tool call that it was read for.
    pub(super) fn has_call(&self) -> bool {
        self.has_call
    }

    /// Model of the newest message.
    pub(super) fn model(&self) -> Option<&str> {
        self.messages.last().map(|message| message.model.as_str())
    }

    /// Messages to report, oldest first. `begins` is true at the start of a session. It can continue the transcript of
    /// another one, whose messages are not its own.
    pub(super) fn unreported(&self, begins: bool) -> &[Message] {
        let first = match &self.reported {
            None if begins => self.messages.len(),
            None => self.messages.len().saturating_sub(1),
            Some(id) => {
                let known = self.messages.iter().rposition(|message| message.id == *id);
                let next = known.map_or(0, |known| known + 1);
                next.max(self.messages.len().saturating_sub(MOST_MESSAGES))
            }
        };
        &self.messages[first..]
    }

    /// Notes that all messages are reported.
    pub(super) fn note(&self) -> io::Result<()> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        let newest = self.messages.last().map_or("", |message| &message.id);
        if self.reported.as_deref() == Some(newest) {
            return Ok(());
        }
        files::replace(mark, newest.as_bytes(), Access::Private)
    }

    /// Removes the note of a session that has ended, and those of sessions that are long over.
    pub(super) fn forget(&self) -> io::Result<()> {
        let Some(mark) = &self.mark else {
            return Ok(());
        };
        files::remove_old(mark, SystemTime::now() - MARK_LIFE)
    }
}

/// File of this session in the folder for the state of programs; the folder holds nothing else.
fn mark(environment: &Environment, session_id: &str) -> Option<PathBuf> {
    let folder = |name| {
        let value = environment.get(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let state = folder("XDG_STATE_HOME")
        .or_else(|| folder("HOME").map(|home| home.join(".local/state")))?;
    let name = hex(&sha256(session_id)[..16]);
    Some(state.join("forg/sessions").join(name))
}

fn noted(mark: &Path) -> Option<String> {
    // Without a readable mark, the newest message is reported; the agent drops it if it knows it.
    let text = files::read(mark, MARK_BYTES).ok()??;
    String::from_utf8(text).ok()
}

/// Whole lines at the end of the file, and true if they are all of it. A file that is missing has none.
fn tail(path: &Path, bytes: u64) -> io::Result<(Vec<u8>, bool)> {
    let (mut read, is_whole) = files::read_end(path, bytes)?;
    if !is_whole {
        let cut = read.iter().position(|byte| *byte == b'\n');
        read.drain(..cut.map_or(read.len(), |cut| cut + 1));
    }
    Ok((read, is_whole))
}

/// Line of the transcript with an answer of the model. One answer has a line for each of its blocks.
#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: String,
    message: Answer,
}

#[derive(Deserialize)]
struct Answer {
    id: String,
    model: String,
    usage: Usage,
}

fn messages_of(lines: &str) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    // Most of a transcript is in lines without usage.
    for line in lines.lines().filter(|line| line.contains("\"usage\"")) {
        // Other lines have other members.
        let Ok(Line { kind, message }) = foreign_json::from_str(line) else {
            continue;
        };
        // Answers that the program makes itself name no model.
        if kind != "assistant" || message.model.starts_with('<') {
            continue;
        }
        let Answer { id, model, usage } = message;
        match messages.iter_mut().find(|known| known.id == id) {
            Some(known) => known.usage = usage,
            None => messages.push(Message {
                id,
                model,
                usage,
                cost_usd: None,
            }),
        }
    }
    messages
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    fn line(id: &str, model: &str, output: u64) -> String {
        let usage =
            json!({"input_tokens": 25, "output_tokens": output, "cache_read_input_tokens": 7});
        let line = json!({"type": "assistant", "message": {"id": id, "model": model, "content": ["secret"], "usage": usage}});
        format!("{line}\n")
    }

    struct Fixture {
        folder: TempDir,
        environment: Environment,
    }

    impl Fixture {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let home = folder.path().display().to_string();
            Self {
                folder,
                environment: Environment::from([("HOME".to_owned(), home)]),
            }
        }

        fn append(&self, text: &str) {
            let path = self.folder.path().join("t.jsonl");
            let mut whole = files::read(&path, u64::MAX - 1)
                .unwrap()
                .unwrap_or_default();
            whole.extend_from_slice(text.as_bytes());
            files::replace(&path, &whole, Access::Umask).unwrap();
        }

        fn read(&self) -> Transcript {
            let path = self.folder.path().join("t.jsonl");
            Transcript::read(&path, &self.environment, "own", None).unwrap()
        }

        /// Ids that the next hook reports, and notes.
        fn report(&self, begins: bool) -> Vec<String> {
            let transcript = self.read();
            let ids = transcript.unreported(begins).iter();
            let ids = ids.map(|message| message.id.clone()).collect();
            transcript.note().unwrap();
            ids
        }
    }

    #[test]
    fn each_message_is_reported_once() {
        let fixture = Fixture::new();
        assert!(fixture.report(true).is_empty());
        let none = String::new();
        fixture.append(&[line("a", "m", 1), line("a", "m", 12), line("b", "m", 3)].concat());
        fixture.append(
            "{\"type\":\"user\",\"message\":{\"content\":\"\\\"usage\\\"\"}}\nno JSON \"usage\"\n",
        );
        fixture.append(&line("c", "<synthetic>", 0));
        let messages = fixture.read().messages;
        assert_eq!((messages.len(), messages[0].usage.output_tokens), (2, 12));
        assert_eq!(fixture.report(false), ["a", "b"]);
        assert_eq!(fixture.report(false), [none; 0]);
        fixture.append(&line("d", "m", 1));
        assert_eq!(fixture.report(false), ["d"]);
        assert_eq!(fixture.read().model(), Some("m"));
    }

    #[test]
    fn messages_before_the_start_of_a_session_are_those_of_another() {
        let fixture = Fixture::new();
        fixture.append(&[line("a", "m", 1), line("b", "m", 1)].concat());
        assert!(fixture.report(true).is_empty());
        fixture.append(&line("c", "m", 1));
        assert_eq!(fixture.report(false), ["c"]);
        // Connected in the middle of a session: only the newest is known to be unreported.
        fixture.read().forget().unwrap();
        assert_eq!(fixture.report(false), ["c"]);
    }

    #[test]
    fn the_end_of_a_long_transcript_is_enough() {
        let fixture = Fixture::new();
        fixture.append(&line("a", "m", 1));
        fixture.report(false);
        fixture.append(&format!("{{\"x\":\"{}\"}}\n", "x".repeat(100_000)));
        fixture.append(&line("b", "m", 1));
        assert_eq!(fixture.report(false), ["b"]);
        fixture.append(&format!("{{\"x\":\"{}\"}}\n", "x".repeat(5_000_000)));
        fixture.append(&line("c", "m", 1));
        assert_eq!(fixture.report(false), ["c"]);
        for number in 0..40 {
            fixture.append(&line(&format!("m{number}"), "m", 1));
        }
        let reported = fixture.report(false);
        assert_eq!(
            (reported.len(), reported[0].as_str()),
            (MOST_MESSAGES, "m8")
        );
    }
}
