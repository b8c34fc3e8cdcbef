//! `externalServices.json` and `api.json`.

use serde_json::{Map, Value, json};

use super::{SCHEMA_VERSION, put, runtime};
use crate::canonical;
use crate::catalog::Catalog;
use crate::manifest::{Entry, EntryKind, Manifest};
use crate::registry::REGISTRY;

pub(super) fn external_services(catalog: &Catalog) -> Value {
    let diagnostics = json!(catalog.diagnostics);
    let services: Value = catalog
        .services()
        .map(|manifest| service(manifest))
        .collect();
    let input = json!({"diagnostics": diagnostics, "services": services});
    json!({
        "inputHash": canonical::digest(&input),
        "diagnostics": diagnostics,
        "services": services,
        "protocolVersion": "1.0",
        "registryPath": REGISTRY,
        "schemaVersion": SCHEMA_VERSION,
    })
}

fn service(manifest: &Manifest) -> Value {
    let service = &manifest.service;
    let mut members = runtime(manifest);
    put(&mut members, "name", Some(&service.name));
    put(&mut members, "baseUrl", service.base_url.as_ref());
    put(&mut members, "command", service.command.as_ref());
    put(&mut members, "commandArgs", service.command_args.as_ref());
    put(&mut members, "health", service.health.as_ref());
    let entries: Value = manifest
        .entries
        .iter()
        .map(|entry| described(manifest, entry))
        .collect();
    members.insert("entries".to_owned(), entries);
    members.into()
}

/// An entry as its manifest has it, with its service.
fn described(manifest: &Manifest, entry: &Entry) -> Value {
    let mut value = serde_json::to_value(entry).expect("a manifest serialises");
    if let Value::Object(members) = &mut value {
        members.extend(runtime(manifest));
        put(members, "service", Some(&manifest.service.name));
        put(members, "source", Some(&"external"));
    }
    value
}

pub(super) fn api(catalog: &Catalog) -> Value {
    let names = catalog.services().map(|manifest| {
        let name = &manifest.service.name;
        (name.clone(), Value::from(name.as_str()))
    });
    json!({"external": {
        "services": names.collect::<Map<_, _>>(),
        "commands": references(catalog, EntryKind::Command),
        "queries": references(catalog, EntryKind::Query),
    }})
}

fn references(catalog: &Catalog, kind: EntryKind) -> Map<String, Value> {
    let entries = catalog.entries().filter(|(_, entry)| entry.kind == kind);
    entries
        .map(|(manifest, entry)| {
            let mut members = runtime(manifest);
            put(&mut members, "service", Some(&manifest.service.name));
            put(&mut members, "name", Some(&entry.name));
            put(&mut members, "kind", Some(&kind));
            (manifest.qualified(entry), members.into())
        })
        .collect()
}
