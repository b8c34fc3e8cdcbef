//! Tools of the Captain. Pure: the same call on the same state has the same effect when it is carried out and when it
//! is folded.

use serde::Deserialize;
use serde_json::{Value, json};

use forge_store::runs::MAX_ARTIFACTS_BYTES;

use super::{check_addition, check_size, read};
use crate::change::Addition;
use crate::event::CrStatus;
use crate::greeting::Interview;
use crate::plan::{AgentType, Fault, Graph, MAX_NODES, Node, TaskDocument, Written, check_id};
use crate::state::{Plan, State};

pub const CREATE_SPEC: &str = "create_spec";
pub const CREATE_TASK: &str = "create_task";
pub const SET_DAG: &str = "set_dag";
pub const ADD_TO_DAG: &str = "add_to_dag";
pub const ALL: &[&str] = &[CREATE_SPEC, CREATE_TASK, SET_DAG, ADD_TO_DAG];

/// Maximum number of specifications, and of task documents.
const MAX_DOCUMENTS: usize = 1_000;
/// Maximum bytes of all documents that the Captain writes, replaced ones included; the rest of the artifacts is for
/// walkthroughs.
const MAX_WRITTEN: u64 = MAX_ARTIFACTS_BYTES / 2;
/// Maximum bytes of a title, which is in the graph as well.
const MAX_TITLE: usize = 1_000;
/// Faults that the answer to a refused graph names.
const MAX_FAULTS: usize = 100;

