//! One call of an entry, from its name to the answer for the caller: policy, arguments, limits, transport.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use reqwest::header::HeaderValue;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use forge_base::schema;
use forge_base::trace::{TraceContext, TraceId};
use forge_net::breaker::Health;
use forge_process::program::Program;

use crate::answer::{self, FAILED, Reply, Status};
use crate::diagnostic::Diagnostic;
use crate::identity::Identity;
use crate::load::Place;
use crate::manifest::EntryKind;
use crate::registry::REGISTRY;
use crate::repeat::{Repeat, is_temporary};
use crate::services::{ActiveService, External};
use crate::span::CallRecord;
use crate::target::Target;
use crate::transport::{End, grpc, http, stdio};

pub const NOT_FOUND: &str = "FORGE_EXTERNAL_RUNTIME_NOT_FOUND";
pub const UNSUPPORTED: &str = "FORGE_EXTERNAL_RUNTIME_UNSUPPORTED";
pub const TIMEOUT: &str = "FORGE_EXTERNAL_RUNTIME_TIMEOUT";
pub const UNAVAILABLE: &str = "FORGE_EXTERNAL_RUNTIME_UNAVAILABLE";
pub const INPUT_INVALID: &str = "FORGE_EXTERNAL_INPUT_INVALID";
pub const DENIED: &str = "FORGE_POLICY_DENIED";

/// Size of an answer above which parsing it would delay other tasks of the thread.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;

/// Call of an entry.
#[derive(Debug)]
pub struct Call<'a> {
    pub kind: EntryKind,
    pub service: &'a str,
    pub entry: &'a str,
    pub args: Value,
    pub caller: &'a Identity,
    /// Span of the call.
    pub trace: TraceContext,
    /// Span id of the caller, if it has one.
    pub parent: Option<u64>,
    /// Value of `Authorization` for the service.
    pub authorization: Option<HeaderValue>,
    /// Value that is the same each time this call is made.
    pub idempotency_key: Option<String>,
}

/// Answer to the caller.
#[derive(Debug)]
pub struct Answered {
    pub outcome: Outcome,
    pub result: Option<Value>,
    pub diagnostics: Vec<Value>,
    pub trace_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    Denied,
    /// Refused before the call: unknown entry, wrong arguments, a transport that is not available.
    Refused,
    Failed,
    TimedOut,
    /// Refused for now: the breaker is open, or the service has no place. With the time to wait.
    Unavailable(Duration),
}

/// Call that may be made, without its arguments as a tree.
#[derive(Debug)]
pub struct Prepared {
    external: External,
    service: Arc<ActiveService>,
    kind: EntryKind,
    /// Index of the entry in the manifest.
    index: usize,
    /// Entry in error texts.
    described: String,
    message: Message,
    trace: TraceContext,
    parent: Option<u64>,
    /// The call waits for an approval.
    is_held: bool,
}

#[derive(Debug)]
enum Message {
    Http(http::Message),
    Program(stdio::Message, Program),
    Grpc(grpc::Message, Arc<grpc::Server>),
}

