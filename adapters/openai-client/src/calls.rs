//! Accumulates the tool calls of an answer from their pieces.

use std::collections::HashSet;

use forge_adapter_api::result::ToolCall;
use forge_adapter_api::{AdapterError, foreign_json};
use serde_json::Value;

use crate::names::Names;

const MOST_CALLS: usize = 256;

/// Tool calls, in the order in which they began.
#[derive(Debug, Default)]
pub(crate) struct Calls(Vec<Call>);

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl Calls {
    /// Adds a piece of a call, which is at `place` of its list; returns the number of bytes.
    pub(crate) fn add(&mut self, place: usize, piece: &Value) -> Result<usize, AdapterError> {
        let id = piece["id"].as_str().unwrap_or_default();
        let index = foreign_json::count(&piece["index"]);
        let function = &piece["function"];
        let name = function["name"].as_str().unwrap_or_default();
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            whole => whole.to_string(),
        };
        let at = match self.continued(place, index, id) {
            Some(at) => at,
            None if self.0.len() < MOST_CALLS => {
                self.0.push(Call {
                    index,
                    ..Call::default()
                });
                self.0.len() - 1
            }
            None => {
                let text = format!("the answer has more than {MOST_CALLS} calls of tools");
                return Err(AdapterError::new("upstream_error", text));
            }
        };
        let call = &mut self.0[at];
        if call.id.is_empty() {
            id.clone_into(&mut call.id);
        }
        // Some servers repeat the name with each piece.
        if call.name.is_empty() {
            name.clone_into(&mut call.name);
        }
        call.arguments.push_str(&arguments);
        Ok(id.len() + name.len() + arguments.len())
    }

    /// The call that a piece continues. Some servers send no index, and some one index with the ids of several calls.
    fn continued(&self, place: usize, index: Option<u64>, id: &str) -> Option<usize> {
        let fits = |call: &Call| id.is_empty() || call.id.is_empty() || call.id == id;
        match index {
            Some(_) => self
                .0
                .iter()
                .rposition(|call| call.index == index)
                .filter(|at| fits(&self.0[*at])),
            None if !id.is_empty() => self.0.iter().position(|call| call.id == id),
            // Without index and id, the first of a list continues the last call.
            None if place == 0 => self.0.len().checked_sub(1),
            None => None,
        }
    }

    /// The calls with the caller's names, each with an id of its own. Fails if the model called a tool that it was not
    /// offered, or if arguments are not JSON: the model generated invalid text, or the server truncated it.
    pub(crate) fn whole(&self, names: &Names) -> Result<Vec<ToolCall>, AdapterError> {
        let mut ids = HashSet::new();
        let calls = self.0.iter().enumerate().map(|(number, call)| {
            let name = names.to_caller(&call.name).ok_or_else(|| {
                invalid(match call.name.as_str() {
                    "" => "the model called a tool without naming it".to_owned(),
                    name => format!("the model called {name:?}, a tool that it was not offered"),
                })
            })?;
            let arguments = match call.arguments.trim() {
                "" => "{}",
                arguments => arguments,
            };
            let input = foreign_json::from_str(arguments).map_err(|error| {
                invalid(format!(
                    "the arguments of a call of {} are not JSON: {error}",
                    call.name
                ))
            })?;
            let mut id = match call.id.as_str() {
                "" => format!("call_{number}"),
                id => id.to_owned(),
            };
            while !ids.insert(id.clone()) {
                id = format!("{id}_{number}");
            }
            Ok(ToolCall {
                tool_call_id: id,
                name: name.to_owned(),
                input,
            })
        });
        calls.collect()
    }
}

fn invalid(text: String) -> AdapterError {
    AdapterError::new("upstream_error", text).retryable()
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Tool;
    use serde_json::json;

    use super::*;

    fn whole(pieces: &[Value]) -> Result<Vec<(String, Value)>, String> {
        let mut calls = Calls::default();
        for list in pieces {
            for (place, piece) in list.as_array().unwrap().iter().enumerate() {
                calls.add(place, piece).unwrap();
            }
        }
        let tool = Tool {
            name: "look".to_owned(),
            description: None,
            input_schema: json!({}),
        };
        let calls = calls.whole(&Names::new(&[tool]));
        let calls = calls.map_err(|error| error.message)?;
        Ok(calls
            .into_iter()
            .map(|call| (call.tool_call_id, call.input))
            .collect())
    }

    fn begun(index: Option<u64>, id: &str, arguments: &str) -> Value {
        json!({"index": index, "id": id, "function": {"name": "look", "arguments": arguments}})
    }

    #[test]
    fn calls_are_told_apart_by_index_and_id() {
        let two = Ok(vec![("a".to_owned(), json!(1)), ("b".to_owned(), json!(2))]);
        let one_index = [
            json!([begun(Some(0), "a", "1")]),
            json!([begun(Some(0), "b", "")]),
            json!([{"index": 0, "function": {"arguments": "2"}}]),
        ];
        assert_eq!(whole(&one_index), two);
        let floats = [
            json!([{"index": 0.0, "id": "a", "function": {"name": "look", "arguments": "1"}},
                             {"index": 1.0, "id": "b", "function": {"name": "look", "arguments": "2"}}]),
        ];
        assert_eq!(whole(&floats), two);
        let one_id = [json!([begun(Some(0), "a", "1"), begun(Some(1), "a", "2")])];
        let named = Ok(vec![
            ("a".to_owned(), json!(1)),
            ("a_1".to_owned(), json!(2)),
        ]);
        assert_eq!(whole(&one_id), named);
        let bare = [json!([begun(None, "", "1"), begun(None, "", "2")])];
        let numbered = vec![
            ("call_0".to_owned(), json!(1)),
            ("call_1".to_owned(), json!(2)),
        ];
        assert_eq!(whole(&bare), Ok(numbered));
    }

    #[test]
    fn a_call_of_no_tool_is_an_error_of_the_model() {
        for (name, said) in [("", "without naming it"), ("made up", "\"made up\"")] {
            let called =
                json!([{"index": 0, "id": "a", "function": {"name": name, "arguments": "{}"}}]);
            let error = whole(&[called]).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
