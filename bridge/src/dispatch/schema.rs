//! JSON Schemas that callers send: compiled without ever reading another document, with a regex engine
//! that cannot backtrack, and refused when checking one value could take exponential time.

use std::collections::HashMap;

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

/// How many subschemas may apply to one and the same value. References that meet again and again
/// multiply; real schemas stay below a few hundred.
const COST_LIMIT: u64 = 10_000;
const REFERENCE_DEPTH_LIMIT: usize = 256;
const PATTERN_BYTES: usize = 1024 * 1024;

/// A validator for this schema, or what is wrong with it.
pub fn compile(schema: &Value) -> Result<Validator, String> {
    let mut costs = Costs {
        root: schema,
        known: HashMap::new(),
    };
    costs.visit(schema, 0)?;
    let patterns = PatternOptions::regex()
        .size_limit(PATTERN_BYTES)
        .dfa_size_limit(PATTERN_BYTES);
    jsonschema::options()
        .offline()
        .with_pattern_options(patterns)
        .build(schema)
        .map_err(|error| match error.instance_path().as_str() {
            "" => format!("is not a usable JSON Schema: {error}"),
            path => format!("is not a usable JSON Schema: at {path}: {error}"),
        })
}

/// Where and why a value does not follow the schema; the first place only. Values are not quoted.
pub fn mismatch(validator: &Validator, value: &Value) -> Option<String> {
    let error = validator.validate(value).err()?;
    Some(match error.instance_path().as_str() {
        "" => error.masked().to_string(),
        path => format!("at {path}: {}", error.masked()),
    })
}

/// Counts what applies to one value: the schema itself and everything it applies to the same value.
struct Costs<'a> {
    root: &'a Value,
    /// By address: the walk only meets values inside `root`, which does not move.
    known: HashMap<*const Value, u64>,
}

impl<'a> Costs<'a> {
    /// The cost of this schema; fails when it or anything below it is too expensive.
    fn visit(&mut self, schema: &'a Value, depth: usize) -> Result<u64, String> {
        let Some(keywords) = schema.as_object() else {
            return Ok(1);
        };
        if let Some(&cost) = self.known.get(&std::ptr::from_ref(schema)) {
            return Ok(cost);
        }
        if depth > REFERENCE_DEPTH_LIMIT {
            return Err(format!(
                "nests references more than {REFERENCE_DEPTH_LIMIT} deep"
            ));
        }
        // A schema that comes back to itself adds nothing new for the same value.
        self.known.insert(std::ptr::from_ref(schema), 1);

        let mut cost: u64 = 1;
        for applied in in_place(keywords) {
            cost = cost.saturating_add(self.visit(applied, depth + 1)?);
        }
        if let Some(target) = self.referenced(keywords) {
            cost = cost.saturating_add(self.visit(target, depth + 1)?);
        }
        if cost > COST_LIMIT {
            return Err(format!(
                "applies more than {COST_LIMIT} subschemas to one value"
            ));
        }
        self.known.insert(std::ptr::from_ref(schema), cost);
        for below in descending(keywords) {
            self.visit(below, depth + 1)?;
        }
        Ok(cost)
    }

    /// The target of a reference inside the document; other references are the compiler's to refuse.
    fn referenced(&self, keywords: &'a Map<String, Value>) -> Option<&'a Value> {
        let pointer = keywords.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }
}

/// Subschemas that apply to the same value.
fn in_place(keywords: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let lists = ["allOf", "anyOf", "oneOf"].into_iter();
    let maps = ["dependentSchemas", "dependencies"].into_iter();
    let single = ["not", "if", "then", "else"].into_iter();
    lists
        .filter_map(|name| keywords.get(name)?.as_array())
        .flatten()
        .chain(
            maps.filter_map(|name| keywords.get(name)?.as_object())
                .flat_map(Map::values),
        )
        .chain(single.filter_map(|name| keywords.get(name)))
}

/// Subschemas that apply to members, or that wait for a reference.
fn descending(keywords: &Map<String, Value>) -> impl Iterator<Item = &Value> {
    let maps = ["properties", "patternProperties", "$defs", "definitions"].into_iter();
    let lists = ["items", "prefixItems"].into_iter();
    let single = [
        "items",
        "additionalItems",
        "additionalProperties",
        "contains",
        "propertyNames",
        "unevaluatedItems",
        "unevaluatedProperties",
    ]
    .into_iter();
    maps.filter_map(|name| keywords.get(name)?.as_object())
        .flat_map(Map::values)
        .chain(
            lists
                .filter_map(|name| keywords.get(name)?.as_array())
                .flatten(),
        )
        .chain(single.filter_map(|name| keywords.get(name)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn chain(length: usize, link: impl Fn(Value) -> Value) -> Value {
        let mut definitions = Map::new();
        for i in 0..length {
            let next = json!({"$ref": format!("#/$defs/a{}", i + 1)});
            definitions.insert(format!("a{i}"), link(next));
        }
        definitions.insert(format!("a{length}"), json!({"type": "integer"}));
        json!({"$defs": definitions, "$ref": "#/$defs/a0"})
    }

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
    fn schemas_that_would_explode_are_refused() {
        for (schema, word) in [
            (
                chain(40, |next| json!({"allOf": [next.clone(), next]})),
                "subschemas",
            ),
            (chain(3000, |next| next), "deep"),
            (
                chain(3000, |next| json!({"properties": {"x": next}})),
                "deep",
            ),
        ] {
            let error = compile(&schema).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
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