/// Time after which there may be a place at the service, and the reason why there is none.
type NoPlace = (Duration, &'static str);

/// End of a call without an answer of the service.
type Stopped = (Outcome, Box<Diagnostic>);

impl External {
    /// Checks if a call may be made: the entry, the policy, the arguments, the transport.
    pub fn prepare(&self, call: &Call<'_>) -> Result<Prepared, Answered> {
        let services = self.services();
        let Some((service, index)) = services.find(call.kind, call.service, call.entry) else {
            return Err(answered(call.trace, Err(not_found(call))));
        };
        self.message(&service, index, call)
            .map(|message| Prepared {
                external: self.clone(),
                kind: call.kind,
                index,
                described: described(call),
                message,
                trace: call.trace,
                parent: call.parent,
                is_held: self.rules().holds(&service.manifest.entries[index]),
                service,
            })
            .map_err(|stopped| {
                drop(CallRecord {
                    external: self,
                    service: call.service,
                    entry: call.entry,
                    kind: call.kind,
                    trace: call.trace,
                    parent: call.parent,
                    begun: Timestamp::now(),
                    outcome: Some(stopped.0),
                });
                answered(call.trace, Err(stopped))
            })
    }

    fn message(
        &self,
        service: &ActiveService,
        index: usize,
        call: &Call<'_>,
    ) -> Result<Message, Stopped> {
        let entry = &service.manifest.entries[index];
        let config = self.config();
        let rules = self.rules();
        let stop = |outcome, code, message| stopped(outcome, code, message, call.service);
        let denied = rules.decide(entry, call.caller);
        denied.map_err(|reason| stop(Outcome::Denied, DENIED, reason))?;
        let schema = service.schemas[index].as_ref().filter(|_| config.validate);
        if let Some(mismatch) = schema.and_then(|schema| schema::mismatch(schema, &call.args)) {
            let message = format!("args do not match inputSchema: {mismatch}");
            return Err(stop(Outcome::Refused, INPUT_INVALID, message));
        }
        match &service.target {
            Target::Http(base) => {
                let message = http::Message::new(base, entry, call);
                message.map(Message::Http).map_err(|(code, reason)| {
                    let message = format!("{}: {reason}", described(call));
                    stop(Outcome::Refused, code, message)
                })
            }
            Target::Program(program) => {
                Ok(Message::Program(stdio::Message::new(call), program.clone()))
            }
            Target::Grpc(server) => match grpc::Message::new(entry, call) {
                Ok(message) => Ok(Message::Grpc(message, Arc::clone(server))),
                Err(reason) => {
                    let message = format!("{}: {reason}", described(call));
                    Err(stop(Outcome::Refused, UNSUPPORTED, message))
                }
            },
            Target::Unsupported(reason) => Err(stop(Outcome::Refused, UNSUPPORTED, reason.clone())),
        }
    }
}

impl Prepared {
    /// True if the call waits for an approval.
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Calls the service. Dropping the future ends the call: a connection is closed, a program is killed.
    pub async fn send(self, repeat: Repeat) -> Answered {
        let manifest = &self.service.manifest;
        let mut record = CallRecord {
            external: &self.external,
            service: &manifest.service.name,
            entry: &manifest.entries[self.index].name,
            kind: self.kind,
            trace: self.trace,
            parent: self.parent,
            begun: Timestamp::now(),
            outcome: None,
        };
        let ended = self.call(repeat).await;
        let answer = answered(self.trace, ended);
        record.outcome = Some(answer.outcome);
        drop(record);
        answer
    }

    async fn call(&self, repeat: Repeat) -> Result<Reply, Stopped> {
        let name = &self.service.manifest.service.name;
        let stop = |outcome, code, message| stopped(outcome, code, message, name);
        let begun = Instant::now();
        let deadline = match repeat {
            Repeat::Briefly => begun + self.service.limits.timeout,
            Repeat::Unconnected(deadline) | Repeat::Temporary(deadline) => deadline,
        };
        let end = self.attempts(deadline, repeat).await;
        let end = end.map_err(|(wait, reason)| {
            let message = format!("external service {name:?} {reason}");
            stop(Outcome::Unavailable(wait), UNAVAILABLE, message)
        })?;
        let described = &self.described;
        match end {
            End::Answered {
                status, body, said, ..
            } => Ok(read(status, body, described.clone(), said).await),
            End::NotConnected(reason) => {
                let message = format!("{described} is not reachable: {reason}");
                Err(stop(Outcome::Failed, FAILED, message))
            }
            End::Refused(code, reason) => {
                let message = format!("{described}: {reason}");
                Err(stop(Outcome::Refused, code, message))
            }
            End::Broken(code, reason) => {
                let message = format!("{described}: {reason}");
                Err(stop(Outcome::Failed, code, message))
            }
            End::TimedOut => {
                let limit = (deadline - begun).as_secs_f64();
                let message = format!("{described} did not answer within {limit:.3} s");
                Err(stop(Outcome::TimedOut, TIMEOUT, message))
            }
        }
    }

    /// Sends the call, and again while that can help and there is time. The place at the service is given back between
    /// two attempts. `Err` if there was none for the first.
    async fn attempts(&self, deadline: Instant, repeat: Repeat) -> Result<End, NoPlace> {
        let mut waits = repeat.waits();
        let mut former = None;
        loop {
            let place = match self.place(deadline, repeat).await {
                Ok(place) => place,
                Err(refused) => return former.ok_or(refused),
            };
            let end = self.attempt(deadline).await;
            if let Some(health) = health_of(&end) {
                place.report(health, &self.external.config().breaker);
            }
            drop(place);
            let planned = waits.next();
            let wait = planned.and_then(|planned| repeat.wait(self.kind, &end, planned));
            let Some(wait) = wait.filter(|wait| Instant::now() + *wait < deadline) else {
                return Ok(end);
            };
            former = Some(end);
            sleep(wait).await;
        }
    }

    /// Takes a place at the service; a durable call waits for one.
    async fn place(&self, deadline: Instant, repeat: Repeat) -> Result<Place, NoPlace> {
        let breaker = &self.external.config().breaker;
        loop {
            let taken = self.service.load.enter(breaker, self.service.limits.calls);
            let Err((wait, reason)) = taken else {
                return taken;
            };
            if repeat == Repeat::Briefly || Instant::now() + wait >= deadline {
                return Err((wait, reason));
            }
            sleep(wait).await;
        }
    }

    async fn attempt(&self, deadline: Instant) -> End {
        let bytes = self.service.limits.answer_bytes;
        let external = &self.external;
        match &self.message {
            Message::Http(message) => message.send(external.client(), deadline, bytes).await,
            Message::Program(message, program) => {
                let launcher = external.launcher();
                message
                    .send(external.trust(), launcher, program, deadline, bytes)
                    .await
            }
            Message::Grpc(message, server) => message.send(server, deadline, bytes).await,
        }
    }
}

fn answered(trace: TraceContext, ended: Result<Reply, Stopped>) -> Answered {
    let (outcome, reply) = match ended {
        Ok(reply) => (outcome_of(&reply), reply),
        Err((outcome, diagnostic)) => (outcome, Reply::failed(&diagnostic)),
    };
    let own = || TraceId(trace.trace).to_string();
    Answered {
        outcome,
        result: reply.result,
        diagnostics: reply.diagnostics,
        trace_id: reply.trace_id.unwrap_or_else(own),
    }
}

fn described(call: &Call<'_>) -> String {
    let kind = call.kind.as_str();
    format!("external {kind} '{}.{}'", call.service, call.entry)
}

fn stopped(outcome: Outcome, code: &str, message: String, service: &str) -> Stopped {
    let file = format!("external:{service}");
    let diagnostic = Diagnostic::error(code, message).within(file);
    (outcome, Box::new(diagnostic))
}

fn not_found(call: &Call<'_>) -> Stopped {
    let message = format!("{} not found", described(call));
    let diagnostic = Diagnostic::error(NOT_FOUND, message).within(REGISTRY);
    (Outcome::Refused, Box::new(diagnostic))
}

/// A service can deny, too.
fn outcome_of(reply: &Reply) -> Outcome {
    let last = || reply.diagnostics.last().map(|last| &last["code"]);
    match &reply.result {
        Some(_) => Outcome::Done,
        None if last().is_some_and(|code| code == DENIED) => Outcome::Denied,
        None => Outcome::Failed,
    }
}

async fn read(status: Status, body: Vec<u8>, described: String, said: String) -> Reply {
    if body.len() <= LARGE_BYTES {
        return answer::read(status, &body, &described, &said);
    }
    let reading = move || answer::read(status, &body, &described, &said);
    let read = tokio::task::spawn_blocking(reading).await;
    read.unwrap_or_else(|error| {
        let message = format!("the answer could not be read: {error}");
        Reply::failed(&Diagnostic::error(FAILED, message))
    })
}

/// Health of the service as seen by a call. A 500 is no sign of an outage: adapters answer it when a handler refuses its
/// arguments.
fn health_of(end: &End) -> Option<Health> {
    match end {
        End::Answered { status, .. } if is_temporary(*status) => Some(Health::Down),
        End::Answered { .. } => Some(Health::Up),
        End::NotConnected(_) | End::Broken(..) | End::TimedOut => Some(Health::Down),
        End::Refused(..) => None,
    }
}
