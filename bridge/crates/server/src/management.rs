//! Management routes: agents, skills, models and system of runtimes that have them. Each route names the ops that can
//! answer it; the names of `runtime.…` come from the public description of Bridge, the others are the
//! bridge's own. Reading needs the scope `admin` too, because prompts and workspace files are included.

use axum::Router;
use axum::extract::Path;
use axum::response::Response;
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::Shared;
use super::auth::Admin;
use super::body::Body;
use super::error::Failure;
use super::management_target::ManagementTarget;

type Answer = Result<Response, Failure>;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/v2/agents", get(agents).post(create_agent))
        .route(
            "/api/v2/agents/{id}",
            get(agent).put(update_agent).delete(remove_agent),
        )
        .route("/api/v2/agents/{id}/files", get(files))
        .route(
            "/api/v2/agents/{id}/files/{*path}",
            get(file).put(write_file).delete(remove_file),
        )
        .route(
            "/api/v2/agents/{id}/bindings",
            get(bindings).put(set_bindings),
        )
        .route("/api/v2/skills", get(skills).post(create_skill))
        .route(
            "/api/v2/skills/{key}",
            get(skill).put(update_skill).delete(remove_skill),
        )
        .route("/api/v2/skills/{key}/status", get(skill_status))
        .route(
            "/api/v2/skills/{key}/dependencies",
            post(install_dependencies),
        )
        .route("/api/v2/models", get(models))
        .route("/api/v2/system/models", get(system_models))
        .route("/api/v2/system/security", get(security_posture))
        .route("/api/v2/system/reload", post(reload_config))
}

async fn agents(_: Admin, adapter: ManagementTarget) -> Answer {
    let candidates = vec![
        ("agents.list", json!({})),
        ("runtime.discoverAgents", json!({})),
    ];
    adapter.read(candidates).await
}

async fn agent(_: Admin, adapter: ManagementTarget, Path(id): Path<String>) -> Answer {
    adapter
        .read(vec![("agents.get", json!({ "agentId": id }))])
        .await
}

async fn create_agent(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Body { tree: agent, .. }: Body,
) -> Answer {
    let candidates = vec![
        ("agents.create", json!({ "agent": agent })),
        ("runtime.pushAgent", json!({ "spec": agent })),
    ];
    adapter
        .change(caller, name(&agent, "agentId"), candidates)
        .await
}

async fn update_agent(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(id): Path<String>,
    Body { tree: agent, .. }: Body,
) -> Answer {
    let agent = named(agent, "agentId", &id)?;
    let candidates = vec![
        ("agents.update", json!({ "agent": agent })),
        ("runtime.pushAgent", json!({ "spec": agent })),
    ];
    adapter.change(caller, &id, candidates).await
}

async fn remove_agent(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(id): Path<String>,
) -> Answer {
    let arguments = json!({ "agentId": id });
    let candidates = vec![
        ("agents.remove", arguments.clone()),
        ("runtime.removeAgent", arguments),
    ];
    adapter.change(caller, &id, candidates).await
}

async fn files(_: Admin, adapter: ManagementTarget, Path(id): Path<String>) -> Answer {
    adapter
        .read(vec![("agents.listFiles", json!({ "agentId": id }))])
        .await
}

async fn file(
    _: Admin,
    adapter: ManagementTarget,
    Path((id, path)): Path<(String, String)>,
) -> Answer {
    let arguments = json!({ "agentId": id, "path": relative(&path)? });
    adapter.read(vec![("agents.readFile", arguments)]).await
}

async fn write_file(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path((id, path)): Path<(String, String)>,
    Body { tree: body, .. }: Body,
) -> Answer {
    let path = relative(&path)?;
    let Some(content) = body["content"].as_str() else {
        return Err(Failure::field("content", "must be a string"));
    };
    let candidates = vec![
        (
            "agents.writeFile",
            json!({ "agentId": id, "path": path, "content": content }),
        ),
        (
            "runtime.pushFile",
            json!({ "agentId": id, "filename": path, "content": content }),
        ),
    ];
    adapter.change(caller, &id, candidates).await
}

async fn remove_file(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path((id, path)): Path<(String, String)>,
) -> Answer {
    let arguments = json!({ "agentId": id, "path": relative(&path)? });
    adapter
        .change(caller, &id, vec![("agents.removeFile", arguments)])
        .await
}

async fn bindings(_: Admin, adapter: ManagementTarget, Path(id): Path<String>) -> Answer {
    adapter
        .read(vec![("agents.listBindings", json!({ "agentId": id }))])
        .await
}

async fn set_bindings(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(id): Path<String>,
    Body { tree: body, .. }: Body,
) -> Answer {
    let Some(bindings) = body["bindings"].as_array() else {
        return Err(Failure::field("bindings", "must be an array"));
    };
    let arguments = json!({ "agentId": id, "bindings": bindings });
    adapter
        .change(caller, &id, vec![("agents.setBindings", arguments)])
        .await
}

async fn skills(_: Admin, adapter: ManagementTarget) -> Answer {
    let candidates = vec![
        ("skills.list", json!({})),
        ("runtime.discoverSkills", json!({})),
    ];
    adapter.read(candidates).await
}

async fn skill(_: Admin, adapter: ManagementTarget, Path(key): Path<String>) -> Answer {
    adapter
        .read(vec![("skills.get", json!({ "skillKey": key }))])
        .await
}

