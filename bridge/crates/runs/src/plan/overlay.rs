//! Changes of a graph. They only add, and only in front of nodes that have not begun.

use serde::{Deserialize, Serialize};

use super::{Fault, Graph, Node};

/// Makes `to` depend on `from`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    pub from: String,
    pub to: String,
}

impl Graph {
    /// This graph with further nodes and edges. `is_pending` tells whether a node of this graph has not begun; others get no new
    /// dependencies. Results that reach no refinery go to `refinery-final` if it is pending, else to a refinery of
    /// this change, `name`.
    pub fn with(
        &self,
        added_nodes: &[Node],
        added_edges: &[Edge],
        is_pending: impl Fn(&str) -> bool,
        name: &str,
    ) -> Result<Self, Vec<Fault>> {
        let mut nodes = self.0.clone();
        let mut faults = Vec::new();
        let is_old = |id: &str| self.0.iter().any(|node| node.id == id);
        nodes.extend(added_nodes.iter().cloned());
        for Edge { from, to } in added_edges {
            if is_old(to) && !is_pending(to) {
                faults.push(Fault::at(to, "has begun, so it gets no new dependency"));
            } else if let Some(node) = nodes.iter_mut().find(|node| node.id == *to) {
                if !node.dependencies.contains(from) {
                    node.dependencies.push(from.clone());
                }
            } else {
                faults.push(Fault::at(to, "is the end of an edge, but not in the graph"));
            }
        }
        if let Some(sinks) = super::uncovered(&nodes) {
            let last = nodes.iter_mut().find(|node| {
                node.id == super::FINAL_REFINERY && is_old(&node.id) && is_pending(&node.id)
            });
            match last {
                Some(last) => last.dependencies.extend(sinks),
                None => nodes.push(Node {
                    id: name.to_owned(),
                    title: "Merge the results of a change".to_owned(),
                    agent_type: super::AgentType::Refinery,
                    dependencies: sinks,
                }),
            }
        }
        faults.extend(super::check(&nodes));
        if faults.is_empty() {
            Ok(Self(nodes))
        } else {
            Err(faults)
        }
    }
}
