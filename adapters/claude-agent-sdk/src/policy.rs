//! Policy for tool calls that no rule of the program covers.

use std::path::{Path, PathBuf};

use forge_adapter_transport::folder::is_below;
use serde_json::Value;

use crate::config::Permission;

/// Tools that access one file or directory, with the member of their input that holds the path.
const FILE_TOOLS: [(&str, &str); 8] = [
    ("Edit", "file_path"),
    ("Glob", "path"),
    ("Grep", "path"),
    ("LS", "path"),
    ("MultiEdit", "file_path"),
    ("NotebookEdit", "notebook_path"),
    ("Read", "file_path"),
    ("Write", "file_path"),
];

pub(crate) struct Policy {
    pub(crate) permission: Permission,
    /// Root of the files that may be read and written.
    pub(crate) workspace: Option<PathBuf>,
}

impl Policy {
    /// Decides on a call; `Err` is the reason reported to the model.
    pub(crate) fn decide(&self, tool: &str, input: &Value) -> Result<(), String> {
        let path = FILE_TOOLS
            .iter()
            .find(|(name, _)| *name == tool)
            .and_then(|(_, member)| input.get(*member)?.as_str());
        if let (Some(path), Some(workspace)) = (path, &self.workspace)
            && is_below(workspace, Path::new(path))
        {
            return Ok(());
        }
        match self.permission {
            Permission::Allow => Ok(()),
            Permission::Deny => Err(match path {
                Some(path) => {
                    format!(
                        "The bridge's policy denies {tool} on {path}: it is outside the workspace."
                    )
                }
                None => format!("The bridge's policy denies {tool}."),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use serde_json::json;

    use super::*;

    #[test]
    fn files_below_the_workspace_are_allowed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("sub")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("new"), root.path().join("dangling")).unwrap();
        let policy = Policy {
            permission: Permission::Deny,
            workspace: Some(root.path().to_owned()),
        };
        let path = |name: &str| root.path().join(name).display().to_string();
        let cases = [
            ("Write", json!({"file_path": path("a.txt")}), true),
            ("Write", json!({"file_path": "sub/new/deep.txt"}), true),
            ("Read", json!({"file_path": path("sub")}), true),
            ("Write", json!({"file_path": path("../a.txt")}), false),
            ("Write", json!({"file_path": path("out/a.txt")}), false),
            ("Write", json!({"file_path": path("dangling")}), false),
            ("Write", json!({"file_path": "/etc/passwd"}), false),
            ("Write", json!({}), false),
            (
                "Bash",
                json!({"command": "ls", "file_path": path("a.txt")}),
                false,
            ),
        ];
        for (tool, input, allowed) in cases {
            assert_eq!(
                policy.decide(tool, &input).is_ok(),
                allowed,
                "{tool} {input}"
            );
        }
    }

    #[test]
    fn without_a_workspace_the_default_decides() {
        let input = json!({"file_path": "/tmp/x"});
        for (permission, allowed) in [(Permission::Deny, false), (Permission::Allow, true)] {
            let policy = Policy {
                permission,
                workspace: None,
            };
            assert_eq!(policy.decide("Write", &input).is_ok(), allowed);
        }
    }
}
