//! Tests of `cost`.

use serde_json::json;

use super::*;

fn chain(length: usize, link: impl Fn(usize, Value) -> Value) -> Value {
    let mut definitions = Map::new();
    for i in 0..length {
        let next = json!(format!("a{}", i + 1));
        definitions.insert(format!("a{i}"), link(i, next));
    }
    definitions.insert(format!("a{length}"), link(length, json!("a0")));
    json!({"$defs": definitions, "$ref": "#/$defs/a0"})
}

fn reference(prefix: &str, name: &Value) -> String {
    format!("#{prefix}{}", name.as_str().unwrap())
}

#[test]
fn references_that_multiply_are_refused_however_they_are_spelt() {
    let twice = |one: Value| json!([one, one]);
    let pointer = chain(
        40,
        |_, next| json!({"allOf": twice(json!({"$ref": reference("/$defs/", &next)}))}),
    );
    let escaped = chain(
        40,
        |_, next| json!({"allOf": twice(json!({"$ref": reference("/%24def%73/", &next)}))}),
    );
    let anchored = chain(
        40,
        |i, next| json!({"$anchor": format!("a{i}"), "anyOf": twice(json!({"$ref": reference("", &next)}))}),
    );
    let dynamic = chain(40, |i, next| {
        let next = json!({"$dynamicRef": reference("", &next)});
        json!({"$dynamicAnchor": format!("a{i}"), "oneOf": twice(next)})
    });
    let unevaluated = (0..20).fold(
        json!({"type": "object"}),
        |inner, _| json!({"unevaluatedProperties": false, "allOf": [inner]}),
    );
    for schema in [pointer, escaped, anchored, dynamic, unevaluated] {
        let error = Cost::of(&schema).unwrap_err();
        assert!(error.contains("subschemas"), "{error}");
    }
}

#[test]
fn chains_that_are_too_long_are_refused() {
    let straight = chain(3000, |_, next| json!({"$ref": reference("/$defs/", &next)}));
    let below = chain(
        3000,
        |_, next| json!({"properties": {"x": {"$ref": reference("/$defs/", &next)}}}),
    );
    for schema in [straight, below] {
        let error = Cost::of(&schema).unwrap_err();
        assert!(error.contains("deep"), "{error}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    for schema in [
        json!({"$defs": {"a": {"$id": "https://a.example/b"}}}),
        json!({"$id": "https://a.example/a", "$ref": "a#/$defs/b"}),
        json!({"properties": {"a": {"$schema": "http://json-schema.org/draft-04/schema#"}}}),
    ] {
        assert!(Cost::of(&schema).is_err(), "{schema}");
    }
    let named = json!({"$id": "https://a.example/a", "properties": {"$id": {"type": "string"}}});
    assert!(Cost::of(&named).is_ok());
}

#[test]
fn a_value_that_would_take_for_ever_is_told_by_its_depth() {
    let branch = json!({"type": "object", "properties": {"c": {"$ref": "#"}}});
    let cost = Cost::of(&json!({"anyOf": [branch, branch]})).unwrap();
    let nested = |depth| (0..depth).fold(json!(5), |value, _| json!({ "c": value }));
    assert!(cost.allows(&nested(10)));
    assert!(!cost.allows(&nested(60)));
}

#[test]
fn a_tree_of_many_nodes_is_allowed() {
    let tree = json!({"type": "object", "properties": {
        "left": {"$ref": "#"}, "right": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}});
    let full = (0..12).fold(json!(null), |node, _| json!({"left": node, "right": node}));
    assert!(Cost::of(&tree).unwrap().allows(&full));
    let rows: Vec<Value> = (0..1000).map(|n| json!({"n": n})).collect();
    let table =
        json!({"items": {"properties": {"n": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}});
    assert!(Cost::of(&table).unwrap().allows(&json!(rows)));
}
