//! Settings, template and environment of git: nothing that a repository contains decides what runs.

use std::ffi::OsString;
use std::path::Path;

/// Settings of every step, stronger than those of any repository: no hook, monitor, submodule, redirect or helper, and
/// nothing in the background.
pub(super) const SETTINGS: [(&str, &str); 27] = [
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    // The rules for addresses decide which repositories are used, and nothing that they contain is run.
    ("safe.directory", "*"),
    // A commit that the log of a run names has to survive the machine.
    ("core.fsync", "committed,loose-object,reference"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.alternateRefsCommand", ":"),
    // Files that are derived from objects, and can say something else than these.
    ("core.commitGraph", "false"),
    ("core.multiPackIndex", "false"),
    ("core.protectHFS", "true"),
    ("core.protectNTFS", "true"),
    ("protocol.ext.allow", "never"),
    ("protocol.fd.allow", "never"),
    ("submodule.recurse", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("push.recurseSubmodules", "no"),
    ("fetch.fsckObjects", "true"),
    // Found in old repositories, and harmless.
    ("fetch.fsck.zeroPaddedFilemode", "ignore"),
    ("fetch.fsck.badTimezone", "ignore"),
    ("fetch.fsck.missingSpaceBeforeDate", "ignore"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    // What a folder is renamed to is no question of a merge.
    ("merge.directoryRenames", "false"),
    ("credential.helper", ""),
    ("http.followRedirects", "false"),
    ("http.lowSpeedLimit", "1"),
    ("http.lowSpeedTime", "60"),
];

/// Attributes of every repository that is made here. What is checked out and committed are the bytes of the repository:
/// no filter, line ending, keyword or encoding is applied, whatever `.gitattributes` says.
pub(super) const ATTRIBUTES: &str = "* -filter -text -eol -ident -working-tree-encoding\n";

/// Settings of a repository that is made here, with ids of this length.
pub(super) fn repository(is_bare: bool, digits: usize) -> String {
    let (version, ids) = match digits {
        64 => (1, "[extensions]\n\tobjectFormat = sha256\n"),
        _ => (0, ""),
    };
    format!(
        "[core]\n\trepositoryFormatVersion = {version}\n\tbare = {is_bare}\n{ids}[gc]\n\tauto = 0\n\
         [user]\n\tname = agent\n\temail = agent@localhost\n"
    )
}

/// Environment of every step, without any variable of the bridge.
pub(super) fn environment(program: &Path, home: &Path) -> Vec<(&'static str, OsString)> {
    let own = program.parent().unwrap_or(Path::new("/"));
    let path = std::env::join_paths([own, Path::new("/usr/bin"), Path::new("/bin")]);
    let fixed = [
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_ATTR_NOSYSTEM", "1"),
        ("GIT_TERMINAL_PROMPT", "0"),
        ("GIT_OPTIONAL_LOCKS", "0"),
        ("GIT_NO_REPLACE_OBJECTS", "1"),
        ("GIT_NO_LAZY_FETCH", "1"),
        ("GIT_DEFAULT_REF_FORMAT", "files"),
        // Steps that call a remote allow its protocol.
        ("GIT_ALLOW_PROTOCOL", "none"),
        (
            "GIT_SSH_COMMAND",
            "ssh -F /dev/null -oBatchMode=yes -oClearAllForwardings=yes",
        ),
    ];
    let fixed = fixed.map(|(name, value)| (name, OsString::from(value)));
    let found = [("PATH", path.unwrap_or_default()), ("HOME", home.into())];
    fixed.into_iter().chain(found).collect()
}
