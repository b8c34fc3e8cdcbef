//! Check of a manifest: all findings at once. The JSON Schema finds what is wrong in itself; what follows here needs
//! more than one field, or a parser.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use jsonschema::Validator;
use jsonschema::error::ValidationErrorKind;
use serde::Deserialize as _;
use serde_json::Value;
use url::Url;

use forge_base::{json, schema};

use super::{
    Entry, EntryKind, MANIFEST_BYTES, Manifest, SCHEMA, TransportKind, command_line, requirements,
};
use crate::diagnostic::{Diagnostic, any_error};
use crate::files;
use crate::transport::grpc::method_path;

/// Result of a check.
#[derive(Clone, Debug)]
pub struct Checked {
    /// `None` if there is an error.
    pub manifest: Option<Manifest>,
    pub diagnostics: Vec<Diagnostic>,
}

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    jsonschema::validator_for(&schema).expect("the schema is a JSON Schema")
});

/// Parses and checks the bytes of a manifest.
pub fn read(bytes: &[u8]) -> Checked {
    let parsed = match bytes.len() > MANIFEST_BYTES {
        true => Err(format!("a manifest has at most {MANIFEST_BYTES} bytes")),
        false => json::parse(bytes).map_err(|error| error.to_string()),
    };
    match parsed {
        Ok(tree) => check(&tree),
        Err(message) => Checked {
            manifest: None,
            diagnostics: vec![
                Diagnostic::error("FORGE_EXTERNAL_MANIFEST_PARSE", message)
                    .hint("Write one JSON object in UTF-8, each key once."),
            ],
        },
    }
}

/// Reads and checks a file.
pub fn read_file(path: &std::path::Path) -> std::io::Result<Checked> {
    let bytes = files::read(path, MANIFEST_BYTES)?;
    let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
    Ok(read(&bytes.ok_or_else(missing)?))
}

/// Checks a parsed manifest.
pub fn check(tree: &Value) -> Checked {
    let mut diagnostics = Vec::new();
    for error in VALIDATOR.iter_errors(tree) {
        let path = Path::of(error.instance_path().as_str());
        match error.kind() {
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                diagnostics.extend(unexpected.iter().map(|key| unknown_key(&path, key)));
            }
            ValidationErrorKind::Required { property } => {
                let missing = path.below(property.as_str().unwrap_or_default());
                add(&mut diagnostics, wrong(&missing));
            }
            // One of the two that start a program.
            ValidationErrorKind::AnyOf { .. } => {
                add(&mut diagnostics, wrong(&path.below("command")));
            }
            ValidationErrorKind::Constant { .. } if path.is_of_entry() => {
                diagnostics.push(not_read_only(&path));
            }
            _ => add(&mut diagnostics, wrong(&path)),
        }
    }
    if diagnostics
        .iter()
        .any(|found| found.code == "FORGE_EXTERNAL_SERVICE")
    {
        let service = Path::of("/service");
        diagnostics.extend(["name", "transport"].map(|key| wrong(&service.below(key))));
    }
    diagnostics.extend(duplicates(tree));
    let manifest = match any_error(&diagnostics) {
        true => None,
        false => Manifest::deserialize(tree).ok(),
    };
    if let Some(manifest) = &manifest {
        diagnostics.extend(findings(manifest));
    }
    Checked {
        manifest: manifest.filter(|_| !any_error(&diagnostics)),
        diagnostics,
    }
}

/// Place in a manifest.
struct Path {
    /// With indices, as in `entries[3].path`.
    shown: String,
    /// Without indices, as in `entries[].path`.
    field: String,
}

impl Path {
    /// From a JSON pointer. Indices at its end are left out: an item has the requirement of its array.
    fn of(pointer: &str) -> Self {
        let mut path = Path {
            shown: String::new(),
            field: String::new(),
        };
        for segment in pointer.split('/').skip(1) {
            path = match segment.bytes().all(|byte| byte.is_ascii_digit())
                && path.field == "entries"
            {
                true => Path {
                    shown: format!("{}[{segment}]", path.shown),
                    field: format!("{}[]", path.field),
                },
                false if requirements::of(&path.below(segment).field).is_none() => break,
                false => path.below(segment),
            };
        }
        path
    }

    fn below(&self, key: &str) -> Self {
        let join = |parent: &str| match parent {
            "" => key.to_owned(),
            parent => format!("{parent}.{key}"),
        };
        Path {
            shown: join(&self.shown),
            field: join(&self.field),
        }
    }

    fn is_of_entry(&self) -> bool {
        self.field.starts_with("entries[].")
    }

    /// `FORGE_EXTERNAL_ENTRY_TENANT_SCOPED` for `entries[3].tenantScoped`.
    fn code(&self) -> String {
        let name = match self.field.as_str() {
            "" => "MANIFEST_OBJECT".to_owned(),
            "forgeProtocol" => "PROTOCOL_VERSION".to_owned(),
            "entries[]" => "ENTRY_OBJECT".to_owned(),
            field => {
                let mut name = String::new();
                for character in field.replace("entries[]", "entry").chars() {
                    match character {
                        '.' | '$' => name.push('_'),
                        upper if upper.is_ascii_uppercase() => name.extend(['_', upper]),
                        other => name.push(other.to_ascii_uppercase()),
                    }
                }
                name
            }
        };
        format!("FORGE_EXTERNAL_{name}")
    }
}

