//! Optional management interfaces of adapters whose runtime has state of its own.
//!
//! The public description of Bridge names the four interfaces and, for [`RuntimeManager`], eight methods and
//! six types; of the other three it names only the purpose. Everything else here, including the members of
//! all types, is defined by this project.

mod agents;
mod convert;
mod runtime;
mod skills;
mod system;

use serde::{Deserialize, Serialize};

pub use agents::{Agent, AgentManager, ChannelBinding, WorkspaceFile};
pub use runtime::{
    AgentSyncSpec, DiscoveredAgent, DiscoveredModel, DiscoveredSkill, RuntimeManager, SkillSyncSpec,
};
pub use skills::{InstallReport, Skill, SkillManager, SkillStatus};
pub use system::{Model, ReloadReport, SecurityFinding, SecurityPosture, SystemManager};

use crate::json::unsupported;
use crate::{ExecutionAdapter, Result};

/// A management interface. The bridge serves its routes only for adapters that declare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interface {
    /// [`RuntimeManager`]: agent sync, skill sync, discovery.
    Runtime,
    /// [`AgentManager`]: agents, their workspace files, their channel bindings.
    Agents,
    /// [`SkillManager`]: skills, their status, their dependencies.
    Skills,
    /// [`SystemManager`]: configuration, model catalogue, security posture.
    System,
}

impl Interface {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Runtime, Self::Agents, Self::Skills, Self::System];

    /// The prefix of its ops, before the dot.
    pub fn name(self) -> &'static str {
        match self {
            Self::Runtime => "runtime",
            Self::Agents => "agents",
            Self::Skills => "skills",
            Self::System => "system",
        }
    }

    /// The interface with its version, as declared in the manifest.
    pub fn declaration(self) -> &'static str {
        match self {
            Self::Runtime => "runtime@1",
            Self::Agents => "agents@1",
            Self::Skills => "skills@1",
            Self::System => "system@1",
        }
    }

    /// True if the adapter returns this interface.
    pub(crate) fn given_by<A: ExecutionAdapter>(self, adapter: &A) -> bool {
        match self {
            Self::Runtime => adapter.runtime().is_some(),
            Self::Agents => adapter.agents().is_some(),
            Self::Skills => adapter.skills().is_some(),
            Self::System => adapter.system().is_some(),
        }
    }
}

/// Routes `<interface>.<method>`.
pub(crate) async fn call<A: ExecutionAdapter>(
    adapter: &A,
    op: &str,
    payload: &[u8],
) -> Result<Vec<u8>> {
    let interface = op.split_once('.').map_or("", |(interface, _)| interface);
    match interface {
        "runtime" => {
            if let Some(manager) = adapter.runtime() {
                return runtime::call(manager, op, payload).await;
            }
        }
        "agents" => {
            if let Some(manager) = adapter.agents() {
                return agents::call(manager, op, payload).await;
            }
        }
        "skills" => {
            if let Some(manager) = adapter.skills() {
                return skills::call(manager, op, payload).await;
            }
        }
        "system" => {
            if let Some(manager) = adapter.system() {
                return system::call(manager, op).await;
            }
        }
        _ => {}
    }
    Err(unsupported(op))
}
