//! Selection of one adapter, by `?provider=` or by its interfaces, and calls of its management ops. Independent of
//! the individual ops.

use std::time::Duration;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use forge_adapter_api::AdapterError;
use serde_json::{Value, json};

use super::auth::{Auth, Caller};
use super::error::{Code, Failure};
use super::query::Query;
use super::{Phase, ProcessState};
use forge_plugin_host::{Adapter, Registry};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Ops after which the runtime can have other agents than before.
const CHANGES_AGENTS: [&str; 6] = [
    "agents.create",
    "agents.update",
    "agents.remove",
    "runtime.pushAgent",
    "runtime.removeAgent",
    "system.reloadConfig",
];
/// Longest name of a changed entry in the log; longer ones are truncated.
const ENTRY_BYTES: usize = 256;

/// Adapter selection of a management request.
pub(super) struct ManagementTarget {
    registry: Registry,
    auth: Auth,
    named: Option<String>,
}

/// Call that an adapter answered.
struct Called {
    adapter: Adapter,
    op: &'static str,
    answer: Result<Vec<u8>, Failure>,
}

impl<S> FromRequestParts<S> for ManagementTarget
where
    S: Sync,
    Registry: FromRef<S>,
    Auth: FromRef<S>,
    ProcessState: FromRef<S>,
{
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        if *ProcessState::from_ref(state).phase.borrow() == Phase::Draining {
            return Err(Failure::new(Code::Draining, "the bridge is shutting down"));
        }
        let Ok(mut query) = Query::from_request_parts(parts, state).await;
        let named = query.text("provider");
        query.finish()?;
        let (registry, auth) = (Registry::from_ref(state), Auth::from_ref(state));
        Ok(Self {
            registry,
            auth,
            named,
        })
    }
}

/// Op and its arguments.
pub(super) type Candidate = (&'static str, Value);

impl ManagementTarget {
    /// Calls a reading op; an answer of `null` becomes 404.
    pub(super) async fn read(&self, candidates: Vec<Candidate>) -> Result<Response, Failure> {
        let answer = self.call(candidates).await?.answer?;
        match answer.trim_ascii() {
            b"null" => Err(Failure::new(
                Code::NotFound,
                "the adapter has no entry with this name",
            )),
            _ => Ok(raw(answer)),
        }
    }

    /// Calls a changing op and logs the change of `entry`, without its content. An answer of `false` becomes 404, one
    /// without content 204. Routing knows the agents that the runtime then has when this returns.
    pub(super) async fn change(
        &self,
        by: Caller,
        entry: &str,
        candidates: Vec<Candidate>,
    ) -> Result<Response, Failure> {
        let called = self.call(candidates).await?;
        self.log(by, entry, &called);
        if CHANGES_AGENTS.contains(&called.op) {
            called.adapter.refresh_agents().await;
        }
        let answer = called.answer?;
        match answer.trim_ascii() {
            b"false" => Err(Failure::new(
                Code::NotFound,
                "the adapter has no entry with this name",
            )),
            b"" | b"null" | b"true" | b"{}" => Ok(StatusCode::NO_CONTENT.into_response()),
            _ => Ok(raw(answer)),
        }
    }

    fn log(&self, by: Caller, entry: &str, called: &Called) {
        let (provider, op) = (called.adapter.provider(), called.op);
        let caller = self.auth.token_name(by);
        let entry = &entry[..entry.floor_char_boundary(ENTRY_BYTES)];
        let outcome = match &called.answer {
            Ok(_) => "done",
            Err(failure) => failure.code().as_str(),
        };
        tracing::info!(
            adapter.id = provider,
            op,
            entry,
            caller,
            "{op} {entry:?} on adapter {provider} by {caller}: {outcome}"
        );
    }

    /// Calls the first candidate whose interface the adapter has and which it does not reject as unsupported.
    async fn call(&self, candidates: Vec<Candidate>) -> Result<Called, Failure> {
        let adapter = self.pick(&candidates)?;
        for (op, arguments) in candidates {
            if !adapter.has_interface(interface(op)) {
                continue;
            }
            let payload = arguments.to_string().into_bytes();
            let answer = match adapter.call(op, payload, TIMEOUT).await {
                Ok(answer) => whole(answer, adapter.provider(), op),
                Err(error) if error.code == "unsupported_op" => continue,
                Err(error) => Err(failure(adapter.provider(), &error)),
            };
            return Ok(Called {
                adapter,
                op,
                answer,
            });
        }
        let message = format!("the adapter {:?} does not support this", adapter.provider());
        Err(Failure::new(Code::NotSupported, message))
    }

    /// Returns the named adapter; without a name the only one with the interface, or the default one if it has it.
    fn pick(&self, candidates: &[Candidate]) -> Result<Adapter, Failure> {
        let able = |adapter: &Adapter| {
            let mut ops = candidates.iter().map(|(op, _)| *op);
            ops.any(|op| adapter.has_interface(interface(op)))
        };
        if let Some(provider) = &self.named {
            let adapter = self.registry.get(provider).ok_or_else(|| {
                let message = format!("there is no adapter {provider:?}");
                Failure::new(Code::UnknownProvider, message)
            })?;
            return match adapter.load_error() {
                // Its interfaces are not known.
                Some(_) => Err(Failure::new(
                    Code::AdapterUnavailable,
                    format!("the adapter {provider:?} is not loaded; GET /api/health says why"),
                )),
                None => Ok(adapter),
            };
        }
        let mut adapters = self.registry.adapters();
        adapters.retain(able);
        let default = self.registry.default_provider();
        if let Some(adapter) = adapters.iter().find(|a| Some(a.provider()) == default) {
            return Ok(adapter.clone());
        }
        match adapters.as_slice() {
            [] => Err(Failure::new(
                Code::NotSupported,
                "no loaded adapter supports this",
            )),
            [only] => Ok(only.clone()),
            several => {
                let names: Vec<&str> = several.iter().map(Adapter::provider).collect();
                let message = format!("must name an adapter: {}", names.join(" or "));
                Err(Failure::field("provider", message))
            }
        }
    }
}

/// Interface of an op: `agents` for `agents.list`.
fn interface(op: &str) -> &str {
    op.split_once('.').map_or(op, |(interface, _)| interface)
}

/// Checks that an answer is empty or JSON before it is passed on: adapters can be written in any language.
fn whole(answer: Vec<u8>, provider: &str, op: &str) -> Result<Vec<u8>, Failure> {
    match serde_json::from_slice::<serde::de::IgnoredAny>(&answer) {
        Ok(_) => Ok(answer),
        Err(_) if answer.is_empty() => Ok(answer),
        Err(error) => {
            let message = format!("the answer to {op} is not JSON: {error}");
            Err(failure(
                provider,
                &AdapterError::new("protocol_violation", message),
            ))
        }
    }
}

fn raw(answer: Vec<u8>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], answer).into_response()
}

