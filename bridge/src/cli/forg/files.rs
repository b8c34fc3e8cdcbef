//! Files that `forg` reads and writes: those of tools, of the user, and its own. Each is opened by descriptor and without
//! waiting for the other end of a pipe, is a regular file, and is read within a limit. A change replaces the whole file.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use tempfile::Builder;

use forge_base::folder_lock::parent;

/// Access of others to a new file and the folders that are made for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// None.
    Private,
    /// As the umask decides.
    Umask,
}

/// Path without links of a file that can be new. A link to a file that is not there is refused, as what is written there
/// would be a file that the user did not name; so is one that leads out of the folder `within`.
pub(super) fn resolve(path: &Path, within: Option<&Path>) -> io::Result<PathBuf> {
    let mut existing = path;
    let real = loop {
        // The folder of a relative path.
        let shown = match existing.as_os_str().is_empty() {
            true => Path::new("."),
            false => existing,
        };
        match shown.canonicalize() {
            Ok(real) => {
                let new = path.strip_prefix(existing).map_err(io::Error::other)?;
                break match new.as_os_str().is_empty() {
                    true => real,
                    false => real.join(new),
                };
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Err(_) if shown.is_symlink() => {
                let text = format!(
                    "{} is a link to a file that does not exist; create that file, or remove the link",
                    shown.display()
                );
                return Err(io::Error::other(text));
            }
            Err(error) => existing = existing.parent().ok_or(error)?,
        }
    };
    if let Some(within) = within
        && !real.starts_with(within.canonicalize()?)
    {
        let text = format!(
            "it leads out of this folder by a link, to {}",
            real.display()
        );
        return Err(io::Error::other(text));
    }
    Ok(real)
}

/// Opens a regular file, and not through a link; `None` if there is none.
pub(super) fn open(path: &Path) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = match rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(Errno::LOOP) => return Err(io::Error::other("it is a link")),
        opened => File::from(opened?),
    };
    match opened.metadata()?.is_file() {
        true => Ok(Some(opened)),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Content of a file of at most `limit` bytes; `None` if there is none.
pub(super) fn read(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let Some(file) = open(path)? else {
        return Ok(None);
    };
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(io::Error::other(format!("it is larger than {limit} bytes"))),
        false => Ok(Some(bytes)),
    }
}

/// The last `limit` bytes of a file, and true if they are all of it. A file that is missing has none.
pub(super) fn read_end(path: &Path, limit: u64) -> io::Result<(Vec<u8>, bool)> {
    let Some(mut file) = open(path)? else {
        return Ok((Vec::new(), true));
    };
    let start = file.metadata()?.len().saturating_sub(limit);
    file.seek(SeekFrom::Start(start))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((bytes, start == 0))
}

/// Opens a file that the caller names to be read as a stream, which can be a pipe, as of `<(…)` in a shell.
pub(super) fn stream(path: &Path) -> io::Result<File> {
    File::open(path)
}

/// Creates the folder of a file with those above it.
pub(super) fn make_folder_of(path: &Path, access: Access) -> io::Result<()> {
    let mode = match access {
        Access::Private => 0o700,
        Access::Umask => 0o777,
    };
    let mut folders = DirBuilder::new();
    folders.recursive(true).mode(mode).create(parent(path))
}

/// Replaces a file as a whole, also a link or a pipe in its place. A regular one keeps its permissions.
pub(super) fn replace(path: &Path, content: &[u8], access: Access) -> io::Result<()> {
    make_folder_of(path, access)?;
    let mode = match access {
        Access::Private => 0o600,
        Access::Umask => 0o666,
    };
    let mut draft = Builder::new()
        .permissions(Permissions::from_mode(mode))
        .tempfile_in(parent(path))?;
    draft.write_all(content)?;
    if let Ok(Some(old)) = open(path)
        && access == Access::Umask
    {
        let kept = old.metadata()?.permissions();
        draft.as_file().set_permissions(kept)?;
    }
    draft.as_file().sync_all()?;
    draft.persist(path).map_err(|error| error.error)?;
    Ok(())
}

/// Removes a file, or a link itself.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    fs::remove_file(path)
}