/// Effect of an accepted call.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Spec {
        name: String,
        content: String,
    },
    Task(TaskDocument),
    Graph(Graph),
    /// Answer to the oldest approved change request.
    Overlay {
        cr_id: String,
        overlay: Addition,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Spec {
    name: String,
    content: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Dag {
    nodes: Vec<DagNode>,
}

/// Node of `set_dag`: what it leaves out is that of the task document.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct DagNode {
    id: String,
    #[serde(default, rename = "type")]
    kind: Option<Written>,
    #[serde(default)]
    agent_type: Option<AgentType>,
    #[serde(default)]
    dependencies: Option<Vec<String>>,
}

/// Effect of a call, or all that is wrong with it.
pub fn call(state: &State, name: &str, args: &Value) -> Result<Effect, String> {
    if name == ADD_TO_DAG {
        return add_to_dag(state, args);
    }
    if state.captain.interview != Interview::Begun {
        return Err(
            "the user has not said yet what to build; ask, and wait for an answer".to_owned(),
        );
    }
    if state.plan != Plan::Open {
        return Err("the plan is final; only an approved change request adds to it".to_owned());
    }
    match name {
        CREATE_SPEC => create_spec(state, args),
        CREATE_TASK => create_task(state, args),
        SET_DAG => set_dag(state, args),
        _ => Err(format!(
            "there is no tool {name:?}; the tools are {}",
            ALL.join(", ")
        )),
    }
}

fn create_spec(state: &State, args: &Value) -> Result<Effect, String> {
    let Spec { name, content } = read(args)?;
    let name = name.strip_suffix(".md").unwrap_or(&name).to_owned();
    check_id(&name).map_err(|message| format!("the name: {message}"))?;
    check_document(state, &content)?;
    if state.specs.len() == MAX_DOCUMENTS && !state.specs.contains(&name) {
        return Err(format!("there are {MAX_DOCUMENTS} specifications already"));
    }
    Ok(Effect::Spec { name, content })
}

fn create_task(state: &State, args: &Value) -> Result<Effect, String> {
    let document: TaskDocument = read(args)?;
    check_id(&document.id)?;
    let TaskDocument {
        title,
        dependencies,
        ..
    } = &document;
    if title.len() > MAX_TITLE {
        return Err(format!(
            "the title has {} bytes; at most {MAX_TITLE} are allowed",
            title.len()
        ));
    }
    if dependencies.len() > MAX_NODES {
        return Err(format!(
            "there are {} dependencies; at most {MAX_NODES} are allowed",
            dependencies.len()
        ));
    }
    for (index, id) in dependencies.iter().enumerate() {
        check_id(id).map_err(|message| format!("the dependencies: {message}"))?;
        if dependencies[..index].contains(id) {
            return Err(format!("the dependencies: {id:?} is named more than once"));
        }
    }
    check_document(state, &document.render())?;
    if state.documents.len() == MAX_DOCUMENTS && !state.documents.contains_key(&document.id) {
        return Err(format!("there are {MAX_DOCUMENTS} tasks already"));
    }
    Ok(Effect::Task(document))
}

fn add_to_dag(state: &State, args: &Value) -> Result<Effect, String> {
    let Some(request) = state.with_status(CrStatus::Approved).next() else {
        return Err("no approved change request waits for a change".to_owned());
    };
    let overlay: Addition = read(args)?;
    check_addition(args)?;
    if overlay.is_empty() {
        return Err("it adds nothing; answer with a text if nothing is to be changed".to_owned());
    }
    overlay.graph(state, &request.id)?;
    let cr_id = request.id.clone();
    Ok(Effect::Overlay { cr_id, overlay })
}

/// Complaint about a document of the Captain.
fn check_document(state: &State, text: &str) -> Result<(), String> {
    check_size(text)?;
    if state.captain.written_bytes + text.len() as u64 > MAX_WRITTEN {
        return Err(format!(
            "the documents have {MAX_WRITTEN} bytes already, which is the limit"
        ));
    }
    Ok(())
}

fn set_dag(state: &State, args: &Value) -> Result<Effect, String> {
    let Dag { nodes } = read(args)?;
    if nodes.len() > MAX_NODES {
        let count = nodes.len();
        return Err(format!(
            "the graph has {count} nodes; at most {MAX_NODES} are allowed"
        ));
    }
    let mut faults = Vec::new();
    let nodes = nodes
        .into_iter()
        .map(|node| complete(state, node, &mut faults));
    let nodes: Vec<_> = nodes.collect();
    let graph = Graph::new(nodes);
    if let Err(more) = &graph {
        faults.extend_from_slice(more);
    }
    let named = faults.iter().take(MAX_FAULTS);
    let mut text: Vec<_> = named.map(|fault| format!("- {fault}")).collect();
    if let Some(more @ 1..) = faults.len().checked_sub(MAX_FAULTS) {
        text.push(format!("- and {more} more"));
    }
    match graph {
        Ok(graph) if faults.is_empty() => {
            // As in `dag.json`, whose other members are short.
            let text = format!("{:#}", json!({ "nodes": graph.nodes() }));
            check_document(state, &text).map_err(|message| format!("the graph: {message}"))?;
            Ok(Effect::Graph(graph))
        }
        Ok(_) | Err(_) => Err(format!("the graph is not valid:\n{}", text.join("\n"))),
    }
}

/// A node with what its document says.
fn complete(state: &State, node: DagNode, faults: &mut Vec<Fault>) -> Node {
    let DagNode {
        id,
        kind,
        agent_type,
        dependencies,
    } = node;
    let document = state.documents.get(&id);
    let documented = document.map(|document| document.agent_type);
    let mut fault = |message: String| faults.push(Fault::at(&id, message));
    let agent_type = AgentType::of(kind, agent_type, documented).unwrap_or_else(|message| {
        fault(message);
        documented.unwrap_or(AgentType::Worker)
    });
    match document {
        Some(document) if document.agent_type != agent_type => {
            fault(format!(
                "its document says type {}, the graph {agent_type}",
                document.agent_type
            ));
        }
        Some(_) => {}
        None if agent_type == AgentType::Refinery => {}
        None => fault("has no document; call create_task first".to_owned()),
    }
    Node {
        title: document
            .map(|document| document.title.clone())
            .unwrap_or_default(),
        dependencies: dependencies
            .or_else(|| document.map(|document| document.dependencies.clone()))
            .unwrap_or_default(),
        agent_type,
        id,
    }
}

fn agent_type() -> Value {
    json!({
        "enum": [1, 2, 3, "refinery"],
        "description": "1 one small task, 2 a normal task, 3 a large task with subtasks, refinery merges its dependencies."
    })
}

fn ids() -> Value {
    json!({
        "type": "array", "items": {"type": "string"}, "description": "Ids of the tasks that must be finished before."
    })
}

fn document_schema() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "id": text, "title": text, "type": {"enum": [1, 2, 3, "refinery", "task"]},
            "agentType": agent_type(), "dependencies": ids(),
            "acceptance_criteria": {"type": "array", "items": text},
            "description": text, "context": text, "instructions": text
        },
        "required": ["id", "title", "instructions"],
        "additionalProperties": false
    })
}

