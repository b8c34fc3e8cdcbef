//! File operations with the rights of another user: for files that the bridge opens for an agent, which must not reach
//! more through the bridge than by itself.

use std::io;
use std::thread;

use rustix::process::{Gid, Uid};

/// Numbers of a user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// Does the work in a thread of its own, which has only the rights of this user and its group, and ends with the work.
/// Without a user, does it here. Files that are created belong to the user. Blocks.
pub(super) fn with<T: Send>(
    rights: Option<Rights>,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let Some(rights) = rights else {
        return work();
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("agent-files".to_owned());
        let thread = thread.spawn_scoped(scope, move || {
            reduce(rights)?;
            work()
        })?;
        let ended = thread.join();
        ended.unwrap_or_else(|_panic| Err(io::Error::other("the file operation panicked")))
    })
}

/// Reduces the rights of this thread. Its real and saved ids stay: the user cannot signal or trace it.
#[cfg(target_os = "linux")]
fn reduce(Rights { uid, gid }: Rights) -> io::Result<()> {
    use rustix::thread::{
        CapabilitySet, capabilities, set_capabilities, set_thread_groups, set_thread_res_gid,
        set_thread_res_uid,
    };
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_thread_groups(&[gid])?;
    set_thread_res_gid(None, gid, None)?;
    set_thread_res_uid(None, uid, None)?;
    // The kernel takes them from root only, and a bridge can have them as another user.
    let mut sets = capabilities(None)?;
    sets.effective = CapabilitySet::empty();
    Ok(set_capabilities(None, sets)?)
}

#[cfg(not(target_os = "linux"))]
fn reduce(_: Rights) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    use rustix::process::{geteuid, getgroups};

    use super::*;

    const OTHER: Rights = Rights {
        uid: 65534,
        gid: 65534,
    };

    #[test]
    fn the_work_has_the_rights_of_the_user_and_the_caller_keeps_its_own() {
        if !geteuid().is_root() {
            println!("not run: only root has the rights of other users");
            return;
        }
        let held = tempfile::tempdir().unwrap();
        fs::set_permissions(held.path(), Permissions::from_mode(0o777)).unwrap();
        let closed = held.path().join("closed");
        fs::write(&closed, "").unwrap();
        fs::set_permissions(&closed, Permissions::from_mode(0o600)).unwrap();
        let groups = getgroups().unwrap();
        for at in [&closed, &held.path().join("made")] {
            let done = with(Some(OTHER), || fs::write(at, "other"));
            assert_eq!(done.is_ok(), *at != closed, "{done:?}");
        }
        let made = held.path().join("made").metadata().unwrap();
        assert_eq!((made.uid(), made.gid()), (OTHER.uid, OTHER.gid));
        let inside = with(Some(OTHER), || Ok(getgroups()?)).unwrap();
        assert_eq!(inside, [Gid::from_raw(OTHER.gid)]);
        assert_eq!((geteuid().as_raw(), getgroups().unwrap()), (0, groups));
        fs::write(&closed, "own").unwrap();
    }

    #[test]
    fn without_the_right_to_switch_nothing_is_done() {
        if geteuid().is_root() {
            println!("not run: root can switch to every user");
            return;
        }
        let mut is_done = false;
        let refused = with(Some(OTHER), || {
            is_done = true;
            Ok(())
        });
        assert!(refused.is_err() && !is_done);
    }
}
