//! Agents of an attempt: its own, and those that they start. An agent that has called tools of the bridge waits for the
//! results; the next dispatch of its session brings them.

mod adopt;
mod calls;
mod follow;

use forge_base::id::RunId;
use serde::{Deserialize, Serialize};

use crate::context::Context;
use crate::git::{self, Branch};
use crate::plan::AgentType;
use crate::state::{State, Task, ToolResult};
use crate::step::StepId;
use crate::tools::agent::Spawn;
pub(crate) use calls::carry_out;
pub(crate) use follow::{body, follow};

/// Maximum number of agents that the agents of an attempt start.
pub const MAX_AGENTS: usize = 32;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Agent {
    pub agent_type: AgentType,
    /// The call that asks for it; `None` for the attempt's own.
    pub parent: Option<Parent>,
    pub title: String,
    pub instructions: String,
    /// Counts against the limit of running agents, unless it waits or has ended.
    pub is_started: bool,
    pub is_ended: bool,
    /// Dispatches that have ended.
    pub rounds: u32,
    pub session: Option<String>,
    /// Ids of calls without a result.
    pub calls: Vec<String>,
    /// Results that it has not been given.
    pub results: Vec<ToolResult>,
}

/// Call of an agent of the same attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Parent {
    pub agent: usize,
    pub call_id: String,
}

impl Agent {
    pub(crate) fn own(agent_type: AgentType) -> Self {
        Self {
            agent_type,
            parent: None,
            title: String::new(),
            instructions: String::new(),
            is_started: true,
            is_ended: false,
            rounds: 0,
            session: None,
            calls: Vec::new(),
            results: Vec::new(),
        }
    }

    pub(crate) fn started_by(agent: usize, call_id: &str, spawn: Spawn) -> Self {
        Self {
            parent: Some(Parent {
                agent,
                call_id: call_id.to_owned(),
            }),
            title: spawn.title,
            instructions: spawn.instructions,
            is_started: false,
            ..Self::own(spawn.agent_type)
        }
    }

    /// A dispatch of it runs, or is about to.
    pub fn is_active(&self) -> bool {
        self.is_started && !self.is_ended && self.calls.is_empty()
    }
}

/// One dispatch of an agent of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub task: String,
    pub attempt: u32,
    /// 0 is the attempt's own.
    pub agent: usize,
    pub round: u32,
}

impl Place {
    pub(crate) fn first(task: &str, attempt: u32) -> Self {
        Self {
            task: task.to_owned(),
            attempt,
            agent: 0,
            round: 0,
        }
    }

    /// Number in events; the attempt's own agent has none.
    pub(crate) fn number(&self) -> Option<usize> {
        (self.agent > 0).then_some(self.agent)
    }

    pub(crate) fn branch(&self, run: RunId) -> Result<Branch, git::BadId> {
        let run = run.to_string();
        match u32::try_from(self.agent) {
            Ok(number @ 1..) => Branch::of_child(&run, &self.task, self.attempt, number),
            _ => Branch::of_attempt(&run, &self.task, self.attempt),
        }
    }

    pub(crate) fn id(&self, context: &Context) -> StepId {
        let agent = self.number().map_or(String::new(), |n| format!(".{n}"));
        let round = match self.round {
            0 => String::new(),
            round => format!("/{round}"),
        };
        StepId {
            run: context.run,
            of: self.task.clone(),
            name: format!("{}{agent}{round}", self.attempt),
        }
    }

    fn find<'a>(&self, state: &'a State) -> Option<(&'a Task, &'a Agent)> {
        let task = state.tasks.get(&self.task)?;
        Some((task, task.agents.get(self.agent)?))
    }
}
