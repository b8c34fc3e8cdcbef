//! Policy for the agent's permission requests.

use std::path::Path;

use forge_adapter_api::folder::Folder;
use forge_adapter_transport::folder::is_below;
use serde_json::{Value, json};

use crate::config::{Permission, Table, ToolKind};

/// Members of a call's input that hold a path; names differ between agents.
const PATHS: [&str; 6] = [
    "path",
    "file_path",
    "filePath",
    "filepath",
    "abs_path",
    "notebook_path",
];

pub(crate) struct Policy {
    pub(crate) permission: Permission,
    pub(crate) allowed: Vec<ToolKind>,
    pub(crate) disallowed: Vec<ToolKind>,
    /// Root of the files that may be read, searched and edited.
    pub(crate) workspace: Option<Folder>,
    /// MCP servers that the dispatch names; their tools may be used.
    pub(crate) servers: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Allowed,
    Denied,
}

impl Policy {
    pub(crate) fn new(table: &Table, workspace: Option<Folder>, servers: Vec<String>) -> Self {
        Self {
            permission: table.permission,
            allowed: table.allowed_tools.clone(),
            disallowed: table.disallowed_tools.clone(),
            workspace,
            servers,
        }
    }

    /// Decides on `call`, the `toolCall` of a permission request.
    pub(crate) fn decide(&self, call: &Value) -> Decision {
        let kind: ToolKind =
            serde_json::from_value(call["kind"].clone()).unwrap_or(ToolKind::Other);
        if self.disallowed.contains(&kind) {
            return Decision::Denied;
        }
        if self.allowed.contains(&kind)
            || self.is_in_workspace(kind, call)
            || self.is_of_a_server(kind, call)
        {
            return Decision::Allowed;
        }
        match self.permission {
            Permission::Allow => Decision::Allowed,
            Permission::Deny => Decision::Denied,
        }
    }

    fn is_in_workspace(&self, kind: ToolKind, call: &Value) -> bool {
        let touches_files = match kind {
            ToolKind::Read | ToolKind::Edit | ToolKind::Search => true,
            ToolKind::Delete
            | ToolKind::Move
            | ToolKind::Execute
            | ToolKind::Think
            | ToolKind::Fetch
            | ToolKind::SwitchMode
            | ToolKind::Other => false,
        };
        let Some(workspace) = self.workspace.as_ref().filter(|_| touches_files) else {
            return false;
        };
        let paths: Vec<&str> = paths(call).collect();
        !paths.is_empty()
            && paths
                .iter()
                .all(|path| is_below(workspace.path(), Path::new(path)))
    }

    /// Returns true for a tool of a permitted MCP server. Agents prefix its name: `count_add`, `mcp__count__add`.
    fn is_of_a_server(&self, kind: ToolKind, call: &Value) -> bool {
        let title = call["title"].as_str().unwrap_or_default();
        let is_name = title
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c));
        kind == ToolKind::Other
            && is_name
            && self.servers.iter().any(|server| {
                let rest = title
                    .strip_prefix("mcp__")
                    .or_else(|| title.strip_prefix("mcp_"))
                    .unwrap_or(title)
                    .strip_prefix(server.as_str());
                rest.is_some_and(|rest| rest.starts_with(['_', '.']))
            })
    }
}

/// All paths that the call names.
fn paths(call: &Value) -> impl Iterator<Item = &str> {
    let locations = call["locations"].as_array().into_iter().flatten();
    let contents = call["content"].as_array().into_iter().flatten();
    locations
        .chain(contents)
        .filter_map(|at| at["path"].as_str())
        .chain(
            PATHS
                .iter()
                .filter_map(|name| call["rawInput"][*name].as_str()),
        )
}

