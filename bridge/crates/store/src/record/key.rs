//! Idempotency keys and the callers that they belong to.

use std::fmt;

use serde::{Deserialize, Serialize};

use forge_base::digest::{Hasher, hex};

/// Namespace of an idempotency key; a header value never matches a task id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum KeySpace {
    /// The `Idempotency-Key` header.
    Header,
    /// The `taskId`, when there is no header.
    Task,
}

/// Owner of idempotency keys, by the beginning of a digest of its name. Keys of different owners never meet.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct KeyOwner([u8; 16]);

impl KeyOwner {
    /// All callers, where none has a name: no authentication is configured.
    pub const EVERYONE: Self = Self([0; 16]);

    /// Owner of this kind and these names; other kinds and names are another owner.
    pub fn of(kind: &str, names: &[Option<&str>]) -> Self {
        let mut hasher = Hasher::default();
        for name in std::iter::once(&Some(kind)).chain(names) {
            let length = name.map_or(u64::MAX, |name| name.len() as u64);
            hasher.update(&length.to_be_bytes());
            hasher.update(name.unwrap_or_default().as_bytes());
        }
        let digest = hasher.finish();
        Self(*digest.first_chunk().expect("SHA-256 has 32 bytes"))
    }
}

/// The form of a column.
impl fmt::Display for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for KeyOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyOwner({self})")
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IdempotencyKey {
    pub owner: KeyOwner,
    pub space: KeySpace,
    pub value: String,
}

/// Key of a run: the `Idempotency-Key` header of one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunKey {
    pub owner: KeyOwner,
    pub value: String,
}

impl RunKey {
    /// Text of a column. It begins with a character that no header can have, so that it is no key of a store of before.
    pub fn stored(&self) -> String {
        format!("\u{1}{}:{}", self.owner, self.value)
    }

    /// Text by which a store of before, whose keys had no owners, has the key.
    pub fn of_before(&self) -> &str {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_differ_by_each_part_of_their_names() {
        let owners = [
            KeyOwner::EVERYONE,
            KeyOwner::of("token", &[]),
            KeyOwner::of("token", &[Some("ab"), Some("c")]),
            KeyOwner::of("token", &[Some("a"), Some("bc")]),
            KeyOwner::of("token", &[None, Some("abc")]),
            KeyOwner::of("token", &[Some(""), Some("abc")]),
            KeyOwner::of("jwt", &[Some("ab"), Some("c")]),
        ];
        let texts: std::collections::BTreeSet<_> = owners.iter().map(KeyOwner::to_string).collect();
        assert_eq!(texts.len(), owners.len());
        assert!(texts.iter().all(|text| text.len() == 32), "{texts:?}");
    }
}
