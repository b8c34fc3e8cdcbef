//! Tools of the agents of tasks and refineries.

use serde::Deserialize;
use serde_json::{Value, json};

use super::captain::overlay_schema;
use super::read;
use crate::agent::MAX_AGENTS;
use crate::change::{Addition, MAX_CHANGE_REQUESTS};
use crate::plan::AgentType;
use crate::state::{State, Subtask};

pub const SPAWN_AGENT: &str = "spawn_agent";
pub const SET_SUBTASKS: &str = "set_subtasks";
pub const EMIT_CR: &str = "emit_cr";
pub const ALL: &[&str] = &[SPAWN_AGENT, SET_SUBTASKS, EMIT_CR];

/// Maximum number of subtasks.
const MAX_SUBTASKS: usize = 200;
/// Maximum bytes of the arguments of one call, which are a part of the state.
const MAX_ARGUMENTS: usize = 64 * 1024;

/// Effect of an accepted call.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Spawn(Spawn),
    Subtasks(Vec<Subtask>),
    Request(Request),
}

/// Agent to start.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spawn {
    #[serde(rename = "type")]
    pub agent_type: AgentType,
    pub title: String,
    pub instructions: String,
}

/// Change of the plan that an agent asks for.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Request {
    pub title: String,
    pub reason: String,
    /// Tasks that wait until the change is made.
    #[serde(default)]
    pub affected_tasks: Vec<String>,
    #[serde(default)]
    pub suggested_changes: String,
    #[serde(default, rename = "overlay")]
    pub addition: Option<Addition>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Subtasks {
    subtasks: Vec<Subtask>,
}

/// Types of the agents that an agent of this type can start, so that no agent starts one of its own type.
fn startable(by: AgentType) -> &'static [AgentType] {
    match by {
        AgentType::Throwaway => &[],
        AgentType::Worker => &[AgentType::Throwaway],
        AgentType::SubExecutor => &[AgentType::Throwaway, AgentType::Worker],
        AgentType::Refinery => &[
            AgentType::Throwaway,
            AgentType::Worker,
            AgentType::SubExecutor,
        ],
    }
}

fn offers(to: AgentType, name: &str) -> bool {
    match name {
        SPAWN_AGENT => !startable(to).is_empty(),
        SET_SUBTASKS => to == AgentType::SubExecutor,
        EMIT_CR => to == AgentType::Refinery,
        _ => false,
    }
}

/// Effect of the call of an agent of a task, or all that is wrong with it.
pub fn call(
    state: &State,
    task: &str,
    agent: usize,
    name: &str,
    args: &Value,
) -> Result<Effect, String> {
    let attempt = state.tasks.get(task).map(|task| &task.agents);
    let Some((agents, caller)) = attempt.and_then(|all| Some((all, all.get(agent)?))) else {
        return Err("the attempt of this agent has ended".to_owned());
    };
    if !offers(caller.agent_type, name) {
        let own = ALL.iter().filter(|name| offers(caller.agent_type, name));
        let own: Vec<_> = own.copied().collect();
        return Err(format!(
            "there is no tool {name:?}; the tools are {}",
            own.join(", ")
        ));
    }
    if args.to_string().len() > MAX_ARGUMENTS {
        return Err(format!(
            "the arguments have more than {MAX_ARGUMENTS} bytes"
        ));
    }
    match name {
        SPAWN_AGENT => spawn(caller.agent_type, agents.len(), args),
        SET_SUBTASKS => set_subtasks(args),
        _ => emit_cr(state, args),
    }
}

fn spawn(by: AgentType, agents: usize, args: &Value) -> Result<Effect, String> {
    let spawn: Spawn = read(args)?;
    check_text("title", &spawn.title)?;
    check_text("instructions", &spawn.instructions)?;
    let allowed = startable(by);
    if !allowed.contains(&spawn.agent_type) {
        let allowed: Vec<_> = allowed.iter().map(AgentType::to_string).collect();
        return Err(format!(
            "an agent of type {by} starts agents of type {}, not {}",
            allowed.join(" or "),
            spawn.agent_type
        ));
    }
    match agents > MAX_AGENTS {
        true => Err(format!(
            "{MAX_AGENTS} agents were started by this attempt already"
        )),
        false => Ok(Effect::Spawn(spawn)),
    }
}

fn set_subtasks(args: &Value) -> Result<Effect, String> {
    let Subtasks { subtasks } = read(args)?;
    if subtasks.len() > MAX_SUBTASKS {
        return Err(format!("at most {MAX_SUBTASKS} subtasks are allowed"));
    }
    for subtask in &subtasks {
        check_text("title", &subtask.title)?;
    }
    Ok(Effect::Subtasks(subtasks))
}

