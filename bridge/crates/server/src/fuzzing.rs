//! Access for `tests/fuzz` to parsers that are private to this component.

use jiff::Timestamp;

use super::error::Code;
use super::query::{Query, page_cursor};

/// One parameter of each kind that a handler can read from a query.
#[derive(Debug, PartialEq)]
pub struct Asked {
    pub text: Option<String>,
    pub time: Option<Timestamp>,
    pub number: Option<u64>,
    pub choice: Option<u8>,
    pub flag: bool,
    pub cursor: Option<u64>,
}

/// Reads one parameter of each kind, or returns the error code of the refusal.
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

/// Cursor of the page after `position`.
pub fn cursor(position: u64) -> String {
    page_cursor(Some(position)).unwrap_or_default()
}
