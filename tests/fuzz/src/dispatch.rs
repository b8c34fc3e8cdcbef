//! The body of a dispatch: parsed, validated, stored, read back, compared.

use std::cell::RefCell;
use std::collections::BTreeSet;

use forge_base::digest::Digest;
use forge_base::json::{self, BodyError};
use forge_dispatch::idempotency::record;
use forge_dispatch::request::{DispatchRequest, Secrets};
use forge_dispatch::validate::{Envelope, Limits, Validated, validate};
use forge_dispatch::{Config, trace::Trace};
use forge_net::guard::Guard;
use secrecy::SecretString;
use serde_json::Value;
use serde_json::value::RawValue;

struct Bridge {
    config: Config,
    mcp_servers: BTreeSet<String>,
    guard: Guard,
}

thread_local! {
    static BRIDGE: RefCell<Bridge> = RefCell::new(Bridge {
        config: Config {
            workspace_roots: vec!["/nowhere".into()],
            ..Config::default()
        },
        mcp_servers: BTreeSet::from(["files".to_owned()]),
        guard: Guard::new(&[]).unwrap(),
    });
}

pub(crate) fn run(data: &[u8]) {
    let read = json::parse(data);
    let plain = serde_json::from_slice::<Value>(data);
    let body = match read {
        Ok(body) => body,
        Err(error) => return refused(&error, plain.is_ok()),
    };
    assert_eq!(body, plain.unwrap(), "a tree of our own");
    let again = json::parse(body.to_string().as_bytes());
    assert_eq!(again.as_ref(), Ok(&body), "the same tree from its own text");
    BRIDGE.with_borrow(|bridge| check(bridge, &body));
}

/// A body that serde accepts must be rejected for a reason of the bridge's own.
fn refused(error: &BodyError, is_json: bool) {
    assert!(!error.to_string().is_empty());
    if is_json {
        assert!(!matches!(
            error,
            BodyError::Syntax { .. } | BodyError::Empty | BodyError::NotUtf8 { .. }
        ));
    }
}

fn check(bridge: &Bridge, body: &Value) {
    let limits = Limits {
        is_step: false,
        config: &bridge.config,
        mcp_servers: &bridge.mcp_servers,
        external: &|name| Err(format!("unknown service {name:?}")),
        callback: &|url| bridge.guard.check_url(url).map_err(|why| why.to_string()),
    };
    let header = body.get("traceparent").and_then(Value::as_str);
    let envelope = Envelope {
        idempotency_key: body.get("key").and_then(Value::as_str),
        traceparent: header,
    };
    match validate(body, &envelope, &limits) {
        Ok(Validated {
            dispatch, secrets, ..
        }) => {
            let text = record(&dispatch).request.get().to_owned();
            if let Some(sealed) = secrets.to_seal() {
                drop(sealed);
                // A header name can contain any text and is not secret.
                let nameless = Secrets {
                    headers: secrets
                        .headers
                        .into_values()
                        .enumerate()
                        .map(named)
                        .collect(),
                    ..secrets
                };
                assert!(!format!("{nameless:?}").contains("whsec_"));
            }
            let stored = RawValue::from_string(text).unwrap();
            let read = DispatchRequest::from_record(&stored).expect("what was stored is read back");
            assert_eq!(read, dispatch);
            assert_eq!(canonical(&read), canonical(&dispatch));
            let elsewhere = DispatchRequest {
                trace: Trace::from_header(None),
                deadline: None,
                metadata: None,
                ..dispatch.clone()
            };
            assert_eq!(canonical(&elsewhere), canonical(&dispatch));
            let other = DispatchRequest {
                message: format!("{}.", dispatch.message),
                ..dispatch.clone()
            };
            assert_ne!(canonical(&other), canonical(&dispatch));
        }
        Err(complaints) => {
            assert!(!complaints.is_empty());
            for complaint in complaints {
                assert!(!complaint.message.is_empty(), "{}", complaint.field);
                assert!(body.is_null() || !body.is_object() || !complaint.field.is_empty());
            }
        }
    }
}

fn named((number, value): (usize, SecretString)) -> (String, SecretString) {
    (number.to_string(), value)
}

/// The value compared for idempotency.
fn canonical(dispatch: &DispatchRequest) -> Digest {
    record(dispatch).fingerprint
}
