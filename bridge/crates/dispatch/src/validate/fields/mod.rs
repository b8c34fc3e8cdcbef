//! Reader of a JSON object, member by member: accepts both spellings of a name, checks the type, and collects the
//! complaints, so that the caller gets all of them at once.

use std::borrow::Cow;
use std::cell::RefCell;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use serde_json::{Map, Value};

use forge_base::spelling::snake_case;
use forge_base::text::id_complaint;

/// One complaint about a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FieldError {
    /// Path of the field, such as `tools[2].inputSchema`; empty for the whole body.
    pub field: String,
    pub message: String,
}

/// Complaints and warnings collected so far; shared by all readers of one request.
#[derive(Debug, Default)]
pub struct Complaints {
    errors: RefCell<Vec<FieldError>>,
    warnings: RefCell<Vec<String>>,
}

impl Complaints {
    pub fn add(&self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.borrow_mut().push(FieldError {
            field: field.into(),
            message: message.into(),
        });
    }

    pub fn warn(&self, message: String) {
        self.warnings.borrow_mut().push(message);
    }

    pub fn warning_count(&self) -> usize {
        self.warnings.borrow().len()
    }

    /// Errors and warnings.
    pub fn into_parts(self) -> (Vec<FieldError>, Vec<String>) {
        (self.errors.into_inner(), self.warnings.into_inner())
    }

    #[cfg(test)]
    pub fn into_vec(self) -> Vec<FieldError> {
        self.errors.into_inner()
    }
}

/// A documented name and its other spellings. The snake_case form of each is accepted as well.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    pub camel: &'static str,
    pub others: &'static [&'static str],
}

impl From<&'static str> for Name {
    fn from(camel: &'static str) -> Self {
        Self { camel, others: &[] }
    }
}

/// Bit for the length of a name; lengths from 63 on share one.
fn length_bit(name: &str) -> u64 {
    1 << name.len().min(63)
}

/// One object of the request.
#[derive(Clone, Debug)]
pub struct Fields<'a> {
    members: &'a Map<String, Value>,
    /// True if any member's name has an underscore; without one, snake_case names need no lookup.
    any_snake: bool,
    /// Lengths of the members' names, one bit each. Skips most lookups, since most members are absent.
    lengths: u64,
    path: String,
    complaints: &'a Complaints,
}

impl<'a> Fields<'a> {
    /// Creates a reader; complains if the value is not an object.
    pub fn read(value: &'a Value, path: &str, complaints: &'a Complaints) -> Option<Self> {
        let Some(members) = value.as_object() else {
            complaints.add(
                path,
                format!("must be a JSON object, not {}", describe(value)),
            );
            return None;
        };
        Some(Self {
            members,
            any_snake: members.keys().any(|name| name.contains('_')),
            lengths: members.keys().fold(0, |all, name| all | length_bit(name)),
            path: path.to_owned(),
            complaints,
        })
    }

