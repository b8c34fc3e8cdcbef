//! `forge-bridge models` and `system`: models of a runtime, its security and its configuration.

use clap::Subcommand;
use reqwest::Method;
use serde_json::Value;

use super::{Execute, Exit, Runtime};

#[derive(Debug, Subcommand)]
pub(in super::super) enum ModelCommand {
    /// List the models
    List,
    /// Set the model of an agent
    Set { agent: String, model: String },
}

#[derive(Debug, Subcommand)]
pub(in super::super) enum Command {
    /// List the model catalogue
    Catalogue,
    /// Show if runs are isolated from the machine, and findings about the runtime's security
    Posture,
    /// Reload the runtime's configuration
    Reload,
}

const FINDINGS: [&str; 2] = ["severity", "message"];
const MODELS: [&str; 3] = ["modelId", "name", "provider"];

impl Execute for ModelCommand {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit {
        match self {
            Self::List => runtime.show(&["models"], &MODELS).await,
            Self::Set { agent, model } => {
                let path = ["agents", agent];
                runtime
                    .set(&path, "model", model.as_str().into(), "updated")
                    .await
            }
        }
    }
}

impl Execute for Command {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit {
        let (method, route) = match self {
            Self::Catalogue => (Method::GET, "models"),
            Self::Posture => (Method::GET, "security"),
            Self::Reload => (Method::POST, "reload"),
        };
        let mut answer = runtime
            .call(method, &["system", route], &Value::Null)
            .await?;
        if let (Self::Posture, false) = (self, runtime.json)
            && let Some(findings) = answer["findings"]
                .as_array()
                .filter(|list| !list.is_empty())
        {
            let findings = findings.clone().into();
            answer
                .as_object_mut()
                .map(|answer| answer.remove("findings"));
            runtime.print(&answer, &[])?;
            return runtime.print(&findings, &FINDINGS);
        }
        runtime.print(&answer, &MODELS)
    }
}
