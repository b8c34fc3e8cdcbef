//! Rules of runs: keys, changes, and the bounds of artifacts. Pure functions: SQLite and the model apply what they return.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::record::{NewRun, RunArtifact, RunChange, RunOpened, RunRecord, RunStatus};
use super::rules::later;
use super::{Error, Result};
use forge_base::digest::Digest;

/// Maximum size of one artifact, and of all artifacts of a run.
pub const MAX_ARTIFACT_BYTES: u64 = 1 << 20;
pub const MAX_ARTIFACTS_BYTES: u64 = 64 << 20;

/// Decides about a new run; `holder` is the run that has its key, with the digest of its request.
pub fn open(new: &NewRun, holder: Option<(RunRecord, Digest)>) -> Result<RunOpened> {
    if new.events.is_empty() {
        return Err(Error::InvalidState("a run begins with an event"));
    }
    Ok(match holder {
        None if new.is_admitted => RunOpened::New,
        None => RunOpened::NotAdmitted,
        Some((run, fingerprint)) if fingerprint == new.fingerprint => RunOpened::Known(run),
        Some((run, _)) => RunOpened::Conflict(run.id),
    })
}

/// Refuses a change that does not fit a run with this status and this number of events. A run that has ended without
/// completing changes only by being reopened.
pub fn change(change: &RunChange, status: RunStatus, seq: u64) -> Result<()> {
    let reopens =
        matches!(status, RunStatus::Failed | RunStatus::Cancelled) && !change.status.is_ended();
    let reason = if status.is_ended() && !reopens {
        "the run has ended"
    } else if change.after_seq != seq {
        "the run has other events than the change continues"
    } else if change.status.is_ended() != change.end.is_some() {
        "a run has an end if and only if its status is an ended one"
    } else {
        return Ok(());
    };
    Err(Error::InvalidState(reason))
}

/// Time at which a run that a change ends expires.
pub fn expires_at(change: &RunChange) -> Option<Timestamp> {
    change.end.map(|(at, retention)| later(at, retention))
}

/// Bytes of all artifacts after a change, from their bytes before it. `stored` returns the size of the artifact of a
/// path.
pub fn artifact_bytes<E: From<Error>>(
    before: u64,
    changed: &[RunArtifact],
    mut stored: impl FnMut(&str) -> Result<Option<u64>, E>,
) -> Result<u64, E> {
    let mut sizes = BTreeMap::new();
    let mut total = before;
    for RunArtifact { path, bytes, .. } in changed {
        let size = bytes.len() as u64;
        if size > MAX_ARTIFACT_BYTES {
            return Err(Error::InvalidState("an artifact is larger than 1 MiB").into());
        }
        let replaced = match sizes.insert(path.as_str(), size) {
            Some(size) => size,
            None => stored(path)?.unwrap_or(0),
        };
        total = (total + size).saturating_sub(replaced);
    }
    match total > MAX_ARTIFACTS_BYTES {
        true => Err(Error::InvalidState("the artifacts of a run are larger than 64 MiB").into()),
        false => Ok(total),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::runs::artifact;

    #[test]
    fn artifacts_are_bounded_by_what_is_there_after_the_change() {
        let most = usize::try_from(MAX_ARTIFACT_BYTES).unwrap();
        let full = MAX_ARTIFACTS_BYTES;
        let stored = |path: &str| Ok((path == "stored").then_some(10));
        for (before, changed, expected) in [
            (0, vec![], Some(0)),
            (10, vec![("stored", 1), ("new", 2)], Some(3)),
            (0, vec![("new", most), ("new", 1)], Some(1)),
            (0, vec![("new", most + 1)], None),
            (full - 1, vec![("new", 1)], Some(full)),
            (full, vec![("new", 1)], None),
            (full, vec![("stored", 10)], Some(full)),
            (full, vec![("new", 5), ("stored", 5)], Some(full)),
        ] {
            let artifacts: Vec<_> = changed
                .iter()
                .map(|(path, size)| artifact(path, *size))
                .collect();
            let bytes = artifact_bytes::<Error>(before, &artifacts, stored);
            assert_eq!(bytes.ok(), expected, "{before} {changed:?}");
        }
    }
}
