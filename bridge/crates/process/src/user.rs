//! User of the programs that are started: found by name, and passed to the supervisor, which switches to it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{CapabilitySet, capabilities};

/// Users of this system. Accounts of a directory service are not found there; `uid:gid` names those.
const USERS: &str = "/etc/passwd";

/// Capabilities that a bridge needs to start programs as another user, to end them and to remove their files.
const NEEDED: CapabilitySet = CapabilitySet::SETUID
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE);

/// Another user than the bridge's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum UserError {
    #[error("cannot read the users of this system from {USERS}")]
    Users(#[source] std::io::Error),
    #[error("there is no user {0} in {USERS}; create it, or give its numbers as uid:gid")]
    Unknown(String),
    #[error(
        "this bridge is not allowed to start programs as {0}: it needs to be started as root, or with the capabilities \
         CAP_SETUID, CAP_SETGID, CAP_KILL, CAP_CHOWN and CAP_DAC_OVERRIDE"
    )]
    NotAllowed(String),
}

impl User {
    /// Finds a user by name or by `uid:gid`; `None` if it is the bridge's own.
    pub fn find(name: &str) -> Result<Option<Self>, UserError> {
        let user = match name
            .split_once(':')
            .and_then(|(uid, gid)| numbers(uid, gid))
        {
            Some((uid, gid)) => Self {
                name: uid.to_string(),
                uid,
                gid,
                home: "/".into(),
            },
            None => {
                let users = fs::read_to_string(USERS).map_err(UserError::Users)?;
                let mut users = users.lines().filter_map(parse);
                users
                    .find(|user| user.name == name)
                    .ok_or_else(|| UserError::Unknown(name.to_owned()))?
            }
        };
        if user.uid == geteuid().as_raw() {
            return Ok(None);
        }
        let held = capabilities(None).map(|sets| sets.effective);
        match held.is_ok_and(|held| held.contains(NEEDED)) {
            true => Ok(Some(user)),
            false => Err(UserError::NotAllowed(name.to_owned())),
        }
    }
}

/// A line of `/etc/passwd`: name, password, uid, gid, comment, home, shell.
fn parse(line: &str) -> Option<User> {
    let mut fields = line.split(':');
    let name = fields.next()?.to_owned();
    let (uid, gid) = numbers(fields.nth(1)?, fields.next()?)?;
    let home = Path::new(fields.nth(1)?).to_owned();
    Some(User {
        name,
        uid,
        gid,
        home,
    })
}

/// Numbers of a user and its group; `None` for texts that are not, and for the number that means "unchanged".
pub(super) fn numbers(uid: &str, gid: &str) -> Option<(u32, u32)> {
    let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
    (uid != u32::MAX && gid != u32::MAX).then_some((uid, gid))
}

/// Switches what this thread starts from now on: only this group, no capability kept, none gained by a program. The
/// caller sets user and group of the program itself.
pub(super) fn give_up_rights(gid: Gid) -> rustix::io::Result<()> {
    use rustix::thread::{clear_ambient_capability_set, set_no_new_privs, set_thread_groups};
    set_thread_groups(&[gid])?;
    clear_ambient_capability_set()?;
    set_no_new_privs(true)
}

/// Gives the pipes that are this process's standard streams to the user, so that its programs can open `/dev/stdout`.
pub(super) fn hand_over_pipes(uid: Uid, gid: Gid) -> rustix::io::Result<()> {
    use rustix::fs::{FileType, fchown, fstat};
    for stream in [
        rustix::stdio::stdin(),
        rustix::stdio::stdout(),
        rustix::stdio::stderr(),
    ] {
        // Anything else has an owner that others rely on.
        if FileType::from_raw_mode(fstat(stream)?.st_mode) == FileType::Fifo {
            fchown(stream, Some(uid), Some(gid))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_read_from_its_line() {
        let user = parse("agent:x:1002:1003:An agent,,,:/home/agent:/bin/sh").unwrap();
        assert_eq!((user.uid, user.gid), (1002, 1003));
        assert_eq!(user.home, Path::new("/home/agent"));
        for line in [
            "",
            "agent",
            "agent:x:-1:2::/:/",
            "agent:x:4294967295:2::/:/",
        ] {
            assert_eq!(parse(line), None, "{line}");
        }
    }

    #[test]
    fn an_unknown_user_is_named_and_the_own_one_is_none() {
        let error = User::find("no-such-user").unwrap_err().to_string();
        assert!(error.contains("no-such-user"), "{error}");
        let own = format!("{}:0", geteuid().as_raw());
        assert_eq!(User::find(&own).unwrap(), None);
    }
}
