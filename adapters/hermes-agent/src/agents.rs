//! Profiles as agents. The instructions of an agent are its `SOUL.md`, the only file that can be edited.

use forge_adapter_api::manage::{Agent, AgentManager, WorkspaceFile};
use forge_adapter_api::{Result, async_trait};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::management::{Management, absent, found, invalid};
use crate::profiles;
use crate::{HermesAgent, skills};

/// The file with an agent's instructions.
const SOUL: &str = "SOUL.md";

/// Desired state of an agent. What is absent stays as it is; an empty text is cleared.
pub(crate) struct WantedAgent {
    pub(crate) id: String,
    model: Option<String>,
    system_prompt: Option<String>,
    description: Option<String>,
    provider: Option<String>,
    /// Its enabled skills; empty: as they are.
    pub(crate) skills: Vec<String>,
}

impl WantedAgent {
    /// Refuses ids that Hermes would change, and members that it cannot keep.
    pub(crate) fn of(mut agent: Agent) -> Result<Self> {
        profiles::check(&agent.agent_id)?;
        if agent.name.is_some_and(|name| name != agent.agent_id) {
            return Err(invalid(
                "name: a profile has no other name than its id; leave it out, or use description",
            ));
        }
        let wanted = Self {
            description: take(&mut agent.extra, "description")?,
            provider: take(&mut agent.extra, "provider")?,
            skills: take(&mut agent.extra, "skills")?.unwrap_or_default(),
            id: agent.agent_id,
            model: agent.model,
            system_prompt: agent.system_prompt,
        };
        refuse_unknown(&agent.extra, "description, provider and skills")?;
        if wanted.model.as_deref() == Some("") {
            let text =
                "model: Hermes clears no model of a profile; name another one, or leave it out";
            return Err(invalid(text));
        }
        if wanted.provider.is_some() && wanted.model.is_none() {
            return Err(invalid("provider: it needs the model that it is for"));
        }
        Ok(wanted)
    }
}

/// Takes a member that this type can hold.
pub(crate) fn take<T: DeserializeOwned>(
    extra: &mut Map<String, Value>,
    member: &str,
) -> Result<Option<T>> {
    let value = extra.remove(member).unwrap_or(Value::Null);
    serde_json::from_value(value).map_err(|error| invalid(format!("{member}: {error}")))
}

/// Refuses a request with members that Hermes has no place for.
pub(crate) fn refuse_unknown(extra: &Map<String, Value>, known: &str) -> Result<()> {
    match extra.keys().next() {
        None => Ok(()),
        Some(member) => Err(invalid(format!(
            "{member}: Hermes has no place for this member; it keeps {known}"
        ))),
    }
}

/// Profiles of an installation.
pub(crate) async fn list(management: &Management) -> Result<Vec<Agent>> {
    let answer = management.get("/api/profiles").await?;
    let profiles = answer["profiles"].as_array().into_iter().flatten();
    Ok(profiles.filter_map(agent).collect())
}

pub(crate) async fn find(management: &Management, id: &str) -> Result<Option<Agent>> {
    let mut profiles = list(management).await?.into_iter();
    Ok(profiles.find(|profile| profile.agent_id == id))
}

/// Creates a profile as a copy of the default one, whose provider it needs. What cannot be completed is removed.
pub(crate) async fn create(management: &Management, wanted: &WantedAgent) -> Result<()> {
    let id = &wanted.id;
    let body = json!({"name": id, "clone_from_default": true});
    management.post("/api/profiles", &body).await?;
    let applied = apply(management, wanted).await;
    if applied.is_err()
        && let Err(left) = management.delete(&format!("/api/profiles/{id}")).await
    {
        tracing::warn!("the incomplete profile {id} cannot be removed: {left}");
    }
    applied
}

/// Makes an existing profile what is wanted.
pub(crate) async fn apply(management: &Management, wanted: &WantedAgent) -> Result<()> {
    let path = format!("/api/profiles/{}", wanted.id);
    if let Some(text) = &wanted.system_prompt {
        replace_soul(management, &wanted.id, text).await?;
    }
    if let Some(text) = &wanted.description {
        let (path, body) = (
            format!("{path}/description"),
            json!({ "description": text }),
        );
        management.put(&path, &body).await?;
    }
    if let Some(model) = &wanted.model {
        let (provider, model) = model_of(management, wanted, model).await?;
        let body = json!({"provider": provider, "model": model});
        management.put(&format!("{path}/model"), &body).await?;
    }
    if !wanted.skills.is_empty() {
        skills::enable_only(management, &wanted.id, &wanted.skills).await?;
    }
    Ok(())
}

