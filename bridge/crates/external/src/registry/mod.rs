//! Registry of imported manifests: one file below the root folder, in canonical JSON, replaced atomically under a lock.
//! A registry that cannot be read is never overwritten.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use forge_base::edit_lock::{EditLock, EditLockError};
use forge_base::ownership::Objection;
use forge_base::{failpoint, json};

use crate::canonical;
use crate::diagnostic::Diagnostic;
use crate::files;
use crate::manifest::{self, Checked, Entry, Manifest};

/// Path below the root.
pub const REGISTRY: &str = ".forge/external-manifests.json";
/// Manifest in the root itself, which needs no import.
pub const ROOT_MANIFEST: &str = "forge.manifest.json";

const SCHEMA_VERSION: &str = "0.1.0";
const REGISTRY_BYTES: usize = 32 * 1024 * 1024;

/// Reason why a registry was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    #[error("cannot read {path}")]
    Read { path: String, source: io::Error },
    #[error("cannot write {path}")]
    Write { path: String, source: io::Error },
    #[error(transparent)]
    Locked(#[from] EditLockError),
    #[error("the registry has errors, so it is not overwritten")]
    Invalid(Vec<Diagnostic>),
}

/// Entries that an import adds, changes and removes, as `command:name` or `query:name`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Changes {
    pub added: Vec<String>,
    pub changed: Vec<String>,
    pub removed: Vec<String>,
}

/// Path of the registry of a root folder.
pub fn path(root: &Path) -> PathBuf {
    root.join(REGISTRY)
}

/// Imported manifests, sorted by service name; none if there is no registry.
pub fn load(root: &Path) -> Result<Vec<Manifest>, RegistryError> {
    load_owned(root).map(|(manifests, _)| manifests)
}

/// Imported manifests, with the reason why another user can change their file, if there is one.
pub(crate) fn load_owned(root: &Path) -> Result<(Vec<Manifest>, Option<Objection>), RegistryError> {
    let path = path(root);
    let read = files::read_owned(&path, REGISTRY_BYTES);
    let read = read.map_err(|source| RegistryError::Read {
        path: path.display().to_string(),
        source,
    })?;
    let Some((bytes, objection)) = read else {
        return Ok((Vec::new(), None));
    };
    let manifests = parse(&bytes).map_err(RegistryError::Invalid)?;
    Ok((manifests, objection))
}

/// Parses the content of a registry. One bad manifest makes all of it invalid.
pub fn parse(bytes: &[u8]) -> Result<Vec<Manifest>, Vec<Diagnostic>> {
    let refuse =
        |code: &str, message: String| {
            vec![Diagnostic::error(code, message).within(REGISTRY).hint(
                "Restore the file from a backup, or remove it and import the manifests again.",
            )]
        };
    let tree = json::parse(bytes)
        .map_err(|error| refuse("FORGE_EXTERNAL_REGISTRY_OBJECT", error.to_string()))?;
    let Value::Object(tree) = tree else {
        let message = "the registry must be a JSON object".to_owned();
        return Err(refuse("FORGE_EXTERNAL_REGISTRY_OBJECT", message));
    };
    if tree.get("schemaVersion").and_then(Value::as_str) != Some(SCHEMA_VERSION) {
        let message = format!("schemaVersion must be \"{SCHEMA_VERSION}\"");
        return Err(refuse("FORGE_EXTERNAL_REGISTRY_VERSION", message));
    }
    let Some(manifests) = tree.get("manifests").and_then(Value::as_array) else {
        let message = "manifests must be an array".to_owned();
        return Err(refuse("FORGE_EXTERNAL_REGISTRY_MANIFESTS", message));
    };
    let (mut read, mut errors) = (Vec::<Manifest>::new(), Vec::new());
    for (index, tree) in manifests.iter().enumerate() {
        let Checked {
            manifest,
            diagnostics,
        } = manifest::check(tree);
        let file = format!("{REGISTRY}#manifests/{index}");
        let own = diagnostics.into_iter().filter(Diagnostic::is_error);
        errors.extend(own.map(|found| found.within(&file)));
        let Some(manifest) = manifest else { continue };
        if read
            .iter()
            .any(|other| other.service.name == manifest.service.name)
        {
            let message = format!("the service {:?} is there twice", manifest.service.name);
            let found = Diagnostic::error("FORGE_EXTERNAL_SERVICE_DUPLICATE", message);
            errors.push(found.within(file).hint("Remove one of the two."));
        }
        read.push(manifest);
    }
    match errors.is_empty() {
        true => Ok(read),
        false => Err(errors),
    }
}

