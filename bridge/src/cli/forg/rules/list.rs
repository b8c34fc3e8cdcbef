//! `forg rules list`: rules and budgets in force, as a running bridge reports them.

use std::process::ExitCode;

use serde_json::Value;

use super::super::super::client::Target;
use super::super::super::screen::text;
use super::super::super::{Context, block_on};

pub(super) fn run(context: &Context) -> anyhow::Result<ExitCode> {
    let client = context.client()?;
    let path = Target::path(&["api", "v2", "signals", "rules"]);
    let answer = block_on(async { Ok(client.get(path).await?) })?;
    let screen = context.screen();
    if context.global.json {
        screen.value(&answer)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rules = answer["rules"].as_array().map_or(&[][..], Vec::as_slice);
    if rules.is_empty() {
        screen.line("No rules are configured (signals.rules).")?;
        return Ok(ExitCode::SUCCESS);
    }
    let heading = [
        "RULE", "SCOPE", "WINDOW", "ACTION", "OF", "FULLEST", "USED", "LIMIT", "LEFT",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(rules.iter().map(row));
    screen.table(&rows)?;
    Ok(ExitCode::SUCCESS)
}

/// Row of a rule with its fullest window, which is the first.
fn row(rule: &Value) -> Vec<String> {
    let action = match (rule["enabled"] == false, rule["counting"] == true) {
        (true, _) => "off".to_owned(),
        (false, true) => "counting".to_owned(),
        // A budget blocks unless it says otherwise.
        (false, false) => match (&rule["action"], &rule["onExceed"]) {
            (Value::String(action), _) | (_, Value::String(action)) => action.clone(),
            _ => "block".to_owned(),
        },
    };
    let fullest = match rule.pointer("/windows/0/scopeValue") {
        Some(Value::String(value)) if value.is_empty() => "all".to_owned(),
        _ => text(rule, "/windows/0/scopeValue"),
    };
    let [id, scope, window, field, used, limit, left] = [
        "/id",
        "/scope",
        "/window",
        "/field",
        "/windows/0/used",
        "/windows/0/limit",
        "/windows/0/left",
    ]
    .map(|pointer| text(rule, pointer));
    vec![id, scope, window, action, field, fullest, used, limit, left]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_rule_is_a_row_with_its_fullest_window() {
        let windows = json!([{"scopeValue": "ben", "used": 1.25, "limit": 1, "left": 0}]);
        for (rule, expected) in [
            (
                json!({"id": "b", "scope": "user", "window": "1d", "limitUsd": 1, "field": "cost_usd", "windows": windows}),
                "b user 1d block cost_usd ben 1.25 1 0",
            ),
            (
                json!({"id": "n", "scope": "org", "window": "1h", "action": "notify", "field": "errors",
                    "windows": [{"scopeValue": "", "used": 2, "limit": 9, "left": 7}]}),
                "n org 1h notify errors all 2 9 7",
            ),
            (
                json!({"id": "o", "scope": "org", "window": "1h", "action": "block", "enabled": false, "windows": []}),
                "o org 1h off - - - - -",
            ),
        ] {
            assert_eq!(row(&rule).join(" "), expected);
        }
    }
}
