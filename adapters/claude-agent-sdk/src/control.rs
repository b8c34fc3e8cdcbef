//! The control protocol: requests to the program, and answers to the program's requests.

use forge_adapter_transport::caller_tools::{self, CallerTools};
use serde_json::{Value, json};

use crate::policy::Policy;

/// Request id of `initialize`.
pub(crate) const INITIALIZE: &str = "forge-initialize";
/// Request id of `mcp_status`.
pub(crate) const MCP_STATUS: &str = "forge-mcp-status";
const INTERRUPT: &str = "forge-interrupt";
/// Hook that ends a turn after a call of the caller's tools.
const HAND_OVER: &str = "hand-over";
/// The program's built-in tool for asking the user.
const QUESTION: &str = "AskUserQuestion";

/// The `initialize` request.
pub(crate) fn initialize(agents: &Value, tools: &CallerTools) -> Value {
    let mut request = json!({"subtype": "initialize", "hooks": null, "agents": agents, "forwardSubagentText": true});
    if !tools.is_empty() {
        request["hooks"] = json!({
            "PostToolUse": [{"matcher": format!("mcp__{}__.*", caller_tools::SERVER), "hookCallbackIds": [HAND_OVER]}],
        });
    }
    json!({"type": "control_request", "request_id": INITIALIZE, "request": request})
}

/// Request that ends the current turn; the program still writes the turn's result.
pub(crate) fn interrupt() -> Value {
    json!({"type": "control_request", "request_id": INTERRUPT, "request": {"subtype": "interrupt"}})
}

/// Request for the state of the MCP servers.
pub(crate) fn mcp_status() -> Value {
    json!({"type": "control_request", "request_id": MCP_STATUS, "request": {"subtype": "mcp_status"}})
}

pub(crate) fn user(content: &Value) -> Value {
    json!({
        "type": "user", "session_id": "", "parent_tool_use_id": null,
        "message": {"role": "user", "content": content},
    })
}

/// A further message of the user, whose state the program reports by this id. It gives it to the model beside the next
/// tool result of the running turn, or in a turn of its own when no call follows.
pub(crate) fn steering(text: &str, id: &str) -> Value {
    let mut line = user(&text.into());
    line["uuid"] = id.into();
    line
}

/// Answers the program's requests during one run.
pub(crate) struct Control {
    pub(crate) policy: Policy,
    pub(crate) tools: CallerTools,
    /// Question to a human, if the agent asked one.
    pub(crate) question: Option<Value>,
}

impl Control {
    /// Answers a `control_request` line.
    pub(crate) fn answer(&mut self, line: &Value) -> Value {
        let request = &line["request"];
        let answer = match request["subtype"].as_str().unwrap_or_default() {
            "can_use_tool" => Ok(self.permission(request)),
            "mcp_message" => Ok(json!({"mcp_response": self.tools.answer(&request["message"])})),
            "hook_callback" => Ok(hook(request)),
            subtype => Err(format!("{subtype} is not supported")),
        };
        let id = &line["request_id"];
        let response = match answer {
            Ok(response) => json!({"subtype": "success", "request_id": id, "response": response}),
            Err(error) => json!({"subtype": "error", "request_id": id, "error": error}),
        };
        json!({"type": "control_response", "response": response})
    }

    fn permission(&mut self, request: &Value) -> Value {
        let tool = request["tool_name"].as_str().unwrap_or_default();
        let input = &request["input"];
        if tool == QUESTION {
            self.question = Some(input.clone());
            return json!({
                "behavior": "deny", "interrupt": true,
                "message": "The question was handed to the caller. The answer comes with the next message.",
            });
        }
        match self.policy.decide(tool, input) {
            Ok(()) => json!({"behavior": "allow", "updatedInput": input}),
            Err(reason) => json!({"behavior": "deny", "interrupt": false, "message": reason}),
        }
    }
}

fn hook(request: &Value) -> Value {
    if request["callback_id"] == HAND_OVER {
        json!({"continue": false, "stopReason": "handed to the caller"})
    } else {
        json!({})
    }
}

#[cfg(test)]
mod tests {
    use forge_adapter_api::request::Tool;

    use super::*;
    use crate::config::Permission;

    fn control() -> Control {
        let tool = Tool {
            name: "ask".to_owned(),
            description: None,
            input_schema: json!({}),
        };
        Control {
            policy: Policy {
                permission: Permission::Deny,
                workspace: None,
            },
            tools: CallerTools::new("dsp_1/1", &[tool]),
            question: None,
        }
    }

    fn ask(control: &mut Control, request: &Value) -> Value {
        let line = json!({"type": "control_request", "request_id": "r1", "request": request});
        let answer = control.answer(&line)["response"].clone();
        assert_eq!(answer["request_id"], "r1");
        answer
    }

    #[test]
    fn a_call_without_permission_is_denied_with_the_reason() {
        let mut control = control();
        let answer = ask(
            &mut control,
            &json!({"subtype": "can_use_tool", "tool_name": "Bash", "input": {}}),
        );
        assert_eq!(answer["response"]["behavior"], "deny");
        assert_eq!(
            answer["response"]["message"],
            "The bridge's policy denies Bash."
        );
    }

    #[test]
    fn a_question_to_a_human_ends_the_turn() {
        let mut control = control();
        let input = json!({"questions": [{"question": "which?"}]});
        let answer = ask(
            &mut control,
            &json!({"subtype": "can_use_tool", "tool_name": "AskUserQuestion", "input": input}),
        );
        assert_eq!(answer["response"]["interrupt"], true);
        assert_eq!(control.question, Some(input));
    }

    #[test]
    fn a_call_of_the_callers_tool_is_kept_and_the_hook_ends_the_turn() {
        let mut control = control();
        let call =
            json!({"id": 3, "method": "tools/call", "params": {"name": "ask", "arguments": {}}});
        ask(
            &mut control,
            &json!({"subtype": "mcp_message", "server_name": "forge", "message": call}),
        );
        assert!(control.tools.were_called());
        let answer = ask(
            &mut control,
            &json!({"subtype": "hook_callback", "callback_id": "hand-over"}),
        );
        assert_eq!(answer["response"]["continue"], false);
        assert_eq!(
            initialize(&json!({}), &control.tools)["request"]["hooks"]["PostToolUse"][0]["matcher"],
            "mcp__forge__.*"
        );
    }

    #[test]
    fn an_unknown_request_is_answered_with_an_error() {
        let answer = ask(&mut control(), &json!({"subtype": "elicitation"}));
        assert_eq!(
            (&answer["subtype"], &answer["error"]),
            (&json!("error"), &json!("elicitation is not supported"))
        );
    }
}
