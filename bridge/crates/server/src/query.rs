//! Query parameters: all errors are reported at once, both spellings of a name are read, unknown names are
//! ignored.

use std::convert::Infallible;
use std::ops::RangeInclusive;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde_json::Value;

use super::error::{Failure, problem};
use forge_base::duration;

/// Parameters of a request: read each one, then call [`Query::finish`].
#[derive(Debug)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
    problems: Vec<Value>,
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Self {
            pairs: pairs.into_owned().collect(),
            problems: Vec::new(),
        }
    }

    /// Value of `name`, spelled in camelCase or snake_case; an empty value counts as absent.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let snake = snake_case(name);
        let mut values: Vec<&str> = self
            .pairs
            .iter()
            .filter(|(key, value)| (key == name || *key == snake) && !value.is_empty())
            .map(|(_, value)| value.as_str())
            .collect();
        values.dedup();
        match values.as_slice() {
            [] => None,
            [value] => Some((*value).to_owned()),
            _ => {
                self.refuse(name, "is given several times with different values");
                None
            }
        }
    }

    /// Value as an RFC 3339 time, or as an age, which is subtracted from the present time.
    pub(super) fn time(&mut self, name: &str) -> Option<Timestamp> {
        let text = self.text(name)?;
        let of_age = || Timestamp::now().checked_sub(duration::parse(&text)?).ok();
        let time = text.parse().ok().or_else(of_age);
        if time.is_none() {
            self.refuse(
                name,
                "must be a time such as 2026-11-21T02:41:12Z, or an age such as 30m, 1h or 7d",
            );
        }
        time
    }

    pub(super) fn number(&mut self, name: &str, range: RangeInclusive<u64>) -> Option<u64> {
        let text = self.text(name)?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (low, high) = range.into_inner();
            self.refuse(name, format!("must be a whole number from {low} to {high}"));
        }
        number
    }

    /// Value as `true` or `false`; an absent name is `false`, a name without a value `true`.
    pub(super) fn flag(&mut self, name: &str) -> bool {
        let snake = snake_case(name);
        let named = |key: &str| key == name || key == snake;
        if self
            .pairs
            .iter()
            .any(|(key, value)| named(key) && value.is_empty())
        {
            return true;
        }
        self.choice(name, &[("true", true), ("false", false)])
            .unwrap_or(false)
    }

    pub(super) fn choice<T: Copy>(&mut self, name: &str, choices: &[(&str, T)]) -> Option<T> {
        let text = self.text(name)?;
        let chosen = choices.iter().find(|(word, _)| *word == text);
        if chosen.is_none() {
            let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
            self.refuse(name, format!("must be one of {}", words.join(", ")));
        }
        chosen.map(|(_, value)| *value)
    }

    /// Position in the parameter `cursor`, as encoded by [`page_cursor`].
    pub(super) fn page(&mut self) -> Option<u64> {
        let text = self.text("cursor")?;
        let before = URL_SAFE_NO_PAD
            .decode(text)
            .ok()
            .and_then(|bytes| <[u8; 8]>::try_from(bytes).ok())
            .map(u64::from_be_bytes);
        if before.is_none() {
            self.refuse("cursor", "must be the nextCursor of an earlier page");
        }
        before
    }

    pub(super) fn refuse(&mut self, name: &str, message: impl Into<String>) {
        self.problems.push(problem(name, message));
    }

    /// Fails with all errors found in the parameters read.
    pub(super) fn finish(self) -> Result<(), Failure> {
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Failure::fields(self.problems))
        }
    }
}

/// `nextCursor` of a list; opaque to callers.
pub(super) fn page_cursor(next: Option<u64>) -> Option<String> {
    next.map(|next| URL_SAFE_NO_PAD.encode(next.to_be_bytes()))
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_spellings_are_read_and_must_agree() {
        let mut query = Query::parse("agent_id=a&run_id=1&runId=2&x=&task_id=t&taskId=t");
        assert_eq!(query.text("agentId").as_deref(), Some("a"));
        assert_eq!(query.text("taskId").as_deref(), Some("t"));
        assert_eq!(query.text("x"), None);
        assert_eq!(query.text("runId"), None);
        assert!(query.finish().is_err());
    }

    #[test]
    fn every_mistake_is_told() {
        let mut query = Query::parse("limit=0&since=yesterday&status=gone&cursor=x&all=maybe");
        assert_eq!(query.number("limit", 1..=5), None);
        assert_eq!(query.time("since"), None);
        assert_eq!(query.choice("status", &[("dead", 1)]), None);
        assert_eq!(query.page(), None);
        assert!(!query.flag("all"));
        assert_eq!(query.problems.len(), 5);
    }

    #[test]
    fn a_time_is_a_date_or_an_age() {
        let time = |text: &str| Query::parse(&format!("since={text}")).time("since");
        let date = "2026-11-21T02:41:12Z";
        assert_eq!(time(date), Some(date.parse().unwrap()));
        for (age, seconds) in [
            ("30m", 1_800),
            ("1h", 3_600),
            ("1h30m", 5_400),
            ("7d", 604_800),
        ] {
            let before = Timestamp::now();
            let ago = before.duration_since(time(age).unwrap()).as_secs();
            assert!((seconds - 60..=seconds).contains(&ago), "{age}: {ago}");
        }
        for wrong in ["1", "h", "-1h", "1y", "99999999999d", "yesterday"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_page_cursor_is_read_back() {
        let cursor = page_cursor(Some(77)).unwrap();
        assert_eq!(Query::parse(&format!("cursor={cursor}")).page(), Some(77));
    }

    #[test]
    fn a_flag_may_stand_alone() {
        for (query, expected) in [
            ("all", true),
            ("all=true", true),
            ("all=false", false),
            ("", false),
        ] {
            assert_eq!(Query::parse(query).flag("all"), expected, "{query}");
        }
    }
}
