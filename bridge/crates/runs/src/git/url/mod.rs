//! Addresses of repositories: rules for the text that a caller sends. No program is started for an address that these
//! refuse.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use url::Url;

mod pattern;

pub(crate) use pattern::ByUrl;
pub(super) use pattern::UrlPattern;

use forge_base::text::is_unseen;
use forge_net::guard::{Guard, Refused};

/// Longest address.
const URL_BYTES: usize = 2048;
/// Characters that servers decode to a separator, a dot or the end of a text.
const ENCODED: [&str; 5] = ["%2f", "%5c", "%2e", "%00", "%25"];

/// Rules for addresses: what `runs.repositories` names, or if it names nothing, `https` without credentials; and folders
/// below `runs.local_roots`.
#[derive(Clone, Debug)]
pub struct UrlRules {
    named: Vec<UrlPattern>,
    roots: Vec<PathBuf>,
    guard: Guard,
}

/// Address of a repository that the rules allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepoUrl(pub(super) Place);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// `https`, or `http` that the operator names.
    Web(Url),
    Ssh(Url),
    /// Real path of a folder.
    Local(PathBuf),
}

impl fmt::Display for RepoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Web(url) | Place::Ssh(url) => f.write_str(url.as_str()),
            Place::Local(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Entry of a setting that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadRule {
    #[error(
        "{0:?} names no repositories; an address or its beginning was expected, as https://git.example.com/team, \
         ssh://git@…, https://git.example.com/sh* or, for checks, file:///srv/git"
    )]
    Pattern(String),
    #[error("two keys are spellings of {0}; keep one")]
    Twice(String),
    #[error("{} of runs.local_roots cannot be opened", path.display())]
    Root {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Reason why an address is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefusedUrl {
    #[error("the address of the repository {0}")]
    Form(&'static str),
    /// It is none of those in a list that is not empty.
    #[error(
        "the address of the repository is not in runs.repositories, which names all that are allowed"
    )]
    NotListed,
    #[error(
        "the address of the repository begins with {0}://, which is allowed only where runs.repositories names it"
    )]
    NotNamed(String),
    #[error(
        "the address of the repository has the scheme {0}; https was expected, or http or ssh where runs.repositories \
         names it"
    )]
    Scheme(String),
    #[error(transparent)]
    Guard(#[from] Refused),
}

impl RefusedUrl {
    /// True if there is no repository at an address of an allowed form, which can be so for a while.
    pub(super) fn is_absent(&self) -> bool {
        [NOT_LOCAL, NO_REPOSITORY].contains(self)
    }
}

const LENGTH: RefusedUrl = RefusedUrl::Form("is empty or longer than 2,048 bytes");
const CHARACTERS: RefusedUrl =
    RefusedUrl::Form("contains a space, a backslash, a control character or one that is not ASCII");
const OPTION: RefusedUrl =
    RefusedUrl::Form("or a part of it begins with a dash, so it could be an option");
const HELPER: RefusedUrl = RefusedUrl::Form("selects a transport helper (::)");
const SHAPE: RefusedUrl =
    RefusedUrl::Form("is not a URL; one such as https://host/path was expected");
const CREDENTIALS: RefusedUrl = RefusedUrl::Form(
    "contains a user name or password; the operator sets credentials in runs.authorization",
);
const PARTS: RefusedUrl =
    RefusedUrl::Form("must have a host and a path, and neither a query nor a fragment");
const ENCODING: RefusedUrl =
    RefusedUrl::Form("has a path with encoded separators, dots or percent signs");
const NOT_LOCAL: RefusedUrl =
    RefusedUrl::Form("is a path, and not one of a folder below runs.local_roots");
const NO_REPOSITORY: RefusedUrl = RefusedUrl::Form("names a folder without a repository");
const ELSEWHERE: RefusedUrl = RefusedUrl::Form(
    "names a repository with files elsewhere (a linked work tree, alternates or symbolic links)",
);

impl UrlRules {
    pub fn new(named: &[String], roots: &[PathBuf], guard: Guard) -> Result<Self, BadRule> {
        let root = |path: &PathBuf| {
            let real = fs::canonicalize(path);
            real.map_err(|source| BadRule::Root {
                path: path.clone(),
                source,
            })
        };
        Ok(Self {
            named: named
                .iter()
                .map(|entry| UrlPattern::remote(entry))
                .collect::<Result<_, _>>()?,
            roots: roots.iter().map(root).collect::<Result<_, _>>()?,
            guard,
        })
    }

