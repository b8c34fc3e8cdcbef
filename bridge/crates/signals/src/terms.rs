//! Settings of signals that a running bridge takes over: rules, teams and prices.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::FieldProblem;
use crate::config::{Config, Price};
use crate::evaluate::{Teams, teams_of_users};
use crate::rule::{RULES_BYTES, Rules};

/// Part of the settings that a running bridge takes over.
#[derive(Debug, Default)]
pub struct Terms {
    pub rules: Rules,
    pub teams: Teams,
    pub prices: BTreeMap<String, Price>,
}

/// Error in a file of rules.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the rules of signals cannot be read from {} (signals.rules)", file.display())]
    Unreadable { file: PathBuf, source: io::Error },
    #[error("{} has {} (signals.rules){}", file.display(), count(problems), lines(problems))]
    Invalid {
        file: PathBuf,
        problems: Vec<FieldProblem>,
    },
}

fn count(problems: &[FieldProblem]) -> String {
    match problems.len() {
        1 => "an error".to_owned(),
        count => format!("{count} errors"),
    }
}

fn lines(problems: &[FieldProblem]) -> String {
    let lines = problems
        .iter()
        .map(|FieldProblem { field, message }| match field.as_str() {
            "" => format!("; {message}"),
            field => format!("; {field}: {message}"),
        });
    lines.collect()
}

impl Terms {
    /// Reads the file of rules that the settings name.
    pub fn read(config: &Config) -> Result<Self, Error> {
        let rules = match &config.rules {
            None => Rules::default(),
            Some(file) => Rules::open(file)?,
        };
        Ok(Self {
            rules,
            teams: teams_of_users(&config.teams),
            prices: config.prices.clone(),
        })
    }
}

impl Rules {
    fn open(file: &Path) -> Result<Self, Error> {
        let bytes = read_bounded(file).map_err(|source| Error::Unreadable {
            file: file.to_owned(),
            source,
        })?;
        Self::read(&bytes).map_err(|problems| Error::Invalid {
            file: file.to_owned(),
            problems,
        })
    }
}

/// Contents of a regular file, cut one byte after the maximum size.
fn read_bounded(file: &Path) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a regular file",
        ));
    }
    let mut bytes = Vec::new();
    let mut limited = File::open(file)?.take(RULES_BYTES as u64 + 1);
    limited.read_to_end(&mut bytes)?;
    Ok(bytes)
}
