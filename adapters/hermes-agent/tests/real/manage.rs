//! Every method of the management interfaces, on the real server.

use forge_adapter_api::manage::{
    AgentManager, AgentSyncSpec, RuntimeManager as _, SkillManager, SkillSyncSpec,
    SystemManager as _,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::bench::Bench;

/// The value as this type.
pub(crate) fn of<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

#[tokio::test]
async fn an_agent_with_its_file_and_its_skill_reaches_the_model() {
    let bench = Bench::with(json!({})).await;
    let hermes = &bench.adapter;
    let ada = json!({"agentId": "ada", "systemPrompt": "you are a marmot", "description": "digs"});
    let created = AgentManager::create(hermes, of(ada.clone())).await.unwrap();
    let created = serde_json::to_value(created).unwrap();
    assert_eq!(created["systemPrompt"], "you are a marmot");
    assert_eq!(
        (&created["model"], &created["description"]),
        (&json!("custom:fake-1"), &json!("digs"))
    );
    let again = AgentManager::create(hermes, of(ada)).await.unwrap_err();
    assert_eq!(again.code, "invalid_request");

    let files = hermes.list_files("ada").await.unwrap();
    assert_eq!(
        (&files[0].path[..], files[0].size_bytes),
        ("SOUL.md", Some(16))
    );
    hermes
        .write_file("ada", "SOUL.md", "you are a badger")
        .await
        .unwrap();
    let file = hermes.read_file("ada", "SOUL.md").await.unwrap().unwrap();
    assert_eq!(file.content.as_deref(), Some("you are a badger"));
    assert_eq!(hermes.read_file("ada", "AGENTS.md").await.unwrap(), None);
    let update = json!({"agentId": "ada", "model": "fake-2", "description": "sleeps"});
    let updated = AgentManager::update(hermes, of(update)).await.unwrap();
    assert_eq!(updated.model.as_deref(), Some("custom:fake-2"));
    assert_eq!(updated.system_prompt.as_deref(), Some("you are a badger"));
    let skill = json!({
        "skillKey": "ada/digging", "description": "how to: \"dig\"", "content": "# Dig\n\nUse paws.",
    });
    SkillManager::create(hermes, of(skill)).await.unwrap();

    let ran = bench.say("ada", "hello").await;

    ran.succeeded();
    let asked = bench.asked_last();
    assert_eq!(asked["model"], "fake-2");
    let said = asked["messages"].to_string();
    for word in ["you are a badger", "digging", "how to: \\\\\\\"dig"] {
        let word = word.replace("\\\\\\\"", "\\\"");
        assert!(said.contains(&word), "no {word} in {said}");
    }
    let cleared = json!({"agentId": "ada", "description": "", "systemPrompt": ""});
    let cleared = AgentManager::update(hermes, of(cleared)).await.unwrap();
    let cleared = serde_json::to_value(cleared).unwrap();
    let expected = json!({"agentId": "ada", "model": "custom:fake-2", "systemPrompt": ""});
    assert_eq!(cleared, expected);
    assert!(AgentManager::remove(hermes, "ada").await.unwrap());
    assert!(!AgentManager::remove(hermes, "ada").await.unwrap());
    assert_eq!(AgentManager::get(hermes, "ada").await.unwrap(), None);
    let gone = json!({"agentId": "ada", "description": "x"});
    let gone = AgentManager::update(hermes, of(gone)).await.unwrap_err();
    assert_eq!(gone.code, "not_found");
}

#[tokio::test]
async fn sync_makes_agents_and_skills_what_the_spec_says() {
    let bench = Bench::with(json!({})).await;
    let hermes = &bench.adapter;
    let text = "---\nname: dig\ndescription: digs\n---\n\n# Dig\n\nUse paws.\n";
    for content in [text, &text.replace("paws", "claws")] {
        let spec = json!({"skillKey": "dig", "content": content});
        hermes.push_skill(of::<SkillSyncSpec>(spec)).await.unwrap();
        let read = SkillManager::get(hermes, "dig").await.unwrap().unwrap();
        assert_eq!(read.content.as_deref(), Some(content));
    }
    let nap = json!({"skillKey": "nap", "description": "naps", "content": "Sleep."});
    hermes.push_skill(of::<SkillSyncSpec>(nap)).await.unwrap();
    let spec = json!({"agentId": "ada", "systemPrompt": "a", "skills": ["dig"]});
    for prompt in ["a", "b"] {
        let mut spec: AgentSyncSpec = of(spec.clone());
        spec.system_prompt = Some(prompt.to_owned());
        hermes.push_agent(spec).await.unwrap();
        let read = AgentManager::get(hermes, "ada").await.unwrap().unwrap();
        assert_eq!(read.system_prompt.as_deref(), Some(prompt));
    }
    assert!(hermes.status("ada/dig").await.unwrap().ready);
    let nap = hermes.status("ada/nap").await.unwrap();
    assert!(!nap.ready && nap.message.unwrap().contains("disabled"));
    assert!(
        hermes.status("nap").await.unwrap().ready,
        "of the default profile"
    );
    hermes.push_file("ada", "SOUL.md", "c").await.unwrap();
    let read = AgentManager::get(hermes, "ada").await.unwrap().unwrap();
    assert_eq!(read.system_prompt.as_deref(), Some("c"));
    let ids: Vec<String> = hermes
        .discover_agents()
        .await
        .unwrap()
        .into_iter()
        .map(|a| a.agent_id)
        .collect();
    assert_eq!(ids, ["default", "ada"]);

    hermes.remove_skill("dig").await.unwrap();
    assert!(
        !SkillManager::remove(hermes, "dig").await.unwrap(),
        "it is disabled already"
    );
    hermes.remove_skill("nothing").await.unwrap();
    let skills = hermes.discover_skills().await.unwrap();
    let enabled: Vec<_> = skills
        .iter()
        .map(|s| (&s.skill_key[..], &s.extra["enabled"]))
        .collect();
    assert_eq!(enabled, [("dig", &json!(false)), ("nap", &json!(true))]);
    let read = SkillManager::get(hermes, "dig").await.unwrap().unwrap();
    let mut back = serde_json::to_value(read).unwrap();
    back["enabled"] = true.into();
    SkillManager::update(hermes, of(back)).await.unwrap();
    let other = json!({"skillKey": "dig", "description": "sleeps"});
    let other = SkillManager::update(hermes, of(other)).await.unwrap_err();
    assert!(other.message.contains("send both"), "{other:?}");
    assert!(hermes.status("dig").await.unwrap().ready);
    assert_eq!(SkillManager::list(hermes).await.unwrap().len(), 2);

    assert_eq!(
        hermes.discover_models().await.unwrap()[0].model_id,
        "custom:fake-1"
    );
    // Hermes keeps in its settings which skills are disabled.
    assert!(hermes.reload_config().await.unwrap().changed);
    let settings = bench.home.path().join("config.yaml");
    let text = std::fs::read_to_string(&settings).unwrap() + "\napprovals: {mode: off}\n";
    std::fs::write(&settings, text).unwrap();
    assert!(hermes.reload_config().await.unwrap().changed);
    assert!(!hermes.reload_config().await.unwrap().changed);
    let posture = hermes.security_posture().await.unwrap();
    assert_eq!(posture.sandboxed, Some(false));
    assert!(
        posture
            .findings
            .iter()
            .any(|finding| finding.severity == "critical")
    );

    hermes.remove_agent("ada").await.unwrap();
    hermes.remove_agent("ada").await.unwrap();
    for op in [
        hermes.install_dependencies("dig").await.unwrap_err(),
        hermes.remove_file("default", "SOUL.md").await.unwrap_err(),
        hermes.list_bindings("default").await.unwrap_err(),
        hermes
            .set_bindings("default", Vec::new())
            .await
            .unwrap_err(),
    ] {
        assert_eq!(op.code, "unsupported_op", "{op:?}");
    }
}
