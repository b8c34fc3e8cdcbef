//! Entries as callers name them in one text: `service.entry`, `command:service.entry`, `query:service.entry`.

use std::fmt;

use serde_json::{Value, json};

use crate::artifacts::tool_name;
use crate::manifest::EntryKind;
use crate::services::External;

/// Entry of a known service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryName {
    pub kind: EntryKind,
    pub service: String,
    pub entry: String,
}

/// Description of an entry as a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    pub input_schema: Value,
}

impl fmt::Display for EntryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = self.kind.as_str();
        write!(f, "{kind}:{}.{}", self.service, self.entry)
    }
}

impl EntryName {
    /// Name of the entry as a tool.
    pub fn tool_name(&self) -> String {
        tool_name(self.kind, &format!("{}.{}", self.service, self.entry))
    }
}

impl External {
    /// The entry that a text names. `Err` says what is wrong with it.
    pub fn resolve(&self, text: &str) -> Result<EntryName, String> {
        let services = self.services();
        let both = [EntryKind::Command, EntryKind::Query];
        let prefix = |kind: &EntryKind| text.strip_prefix(kind.as_str())?.strip_prefix(':');
        let given = both.iter().find_map(|kind| Some((*kind, prefix(kind)?)));
        let found: Vec<_> = match given {
            Some((kind, name)) => services.named(kind, name).into_iter().collect(),
            None => both
                .iter()
                .filter_map(|kind| services.named(*kind, text))
                .collect(),
        };
        match found.as_slice() {
            [(service, entry)] => Ok(EntryName {
                kind: entry.kind,
                service: service.manifest.service.name.clone(),
                entry: entry.name.clone(),
            }),
            [] => Err(format!(
                "no external service has the entry {text:?}; GET /api/v2/external lists the entries"
            )),
            _ => Err(format!(
                "{text:?} is a command and a query; write command:{text} or query:{text}"
            )),
        }
    }

    /// True if calls of the entry wait for an approval.
    pub fn is_held(&self, name: &EntryName) -> bool {
        let services = self.services();
        let found = services.find(name.kind, &name.service, &name.entry);
        found.is_some_and(|(service, index)| self.rules().holds(&service.manifest.entries[index]))
    }

    /// Description of the entry for a model; `None` if it is gone.
    pub fn tool(&self, name: &EntryName) -> Option<Tool> {
        let services = self.services();
        let (service, index) = services.find(name.kind, &name.service, &name.entry)?;
        let entry = &service.manifest.entries[index];
        let any = || json!({ "type": "object", "properties": {} });
        Some(Tool {
            name: name.tool_name(),
            description: entry.description.clone(),
            input_schema: entry.input_schema.clone().unwrap_or_else(any),
        })
    }
}
