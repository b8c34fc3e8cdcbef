//! Secrets in a config `struct`: read like any text, serialised as nothing, so a printed or serialised
//! configuration never contains one. For `#[serde(with = "crate::config::secret")]` on an
//! `Option<SecretString>`, `secret::list` on a `Vec<SecretString>`, `secret::map` on a `BTreeMap<String,
//! SecretString>`.

use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serializer};

pub fn serialize<S: Serializer>(
    _secret: &Option<SecretString>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.serialize_none()
}

pub fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(SecretString::from))
}

/// Variant for a list.
pub mod list {
    use super::{Deserialize, Deserializer, SecretString, Serializer};

    pub fn serialize<S: Serializer>(
        _secrets: &[SecretString],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(std::iter::empty::<()>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<SecretString>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        Ok(texts.into_iter().map(SecretString::from).collect())
    }
}

/// Variant for a map.
pub mod map {
    use std::collections::BTreeMap;

    use super::{Deserialize, Deserializer, SecretString, Serializer};

    pub fn serialize<S: Serializer>(
        _secrets: &BTreeMap<String, SecretString>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_map(std::iter::empty::<((), ())>())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<String, SecretString>, D::Error> {
        let texts = BTreeMap::<String, String>::deserialize(deserializer)?;
        Ok(texts
            .into_iter()
            .map(|(name, text)| (name, text.into()))
            .collect())
    }
}
