//! Compatibility of `openapi.json` with the last release (`openapi.released.json`, replaced at each release): every
//! breaking change must be declared in the changelog.

use std::collections::BTreeSet;

use serde_json::{Value, json};

const RELEASED: &str = include_str!("../../bridge/openapi.released.json");
const CURRENT: &str = include_str!("../../bridge/openapi.json");
const CHANGELOG: &str = include_str!("../../CHANGELOG.md");
const HEADING: &str = "### Breaking changes";

#[test]
fn what_breaks_callers_is_declared() {
    let read = |text| serde_json::from_str(text).unwrap();
    let found = breaks(&read(RELEASED), &read(CURRENT));
    let hidden: Vec<_> = found
        .iter()
        .filter(|found| !declared(CHANGELOG, &found.operation))
        .map(|found| format!("{}: {}", found.operation, found.what))
        .collect();
    assert!(
        hidden.is_empty(),
        "breaks callers; take it back, or add `{HEADING}` to the first section of CHANGELOG.md with a line \
         that names the operation in backticks:\n  {}",
        hidden.join("\n  ")
    );
}

/// Returns true if the newest section of the changelog declares a breaking change of this operation.
fn declared(changelog: &str, operation: &str) -> bool {
    let newest = changelog.split("\n## ").nth(1).unwrap_or_default();
    let breaking = newest.split("\n### ").find_map(|part| {
        let heading = HEADING.trim_start_matches("### ");
        part.strip_prefix(heading)
    });
    breaking.is_some_and(|part| part.contains(&format!("`{operation}`")))
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Break {
    /// Method and path, such as `POST /api/v2/dispatch`.
    operation: String,
    what: String,
}

/// Differences of the new interface that break a caller of the old one.
fn breaks(old: &Value, new: &Value) -> BTreeSet<Break> {
    let mut found = BTreeSet::new();
    for (path, methods) in members(&old["paths"]) {
        for (method, before) in members(methods) {
            let mut comparison = Comparison {
                old,
                new,
                direction: Direction::In,
                under_way: Vec::new(),
                found: Vec::new(),
            };
            match new["paths"][path].get(method) {
                None => comparison.found.push("is gone".to_owned()),
                Some(after) => comparison.operation(before, after),
            }
            let operation = format!("{} {path}", method.to_uppercase());
            found.extend(comparison.found.into_iter().map(|what| Break {
                operation: operation.clone(),
                what,
            }));
        }
    }
    found
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Direction of a body, which decides which changes break a caller.
#[derive(Clone, Copy, PartialEq)]
enum Direction {
    /// To the bridge: it must accept everything it accepted before.
    In,
    /// To the caller: it must not receive anything unknown to it.
    Out,
}

struct Comparison<'a> {
    old: &'a Value,
    new: &'a Value,
    direction: Direction,
    /// Schemas being compared; recursive ones are compared once.
    under_way: Vec<&'a Value>,
    found: Vec<String>,
}

impl<'a> Comparison<'a> {
    fn operation(&mut self, before: &'a Value, after: &'a Value) {
        self.direction = Direction::In;
        self.parameters(list(&before["parameters"]), list(&after["parameters"]));
        let (wanted, taken) = (&before["requestBody"], &after["requestBody"]);
        if taken["required"] == true && wanted["required"] != true {
            self.note("", "the body has become required");
        }
        self.content("body", &wanted["content"], &taken["content"]);

        self.direction = Direction::Out;
        for (status, answer) in members(&before["responses"]) {
            let answer = resolve(self.old, answer);
            let Some(given) = after["responses"].get(status) else {
                self.note("", &format!("{status} is no longer answered"));
                continue;
            };
            let given = resolve(self.new, given);
            self.content(status, &answer["content"], &given["content"]);
        }
    }

    fn parameters(&mut self, before: &'a [Value], after: &'a [Value]) {
        let same =
            |one: &Value, other: &Value| one["name"] == other["name"] && one["in"] == other["in"];
        for old in before {
            let at = format!("parameter {}", old["name"].as_str().unwrap_or("?"));
            match after.iter().find(|new| same(old, new)) {
                None => self.note(&at, "is gone"),
                Some(new) => self.schema(&at, &old["schema"], &new["schema"]),
            }
        }
        for new in after.iter().filter(|new| new["required"] == true) {
            let known = before.iter().find(|old| same(old, new));
            if known.is_none_or(|old| old["required"] != true) {
                let name = new["name"].as_str().unwrap_or("?");
                self.note(&format!("parameter {name}"), "has become required");
            }
        }
    }

    fn content(&mut self, at: &str, before: &'a Value, after: &'a Value) {
        for (kind, old) in members(before) {
            match after.get(kind) {
                None => self.note(at, &format!("{kind} is gone")),
                Some(new) => self.schema(at, &old["schema"], &new["schema"]),
            }
        }
    }

    fn schema(&mut self, at: &str, old: &'a Value, new: &'a Value) {
        let (old, new) = (resolve(self.old, old), resolve(self.new, new));
        if self.under_way.iter().any(|one| std::ptr::eq(*one, old)) {
            return;
        }
        self.under_way.push(old);
        self.values(at, old, new);
        self.bounds(at, old, new);
        self.object(at, old, new);
        for inner in ["items", "additionalProperties"] {
            if old[inner].is_object() && new[inner].is_object() {
                self.schema(&format!("{at}[]"), &old[inner], &new[inner]);
            }
        }
        for choice in ["oneOf", "anyOf", "allOf"] {
            let (before, after) = (list(&old[choice]), list(&new[choice]));
            let fewer = after.len() < before.len();
            let more = after.len() > before.len();
            if (fewer && self.direction == Direction::In)
                || (more && self.direction == Direction::Out)
            {
                self.note(
                    at,
                    &format!("{choice} had {} and has {}", before.len(), after.len()),
                );
            }
            for (old, new) in before.iter().zip(after) {
                self.schema(at, old, new);
            }
        }
        self.under_way.pop();
    }

    /// Compares types and enumerated values. An answer may have additional enumerated values, since callers expect
    /// such lists to grow; an additional type is a break.
    fn values(&mut self, at: &str, old: &Value, new: &Value) {
        let (before, after) = (types(old), types(new));
        let fits = match self.direction {
            Direction::In => before.is_subset(&after),
            Direction::Out => after.is_subset(&before),
        };
        if !fits {
            self.note(at, &format!("was {} and is {}", old["type"], new["type"]));
        }
        if self.direction == Direction::In
            && let Some(taken) = new["enum"].as_array()
        {
            match old["enum"].as_array() {
                None => self.note(at, "takes listed values alone"),
                Some(known) => {
                    for value in known.iter().filter(|value| !taken.contains(value)) {
                        self.note(at, &format!("no longer takes {value}"));
                    }
                }
            }
        }
    }

    fn bounds(&mut self, at: &str, old: &Value, new: &Value) {
        if self.direction == Direction::Out {
            return;
        }
        for (bound, narrower) in [
            ("maxLength", f64::lt as fn(&f64, &f64) -> bool),
            ("maxItems", f64::lt),
            ("maximum", f64::lt),
            ("minLength", f64::gt),
            ("minItems", f64::gt),
            ("minimum", f64::gt),
            ("exclusiveMinimum", f64::gt),
        ] {
            let narrowed = match (old[bound].as_f64(), new[bound].as_f64()) {
                (Some(old), Some(new)) => narrower(&new, &old),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if narrowed {
                self.note(
                    at,
                    &format!("{bound} was {} and is {}", old[bound], new[bound]),
                );
            }
        }
        if new["pattern"].is_string() && new["pattern"] != old["pattern"] {
            self.note(at, "has another pattern");
        }
    }

    fn object(&mut self, at: &str, old: &'a Value, new: &'a Value) {
        let inner = |name: &str| format!("{at}.{name}");
        for (name, before) in members(&old["properties"]) {
            match new["properties"].get(name) {
                None => self.note(&inner(name), "is gone"),
                Some(after) => self.schema(&inner(name), before, after),
            }
        }
        let required = |schema: &'a Value| -> BTreeSet<&'a str> {
            list(&schema["required"])
                .iter()
                .filter_map(Value::as_str)
                .collect()
        };
        let (before, after) = (required(old), required(new));
        let (one, other, what) = match self.direction {
            Direction::In => (after, before, "has become required"),
            Direction::Out => (before, after, "may be absent now"),
        };
        for name in one.difference(&other) {
            // Removed members are reported above.
            if new["properties"].get(*name).is_some() {
                self.note(&inner(name), what);
            }
        }
    }

    fn note(&mut self, at: &str, what: &str) {
        self.found
            .push(format!("{at} {what}").trim_start().to_owned());
    }
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"]
        .as_str()
        .and_then(|name| name.strip_prefix('#'))
    {
        Some(pointer) => resolve(document, document.pointer(pointer).unwrap_or(&Value::Null)),
        None => schema,
    }
}

/// Types that a schema allows; all if it names none.
fn types(schema: &Value) -> BTreeSet<String> {
    const ALL: [&str; 7] = [
        "null", "boolean", "integer", "number", "string", "array", "object",
    ];
    let mut types: BTreeSet<String> = match &schema["type"] {
        Value::String(one) => BTreeSet::from([one.clone()]),
        Value::Array(several) => several
            .iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect(),
        _ => ALL.map(str::to_owned).into(),
    };
    if types.contains("number") {
        types.insert("integer".to_owned());
    }
    types
}

/// A document with one operation, whose body and answer have this schema.
fn document(schema: &Value) -> Value {
    let content =
        json!({ "application/json": { "schema": { "$ref": "#/components/schemas/Thing" } } });
    json!({
        "paths": { "/things": { "post": {
            "parameters": [{ "name": "kind", "in": "query", "schema": { "type": "string" } }],
            "requestBody": { "content": content },
            "responses": { "200": { "content": content } },
        } } },
        "components": { "schemas": { "Thing": schema } },
    })
}

#[test]
fn each_kind_of_break_is_found() {
    let old = json!({
        "type": "object", "required": ["id"],
        "properties": {
            "id": { "type": "string", "maxLength": 10 },
            "state": { "type": "string", "enum": ["a", "b"] },
            "inner": { "$ref": "#/components/schemas/Thing" },
            "list": { "type": "array", "items": { "type": "integer" } },
        },
    });
    let cases: [(&str, Value, &[&str]); 9] = [
        ("/properties/id/maxLength", json!(20), &[]),
        (
            "/properties/id/maxLength",
            json!(5),
            &["body.id maxLength was 10 and is 5"],
        ),
        ("/properties/state/enum", json!(["a", "b", "c"]), &[]),
        (
            "/properties/state/enum",
            json!(["a"]),
            &["body.state no longer takes \"b\""],
        ),
        (
            "/required",
            json!(["id", "state"]),
            &["body.state has become required"],
        ),
        ("/required", json!([]), &["200.id may be absent now"]),
        (
            "/properties/id/type",
            json!(["string", "null"]),
            &["200.id was \"string\" and is [\"string\",\"null\"]"],
        ),
        (
            "/properties/list/items/type",
            json!("number"),
            &["200.list[] was \"integer\" and is \"number\""],
        ),
        (
            "/properties",
            json!({ "id": { "type": "string", "maxLength": 10 } }),
            &[
                "200.inner is gone",
                "200.list is gone",
                "200.state is gone",
                "body.inner is gone",
                "body.list is gone",
                "body.state is gone",
            ],
        ),
    ];
    for (place, value, expected) in cases {
        let mut new = old.clone();
        *new.pointer_mut(place).unwrap() = value;
        let found = breaks(&document(&old), &document(&new));
        let found: Vec<_> = found.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(found, expected, "{place}");
    }
}

#[test]
fn what_is_gone_or_asked_for_besides_is_found() {
    let old = document(&json!({ "type": "object" }));
    let cases: [(&str, Value, &str); 4] = [
        ("/paths", json!({}), "is gone"),
        (
            "/paths/~1things/post/responses",
            json!({ "201": {} }),
            "200 is no longer answered",
        ),
        (
            "/paths/~1things/post/parameters",
            json!([]),
            "parameter kind is gone",
        ),
        (
            "/paths/~1things/post/parameters",
            json!([
                { "name": "kind", "in": "query", "schema": { "type": "string" } },
                { "name": "size", "in": "query", "required": true },
            ]),
            "parameter size has become required",
        ),
    ];
    for (place, value, expected) in cases {
        let mut new = old.clone();
        *new.pointer_mut(place).unwrap() = value;
        let found = breaks(&old, &new);
        let found: Vec<_> = found.iter().map(|found| found.what.as_str()).collect();
        assert_eq!(found, [expected]);
    }
    assert!(breaks(&old, &old).is_empty());
}

#[test]
fn the_newest_section_of_the_changelog_declares() {
    let changelog = format!(
        "# C\n\n## 2.0.0\n\n- a\n\n{HEADING}\n\n- `GET /a`: gone\n\n## 1.0.0\n\n{HEADING}\n\n- `GET /b`\n"
    );
    for (operation, expected) in [("GET /a", true), ("GET /b", false), ("GET /", false)] {
        assert_eq!(declared(&changelog, operation), expected, "{operation}");
    }
}
