//! Conversations over several runs.

use forge_adapter_api::Usage;

use crate::bench::{AGENTS, Agent, Bench};

#[tokio::test]
async fn a_loaded_session_keeps_its_history_and_tells_and_bills_only_its_own_turn() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let first = bench.say("my word is plum").await;
        first.succeeded();
        let mut request = bench.request("what is it");
        request.session_id.clone_from(&first.result.session_id);

        let second = bench.run(request).await;

        second.succeeded();
        second.used(1);
        assert_eq!(second.result.session_id, first.result.session_id);
        assert_eq!(
            second.text("assistant.text"),
            "pong: what is it",
            "{agent:?}"
        );
        assert!(
            bench.asked_last("what is it").contains("my word is plum"),
            "{agent:?}"
        );
        match agent {
            Agent::Hermes => assert_eq!(second.result.cost_usd, None),
            Agent::OpenCode => {
                let (first, second) = (
                    first.result.cost_usd.unwrap(),
                    second.result.cost_usd.unwrap(),
                );
                assert!(second > 0.0 && second <= first, "{second} of {first}");
            }
        }
    }
}

#[tokio::test]
async fn a_session_goes_on_in_another_folder() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let mut request = bench.request("my word is plum");
        request.workspace = None;
        let first = bench.run(request).await;
        let mut request = bench.request("what is it");
        request.session_id.clone_from(&first.result.session_id);
        request.workspace = None;
        bench.run(request).await.succeeded();
        assert!(
            bench.asked_last("what is it").contains("my word is plum"),
            "{agent:?}"
        );
    }
}

#[tokio::test]
async fn an_unknown_session_is_told_unless_a_crashed_attempt_left_none() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let mut request = bench.request("hello there");
        request.session_id = Some("ses_00000000000000000000000000".to_owned());
        let unknown = bench.run(request.clone()).await;
        unknown.failed("session_not_found");
        assert_eq!(unknown.result.usage, Usage::default());
        assert_eq!(unknown.result.session_id, None);

        request.resume = true;
        let ran = bench.run(request).await;
        ran.succeeded();
        assert_eq!(ran.output(), "pong: hello there", "{agent:?}");
    }
}

#[tokio::test]
async fn an_interrupted_attempt_is_gone_on_with() {
    let bench = Bench::new(Agent::Hermes).await;
    let first = bench.say("count the plums").await;
    let mut request = bench.request("count the plums");
    request.session_id.clone_from(&first.result.session_id);
    request.resume = true;
    bench.run(request).await.succeeded();
    let asked = bench.asked_last("Go on where you stopped");
    assert!(asked.matches("count the plums").count() >= 2, "{asked}");
}
