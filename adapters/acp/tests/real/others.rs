//! claude-agent-acp and Gemini CLI, and all four with odd text.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::Usage;
use forge_test_support::attachment::{PICTURE, attached};

use crate::bench::{AGENTS, Agent, Bench};

/// Input and output tokens of one model call, as these agents count them: Gemini CLI leaves out the thoughts.
const CALLS: [(Agent, (u64, u64)); 2] = [(Agent::Claude, (35, 12)), (Agent::Gemini, (31, 7))];

#[tokio::test]
async fn turns_are_streamed_and_counted_whole() {
    for (agent, call) in CALLS {
        let bench = Bench::new(agent).await;
        let first = bench.say("my word is plum").await;
        first.succeeded();
        first.used(1, call);
        assert_eq!(first.text(), first.output(), "{agent:?}");
        assert!(first.output().ends_with("my word is plum"), "{agent:?}");
        assert_eq!(first.result.cost_usd.is_some(), agent == Agent::Claude);

        let tool = agent.shell("echo forge-$((40+2))");
        let mut request = bench.request(&format!("what is it? {tool}"));
        // Gemini CLI 0.61.0 does not find the sessions that it saved over ACP.
        let is_resumed = agent == Agent::Claude;
        if is_resumed {
            request.session_id.clone_from(&first.result.session_id);
        }
        let second = bench.run(request).await;
        second.succeeded();
        second.used(2, call);
        let asked = bench.asked_last("what is it");
        assert_eq!(asked.contains("my word is plum"), is_resumed, "{agent:?}");
    }
}

#[tokio::test]
async fn a_cancelled_turn_costs_what_the_agent_knows() {
    for (agent, _) in CALLS {
        let bench = Bench::new(agent).await;
        let ran = bench.cancelled().await;
        assert_eq!(ran.result.usage, Usage::default(), "{agent:?}");
        let known = ran.result.cost_usd.is_some_and(|cost| cost > 0.0);
        assert_eq!(known, agent == Agent::Claude, "{:?}", ran.result);
    }
}

#[tokio::test]
async fn what_the_provider_refuses_has_a_code() {
    let bench = Bench::new(Agent::Gemini).await;
    let ran = bench.say("FAIL400 please").await;
    ran.failed("invalid_request");
    assert_eq!(ran.result.retryable, Some(false));
}

#[tokio::test]
async fn a_picture_and_a_text_reach_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let attached = |name: &str, media_type: &str, content: &[u8]| {
        attached(folder.path(), name, media_type, content)
    };
    let picture = STANDARD.decode(PICTURE).unwrap();
    for (agent, _) in CALLS {
        let bench = Bench::new(agent).await;
        let mut request = bench.request("look");
        request.attachments = vec![
            attached("a.png", "image/png", &picture),
            attached("b.md", "text/markdown", b"the text"),
        ];
        bench.run(request).await.succeeded();
        let asked = bench.model.requests();
        let asked: String = asked.iter().map(|asked| asked.body.to_string()).collect();
        assert!(asked.contains("image/png"), "{agent:?}: {asked}");
        assert!(asked.contains("# b.md\\n\\nthe text"), "{agent:?}: {asked}");
    }
}

#[tokio::test]
async fn half_a_character_is_read() {
    let agents = CALLS.into_iter().map(|(agent, _)| agent).chain(AGENTS);
    for agent in agents {
        let bench = Bench::new(agent).await;
        let ran = bench.say("ODDLY please").await;
        ran.succeeded();
        let (before, after) = ran.output().split_once("po").unwrap();
        assert!(before.is_empty(), "{agent:?}: {}", ran.output());
        assert_eq!(after, "\u{fffd}ng: ODDLY please", "{agent:?}");
        assert_eq!(ran.text(), ran.output(), "{agent:?}");
        assert!(ran.result.usage.total_tokens.is_some(), "{agent:?}");
    }
}
