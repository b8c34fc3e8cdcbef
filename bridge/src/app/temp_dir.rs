//! Folder of the folders of executions, where agents run as other users than the bridge: one that those users can pass and
//! not write, so that none of them can put another folder in the place of its own.

use std::fs::{DirBuilder, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use rustix::process::geteuid;

use crate::config::Config;
use forge_base::ownership::{self as trust, Checked, LastLink};
use forge_dispatch::ProgramUsers;
use forge_process::ownership;

/// Default of `process.folder`, where a bridge has other users. Temporary files of agents can be large: it is on a disk.
const DEFAULT: &str = "/var/cache/forge-bridge";
/// Other users pass it, and cannot list it.
const PASS_ONLY: u32 = 0o711;

/// The folder; `None`: that of the system for temporary files, where agents have the user of the bridge.
pub(super) fn find(config: &Config, users: &ProgramUsers) -> Option<PathBuf> {
    let configured = config.process.folder.clone();
    configured.or_else(|| users.all().next().map(|_| DEFAULT.into()))
}

/// Creates the folder if it is missing, and checks it.
pub(super) fn open(config: &Config, users: &ProgramUsers) -> anyhow::Result<Option<PathBuf>> {
    let Some(path) = find(config, users) else {
        return Ok(None);
    };
    let mut builder = DirBuilder::new();
    builder.recursive(true).mode(PASS_ONLY);
    let created = match path.is_absolute() {
        true => builder.create(&path),
        false => Err(ErrorKind::InvalidInput.into()),
    };
    created.with_context(|| {
        let path = path.display();
        format!(
            "process.folder: cannot create {path}; set it to an absolute path that can be created"
        )
    })?;
    let checked = check(&path, users).context("process.folder")?;
    if let Some(own) = checked.filter(is_own) {
        let set = own.file.set_permissions(Permissions::from_mode(PASS_ONLY));
        set.with_context(|| format!("process.folder: cannot set the mode of {}", path.display()))?;
    }
    Ok(Some(path))
}

/// Checks the folder, if it exists: no other user can replace it or what is in it, and all users of programs can pass.
pub(super) fn check(path: &Path, users: &ProgramUsers) -> anyhow::Result<Option<Checked>> {
    let opened = match trust::open(path, LastLink::Refuse) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
    };
    let shown = path.display();
    ensure!(opened.metadata.is_dir(), "{shown} is not a folder");
    if let Some(objection) = opened.objections.first() {
        bail!(objection.clone());
    }
    // The mode of an own folder is set at the start.
    let way = match is_own(&opened) {
        true => path.parent().unwrap_or(path),
        false => path,
    };
    for user in users.all() {
        if let Some(closed) = ownership::first_closed(way, user) {
            bail!(
                "agents run as the user {}, who cannot pass {}: set it to a folder that this user can reach, or run \
                 `chmod o+x {}`",
                user.uid,
                closed.display(),
                closed.display()
            );
        }
    }
    Ok(Some(opened))
}

fn is_own(checked: &Checked) -> bool {
    checked.metadata.uid() == geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forge_process::ownership::UserId;

    use super::*;

    fn users() -> ProgramUsers {
        let (uid, gid) = (65534, 65534);
        ProgramUsers {
            default: Some(UserId { uid, gid }),
            ..ProgramUsers::default()
        }
    }

    #[test]
    fn a_folder_is_needed_where_programs_have_another_user() {
        let config = Config::default();
        assert_eq!(find(&config, &ProgramUsers::default()), None);
        assert_eq!(find(&config, &users()), Some(DEFAULT.into()));
    }

    #[test]
    fn a_folder_that_another_user_can_write_or_cannot_pass_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let home = home.path().canonicalize().unwrap();
        let mut config = Config::default();
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        for (above, own, wanted) in [
            (0o711, 0o711, None),
            (0o711, 0o700, None),
            (0o711, 0o1777, Some("not trusted")),
            (0o777, 0o711, Some("not trusted")),
            (0o700, 0o711, Some("cannot pass")),
        ] {
            let folder = home.join("folder");
            fs::create_dir(&folder).unwrap();
            mode(&folder, own);
            mode(&home, above);
            config.process.folder = Some(folder.clone());
            let opened = open(&config, &users()).map_err(|error| format!("{error:#}"));
            match wanted {
                None => {
                    assert_eq!(opened.unwrap(), Some(folder.clone()));
                    assert_eq!(folder.metadata().unwrap().mode() & 0o7777, PASS_ONLY);
                }
                Some(wanted) => {
                    let error = opened.unwrap_err();
                    assert!(error.contains(wanted), "{above:o} {own:o}: {error}");
                }
            }
            mode(&home, 0o700);
            fs::remove_dir(&folder).unwrap();
        }
        config.process.folder = Some("agents".into());
        assert!(open(&config, &users()).is_err(), "a relative path");
    }
}
