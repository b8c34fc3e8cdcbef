//! Deserialisation of the merged layers that collects all errors, not only the first: an invalid value is
//! reported and removed, and the rest is read again.

use std::collections::BTreeMap;
use std::fmt;
use std::slice;

use figment::error::{Actual, Kind};
use figment::value::{Dict, Tag, Value};
use figment::{Figment, Profile, Provider};
use serde::de::DeserializeOwned;

use super::layers::ENVIRONMENT;
use forge_base::spelling::nearest;

/// One error in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Dotted key; empty if the error concerns a whole source.
    pub key: String,
    /// `file forge-bridge.toml`, `environment BRIDGE_LISTEN`; empty for a default.
    pub source: String,
    /// Found and expected value. Never contains the value of a secret.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.key.is_empty(), self.source.is_empty()) {
            (false, false) => write!(f, "{} ({}): {}", self.key, self.source, self.message),
            (false, true) => write!(f, "{}: {}", self.key, self.message),
            (true, false) => write!(f, "{}: {}", self.source, self.message),
            (true, true) => f.write_str(&self.message),
        }
    }
}

/// Reads `T`. `examples` are the serialised defaults, used for hints. An error comes with the other settings, if they
/// can be read without the wrong ones.
pub(super) fn extract<T: DeserializeOwned>(
    figment: &Figment,
    examples: &serde_json::Value,
    keys: &[String],
) -> Result<T, (Vec<Problem>, Option<T>)> {
    let mut problems = Vec::new();
    let mut readings = Readings::default();
    let mut tree = match figment.data() {
        Ok(mut data) => Value::from(data.remove(&Profile::Default).unwrap_or_default()),
        Err(error) => return Err((vec![whole(error.to_string())], None)),
    };
    let problem = |error: &figment::Error, tree: &Value, path: &[String]| Problem {
        message: describe(error, path, examples, keys),
        key: path.join("."),
        source: source(figment, tree, path),
    };
    for path in tables(examples) {
        let Some(found) = find(&tree, &path).filter(|found| found.as_dict().is_none()) else {
            continue;
        };
        // Serde would read a list as the values of the keys in order, which the file would not show.
        let error = Kind::InvalidType(found.to_actual(), "a table".to_owned()).into();
        problems.push(problem(&error, &tree, &path));
        remove(&mut tree, &path);
    }
    loop {
        let error = match tree.deserialize::<T>() {
            Ok(read) if problems.is_empty() => return Ok(read),
            Ok(rest) => return Err((problems, Some(rest))),
            Err(error) => error,
        };
        let path = blamed(&error, &tree);
        if readings.try_next(figment, &mut tree, &path, &error) {
            continue;
        }
        let (path, error) = readings.settle(path, error);
        problems.push(problem(&error, &tree, &path));
        if path.is_empty() || !remove(&mut tree, &path) {
            return Err((problems, None));
        }
    }
}

/// Paths that must be tables, outer ones first.
fn tables(examples: &serde_json::Value) -> Vec<Vec<String>> {
    fn walk(at: &[String], value: &serde_json::Value, into: &mut Vec<Vec<String>>) {
        for (name, value) in value.as_object().into_iter().flatten() {
            let path = [at, slice::from_ref(name)].concat();
            if value.is_object() {
                into.push(path.clone());
                walk(&path, value, into);
            }
        }
    }
    let mut tables = Vec::new();
    walk(&[], examples, &mut tables);
    tables
}

fn whole(message: String) -> Problem {
    Problem {
        key: String::new(),
        source: String::new(),
        message,
    }
}

/// Path of the value to remove so that the rest can be read. A list counts as one value.
fn blamed(error: &figment::Error, tree: &Value) -> Vec<String> {
    let mut path = Vec::new();
    let mut at = tree;
    for step in &error.path {
        let Some(next) = at.as_dict().and_then(|dict| dict.get(step)) else {
            break;
        };
        path.push(step.clone());
        at = next;
    }
    path
}

