//! Manifest of a service: its commands and queries, and how they are called. Only a manifest without errors becomes a
//! [`Manifest`].

mod check;
pub mod command_line;
mod requirements;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use url::Url;

pub use self::check::{Checked, check, read, read_file};

/// JSON Schema of a manifest. It is executed, too.
pub const SCHEMA: &str = include_str!("../../../../schemas/forge-manifest.schema.json");
/// Maximum size of a manifest.
pub const MANIFEST_BYTES: usize = 1024 * 1024;

/// Normalised manifest: the known keys alone, as they were given.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub forge_protocol: String,
    pub language: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub framework: Option<String>,
    pub service: Service,
    pub entries: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schemas: Option<Map<String, Value>>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Service {
    pub name: String,
    pub transport: TransportKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command_args: Option<Vec<String>>,
    /// Path of a health check, relative to the base URL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TransportKind {
    Http,
    Grpc,
    Stdio,
}

/// Command or query of a service.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    pub name: String,
    pub kind: EntryKind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Method>,
    /// Schema of the arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Value>,
    /// `public`, `user`, `system` or a policy of the settings; default: public.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_scoped: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transaction: Option<Transaction>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub risk: Option<Risk>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub needs_approval: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effects: Option<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Deserialize, Hash, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    Command,
    Query,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    Get,
    Post,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transaction {
    ReadOnly,
    ExternalManaged,
    ForgeManaged,
    Saga,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Risk {
    Read,
    Write,
    Destructive,
    External,
}

impl EntryKind {
    pub fn as_str(self) -> &'static str {
        match self {
            EntryKind::Command => "command",
            EntryKind::Query => "query",
        }
    }

    /// Segment of the routes for entries of this kind.
    pub fn plural(self) -> &'static str {
        match self {
            EntryKind::Command => "commands",
            EntryKind::Query => "queries",
        }
    }
}

impl Service {
    /// Program of a stdio service, with its arguments; `None` if it has none that can be read.
    pub fn words(&self) -> Option<Vec<String>> {
        match &self.command_args {
            Some(words) => Some(words.clone()),
            None => command_line::split(self.command.as_deref()?).ok(),
        }
    }
}

impl Manifest {
    pub fn entry(&self, kind: EntryKind, name: &str) -> Option<&Entry> {
        let mut entries = self.entries.iter();
        entries.find(|entry| entry.kind == kind && entry.name == name)
    }

    /// `service.entry`.
    pub fn qualified(&self, entry: &Entry) -> String {
        format!("{}.{}", self.service.name, entry.name)
    }
}

impl Entry {
    /// Address of this entry at an HTTP service: its path resolved against the base URL, or the path of the bridge's
    /// own route.
    pub fn url(&self, base: &Url) -> Result<Url, url::ParseError> {
        if let Some(path) = &self.path {
            return base.join(path);
        }
        let mut url = base.join("/")?;
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.extend([self.kind.plural(), &self.name]);
        }
        Ok(url)
    }
}

#[cfg(test)]
mod tests;