/// Schema of an addition to the graph.
pub(super) fn overlay_schema() -> Value {
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "properties": {
            "addedNodes": {"type": "array", "items": document_schema()},
            "addedEdges": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"from": text, "to": text},
                    "required": ["from", "to"],
                    "additionalProperties": false
                }
            }
        },
        "additionalProperties": false
    })
}

/// Tools as a dispatch names them.
pub fn described() -> Value {
    let (text, agent, ids) = (json!({"type": "string"}), agent_type(), ids());
    json!([
        {
            "name": CREATE_SPEC,
            "description": "Writes a specification in Markdown that all tasks are given.",
            "inputSchema": {
                "type": "object",
                "properties": {"name": text, "content": text},
                "required": ["name", "content"],
                "additionalProperties": false
            }
        },
        {
            "name": CREATE_TASK,
            "description": "Writes or replaces the document of one task.",
            "inputSchema": document_schema()
        },
        {
            "name": SET_DAG,
            "description": "Sets the whole graph and ends the interview. All faults of a refused graph are named.",
            "inputSchema": {
                "type": "object",
                "properties": {
                    "nodes": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "properties": {
                                "id": text, "type": {"enum": ["task", "refinery"]}, "agentType": agent, "dependencies": ids
                            },
                            "required": ["id"],
                            "additionalProperties": false
                        }
                    }
                },
                "required": ["nodes"],
                "additionalProperties": false
            }
        },
        {
            "name": ADD_TO_DAG,
            "description": "Adds tasks and edges to the graph, as the change request that you were given asks for. \
                            Edges lead to tasks that have not begun.",
            "inputSchema": overlay_schema()
        }
    ])
}

#[cfg(test)]
mod tests {
    //! The bound of all documents.

    use jiff::Timestamp;

    use super::*;
    use crate::event::{Entry, Event};
    use crate::request::Approval;

    fn open_state() -> State {
        let mut state = State::new(Timestamp::UNIX_EPOCH, false, Approval::User);
        state.captain.interview = Interview::Begun;
        state
    }

    /// The type of a task, in each spelling that `create_task`, `set_dag` and a change take.
    #[test]
    fn each_tool_takes_each_spelling_of_a_type() {
        for (members, wanted) in [
            (json!({}), "2"),
            (json!({"type": 1}), "1"),
            (json!({"type": "3"}), "3"),
            (json!({"agentType": 3}), "3"),
            (json!({"type": "task"}), "2"),
            (json!({"type": "task", "agentType": 1}), "1"),
            (json!({"type": 1, "agentType": 1}), "1"),
            (json!({"type": "refinery"}), "refinery"),
            (
                json!({"type": "refinery", "agentType": "refinery"}),
                "refinery",
            ),
            (
                json!({"type": "task", "agentType": "refinery"}),
                "do not agree",
            ),
            (json!({"type": "refinery", "agentType": 1}), "do not agree"),
            (json!({"type": 1, "agentType": 2}), "do not agree"),
            (json!({"type": "large"}), "neither"),
            (json!({"type": 4}), "not an agent type"),
        ] {
            let mut task = json!({"id": "b", "title": "B", "dependencies": ["a"]});
            let mut node = json!({"id": "b", "dependencies": ["a"]});
            for (name, value) in members.as_object().unwrap() {
                task[name] = value.clone();
                node[name] = value.clone();
            }
            let found = |effect: Result<AgentType, String>| match effect {
                Ok(found) => found.to_string(),
                Err(text) => text,
            };
            let mut state = open_state();
            let created = call(&state, CREATE_TASK, &task).map(|effect| match effect {
                Effect::Task(document) => document.agent_type,
                other => panic!("{other:?}"),
            });
            let created = found(created);
            assert!(created.contains(wanted), "{members}: {created}");
            let nodes = json!({"addedNodes": [task]});
            let added = read::<Addition>(&nodes).map(|addition| addition.added_nodes[0].agent_type);
            let added = found(added);
            assert!(added.contains(wanted), "{members}: {added}");
            if created != wanted {
                continue;
            }
            for (id, kind) in [("a", "2"), ("b", wanted)] {
                let document = json!({"id": id, "title": id, "type": kind});
                let Ok(Effect::Task(document)) = call(&state, CREATE_TASK, &document) else {
                    panic!("{document}");
                };
                let kept = crate::state::Document::of(&document);
                state.documents.insert(document.id, kept);
            }
            let set = call(&state, SET_DAG, &json!({"nodes": [{"id": "a"}, node]}));
            let Ok(Effect::Graph(graph)) = set else {
                panic!("{members}: {set:?}");
            };
            assert_eq!(graph.nodes()[1].agent_type.to_string(), wanted, "{members}");
        }
    }