fn failure(provider: &str, error: &AdapterError) -> Failure {
    let code = match error.code.as_str() {
        "invalid_request" => Code::InvalidRequest,
        "not_found" => Code::NotFound,
        "conflict" => Code::Conflict,
        "adapter_unavailable" | "adapter_crashed" => Code::AdapterUnavailable,
        _ => Code::AdapterError,
    };
    let message = match error.code.as_str() {
        // The text of a panic is internal to the adapter; it is in the bridge's log.
        "adapter_panic" => format!("the adapter {provider:?} panicked"),
        _ => format!("the adapter {provider:?} says: {}", error.message),
    };
    let details = json!({ "errorCode": error.code, "retryable": error.retryable });
    Failure::new(code, message)
        .with_details(details)
        .because(error.clone())
}

#[cfg(test)]
mod tests {
    use super::super::Phase;
    use super::super::testing::Edge;
    use super::*;

    #[tokio::test]
    async fn an_adapter_without_the_interface_says_so() {
        let edge = Edge::new().await;
        for path in [
            "/api/v2/agents",
            "/api/v2/models",
            "/api/v2/skills?provider=echo",
        ] {
            let answer = edge.get(path).await;
            assert_eq!(answer.status, 404, "{path}");
            assert_eq!(answer.envelope()["code"], "NOT_SUPPORTED", "{path}");
        }
        let unknown = edge.get("/api/v2/agents?provider=absent").await;
        assert_eq!(unknown.envelope()["code"], "UNKNOWN_PROVIDER");
        edge.phase.send_replace(Phase::Draining);
        let draining = edge.get("/api/v2/agents").await;
        assert_eq!(draining.envelope()["code"], "DRAINING");
        assert_eq!(draining.header("retry-after"), "5");
    }

    #[test]
    fn an_answer_that_is_no_json_is_the_adapters_fault() {
        for (answer, passed) in [
            ("[]", true),
            ("", true),
            ("null", true),
            ("[", false),
            ("{} x", false),
        ] {
            let checked = whole(answer.into(), "echo", "agents.list");
            let code = checked.as_ref().map_err(Failure::code).map(Vec::len);
            let expected = if passed {
                Ok(answer.len())
            } else {
                Err(Code::AdapterError)
            };
            assert_eq!(code, expected, "{answer}");
        }
    }

    #[test]
    fn what_an_adapter_says_becomes_a_status() {
        for (code, status) in [
            ("invalid_request", 400),
            ("not_found", 404),
            ("conflict", 409),
            ("adapter_unavailable", 503),
            ("upstream_error", 502),
            ("adapter_panic", 502),
        ] {
            let failure = failure("echo", &AdapterError::new(code, "why"));
            assert_eq!(failure.code().status(), status, "{code}");
        }
    }
}
