//! Files of an attempt: how many it changed, and which ones its commit does not have.

use serde::{Deserialize, Serialize};

use crate::git::LeftOuts;

/// Changes of an attempt in its folder, for people and clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FileChanges {
    /// Files in which the result differs from what the attempt began with.
    pub changed_files: usize,
    /// Entries of the folder that are not in the result, besides ignored ones; at most 100.
    pub left_out: Vec<LeftOut>,
    /// Number of all entries that were left out, if not all are listed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out_count: Option<usize>,
}

/// Entry of a folder that is not in the result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// As git quotes it, if it is not plain text.
    pub path: String,
    pub reason: String,
}

impl FileChanges {
    pub(crate) fn new(changed_files: usize, left_out: &LeftOuts) -> Self {
        let LeftOuts { listed, total, .. } = left_out;
        let left_out = listed.iter().map(|one| LeftOut {
            path: one.path.clone(),
            reason: one.reason.to_owned(),
        });
        Self {
            changed_files,
            left_out: left_out.collect(),
            left_out_count: (*total > listed.len()).then_some(*total),
        }
    }

    /// Number of entries that were left out.
    pub fn left_out_total(&self) -> usize {
        self.left_out_count.unwrap_or(self.left_out.len())
    }

    /// Section of a report; empty if nothing was left out.
    pub(crate) fn section(&self) -> String {
        if self.left_out.is_empty() && self.left_out_count.is_none() {
            return String::new();
        }
        let lines = self.left_out.iter();
        let lines = lines.map(|LeftOut { path, reason }| format!("- {path}: {reason}\n"));
        let more = self.left_out_total() - self.left_out.len();
        let more = match more {
            0 => String::new(),
            more => format!("- {more} others\n"),
        };
        format!(
            "## Left out\n\nThe commit does not have:\n\n{}{more}\n",
            lines.collect::<String>()
        )
    }
}
