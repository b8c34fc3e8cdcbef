//! Tools in a sandbox of the gateway: its `ssh` backend with a program that runs its command in a mount namespace.

use forge_adapter_api::ExecutionRequest;

use crate::bench::{self, Bench, request};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_hides_the_host_and_without_one_nothing_runs() {
    let bench = Bench::new().await;
    let file = bench::planted();
    let reads = |agent: &str| {
        let command = format!("cat {}; touch {}.{agent}", file.display(), file.display());
        let call = serde_json::json!({"command": command});
        ExecutionRequest {
            agent_id: agent.to_owned(),
            ..request(&format!("dsp_box_{agent}"), &format!("CALL exec {call}"))
        }
    };
    let boxed = bench.run(reads("boxed")).await;
    assert!(
        boxed.succeeded().contains("No such file"),
        "{:?}",
        boxed.result
    );
    let open = bench.run(reads("main")).await;
    assert!(open.succeeded().contains("planted"), "{:?}", open.result);
    bench
        .run(reads("dockerless"))
        .await
        .failed("sandbox_unavailable");
    let ran_as =
        |agent: &str| std::path::PathBuf::from(format!("{}.{agent}", file.display())).exists();
    assert_eq!(
        ["boxed", "main", "dockerless"].map(ran_as),
        [false, true, false]
    );
}
