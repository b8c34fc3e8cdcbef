//! Plan of a run: task documents and their graph. Pure: a plan is checked as a whole, and all its faults are found at
//! once.

mod check;
mod overlay;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(crate) use check::CAPTAIN;
pub use check::{Fault, MAX_NODES, check, check_id};
pub use overlay::Edge;

/// Refinery that is added if the results of some tasks reach none.
pub const FINAL_REFINERY: &str = "refinery-final";

/// Kind of agent that executes a node; `1`, `2`, `3` or `"refinery"` on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum AgentType {
    /// One small task; spawns nothing.
    Throwaway,
    /// The default.
    Worker,
    /// Keeps a list of subtasks.
    SubExecutor,
    /// Merges the results of its dependencies.
    Refinery,
}

/// Forms of the type of a node on the wire.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Written {
    Number(u8),
    Name(String),
}

impl TryFrom<Written> for AgentType {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        let text = match written {
            Written::Number(number) => number.to_string(),
            Written::Name(name) => name,
        };
        match text.as_str() {
            "1" => Ok(Self::Throwaway),
            "2" => Ok(Self::Worker),
            "3" => Ok(Self::SubExecutor),
            "refinery" => Ok(Self::Refinery),
            other => Err(format!(
                "{other:?} is not an agent type; expected 1, 2, 3 or \"refinery\""
            )),
        }
    }
}

impl AgentType {
    /// Type of a node with the members `type`, which is `"task"`, `"refinery"` or an agent type, and `agentType`;
    /// `otherwise` is the default of the latter.
    pub(crate) fn of(
        kind: Option<Written>,
        agent_type: Option<Self>,
        otherwise: Option<Self>,
    ) -> Result<Self, String> {
        let named = agent_type.or(otherwise);
        let (found, is_right) = match kind {
            None => return Ok(named.unwrap_or(Self::Worker)),
            Some(Written::Name(name)) if name == "task" => {
                let found = named.unwrap_or(Self::Worker);
                (found, found != Self::Refinery)
            }
            Some(Written::Name(name)) if name == "refinery" => {
                let found = named.unwrap_or(Self::Refinery);
                (found, found == Self::Refinery)
            }
            Some(Written::Name(other)) if other.parse::<u8>().is_err() => {
                return Err(format!(
                    "the type {other:?} is neither \"task\" nor \"refinery\", 1, 2 or 3"
                ));
            }
            Some(number) => {
                let own = Self::try_from(number)?;
                let found = agent_type.unwrap_or(own);
                (found, found == own)
            }
        };
        match is_right {
            true => Ok(found),
            false => Err(format!("its type and its agentType {found} do not agree")),
        }
    }
}

impl From<AgentType> for Written {
    fn from(of: AgentType) -> Self {
        match of {
            AgentType::Throwaway => Written::Number(1),
            AgentType::Worker => Written::Number(2),
            AgentType::SubExecutor => Written::Number(3),
            AgentType::Refinery => Written::Name("refinery".to_owned()),
        }
    }
}

impl fmt::Display for AgentType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Throwaway => "1",
            Self::Worker => "2",
            Self::SubExecutor => "3",
            Self::Refinery => "refinery",
        })
    }
}

/// Task document as the Captain writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "WrittenDocument")]
pub struct TaskDocument {
    pub id: String,
    pub title: String,
    #[serde(rename = "type")]
    pub agent_type: AgentType,
    pub dependencies: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub acceptance_criteria: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub context: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub instructions: String,
}

/// Task document on the wire.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenDocument {
    id: String,
    title: String,
    #[serde(default, rename = "type")]
    kind: Option<Written>,
    #[serde(default, rename = "agentType")]
    agent_type: Option<AgentType>,
    #[serde(default)]
    dependencies: Vec<String>,
    #[serde(default)]
    acceptance_criteria: Vec<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    context: String,
    #[serde(default)]
    instructions: String,
}

impl TryFrom<WrittenDocument> for TaskDocument {
    type Error = String;

    fn try_from(written: WrittenDocument) -> Result<Self, String> {
        Ok(Self {
            agent_type: AgentType::of(written.kind, written.agent_type, None)?,
            id: written.id,
            title: written.title,
            dependencies: written.dependencies,
            acceptance_criteria: written.acceptance_criteria,
            description: written.description,
            context: written.context,
            instructions: written.instructions,
        })
    }
}

