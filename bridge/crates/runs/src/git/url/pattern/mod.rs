//! Keys of settings that name repositories. They are compared with an address by meaning, so that no other spelling of
//! the address gets around a setting.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

use percent_encoding::percent_decode_str;
use url::{Host, Url};

use super::{BadRule, ENCODED, Place, RepoUrl, without_credentials};

const SSH_PORT: u16 = 22;

/// Address of a repository, or the beginning of addresses, as a setting has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::git) struct UrlPattern {
    beginning: Meaning,
    end: End,
}

/// Parts of an address that select a repository, each in one form.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Meaning {
    origin: Origin,
    /// User of `ssh`; empty: none.
    user: Vec<u8>,
    /// Parts of the path, decoded, without empty ones and without the `.git` of the last one.
    path: Vec<Vec<u8>>,
    /// The last part was written with `.git`.
    has_suffix: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Local,
    Remote {
        scheme: String,
        host: String,
        port: Option<u16>,
    },
}

/// Addresses that a pattern covers, besides that of its beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
enum End {
    /// None: it was written with `.git`, so it is the address of one repository.
    Repository,
    /// All below it.
    Below,
    /// All below it whose next part begins with this, instead of its own: it was written with a `*`.
    Part(Vec<u8>),
}

/// Address whose parts can be compared; `None` if its host is none.
pub(super) fn checked(place: Place) -> Option<RepoUrl> {
    let is_comparable = match &place {
        Place::Web(url) | Place::Ssh(url) => Meaning::of_url(url).is_some(),
        Place::Local(_) => true,
    };
    is_comparable.then_some(RepoUrl(place))
}

impl UrlPattern {
    /// Parses an address, or its beginning up to a `*` at the end.
    pub(super) fn parse(entry: &str) -> Result<Self, BadRule> {
        Self::read(entry).ok_or_else(|| BadRule::Pattern(without_credentials(entry)))
    }

    /// Parses a pattern of a setting that has no effect on repositories of this machine.
    pub(in crate::git) fn remote(entry: &str) -> Result<Self, BadRule> {
        let pattern = Self::parse(entry)?;
        match pattern.beginning.origin {
            Origin::Local => Err(BadRule::Pattern(entry.to_owned())),
            Origin::Remote { .. } => Ok(pattern),
        }
    }

    fn read(entry: &str) -> Option<Self> {
        let (whole, part) = match entry.strip_suffix('*') {
            None => (entry, None),
            // The host cannot be cut: what follows it decides whose address it is.
            Some(cut) => {
                let after = cut.find("://").map_or(0, |colon| colon + 3);
                let (whole, part) = cut.split_at(after + cut[after..].rfind('/')? + 1);
                (whole, Some(decoded(part)))
            }
        };
        if whole.contains('*') || part.as_ref().is_some_and(|part| part.contains(&b'*')) {
            return None;
        }
        let beginning = Meaning::read(whole)?;
        let end = match part {
            Some(part) => End::Part(part),
            None if beginning.has_suffix => End::Repository,
            None => End::Below,
        };
        Some(Self { beginning, end })
    }

    /// True if the address, as any user, is that of this pattern or below it.
    fn covers(&self, url: &Meaning) -> bool {
        let Some(rest) = url.path.strip_prefix(&*self.beginning.path) else {
            return false;
        };
        let is_covered = match (&self.end, rest) {
            (End::Below, _) | (End::Repository, []) => true,
            (End::Repository, _) | (End::Part(_), []) => false,
            (End::Part(part), [only]) => [only, &b".git"[..]].concat().starts_with(part),
            (End::Part(part), [first, ..]) => first.starts_with(part),
        };
        is_covered && self.beginning.origin == url.origin
    }

    /// True if the address is one that this pattern allows: it covers it, and names its user.
    pub(super) fn allows(&self, url: &RepoUrl) -> bool {
        let url = Meaning::of(url);
        self.covers(&url) && self.beginning.user == url.user
    }

    /// Order of patterns that cover the same address: the narrowest is the greatest.
    fn width(&self) -> (usize, usize, bool) {
        let part = match &self.end {
            End::Part(part) => part.len(),
            End::Repository | End::Below => 0,
        };
        let path = self.beginning.path.len();
        (path, part, self.end == End::Repository)
    }
}

impl Meaning {
    fn of(url: &RepoUrl) -> Self {
        let meaning = match &url.0 {
            Place::Web(url) | Place::Ssh(url) => Self::of_url(url),
            Place::Local(path) => Some(Self::of_path(path)),
        };
        meaning.expect("the rules have checked the address")
    }

