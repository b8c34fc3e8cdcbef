//! Skills of the gateway: their state, and archives of new ones.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use forge_adapter_api::manage::{InstallReport, Skill, SkillManager, SkillStatus, SkillSyncSpec};
use forge_adapter_api::{AdapterError, Result, async_trait};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::OpenClaw;
use crate::agents::{invalid, refuse_unknown};
use crate::archive::archive;
use crate::gateway::Gateway;
use crate::health::{default_agent, list};
use crate::session::hex;

/// Limit of a skill's text.
const LARGEST: usize = 8 << 20;
/// Bytes of an archive in one request.
const CHUNK: usize = 1 << 20;
/// Installations can download programs.
const INSTALL: Duration = Duration::from_secs(300);
const LOOKS: u32 = 50;
const LOOK: Duration = Duration::from_millis(100);
const MEMBERS: [&str; 4] = ["enabled", "eligible", "source", "bundled"];

pub(crate) async fn all(gateway: &Gateway) -> Result<Vec<Value>> {
    let params = json!({ "agentId": default_agent(gateway).await? });
    let status = gateway.call("skills.status", &params).await?;
    Ok(list(&status["skills"]).to_vec())
}

async fn found(gateway: &Gateway, key: &str) -> Result<Option<Value>> {
    let all = all(gateway).await?;
    Ok(all.into_iter().find(|skill| skill["skillKey"] == key))
}

pub(crate) fn skill(found: &Value) -> Skill {
    let text = |name: &str| found[name].as_str().map(str::to_owned);
    let enabled = ("enabled".to_owned(), json!(found["disabled"] != true));
    let others = MEMBERS[1..]
        .iter()
        .map(|name| ((*name).to_owned(), found[*name].clone()));
    Skill {
        skill_key: text("skillKey").unwrap_or_default(),
        name: text("name"),
        description: text("description"),
        content: None,
        extra: others.chain([enabled]).collect(),
    }
}

/// The skill, or the error `not_found`.
async fn existing(gateway: &Gateway, key: &str) -> Result<Value> {
    let absent = || AdapterError::new("not_found", format!("there is no skill {key:?}"));
    found(gateway, key).await?.ok_or_else(absent)
}

fn differs(wanted: &Option<String>, known: &Option<String>) -> bool {
    wanted.is_some() && wanted != known
}

/// Switches a skill and waits until the gateway has applied it.
async fn enable(gateway: &Gateway, key: &str, enabled: bool) -> Result<()> {
    let params = json!({"skillKey": key, "enabled": enabled});
    gateway.call("skills.update", &params).await?;
    for _ in 0..LOOKS {
        let skill = found(gateway, key).await?;
        if skill.is_none_or(|skill| (skill["disabled"] != true) == enabled) {
            return Ok(());
        }
        sleep(LOOK).await;
    }
    Err(AdapterError::new(
        "upstream_error",
        "the gateway did not switch the skill in time",
    )
    .retryable())
}

/// Disables a skill, since the gateway removes none; false if there is none.
pub(crate) async fn disable(gateway: &Gateway, key: &str) -> Result<bool> {
    if found(gateway, key).await?.is_none() {
        return Ok(false);
    }
    enable(gateway, key, false).await?;
    tracing::info!(
        skill.key = key,
        "the skill was disabled: the gateway removes none"
    );
    Ok(true)
}

/// Installs a skill as an archive, in place of an earlier one, and enables it.
pub(crate) async fn push(gateway: &Gateway, spec: &SkillSyncSpec) -> Result<()> {
    let key = &spec.skill_key;
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !(1..=64).contains(&key.len()) || !key.chars().all(plain) || key.starts_with('-') {
        return Err(invalid(format!(
            "skillKey: {key:?}: 1 to 64 lower case letters a-z, digits and `-` were expected, no `-` first"
        )));
    }
    refuse_unknown(&spec.extra, &[])?;
    let text = document(spec);
    if text.len() > LARGEST {
        return Err(invalid(format!(
            "content: at most {LARGEST} bytes were expected"
        )));
    }
    let archive = archive("SKILL.md", text.as_bytes());
    let hash = hex(&archive);
    let params = json!({
        "kind": "skill-archive", "slug": key, "sizeBytes": archive.len(), "sha256": hash, "force": true,
    });
    let upload = gateway.call("skills.upload.begin", &params).await?["uploadId"].clone();
    for (n, chunk) in archive.chunks(CHUNK).enumerate() {
        let params =
            json!({"uploadId": upload, "offset": n * CHUNK, "dataBase64": STANDARD.encode(chunk)});
        gateway.call("skills.upload.chunk", &params).await?;
    }
    let params = json!({"uploadId": upload, "sha256": hash});
    gateway.call("skills.upload.commit", &params).await?;
    let params = json!({"source": "upload", "uploadId": upload, "slug": key, "sha256": hash, "force": true, "agentId": default_agent(gateway).await?});
    gateway.call("skills.install", &params).await?;
    if found(gateway, key)
        .await?
        .is_some_and(|skill| skill["disabled"] == true)
    {
        enable(gateway, key, true).await?;
    }
    Ok(())
}

