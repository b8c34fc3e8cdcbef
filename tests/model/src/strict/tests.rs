//! Tests of `strict`.

use super::*;

fn refused(path: &str, body: &Value) -> bool {
    refusal(path, body).is_some()
}

#[test]
fn conversations_of_services_are_accepted_and_broken_ones_refused() {
    let user = json!({"role": "user", "content": "a"});
    let says = |content: Value| json!({"role": "assistant", "content": content});
    let back = |content: Value| json!({"role": "user", "content": content});
    let text = json!({"type": "text", "text": "b"});
    let thought = json!({"type": "thinking", "thinking": "t", "signature": "s"});
    let call = json!({"type": "tool_use", "id": "1", "name": "n", "input": {}});
    let result = json!({"type": "tool_result", "tool_use_id": "1", "content": ""});
    for (turns, is_good) in [
        (vec![user.clone()], true),
        (
            vec![user.clone(), says(json!([thought, text])), user.clone()],
            true,
        ),
        (
            vec![
                user.clone(),
                says(json!([call])),
                back(json!([result, text])),
            ],
            true,
        ),
        (vec![], false),
        (vec![says(json!("b"))], false),
        (vec![user.clone(), says(json!([])), user.clone()], false),
        (vec![user.clone(), says(json!("")), user.clone()], false),
        (vec![user.clone(), says(json!(" \n")), user.clone()], false),
        (
            vec![user.clone(), says(json!([thought])), user.clone()],
            false,
        ),
        (vec![user.clone(), says(json!([call])), user.clone()], false),
        (vec![user.clone(), says(json!([call]))], false),
        (
            vec![user.clone(), says(json!([text])), back(json!([result]))],
            false,
        ),
        (
            vec![
                user.clone(),
                says(json!([call])),
                back(json!([text, result])),
            ],
            false,
        ),
        (
            vec![json!({"role": "user", "content": "a", "native": 1})],
            false,
        ),
        (vec![json!({"role": "tool", "content": "a"})], false),
    ] {
        let body = json!({"model": "m", "max_tokens": 1, "messages": turns});
        assert_eq!(refused("/messages", &body), !is_good, "{body}");
    }
    let unknown = json!({"max_tokens": 1, "messages": [user], "seed": 1});
    assert!(refused("/messages", &unknown));
}

#[test]
fn chats_need_an_answer_to_each_call_and_no_other() {
    let user = json!({"role": "user", "content": "a"});
    let call = json!({"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]});
    let result = json!({"role": "tool", "tool_call_id": "1", "content": ""});
    for (turns, is_good) in [
        (json!([user, call, result, user]), true),
        (
            json!([user, {"role": "assistant", "content": "b"}, user]),
            true,
        ),
        (json!([]), false),
        (
            json!([user, {"role": "assistant", "content": ""}, user]),
            false,
        ),
        (
            json!([user, {"role": "assistant", "content": "b", "tool_calls": []}]),
            false,
        ),
        (json!([user, call, user]), false),
        (json!([user, call]), false),
        (json!([user, result]), false),
        (
            json!([user, {"role": "assistant", "content": "b", "native": {}}]),
            false,
        ),
    ] {
        let body = json!({"messages": turns});
        assert_eq!(refused("/chat/completions", &body), !is_good, "{turns}");
    }
}

#[test]
fn responses_and_gemini_have_their_own_rules() {
    let thought = json!({"type": "reasoning", "id": "rs", "summary": []});
    let call = json!({"type": "function_call", "call_id": "1", "name": "n", "arguments": "{}"});
    let result = json!({"type": "function_call_output", "call_id": "1", "output": ""});
    let user = json!({"role": "user", "content": "a"});
    for (input, is_good) in [
        (json!([user, thought, call, result, user]), true),
        (json!([user, thought]), false),
        (json!([user, thought, user]), false),
        (json!([user, call, user]), false),
        (json!([user, result]), false),
        (json!([user, {"role": "assistant", "content": ""}]), false),
    ] {
        assert_eq!(
            refused("/responses", &json!({"input": input})),
            !is_good,
            "{input}"
        );
    }
    let turn = |role: &str, parts: Value| json!({"role": role, "parts": parts});
    let user = turn("user", json!([{"text": "a"}]));
    let call = turn("model", json!([{"functionCall": {"name": "n"}}]));
    let result = turn("user", json!([{"functionResponse": {"name": "n"}}]));
    for (contents, is_good) in [
        (json!([user, call, result, user]), true),
        (json!([user, turn("model", json!([])), user]), false),
        (
            json!([user, turn("model", json!([{"text": ""}])), user]),
            false,
        ),
        (
            json!([
                user,
                turn("model", json!([{"text": "t", "thought": true}])),
                user
            ]),
            false,
        ),
        (json!([user, call, user]), false),
        (json!([user, result]), false),
        (json!([turn("model", json!([{"text": "a"}]))]), false),
        (
            json!([turn("user", json!([{"text": "a", "native": 1}]))]),
            false,
        ),
    ] {
        let body = json!({"contents": contents});
        assert_eq!(
            refused("/m:streamGenerateContent", &body),
            !is_good,
            "{body}"
        );
    }
}
