//! Faults, gates and inputs of graphs.

use proptest::prelude::*;

use super::*;

fn node(id: &str, dependencies: &[&str]) -> Node {
    Node {
        id: id.to_owned(),
        title: String::new(),
        agent_type: match id.starts_with('r') {
            true => AgentType::Refinery,
            false => AgentType::Worker,
        },
        dependencies: dependencies.iter().map(|id| (*id).to_owned()).collect(),
    }
}

fn faults(nodes: &[Node]) -> Vec<String> {
    Graph::new(nodes.to_vec())
        .unwrap_err()
        .iter()
        .map(Fault::to_string)
        .collect()
}

/// Check 13.
#[test]
fn all_faults_are_found_at_once_each_with_its_node() {
    let nodes = [
        node("a", &["a", "x"]),
        node("b", &["c"]),
        node("c", &["b"]),
        node("d/e", &[]),
        node("f", &[]),
        node("f", &[]),
        node("r", &[]),
    ];
    let text = faults(&nodes).join("\n");
    for part in [
        "\"a\": depends on itself",
        "\"a\": depends on \"x\", which is not in the graph",
        "\"f\": the id is used more than once",
        "\"d/e\": \"d/e\" cannot be an id",
        "\"r\": a refinery needs at least one dependency",
        "a cycle: these nodes wait for each other: b, c",
    ] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
    assert_eq!(faults(&[]), ["the graph has no nodes"]);
    let many: Vec<_> = (0..10_000).map(|n| node(&format!("t{n}"), &[])).collect();
    assert_eq!(
        faults(&many),
        ["the graph has 10000 nodes; at most 1000 are allowed"]
    );
}

#[test]
fn an_id_can_be_part_of_a_branch_name() {
    for id in ["a", "task_01", "A.b-c", &"x".repeat(64)] {
        assert_eq!(check_id(id), Ok(()), "{id}");
    }
    let long = "x".repeat(65);
    for id in [
        "", ".", "..", ".a", "-a", "a.", "a.lock", "a..b", "a/b", "a b", "a\n", "ä", "a~1", "a^",
        "a:b", "a\\b", "Captain", &long,
    ] {
        assert!(check_id(id).is_err(), "{id}");
    }
}

#[test]
fn a_result_that_reaches_no_refinery_gets_a_final_one() {
    let graph = Graph::new(vec![node("a", &[]), node("b", &["a"]), node("c", &[])]).unwrap();
    let last = graph.nodes().last().unwrap();
    assert_eq!(
        (&*last.id, &*last.dependencies),
        (FINAL_REFINERY, &["b".to_owned(), "c".to_owned()][..])
    );
    let inputs: Vec<_> = graph
        .inputs(FINAL_REFINERY)
        .iter()
        .map(|node| &*node.id)
        .collect();
    assert_eq!(inputs, ["a", "b", "c"]);
    let covered = vec![
        node("a", &[]),
        node("r", &["a"]),
        node("b", &["r"]),
        node("r2", &["b", "r"]),
    ];
    let graph = Graph::new(covered.clone()).unwrap();
    assert_eq!(graph.nodes(), covered);
    let inputs: Vec<_> = graph.inputs("r2").iter().map(|node| &*node.id).collect();
    assert_eq!(
        inputs,
        ["b"],
        "what an earlier refinery merged is not merged again"
    );
}

#[test]
fn an_overlay_adds_in_front_of_pending_nodes_only() {
    let graph = Graph::new(vec![node("a", &[]), node("b", &["a"])]).unwrap();
    let edge = |from: &str, to: &str| Edge {
        from: from.to_owned(),
        to: to.to_owned(),
    };
    let nodes = [node("n", &["a"])];
    let edges = [edge("n", "b")];
    let pending = |id: &str| id != "a";
    let changed = graph.with(&nodes, &edges, pending, "refinery-cr").unwrap();
    assert_eq!(changed.nodes()[1].dependencies, ["a", "n"]);
    assert_eq!(changed.nodes().len(), 4);
    let faults = graph
        .with(&nodes, &edges, |_| false, "refinery-cr")
        .unwrap_err();
    assert_eq!(
        faults[0].to_string(),
        "\"b\": has begun, so it gets no new dependency"
    );
    let alone = [node("n", &[])];
    let changed = graph.with(&alone, &[], pending, "refinery-cr").unwrap();
    assert_eq!(changed.nodes()[2].dependencies, ["b", "n"]);
    let changed = graph.with(&alone, &[], |_| false, "refinery-cr").unwrap();
    assert_eq!(changed.nodes().last().unwrap().dependencies, ["n"]);
    let cycle = [edge("n", "b"), edge("b", "n")];
    let faults = graph
        .with(&nodes, &cycle, pending, "refinery-cr")
        .unwrap_err();
    assert!(faults[0].to_string().starts_with("a cycle"), "{faults:?}");
}

#[test]
fn a_document_shows_its_front_matter_and_its_sections() {
    let document: TaskDocument = serde_json::from_value(serde_json::json!({
        "id": "a", "title": "Say \"hello\": now", "type": 1, "dependencies": ["b"], "instructions": "write a.txt hello\n"
    }))
    .unwrap();
    assert_eq!(
        document.render(),
        "---\nid: a\ntitle: \"Say \\\"hello\\\": now\"\ntype: 1\ndependencies: [\"b\"]\nacceptance_criteria: []\n---\n\n\
         ## Instructions\n\nwrite a.txt hello\n"
    );
}

proptest! {
    #[test]
    fn an_accepted_graph_has_an_order_and_every_task_reaches_a_refinery(
        edges in proptest::collection::vec((0usize..12, 0usize..12), 0..40),
        refineries in proptest::collection::vec(any::<bool>(), 12),
    ) {
        let name = |n: usize| format!("{}{n}", if refineries[n] { "r" } else { "t" });
        let nodes: Vec<Node> = (0..12).map(|n| {
            let of: Vec<_> = edges.iter().filter(|(to, _)| *to == n).map(|(_, from)| name(*from)).collect();
            node(&name(n), &of.iter().map(String::as_str).collect::<Vec<_>>())
        }).collect();
        if let Ok(graph) = Graph::new(nodes) {
            let order = topological(graph.nodes()).unwrap();
            prop_assert_eq!(order.len(), graph.nodes().len());
            prop_assert_eq!(uncovered(graph.nodes()), None);
            let merged: BTreeSet<_> = graph.nodes().iter().filter(|node| node.is_refinery())
                .flat_map(|node| graph.inputs(&node.id)).map(|node| &node.id).collect();
            let tasks = graph.nodes().iter().filter(|node| !node.is_refinery()).count();
            prop_assert_eq!(merged.len(), tasks);
        }
    }
}
