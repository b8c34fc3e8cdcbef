//! All services of a root folder: the registry's and that of the root manifest, in one order and without doubles.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::diagnostic::Diagnostic;
use crate::files;
use crate::manifest::{self, Entry, EntryKind, MANIFEST_BYTES, Manifest};
use crate::registry::{self, REGISTRY, ROOT_MANIFEST, RegistryError};
use forge_base::ownership::{Objection, Trust};

/// Policy names that need no definition.
pub const BUILT_IN_POLICIES: [&str; 3] = ["public", "user", "system"];

/// Services by name, and the warnings of reading them.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    services: BTreeMap<(String, String), Arc<Manifest>>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Catalog {
    /// Reads the services of a root folder; all errors if there is one. `trust` is the policy for files that other users
    /// can change. `policies` are the names that the settings define.
    pub fn load<'a>(
        root: &Path,
        trust: Trust,
        policies: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Vec<Diagnostic>> {
        let mut catalog = Self::default();
        let mut errors = Vec::new();
        let mut objections = Vec::new();
        match registry::load_owned(root) {
            Ok((manifests, objection)) => {
                objections.extend(objection.map(|objection| (objection, REGISTRY)));
                manifests
                    .into_iter()
                    .for_each(|manifest| catalog.add(manifest));
            }
            Err(RegistryError::Invalid(found)) => errors.extend(found),
            Err(error) => errors.push(unreadable(&error, REGISTRY)),
        }
        let file = root.join(ROOT_MANIFEST);
        match files::read_owned(&file, MANIFEST_BYTES) {
            Ok(None) => {}
            Ok(Some((bytes, objection))) => {
                objections.extend(objection.map(|objection| (objection, ROOT_MANIFEST)));
                let checked = manifest::read(&bytes);
                let found = checked
                    .diagnostics
                    .into_iter()
                    .map(|found| found.within(ROOT_MANIFEST));
                let (wrong, warnings): (Vec<_>, Vec<_>) = found.partition(Diagnostic::is_error);
                errors.extend(wrong);
                catalog.diagnostics.extend(warnings);
                if let Some(manifest) = checked.manifest {
                    catalog.add_root(manifest);
                }
            }
            Err(error) => errors.push(unreadable(&error, ROOT_MANIFEST)),
        }
        for (objection, file) in objections {
            let found = untrusted(&objection, trust).within(file);
            match found.is_error() {
                true => errors.push(found),
                false => catalog.diagnostics.push(found),
            }
        }
        if !errors.is_empty() {
            return Err(errors);
        }
        let unknown = catalog.unknown_policies(policies);
        catalog.diagnostics.extend(unknown);
        Ok(catalog)
    }

    fn add(&mut self, manifest: Manifest) {
        let key = registry::sort_key(&manifest.service.name);
        self.services.insert(key, Arc::new(manifest));
    }

    fn add_root(&mut self, manifest: Manifest) {
        let name = &manifest.service.name;
        match self.service(name) {
            None => self.add(manifest),
            Some(_) => self.diagnostics.push(
                Diagnostic::warning(
                    "FORGE_EXTERNAL_SERVICE_DUPLICATE",
                    format!("the service {name:?} is also in the registry, which wins"),
                )
                .within(ROOT_MANIFEST)
                .hint("Import the file again after each change, or remove the service from the registry.")
                .suggest(format!("forge manifest import {ROOT_MANIFEST}")),
            ),
        }
    }

    fn unknown_policies<'a>(&self, policies: impl IntoIterator<Item = &'a str>) -> Vec<Diagnostic> {
        let defined: BTreeSet<&str> = policies.into_iter().collect();
        let known = |name: &str| BUILT_IN_POLICIES.contains(&name) || defined.contains(name);
        let unknown = self.entries().filter_map(|(manifest, entry)| {
            let policy = entry.policy.as_deref().filter(|policy| !known(policy))?;
            let name = manifest.qualified(entry);
            let message = format!("{name} names the policy {policy:?}, which is not defined: every call of it is denied");
            let hint = format!("Define [external.policies.{policy:?}] in the bridge's configuration, or name its file with --config.");
            Some(Diagnostic::warning("FORGE_POLICY_UNKNOWN", message).hint(hint))
        });
        unknown.collect()
    }

    pub fn service(&self, name: &str) -> Option<&Arc<Manifest>> {
        self.services.get(&registry::sort_key(name))
    }

    pub fn services(&self) -> impl Iterator<Item = &Arc<Manifest>> {
        self.services.values()
    }

    /// All entries with their services, in the order of the services and of their manifests.
    pub fn entries(&self) -> impl Iterator<Item = (&Manifest, &Entry)> {
        let services = self.services.values();
        services.flat_map(|manifest| {
            manifest
                .entries
                .iter()
                .map(move |entry| (&**manifest, entry))
        })
    }

    /// Entry by its qualified name `service.entry`, which is split at the first dot.
    pub fn find(&self, kind: EntryKind, qualified: &str) -> Option<(&Arc<Manifest>, &Entry)> {
        let (service, name) = qualified.split_once('.')?;
        let manifest = self.service(service)?;
        Some((manifest, manifest.entry(kind, name)?))
    }
}

/// Another user could name the programs and addresses that are called.
fn untrusted(objection: &Objection, trust: Trust) -> Diagnostic {
    let (code, message) = ("FORGE_EXTERNAL_FILE_UNTRUSTED", objection.to_string());
    let found = match trust {
        Trust::Enforce => Diagnostic::error(code, message),
        Trust::Warn => Diagnostic::warning(code, message),
    };
    found.hint("The bridge refuses such a file, unless plugin.trust is \"warn\".")
}

fn unreadable(error: &dyn std::error::Error, file: &str) -> Diagnostic {
    let reason = error
        .source()
        .map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    Diagnostic::error("FORGE_EXTERNAL_MANIFEST_PARSE", reason).within(file)
}
