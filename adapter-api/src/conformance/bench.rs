//! Instances under test, and calls with a time limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::recorder::{Ending, Recorder};
use super::spoken::{Entry, Line};
use super::{Input, Options, Outcome};
use crate::host::Create;
use crate::manage::Interface;
use crate::profile::SCHEMA;
use crate::{AdapterError, ExecutionRequest, ExecutionResult, Profile, Status, secret};

/// Characters of a call that are shown.
const SHOWN: usize = 4_000;

/// The adapter under test.
pub(super) struct Bench {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) interfaces: Vec<Interface>,
    pub(super) entry: Entry,
    pub(super) options: Options,
    /// The last call that was sent.
    pub(super) last: Mutex<Option<Vec<u8>>>,
    /// Failure of a rule in which `initialize` was not answered. The rules after it fail by it, without a wait each.
    pub(super) mute: OnceLock<String>,
}

/// An instance of the adapter under test.
pub(super) struct Subject<'a> {
    bench: &'a Bench,
    line: Line,
    calls: AtomicU64,
}

/// Fails the rule; `seen` goes into the report.
pub(super) fn failed<T>(seen: impl Into<String>) -> Result<T, Outcome> {
    Err(Outcome::Failed(seen.into()))
}

/// Marks the rule as not checked, with the reason.
pub(super) fn unchecked<T>(why: &str) -> Result<T, Outcome> {
    Err(Outcome::NotChecked(why.to_owned()))
}

/// The input, without which the rule is not checked.
pub(super) fn given<T>(input: &Option<T>, name: Input) -> Result<&T, Outcome> {
    input.as_ref().ok_or(Outcome::NoInput(name))
}

/// Fails with `seen` unless `holds`.
pub(super) fn ensure(holds: bool, seen: impl FnOnce() -> String) -> Result<(), Outcome> {
    if holds { Ok(()) } else { failed(seen()) }
}

/// The request as that of a dispatch of its own, since runtimes can run a dispatch once only.
pub(super) fn unique(request: &ExecutionRequest) -> ExecutionRequest {
    static LAST: AtomicU64 = AtomicU64::new(0);
    let number = LAST.fetch_add(1, Ordering::Relaxed);
    ExecutionRequest {
        execution_id: format!("dsp_conformance{number}/1"),
        ..request.clone()
    }
}

impl Bench {
    /// Creates an instance without initializing it.
    pub(super) fn created(&self) -> Result<Subject<'_>, Outcome> {
        let create = Create {
            schema: SCHEMA.max,
            instance: self.name.clone(),
            store_id: "conformance".to_owned(),
            ..Create::default()
        };
        match self.entry.create(bytes(&create)) {
            Ok(line) => Ok(Subject {
                bench: self,
                line,
                calls: AtomicU64::new(1),
            }),
            Err(error) => failed(format!("create: {}: {error}", error.code)),
        }
    }

    /// Creates an instance and initializes it with the configuration of the options.
    pub(super) fn ready(&self) -> Result<Subject<'_>, Outcome> {
        self.initialized(&self.options.config)
    }

    pub(super) fn initialized(&self, config: &Value) -> Result<Subject<'_>, Outcome> {
        if let Some(seen) = self.mute.get() {
            return failed(seen);
        }
        let subject = self.created()?;
        subject.ask::<_, Value>("initialize", config)?;
        Ok(subject)
    }

    /// The profile that the adapter declares.
    pub(super) fn profile(&self) -> Result<Profile, Outcome> {
        self.ready()?.ask("capabilities", &json!({}))
    }

    pub(super) fn slow(&self) -> Result<&ExecutionRequest, Outcome> {
        given(&self.options.slow, Input::Slow)
    }

    fn last(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the last call.
    pub(super) fn forget(&self) {
        *self.last() = None;
    }

    /// The last call as text, without secrets of the configuration.
    pub(super) fn sent(&self) -> Option<String> {
        let line = self.last().take()?;
        let mut text = String::from_utf8_lossy(&line).trim_end().to_owned();
        for secret in secret::values(&self.options.config) {
            text = text.replace(secret, "[secret]");
        }
        if let Some((end, _)) = text.char_indices().nth(SHOWN) {
            text.truncate(end);
            text.push('…');
        }
        Some(text)
    }
}