    #[test]
    fn a_dependency_that_is_named_twice_is_refused_by_each_tool() {
        let mut state = open_state();
        let task = |id: &str, dependencies: Value| json!({"id": id, "title": "T", "dependencies": dependencies});
        let refused = call(&state, CREATE_TASK, &task("b", json!(["a", "c", "a"]))).unwrap_err();
        assert!(
            refused.contains("\"a\" is named more than once"),
            "{refused}"
        );
        for id in ["a", "b"] {
            let document = serde_json::from_value(task(id, json!([]))).unwrap();
            state
                .documents
                .insert(id.to_owned(), crate::state::Document::of(&document));
        }
        let nodes = json!({"nodes": [{"id": "a"}, {"id": "b", "dependencies": ["a", "a", "a"]}]});
        let refused = call(&state, SET_DAG, &nodes).unwrap_err();
        let named = refused
            .matches("\"b\": depends on \"a\" more than once")
            .count();
        assert_eq!(named, 1, "{refused}");
        let nodes = json!({"nodes": [{"id": "a"}, {"id": "b", "dependencies": ["a"]}]});
        let Ok(Effect::Graph(graph)) = call(&state, SET_DAG, &nodes) else {
            panic!("the graph");
        };
        state.graph = Some(graph);
        let added: Addition =
            serde_json::from_value(json!({"addedNodes": [task("c", json!(["b", "b"]))]})).unwrap();
        let refused = added.graph(&state, "cr-001").unwrap_err();
        assert!(
            refused.contains("\"c\": depends on \"b\" more than once"),
            "{refused}"
        );
    }

    /// A plan that no message asked for would be executed without the user.
    #[test]
    fn nothing_is_planned_before_a_message_of_the_user_is_answered() {
        let mut state = State::new(Timestamp::UNIX_EPOCH, false, Approval::User);
        for stage in [Interview::Silent, Interview::Greeting, Interview::Opened] {
            state.captain.interview = stage;
            let args = json!({"name": "a", "content": "x"});
            let refused = call(&state, CREATE_SPEC, &args).unwrap_err();
            assert!(refused.contains("has not said yet"), "{refused}");
        }
    }

    #[test]
    fn documents_are_bounded_together() {
        let mut state = open_state();
        let content = "x".repeat(1_000_000);
        let mut accepted = 0;
        // The same name again counts again: what it replaced was written, too.
        for _ in 0..40 {
            let args = json!({"name": "a", "content": content});
            accepted += usize::from(call(&state, CREATE_SPEC, &args).is_ok());
            let event = Event::CaptainToolCall {
                tool_name: CREATE_SPEC.to_owned(),
                args,
                call_id: "c".to_owned(),
            };
            state.fold(&Entry {
                at: Timestamp::UNIX_EPOCH,
                attempt: 0,
                event,
            });
        }
        assert_eq!(accepted, 33);
        assert_eq!(state.captain.written_bytes, 33_000_000);
    }
}