/// Adds a finding unless the field has one already.
fn add(diagnostics: &mut Vec<Diagnostic>, found: Diagnostic) {
    if !diagnostics.contains(&found) {
        diagnostics.push(found);
    }
}

fn wrong(path: &Path) -> Diagnostic {
    let requirement = requirements::of(&path.field);
    let (must, hint) = requirement.map_or(("be as the schema says", ""), |found| {
        (found.must, found.hint)
    });
    let name = match path.shown.as_str() {
        "" => "the manifest",
        shown => shown,
    };
    Diagnostic::error(path.code(), format!("{name} must {must}")).hint(hint)
}

fn unknown_key(path: &Path, key: &str) -> Diagnostic {
    let shown = path.below(key).shown;
    Diagnostic::warning(
        "FORGE_EXTERNAL_UNKNOWN_KEY",
        format!("{shown:?} is not a known key; it is ignored"),
    )
    .hint("Correct its spelling, or remove it.")
}

/// A query says that it writes.
fn not_read_only(path: &Path) -> Diagnostic {
    let (code, must) = match path.field.ends_with("risk") {
        true => ("FORGE_EXTERNAL_QUERY_RISK", "read"),
        false => ("FORGE_EXTERNAL_QUERY_TRANSACTION", "read-only"),
    };
    Diagnostic::error(code, format!("{} of a query must be {must}", path.shown))
        .hint("Make the entry a command, or correct the value.")
}

/// Entries of the same kind and name. Read from the tree, so that they are found beside other errors.
fn duplicates(tree: &Value) -> Vec<Diagnostic> {
    let entries = tree["entries"].as_array().into_iter().flatten();
    let mut seen = BTreeSet::new();
    let named = entries.enumerate().filter_map(|(index, entry)| {
        Some((index, entry["kind"].as_str()?, entry["name"].as_str()?))
    });
    named
        .filter(|(_, kind, name)| !seen.insert((*kind, *name)))
        .map(|(index, kind, name)| {
            let message = format!("entries[{index}]: there is another {kind} {name:?}");
            Diagnostic::error("FORGE_EXTERNAL_ENTRY_DUPLICATE", message).hint("Rename one of them.")
        })
        .collect()
}

/// Findings about a manifest that matches the schema.
fn findings(manifest: &Manifest) -> Vec<Diagnostic> {
    let service = &manifest.service;
    let mut found = Vec::new();
    if service.name.contains('.') {
        let message = format!(
            "the service name {:?} contains a dot: as service.entry it is read up to the first one",
            service.name
        );
        let warning = Diagnostic::warning("FORGE_EXTERNAL_SERVICE_NAME", message);
        found.push(warning.hint("Use a dash in its place."));
    }
    let base = service.base_url.as_deref().map(parse_base_url);
    match base {
        Some(Err(reason)) => found.push(reason_at("/service/baseUrl", &reason)),
        Some(Ok(base)) if service.transport == TransportKind::Http => {
            found.extend(
                manifest
                    .entries
                    .iter()
                    .enumerate()
                    .filter_map(|(index, entry)| {
                        let reason = leaves_origin(entry, &base)?;
                        Some(reason_at(&format!("/entries/{index}/path"), &reason))
                    }),
            );
        }
        None if service.transport == TransportKind::Grpc => {
            let message = "service.baseUrl is missing: the service cannot be called".to_owned();
            let warning = Diagnostic::warning("FORGE_EXTERNAL_SERVICE_BASE_URL", message);
            found.push(
                warning.hint("Write the server's address, such as \"http://127.0.0.1:50051\"."),
            );
        }
        Some(Ok(_)) | None => {}
    }
    if let (Some(line), None) = (&service.command, &service.command_args)
        && let Err(error) = command_line::split(line)
    {
        found.push(reason_at("/service/command", &error.to_string()));
    }
    for (index, entry) in manifest.entries.iter().enumerate() {
        let compiled = entry.input_schema.as_ref().map(schema::compile);
        if let Some(Err(reason)) = compiled {
            found.push(reason_at(&format!("/entries/{index}/inputSchema"), &reason));
        }
        let path = entry.path.as_deref();
        if service.transport == TransportKind::Grpc && path.and_then(method_path).is_none() {
            let message =
                format!("entries[{index}] cannot be called: its path names no gRPC method");
            let warning = Diagnostic::warning("FORGE_EXTERNAL_ENTRY_PATH", message);
            found.push(warning.hint("Write \"path\": \"/package.Service/Method\"."));
        }
        if entry.kind == EntryKind::Query && entry.needs_approval == Some(true) {
            let message =
                format!("entries[{index}].needsApproval has no effect: a query is never held");
            let warning = Diagnostic::warning("FORGE_EXTERNAL_ENTRY_NEEDS_APPROVAL", message);
            found.push(warning.hint("Remove the key, or make the entry a command."));
        }
    }
    found
}

fn reason_at(pointer: &str, reason: &str) -> Diagnostic {
    let mut found = wrong(&Path::of(pointer));
    found.message = format!("{}: {reason}", found.message);
    found
}

/// Parses the address of a service.
pub(crate) fn parse_base_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(format!("the scheme is {}", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it contains credentials".to_owned());
    }
    Ok(url)
}

fn leaves_origin(entry: &Entry, base: &Url) -> Option<String> {
    match entry.url(base) {
        Err(error) => Some(error.to_string()),
        Ok(url) if url.origin() != base.origin() => Some("it leads to another origin".to_owned()),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            Some("it contains credentials".to_owned())
        }
        Ok(_) => None,
    }
}
