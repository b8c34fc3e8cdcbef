//! What makes two dispatches the same: their canonical bytes, which the vault turns into a keyed hash.

use serde_json::Value;

use crate::store::record::{IdempotencyKey, KeySpace};

use super::request::Dispatch;

/// The normalised dispatch without what may differ between two sendings of the same step: callback
/// headers, `deadline`, `notBefore`, `metadata` and the trace. Secrets are not in a dispatch.
pub fn canonical(dispatch: &Dispatch) -> Vec<u8> {
    let mut value = serde_json::to_value(dispatch).expect("a dispatch has only text keys");
    let left_out = [
        "deadline",
        "notBefore",
        "metadata",
        "traceId",
        "traceparent",
        "parentSpanId",
    ];
    if let Value::Object(members) = &mut value {
        for name in left_out {
            members.remove(name);
        }
        if let Some(Value::Object(callback)) = members.get_mut("callback") {
            callback.remove("headers");
        }
    }
    let mut bytes = Vec::new();
    write(&value, &mut bytes);
    bytes
}

/// Under which key a dispatch is known: the header's, else its task id.
pub fn key(dispatch: &Dispatch, header: Option<&str>) -> IdempotencyKey {
    match header {
        Some(header) => IdempotencyKey {
            space: KeySpace::Header,
            value: header.to_owned(),
        },
        None => IdempotencyKey {
            space: KeySpace::Task,
            value: dispatch.task_id.clone(),
        },
    }
}

/// JSON with sorted members, whatever order the map type keeps.
fn write(value: &Value, bytes: &mut Vec<u8>) {
    match value {
        Value::Object(members) => {
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            bytes.push(b'{');
            for (name, member) in sorted {
                write_scalar(&Value::from(name.as_str()), bytes);
                bytes.push(b':');
                write(member, bytes);
                bytes.push(b',');
            }
            bytes.push(b'}');
        }
        Value::Array(elements) => {
            bytes.push(b'[');
            for element in elements {
                write(element, bytes);
                bytes.push(b',');
            }
            bytes.push(b']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            write_scalar(value, bytes);
        }
    }
}

fn write_scalar(value: &Value, bytes: &mut Vec<u8>) {
    serde_json::to_writer(bytes, value).expect("writing into memory cannot fail");
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use forge_adapter_api::request::Tool;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::dispatch::request::tests::minimal;
    use crate::dispatch::request::{Callback, RetryPolicy};
    use crate::dispatch::trace::Trace;

    fn callback() -> Callback {
        Callback {
            url: "https://a.example/".into(),
            origin: "https://a.example:443".into(),
            headers: BTreeMap::new(),
            retry: RetryPolicy::Default,
        }
    }

    #[test]
    fn what_may_differ_does_not_count() {
        let base = Dispatch {
            callback: Some(callback()),
            ..minimal()
        };
        let again = Dispatch {
            callback: Some(Callback {
                headers: [("x-a".to_owned(), "1".to_owned())].into(),
                ..callback()
            }),
            not_before: Some(Timestamp::UNIX_EPOCH),
            deadline: Some(Timestamp::MAX),
            metadata: json!({"try": 2}).as_object().cloned(),
            trace: Trace::from_header(Some(
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            )),
            ..base.clone()
        };
        assert_eq!(canonical(&base), canonical(&again));
    }

    #[test]
    fn everything_else_counts() {
        let base = Dispatch {
            callback: Some(callback()),
            ..minimal()
        };
        let change = |change: fn(&mut Dispatch)| {
            let mut changed = base.clone();
            change(&mut changed);
            changed
        };
        for changed in [
            change(|d| d.task_id.push('x')),
            change(|d| d.message.push('x')),
            change(|d| d.provider = Some("echo".into())),
            change(|d| d.system_prompt = Some(String::new())),
            change(|d| d.timeout *= 2),
            change(|d| d.priority = 1),
            change(|d| d.session_id = Some("s".into())),
            change(|d| d.run_id = Some("r".into())),
            change(|d| d.callback = None),
            change(|d| d.callback.as_mut().unwrap().retry = RetryPolicy::Compat),
        ] {
            assert_ne!(canonical(&base), canonical(&changed), "{changed:?}");
        }
    }

    #[test]
    fn the_order_of_members_does_not_count_but_that_of_elements_does() {
        let with_schema = |text: &str| {
            let input_schema = serde_json::from_str(text).unwrap();
            let tool = Tool {
                name: "t".into(),
                description: None,
                input_schema,
            };
            canonical(&Dispatch {
                tools: vec![tool],
                trace: Trace::from_header(None),
                ..minimal()
            })
        };
        let one = with_schema(r#"{"a": [1, 2], "b": {"c": 1, "d": 2}}"#);
        assert_eq!(one, with_schema(r#"{"b": {"d": 2, "c": 1}, "a": [1, 2]}"#));
        assert_ne!(one, with_schema(r#"{"a": [2, 1], "b": {"c": 1, "d": 2}}"#));
    }

    #[test]
    fn a_header_and_a_task_id_never_meet() {
        let dispatch = minimal();
        let by_header = key(&dispatch, Some("task"));
        let by_task = key(&dispatch, None);
        assert_eq!(by_header.value, by_task.value);
        assert_ne!(by_header, by_task);
    }
}
