//! Parses a body once into a bounded tree. Knows JSON and its limits, not the meaning of fields or the transport.

use std::cell::{Cell, RefCell};
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Maximum nesting depth of arrays and objects.
pub const MAX_DEPTH: usize = 64;
/// Maximum number of values: a tree of more would take many times the memory of its text.
pub const MAX_VALUES: usize = 500_000;
/// Number of values that an object counts as: even a small one takes the memory of so many.
const OBJECT_VALUES: usize = 20;
/// Prefix of keys that serde_json interprets when a tree is read again; refused in input.
const RESERVED_KEY_PREFIX: &str = "$serde_json::private::";

/// 2^63: an integer that does not fit into 64 bits is parsed as a float of at least this magnitude.
const LEAST_WIDE: f64 = 9_223_372_036_854_775_808.0;

/// Reason for refusing a body.
#[derive(Debug, PartialEq, thiserror::Error)]
pub enum BodyError {
    #[error("the body is empty; send a JSON object")]
    Empty,
    #[error("the body begins with a byte order mark; send plain UTF-8")]
    ByteOrderMark,
    #[error("the body is not UTF-8: byte {offset} is wrong")]
    NotUtf8 { offset: usize },
    #[error("the body is not JSON: {message}")]
    Syntax { message: String },
    #[error("the body is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
    #[error(
        "the body has more than {MAX_VALUES} values, where an object counts as {OBJECT_VALUES}"
    )]
    TooManyValues,
    #[error("{path:?} is given twice; keys must be unique")]
    DuplicateKey { path: String },
    #[error("{path:?} is a reserved name")]
    ReservedKey { path: String },
    #[error(
        "the integer at line {line} column {column} does not fit into 64 bits; send it as a string"
    )]
    IntegerOutOfRange { line: usize, column: usize },
}

impl BodyError {
    /// Path of the offending field; empty for the body as a whole.
    pub fn field(&self) -> &str {
        match self {
            BodyError::DuplicateKey { path } | BodyError::ReservedKey { path } => path,
            BodyError::Empty
            | BodyError::ByteOrderMark
            | BodyError::NotUtf8 { .. }
            | BodyError::Syntax { .. }
            | BodyError::TooDeep
            | BodyError::TooManyValues
            | BodyError::IntegerOutOfRange { .. } => "",
        }
    }
}

/// Parses `bytes` as one JSON value.
pub fn parse(bytes: &[u8]) -> Result<Value, BodyError> {
    if bytes.starts_with(b"\xef\xbb\xbf") {
        return Err(BodyError::ByteOrderMark);
    }
    let text = std::str::from_utf8(bytes).map_err(|error| BodyError::NotUtf8 {
        offset: error.valid_up_to(),
    })?;
    if text.bytes().all(|byte| byte.is_ascii_whitespace()) {
        return Err(BodyError::Empty);
    }
    let limits = Limits::default();
    let mut source = serde_json::Deserializer::from_str(text);
    let tree = Tree {
        limits: &limits,
        place: Place::Root,
        depth: 0,
    };
    let value = tree
        .deserialize(&mut source)
        .and_then(|value| source.end().map(|()| value))
        .map_err(|error| match limits.refusal.take() {
            Some(refusal) => refusal,
            None => BodyError::Syntax {
                message: error.to_string(),
            },
        })?;
    match limits.wide.get().then(|| wide_integer(text)).flatten() {
        Some(offset) => Err(out_of_range(text, offset)),
        None => Ok(value),
    }
}

#[derive(Default)]
struct Limits {
    values: Cell<usize>,
    /// True if a float was large enough to be an integer that does not fit into 64 bits.
    wide: Cell<bool>,
    refusal: RefCell<Option<BodyError>>,
}

/// Path of the current value, as a linked list on the stack.
#[derive(Clone, Copy)]
enum Place<'a> {
    Root,
    Key(&'a Place<'a>, &'a str),
    Index(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Root => Ok(()),
            Place::Key(Place::Root, key) => f.write_str(key),
            Place::Key(parent, key) => write!(f, "{parent}.{key}"),
            Place::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

struct Tree<'a> {
    limits: &'a Limits,
    place: Place<'a>,
    depth: usize,
}

impl Tree<'_> {
    fn refuse<E: serde::de::Error>(&self, refusal: BodyError) -> E {
        *self.limits.refusal.borrow_mut() = Some(refusal);
        E::custom("refused")
    }

    fn below<'b>(&'b self, place: Place<'b>) -> Tree<'b> {
        Tree {
            limits: self.limits,
            place,
            depth: self.depth + 1,
        }
    }

    fn count<E: serde::de::Error>(&self, more: usize) -> Result<(), E> {
        let values = self.limits.values.get() + more;
        self.limits.values.set(values);
        if values > MAX_VALUES {
            return Err(self.refuse(BodyError::TooManyValues));
        }
        Ok(())
    }

    fn check_depth<E: serde::de::Error>(&self) -> Result<(), E> {
        if self.depth < MAX_DEPTH {
            Ok(())
        } else {
            Err(self.refuse(BodyError::TooDeep))
        }
    }

    fn check_key<E: serde::de::Error>(
        &self,
        seen: &Map<String, Value>,
        key: &str,
    ) -> Result<(), E> {
        let path = || Place::Key(&self.place, key).to_string();
        if seen.contains_key(key) {
            return Err(self.refuse(BodyError::DuplicateKey { path: path() }));
        }
        if key.starts_with(RESERVED_KEY_PREFIX) {
            return Err(self.refuse(BodyError::ReservedKey { path: path() }));
        }
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, source: D) -> Result<Value, D::Error> {
        self.count(1)?;
        source.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        let number = Number::from_f64(value).ok_or_else(|| E::custom("number out of range"))?;
        if value.abs() >= LEAST_WIDE {
            self.limits.wide.set(true);
        }
        Ok(Value::Number(number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        let mut array = Vec::new();
        while let Some(item) =
            items.next_element_seed(self.below(Place::Index(&self.place, array.len())))?
        {
            array.push(item);
        }
        Ok(Value::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.check_depth()?;
        self.count(OBJECT_VALUES - 1)?;
        let mut object = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            self.check_key(&object, &key)?;
            let value = entries.next_value_seed(self.below(Place::Key(&self.place, &key)))?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

/// Offset of the first integer in `text`, which is valid JSON, that does not fit into 64 bits.
fn wide_integer(text: &str) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = after_string(bytes, at),
            b'-' | b'0'..=b'9' => {
                let end = at + number_length(&bytes[at..]);
                let number = &text[at..end];
                let integer = !number.contains(['.', 'e', 'E']);
                if integer && number.parse::<i64>().is_err() && number.parse::<u64>().is_err() {
                    return Some(at);
                }
                at = end;
            }
            _ => at += 1,
        }
    }
    None
}

fn after_string(bytes: &[u8], quote: usize) -> usize {
    let mut at = quote + 1;
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

fn number_length(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take_while(|byte| matches!(byte, b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E'))
        .count()
}

fn out_of_range(text: &str, offset: usize) -> BodyError {
    let before = &text[..offset];
    BodyError::IntegerOutOfRange {
        line: before.matches('\n').count() + 1,
        column: offset - before.rfind('\n').map_or(0, |newline| newline + 1) + 1,
    }
}

#[cfg(test)]
mod tests;
