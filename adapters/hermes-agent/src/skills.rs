//! Skills of profiles. A key is the name of a skill of the default profile, or `<profile>/<name>`. Hermes has no call
//! that deletes a skill: a removed one is disabled, and its status says so.

use forge_adapter_api::manage::{Skill, SkillManager, SkillStatus};
use forge_adapter_api::{Result, async_trait};
use serde_json::{Map, Value, json};

use crate::HermesAgent;
use crate::agents::{refuse_unknown, take};
use crate::management::{Management, absent, found, invalid};
use crate::profiles::DEFAULT;
use crate::skill_text::{self, SkillKey};

/// Message of a skill that is not enabled.
const DISABLED: &str = "the skill is disabled, which is all that Hermes can do to remove it; an update with `enabled: \
                        true` brings it back";

/// Desired state of a skill. What is absent stays as it is.
pub(crate) struct WantedSkill {
    key: SkillKey,
    description: Option<String>,
    content: Option<String>,
    enabled: Option<bool>,
}

impl WantedSkill {
    /// Refuses keys that Hermes would change, and members that it cannot keep.
    pub(crate) fn of(mut skill: Skill) -> Result<Self> {
        let key = SkillKey::read(&skill.skill_key)?;
        if skill.name.is_some_and(|name| name != key.name) {
            return Err(invalid(
                "name: a skill has no other name than its key; leave it out",
            ));
        }
        let enabled = take(&mut skill.extra, "enabled")?;
        refuse_unknown(&skill.extra, "description, content and enabled")?;
        Ok(Self {
            key,
            description: skill.description,
            content: skill.content,
            enabled,
        })
    }

    /// The request that writes the text over that of `found`; `None` if it stays as it is.
    fn text(&self, found: Option<&Skill>) -> Result<Option<Value>> {
        let before = found.and_then(|found| found.description.as_ref());
        let after = self.description.as_ref();
        let Some(content) = &self.content else {
            return match after.filter(|_| after != before) {
                None => Ok(None),
                Some(_) => Err(invalid("description: it is a part of content; send both")),
            };
        };
        let SkillKey { profile, name } = &self.key;
        let changed = after.filter(|_| after != before);
        let text = match skill_text::has_front_matter(content) {
            true => skill_text::checked(name, changed, content)?,
            false => skill_text::compose(name, after.or(before), content),
        };
        let text = skill_text::within_limit(text)?;
        Ok(Some(
            json!({"name": name, "content": text, "profile": profile}),
        ))
    }
}

/// Skills of a profile, without content.
pub(crate) async fn list(management: &Management, profile: &str) -> Result<Vec<Skill>> {
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
    let listed = match list(management, &key.profile).await {
        Err(error) if error.code == "not_found" => return Ok(None),
        listed => listed?,
    };
    let text = key.text();
    Ok(listed.into_iter().find(|skill| skill.skill_key == text))
}

/// Finds a skill; fails with `not_found` if it is not there.
async fn existing(management: &Management, key: &SkillKey) -> Result<Skill> {
    let found = find(management, key).await?;
    found.ok_or_else(|| absent("skill", &key.text()))
}

/// Creates a skill, which is enabled then. Hermes refuses a second one of the name.
async fn create(management: &Management, wanted: &WantedSkill) -> Result<()> {
    let text = wanted.text(None)?;
    let text = text.ok_or_else(|| invalid("content: the text of the skill is required"))?;
    management.post("/api/skills", &text).await?;
    match wanted.enabled {
        Some(false) => toggle(management, &wanted.key, false).await,
        Some(true) | None => Ok(()),
    }
}

async fn update(management: &Management, wanted: &WantedSkill, found: &Skill) -> Result<()> {
    if let Some(text) = wanted.text(Some(found))? {
        management.put("/api/skills/content", &text).await?;
    }
    let is_changed = |enabled: &bool| *enabled != is_enabled(found);
    match wanted.enabled.filter(is_changed) {
        Some(enabled) => toggle(management, &wanted.key, enabled).await,
        None => Ok(()),
    }
}

/// Creates a skill or updates it, and enables it unless the request says otherwise.
pub(crate) async fn push(management: &Management, mut wanted: WantedSkill) -> Result<()> {
    wanted.enabled = wanted.enabled.or(Some(true));
    match find(management, &wanted.key).await? {
        Some(found) => update(management, &wanted, &found).await,
        None => create(management, &wanted).await,
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
    let key = |profile: &str, name: &str| SkillKey::read(&format!("{profile}/{name}"));
    let present = list(management, profile).await?;
    let mut wanted = Vec::new();
    for name in names {
        let text = key(profile, name)?.text();
        if !present.iter().any(|skill| skill.skill_key == text) {
            let Some(content) = content(management, &key(DEFAULT, name)?).await? else {
                return Err(invalid(format!(
                    "skills: neither {profile} nor the default profile has {name:?}"
                )));
            };
            let body = json!({"name": name, "content": content, "profile": profile});
            management.post("/api/skills", &body).await?;
        }
        wanted.push(text);
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

impl HermesAgent {
    /// The skill as it is now, with its content; fails with `not_found` if it is not there.
    async fn read_skill(&self, key: &SkillKey) -> Result<Skill> {
        let key = key.text();
        let skill = SkillManager::get(self, &key).await?;
        skill.ok_or_else(|| absent("skill", &key))
    }
}

#[async_trait]
impl SkillManager for HermesAgent {
    async fn list(&self) -> Result<Vec<Skill>> {
        list(&self.management, DEFAULT).await
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
        create(&self.management, &wanted).await?;
        self.read_skill(&wanted.key).await
    }

    async fn update(&self, skill: Skill) -> Result<Skill> {
        let wanted = WantedSkill::of(skill)?;
        let found = existing(&self.management, &wanted.key).await?;
        update(&self.management, &wanted, &found).await?;
        self.read_skill(&wanted.key).await
    }

    async fn remove(&self, skill_key: &str) -> Result<bool> {
        disable(&self.management, skill_key).await
    }

    async fn status(&self, skill_key: &str) -> Result<SkillStatus> {
        let key = SkillKey::read(skill_key)?;
        let ready = is_enabled(&existing(&self.management, &key).await?);
        Ok(SkillStatus {
            ready,
            message: (!ready).then(|| DISABLED.to_owned()),
            ..SkillStatus::default()
        })
    }
}
