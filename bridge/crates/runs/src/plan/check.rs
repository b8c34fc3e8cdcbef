//! Faults of a graph, each with its node.

use std::collections::BTreeMap;
use std::fmt;

use super::{Node, topological};
use crate::git::check_task_id;

/// Maximum number of nodes of a graph.
pub const MAX_NODES: usize = 1_000;

/// Name of the Captain in branches and keys.
pub(crate) const CAPTAIN: &str = "captain";

/// One fault of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// `None` for faults of the whole graph.
    pub node: Option<String>,
    pub message: String,
}

impl Fault {
    pub(crate) fn at(node: &str, message: impl Into<String>) -> Self {
        Self {
            node: Some(node.to_owned()),
            message: message.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.node {
            Some(node) => write!(f, "{node:?}: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// Faults of a graph, in the order of its nodes; cycles last.
pub fn check(nodes: &[Node]) -> Vec<Fault> {
    let whole = |message: String| {
        vec![Fault {
            node: None,
            message,
        }]
    };
    if nodes.is_empty() {
        return whole("the graph has no nodes".to_owned());
    }
    if nodes.len() > MAX_NODES {
        let count = nodes.len();
        return whole(format!(
            "the graph has {count} nodes; at most {MAX_NODES} are allowed"
        ));
    }
    let mut times = BTreeMap::<&str, usize>::new();
    for node in nodes {
        *times.entry(&node.id).or_default() += 1;
    }
    let mut faults = Vec::new();
    for node in nodes {
        let mut fault = |message: String| faults.push(Fault::at(&node.id, message));
        if let Err(message) = check_id(&node.id) {
            fault(message);
        }
        if times.remove(&*node.id).is_some_and(|times| times > 1) {
            fault("the id is used more than once".to_owned());
        }
        if node.is_refinery() && node.dependencies.is_empty() {
            fault("a refinery needs at least one dependency".to_owned());
        }
        for (index, id) in node.dependencies.iter().enumerate() {
            let before = &node.dependencies[..index];
            if before.contains(id) {
                // Once is enough, however often it is repeated.
                if before.iter().filter(|other| *other == id).count() == 1 {
                    fault(format!("depends on {id:?} more than once"));
                }
            } else if *id == node.id {
                fault("depends on itself".to_owned());
            } else if nodes.iter().all(|other| other.id != *id) {
                fault(format!("depends on {id:?}, which is not in the graph"));
            }
        }
    }
    let without_self: Vec<_> = nodes.iter().map(without_self).collect();
    if let Err(stuck) = topological(&without_self) {
        let nodes = stuck.join(", ");
        faults.extend(whole(format!(
            "a cycle: these nodes wait for each other: {nodes}"
        )));
    }
    faults
}

fn without_self(node: &Node) -> Node {
    let mut node = node.clone();
    node.dependencies.retain(|id| *id != node.id);
    node
}

/// Complaint about an id of a task: it becomes a part of branches, paths and URLs.
pub fn check_id(id: &str) -> Result<(), String> {
    check_task_id(id).map_err(|error| error.to_string())?;
    match id.eq_ignore_ascii_case(CAPTAIN) {
        true => Err(format!("{id:?} cannot be an id: it is that of the Captain")),
        false => Ok(()),
    }
}
