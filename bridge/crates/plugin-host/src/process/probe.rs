//! The first look at a library that was never seen: in a child, because opening one already runs its code.
//! What passed is remembered by its digest.

use std::io::Write as _;
use std::path::Path;

use forge_adapter_api::Manifest;

use super::remote::{Remote, Spec};
use crate::call::Host;
use crate::load::LoadError;
use forge_base::failpoint;

/// The manifest of the library with this digest: remembered in `folder`, else found out by a probe. Blocks.
pub(crate) fn manifest(
    host: &'static Host,
    path: &Path,
    folder: &Path,
    digest: &str,
    probe: impl FnOnce() -> Result<Spec, LoadError>,
) -> Result<Manifest, LoadError> {
    let note = folder.join(format!("{digest}.json"));
    // A note that is missing or unreadable is made anew.
    let known = std::fs::read(&note).ok();
    if let Some(manifest) = known.and_then(|known| serde_json::from_slice(&known).ok()) {
        return Ok(manifest);
    }
    let failed = |message: String| LoadError::Probe {
        path: path.to_owned(),
        message,
    };
    failpoint::point("probe.before");
    let manifest = Remote::probe(host, probe()?).map_err(|error| match error {
        LoadError::Process(why) => failed(why),
        LoadError::Timeout(limit) => failed(format!("it did not come back within {limit:?}")),
        other => other,
    })?;
    let manifest = serde_json::from_slice(&manifest)
        .map_err(|error| failed(format!("its manifest is unreadable: {error}")))?;
    failpoint::point("probe.answered");
    remember(&note, folder, &manifest).map_err(|source| LoadError::Copy {
        path: path.to_owned(),
        folder: folder.to_owned(),
        source,
    })?;
    failpoint::point("probe.after");
    Ok(manifest)
}

fn remember(note: &Path, folder: &Path, manifest: &Manifest) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(&serde_json::to_vec(manifest)?)?;
    file.persist(note)?;
    Ok(())
}
