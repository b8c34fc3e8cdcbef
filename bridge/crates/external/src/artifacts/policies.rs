//! `policyRegistry.json`.

use serde_json::{Value, json};

use super::{SCHEMA_VERSION, source};
use crate::catalog::{BUILT_IN_POLICIES, Catalog};
use crate::manifest::EntryKind;

pub(super) fn registry(catalog: &Catalog) -> Value {
    json!({
        "schemaVersion": SCHEMA_VERSION,
        "commandAuth": bindings(catalog, EntryKind::Command),
        "queryAuth": bindings(catalog, EntryKind::Query),
    })
}

fn bindings(catalog: &Catalog, kind: EntryKind) -> Value {
    let entries = catalog.entries().filter(|(_, entry)| entry.kind == kind);
    entries
        .map(|(manifest, entry)| {
            let policy = entry.policy.as_deref().unwrap_or("public");
            let auth = match BUILT_IN_POLICIES.contains(&policy) {
                true => json!({"kind": policy}),
                false => json!({"kind": "policy", "policy": policy}),
            };
            json!({
                format!("{}Name", kind.as_str()): manifest.qualified(entry),
                "file": source(manifest),
                "symbolId": format!("{}:{}:{}", source(manifest), kind.as_str(), entry.name),
                "auth": auth,
            })
        })
        .collect()
}
