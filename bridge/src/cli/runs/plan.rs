//! The graph of a run as text.

use std::collections::BTreeMap;

use serde_json::Value;

use super::super::screen::text;

/// Tasks of a plan, each below those that it depends on and indented by the longest way to it, with the ids of its
/// dependencies.
pub(in super::super) fn lines(nodes: &[Value]) -> Vec<(String, String)> {
    let dependencies = |node: &Value| -> Vec<String> {
        let ids = node["dependencies"].as_array().into_iter().flatten();
        ids.map(|id| text(id, "")).collect()
    };
    let mut depths: BTreeMap<String, usize> = BTreeMap::new();
    // A graph has no cycle, so each round places a node at least.
    for _ in nodes {
        for node in nodes {
            let before = dependencies(node);
            let depth = before
                .iter()
                .map(|id| depths.get(id).map(|depth| depth + 1));
            if let Some(depth) = depth.collect::<Option<Vec<_>>>() {
                depths.insert(text(node, "/id"), depth.into_iter().max().unwrap_or(0));
            }
        }
    }
    let depth = |node: &Value| depths.get(&text(node, "/id")).copied().unwrap_or(0);
    let mut placed: Vec<&Value> = nodes.iter().collect();
    placed.sort_by_key(|node| depth(node));
    let line = |node: &Value| {
        let id = format!("{}{}", "  ".repeat(depth(node)), text(node, "/id"));
        (id, dependencies(node).join(", "))
    };
    placed.into_iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_task_is_below_and_right_of_what_it_depends_on() {
        let nodes = [
            json!({"id": "r", "dependencies": ["a", "b"]}),
            json!({"id": "b", "dependencies": ["a"]}),
            json!({"id": "a", "dependencies": []}),
            json!({"id": "c", "dependencies": []}),
        ];
        let lines = lines(&nodes);
        let lines: Vec<_> = lines.iter().map(|(id, on)| (&**id, &**on)).collect();
        let expected = [("a", ""), ("c", ""), ("  b", "a"), ("    r", "a, b")];
        assert_eq!(lines, expected);
    }
}
