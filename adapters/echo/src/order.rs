//! Orders that an agent of model `run` finds in its instructions, one a line.

use std::time::Duration;

use forge_adapter_api::{AdapterError, Result};
use serde::Deserialize;
use serde_json::Value;

/// Heading of what an agent has to settle in a merge.
const CONFLICT: &str = "## Conflict";
/// Heading of the instructions in a task document.
const HEADING: &str = "## Instructions";

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    Write {
        path: String,
        text: String,
    },
    Append {
        path: String,
        text: String,
    },
    Delete(String),
    Sleep(Duration),
    Say(String),
    Fail(String),
    /// Fails in this many attempts.
    FailFirst {
        attempts: u32,
        code: String,
    },
    Hang,
    /// Waits for a file.
    Await(String),
    /// Reports a call of a tool of the runtime, with a result of this size.
    Tool {
        name: String,
        bytes: usize,
    },
    Call {
        tool: &'static str,
        input: Value,
    },
    Resolve(Side),
}

/// Lines of a conflict that stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Side {
    Ours,
    Theirs,
    Both,
}

impl Order {
    /// Parses a line; `None` for prose. Malformed JSON of a call is an error, because the call was meant.
    pub(crate) fn of(line: &str) -> Result<Option<Self>> {
        let line = line.trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let code = || (!rest.is_empty() && !rest.contains(' ')).then(|| rest.to_owned());
        let file = || {
            let (path, text) = rest.split_once(' ')?;
            Some((path.to_owned(), text.to_owned()))
        };
        Ok(match word {
            "write" => file().map(|(path, text)| Self::Write { path, text }),
            "append" => file().map(|(path, text)| Self::Append { path, text }),
            "delete" => code().map(Self::Delete),
            "sleep" => rest
                .parse()
                .ok()
                .map(Duration::from_millis)
                .map(Self::Sleep),
            "say" => (!rest.is_empty()).then(|| Self::Say(rest.to_owned())),
            "fail" => code().map(Self::Fail),
            "fail-once" => code().map(|code| Self::FailFirst { attempts: 1, code }),
            "fail-first" => file().and_then(|(attempts, code)| {
                let attempts = attempts.parse().ok()?;
                Some(Self::FailFirst { attempts, code })
            }),
            "hang" => rest.is_empty().then_some(Self::Hang),
            "await" => code().map(Self::Await),
            "tool" => {
                let (name, bytes) = rest.split_once(' ').unwrap_or((rest, ""));
                bytes.parse().ok().map(|bytes| Self::Tool {
                    name: name.to_owned(),
                    bytes,
                })
            }
            "cr" => call(line, "emit_cr", rest)?,
            "spawn" => call(line, "spawn_agent", rest)?,
            "subtasks" => call(line, "set_subtasks", rest)?,
            "resolve" => match rest {
                "ours" => Some(Self::Resolve(Side::Ours)),
                "theirs" => Some(Self::Resolve(Side::Theirs)),
                "both" => Some(Self::Resolve(Side::Both)),
                _ => None,
            },
            _ => None,
        })
    }
}

fn call(line: &str, tool: &'static str, input: &str) -> Result<Option<Order>> {
    if !input.starts_with(['{', '[']) {
        return Ok(None);
    }
    let input = serde_json::from_str(input)
        .map_err(|error| AdapterError::new("invalid_request", format!("{line}: {error}")))?;
    Ok(Some(Order::Call { tool, input }))
}

/// The lines below the first heading `## Instructions` and above the next heading of its level; without one, all.
pub(crate) fn instructions(message: &str) -> Vec<String> {
    let mut lines = message.lines();
    let found = lines.any(|line| line.trim_end() == HEADING);
    let below = match found {
        true => lines,
        false => message.lines(),
    };
    let is_part = |line: &&str| !found || !(line.starts_with("## ") || line.starts_with("# "));
    below.take_while(is_part).map(str::to_owned).collect()
}

/// True for a message that has conflicts, and no instructions that say how to settle them.
pub(crate) fn is_conflict(message: &str) -> bool {
    let has = |heading| message.lines().any(|line| line.trim_end() == heading);
    has(CONFLICT) && !has(HEADING)
}

#[cfg(test)]
mod tests {
    //! Lines that are orders, and lines of prose.

    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_is_an_order_or_prose() {
        let file = |text: &str| ("src/a.txt".to_owned(), text.to_owned());
        let fails = |attempts| Order::FailFirst {
            attempts,
            code: "code".to_owned(),
        };
        let (path, text) = file("one  two");
        let (end, last) = file("x");
        let table = [
            (
                "write src/a.txt one  two",
                Some(Order::Write { path, text }),
            ),
            (
                "  append src/a.txt x ",
                Some(Order::Append {
                    path: end,
                    text: last,
                }),
            ),
            ("delete a", Some(Order::Delete("a".to_owned()))),
            ("sleep 20", Some(Order::Sleep(Duration::from_millis(20)))),
            ("say well done", Some(Order::Say("well done".to_owned()))),
            ("fail code", Some(Order::Fail("code".to_owned()))),
            ("fail-once code", Some(fails(1))),
            ("fail-first 3 code", Some(fails(3))),
            ("fail-first of all", None),
            ("hang", Some(Order::Hang)),
            ("await go", Some(Order::Await("go".to_owned()))),
            (
                "tool read 20",
                Some(Order::Tool {
                    name: "read".to_owned(),
                    bytes: 20,
                }),
            ),
            (
                "spawn {\"type\": 1}",
                Some(Order::Call {
                    tool: "spawn_agent",
                    input: json!({"type": 1}),
                }),
            ),
            ("resolve both", Some(Order::Resolve(Side::Both))),
            ("write", None),
            ("write a", None),
            ("delete all of them", None),
            ("sleep well", None),
            ("hang on", None),
            ("await the answer", None),
            ("tool box", None),
            ("spawn a helper", None),
            ("resolve it", None),
            ("Please write tests", None),
            ("", None),
        ];
        for (line, wanted) in table {
            assert_eq!(Order::of(line).unwrap(), wanted, "{line:?}");
        }
        let error = Order::of("cr {\"title\": }").unwrap_err();
        assert_eq!(error.code, "invalid_request");
    }

    #[test]
    fn instructions_are_below_their_heading_or_everything() {
        let document = "---\nid: a\n---\n# A\nsay no\n## Instructions\n\nsay yes\n### Part\nsay too\n## Specs\nsay no";
        let wanted = ["", "say yes", "### Part", "say too"];
        assert_eq!(instructions(document), wanted);
        assert_eq!(instructions("# A\nsay yes"), ["# A", "say yes"]);
    }
}
