//! JSON-RPC 2.0 with a program, one message per line: requests of both sides, answers and notifications in
//! any order. The adapter defines the methods.

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use forge_adapter_api::child::{Child, Line};
use forge_adapter_api::foreign_json;
use serde_json::{Map, Value, json};

/// The requested method does not exist.
pub const METHOD_NOT_FOUND: i64 = -32601;
/// The parameters of a request are wrong.
pub const INVALID_PARAMS: i64 = -32602;
/// An internal error of the answering side.
pub const INTERNAL_ERROR: i64 = -32603;

/// Limit of bytes queued for a program that does not read its stdin; above it [`JsonRpc::next`] fails as
/// `Deaf`.
const UNREAD_BYTES: usize = 32 << 20;

/// The connection to one program. Dropping it kills the program.
#[derive(Debug)]
pub struct JsonRpc {
    child: Child,
    last_id: u64,
    unread_bytes: usize,
}

/// A message from the program.
#[derive(Clone, Debug, PartialEq)]
pub enum Incoming {
    /// The answer to the request with this id.
    Answer {
        id: u64,
        outcome: Result<Value, RpcError>,
    },
    /// A request; to be answered by [`answer`](JsonRpc::answer) or [`refuse`](JsonRpc::refuse) with its id.
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
}

/// Error answer of the program.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct RpcError {
    pub code: i64,
    pub message: String,
    /// Further details; null if absent.
    pub data: Value,
}

/// Failure to read a message. The connection remains usable after `TooLong` and `Malformed`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("a line of {bytes} bytes is longer than this program may send")]
    TooLong { bytes: u64 },
    #[error("malformed message: the line is not JSON")]
    Malformed,
    #[error("the program keeps sending requests without reading the answers")]
    Deaf,
}

impl JsonRpc {
    pub fn new(child: Child) -> Self {
        Self {
            child,
            last_id: 0,
            unread_bytes: UNREAD_BYTES,
        }
    }

