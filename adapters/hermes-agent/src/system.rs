//! Models, security and settings of the installation.

use forge_adapter_api::manage::{
    Model, ReloadReport, SecurityFinding, SecurityPosture, SystemManager,
};
use forge_adapter_api::{Result, async_trait};
use serde_json::{Map, Value};

use crate::HermesAgent;
use crate::management::{CONFIG, Management};

/// Models of the providers that the operator has configured, by the ids that a dispatch's `model` selects.
pub(crate) async fn models(management: &Management) -> Result<Vec<Model>> {
    let path = "/api/model/options?explicit_only=true";
    let options = management.get(path).await?;
    let providers = options["providers"].as_array().into_iter().flatten();
    Ok(providers.flat_map(of_provider).collect())
}

fn of_provider(provider: &Value) -> Vec<Model> {
    let slug = provider["slug"].as_str().unwrap_or_default();
    let names = provider["models"].as_array().into_iter().flatten();
    let names = names.filter_map(Value::as_str);
    names
        .map(|name| Model {
            model_id: format!("{slug}:{name}"),
            name: Some(name.to_owned()),
            provider: Some(slug.to_owned()),
            extra: Map::new(),
        })
        .collect()
}

/// Judges the default profile's settings: where its commands run, and who approves dangerous ones.
fn posture(config: &Value) -> SecurityPosture {
    let backend = config["terminal"]["backend"].as_str().unwrap_or("local");
    let place = match backend {
        "local" => (
            "warning",
            "commands run on the bridge's machine without a sandbox; set terminal.backend to docker or another backend"
                .to_owned(),
        ),
        backend => ("info", format!("commands run in the backend {backend}")),
    };
    // YAML reads a bare `off` as false.
    let mode = match &config["approvals"]["mode"] {
        Value::Bool(false) => "off",
        mode => mode.as_str().unwrap_or("manual"),
    };
    let approval = match mode {
        "off" => (
            "critical",
            "dangerous commands run without an approval; set approvals.mode to manual or smart".to_owned(),
        ),
        "smart" => (
            "info",
            "approvals.mode is smart: a model approves commands that it finds harmless, and the adapter's `permission` \
             decides on the others"
                .to_owned(),
        ),
        mode => (
            "info",
            format!("approvals.mode is {mode}: the adapter's `permission` decides on dangerous commands"),
        ),
    };
    let finding = |(severity, message): (&str, String)| SecurityFinding {
        severity: severity.to_owned(),
        message,
    };
    SecurityPosture {
        sandboxed: Some(backend != "local"),
        findings: [place, approval].map(finding).into(),
    }
}

#[async_trait]
impl SystemManager for HermesAgent {
    /// Each run reads the settings when its process starts, so only warm processes hold old ones: they end.
    async fn reload_config(&self) -> Result<ReloadReport> {
        let changed = self.management.reload_config().await?;
        let ended = self.client.renew_warm().await;
        let mut notes = vec!["every run reads the settings when it starts".to_owned()];
        if ended > 0 {
            notes.push(format!(
                "warm processes that had read them before: {ended}, ended"
            ));
        }
        Ok(ReloadReport { changed, notes })
    }

    async fn list_models(&self) -> Result<Vec<Model>> {
        models(&self.management).await
    }

    async fn security_posture(&self) -> Result<SecurityPosture> {
        let config = self.management.get(CONFIG).await?;
        Ok(posture(&config))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_posture_follows_backend_and_approvals() {
        for (backend, mode, sandboxed, severities) in [
            ("local", json!("smart"), false, ["warning", "info"]),
            ("docker", json!("manual"), true, ["info", "info"]),
            ("docker", json!("off"), true, ["info", "critical"]),
            ("ssh", json!(false), true, ["info", "critical"]),
        ] {
            let posture = posture(&json!({
                "terminal": {"backend": backend}, "approvals": {"mode": mode},
            }));
            assert_eq!(posture.sandboxed, Some(sandboxed), "{backend}");
            let found: Vec<&str> = posture.findings.iter().map(|f| &f.severity[..]).collect();
            assert_eq!(found, severities, "{backend} {mode}");
        }
    }
}
