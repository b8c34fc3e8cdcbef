//! Benchmark of one call of an adapter loaded as a library: encodes a request of one KiB as JSON, passes it over,
//! receives and parses events and answer. With 64 in flight no call waits for a thread to wake, so the rest is the
//! work of the bridge and of `echo`, which parses and writes the same.

use std::collections::BTreeMap;

use criterion::Criterion;
use forge_adapter_api::{ExecutionRequest, ExecutionResult};
use forge_base::tasks::Tasks;
use forge_plugin_host::{Adapter, Config, Item, Registry, Setup, Trust};
use futures_util::future::join_all;
use serde_json::json;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime can be made");
    let _inside = runtime.enter();
    let folder = tempfile::tempdir().expect("a folder can be made");
    let beside = std::env::current_exe().expect("the path of this program is known");
    let setup = Setup {
        config: Config {
            adapters: vec!["echo".to_owned()],
            path: beside.parent().into_iter().map(Into::into).collect(),
            trust: Trust::Warn,
            ..Config::default()
        },
        tables: BTreeMap::new(),
        env: BTreeMap::new(),
        store_id: "store".to_owned(),
        epoch: 0,
        state_dir: folder.path().join("state"),
        temp_dir: None,
        supervisor: Vec::new(),
        relay: Vec::new(),
        user: None,
        users: BTreeMap::new(),
        built_in: None,
        tracker: Tasks::here(),
    };
    let request: ExecutionRequest = serde_json::from_value(json!({
        "executionId": "dsp_1/1", "taskId": "task", "agentId": "agent", "attempt": 1, "model": "ok",
        "message": "lorem ipsum ".repeat(75), "timeoutSeconds": 60, "outputStrategy": "stream",
    }))
    .expect("it is a request");
    let started = runtime.block_on(Registry::start(setup));
    let (registry, _events) = started.expect("cargo builds echo beside this program");
    let adapter = registry.get("echo").expect("it was loaded");
    let mut criterion = Criterion::default().configure_from_args();
    for in_flight in [1, 64] {
        criterion.bench_function(&format!("calls, {in_flight} in flight"), |b| {
            b.iter(|| {
                let calls = (0..in_flight).map(|_| call(&adapter, &request));
                runtime.block_on(join_all(calls))
            });
        });
    }
    criterion.final_summary();
}

async fn call(adapter: &Adapter, request: &ExecutionRequest) -> ExecutionResult {
    let bytes = serde_json::to_vec(request).expect("a request has only text keys");
    let permit = adapter.reserve().expect("there is room");
    let mut call = permit.execute(bytes).expect("it is there");
    loop {
        if let Item::Done(answer) = call.next().await {
            let bytes = answer.expect("it answers");
            return serde_json::from_slice(&bytes).expect("its answer is a result");
        }
    }
}
