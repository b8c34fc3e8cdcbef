//! A line of a runtime as a message: the bridge's JSON format, and JSON-RPC.

use forge_adapter_transport::json_rpc::Incoming;
use forge_adapter_transport::{fuzzing, wire};
use serde_json::{Value, json};

pub(crate) fn run(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else {
        return;
    };
    match wire::message(&value) {
        Ok(wire::Message::Event(event)) => {
            let again = serde_json::to_value(&event).unwrap();
            assert_eq!(wire::message(&again).unwrap(), wire::Message::Event(event));
        }
        Ok(wire::Message::Result(result)) => {
            let again = serde_json::to_value(&result).unwrap();
            assert_eq!(
                wire::message(&again).unwrap(),
                wire::Message::Result(result)
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let again = match fuzzing::message(value.clone()) {
        None => return,
        Some(Incoming::Answer {
            id,
            outcome: Ok(result),
        }) => json!({"id": id, "result": result}),
        Some(Incoming::Answer {
            id,
            outcome: Err(error),
        }) => {
            assert!(!error.message.is_empty());
            let error = json!({"code": error.code, "message": error.message, "data": error.data});
            json!({"id": id, "error": error})
        }
        Some(Incoming::Request { id, method, params }) => {
            json!({"id": id, "method": method, "params": params})
        }
        Some(Incoming::Notification { method, params }) => {
            json!({"method": method, "params": params})
        }
    };
    assert_eq!(fuzzing::message(again), fuzzing::message(value));
}