fn emit_cr(state: &State, args: &Value) -> Result<Effect, String> {
    let request: Request = read(args)?;
    check_text("title", &request.title)?;
    check_text("reason", &request.reason)?;
    let unknown = request.affected_tasks.iter();
    let unknown: Vec<_> = unknown
        .filter(|id| !state.tasks.contains_key(*id))
        .map(String::as_str)
        .collect();
    if !unknown.is_empty() {
        return Err(format!("no task of the run: {}", unknown.join(", ")));
    }
    if state.change_requests.len() == MAX_CHANGE_REQUESTS {
        return Err(format!(
            "the run has {MAX_CHANGE_REQUESTS} change requests already"
        ));
    }
    if let Some(addition) = &request.addition {
        addition.graph(state, "cr")?;
    }
    Ok(Effect::Request(request))
}

fn check_text(name: &str, text: &str) -> Result<(), String> {
    match text.trim().is_empty() {
        true => Err(format!("the {name} is empty")),
        false => Ok(()),
    }
}

/// Tools of an agent of this type, as a dispatch names them.
pub fn described(to: AgentType) -> Value {
    let text = json!({"type": "string"});
    let ids = json!({"type": "array", "items": text});
    let all = [
        json!({
            "name": SPAWN_AGENT,
            "description": "Starts an agent in a copy of your folder and waits for its end. What it changes is merged \
                            into your folder; its report is the result. Calls that are made together run at the same \
                            time.",
            "inputSchema": {
                "type": "object",
                "properties": {"type": {"enum": startable(to)}, "title": text, "instructions": text},
                "required": ["type", "title", "instructions"],
                "additionalProperties": false
            }
        }),
        json!({
            "name": SET_SUBTASKS,
            "description": "Replaces the list of subtasks that is shown to the user.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "subtasks": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {"title": text, "done": {"type": "boolean"}},
                            "required": ["title"],
                            "additionalProperties": false
                        }
                    }
                },
                "required": ["subtasks"],
                "additionalProperties": false
            }
        }),
        json!({
            "name": EMIT_CR,
            "description": "Asks for a change of the plan. No new task starts until it is approved or rejected, and \
                            the affected tasks wait until the change is made. Do not wait for it.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "title": text, "reason": text, "affectedTasks": ids, "suggestedChanges": text,
                    "overlay": overlay_schema()
                },
                "required": ["title", "reason"],
                "additionalProperties": false
            }
        }),
    ];
    let own = all
        .into_iter()
        .filter(|tool| tool["name"].as_str().is_some_and(|name| offers(to, name)));
    own.collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::agent::Agent;
    use crate::change::ChangeRequest;
    use crate::event::CrStatus;
    use crate::request::Approval;
    use crate::state::Task;

    /// A run with one task, whose attempt has this number of agents, and with this number of change requests.
    fn state(agent_type: AgentType, agents: usize, requests: usize) -> State {
        let mut state = State::new(Timestamp::UNIX_EPOCH, false, Approval::User);
        let mut task = Task::new("a".to_owned(), agent_type, 1);
        task.agents = vec![Agent::own(agent_type); agents];
        state.tasks.insert("a".to_owned(), task);
        let request = ChangeRequest {
            id: "cr".to_owned(),
            title: "t".to_owned(),
            reason: "r".to_owned(),
            suggested_changes: String::new(),
            impact: Vec::new(),
            addition: None,
            emitted_by: "a".to_owned(),
            created_at: Timestamp::UNIX_EPOCH,
            status: CrStatus::Rejected,
            rejected_because: None,
            turns: 0,
        };
        state.change_requests = vec![request; requests];
        state
    }

    #[test]
    fn each_bound_of_calls_holds() {
        use AgentType::{Refinery, SubExecutor, Throwaway, Worker};
        let spawn = json!({"type": Throwaway, "title": "t", "instructions": "i"});
        let long =
            json!({"type": Throwaway, "title": "t", "instructions": "i".repeat(MAX_ARGUMENTS)});
        let list = |count: usize| json!({"subtasks": vec![json!({"title": "t"}); count]});
        let request = json!({"title": "t", "reason": "r"});
        for (by, agents, requests, name, args, refused) in [
            // The attempt's own agent is one of them.
            (Worker, 32, 0, SPAWN_AGENT, &spawn, ""),
            (Worker, 33, 0, SPAWN_AGENT, &spawn, "32 agents were started"),
            (Worker, 1, 0, SPAWN_AGENT, &long, "more than 65536 bytes"),
            (Throwaway, 1, 0, SPAWN_AGENT, &spawn, "there is no tool"),
            (SubExecutor, 1, 0, SET_SUBTASKS, &list(200), ""),
            (
                SubExecutor,
                1,
                0,
                SET_SUBTASKS,
                &list(201),
                "at most 200 subtasks",
            ),
            (Refinery, 1, 99, EMIT_CR, &request, ""),
            (
                Refinery,
                1,
                100,
                EMIT_CR,
                &request,
                "100 change requests already",
            ),
        ] {
            let called = call(&state(by, agents, requests), "a", 0, name, args);
            let told = called.err().unwrap_or_default();
            assert_eq!(told.is_empty(), refused.is_empty(), "{name}: {told}");
            assert!(told.contains(refused), "{name}: {told}");
        }
    }
}
