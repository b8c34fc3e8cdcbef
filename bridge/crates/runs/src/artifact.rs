//! Artifacts of a run as rows, fitted to the bounds of the store.

use jiff::Timestamp;

use forge_store::record::RunArtifact;
use forge_store::runs::MAX_ARTIFACTS_BYTES;

use crate::Artifact;
use crate::event::ArtifactType;

/// Bytes of all artifacts up to which reports are kept. The rest is for the notices in place of later ones.
const REPORTS_UP_TO: u64 = MAX_ARTIFACTS_BYTES - (1 << 20);
const NOTICE: &str = "The report is left out, because the artifacts of the run have reached their limit of 64 MiB. \
    It is the output of the attempt's dispatch.\n";

/// Rows of artifacts. One that has no place, and is not a document of a task, is replaced by a notice, since the store
/// refuses a change that exceeds its bound as a whole. `used` is the size of all artifacts, which grows.
pub(crate) fn rows(
    artifacts: Vec<Artifact>,
    used: &mut u64,
    updated_at: Timestamp,
) -> Vec<RunArtifact> {
    let row = |artifact: Artifact| {
        let Artifact {
            path,
            kind,
            mut content,
        } = artifact;
        // The tools of the Captain bound the others.
        let is_bounded = matches!(kind, ArtifactType::Spec | ArtifactType::Task);
        if !is_bounded && *used + content.len() as u64 > REPORTS_UP_TO {
            content = NOTICE.to_owned();
        }
        *used += content.len() as u64;
        RunArtifact {
            path,
            kind: kind.name().to_owned(),
            updated_at,
            bytes: content.into_bytes(),
        }
    };
    artifacts.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    //! A run with more text than the store keeps.

    use super::*;

    #[test]
    fn walkthroughs_above_the_bound_become_notices_and_fit() {
        let walkthrough = |n: u32| Artifact {
            path: format!("a/{n}/walkthrough.md"),
            kind: ArtifactType::Walkthrough,
            content: "x".repeat(1 << 20),
        };
        let mut used = 0;
        let artifacts = (0..4_000).map(walkthrough);
        let all = artifacts.flat_map(|one| rows(vec![one], &mut used, Timestamp::UNIX_EPOCH));
        let whole = all.filter(|row| row.bytes.len() == 1 << 20).count();
        assert_eq!(whole, 63);
        assert!(used < MAX_ARTIFACTS_BYTES, "{used}");
    }
}
