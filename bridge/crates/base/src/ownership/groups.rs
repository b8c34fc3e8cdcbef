//! Local user and group names, to recognise a user's private group.

pub(super) struct Groups {
    pub(super) passwd: String,
    pub(super) group: String,
}

impl Groups {
    pub(super) fn read() -> Self {
        // A system without these files has no names: then only equal numbers are a private group.
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            passwd: read("/etc/passwd"),
            group: read("/etc/group"),
        }
    }

    /// True if the group is the user's private one: same number or same name, and no other members.
    pub(super) fn is_own(&self, gid: u32, uid: u32) -> bool {
        let user = line_of(&self.passwd, uid);
        let group = line_of(&self.group, gid);
        let members = group.and_then(|line| line.split(':').nth(3)).unwrap_or("");
        let name =
            |line: Option<&str>| line.and_then(|line| line.split(':').next().map(str::to_owned));
        let own = gid == uid || (user.is_some() && name(user) == name(group));
        own && members
            .split(',')
            .all(|member| member.is_empty() || Some(member.to_owned()) == name(user))
    }
}

/// The line whose third field is `id`.
fn line_of(table: &str, id: u32) -> Option<&str> {
    let id = id.to_string();
    table
        .lines()
        .find(|line| line.split(':').nth(2) == Some(id.as_str()))
}