    fn read(entry: &str) -> Option<Self> {
        if entry.starts_with('/') {
            return Some(Self::of_path(&real(Path::new(entry))));
        }
        let url = Url::parse(entry).ok()?;
        let path = url.path().to_ascii_lowercase();
        let is_plain = url.query().is_none()
            && url.fragment().is_none()
            && !ENCODED.iter().any(|encoded| path.contains(encoded));
        if !is_plain || url.password().is_some() {
            return None;
        }
        match url.scheme() {
            "file" => Some(Self::of_path(&real(&url.to_file_path().ok()?))),
            "https" | "http" if !url.username().is_empty() => None,
            "https" | "http" | "ssh" => Self::of_url(&url),
            _ => None,
        }
    }

    fn of_url(url: &Url) -> Option<Self> {
        // A URL of ssh has the host as it was written.
        let host = percent_decode_str(url.host_str()?).decode_utf8().ok()?;
        let host = Host::parse(&host).ok()?.to_string();
        let port = url.port_or_known_default();
        let origin = Origin::Remote {
            scheme: url.scheme().to_owned(),
            host: host.trim_end_matches('.').to_owned(),
            port: port.or((url.scheme() == "ssh").then_some(SSH_PORT)),
        };
        let parts = url.path().split('/').map(decoded);
        Some(Self::new(origin, decoded(url.username()), parts))
    }

    fn of_path(path: &Path) -> Self {
        let parts = path.components().filter_map(|part| match part {
            Component::Normal(name) => Some(name.as_bytes().to_vec()),
            _ => None,
        });
        Self::new(Origin::Local, Vec::new(), parts)
    }

    fn new(origin: Origin, user: Vec<u8>, parts: impl Iterator<Item = Vec<u8>>) -> Self {
        let mut path: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        let last = path.last_mut();
        let stem = last.as_ref().and_then(|last| last.strip_suffix(b".git"));
        let stem = stem.map(<[u8]>::len);
        if let (Some(last), Some(stem)) = (last, stem) {
            last.truncate(stem);
        }
        // The repository in a work tree: `shop/.git`.
        path.retain(|part| !part.is_empty());
        Self {
            origin,
            user,
            path,
            has_suffix: stem.is_some(),
        }
    }
}

/// Settings that belong to repositories by their addresses.
#[derive(Clone, Debug)]
pub(crate) struct ByUrl<T>(Vec<(UrlPattern, T)>);

impl<T> ByUrl<T> {
    pub(in crate::git) fn new(
        entries: impl IntoIterator<Item = (UrlPattern, T)>,
    ) -> Result<Self, BadRule> {
        let mut kept: Vec<(UrlPattern, T)> = Vec::new();
        for (pattern, value) in entries {
            if kept.iter().any(|(known, _)| *known == pattern) {
                return Err(BadRule::Twice(pattern.to_string()));
            }
            kept.push((pattern, value));
        }
        Ok(Self(kept))
    }

    /// Parses the keys of a setting, for repositories of all kinds.
    pub(crate) fn parse(entries: impl IntoIterator<Item = (String, T)>) -> Result<Self, BadRule> {
        let entries = entries.into_iter();
        let entries = entries.map(|(key, value)| Ok((UrlPattern::parse(&key)?, value)));
        Self::new(entries.collect::<Result<Vec<_>, BadRule>>()?)
    }

    /// Value of the narrowest pattern that covers the address, whichever user it names.
    pub(crate) fn get(&self, url: &RepoUrl) -> Option<&T> {
        let url = Meaning::of(url);
        let covering = self.0.iter().filter(|(pattern, _)| pattern.covers(&url));
        let narrowest = covering.max_by_key(|(pattern, _)| pattern.width());
        narrowest.map(|(_, value)| value)
    }
}

impl std::fmt::Display for UrlPattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Meaning { origin, path, .. } = &self.beginning;
        match origin {
            Origin::Local => f.write_str("file://")?,
            Origin::Remote { scheme, host, .. } => write!(f, "{scheme}://{host}")?,
        }
        let parts = path.iter();
        parts
            .map(|part| String::from_utf8_lossy(part))
            .try_for_each(|part| write!(f, "/{part}"))
    }
}

fn decoded(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// Path without links, as far as it exists, and without dots.
fn real(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            plain.pop();
            continue;
        }
        plain.push::<&OsStr>(part.as_ref());
        plain = fs::canonicalize(&plain).unwrap_or(plain);
    }
    plain
}

#[cfg(test)]
mod tests;
