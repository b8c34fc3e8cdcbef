//! Token counts from `usage`. Cached tokens are part of the input, reasoning tokens part of the output;
//! unreported counts are `None`.

use forge_adapter_api::Usage;
use forge_adapter_api::foreign_json::count;
use serde_json::Value;

/// The counts of one answer.
pub fn of(usage: &Value) -> Usage {
    let first = |paths: &[&str]| paths.iter().find_map(|path| count(usage.pointer(path)?));
    let input = first(&["/prompt_tokens"]);
    let output = first(&["/completion_tokens"]);
    Usage {
        input_tokens: input,
        output_tokens: output,
        thinking_tokens: first(&["/completion_tokens_details/reasoning_tokens"]),
        total_tokens: input
            .zip(output)
            .map(|(input, output)| input.saturating_add(output)),
        cache_read_tokens: first(&[
            "/prompt_tokens_details/cached_tokens",
            "/prompt_cache_hit_tokens",
            "/cache_read_input_tokens",
        ]),
        cache_write_tokens: first(&[
            "/prompt_tokens_details/cache_write_tokens",
            "/cache_creation_input_tokens",
        ]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cached_tokens_stay_in_the_input_and_what_is_not_told_is_not_known() {
        let all = of(&json!({
            "prompt_tokens": 31, "completion_tokens": 9, "total_tokens": 99,
            "prompt_tokens_details": {"cached_tokens": 5}, "completion_tokens_details": {"reasoning_tokens": 2},
        }));
        let wanted = Usage {
            input_tokens: Some(31),
            output_tokens: Some(9),
            thinking_tokens: Some(2),
            total_tokens: Some(40),
            cache_read_tokens: Some(5),
            cache_write_tokens: None,
        };
        assert_eq!(all, wanted);
        assert_eq!(
            of(&json!({"prompt_cache_hit_tokens": 3})).cache_read_tokens,
            Some(3)
        );
        assert_eq!(of(&json!({"completion_tokens": 9})).total_tokens, None);
        assert_eq!(of(&Value::Null), Usage::default());
    }
}