impl Subject<'_> {
    /// Starts a call and returns its number.
    pub(super) fn start(&self, op: &str, payload: Vec<u8>) -> Result<u64, Outcome> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        *self.bench.last() = Some(self.line.shown(call, op, &payload));
        match self.line.start(call, op, payload) {
            0 => Ok(call),
            refused => failed(format!("{op}: start returned {refused}")),
        }
    }

    pub(super) fn execute(&self, request: &ExecutionRequest) -> Result<u64, Outcome> {
        self.start("execute", bytes(&unique(request)))
    }

    /// Waits for the end of a call.
    pub(super) fn ending(&self, op: &str, call: u64) -> Result<Ending, Outcome> {
        let patience = self.bench.options.patience;
        match self.recorder().ending(call, patience) {
            Some(ending) => Ok(ending),
            None => {
                let faults = self.recorder().faults().join("; ");
                let because = if faults.is_empty() { "" } else { ": " };
                let seen = format!("{op}: no answer within {patience:?}{because}{faults}");
                if op == "initialize" {
                    self.bench.mute.get_or_init(|| seen.clone());
                }
                failed(seen)
            }
        }
    }

    /// Waits for the answer of a call, success or error.
    pub(super) fn answer(
        &self,
        op: &str,
        call: u64,
    ) -> Result<Result<Vec<u8>, AdapterError>, Outcome> {
        match self.ending(op, call)? {
            Ending::Answered(answer) => Ok(answer),
            Ending::Abandoned => failed(format!("{op}: the call was abandoned")),
        }
    }

    /// Waits for the result of an execution. An error of `execute` counts as a result.
    pub(super) fn result(&self, call: u64) -> Result<ExecutionResult, Outcome> {
        match self.answer("execute", call)? {
            Ok(answer) => parsed("execute", &answer),
            Err(error) => Ok(ExecutionResult {
                retryable: Some(error.retryable),
                retry_after_ms: error.retry_after_ms,
                ..ExecutionResult::error(error.code, error.message)
            }),
        }
    }

    /// Runs a request that must succeed.
    pub(super) fn succeed(&self, request: &ExecutionRequest) -> Result<ExecutionResult, Outcome> {
        let call = self.execute(request)?;
        self.success(call)
    }

    /// Waits for an execution that must succeed.
    pub(super) fn success(&self, call: u64) -> Result<ExecutionResult, Outcome> {
        let result = self.result(call)?;
        ensure(result.status == Status::Ok, || {
            let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
            format!(
                "execute ended with {}: {}",
                text(&result.error_code),
                text(&result.error)
            )
        })?;
        Ok(result)
    }

    /// Calls an op that must succeed.
    pub(super) fn ask<I: Serialize, O: DeserializeOwned>(
        &self,
        op: &str,
        arguments: &I,
    ) -> Result<O, Outcome> {
        let call = self.start(op, bytes(arguments))?;
        match self.answer(op, call)? {
            Ok(answer) => parsed(op, &answer),
            Err(error) => failed(format!("{op}: {}: {error}", error.code)),
        }
    }

    /// Calls an op that must fail and returns its error.
    pub(super) fn refusal(&self, op: &str, payload: Vec<u8>) -> Result<AdapterError, Outcome> {
        let call = self.start(op, payload)?;
        match self.answer(op, call)? {
            Err(error) => Ok(error),
            Ok(answer) => failed(format!(
                "{op}: answered {}, expected an error",
                String::from_utf8_lossy(&answer)
            )),
        }
    }

    pub(super) fn patience(&self) -> Duration {
        self.bench.options.patience
    }

    pub(super) fn drop_call(&self, call: u64) -> i32 {
        self.line.cancel(call)
    }

    pub(super) fn recorder(&self) -> &'static Recorder {
        self.line.recorder()
    }

    /// Fails if the recorder saw a protocol violation.
    pub(super) fn faultless(&self) -> Result<(), Outcome> {
        let faults = self.recorder().faults();
        ensure(faults.is_empty(), || faults.join("; "))
    }
}

pub(super) fn bytes<T: Serialize>(value: &T) -> Vec<u8> {
    serde_json::to_vec(value).expect("requests are plain JSON")
}

fn parsed<T: DeserializeOwned>(op: &str, answer: &[u8]) -> Result<T, Outcome> {
    serde_json::from_slice(answer).or_else(|error| {
        let answer = String::from_utf8_lossy(answer);
        failed(format!("{op}: {error} in {answer}"))
    })
}
