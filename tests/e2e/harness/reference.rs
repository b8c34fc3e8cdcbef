//! Validation of every JSON answer against `openapi.json`. Undocumented members fail the test.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex};

use jsonschema::Validator;
use serde_json::{Value, json};

static REFERENCE: LazyLock<Reference> = LazyLock::new(|| Reference {
    document: serde_json::from_str(include_str!("../../../bridge/openapi.json")).unwrap(),
    validators: Mutex::default(),
});

struct Reference {
    document: Value,
    validators: Mutex<HashMap<String, Validator>>,
}

/// Documented methods and paths of the main listener.
pub(crate) fn operations() -> Vec<(String, String)> {
    served(|url| url == "/")
}

/// Documented methods and paths of the local agent's listener.
pub(crate) fn agent_operations() -> Vec<(String, String)> {
    served(|url| url.ends_with(":6247"))
}

/// Documented methods and paths of one of the two listeners whose requests have a body.
pub(crate) fn operations_with_body(of_agent: bool) -> Vec<(String, String)> {
    let mut found = if of_agent {
        agent_operations()
    } else {
        operations()
    };
    found.retain(|(method, path)| {
        let operation = &REFERENCE.document["paths"][path][method.to_lowercase()];
        operation["requestBody"].is_object()
    });
    found
}

/// Operations with such a server.
fn served(by: impl Fn(&str) -> bool) -> Vec<(String, String)> {
    let document = &REFERENCE.document;
    let is_served = |operation: &Value| {
        let own = operation["servers"].as_array();
        let mut servers = own.or(document["servers"].as_array()).unwrap().iter();
        servers.any(|server| by(server["url"].as_str().unwrap()))
    };
    let paths = document["paths"].as_object().unwrap();
    let methods = |(path, item): (&String, &Value)| {
        let operations = item.as_object().unwrap().iter();
        operations
            .filter(|(_, operation)| is_served(operation))
            .map(|(method, _)| (method.to_uppercase(), path.clone()))
            .collect::<Vec<_>>()
    };
    paths.iter().flat_map(methods).collect()
}

/// Documented methods and paths with the names of their query parameters.
pub(crate) fn query_parameters() -> Vec<(String, String, Vec<String>)> {
    let documented = operations().into_iter().map(|(method, path)| {
        let operation = &REFERENCE.document["paths"][&path][method.to_lowercase()];
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let names = parameters
            .filter(|parameter| parameter["in"] == "query")
            .map(|parameter| parameter["name"].as_str().unwrap().to_owned());
        let names = names.collect();
        (method, path, names)
    });
    documented.collect()
}

/// Panics if the answer is not as documented.
pub(crate) fn check(method: &str, path: &str, status: u16, body: &Value) {
    let Some(schema) = REFERENCE.schema(method, path, status) else {
        return;
    };
    let problems = REFERENCE.problems(&schema, body);
    assert!(
        problems.is_empty(),
        "{method} {path} answered {status} otherwise than openapi.json says: {problems:?}\n{body}"
    );
}

impl Reference {
    fn problems(&self, schema: &Value, body: &Value) -> Vec<String> {
        let mut validators = self.validators.lock().unwrap();
        let validator = validators.entry(schema.to_string()).or_insert_with(|| {
            let mut components = self.document["components"].clone();
            close(&mut components);
            let whole = json!({ "allOf": [schema], "components": components });
            jsonschema::validator_for(&whole).unwrap()
        });
        let found = validator.iter_errors(body);
        found
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect()
    }

    /// Schema of this answer; `None` for undocumented paths, which tests of unknown routes request.
    fn schema(&self, method: &str, path: &str, status: u16) -> Option<Value> {
        let path = path.split('?').next().unwrap_or(path);
        let found = self.document["paths"].as_object()?.iter();
        let mut found: Vec<_> = found.filter(|(template, _)| fits(template, path)).collect();
        // A literal path has precedence over one with parameters.
        found.sort_by_key(|(template, _)| template.matches('{').count());
        let answers = &found.first()?.1.get(method.to_lowercase())?["responses"];
        let answer = answers
            .get(status.to_string())
            .unwrap_or(&answers["default"]);
        let answer = match answer["$ref"].as_str() {
            Some(name) => self.document.pointer(&name[1..]).unwrap(),
            None => answer,
        };
        let mut schema = answer
            .pointer("/content/application~1json/schema")
            .cloned()?;
        close(&mut schema);
        Some(schema)
    }
}

fn fits(template: &str, path: &str) -> bool {
    let mut given = path.split('/');
    for part in template.split('/') {
        match given.next() {
            // The only parameter that matches several segments.
            Some(_) if part == "{path}" => return true,
            Some(value) if part == value || part.starts_with('{') => {}
            _ => return false,
        }
    }
    given.next().is_none()
}

/// Forbids unlisted members in all objects, unless their description announces further ones.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let open = object
                .get("description")
                .and_then(Value::as_str)
                .is_some_and(|text| text.contains("Other members"));
            if object.contains_key("properties") && object.contains_key("type") && !open {
                object.entry("additionalProperties").or_insert(json!(false));
            }
            object.values_mut().for_each(close);
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}