async fn create_skill(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Body { tree: skill, .. }: Body,
) -> Answer {
    let candidates = vec![
        ("skills.create", json!({ "skill": skill })),
        ("runtime.pushSkill", json!({ "spec": skill })),
    ];
    adapter
        .change(caller, name(&skill, "skillKey"), candidates)
        .await
}

async fn update_skill(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(key): Path<String>,
    Body { tree: skill, .. }: Body,
) -> Answer {
    let skill = named(skill, "skillKey", &key)?;
    let candidates = vec![
        ("skills.update", json!({ "skill": skill })),
        ("runtime.pushSkill", json!({ "spec": skill })),
    ];
    adapter.change(caller, &key, candidates).await
}

async fn remove_skill(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(key): Path<String>,
) -> Answer {
    let arguments = json!({ "skillKey": key });
    let candidates = vec![
        ("skills.remove", arguments.clone()),
        ("runtime.removeSkill", arguments),
    ];
    adapter.change(caller, &key, candidates).await
}

async fn skill_status(_: Admin, adapter: ManagementTarget, Path(key): Path<String>) -> Answer {
    adapter
        .read(vec![("skills.status", json!({ "skillKey": key }))])
        .await
}

async fn install_dependencies(
    Admin(caller): Admin,
    adapter: ManagementTarget,
    Path(key): Path<String>,
) -> Answer {
    let arguments = json!({ "skillKey": key });
    adapter
        .change(
            caller,
            &key,
            vec![("skills.installDependencies", arguments)],
        )
        .await
}

async fn models(_: Admin, adapter: ManagementTarget) -> Answer {
    let candidates = vec![
        ("system.listModels", json!({})),
        ("runtime.discoverModels", json!({})),
    ];
    adapter.read(candidates).await
}

async fn system_models(_: Admin, adapter: ManagementTarget) -> Answer {
    adapter.read(vec![("system.listModels", json!({}))]).await
}

async fn security_posture(_: Admin, adapter: ManagementTarget) -> Answer {
    adapter
        .read(vec![("system.securityPosture", json!({}))])
        .await
}

async fn reload_config(Admin(caller): Admin, adapter: ManagementTarget) -> Answer {
    adapter
        .change(caller, "", vec![("system.reloadConfig", json!({}))])
        .await
}

/// The name that a body gives its entry; empty without one, which the adapter refuses.
fn name<'a>(body: &'a Value, field: &str) -> &'a str {
    body[field].as_str().unwrap_or_default()
}

/// Sets the name from the path in the body; fails if the body has a different one.
fn named(mut body: Value, field: &str, name: &str) -> Result<Value, Failure> {
    let Some(object) = body.as_object_mut() else {
        return Err(Failure::field("", "the body must be an object"));
    };
    match object.get(field) {
        Some(given) if given != name => Err(Failure::field(
            field,
            format!("must be {name:?}, as in the path"),
        )),
        Some(_) => Ok(body),
        None => {
            object.insert(field.to_owned(), name.into());
            Ok(body)
        }
    }
}

/// Checks that a path stays below an agent's workspace; returns it unchanged.
fn relative(path: &str) -> Result<&str, Failure> {
    let stays = path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if stays && !path.contains(['\0', '\\']) {
        Ok(path)
    } else {
        Err(Failure::field("path", "must be relative, without \"..\""))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::super::auth::Config;
    use super::super::testing::Edge;
    use super::super::token::{Scope, TokenHash};
    use super::*;

    /// SHA-256 of the token `reader`.
    const HASH: &str = "3d0941964aa3ebdcb00ccef58b1bb399f9f898465e9886d5aec7f31090a0fb30";

    #[tokio::test]
    async fn looking_needs_an_administrator_too() {
        for (scopes, status) in [
            (vec![Scope::Read, Scope::Dispatch], 403),
            (vec![Scope::Admin], 404),
        ] {
            let auth = Config {
                token: vec![TokenHash {
                    hash: HASH.to_owned(),
                    name: None,
                    scopes,
                    expires: None,
                    requests_per_minute: None,
                    space: None,
                    identity: None,
                }],
                ..Config::default()
            };
            let edge = Edge::with(super::super::Config::default(), &auth).await;
            for (method, path) in [
                ("GET", "/api/v2/agents"),
                ("GET", "/api/v2/agents/a/files/x"),
                ("GET", "/api/v2/models"),
                ("GET", "/api/v2/system/security"),
                ("DELETE", "/api/v2/skills/s"),
                ("POST", "/api/v2/system/reload"),
            ] {
                let request = Request::builder().method(method).uri(path);
                let request = request.header("authorization", "Bearer reader");
                let answer = edge.send(request.body("".into()).unwrap()).await;
                assert_eq!(answer.status, status, "{method} {path}");
            }
        }
    }

    #[test]
    fn a_path_stays_below_the_workspace() {
        for (path, allowed) in [
            ("a.md", true),
            ("a/b..c/d", true),
            ("..", false),
            ("a/../b", false),
            ("./a", false),
            ("/etc/passwd", false),
            ("a//b", false),
            ("a\\..\\b", false),
        ] {
            assert_eq!(relative(path).is_ok(), allowed, "{path}");
        }
    }

    #[test]
    fn the_path_names_what_is_changed() {
        let agent = named(json!({ "name": "A" }), "agentId", "a").unwrap();
        assert_eq!(agent, json!({ "name": "A", "agentId": "a" }));
        assert!(named(json!({ "agentId": "b" }), "agentId", "a").is_err());
        assert!(named(json!([]), "agentId", "a").is_err());
    }
}
