//! Tools that the bridge offers to the agents of a run, and carries out itself. Pure: the same call on the same state has
//! the same effect when it is carried out and when it is folded.

pub mod agent;
pub mod captain;

use serde::Deserialize;
use serde_json::Value;

use forge_store::runs::MAX_ARTIFACT_BYTES;

/// Maximum bytes of a specification or a task document, and of the nodes in `dag.json`, which has other members too.
pub const MAX_DOCUMENT: usize = MAX_ARTIFACT_BYTES as usize - 4096;

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

/// Complaint about a change of the graph, which becomes a document with indentation.
fn check_addition(args: &Value) -> Result<(), String> {
    const MAX: usize = MAX_DOCUMENT / 4;
    match args.to_string().len() {
        ..=MAX => Ok(()),
        bytes => Err(format!(
            "{bytes} bytes are too many; at most {MAX} are allowed for a change"
        )),
    }
}
