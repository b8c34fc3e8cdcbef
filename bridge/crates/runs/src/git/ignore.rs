//! Rules of `.gitignore` files. An agent writes them, so their size and the time to match them are bounded.

use std::fs::File;
use std::io;
use std::time::Instant;

use gix_ignore::glob::Pattern;
use gix_ignore::glob::pattern::Case;
use gix_ignore::glob::wildmatch::Mode;

use super::Error;
use super::tree::read_up_to;

/// Limit of all rules that are in effect in one folder.
pub(super) const RULE_BYTES: u64 = 1024 * 1024;
/// Each doubles the time of a match.
const DOUBLE_STARS: usize = 8;
/// Number of rules between two looks at the clock.
const RULES_AT_ONCE: usize = 1024;

/// Rules of one file.
pub(super) struct Rules {
    patterns: Vec<Pattern>,
    pub(super) bytes: u64,
    /// A rule has no effect, since it has too many `**`.
    pub(super) is_partial: bool,
}

impl Rules {
    /// Reads a file; `None` if it is larger than `limit`.
    pub(super) fn read(file: File, limit: u64) -> io::Result<Option<Self>> {
        let Some(content) = read_up_to(file, limit)? else {
            return Ok(None);
        };
        let all = gix_ignore::parse(&content, false).map(|(pattern, ..)| pattern);
        let is_usable = |pattern: &Pattern| {
            pattern.text.windows(2).filter(|pair| pair == b"**").count() <= DOUBLE_STARS
        };
        let (patterns, others): (Vec<_>, Vec<_>) = all.partition(is_usable);
        Ok(Some(Self {
            patterns,
            bytes: content.len() as u64,
            is_partial: !others.is_empty(),
        }))
    }

    /// True if the last rule that matches excludes the path, false if it includes it; `None` if none matches. The path
    /// is relative to the folder of the file.
    pub(super) fn excludes(
        &self,
        path: &[u8],
        is_folder: bool,
        until: Instant,
    ) -> Result<Option<bool>, Error> {
        let name = path.iter().rposition(|byte| *byte == b'/');
        let name = name.map(|slash| slash + 1);
        for some in self.patterns.rchunks(RULES_AT_ONCE) {
            let found = some.iter().rev().find(|pattern| {
                pattern.matches_repo_relative_path(
                    path.into(),
                    name,
                    Some(is_folder),
                    Case::Sensitive,
                    Mode::NO_MATCH_SLASH_LITERAL,
                )
            });
            if let Some(pattern) = found {
                return Ok(Some(!pattern.is_negative()));
            }
            super::walk::check_time(until)?;
        }
        Ok(None)
    }
}
