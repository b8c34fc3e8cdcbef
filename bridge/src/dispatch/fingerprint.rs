//! What makes two dispatches the same: their canonical bytes, which the vault turns into a keyed hash.

use crate::store::record::{IdempotencyKey, KeySpace};

use super::request::Dispatch;
use super::trace::Trace;

/// The normalised dispatch without what may differ between two sendings of the same step: `deadline`,
/// `notBefore`, `metadata` and the trace. Secrets and the callback's headers are not in a dispatch.
pub fn canonical(dispatch: &Dispatch) -> Vec<u8> {
    let counted = Dispatch {
        deadline: None,
        not_before: None,
        metadata: None,
        trace: Trace::none(),
        ..dispatch.clone()
    };
    // Members stand in the order of the struct, or sorted where they are the caller's own.
    serde_json::to_vec(&counted).expect("a dispatch has only text keys")
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

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Tool;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::dispatch::request::tests::minimal;
    use crate::dispatch::request::{Callback, RetryPolicy};

    fn callback() -> Callback {
        Callback {
            url: "https://a.example/".into(),
            origin: "https://a.example:443".into(),
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
