//! Names, members and changes that the adapter refuses, before anything is changed.

use forge_adapter_api::Result;
use forge_adapter_api::manage::{Agent, AgentManager, RuntimeManager as _, Skill, SkillManager};
use serde_json::json;

use crate::bench::Bench;
use crate::manage::of;

#[tokio::test]
async fn what_hermes_would_change_or_drop_is_refused_and_nothing_is_left() {
    let bench = Bench::with(json!({})).await;
    let hermes = &bench.adapter;
    let agents = [
        (json!({"agentId": "root"}), "reserved"),
        (json!({"agentId": "default"}), "built-in"),
        (json!({"agentId": "a", "name": "Ada"}), "name"),
        (json!({"agentId": "a", "colour": "blue"}), "colour"),
        (json!({"agentId": "a", "description": 1}), "description"),
        (json!({"agentId": "a", "provider": "custom"}), "provider"),
        (json!({"agentId": "a", "model": ""}), "model"),
    ];
    for (agent, named) in agents {
        let error = AgentManager::create(hermes, of::<Agent>(agent))
            .await
            .unwrap_err();
        assert_eq!(error.code, "invalid_request", "{error:?}");
        assert!(error.message.contains(named), "{error:?}");
    }
    let incomplete = json!({"agentId": "a", "skills": ["nothing"]});
    let error = hermes.push_agent(of(incomplete)).await.unwrap_err();
    assert!(error.message.contains("nothing"), "{error:?}");
    assert_eq!(AgentManager::list(hermes).await.unwrap().len(), 1);
    let default = AgentManager::remove(hermes, "default").await.unwrap_err();
    assert_eq!(default.code, "invalid_request");

    let other_name = "---\nname: b\ndescription: d\n---\n\nx";
    let skills = [
        (json!({"skillKey": "a"}), "content"),
        (json!({"skillKey": "a", "content": other_name}), "name: a"),
        (
            json!({"skillKey": "b", "content": other_name, "description": "e"}),
            "description",
        ),
        (
            json!({"skillKey": "a", "content": "x", "files": []}),
            "files",
        ),
        (
            json!({"skillKey": "a", "content": "x".repeat(50 << 20)}),
            "100000",
        ),
    ];
    for (skill, named) in skills {
        let error = SkillManager::create(hermes, of::<Skill>(skill))
            .await
            .unwrap_err();
        assert_eq!(error.code, "invalid_request", "{error:?}");
        assert!(error.message.contains(named), "{error:?}");
    }
    assert_eq!(SkillManager::list(hermes).await.unwrap(), []);
    let error = SkillManager::get(hermes, "stranger/x").await.unwrap();
    assert_eq!(error, None);
}

#[tokio::test]
async fn names_that_are_paths_or_that_hermes_would_change_are_refused_by_every_method() {
    let bench = Bench::with(json!({})).await;
    let hermes = &bench.adapter;
    let long = "a".repeat(300);
    for id in ["", "a/b", "..", "Ada", "ünï", "阿达", "a?profile=b", &long] {
        let agent = json!({"agentId": id, "systemPrompt": "x"});
        for refused in [
            AgentManager::create(hermes, of(agent.clone()))
                .await
                .map(drop),
            AgentManager::update(hermes, of(agent.clone()))
                .await
                .map(drop),
            hermes.push_agent(of(agent)).await,
            AgentManager::remove(hermes, id).await.map(drop),
            hermes.remove_agent(id).await,
            hermes.list_files(id).await.map(drop),
            hermes.read_file(id, "SOUL.md").await.map(drop),
            hermes.write_file(id, "SOUL.md", "x").await,
            hermes.push_file(id, "SOUL.md", "x").await,
        ] {
            refuses(refused, "agentId", id);
        }
        assert_eq!(AgentManager::get(hermes, id).await.unwrap(), None, "{id}");
    }
    for key in [
        "",
        "../x",
        "ada/../x",
        "a/b/c",
        "A",
        "ünï",
        "阿达",
        "a?profile=b",
        &long,
    ] {
        let skill = json!({"skillKey": key, "content": "x"});
        for refused in [
            SkillManager::create(hermes, of(skill.clone()))
                .await
                .map(drop),
            SkillManager::update(hermes, of(skill.clone()))
                .await
                .map(drop),
            hermes.push_skill(of(skill)).await,
            SkillManager::get(hermes, key).await.map(drop),
            SkillManager::remove(hermes, key).await.map(drop),
            hermes.remove_skill(key).await,
            hermes.status(key).await.map(drop),
        ] {
            refuses(refused, "skillKey", key);
        }
    }
    for path in ["../config.yaml", "soul.md", "SOUL.md/x", &long] {
        refuses(hermes.write_file("default", path, "x").await, "path", path);
        refuses(hermes.push_file("default", path, "x").await, "path", path);
        assert_eq!(hermes.read_file("default", path).await.unwrap(), None);
    }
}

#[track_caller]
fn refuses(answer: Result<()>, field: &str, name: &str) {
    let error = answer.expect_err(name);
    assert_eq!(error.code, "invalid_request", "{name:?}: {error:?}");
    assert!(error.message.starts_with(field), "{name:?}: {error:?}");
}

#[tokio::test]
async fn of_two_changes_of_a_file_at_once_one_is_a_conflict() {
    let bench = Bench::with(json!({})).await;
    let hermes = &bench.adapter;
    let write = |text| hermes.write_file("default", "SOUL.md", text);
    let update = of(json!({"agentId": "default", "systemPrompt": "three"}));
    let (first, second, third) = tokio::join!(
        write("one"),
        write("two"),
        AgentManager::update(hermes, update)
    );
    first.unwrap();
    assert_eq!(second.unwrap_err().code, "conflict");
    assert_eq!(third.unwrap_err().code, "conflict");
    let file = hermes.read_file("default", "SOUL.md").await.unwrap();
    assert_eq!(file.unwrap().content.as_deref(), Some("one"));
    write("four").await.unwrap();
}
