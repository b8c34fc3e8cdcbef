//! Sample values for a JSON Schema, by its types. Supports only the keywords common in examples.

use serde_json::{Map, Value, json};

/// Deepest nesting; deeper values are null.
const DEEPEST: usize = 16;

pub(crate) fn sample(schema: &Value) -> Value {
    sample_at(schema, 0)
}

fn sample_at(schema: &Value, depth: usize) -> Value {
    if depth > DEEPEST {
        return Value::Null;
    }
    for fixed in ["const", "default"] {
        if let Some(value) = schema.get(fixed) {
            return value.clone();
        }
    }
    for list in ["enum", "examples"] {
        if let Some(value) = schema.get(list).and_then(|values| values.get(0)) {
            return value.clone();
        }
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(first) = schema.get(choice).and_then(|schemas| schemas.get(0)) {
            return sample_at(first, depth + 1);
        }
    }
    match kind(schema) {
        "object" => object(schema, depth),
        "array" => array(schema, depth),
        "string" => string(schema).into(),
        "integer" | "number" => schema.get("minimum").cloned().unwrap_or(json!(0)),
        "boolean" => true.into(),
        _ => Value::Null,
    }
}

fn kind(schema: &Value) -> &str {
    match schema.get("type") {
        Some(Value::String(kind)) => kind,
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str).unwrap_or("null"),
        _ if schema.get("properties").is_some() => "object",
        _ if schema.get("items").is_some() => "array",
        _ => "null",
    }
}

fn object(schema: &Value, depth: usize) -> Value {
    let properties = schema.get("properties").and_then(Value::as_object);
    let members: Map<String, Value> = properties
        .into_iter()
        .flatten()
        .map(|(name, schema)| (name.clone(), sample_at(schema, depth + 1)))
        .collect();
    members.into()
}

fn array(schema: &Value, depth: usize) -> Value {
    let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(1);
    let item = schema
        .get("items")
        .map_or(Value::Null, |items| sample_at(items, depth + 1));
    (0..least.clamp(1, 100)).map(|_| item.clone()).collect()
}

fn string(schema: &Value) -> String {
    let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
    let text = match schema.get("format").and_then(Value::as_str) {
        Some("date-time") => "2026-01-01T00:00:00Z",
        Some("date") => "2026-01-01",
        Some("uri") => "https://example.com/",
        Some("email") => "echo@example.com",
        _ => "text",
    };
    let least = usize::try_from(least.min(10_000)).unwrap_or(0);
    format!("{text:x<least$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_follow_the_types() {
        let table = [
            (json!({"type": "string"}), json!("text")),
            (json!({"type": "string", "minLength": 6}), json!("textxx")),
            (json!({"type": "integer", "minimum": 3}), json!(3)),
            (json!({"type": ["number", "null"]}), json!(0)),
            (json!({"type": "boolean"}), json!(true)),
            (json!({"enum": ["low", "high"]}), json!("low")),
            (
                json!({"anyOf": [{"type": "null"}, {"type": "string"}]}),
                json!(null),
            ),
            (
                json!({"type": "array", "items": {"type": "integer"}, "minItems": 2}),
                json!([0, 0]),
            ),
            (
                json!({"properties": {"name": {"type": "string"}, "tags": {"items": {"const": "a"}}}}),
                json!({"name": "text", "tags": ["a"]}),
            ),
            (json!({}), json!(null)),
        ];
        for (schema, expected) in table {
            assert_eq!(sample(&schema), expected, "{schema}");
        }
    }
}