/// Answer to a permission request. Allows only this one call: an "always" would outlive the run and its policy.
pub(crate) fn answer(options: &Value, decision: Decision) -> Value {
    let wanted: &[&str] = match decision {
        Decision::Allowed => &["allow_once"],
        Decision::Denied => &["reject_once", "reject_always"],
    };
    let refusals = ["reject_once", "reject_always"];
    let options: Vec<&Value> = options.as_array().into_iter().flatten().collect();
    let chosen = wanted
        .iter()
        .chain(&refusals)
        .find_map(|kind| options.iter().find(|option| option["kind"] == *kind));
    match chosen {
        Some(option) => {
            json!({"outcome": {"outcome": "selected", "optionId": option["optionId"]}})
        }
        None => cancelled(),
    }
}

/// Answer to a permission request of a turn that is being cancelled.
pub(crate) fn cancelled() -> Value {
    json!({"outcome": {"outcome": "cancelled"}})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(workspace: Option<&Path>) -> Policy {
        Policy {
            permission: Permission::Deny,
            allowed: vec![ToolKind::Fetch],
            disallowed: vec![ToolKind::Search],
            workspace: workspace.map(|path| Folder::open(&path.canonicalize().unwrap()).unwrap()),
            servers: vec!["count".to_owned()],
        }
    }

    #[test]
    fn a_call_is_denied_unless_a_rule_or_the_workspace_allows_it() {
        let root = tempfile::tempdir().unwrap();
        let inside = root.path().join("a.txt").display().to_string();
        let cases = [
            (
                json!({"kind": "execute", "rawInput": {"command": "ls"}}),
                false,
            ),
            (json!({"kind": "fetch"}), true),
            (
                json!({"kind": "search", "locations": [{"path": inside}]}),
                false,
            ),
            (
                json!({"kind": "edit", "locations": [{"path": inside}]}),
                true,
            ),
            (
                json!({"kind": "edit", "content": [{"type": "diff", "path": inside}]}),
                true,
            ),
            (
                json!({"kind": "read", "rawInput": {"filePath": inside}}),
                true,
            ),
            (
                json!({"kind": "edit", "locations": [{"path": inside}], "rawInput": {"filePath": "/etc/x"}}),
                false,
            ),
            (json!({"kind": "edit", "locations": []}), false),
            (json!({"kind": "edit"}), false),
            (
                json!({"kind": "delete", "locations": [{"path": inside}]}),
                false,
            ),
            (json!({"kind": "other", "title": "count_add"}), true),
            (json!({"kind": "other", "title": "mcp__count__add"}), true),
            (json!({"kind": "other", "title": "counter_add"}), false),
            (
                json!({"kind": "other", "title": "count_add; rm -rf /"}),
                false,
            ),
            (json!({"kind": "execute", "title": "count_add"}), false),
            (json!({"title": "whatever"}), false),
            (json!({"kind": "of a later version"}), false),
        ];
        for (call, allowed) in cases {
            let decision = policy(Some(root.path())).decide(&call);
            assert_eq!(decision == Decision::Allowed, allowed, "{call}");
        }
        let edit = json!({"kind": "edit", "locations": [{"path": inside}]});
        assert_eq!(policy(None).decide(&edit), Decision::Denied);
    }

    #[test]
    fn an_answer_is_chosen_by_its_kind_and_never_allows_for_ever() {
        let option = |id: &str, kind: &str| json!({"optionId": id, "kind": kind});
        let all = json!([
            option("1", "allow_always"),
            option("2", "allow_once"),
            option("3", "reject_always"),
            option("4", "reject_once"),
        ]);
        let only_always = json!([option("1", "allow_always"), option("3", "reject_always")]);
        let cases = [
            (&all, Decision::Allowed, Some("2")),
            (&all, Decision::Denied, Some("4")),
            (&only_always, Decision::Allowed, Some("3")),
            (&only_always, Decision::Denied, Some("3")),
            (&Value::Null, Decision::Allowed, None),
        ];
        for (options, decision, wanted) in cases {
            let chosen = answer(options, decision);
            assert_eq!(chosen["outcome"]["optionId"].as_str(), wanted, "{chosen}");
        }
    }
}