/// Text of `SKILL.md`, with a header unless the content has one.
fn document(spec: &SkillSyncSpec) -> String {
    let content = spec.content.as_deref().unwrap_or_default();
    if content.starts_with("---\n") {
        return content.to_owned();
    }
    let quoted = |text: &str| Value::from(text).to_string();
    let name = quoted(spec.name.as_deref().unwrap_or(&spec.skill_key));
    let description = quoted(spec.description.as_deref().unwrap_or(&spec.skill_key));
    format!("---\nname: {name}\ndescription: {description}\n---\n{content}")
}

/// Missing parts of a skill, each with its kind.
fn missing(skill: &Value) -> Vec<String> {
    let kinds = skill["missing"].as_object().into_iter().flatten();
    let all = kinds.flat_map(|(kind, names)| {
        let names = list(names).iter();
        names.map(move |name| format!("{kind}: {}", name.as_str().unwrap_or_default()))
    });
    all.collect()
}

#[async_trait]
impl SkillManager for OpenClaw {
    async fn list(&self) -> Result<Vec<Skill>> {
        Ok(all(self.gateway()?).await?.iter().map(skill).collect())
    }

    async fn get(&self, skill_key: &str) -> Result<Option<Skill>> {
        let found = found(self.gateway()?, skill_key).await?;
        Ok(found.as_ref().map(skill))
    }

    async fn update(&self, wanted: Skill) -> Result<Skill> {
        let gateway = self.gateway()?;
        let key = &wanted.skill_key;
        let mut known = skill(&existing(gateway, key).await?);
        refuse_unknown(&wanted.extra, &MEMBERS)?;
        if wanted.content.is_some() {
            let spec = SkillSyncSpec {
                skill_key: key.clone(),
                name: wanted.name,
                description: wanted.description,
                content: wanted.content,
                ..SkillSyncSpec::default()
            };
            push(gateway, &spec).await?;
            known = skill(&existing(gateway, key).await?);
        } else if differs(&wanted.name, &known.name)
            || differs(&wanted.description, &known.description)
        {
            let text = "name and description are in the skill's text: send content, too";
            return Err(invalid(text.to_owned()));
        }
        if let Some(enabled) = wanted.extra.get("enabled").and_then(Value::as_bool)
            && known.extra["enabled"] != enabled
        {
            enable(gateway, key, enabled).await?;
        }
        Ok(skill(&existing(gateway, key).await?))
    }

    async fn remove(&self, skill_key: &str) -> Result<bool> {
        disable(self.gateway()?, skill_key).await
    }

    async fn status(&self, skill_key: &str) -> Result<SkillStatus> {
        let skill = existing(self.gateway()?, skill_key).await?;
        let missing = missing(&skill);
        let reason = match (skill["disabled"] == true, missing.is_empty()) {
            (true, _) => Some("the skill is disabled: enable it".to_owned()),
            (false, false) => Some(format!("missing: {}", missing.join(", "))),
            (false, true) => {
                (skill["eligible"] != true).then(|| "the gateway cannot use it here".to_owned())
            }
        };
        Ok(SkillStatus {
            ready: reason.is_none(),
            missing,
            message: reason,
        })
    }

    async fn install_dependencies(&self, skill_key: &str) -> Result<InstallReport> {
        let gateway = self.gateway()?;
        let mut report = InstallReport::default();
        let skill = existing(gateway, skill_key).await?;
        for option in list(&skill["install"]) {
            let params = json!({"name": skill["name"], "installId": option["id"], "timeoutMs": INSTALL.as_millis()});
            let done = gateway
                .call_within("skills.install", &params, INSTALL)
                .await;
            let label = option["label"].as_str().unwrap_or_default().to_owned();
            match done {
                Ok(_) => report.installed.push(label),
                Err(failure) => tracing::warn!(skill.key = skill_key, %failure, "{label} failed"),
            }
        }
        let left = found(gateway, skill_key).await?;
        report.failed = left.as_ref().map(missing).unwrap_or_default();
        Ok(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_without_a_header_gets_one() {
        let spec = SkillSyncSpec {
            skill_key: "plum".to_owned(),
            content: Some("Do it.".to_owned()),
            ..SkillSyncSpec::default()
        };
        assert_eq!(
            document(&spec),
            "---\nname: \"plum\"\ndescription: \"plum\"\n---\nDo it."
        );
    }
}
