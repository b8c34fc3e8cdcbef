//! A deterministic adapter: the request's `model` selects what it does, so that everything around it
//! can be tried without a runtime.
//!
//! | model | what happens |
//! |---|---|
//! | `ok`, unknown or absent | the output is the message |
//! | `slow:<ms>` | the same after that time; ends as `cancelled` when told to |
//! | `stream:<n>` | n `assistant.text` events first; the output is their text |
//! | `usage`, `usage:<n>` | n (3) `usage` events, 20 ms apart, with growing tokens and cost; the totals in the result |
//! | `tools`, `tools:<n>` | hands calls of the offered tools (or one called `echo`) back, n (1) times; then the output is the last results' texts |
//! | `session` | goes on with `sessionId` or makes one; the output is all the turns so far |
//! | `structured` | `structuredOutput`: the message if it is JSON, else a sample of `outputSchema` |
//! | `file` | writes the message to `outputFile` below `workspace.dir` |
//! | `fail`, `fail:<code>` | an error of that code (`echo_failed`) |
//! | `panic` | panics |
//! | `hang` | never ends, and says false when cancelled |
//! | `large:<bytes>` | an output of so many bytes |
//! | `crash` | aborts the whole process |
//!
//! README.md says how the profile is configured.
#![forbid(unsafe_code)]

mod run;
mod sample;
mod settings;

use std::collections::HashMap;
use std::sync::Mutex;

use forge_adapter_api::{
    AdapterError, Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health,
    Host, Profile, Result, Running, async_trait,
};

use crate::run::Mode;
use crate::settings::Settings;

forge_adapter_api::export_adapter!(Echo);

/// The adapter.
pub struct Echo {
    settings: Settings,
    running: Running,
    sessions: Mutex<Sessions>,
}

/// The turns of each conversation, while the process lives.
#[derive(Default)]
struct Sessions {
    made: u64,
    turns: HashMap<String, Vec<String>>,
}

#[async_trait]
impl ExecutionAdapter for Echo {
    const NAME: &'static str = "echo";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(_host: Host, config: Config) -> Result<Self> {
        Ok(Self {
            settings: config.parse()?,
            running: Running::default(),
            sessions: Mutex::default(),
        })
    }

    async fn shutdown(&self) -> Result<()> {
        self.running.cancel_all();
        Ok(())
    }

    async fn check_health(&self) -> Health {
        self.settings.health()
    }

    fn capabilities(&self) -> Profile {
        self.settings.profile()
    }

    async fn execute(&self, request: ExecutionRequest, events: Events) -> Result<ExecutionResult> {
        let mode = Mode::of(request.model.as_deref())?;
        if let Some(journal) = &self.settings.journal
            && request.tool_results.is_empty()
        {
            run::note(journal, &request)?;
        }
        if mode == Mode::Hang {
            // Not entered in `running`, so that cancelling finds nothing.
            return std::future::pending().await;
        }
        let run = self.running.start(&request.task_id);
        // A future keeps the room of what it has handed on.
        let request = Box::new(request);
        tokio::select! {
            result = self.run(mode, request, &events) => result,
            () = run.cancelled() => Err(AdapterError::cancelled()),
        }
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }
}

#[cfg(test)]
mod tests;
