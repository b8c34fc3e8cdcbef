//! External service in Rust, with axum: invoices in memory. Serves on the port that is given, and prints its address.
//!
//! The bridge checks the policy of an entry before it calls; this service trusts what the bridge sends and has to be
//! reachable by the bridge alone.

use std::sync::{Arc, Mutex, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};

#[derive(Clone)]
struct Billing {
    base_url: String,
    invoices: Arc<Mutex<Vec<Value>>>,
}

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or("8788".to_owned());
    let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let base_url = format!("http://{}", listener.local_addr()?);
    #[expect(clippy::print_stdout, reason = "the caller reads the address")]
    {
        println!("{base_url}");
    }
    let billing = Billing {
        base_url,
        invoices: Arc::default(),
    };
    let routes = Router::new()
        .route(
            "/health",
            get(async || Json(json!({"ok": true, "service": "billing"}))),
        )
        .route("/manifest", get(manifest))
        .route("/commands/createInvoice", post(create_invoice))
        .route("/queries/listInvoices", post(list_invoices))
        .with_state(billing);
    axum::serve(listener, routes).await
}

async fn create_invoice(
    State(billing): State<Billing>,
    Json(envelope): Json<Value>,
) -> (StatusCode, Json<Value>) {
    let Some(title) = envelope["args"]["title"].as_str() else {
        let error = json!({"code": "BILLING_INVALID", "message": "title must be a text"});
        let body = json!({"ok": false, "diagnostics": [], "error": error});
        return (StatusCode::BAD_REQUEST, Json(body));
    };
    let mut invoices = billing
        .invoices
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let invoice = json!({
        "id": format!("inv_{}", invoices.len() + 1),
        "title": title,
        "tenant": envelope["auth"]["tenantId"],
    });
    invoices.push(invoice.clone());
    (StatusCode::OK, Json(json!({"ok": true, "result": invoice})))
}

async fn list_invoices(State(billing): State<Billing>, Json(envelope): Json<Value>) -> Json<Value> {
    let tenant = &envelope["auth"]["tenantId"];
    let invoices = billing
        .invoices
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let own: Vec<_> = invoices
        .iter()
        .filter(|invoice| invoice["tenant"] == *tenant)
        .collect();
    Json(json!({"ok": true, "result": own}))
}

async fn manifest(State(billing): State<Billing>) -> Json<Value> {
    Json(json!({
        "forgeProtocol": "1.0",
        "language": "rust",
        "framework": "axum",
        "service": {"name": "billing", "transport": "http", "baseUrl": billing.base_url, "health": "/health"},
        "entries": [
            {
                "name": "createInvoice", "kind": "command", "description": "Create an invoice",
                "path": "/commands/createInvoice", "policy": "billing.write",
                "transaction": "external-managed", "risk": "write", "effects": ["invoice.created"],
                "inputSchema": {
                    "type": "object", "required": ["title"], "properties": {"title": {"type": "string"}},
                },
            },
            {
                "name": "listInvoices", "kind": "query", "description": "List the invoices of the tenant",
                "path": "/queries/listInvoices", "policy": "billing.read",
                "transaction": "read-only", "risk": "read", "tenantScoped": true,
            },
        ],
    }))
}