    pub fn complaints(&self) -> &'a Complaints {
        self.complaints
    }

    /// Names of the members as given.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.members.keys().map(String::as_str)
    }

    /// Path of a member from the root of the request.
    pub fn path(&self, name: &str) -> String {
        if self.path.is_empty() {
            name.to_owned()
        } else {
            format!("{}.{name}", self.path)
        }
    }

    pub fn complain(&self, name: impl Into<Name>, message: impl Into<String>) {
        self.complaints.add(self.path(name.into().camel), message);
    }

    /// The member as given, including `null`. Complains if two spellings have different values.
    pub fn given(&self, name: impl Into<Name>) -> Option<&'a Value> {
        let name = name.into();
        let names = std::iter::once(&name.camel).chain(name.others);
        let is_out = |camel: &&str| self.lengths & length_bit(camel) == 0;
        if !self.any_snake && names.clone().all(is_out) {
            return None;
        }
        let mut found: Option<(Cow<'static, str>, &'a Value)> = None;
        let spellings = names.flat_map(|camel| {
            let snake = self.any_snake.then(|| Cow::Owned(snake_case(camel)));
            std::iter::once(Cow::Borrowed(*camel)).chain(snake)
        });
        for spelling in spellings {
            let Some(value) = self.members.get(spelling.as_ref()) else {
                continue;
            };
            match &found {
                None => found = Some((spelling, value)),
                Some((first, other)) if *other != value => {
                    let message = format!(
                        "is given twice, as {first} and as {spelling}, with different values; give one"
                    );
                    self.complain(name, message);
                    return found.map(|(_, value)| value);
                }
                Some(_) => {}
            }
        }
        found.map(|(_, value)| value)
    }

    /// The member if it is present and not `null`.
    pub fn value(&self, name: impl Into<Name>) -> Option<&'a Value> {
        self.given(name).filter(|value| !value.is_null())
    }

    /// Like `value`, but complains if the member is absent.
    pub fn required(&self, name: impl Into<Name>) -> Option<&'a Value> {
        let name = name.into();
        let value = self.value(name);
        if value.is_none() {
            self.complain(name, "is required");
        }
        value
    }

    /// A string, possibly empty.
    pub fn text(&self, name: impl Into<Name>) -> Option<&'a str> {
        let name = name.into();
        let value = self.value(name)?;
        self.as_text(name, value)
    }

    /// A required string that is not empty.
    pub fn required_text(&self, name: impl Into<Name>) -> Option<&'a str> {
        let name = name.into();
        let value = self.required(name)?;
        let text = self.as_text(name, value)?;
        if text.is_empty() {
            self.complain(name, "must not be empty");
            return None;
        }
        Some(text)
    }

    /// An opaque id: 1 to 256 bytes, no characters that cannot be seen.
    pub fn id(&self, name: impl Into<Name>) -> Option<String> {
        let name = name.into();
        let text = self.text(name)?;
        self.as_id(name, text)
    }

    pub fn required_id(&self, name: impl Into<Name>) -> Option<String> {
        let name = name.into();
        let text = self.required_text(name)?;
        self.as_id(name, text)
    }

    /// An integer from `least` to `most`.
    pub fn integer(&self, name: impl Into<Name>, least: i64, most: i64) -> Option<i64> {
        let name = name.into();
        let value = self.value(name)?;
        let number = value.as_i64().or_else(|| whole(value.as_f64()?));
        if number.is_none_or(|n| n < least || n > most) {
            let message = format!("must be a whole number from {least} to {most}");
            self.complain(name, message);
            return None;
        }
        number
    }

    /// A number above 0.
    pub fn positive(&self, name: impl Into<Name>) -> Option<f64> {
        let name = name.into();
        let value = self.value(name)?;
        let number = value.as_f64().filter(|n| n.is_finite() && *n > 0.0);
        if number.is_none() {
            self.complain(name, "must be a number above 0");
        }
        number
    }

    /// A number from `least` to `most`.
    pub fn number(&self, name: impl Into<Name>, least: f64, most: f64) -> Option<f64> {
        let name = name.into();
        let value = self.value(name)?;
        let number = value.as_f64().filter(|n| (least..=most).contains(n));
        if number.is_none() {
            self.complain(name, format!("must be a number from {least} to {most}"));
        }
        number
    }

    /// A number of seconds, above 0 and at most `most`.
    pub fn seconds(&self, name: impl Into<Name>, most: Duration) -> Option<Duration> {
        let name = name.into();
        let seconds = self.positive(name)?;
        let duration = Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|duration| !duration.is_zero() && *duration <= most);
        if duration.is_none() {
            let message = format!(
                "must be a number of seconds, above 0 and at most {}",
                most.as_secs_f64()
            );
            self.complain(name, message);
        }
        duration
    }

    /// An RFC 3339 time.
    pub fn time(&self, name: impl Into<Name>) -> Option<Timestamp> {
        let name = name.into();
        let text = self.text(name)?;
        let time = Some(text)
            .filter(|text| is_rfc3339(text))
            .and_then(|text| text.parse().ok());
        if time.is_none() {
            self.complain(
                name,
                "must be an RFC 3339 time, such as 2026-01-31T08:00:00Z",
            );
        }
        time
    }

    /// One of the given words.
    pub fn choice<T: Copy>(&self, name: impl Into<Name>, choices: &[(&str, T)]) -> Option<T> {
        let name = name.into();
        let value = self.value(name)?;
        let chosen = value
            .as_str()
            .and_then(|text| choices.iter().find(|(word, _)| *word == text));
        if chosen.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.complain(name, format!("must be one of {}", words.join(", ")));
        }
        chosen.map(|(_, choice)| *choice)
    }

    pub fn boolean(&self, name: impl Into<Name>) -> Option<bool> {
        let name = name.into();
        let value = self.value(name)?;
        if !value.is_boolean() {
            let message = format!("must be true or false, not {}", describe(value));
            self.complain(name, message);
        }
        value.as_bool()
    }

    /// Elements of an array with their paths; empty if the member is absent.
    pub fn list(&self, name: impl Into<Name>) -> Vec<(String, &'a Value)> {
        let name = name.into();
        let Some(value) = self.value(name) else {
            return Vec::new();
        };
        let Some(elements) = value.as_array() else {
            self.complain(name, format!("must be an array, not {}", describe(value)));
            return Vec::new();
        };
        let path = self.path(name.camel);
        let numbered = elements.iter().enumerate();
        numbered
            .map(|(i, element)| (format!("{path}[{i}]"), element))
            .collect()
    }

    /// Distinct words of an array of non-empty strings.
    pub fn words(&self, name: impl Into<Name>) -> Vec<String> {
        let mut words = Vec::new();
        for (path, element) in self.list(name) {
            match element.as_str() {
                Some(word) if !word.is_empty() => {
                    if !words.iter().any(|known| known == word) {
                        words.push(word.to_owned());
                    }
                }
                Some(_) => self.complaints.add(path, "must not be empty"),
                None => self
                    .complaints
                    .add(path, format!("must be a string, not {}", describe(element))),
            }
        }
        words
    }

    /// An object inside this one.
    pub fn object(&self, name: impl Into<Name>) -> Option<Fields<'a>> {
        let name = name.into();
        let value = self.value(name)?;
        Fields::read(value, &self.path(name.camel), self.complaints)
    }

    /// An object whose member names are the caller's own.
    pub fn map(&self, name: impl Into<Name>) -> Option<&'a Map<String, Value>> {
        let name = name.into();
        let value = self.value(name)?;
        let map = value.as_object();
        if map.is_none() {
            let message = format!("must be a JSON object, not {}", describe(value));
            self.complain(name, message);
        }
        map
    }

    fn as_text(&self, name: Name, value: &'a Value) -> Option<&'a str> {
        let text = value.as_str();
        if text.is_none() {
            self.complain(name, format!("must be a string, not {}", describe(value)));
        }
        text
    }

    fn as_id(&self, name: Name, text: &str) -> Option<String> {
        let complaint = id_complaint(text);
        if let Some(complaint) = complaint {
            self.complain(name, complaint);
            return None;
        }
        Some(text.to_owned())
    }
}

/// Type of a value with its article, for messages.
pub fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Reads a float without a fraction as an integer: `5.0` is 5.
fn whole(number: f64) -> Option<i64> {
    let exact = number.fract() == 0.0 && number.abs() <= 9_007_199_254_740_992.0;
    exact.then_some(number as i64)
}

/// True for a date, `T`, a time and an offset; the time parser also accepts other forms.
fn is_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    let separated = bytes.get(10).is_some_and(|b| matches!(b, b'T' | b't'));
    let zone = |b: &u8| matches!(b, b'Z' | b'z' | b'+' | b'-');
    separated && bytes.iter().skip(11).any(zone) && !text.contains('[')
}

#[cfg(test)]
mod tests;
