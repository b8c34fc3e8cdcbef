//! Turns and sessions.

use forge_adapter_api::{OutputStrategy, Usage};
use serde_json::json;

use crate::bench::{AGENTS, Agent, Bench, CALL};

#[tokio::test]
async fn a_session_is_streamed_and_counted_and_goes_on_with_its_history_and_its_own_bill() {
    for agent in AGENTS {
        let bench = Bench::with(agent, json!({"model": "fake-1"})).await;
        let mut request = bench.request("my word is plum");
        request.system_prompt = Some("you are a marmot".to_owned());
        request.output_strategy = OutputStrategy::File;
        request.output_file = Some("out/answer.md".to_owned());

        let first = bench.run(request).await;

        first.succeeded();
        first.used(1, CALL);
        assert!(
            first.output().ends_with("my word is plum"),
            "{agent:?}: {}",
            first.output()
        );
        assert_eq!(first.text(), first.output());
        assert!(first.all("assistant.text").len() > 1, "{agent:?}");
        let updated = first.all("session.updated");
        assert_eq!(updated.len(), 1, "{agent:?}");
        assert_eq!(updated[0]["sessionId"], json!(first.result.session_id));
        assert!(updated[0]["runtimeVersion"].is_string());
        let asked = bench.asked_last("my word is plum");
        for word in ["you are a marmot", "out/answer.md"] {
            assert!(asked.contains(word), "{agent:?} has no {word}: {asked}");
        }

        let mut request = bench.request("what is it");
        request.session_id.clone_from(&first.result.session_id);
        let model = match agent {
            Agent::Hermes => "custom:fake-1",
            Agent::OpenCode => "fake/fake-2",
            Agent::Claude | Agent::Gemini => unreachable!("they are in others.rs"),
        };
        request.model = Some(model.to_owned());

        let second = bench.run(request).await;

        second.succeeded();
        second.used(1, CALL);
        assert_eq!(second.result.session_id, first.result.session_id);
        assert_eq!(second.result.model.as_deref(), Some(model));
        assert_eq!(second.text(), "pong: what is it", "{agent:?}");
        assert!(
            bench.asked_last("what is it").contains("my word is plum"),
            "{agent:?}"
        );
        match agent {
            Agent::Hermes => {
                assert_eq!(
                    (first.result.cost_usd, second.result.cost_usd),
                    (None, None)
                );
            }
            // The first cost includes the call for the session's title; the second model has no price.
            Agent::OpenCode => {
                assert!(first.result.cost_usd.unwrap() > 0.0);
                assert_eq!(second.result.cost_usd, Some(0.0));
                let asked = bench.model.requests();
                assert!(asked.iter().any(|asked| asked.body["model"] == "fake-2"));
            }
            Agent::Claude | Agent::Gemini => unreachable!("they are in others.rs"),
        }
    }
}

#[tokio::test]
async fn an_unknown_session_is_told() {
    for agent in AGENTS {
        let bench = Bench::new(agent).await;
        let mut request = bench.request("hello there");
        request.session_id = Some("ses_00000000000000000000000000".to_owned());
        let unknown = bench.run(request).await;
        unknown.failed("session_not_found");
        assert_eq!(unknown.result.usage, Usage::default());
        assert_eq!(unknown.result.session_id, None);
        assert!(bench.model.requests().is_empty(), "{agent:?}");
    }
}