/// Provider and model of `<provider>:<model>`, or of a model of the profile's own provider.
async fn model_of(
    management: &Management,
    wanted: &WantedAgent,
    model: &str,
) -> Result<(String, String)> {
    if let Some(provider) = &wanted.provider {
        return Ok((provider.clone(), model.to_owned()));
    }
    let path = format!(
        "/api/model/options?include_unconfigured=true&profile={}",
        wanted.id
    );
    let options = management.get(&path).await?;
    let providers = options["providers"].as_array().into_iter().flatten();
    let mut slugs = providers.filter_map(|provider| provider["slug"].as_str());
    if let Some((provider, model)) = model.split_once(':')
        && slugs.any(|slug| slug == provider)
    {
        return Ok((provider.to_owned(), model.to_owned()));
    }
    match options["provider"].as_str().filter(|own| !own.is_empty()) {
        Some(own) => Ok((own.to_owned(), model.to_owned())),
        None => Err(invalid(
            "model: the profile has no provider yet; use `<provider>:<model>`",
        )),
    }
}

pub(crate) async fn remove(management: &Management, id: &str) -> Result<bool> {
    profiles::check(id)?;
    let path = format!("/api/profiles/{id}");
    Ok(found(management.delete(&path).await)?.is_some())
}

/// Replaces the text of an agent's file.
pub(crate) async fn write(management: &Management, id: &str, path: &str, text: &str) -> Result<()> {
    profiles::check(id)?;
    match path {
        SOUL => replace_soul(management, id, text).await,
        _ => Err(invalid(format!(
            "path: Hermes keeps one file of an agent, {SOUL}"
        ))),
    }
}

async fn replace_soul(management: &Management, id: &str, text: &str) -> Result<()> {
    let _alone = management.change(id)?;
    let body = json!({ "content": text });
    let path = format!("/api/profiles/{id}/soul");
    management.put(&path, &body).await.map(drop)
}

/// The text of an agent's instructions; `None` if it has none. Fails with `not_found` without such a profile.
async fn soul(management: &Management, id: &str) -> Result<Option<String>> {
    profiles::check(id)?;
    let soul = management.get(&format!("/api/profiles/{id}/soul")).await?;
    let text = soul["content"].as_str().filter(|_| soul["exists"] == true);
    Ok(text.map(str::to_owned))
}

fn agent(profile: &Value) -> Option<Agent> {
    let text = |name: &str| profile[name].as_str().filter(|text| !text.is_empty());
    let model = text("model").map(|model| match text("provider") {
        Some(provider) => format!("{provider}:{model}"),
        None => model.to_owned(),
    });
    let description = text("description").map(|text| ("description".to_owned(), text.into()));
    Some(Agent {
        agent_id: text("name")?.to_owned(),
        model,
        extra: description.into_iter().collect(),
        ..Agent::default()
    })
}

fn file(content: String) -> WorkspaceFile {
    WorkspaceFile {
        path: SOUL.to_owned(),
        size_bytes: u64::try_from(content.len()).ok(),
        content: Some(content),
    }
}

impl HermesAgent {
    /// The agent as it is now; fails with `not_found` if it is not there.
    async fn read_back(&self, id: &str) -> Result<Agent> {
        let agent = AgentManager::get(self, id).await?;
        agent.ok_or_else(|| absent("profile", id))
    }
}

#[async_trait]
impl AgentManager for HermesAgent {
    async fn list(&self) -> Result<Vec<Agent>> {
        list(&self.management).await
    }

    async fn get(&self, agent_id: &str) -> Result<Option<Agent>> {
        let Some(agent) = find(&self.management, agent_id).await? else {
            return Ok(None);
        };
        let system_prompt = soul(&self.management, agent_id).await?;
        Ok(Some(Agent {
            system_prompt,
            ..agent
        }))
    }

    async fn create(&self, agent: Agent) -> Result<Agent> {
        let wanted = WantedAgent::of(agent)?;
        create(&self.management, &wanted).await?;
        self.read_back(&wanted.id).await
    }

    async fn update(&self, agent: Agent) -> Result<Agent> {
        let wanted = WantedAgent::of(agent)?;
        apply(&self.management, &wanted).await?;
        self.read_back(&wanted.id).await
    }

    async fn remove(&self, agent_id: &str) -> Result<bool> {
        remove(&self.management, agent_id).await
    }

    async fn list_files(&self, agent_id: &str) -> Result<Vec<WorkspaceFile>> {
        let soul = soul(&self.management, agent_id).await?.map(file);
        let listed = soul.map(|file| WorkspaceFile {
            content: None,
            ..file
        });
        Ok(listed.into_iter().collect())
    }

    async fn read_file(&self, agent_id: &str, path: &str) -> Result<Option<WorkspaceFile>> {
        let soul = soul(&self.management, agent_id).await?.map(file);
        Ok(soul.filter(|file| file.path == path))
    }

    async fn write_file(&self, agent_id: &str, path: &str, content: &str) -> Result<()> {
        write(&self.management, agent_id, path, content).await
    }
}
