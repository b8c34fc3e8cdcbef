//! Files that are read whole within a limit and replaced atomically.

use std::fs::{File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use tempfile::Builder;

use forge_base::failpoint;
use forge_base::ownership::{self, LastLink, Objection};

/// Reads a regular file of at most `limit` bytes; `None` if there is no such file.
pub(crate) fn read(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    // A FIFO would block until a process writes to it.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match open(path, flags, Mode::empty()) {
        Ok(opened) => File::from(opened),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    contents(file, limit).map(Some)
}

fn contents(file: File, limit: usize) -> io::Result<Vec<u8>> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut bytes = Vec::new();
    file.take(limit as u64 + 1).read_to_end(&mut bytes)?;
    match bytes.len() > limit {
        true => Err(io::Error::other(format!("it is larger than {limit} bytes"))),
        false => Ok(bytes),
    }
}

/// Reads such a file as the bridge does, which acts on what it says: with the reason why another user can change it, if
/// there is one.
pub(crate) fn read_owned(
    path: &Path,
    limit: usize,
) -> io::Result<Option<(Vec<u8>, Option<Objection>)>> {
    let opened = match ownership::open(&std::path::absolute(path)?, LastLink::Follow) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let bytes = contents(opened.file, limit)?;
    Ok(Some((bytes, opened.objections.into_iter().next())))
}

/// Replaces a file: after a crash it is the old or the new one. Returns false if its content is already this.
pub(crate) fn replace(path: &Path, content: &[u8]) -> io::Result<bool> {
    if read(path, content.len()).is_ok_and(|old| old.as_deref() == Some(content)) {
        return Ok(false);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    // The umask decides, as for a file that is created by its name.
    let readable = Permissions::from_mode(0o666);
    let mut new = Builder::new().permissions(readable).tempfile_in(folder)?;
    new.write_all(content)?;
    failpoint::point("file.written");
    new.as_file().sync_all()?;
    failpoint::point("file.synced");
    new.persist(path)?;
    failpoint::point("file.renamed");
    File::open(folder)?.sync_all()?;
    failpoint::point("file.replaced");
    Ok(true)
}