fn source(figment: &Figment, tree: &Value, path: &[String]) -> String {
    find(tree, path)
        .and_then(|value| figment.get_metadata(first_tag(value)))
        .map(|metadata| metadata.name.to_string())
        .unwrap_or_default()
}

/// Source tag of a value. Merged tables have none of their own; their first value does.
fn first_tag(value: &Value) -> Tag {
    match value {
        Value::Dict(tag, dict) => dict.values().next().map_or(*tag, first_tag),
        Value::Array(tag, _)
        | Value::String(tag, _)
        | Value::Char(tag, _)
        | Value::Bool(tag, _)
        | Value::Num(tag, _)
        | Value::Empty(tag, _) => *tag,
    }
}

fn find<'a>(tree: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter()
        .try_fold(tree, |at, step| at.as_dict()?.get(step))
}

fn parent<'a>(tree: &'a mut Value, path: &[String]) -> Option<&'a mut Dict> {
    let mut at = tree;
    for step in path {
        let Value::Dict(_, dict) = at else {
            return None;
        };
        at = dict.get_mut(step)?;
    }
    match at {
        Value::Dict(_, dict) => Some(dict),
        _ => None,
    }
}

fn remove(tree: &mut Value, path: &[String]) -> bool {
    path.split_last()
        .and_then(|(last, above)| parent(tree, above)?.remove(last))
        .is_some()
}

/// Interpretations of environment variables. A variable is text and its type unknown, so they are tried in
/// order: text, then bool or number, then a comma-separated list.
#[derive(Default)]
struct Readings(BTreeMap<Vec<String>, Reading>);

struct Reading {
    left: Vec<Value>,
    /// Error to report if no interpretation fits: that of the last one that is not a list.
    error: figment::Error,
}

impl Readings {
    fn try_next(
        &mut self,
        figment: &Figment,
        tree: &mut Value,
        path: &[String],
        error: &figment::Error,
    ) -> bool {
        if !self.0.contains_key(path) {
            let Some(Value::String(tag, text)) = find(tree, path) else {
                return false;
            };
            let metadata = figment.get_metadata(*tag);
            if !metadata.is_some_and(|metadata| metadata.name.starts_with(ENVIRONMENT)) {
                return false;
            }
            let reading = Reading {
                left: readings(text),
                error: error.clone(),
            };
            self.0.insert(path.to_vec(), reading);
        }
        let Some(reading) = self.0.get_mut(path) else {
            return false;
        };
        let tried_list = reading.left.is_empty();
        let inside_list = error.path.len() > path.len();
        if !tried_list || inside_list {
            reading.error = error.clone();
        }
        let Some(next) = reading.left.pop() else {
            return false;
        };
        let Some((last, above)) = path.split_last() else {
            return false;
        };
        let Some(slot) = parent(tree, above).and_then(|dict| dict.get_mut(last)) else {
            return false;
        };
        *slot = retagged(next, slot.tag());
        true
    }

    fn settle(&self, path: Vec<String>, error: figment::Error) -> (Vec<String>, figment::Error) {
        match self.0.get(&path) {
            Some(reading) => (path, reading.error.clone()),
            None => (path, error),
        }
    }
}

/// Interpretations in reverse order, to be popped from the end.
fn readings(text: &str) -> Vec<Value> {
    let list: Vec<Value> = text
        .split(',')
        .map(str::trim)
        .filter(|item| !item.is_empty())
        .map(Value::from)
        .collect();
    let mut readings = vec![Value::from(list)];
    if let Ok(number) = text.trim().parse::<f64>() {
        readings.push(Value::from(number));
    }
    if let Ok(number) = text.trim().parse::<i64>() {
        readings.push(Value::from(number));
    }
    if let Ok(switch) = text.trim().parse::<bool>() {
        readings.push(Value::from(switch));
    }
    readings
}

