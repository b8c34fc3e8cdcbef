//! `forge-bridge agents`: agents of a runtime, their files and their channel bindings.

use std::process::ExitCode;

use clap::Subcommand;
use reqwest::Method;
use serde_json::json;

use super::{Entry, Execute, Exit, Input, Removal, Runtime, difference};

#[derive(Debug, Subcommand)]
pub(in super::super) enum Command {
    /// List the agents
    List,
    /// Show an agent with its instructions
    Show(Entry),
    /// Make an agent what a file in TOML or JSON says, and create it if it does not exist
    ///
    /// Members are `name`, `model`, `systemPrompt` and those that the runtime has beside them. With the shipped adapters,
    /// an absent member stays as it is, and an empty one is cleared.
    Push(Input),
    /// Show the members of a file that the runtime has otherwise; exit code 1 if there are any
    Diff(Input),
    /// Remove an agent
    Remove(Removal),
    /// List the files of an agent's workspace
    Files(Entry),
    /// Read, write or remove a file of an agent's workspace
    #[command(subcommand)]
    File(FileCommand),
    /// List the channels on which an agent answers
    Bindings(Entry),
    /// Replace all channel bindings by `bindings` of a file, an array of tables with `channel`
    Bind(Input),
}

#[derive(Debug, Subcommand)]
pub(in super::super) enum FileCommand {
    /// Print a file; ID is its path in the workspace
    Read(File<Entry>),
    /// Replace or create a file
    Write(File<Input>),
    /// Remove a file
    Remove(File<Removal>),
}

#[derive(Debug, clap::Args)]
pub(in super::super) struct File<T: clap::Args> {
    agent: String,
    #[command(flatten)]
    file: T,
}

impl Execute for Command {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit {
        match self {
            Self::List => {
                runtime
                    .show(&["agents"], &["agentId", "name", "model"])
                    .await
            }
            Self::Show(Entry { id }) => runtime.show(&["agents", id], &[]).await,
            Self::Push(input) => {
                let path = ["agents", &input.id];
                runtime.push(&path, "agentId", input.value()?).await
            }
            Self::Diff(input) => {
                let wanted = input.value()?;
                let actual = runtime.get(&["agents", &input.id]).await?;
                difference::print(runtime, &actual, &wanted, &input.source())
            }
            Self::Remove(removal) => runtime.remove(&["agents", &removal.id], removal).await,
            Self::Files(Entry { id }) => {
                let path = ["agents", id, "files"];
                runtime.show(&path, &["path", "sizeBytes"]).await
            }
            Self::File(command) => command.execute(runtime).await,
            Self::Bindings(Entry { id }) => {
                let bindings = runtime.get(&["agents", id, "bindings"]).await?;
                runtime.print(&json!({ "bindings": bindings }), &[])
            }
            Self::Bind(input) => {
                let path = ["agents", &input.id, "bindings"];
                runtime.call(Method::PUT, &path, &input.value()?).await?;
                runtime.done("bound", &input.id)
            }
        }
    }
}

impl Execute for FileCommand {
    async fn execute(&self, runtime: &Runtime<'_>) -> Exit {
        let (agent, path) = match self {
            Self::Read(File { agent, file }) => (agent, &file.id),
            Self::Write(File { agent, file }) => (agent, &file.id),
            Self::Remove(File { agent, file }) => (agent, &file.id),
        };
        let mut parts = vec!["agents", agent, "files"];
        parts.extend(path.split('/'));
        match self {
            Self::Read(_) if runtime.json => runtime.show(&parts, &[]).await,
            Self::Read(_) => {
                let file = runtime.get(&parts).await?;
                runtime
                    .screen
                    .piece(file["content"].as_str().unwrap_or_default())?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Write(File { file, .. }) => {
                let body = json!({ "content": file.text()? });
                runtime.call(Method::PUT, &parts, &body).await?;
                runtime.done("written", path)
            }
            Self::Remove(File { file, .. }) => runtime.remove(&parts, file).await,
        }
    }
}
