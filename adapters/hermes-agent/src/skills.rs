//! Skills of profiles. A key is the name of a skill of the default profile, or `<profile>/<name>`. Hermes has no call
//! that deletes a skill: a removed one is disabled, and its status says so.

use forge_adapter_api::manage::{Skill, SkillManager, SkillStatus};
use forge_adapter_api::{AdapterError, Result, async_trait};
use serde_json::{Map, Value, json};

use crate::HermesAgent;
use crate::agents::refuse_unknown;
use crate::management::{Management, found};
use crate::profiles::DEFAULT;
use crate::skill_text::{self, SkillKey, invalid};

/// Message of a skill that is not enabled.
const DISABLED: &str = "the skill is disabled, which is all that Hermes can do to remove it; an update with `enabled: \
                        true` brings it back";

/// Desired state of a skill.
pub(crate) struct WantedSkill {
    key: SkillKey,
    /// The whole `SKILL.md`; `None`: as it is.
    text: Option<String>,
    enabled: Option<bool>,
}

impl WantedSkill {
    /// Refuses keys that Hermes would change, and members that it cannot keep.
    pub(crate) fn of(skill: Skill) -> Result<Self> {
        let key = SkillKey::read(&skill.skill_key)?;
        if skill.name.is_some_and(|name| name != key.name) {
            return Err(invalid(
                "name: a skill has no other name than its key; leave it out",
            ));
        }
        let mut extra = skill.extra;
        let enabled = match extra.remove("enabled") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(enabled)) => Some(enabled),
            Some(_) => return Err(invalid("enabled: true or false was expected")),
        };
        refuse_unknown(&extra, "description, content and enabled")?;
        let description = skill.description.as_deref();
        let text = skill.content;
        let text = text.map(|content| skill_text::compose(&key.name, description, content));
        let text = text.transpose()?;
        Ok(Self { key, text, enabled })
    }
}

/// Skills of a profile, without content.
pub(crate) async fn list(management: &Management, profile: Option<&str>) -> Result<Vec<Skill>> {
    let profile = profile.unwrap_or(DEFAULT);
    let path = format!("/api/skills?profile={profile}");
    let answer = management.get(&path).await?;
    let skills = answer.as_array().into_iter().flatten();
    Ok(skills.filter_map(|entry| skill(profile, entry)).collect())
}

fn skill(profile: &str, entry: &Value) -> Option<Skill> {
    let text = |name: &str| entry[name].as_str().filter(|text| !text.is_empty());
    let key = SkillKey {
        profile: profile.to_owned(),
        name: text("name")?.to_owned(),
    };
    let extra = Map::from_iter([("enabled".to_owned(), entry["enabled"].clone())]);
    Some(Skill {
        skill_key: key.text(),
        description: text("description").map(str::to_owned),
        extra,
        ..Skill::default()
    })
}

async fn find(management: &Management, key: &SkillKey) -> Result<Option<Skill>> {
    let listed = list(management, Some(&key.profile)).await;
    let listed = match listed {
        Err(error) if error.code == "not_found" => return Ok(None),
        listed => listed?,
    };
    let text = key.text();
    Ok(listed.into_iter().find(|skill| skill.skill_key == text))
}

async fn create(management: &Management, wanted: WantedSkill) -> Result<()> {
    let Some(text) = &wanted.text else {
        return Err(invalid("content: the text of the skill is required"));
    };
    let key = &wanted.key;
    let body = json!({"name": key.name, "content": text, "profile": key.profile});
    management.post("/api/skills", &body).await?;
    match wanted.enabled {
        Some(false) => toggle(management, key, false).await,
        Some(true) | None => Ok(()),
    }
}

async fn update(management: &Management, wanted: WantedSkill, found: &Skill) -> Result<()> {
    let key = &wanted.key;
    if let Some(text) = &wanted.text {
        let body = json!({"name": key.name, "content": text, "profile": key.profile});
        management.put("/api/skills/content", &body).await?;
    }
    match wanted
        .enabled
        .filter(|enabled| *enabled != is_enabled(found))
    {
        Some(enabled) => toggle(management, key, enabled).await,
        None => Ok(()),
    }
}

/// Creates a skill or updates it, and enables it unless the request says otherwise.
pub(crate) async fn push(management: &Management, mut wanted: WantedSkill) -> Result<()> {
    wanted.enabled = wanted.enabled.or(Some(true));
    match find(management, &wanted.key).await? {
        Some(found) => update(management, wanted, &found).await,
        None => create(management, wanted).await,
    }
}