/// Removes a file of a folder, and those that were changed before a time.
pub(super) fn remove_old(file: &Path, before: SystemTime) -> io::Result<()> {
    for entry in fs::read_dir(parent(file))? {
        let entry = entry?;
        if entry.path() == *file || entry.metadata()?.modified()? < before {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType, mkfifoat, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_within_the_limit_are_read_and_nothing_is_waited_for() {
        let held = tempfile::tempdir().unwrap();
        let at = |name: &str| held.path().join(name);
        fs::write(at("file"), "12345").unwrap();
        symlink(at("file"), at("link")).unwrap();
        mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        mknodat(CWD, at("socket"), FileType::Socket, Mode::RWXU, 0).unwrap();
        assert_eq!(read(&at("file"), 5).unwrap().unwrap(), b"12345");
        assert_eq!(read(&at("none"), 5).unwrap(), None);
        assert_eq!(read_end(&at("file"), 2).unwrap(), (b"45".to_vec(), false));
        assert_eq!(read_end(&at("file"), 5).unwrap(), (b"12345".to_vec(), true));
        assert_eq!(read_end(&at("none"), 5).unwrap(), (Vec::new(), true));
        for (name, limit, reason) in [
            ("file", 4, "larger than 4 bytes"),
            ("link", 9, "it is a link"),
            ("pipe", 9, "not a regular file"),
            ("", 9, "not a regular file"),
            ("socket", 9, "No such device"),
        ] {
            let refused = read(&at(name), limit).unwrap_err().to_string();
            assert!(refused.contains(reason), "{name}: {refused}");
            if limit > 4 {
                assert!(read_end(&at(name), limit).is_err(), "{name}");
            }
        }
    }

    #[test]
    fn a_replaced_file_is_no_longer_a_link_or_a_pipe_and_keeps_its_permissions() {
        let held = tempfile::tempdir().unwrap();
        let at = |name: &str| held.path().join(name);
        let mode = |name: &str| at(name).symlink_metadata().unwrap().permissions().mode();
        fs::write(at("victim"), "kept").unwrap();
        symlink(at("victim"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        mkfifoat(CWD, at("pipe"), Mode::RWXU).unwrap();
        fs::write(at("file"), "old").unwrap();
        fs::set_permissions(at("file"), Permissions::from_mode(0o640)).unwrap();
        for name in ["link", "dangling", "pipe", "file", "new/deep/file"] {
            replace(&at(name), b"new", Access::Umask).unwrap();
            assert_eq!(read(&at(name), 9).unwrap().unwrap(), b"new", "{name}");
        }
        assert_eq!(fs::read_to_string(at("victim")).unwrap(), "kept");
        assert!(!at("nowhere").exists());
        assert_eq!(mode("file") & 0o777, 0o640);
        replace(&at("own/token"), b"new", Access::Private).unwrap();
        assert_eq!(
            (mode("own") & 0o777, mode("own/token") & 0o777),
            (0o700, 0o600)
        );
    }

    #[test]
    fn a_link_leads_to_a_file_that_exists_and_not_out_of_the_folder() {
        let held = tempfile::tempdir().unwrap();
        let root = held.path().canonicalize().unwrap();
        let at = |name: &str| root.join(name);
        fs::create_dir_all(at("in/real")).unwrap();
        fs::create_dir(at("out")).unwrap();
        for file in ["in/real/file", "out/file"] {
            fs::write(at(file), "").unwrap();
        }
        for (link, target) in [
            ("in/inner", "real"),
            ("in/link", "real/file"),
            ("in/outer", "../out"),
            ("in/foreign", "../out/file"),
            ("in/dangling", "real/none"),
            ("in/lost", "none"),
        ] {
            symlink(target, at(link)).unwrap();
        }
        let within = at("in");
        for (path, expected) in [
            ("in/real/file", Ok("in/real/file")),
            ("in/link", Ok("in/real/file")),
            ("in/new/file", Ok("in/new/file")),
            ("in/inner/new", Ok("in/real/new")),
            ("in/foreign", Err("leads out of this folder")),
            ("in/outer/new", Err("leads out of this folder")),
            ("in/dangling", Err("does not exist")),
            ("in/lost/new", Err("does not exist")),
        ] {
            let found = resolve(&at(path), Some(&within));
            match expected {
                Ok(real) => assert_eq!(found.unwrap(), at(real), "{path}"),
                Err(reason) => {
                    let refused = found.unwrap_err().to_string();
                    assert!(refused.contains(reason), "{path}: {refused}");
                }
            }
        }
        // The user's own links lead where the user wants.
        assert_eq!(resolve(&at("in/foreign"), None).unwrap(), at("out/file"));
        assert!(resolve(&at("in/dangling"), None).is_err());
    }
}
