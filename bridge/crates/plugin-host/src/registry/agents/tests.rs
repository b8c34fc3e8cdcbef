//! Ids that the directory knows after answers and failures of a runtime.

use serde_json::{Value, json};

use super::*;

fn list(ids: impl IntoIterator<Item = String>) -> Vec<u8> {
    let agents = ids.into_iter();
    let agents: Vec<Value> = agents
        .map(|id| json!({"name": "any", "agentId": id, "files": [{"agentId": "x"}]}))
        .collect();
    serde_json::to_vec(&agents).unwrap()
}

fn now() -> Timestamp {
    Timestamp::from_second(1).unwrap()
}

#[test]
fn an_agent_is_known_once_the_runtime_has_listed_it() {
    let directory = AgentDirectory::default();
    assert_eq!(directory.has("ada"), None);
    let answer = list(["ada".to_owned(), "b\"\\".to_owned()]);
    assert_eq!(directory.record(Ok(answer), now()), None);
    let known = ["ada", "b\"\\", "x"].map(|id| directory.has(id));
    assert_eq!(known, [Some(true), Some(true), Some(false)]);
    assert_eq!(directory.record(Ok(b"[]".to_vec()), now()), None);
    assert_eq!(directory.has("ada"), Some(false));
    directory.clear();
    assert_eq!(directory.has("ada"), None);
}

#[test]
fn what_is_above_the_bound_is_left_out_and_reported_once() {
    let directory = AgentDirectory::default();
    let too_many = list((0..=MAX_IDS).map(|number| number.to_string()));
    let line = directory.record(Ok(too_many.clone()), now()).unwrap();
    assert!(line.contains("more than 10000 agents"), "{line}");
    assert_eq!(directory.record(Ok(too_many), now()), None);
    let report = directory.report();
    assert_eq!((report.count, report.is_complete), (MAX_IDS, false));
    assert_eq!(directory.has("9999"), Some(true));
    assert_eq!(directory.has("10000"), Some(false));

    // The same id again and an id that no dispatch can have count for nothing.
    let all = (0..MAX_IDS).map(|number| number.to_string());
    let more = ["1".to_owned(), "x".repeat(MAX_ID_BYTES + 1)];
    let full = list(all.chain(more));
    assert_eq!(directory.record(Ok(full), now()), None);
    let report = directory.report();
    assert_eq!((report.count, report.is_complete), (MAX_IDS, true));
}

#[test]
fn a_failure_leaves_the_former_ids_and_is_reported_once() {
    let directory = AgentDirectory::default();
    directory.record(Ok(list(["ada".to_owned()])), now());
    let failed = || Err(AdapterError::new("adapter_crashed", "signal 9"));
    let later = Timestamp::from_second(60).unwrap();
    let line = directory.record(failed(), later).unwrap();
    assert!(line.contains("signal 9"), "{line}");
    assert_eq!(directory.record(failed(), later), None);
    for unreadable in ["{}", "[{}]", "[{\"agentId\": 1}]", "[", "[] x", ""] {
        directory.record(Ok(unreadable.into()), later);
        let report = directory.report();
        assert_eq!((report.count, report.listed_at), (1, Some(now())));
        let error = report.error.unwrap();
        assert!(error.contains("unreadable"), "{unreadable}: {error}");
        assert_eq!(directory.has("ada"), Some(true));
    }
    directory.record(Ok(list(["bob".to_owned()])), later);
    let report = directory.report();
    assert_eq!((report.listed_at, report.error), (Some(later), None));
    assert_eq!(directory.has("ada"), Some(false));
}