/// Adds a manifest to the registry, or replaces that of the same service.
pub fn import(root: &Path, manifest: &Manifest) -> Result<Changes, RegistryError> {
    update(root, |manifests| {
        let name = &manifest.service.name;
        let old = manifests
            .iter()
            .position(|other| other.service.name == *name);
        let old = old.map(|index| manifests.remove(index));
        manifests.push(manifest.clone());
        Changes::between(old.as_ref(), Some(manifest))
    })
}

/// Removes the manifest of a service; `None` if the registry has none.
pub fn remove(root: &Path, service: &str) -> Result<Option<Changes>, RegistryError> {
    update(root, |manifests| {
        let index = manifests
            .iter()
            .position(|other| other.service.name == service)?;
        let old = manifests.remove(index);
        Some(Changes::between(Some(&old), None))
    })
}

fn update<T>(
    root: &Path,
    change: impl FnOnce(&mut Vec<Manifest>) -> T,
) -> Result<T, RegistryError> {
    let path = path(root);
    let failed = |source| RegistryError::Write {
        path: path.display().to_string(),
        source,
    };
    let folder = path.parent().expect("the registry is in a folder");
    fs::create_dir_all(folder).map_err(failed)?;
    let _lock = EditLock::take(&path)?;
    failpoint::point("import.locked");
    let mut manifests = load(root)?;
    failpoint::point("import.read");
    let changed = change(&mut manifests);
    manifests.sort_by_cached_key(|manifest| sort_key(&manifest.service.name));
    let content = canonical::text(&json!({
        "manifests": manifests,
        "schemaVersion": SCHEMA_VERSION,
    }));
    if content.len() > REGISTRY_BYTES {
        let full = format!("it would be larger than {REGISTRY_BYTES} bytes");
        return Err(failed(io::Error::other(full)));
    }
    // A registry that cannot be read takes the services of all its manifests away.
    if let Err(found) = parse(content.as_bytes()) {
        let reasons: Vec<String> = found.into_iter().map(|found| found.message).collect();
        let unreadable = format!("it could not be read again: {}", reasons.join("; "));
        return Err(failed(io::Error::other(unreadable)));
    }
    files::replace(&path, content.as_bytes()).map_err(failed)?;
    Ok(changed)
}

/// Order of services: as people sort names, so case decides last.
pub(crate) fn sort_key(name: &str) -> (String, String) {
    (name.to_lowercase(), name.to_owned())
}

impl Changes {
    fn between(old: Option<&Manifest>, new: Option<&Manifest>) -> Self {
        let (old, new) = (labelled(old), labelled(new));
        let added = new.keys().filter(|label| !old.contains_key(*label));
        let changed = new
            .iter()
            .filter(|(label, entry)| old.get(*label).is_some_and(|former| former != *entry));
        let removed = old.keys().filter(|label| !new.contains_key(*label));
        Self {
            added: added.cloned().collect(),
            changed: changed.map(|(label, _)| label.clone()).collect(),
            removed: removed.cloned().collect(),
        }
    }
}

fn labelled(manifest: Option<&Manifest>) -> BTreeMap<String, &Entry> {
    let entries = manifest.into_iter().flat_map(|manifest| &manifest.entries);
    entries
        .map(|entry| (format!("{}:{}", entry.kind.as_str(), entry.name), entry))
        .collect()
}

#[cfg(test)]
mod tests;
