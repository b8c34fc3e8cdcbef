//! Health check: the server is reachable, is a LangGraph server and accepts the credentials.

use std::time::Duration;

use forge_adapter_api::Health;
use forge_adapter_transport::http::Failure;
use serde_json::json;
use tokio::time::timeout;

use crate::server::Server;

/// Timeout of a health check; adapters have to answer within a second.
const PATIENCE: Duration = Duration::from_millis(900);

pub(crate) async fn probe(server: &Server) -> Health {
    match timeout(PATIENCE, ask(server)).await {
        Ok(health) => health,
        Err(_) => Health::degraded(format!("the server did not answer within {PATIENCE:?}")),
    }
}

async fn ask(server: &Server) -> Health {
    if let Err(failure) = server.get("/ok").await {
        return of(&failure);
    }
    match server.get("/info").await {
        Ok(info) if info["version"].is_string() => {}
        Ok(_) => {
            return Health::degraded(
                "what listens there is no LangGraph server: its /info has no version; correct \
                 LANGGRAPH_URL",
            );
        }
        Err(failure) => return of(&failure),
    }
    // `/ok` and `/info` need no credentials; the search does.
    match server
        .post("/assistants/search", &json!({"limit": 1}))
        .await
    {
        Ok(_) => Health::healthy(),
        Err(failure) => of(&failure),
    }
}

fn of(failure: &Failure) -> Health {
    match failure {
        Failure::Connect(_) => Health::offline(
            "the server cannot be reached: start it (`langgraph dev`), or correct LANGGRAPH_URL",
        ),
        Failure::Refused { status, .. } if matches!(status.as_u16(), 401 | 403) => {
            Health::degraded("the server rejected the credentials: set LANGGRAPH_API_KEY")
        }
        Failure::Refused { status, .. } => Health::degraded(format!(
            "the server answered {status}; if it is not a LangGraph server, correct LANGGRAPH_URL"
        )),
        failure => Health::degraded(failure.to_string()),
    }
}