impl TaskDocument {
    /// The document as Markdown with front matter, whose values are JSON, which is also YAML.
    pub fn render(&self) -> String {
        let mut text = format!(
            "---\nid: {}\ntitle: {}\ntype: {}\ndependencies: {}\nacceptance_criteria: {}\n---\n",
            self.id,
            Value::from(&*self.title),
            self.agent_type,
            Value::from(&*self.dependencies),
            Value::from(&*self.acceptance_criteria),
        );
        let sections = [
            ("Description", &self.description),
            ("Context", &self.context),
            ("Instructions", &self.instructions),
        ];
        for (name, body) in sections.into_iter().filter(|(_, body)| !body.is_empty()) {
            text.push_str(&format!("\n## {name}\n\n{}\n", body.trim_end()));
        }
        text
    }
}

/// Node of the graph, as in `dag.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Node {
    pub id: String,
    /// For people; empty means the id.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    pub agent_type: AgentType,
    #[serde(default)]
    pub dependencies: Vec<String>,
}

impl Node {
    /// Node of a task document.
    pub(crate) fn of(document: &TaskDocument) -> Self {
        Self {
            id: document.id.clone(),
            title: document.title.clone(),
            agent_type: document.agent_type,
            dependencies: document.dependencies.clone(),
        }
    }

    pub fn is_refinery(&self) -> bool {
        self.agent_type == AgentType::Refinery
    }
}

/// A graph without faults: nodes in the order of the plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Graph(Vec<Node>);

impl Graph {
    /// Graph of these nodes, with `refinery-final` for tasks whose results reach no refinery. Without faults only.
    pub fn new(mut nodes: Vec<Node>) -> Result<Self, Vec<Fault>> {
        let faults = check(&nodes);
        if !faults.is_empty() {
            return Err(faults);
        }
        if let Some(last) = uncovered(&nodes) {
            nodes.push(Node {
                id: FINAL_REFINERY.to_owned(),
                title: "Merge the results".to_owned(),
                agent_type: AgentType::Refinery,
                dependencies: last,
            });
        }
        let faults = check(&nodes);
        if faults.is_empty() {
            Ok(Self(nodes))
        } else {
            Err(faults)
        }
    }

    pub fn nodes(&self) -> &[Node] {
        &self.0
    }

    /// Number of refineries among the nodes.
    pub fn refineries(&self) -> usize {
        self.0.iter().filter(|node| node.is_refinery()).count()
    }

    /// Tasks whose results a refinery merges: its dependencies and theirs, up to the next refineries, each after its own
    /// dependencies, ties in the order of the plan.
    pub fn inputs(&self, refinery: &str) -> Vec<&Node> {
        let by_id = self.by_id();
        let mut wanted = BTreeSet::new();
        let mut open: Vec<&str> = by_id.get(refinery).map_or(Vec::new(), |node| edges(node));
        while let Some(id) = open.pop() {
            if let Some(node) = by_id.get(id)
                && !node.is_refinery()
                && wanted.insert(id)
            {
                open.extend(edges(node));
            }
        }
        let order = topological(&self.0).unwrap_or_default();
        order
            .into_iter()
            .filter(|node| wanted.contains(&*node.id))
            .collect()
    }

    fn by_id(&self) -> BTreeMap<&str, &Node> {
        self.0.iter().map(|node| (&*node.id, node)).collect()
    }
}

fn edges(node: &Node) -> Vec<&str> {
    node.dependencies.iter().map(String::as_str).collect()
}

/// Tasks on which nothing depends, in the order of the plan; none if there are none.
fn uncovered(nodes: &[Node]) -> Option<Vec<String>> {
    let used: BTreeSet<&str> = nodes.iter().flat_map(edges).collect();
    let sinks = nodes
        .iter()
        .filter(|node| !node.is_refinery() && !used.contains(&*node.id));
    let sinks: Vec<_> = sinks.map(|node| node.id.clone()).collect();
    (!sinks.is_empty()).then_some(sinks)
}

/// Nodes so that each comes after its dependencies, ties in the given order; an error names those on a cycle or behind
/// one.
fn topological(nodes: &[Node]) -> Result<Vec<&Node>, Vec<&str>> {
    let known: BTreeSet<&str> = nodes.iter().map(|node| &*node.id).collect();
    let mut done = BTreeSet::new();
    let mut order = Vec::with_capacity(nodes.len());
    let mut open: Vec<&Node> = nodes.iter().collect();
    while !open.is_empty() {
        let before = open.len();
        open.retain(|node| {
            let mut wanted = edges(node).into_iter().filter(|id| known.contains(id));
            let is_next = wanted.all(|id| done.contains(id));
            if is_next {
                done.insert(&*node.id);
                order.push(*node);
            }
            !is_next
        });
        if open.len() == before {
            return Err(open.into_iter().map(|node| &*node.id).collect());
        }
    }
    Ok(order)
}