    pub(super) fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Applies the rules. Names are resolved, and their addresses checked, when the repository is called.
    pub fn check(&self, text: &str) -> Result<RepoUrl, RefusedUrl> {
        if !(1..=URL_BYTES).contains(&text.len()) {
            return Err(LENGTH);
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) || text.contains('\\') {
            return Err(CHARACTERS);
        }
        if text.starts_with('-') {
            return Err(OPTION);
        }
        if text.contains("::") && !text.contains("://[") {
            return Err(HELPER);
        }
        if text.starts_with('/') {
            return self.local(Path::new(text));
        }
        let url = Url::parse(text).map_err(|_| SHAPE)?;
        if url.query().is_some() || url.fragment().is_some() {
            return Err(PARTS);
        }
        let path = url.path().to_ascii_lowercase();
        if ENCODED.iter().any(|encoded| path.contains(encoded)) {
            return Err(ENCODING);
        }
        if url.scheme() == "file" {
            let path = url.to_file_path().map_err(|()| PARTS)?;
            return self.local(&path);
        }
        self.remote(&url)
    }

    fn remote(&self, url: &Url) -> Result<RepoUrl, RefusedUrl> {
        let is_ssh = match url.scheme() {
            "https" | "http" => false,
            "ssh" => true,
            other => return Err(RefusedUrl::Scheme(other.to_owned())),
        };
        if !has_host_and_path(url) {
            return Err(PARTS);
        }
        if url.password().is_some() || (!is_ssh && !url.username().is_empty()) {
            return Err(CREDENTIALS);
        }
        if url.username().starts_with('-')
            || url.host_str().is_some_and(|host| host.starts_with('-'))
        {
            return Err(OPTION);
        }
        let place = if is_ssh { Place::Ssh } else { Place::Web };
        let checked = pattern::checked(place(url.clone())).ok_or(SHAPE)?;
        let is_public = url.scheme() == "https" && self.named.is_empty();
        if !is_public && !self.named.iter().any(|pattern| pattern.allows(&checked)) {
            return Err(match self.named.is_empty() {
                true => RefusedUrl::NotNamed(url.scheme().to_owned()),
                false => RefusedUrl::NotListed,
            });
        }
        if !is_ssh {
            self.guard.check_url(url)?;
        }
        Ok(checked)
    }

    fn local(&self, path: &Path) -> Result<RepoUrl, RefusedUrl> {
        let real = fs::canonicalize(path);
        // Outside of the roots, an answer would tell which paths exist.
        let real = real.map_err(|_| NOT_LOCAL)?;
        let below = |root: &PathBuf| real.starts_with(root);
        let is_plain = real.to_str().is_some_and(|path| !path.contains(is_unseen));
        if !self.roots.iter().any(below) || !is_plain {
            return Err(NOT_LOCAL);
        }
        check_repository(&real)?;
        Ok(RepoUrl(Place::Local(real)))
    }
}

fn has_host_and_path(url: &Url) -> bool {
    url.host_str().is_some_and(|host| !host.is_empty()) && url.path().len() > 1
}

/// Refuses a repository that leads git to files outside of its folder.
fn check_repository(folder: &Path) -> Result<(), RefusedUrl> {
    let inner = folder.join(".git");
    let kind = |path: &Path| {
        fs::symlink_metadata(path)
            .map(|metadata| metadata.file_type())
            .ok()
    };
    let git = match kind(&inner) {
        None => folder.to_owned(),
        Some(kind) if kind.is_dir() => inner,
        Some(_) => return Err(ELSEWHERE),
    };
    if ![kind(&git.join("objects")), kind(&git.join("refs"))]
        .iter()
        .all(Option::is_some)
    {
        return Err(NO_REPOSITORY);
    }
    let linked = |name: &&str| kind(&git.join(name)).is_some_and(|kind| kind.is_symlink());
    let borrowed = |name: &&str| kind(&git.join(name)).is_some();
    let links = [
        "HEAD",
        "config",
        "objects",
        "objects/info",
        "objects/pack",
        "refs",
        "packed-refs",
    ];
    match links.iter().any(linked)
        || ["commondir", "objects/info/alternates"]
            .iter()
            .any(borrowed)
    {
        true => Err(ELSEWHERE),
        false => Ok(()),
    }
}

fn without_credentials(entry: &str) -> String {
    match entry.rsplit_once('@') {
        Some((_, rest)) => format!("[hidden]@{rest}"),
        None => entry.to_owned(),
    }
}

#[cfg(test)]
mod tests;
