//! Exchange of JSON values, one per line, with a program over its stdin and stdout.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use forge_adapter_api::child::{Child, Line};
use forge_adapter_api::foreign_json;
use serde::Serialize;
use serde_json::Value;

/// The connection to one program. Dropping it kills the program.
#[derive(Debug)]
pub struct JsonLines {
    child: Child,
}

/// A line above the program's limit. Its content is lost; the connection remains usable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of {bytes} bytes is longer than this program may send")]
pub struct TooLong {
    pub bytes: u64,
}

impl JsonLines {
    pub fn new(child: Child) -> Self {
        Self { child }
    }

    /// Queues a message; it is written while [`next`](Self::next) is awaited.
    pub fn send(&mut self, message: &impl Serialize) {
        self.send_text(&serde_json::to_string(message).expect("a message has string keys"));
    }

    /// Like [`send`](Self::send), for a message that is already JSON, on one line.
    pub fn send_text(&mut self, message: &str) {
        self.child.send(message);
    }

    /// The next value; `None` when no more will come. Lines that are not JSON are skipped, because programs
    /// print greetings and warnings to stdout. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Value, TooLong>> {
        loop {
            match self.child.next().await? {
                Line::Text(line) if line.trim().is_empty() => {}
                Line::Text(line) => match foreign_json::from_str(&line) {
                    Ok(value) => return Some(Ok(value)),
                    Err(error) => {
                        tracing::debug!(bytes = line.len(), %error, "a line that is not JSON was skipped");
                    }
                },
                Line::TooLong { bytes, .. } => return Some(Err(TooLong { bytes })),
            }
        }
    }

    /// Stops the program: closes its stdin, sends SIGTERM after `patience`, and then kills it.
    pub async fn stop(&mut self, patience: Duration) -> io::Result<ExitStatus> {
        self.child.stop(patience).await
    }

    /// The tail of stderr.
    pub fn stderr_tail(&self) -> String {
        self.child.stderr_tail()
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::Host;
    use forge_adapter_api::child::Program;
    use serde_json::json;

    use super::*;

    fn sh(script: &str) -> JsonLines {
        let mut program = Program::new("sh");
        program.args = vec!["-c".into(), script.into()];
        program.line_bytes = 1000;
        JsonLines::new(Child::start(&Host::detached(), None, &program).unwrap())
    }

    #[tokio::test]
    async fn a_greeting_is_skipped_and_the_values_are_read() {
        let mut program = sh("echo hello; echo; echo '{\"a\":1}'; printf '[2]'");
        assert_eq!(program.next().await, Some(Ok(json!({"a": 1}))));
        assert_eq!(program.next().await, Some(Ok(json!([2]))));
        assert_eq!(program.next().await, None);
    }

    #[tokio::test]
    async fn an_answer_follows_a_question() {
        let mut program = sh("read -r line; printf '[%s]\\n' \"$line\"; echo why >&2; exit 4");
        program.send(&json!({"q": "a\nb"}));
        assert_eq!(program.next().await, Some(Ok(json!([{"q": "a\nb"}]))));
        let status = program.stop(Duration::from_secs(5)).await.unwrap();
        assert_eq!(
            (status.code(), program.stderr_tail().as_str()),
            (Some(4), "why")
        );
    }

    #[tokio::test]
    async fn a_line_above_the_limit_is_told() {
        let mut program = sh("head -c 5000 /dev/zero | tr '\\0' '1'; echo; echo 7");
        assert_eq!(program.next().await, Some(Err(TooLong { bytes: 5000 })));
        assert_eq!(program.next().await, Some(Ok(json!(7))));
    }
}
