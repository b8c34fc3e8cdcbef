//! Manifests and registries of external services: what is accepted stays the same when it is written and read again,
//! names no other origin, and every refusal explains itself.

use forge_external::canonical;
use forge_external::manifest::{self, TransportKind};
use forge_external::registry;
use serde_json::json;
use url::Url;

/// Input: a manifest, or a registry.
pub(crate) fn run(data: &[u8]) {
    if let Err(found) = registry::parse(data) {
        assert!(found.iter().any(|found| found.is_error()));
    }
    let checked = manifest::read(data);
    for found in &checked.diagnostics {
        assert!(!found.code.is_empty() && !found.message.is_empty());
        assert!(
            found.fix_hint.as_ref().is_some_and(|hint| !hint.is_empty()),
            "{found:?}"
        );
    }
    let Some(manifest) = checked.manifest else {
        assert!(checked.diagnostics.iter().any(|found| found.is_error()));
        return;
    };
    let service = &manifest.service;
    if service.transport == TransportKind::Http {
        let base = Url::parse(service.base_url.as_deref().unwrap()).unwrap();
        for entry in &manifest.entries {
            assert_eq!(entry.url(&base).unwrap().origin(), base.origin());
        }
    }
    let registry = json!({"manifests": [manifest], "schemaVersion": "0.1.0"});
    let again = registry::parse(canonical::text(&registry).as_bytes()).unwrap();
    assert_eq!(again, [manifest]);
}
