//! `forge-bridge skills`: skills of a runtime, their status and their dependencies.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::{Entry, Execute, Exit, Input, Removal, Runtime, exit};

#[derive(Debug, Subcommand)]
pub(in super::super) enum Command {
    /// List the skills
    List,
    /// Show a skill with its text
    Show(Entry),
    /// Show if a skill can be used now, and what it lacks
    Status(Entry),
    /// Make a skill what a file says, a `SKILL.md`, TOML or JSON, and create it if it does not exist
    Push(Input),
    /// Let runs use a skill
    Enable(Entry),
    /// Keep runs from using a skill
    Disable(Entry),
    /// Install what a skill lacks on the runtime's machine; exit code 1 if something is missing after that
    Install(Entry),
    /// Remove a skill, or disable it where the runtime removes none
    Remove(Removal),
}

impl Execute for Command {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit {
        match self {
            Self::List => {
                let columns = ["skillKey", "enabled", "description"];
                runtime.show(&["skills"], &columns).await
            }
            Self::Show(Entry { id }) => runtime.show(&["skills", id], &[]).await,
            Self::Status(Entry { id }) => runtime.show(&["skills", id, "status"], &[]).await,
            Self::Push(input) => {
                let path = ["skills", &input.id];
                runtime.push(&path, "skillKey", input.value()?).await
            }
            Self::Enable(Entry { id }) => {
                let path = ["skills", id];
                runtime.set(&path, "enabled", true.into(), "enabled").await
            }
            Self::Disable(Entry { id }) => {
                let path = ["skills", id];
                runtime
                    .set(&path, "enabled", false.into(), "disabled")
                    .await
            }
            Self::Install(Entry { id }) => {
                let path = ["skills", id, "dependencies"];
                let report = runtime.call(Method::POST, &path, &Value::Null).await?;
                runtime.print(&report, &[])?;
                let failed = report["failed"]
                    .as_array()
                    .is_some_and(|failed| !failed.is_empty());
                Ok(exit(!failed))
            }
            Self::Remove(removal) => runtime.remove(&["skills", &removal.id], removal).await,
        }
    }
}