    /// Queues a request and returns its id. Like all messages it is written while [`next`](Self::next) is
    /// awaited.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "parameters are made for this one message"
    )]
    pub fn request(&mut self, method: &str, params: Value) -> u64 {
        let (id, message) = self.draft(method, &params);
        self.send(&message);
        id
    }

    /// A request with its id, to be sent by [`send_text`](Self::send_text).
    pub fn draft(&mut self, method: &str, params: &Value) -> (u64, Value) {
        self.last_id += 1;
        let id = self.last_id;
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        (id, message)
    }

    /// Queues a message that is already JSON, on one line.
    pub fn send_text(&mut self, message: &str) {
        self.child.send(message);
    }

    #[expect(
        clippy::needless_pass_by_value,
        reason = "parameters are made for this one message"
    )]
    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
    }

    /// Answers a request of the program.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "results are made for this one message"
    )]
    pub fn answer(&mut self, id: &Value, result: Value) {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
    }

    /// Answers a request of the program with an error.
    pub fn refuse(&mut self, id: &Value, code: i64, message: &str) {
        self.send(
            &json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}),
        );
    }

    /// The next message; `None` when no more will come. Lines that do not look like a message are skipped,
    /// because programs print greetings and warnings to stdout. Cancel-safe.
    pub async fn next(&mut self) -> Option<Result<Incoming, Unreadable>> {
        loop {
            if self.child.unwritten() > self.unread_bytes {
                return Some(Err(Unreadable::Deaf));
            }
            let line = match self.child.next().await? {
                Line::Text(line) => line,
                Line::TooLong { bytes, .. } => return Some(Err(Unreadable::TooLong { bytes })),
            };
            match foreign_json::from_str(&line).map(incoming) {
                Ok(Some(message)) => return Some(Ok(message)),
                Err(_) if line.trim_start().starts_with('{') => {
                    return Some(Err(Unreadable::Malformed));
                }
                Ok(None) | Err(_) => {
                    tracing::debug!(bytes = line.len(), "skipped a line that is not a message");
                }
            }
        }
    }

    /// Id of the process, as [`Child::pid`] returns it.
    pub fn pid(&self) -> Option<u32> {
        self.child.pid()
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

impl JsonRpc {
    fn send(&mut self, message: &Value) {
        self.child.send(&message.to_string());
    }
}

pub(crate) fn incoming(message: Value) -> Option<Incoming> {
    let Value::Object(mut message) = message else {
        return None;
    };
    if let Some(method) = message.get("method") {
        let method = method.as_str()?.to_owned();
        let params = message.remove("params").unwrap_or_default();
        return Some(match message.remove("id") {
            Some(id) if id.is_string() || id.is_number() => {
                Incoming::Request { id, method, params }
            }
            Some(Value::Null) | None => Incoming::Notification { method, params },
            Some(_) => return None,
        });
    }
    let id = foreign_json::count(message.get("id")?)?;
    let outcome = match (message.remove("error"), message.remove("result")) {
        (Some(Value::Object(error)), _) => Err(rpc_error(error)),
        (Some(Value::Null) | None, Some(result)) => Ok(result),
        (Some(_) | None, _) => return None,
    };
    Some(Incoming::Answer { id, outcome })
}

fn rpc_error(mut error: Map<String, Value>) -> RpcError {
    RpcError {
        code: error
            .get("code")
            .and_then(Value::as_i64)
            .unwrap_or(INTERNAL_ERROR),
        message: match error.remove("message") {
            Some(Value::String(message)) if !message.is_empty() => message,
            _ => "no reason given".to_owned(),
        },
        data: error.remove("data").unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::Host;
    use forge_adapter_api::child::Program;

    use super::*;

    fn sh(script: &str) -> JsonRpc {
        let mut program = Program::new("sh");
        program.args = vec!["-c".into(), script.into()];
        program.line_bytes = 1000;
        JsonRpc::new(Child::start(&Host::detached(), None, &program).unwrap())
    }

    #[test]
    fn messages_are_told_apart() {
        let error = |code, message: &str, data| RpcError {
            code,
            message: message.to_owned(),
            data,
        };
        let cases = [
            (
                json!({"id": 1, "result": null}),
                Some(Incoming::Answer {
                    id: 1,
                    outcome: Ok(Value::Null),
                }),
            ),
            (
                json!({"id": 2, "error": {"code": -1, "message": "no", "data": [7]}}),
                Some(Incoming::Answer {
                    id: 2,
                    outcome: Err(error(-1, "no", json!([7]))),
                }),
            ),
            (
                json!({"id": 3, "error": {}, "result": 1}),
                Some(Incoming::Answer {
                    id: 3,
                    outcome: Err(error(INTERNAL_ERROR, "no reason given", Value::Null)),
                }),
            ),
            (
                json!({"id": "a", "method": "m"}),
                Some(Incoming::Request {
                    id: json!("a"),
                    method: "m".to_owned(),
                    params: Value::Null,
                }),
            ),
            (
                json!({"method": "m", "params": {"x": 1}}),
                Some(Incoming::Notification {
                    method: "m".to_owned(),
                    params: json!({"x": 1}),
                }),
            ),
            (json!({"id": [1], "method": "m"}), None),
            (json!({"id": 1, "method": 7}), None),
            (json!({"id": 1}), None),
            (
                json!({"id": "1", "result": 1}),
                Some(Incoming::Answer {
                    id: 1,
                    outcome: Ok(json!(1)),
                }),
            ),
            (json!({"id": "one", "result": 1}), None),
            (json!({"result": 1}), None),
            (json!({"id": 1, "error": "no"}), None),
            (json!([{"id": 1, "result": 1}]), None),
            (json!("text"), None),
        ];
        for (message, wanted) in cases {
            assert_eq!(incoming(message.clone()), wanted, "{message}");
        }
    }

    #[tokio::test]
    async fn both_sides_ask_and_answer() {
        let mut rpc = sh(
            r#"echo warming up; read -r asked; echo '{"id":1,"result":['"$asked"']}'
               echo '{"id":0,"method":"ask"}'; read -r told
               echo '{"method":"told","params":'"$told"'}'; echo '{"half":'"#,
        );
        let id = rpc.request("m", json!({"x": 1}));
        let asked = json!([{"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"x": 1}}]);
        let outcome = Ok(asked);
        assert_eq!(rpc.next().await, Some(Ok(Incoming::Answer { id, outcome })));
        let Some(Ok(Incoming::Request { id, .. })) = rpc.next().await else {
            panic!("no request");
        };
        rpc.refuse(&id, METHOD_NOT_FOUND, "no ask");
        let Some(Ok(Incoming::Notification { params, .. })) = rpc.next().await else {
            panic!("no notification");
        };
        assert_eq!(
            params["error"],
            json!({"code": -32601, "message": "no ask"})
        );
        assert_eq!(rpc.next().await, Some(Err(Unreadable::Malformed)));
        assert_eq!(rpc.next().await, None);
    }

    #[tokio::test]
    async fn what_cannot_be_read_is_told_and_the_rest_is_read() {
        let mut rpc = sh(
            "head -c 5000 /dev/zero | tr '\\0' '1'; echo; echo 7; echo {; echo '{\"method\":\"m\"}'",
        );
        assert_eq!(
            rpc.next().await,
            Some(Err(Unreadable::TooLong { bytes: 5000 }))
        );
        assert_eq!(rpc.next().await, Some(Err(Unreadable::Malformed)));
        assert!(matches!(
            rpc.next().await,
            Some(Ok(Incoming::Notification { .. }))
        ));
    }

    #[tokio::test]
    async fn a_program_that_only_asks_is_not_answered_for_ever() {
        let mut rpc = sh("while echo '{\"id\":1,\"method\":\"m\"}'; do :; done");
        rpc.unread_bytes = 100_000;
        let answer = "x".repeat(10_000);
        loop {
            match rpc.next().await {
                Some(Ok(Incoming::Request { id, .. })) => rpc.answer(&id, json!(answer)),
                Some(Err(error)) => {
                    assert_eq!(error, Unreadable::Deaf);
                    return;
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
