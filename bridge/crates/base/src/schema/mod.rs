//! JSON Schemas sent by callers. Compiled without reading other documents and with a regex engine that does not
//! backtrack; refused if validating one value could take exponential time.

mod cost;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use self::cost::Cost;

/// Maximum bytes of one compiled pattern, and of all of them below. Bounds the time of compiling.
const PATTERN_BYTES: usize = 1024 * 1024;
const PATTERNS_BYTES: usize = 16 * PATTERN_BYTES;

/// A compiled schema with its cost estimate.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    cost: Cost,
}

/// Compiles a schema. The error describes the problem.
pub fn compile(schema: &Value) -> Result<Schema, String> {
    let cost = Cost::of(schema)?;
    let bytes = PATTERN_BYTES.min(PATTERNS_BYTES / count_patterns(schema).max(1));
    let patterns = PatternOptions::regex()
        .size_limit(bytes)
        .dfa_size_limit(PATTERN_BYTES);
    let validator = jsonschema::options()
        .offline()
        .with_pattern_options(patterns)
        .build(schema);
    let validator = validator.map_err(|error| match error.instance_path().as_str() {
        "" => format!("is not a usable JSON Schema: {error}"),
        path => format!("is not a usable JSON Schema: at {path}: {error}"),
    })?;
    Ok(Schema { validator, cost })
}

/// First place and reason of a mismatch between value and schema; `None` if the value matches. Quotes no values.
pub fn mismatch(schema: &Schema, value: &Value) -> Option<String> {
    if !schema.cost.allows(value) {
        return Some("validating this value against the schema would take too long".to_owned());
    }
    let error = schema.validator.validate(value).err()?;
    Some(match error.instance_path().as_str() {
        "" => error.masked().to_string(),
        path => format!("at {path}: {}", error.masked()),
    })
}

/// Upper bound of the number of patterns; also counts values that only look like schemas.
fn count_patterns(schema: &Value) -> usize {
    match schema {
        Value::Array(items) => items.iter().map(count_patterns).sum(),
        Value::Object(members) => {
            let named = members.get("patternProperties").and_then(Value::as_object);
            let own = usize::from(members.contains_key("pattern")) + named.map_or(0, |n| n.len());
            own + members.values().map(count_patterns).sum::<usize>()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ordinary_and_recursive_schemas_compile() {
        let tree = json!({
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": "^[a-z]+$"},
                "children": {"type": "array", "items": {"$ref": "#"}},
            },
        });
        let validator = compile(&tree).unwrap();
        let good = json!({"name": "a", "children": [{"name": "b"}]});
        assert_eq!(mismatch(&validator, &good), None);
        let bad = json!({"name": "a", "children": [{"name": 5}]});
        let text = mismatch(&validator, &bad).unwrap();
        assert!(text.starts_with("at /children/0/name: "), "{text}");
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"allOf": [{"$ref": "#"}]}),
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ] {
            let validator = compile(&schema).unwrap();
            assert_eq!(mismatch(&validator, &json!(1)), None, "{schema}");
        }
    }

    #[test]
    fn many_large_patterns_are_refused_and_many_small_ones_are_not() {
        let all = |pattern: &str| {
            let items: Vec<_> = (0..2000).map(|_| json!({ "pattern": pattern })).collect();
            compile(&json!({ "prefixItems": items }))
        };
        assert!(all("^[a-z]+$").is_ok());
        assert!(all(r"^\p{L}{1,200}$").is_err());
    }

    #[test]
    fn a_value_that_would_take_for_ever_is_refused_instead() {
        let branch = json!({"type": "object", "properties": {"c": {"$ref": "#"}}});
        let schema = compile(&json!({"oneOf": [branch, branch]})).unwrap();
        let deep = (0..60).fold(json!(5), |value, _| json!({ "c": value }));
        let text = mismatch(&schema, &deep).unwrap();
        assert!(text.contains("too long"), "{text}");
    }

    #[test]
    fn what_is_no_schema_is_refused() {
        for schema in [
            json!({"type": "nonsense"}),
            json!({"pattern": "("}),
            json!({"pattern": "(?=x)"}),
            json!({"$ref": "https://example.com/schema.json"}),
            json!({"$ref": "file:///etc/passwd"}),
            json!({"$ref": "#/nowhere"}),
            json!({"required": "name"}),
        ] {
            assert!(compile(&schema).is_err(), "{schema}");
        }
    }

    #[test]
    fn a_mismatch_does_not_quote_the_value() {
        let validator = compile(&json!({"type": "integer"})).unwrap();
        let text = mismatch(&validator, &json!("confidential")).unwrap();
        assert!(!text.contains("confidential"), "{text}");
    }
}
