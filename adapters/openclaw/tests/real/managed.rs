//! Agents, skills and settings of the gateway through the management interfaces.

use forge_adapter_api::manage::{
    Agent, AgentManager, AgentSyncSpec, ChannelBinding, RuntimeManager, Skill, SkillManager,
    SkillSyncSpec, SystemManager,
};
use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest};
use forge_adapter_openclaw::OpenClaw;
use forge_test_support::execution::run;
use forge_test_support::instance::initialize;
use serde_json::json;

use crate::bench::{self, Bench, asked, request, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_pushed_agent_works_by_its_instructions_its_file_and_its_skill() {
    // The gateway closes databases of its agents when agents change, and can fail the runs of others by that.
    let (server, _alone) = bench::alone().await;
    let adapter: &OpenClaw = &initialize(bench::config(server.url())).await;
    let skill = |content: &str| SkillSyncSpec {
        skill_key: "plum-skill".to_owned(),
        description: Some("Skill about plums".to_owned()),
        content: Some(content.to_owned()),
        ..SkillSyncSpec::default()
    };
    adapter.push_skill(skill("Eat it.")).await.unwrap();
    adapter.push_skill(skill("Peel it first.")).await.unwrap();
    let spec = |prompt: &str| AgentSyncSpec {
        agent_id: "ada".to_owned(),
        name: Some("Ada Lovelace".to_owned()),
        model: Some("fake/fake-1".to_owned()),
        system_prompt: Some(prompt.to_owned()),
        ..AgentSyncSpec::default()
    };
    adapter.push_agent(spec("You count.")).await.unwrap();
    adapter.push_agent(spec("You compute.")).await.unwrap();
    adapter
        .push_file("ada", "SOUL.md", "A kind soul.")
        .await
        .unwrap();
    let agent = AgentManager::get(adapter, "ada").await.unwrap().unwrap();
    assert_eq!(agent.name.as_deref(), Some("Ada Lovelace"));
    assert_eq!(agent.model.as_deref(), Some("fake/fake-1"));
    assert_eq!(agent.system_prompt.as_deref(), Some("You compute."));
    let to_ada = ExecutionRequest {
        agent_id: "ada".to_owned(),
        ..request("dsp_ada", "hello ada")
    };
    run(adapter, to_ada).await.succeeded();
    let sent = asked("hello ada").pop().unwrap().body.to_string();
    for part in ["You compute.", "A kind soul."] {
        assert!(sent.contains(part), "{part}");
    }
    let plum = request("dsp_plum", "hello plum");
    run(adapter, plum).await.succeeded();
    let sent = asked("hello plum").pop().unwrap().body.to_string();
    assert!(sent.contains("plum-skill"));

    let file = adapter.read_file("ada", "SOUL.md").await.unwrap().unwrap();
    assert_eq!(file.content.as_deref(), Some("A kind soul."));
    let files = adapter.list_files("ada").await.unwrap();
    assert!(files.iter().any(|file| file.path == "SOUL.md"), "{files:?}");
    let binding = ChannelBinding {
        channel: "telegram".to_owned(),
        extra: json!({"accountId": "home"}).as_object().unwrap().clone(),
    };
    adapter
        .set_bindings("ada", vec![binding.clone()])
        .await
        .unwrap();
    assert_eq!(adapter.list_bindings("ada").await.unwrap(), [binding]);
    adapter.set_bindings("ada", Vec::new()).await.unwrap();
    assert_eq!(adapter.list_bindings("ada").await.unwrap(), []);
    adapter.remove_agent("ada").await.unwrap();
    adapter.remove_agent("ada").await.unwrap();
    assert!(AgentManager::get(adapter, "ada").await.unwrap().is_none());

    adapter.remove_skill("plum-skill").await.unwrap();
    let skill = SkillManager::get(adapter, "plum-skill")
        .await
        .unwrap()
        .unwrap();
    assert_eq!(skill.extra["enabled"], false);
    let enabled = Skill {
        extra: json!({"enabled": true}).as_object().unwrap().clone(),
        ..skill
    };
    SkillManager::update(adapter, enabled).await.unwrap();
    assert!(adapter.status("plum-skill").await.unwrap().ready);
    assert!(
        !SkillManager::remove(adapter, "no-such-skill")
            .await
            .unwrap()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_gateway_would_change_is_refused_and_leaves_nothing() {
    let bench = Bench::new().await;
    let adapter = &bench.adapter;
    let long = "a".repeat(300);
    for id in ["Ünï / x", "../evil", "研究", "a/b", &long] {
        let agent = Agent {
            agent_id: id.to_owned(),
            ..Agent::default()
        };
        let error = AgentManager::create(adapter, agent).await.unwrap_err();
        assert_eq!(error.code, "invalid_request");
        assert!(
            error.message.contains("lower case letters"),
            "{}",
            error.message
        );
    }
    let odd = AgentSyncSpec {
        agent_id: "odd".to_owned(),
        extra: json!({"temperature": 1}).as_object().unwrap().clone(),
        ..AgentSyncSpec::default()
    };
    let error = adapter.push_agent(odd).await.unwrap_err();
    assert!(error.message.contains("temperature"), "{}", error.message);
    let error = adapter
        .write_file("main", "notes/../x.md", "x")
        .await
        .unwrap_err();
    assert_eq!(error.code, "invalid_request");
    for (key, bytes) in [("../x", 1), ("big", 50 << 20)] {
        let skill = SkillSyncSpec {
            skill_key: key.to_owned(),
            content: Some("x".repeat(bytes)),
            ..SkillSyncSpec::default()
        };
        assert_eq!(
            adapter.push_skill(skill).await.unwrap_err().code,
            "invalid_request"
        );
    }
    let agents = adapter.discover_agents().await.unwrap();
    assert!(
        agents
            .iter()
            .all(|agent| ["main", "ada", "boxed", "dockerless"].contains(&agent.agent_id.as_str())),
        "{agents:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_changes_of_one_file_at_once_are_one_change_and_one_conflict() {
    let bench = Bench::new().await;
    let adapter = &bench.adapter;
    adapter
        .write_file("main", "USER.md", "first")
        .await
        .unwrap();
    let (a, b) = tokio::join!(
        adapter.write_file("main", "USER.md", "second"),
        adapter.write_file("main", "USER.md", "third")
    );
    let errors: Vec<_> = [a, b].into_iter().filter_map(Result::err).collect();
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].code, "conflict");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_skills_and_the_security_of_the_gateway_are_reported() {
    let bench = Bench::new().await;
    let adapter = &bench.adapter;
    let models = adapter.discover_models().await.unwrap();
    assert!(
        models.iter().any(|model| model.model_id == "fake/fake-1"),
        "{models:?}"
    );
    let skills = adapter.discover_skills().await.unwrap();
    assert!(skills.iter().any(|skill| skill.skill_key == "1password"));
    let status = adapter.status("1password").await.unwrap();
    assert_eq!(
        (status.ready, status.missing),
        (false, vec!["bins: op".to_owned()])
    );
    let tools = adapter.capabilities().native_tools;
    assert!(tools.iter().any(|tool| tool == "exec"), "{tools:?}");
    let posture = adapter.security_posture().await.unwrap();
    assert_eq!(
        (posture.sandboxed, posture.findings.len()),
        (Some(false), 2)
    );
    // Changes by other tests are applied after a while.
    until("no changed settings", async || {
        let report = adapter.reload_config().await.unwrap();
        report.notes.is_empty().then_some(())
    })
    .await;
}
