//! Probe of a library that was never loaded: in a child, because opening a library already runs its code. A passed
//! probe is remembered by digest.

use forge_adapter_api::foreign_json;
use std::io::Write as _;
use std::path::Path;

use forge_adapter_api::Manifest;

use super::remote::{Remote, Spec};
use crate::boundary::load_error::LoadError;
use crate::instance::host::Host;
use forge_base::failpoint;

/// The manifest of the library with this digest: from the note in `folder`, else by a probe. Blocks.
pub(crate) fn manifest(
    host: &'static Host,
    path: &Path,
    folder: &Path,
    digest: &str,
    probe: impl FnOnce() -> Result<Spec, LoadError>,
) -> Result<Manifest, LoadError> {
    let note = folder.join(format!("{digest}.json"));
    // A missing or unreadable note is written again.
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
        LoadError::Timeout(limit) => failed(format!("it did not respond within {limit:?}")),
        other => other,
    })?;
    let manifest = foreign_json::from_slice(&manifest)
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