fn retagged(value: Value, tag: Tag) -> Value {
    match value {
        Value::String(_, text) => Value::String(tag, text),
        Value::Char(_, c) => Value::Char(tag, c),
        Value::Bool(_, switch) => Value::Bool(tag, switch),
        Value::Num(_, number) => Value::Num(tag, number),
        Value::Empty(_, empty) => Value::Empty(tag, empty),
        Value::Dict(_, dict) => Value::Dict(tag, dict),
        Value::Array(_, items) => Value::Array(tag, items),
    }
}

fn describe(
    error: &figment::Error,
    path: &[String],
    examples: &serde_json::Value,
    keys: &[String],
) -> String {
    let hidden = is_secret(path);
    let found = |actual: &Actual| match (hidden, actual) {
        (false, actual) => actual.to_string(),
        (true, _) => "something else".to_owned(),
    };
    match &error.kind {
        Kind::InvalidType(actual, wanted) | Kind::InvalidValue(actual, wanted) => {
            let advice = match wanted.as_str() {
                "a sequence" => "; write a list in brackets, such as [\"...\"]".to_owned(),
                _ => example(examples, path),
            };
            format!("wanted {wanted}, found {}{advice}", found(actual))
        }
        Kind::UnknownVariant(actual, known) => match hidden {
            true => format!("wanted one of {}", known.join(", ")),
            false => format!("wanted one of {}, found {actual:?}", known.join(", ")),
        },
        Kind::UnknownField(name, siblings) => unknown(name, siblings, path, keys),
        Kind::MissingField(name) => format!("{name} is missing"),
        Kind::Message(_) if hidden => "the value is malformed".to_owned(),
        Kind::Message(message) => format!("{message}{}", example(examples, path)),
        Kind::InvalidLength(_, _)
        | Kind::DuplicateField(_)
        | Kind::ISizeOutOfRange(_)
        | Kind::USizeOutOfRange(_)
        | Kind::Unsupported(_)
        | Kind::UnsupportedKey(_, _) => error.kind.to_string(),
    }
}

fn unknown(name: &str, siblings: &[&str], path: &[String], keys: &[String]) -> String {
    let here = nearest(name, siblings.iter().copied());
    let anywhere = || nearest(name, keys.iter().filter_map(|key| key.rsplit('.').next()));
    match here {
        Some(sibling) => format!("no such key; did you mean {sibling}?"),
        None if path.len() == 1 || siblings.is_empty() => match anywhere()
            .and_then(|leaf| keys.iter().find(|key| key.rsplit('.').next() == Some(leaf)))
        {
            Some(key) => format!("no such key; did you mean {key}?"),
            None => "no such key".to_owned(),
        },
        None => format!("no such key; known here: {}", siblings.join(", ")),
    }
}

/// `; for example "127.0.0.1:7420"`, from the default of that key.
fn example(examples: &serde_json::Value, path: &[String]) -> String {
    let at = path.iter().try_fold(examples, |at, step| at.get(step));
    match at {
        Some(serde_json::Value::Null | serde_json::Value::Object(_)) | None => String::new(),
        Some(serde_json::Value::Array(items)) if items.is_empty() => String::new(),
        Some(
            value @ (serde_json::Value::Bool(_)
            | serde_json::Value::Number(_)
            | serde_json::Value::String(_)
            | serde_json::Value::Array(_)),
        ) => format!("; for example {value}"),
    }
}

/// True if a value under this key can be a secret. An adapter's own table can contain any kind of value, and
/// so can the settings of an MCP server.
fn is_secret(path: &[String]) -> bool {
    let named = path.iter().any(|step| {
        let step = step.to_lowercase();
        [
            "secret", "token", "bearer", "password", "api_key", "headers",
        ]
        .iter()
        .any(|word| step.contains(word))
            || step == "env"
    });
    let file = path.last().is_some_and(|step| step.ends_with("_file"));
    let open = path
        .first()
        .is_some_and(|step| ["adapters", "mcp"].contains(&step.as_str()));
    (named && !file) || open || path == ["store", "url"]
}