/// Disables a skill; false if it does not exist or was disabled already.
pub(crate) async fn disable(management: &Management, key: &str) -> Result<bool> {
    let key = SkillKey::read(key)?;
    let found = find(management, &key).await?;
    if !found.as_ref().is_some_and(is_enabled) {
        return Ok(false);
    }
    toggle(management, &key, false).await?;
    Ok(true)
}

/// Enables these skills of a profile and disables its others. One that the profile does not have is copied from the
/// default profile.
pub(crate) async fn enable_only(
    management: &Management,
    profile: &str,
    names: &[String],
) -> Result<()> {
    let of = |profile: &str, name: &str| SkillKey::read(&format!("{profile}/{name}"));
    let present = list(management, Some(profile)).await?;
    let key_of = |name: &str| Ok(of(profile, name)?.text());
    let wanted = names.iter().map(|name| key_of(name));
    let wanted = wanted.collect::<Result<Vec<_>>>()?;
    for (name, key) in names.iter().zip(&wanted) {
        if present.iter().any(|skill| skill.skill_key == *key) {
            continue;
        }
        let Some(text) = content(management, &of(DEFAULT, name)?).await? else {
            let text = format!("skills: neither {profile} nor the default profile has {name:?}");
            return Err(invalid(&text));
        };
        let body = json!({"name": name, "content": text, "profile": profile});
        management.post("/api/skills", &body).await?;
    }
    for skill in &present {
        let enabled = wanted.contains(&skill.skill_key);
        if enabled != is_enabled(skill) {
            toggle(management, &SkillKey::read(&skill.skill_key)?, enabled).await?;
        }
    }
    Ok(())
}

async fn content(management: &Management, key: &SkillKey) -> Result<Option<String>> {
    let SkillKey { profile, name } = key;
    let path = format!("/api/skills/content?name={name}&profile={profile}");
    let answer = found(management.get(&path).await)?;
    Ok(answer.and_then(|answer| answer["content"].as_str().map(str::to_owned)))
}

async fn toggle(management: &Management, key: &SkillKey, enabled: bool) -> Result<()> {
    let body = json!({"name": key.name, "enabled": enabled, "profile": key.profile});
    management.put("/api/skills/toggle", &body).await.map(drop)
}

fn is_enabled(skill: &Skill) -> bool {
    skill.extra.get("enabled") == Some(&Value::Bool(true))
}

fn missing(key: &str) -> AdapterError {
    AdapterError::new("not_found", format!("there is no skill {key:?}"))
}

#[async_trait]
impl SkillManager for HermesAgent {
    async fn list(&self) -> Result<Vec<Skill>> {
        list(&self.management, None).await
    }

    async fn get(&self, skill_key: &str) -> Result<Option<Skill>> {
        let key = SkillKey::read(skill_key)?;
        let Some(skill) = find(&self.management, &key).await? else {
            return Ok(None);
        };
        let content = content(&self.management, &key).await?;
        Ok(Some(Skill { content, ..skill }))
    }

    async fn create(&self, skill: Skill) -> Result<Skill> {
        let wanted = WantedSkill::of(skill)?;
        let key = wanted.key.text();
        // Hermes refuses a second skill of the name.
        create(&self.management, wanted).await?;
        let created = SkillManager::get(self, &key).await?;
        created.ok_or_else(|| missing(&key))
    }

    async fn update(&self, skill: Skill) -> Result<Skill> {
        let wanted = WantedSkill::of(skill)?;
        let key = wanted.key.text();
        let found = find(&self.management, &wanted.key).await?;
        let found = found.ok_or_else(|| missing(&key))?;
        update(&self.management, wanted, &found).await?;
        let updated = SkillManager::get(self, &key).await?;
        updated.ok_or_else(|| missing(&key))
    }

    async fn remove(&self, skill_key: &str) -> Result<bool> {
        disable(&self.management, skill_key).await
    }

    async fn status(&self, skill_key: &str) -> Result<SkillStatus> {
        let found = find(&self.management, &SkillKey::read(skill_key)?).await?;
        let ready = is_enabled(&found.ok_or_else(|| missing(skill_key))?);
        Ok(SkillStatus {
            ready,
            message: (!ready).then(|| DISABLED.to_owned()),
            ..SkillStatus::default()
        })
    }
}
