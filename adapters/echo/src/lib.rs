//! A deterministic adapter without a runtime: the request's `model` selects the behaviour, for demos and
//! tests.
//!
//! | model | behaviour |
//! |---|---|
//! | `ok`, unknown or absent | the output is the message |
//! | `slow:<ms>` | the same after that time, or when it is steered; ends as `cancelled` on a cancel |
//! | `stream:<n>` | sends n `assistant.text` events; the output is their text |
//! | `usage`, `usage:<n>` | n (3) `usage` events, 20 ms apart, with growing tokens and cost; the totals in the result |
//! | `tools`, `tools:<n>` | hands back calls of the offered tools (or `echo`), n (1) times; then the last results |
//! | `session` | continues `sessionId` or creates one; the output is all turns so far |
//! | `run` | takes part in a run: its Captain if the tool `set_dag` is offered, else an agent that follows its instructions |
//! | `structured` | `structuredOutput`: the message if it is JSON, else a sample of `outputSchema` |
//! | `file` | writes the message to `outputFile` below `workspace.dir` |
//! | `fail`, `fail:<code>` | an error with that code (`echo_failed`) |
//! | `retract` | begins an answer, withdraws it (`assistant.retracted`) and answers with the message |
//! | `busy:<ms>` | announces a repeated request (`model.retrying`), waits, then fails as `rate_limited` with that wait as `retryAfterMs` |
//! | `panic` | panics |
//! | `hang` | never ends; a cancel returns false |
//! | `large:<bytes>` | an output of that size |
//! | `crash` | aborts the process |
//!
//! README.md describes the orders of `run` and the configuration of the profile.
#![forbid(unsafe_code)]

mod agent;
mod captain;
mod conflict;
mod files;
mod order;
mod run;
mod sample;
mod settings;
mod suspended;

use std::collections::HashMap;
use std::sync::Mutex;

use forge_adapter_api::{
    AdapterError, Config, Events, ExecutionAdapter, ExecutionRequest, ExecutionResult, Health,
    Host, Profile, Result, Running, SteerRequest, async_trait,
};

use crate::run::Mode;
use crate::settings::Settings;
use crate::suspended::Suspended;

forge_adapter_api::export_adapter!(Echo);

/// The adapter.
pub struct Echo {
    settings: Settings,
    running: Running,
    sessions: Mutex<Sessions>,
    suspended: Suspended,
}

/// The turns of each session, for the lifetime of the process.
#[derive(Default)]
struct Sessions {
    made: u64,
    turns: HashMap<String, Vec<String>>,
}

#[async_trait]
impl ExecutionAdapter for Echo {
    const NAME: &'static str = "echo";
    const VERSION: &'static str = env!("CARGO_PKG_VERSION");

    async fn initialize(host: Host, config: Config) -> Result<Self> {
        Ok(Self {
            settings: config.parse()?,
            running: Running::default(),
            sessions: Mutex::default(),
            suspended: Suspended::new(&host)?,
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
            // Not registered in `running`, so that a cancel finds nothing.
            return std::future::pending().await;
        }
        let run = self.running.start(&request.task_id);
        // Boxed, because a future keeps space for the values it has moved out.
        let request = Box::new(request);
        tokio::select! {
            result = self.run(mode, request, &events, &run) => result,
            () = run.cancelled() => Err(AdapterError::cancelled()),
        }
    }

    async fn cancel(&self, task_handle: &str) -> Result<bool> {
        Ok(self.running.cancel(task_handle))
    }

    async fn steer(&self, request: SteerRequest) -> Result<bool> {
        Ok(self.running.steer(request).await)
    }
}

#[cfg(test)]
mod tests;
