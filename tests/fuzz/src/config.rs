//! A configuration file and environment: accepted, or rejected with errors that contain no secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forge_bridge::config::Secret;
use forge_bridge::config::fuzzing::load;

use crate::chosen::{self, CHOSEN};

const SECRET: &str = "pl4nt3d-s3cr3t";

/// Input: a file, a line of three dashes, and variables as `NAME=value`, one per line; or bytes that select them.
pub(crate) fn run(data: &[u8]) {
    let (file, mut environment) = match data {
        [CHOSEN, choices @ ..] => chosen::read(choices),
        text => written(&String::from_utf8_lossy(text)),
    };
    let file = file.replace("SECRET", SECRET);
    environment
        .values_mut()
        .for_each(|value| *value = value.replace("SECRET", SECRET));
    environment
        .entry("BRIDGE_SECRET_KEY".to_owned())
        .or_insert_with(|| SECRET.to_owned());
    match load(&file, &environment) {
        Ok((config, warnings)) => {
            assert!(warnings.iter().all(|warning| !warning.is_empty()));
            // The path of the key file is not secret.
            let secret = Secret {
                key_file: PathBuf::new(),
                ..config.secret
            };
            let text = serde_json::to_string(&secret).unwrap();
            assert!(!text.contains(SECRET) && !format!("{secret:?}").contains(SECRET));
        }
        Err(error) => {
            assert!(!error.problems.is_empty());
            for problem in &error.problems {
                assert!(!problem.message.is_empty(), "{}", problem.key);
                let is_secret = ["secret", "token", "bearer"]
                    .iter()
                    .any(|word| problem.key.contains(word));
                assert!(!is_secret || !problem.message.contains(SECRET), "{problem}");
            }
        }
    }
}

fn written(text: &str) -> (String, BTreeMap<String, String>) {
    let (file, variables) = text.split_once("\n---\n").unwrap_or((text, ""));
    let pairs = variables.lines().filter_map(|line| line.split_once('='));
    let environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
    (file.to_owned(), environment.collect())
}
