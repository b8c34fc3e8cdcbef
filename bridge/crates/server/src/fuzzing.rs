//! Readers that are private to this component, opened to `tests/fuzz`.

use jiff::Timestamp;

use super::error::Code;
use super::query::{Query, page_cursor};

/// What a handler could ask a query for.
#[derive(Debug, PartialEq)]
pub struct Asked {
    pub text: Option<String>,
    pub time: Option<Timestamp>,
    pub number: Option<u64>,
    pub choice: Option<u8>,
    pub flag: bool,
    pub cursor: Option<u64>,
}

/// Reads one parameter of each kind, or says with which code it is refused.
pub fn query(text: &str) -> Result<Asked, Code> {
    let mut query = Query::parse(text);
    let asked = Asked {
        text: query.text("agentId"),
        time: query.time("since"),
        number: query.number("limit", 1..=1000),
        choice: query.choice("status", &[("dead", 1), ("pending", 2)]),
        flag: query.flag("all"),
        cursor: query.page(),
    };
    query
        .finish()
        .map(|()| asked)
        .map_err(|failure| failure.code())
}

/// The cursor that leads to a page.
pub fn cursor(position: u64) -> String {
    page_cursor(Some(position)).unwrap_or_default()
}
