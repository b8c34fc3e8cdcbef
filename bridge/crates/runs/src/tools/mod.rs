//! Tools that the bridge offers to the agents of a run, and carries out itself. Pure: the same call on the same state has
//! the same effect when it is carried out and when it is folded.

pub mod agent;
pub mod captain;

use serde::Deserialize;
use serde_json::Value;

use forge_store::runs::MAX_ARTIFACT_BYTES;

/// Maximum bytes of a specification or a task document.
pub const MAX_DOCUMENT: usize = MAX_ARTIFACT_BYTES as usize;

fn read<'a, T: Deserialize<'a>>(args: &'a Value) -> Result<T, String> {
    T::deserialize(args).map_err(|error| format!("the arguments are not valid: {error}"))
}

fn check_size(text: &str) -> Result<(), String> {
    match text.len() > MAX_DOCUMENT {
        true => Err(format!(
            "{} bytes are too many; at most {MAX_DOCUMENT} are allowed",
            text.len()
        )),
        false => Ok(()),
    }
}
