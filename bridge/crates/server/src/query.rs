//! Query parameters: all errors are reported at once, both spellings of a name are read, unknown names are
//! refused.

use std::collections::BTreeSet;
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
use forge_base::spelling::{nearest, snake_case};

/// Maximum unknown parameters reported, and bytes shown of the name of each.
const MAX_UNKNOWN: usize = 8;
const MAX_NAME_BYTES: usize = 64;

/// Parameters of a request: read each one, then call [`Query::finish`].
#[derive(Debug)]
pub(super) struct Query {
    pairs: Vec<(String, String)>,
    /// Names read so far: the parameters of the route.
    known: Vec<&'static str>,
    problems: Vec<Value>,
}

impl<S: Sync> FromRequestParts<S> for Query {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::parse(parts.uri.query().unwrap_or_default()))
    }
}

/// Extractor of a route that has no parameters.
#[derive(Debug)]
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        query.finish().map(|()| Self)
    }
}

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        let pairs = url::form_urlencoded::parse(query.as_bytes());
        Self {
            pairs: pairs.into_owned().collect(),
            known: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Makes `name` a parameter of the route; it is read elsewhere.
    pub(super) fn accept(&mut self, name: &'static str) {
        // The names matter only if there is something to compare with them.
        if !self.pairs.is_empty() {
            self.known.push(name);
        }
    }

    /// Value of `name`, spelled in camelCase or snake_case; an empty value counts as absent.
    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        self.accept(name);
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
    pub(super) fn time(&mut self, name: &'static str) -> Option<Timestamp> {
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

    pub(super) fn number(&mut self, name: &'static str, range: RangeInclusive<u64>) -> Option<u64> {
        let text = self.text(name)?;
        let number = text.parse().ok().filter(|number| range.contains(number));
        if number.is_none() {
            let (low, high) = range.into_inner();
            self.refuse(name, format!("must be a whole number from {low} to {high}"));
        }
        number
    }

    /// Value as `true` or `false`; an absent name is `false`, a name without a value `true`.
    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        let snake = snake_case(name);
        let named = |key: &str| key == name || key == snake;
        if self
            .pairs
            .iter()
            .any(|(key, value)| named(key) && value.is_empty())
        {
            self.accept(name);
            return true;
        }
        self.choice(name, &[("true", true), ("false", false)])
            .unwrap_or(false)
    }

    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
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

    /// Fails with all errors found in the parameters read, and with the names that were not read.
    pub(super) fn finish(mut self) -> Result<(), Failure> {
        self.refuse_unknown();
        if self.problems.is_empty() {
            Ok(())
        } else {
            Err(Failure::fields(self.problems))
        }
    }

    fn refuse_unknown(&mut self) {
        let is_known = |key: &str| {
            let mut known = self.known.iter();
            known.any(|name| key == *name || key == snake_case(name))
        };
        let keys = self.pairs.iter().map(|(key, _)| key.as_str());
        let unknown: BTreeSet<&str> = keys.filter(|key| !is_known(key)).collect();
        for key in unknown.into_iter().take(MAX_UNKNOWN) {
            let shown = &key[..key.floor_char_boundary(MAX_NAME_BYTES)];
            let message = match nearest(shown, self.known.iter().copied()) {
                Some(meant) => format!("is not a parameter of this route; did you mean {meant}?"),
                None => "is not a parameter of this route".to_owned(),
            };
            self.problems.push(problem(shown, message));
        }
    }
}

/// `nextCursor` of a list; opaque to callers.
pub(super) fn page_cursor(next: Option<u64>) -> Option<String> {
    next.map(|next| URL_SAFE_NO_PAD.encode(next.to_be_bytes()))
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
            let ago = forge_base::time::wall_age(time(age).unwrap(), before).as_secs();
            assert!((seconds - 60..=seconds).contains(&ago), "{age}: {ago}");
        }
        for wrong in ["1", "h", "-1h", "1y", "99999999999d", "yesterday"] {
            assert_eq!(time(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn unknown_names_are_refused_with_the_nearest_known_one() {
        for (query, field, hint) in [
            ("sinse=1", "sinse", "did you mean since?"),
            ("agentid=1", "agentid", "did you mean agentId?"),
            ("agnet_id=1", "agnet_id", "did you mean agentId?"),
            ("zebra", "zebra", "this route"),
            ("=1", "", "this route"),
        ] {
            let mut query = Query::parse(query);
            query.text("agentId");
            query.time("since");
            query.refuse_unknown();
            let [only] = query.problems.as_slice() else {
                panic!("{:?}", query.problems);
            };
            assert_eq!(only["field"], field);
            assert!(only["message"].as_str().unwrap().ends_with(hint), "{only}");
        }
        let many: String = (0..1000)
            .map(|n| format!("{n}{}&", "x".repeat(99)))
            .collect();
        let mut many = Query::parse(&many);
        many.refuse_unknown();
        assert_eq!(many.problems.len(), MAX_UNKNOWN);
        assert_eq!(
            many.problems[0]["field"].as_str().unwrap().len(),
            MAX_NAME_BYTES
        );
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
