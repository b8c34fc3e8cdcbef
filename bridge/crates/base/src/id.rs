//! Ids made by the bridge: a prefix and a UUIDv7, so that they sort by age.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize, Serializer};
use uuid::Uuid;
use uuid::fmt::Simple;

/// Three letters and an underscore.
const PREFIX_BYTES: usize = 4;
const TEXT_BYTES: usize = PREFIX_BYTES + Simple::LENGTH;

/// Text that is not an id of the expected kind.
#[derive(Debug, thiserror::Error)]
#[error("{text:?} is not an id of the form {prefix}_<uuid>")]
pub struct ParseIdError {
    text: String,
    prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Uuid);

        impl $name {
            #[doc = concat!("A new id, `", $prefix, "_` and a UUIDv7 of now.")]
            #[expect(clippy::new_without_default, reason = "every call gives another value")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The UUID as the store keeps it.
            pub fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }

            /// Id with this UUID.
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// Avoids an allocation: an id is written a dozen times for each dispatch.
            fn text<'a>(&self, buffer: &'a mut [u8; TEXT_BYTES]) -> &'a str {
                let (prefix, digits) = buffer.split_at_mut(PREFIX_BYTES);
                prefix.copy_from_slice(concat!($prefix, "_").as_bytes());
                self.0.simple().encode_lower(digits);
                std::str::from_utf8(buffer).expect("letters and digits")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text(&mut [0; TEXT_BYTES]))
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.strip_prefix(concat!($prefix, "_"))
                    .filter(|rest| rest.len() == 32 && !rest.bytes().any(|b| b.is_ascii_uppercase()))
                    .and_then(|rest| Uuid::try_parse(rest).ok())
                    .map(Self)
                    .ok_or_else(|| ParseIdError { text: text.to_owned(), prefix: $prefix })
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseIdError;

            fn try_from(text: String) -> Result<Self, ParseIdError> {
                text.parse()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(self.text(&mut [0; TEXT_BYTES]))
            }
        }
    };
}

id!(
    /// Accepted dispatch.
    DispatchId,
    "dsp"
);
id!(
    /// Delivery of one result to its callback URL; the `webhook-id` of every attempt.
    DeliveryId,
    "dlv"
);

impl DeliveryId {
    /// Delivery of a dispatch, which has at most one. Both ids have the same UUID.
    pub fn of(dispatch: DispatchId) -> Self {
        Self(dispatch.0)
    }
}

id!(
    /// Run: a plan that is carried out by dispatches.
    RunId,
    "run"
);
id!(
    /// HTTP request; part of every error body and log line about it.
    RequestId,
    "req"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_its_text() {
        let id = DispatchId::new();
        assert_eq!(id.to_string().parse::<DispatchId>().unwrap(), id);
    }

    #[test]
    fn an_id_has_one_spelling() {
        let id = DispatchId::new().to_string();
        for other in [
            id.to_uppercase(),
            id.replace("dsp_", "dsp_{"),
            format!("{id}0"),
        ] {
            assert!(other.parse::<DispatchId>().is_err(), "{other}");
        }
        let upper = "dsp_1215640012012345640012230456785A";
        assert!(upper.parse::<DispatchId>().is_err());
    }

    #[test]
    fn another_prefix_is_refused() {
        let delivery = DeliveryId::new().to_string();
        assert!(delivery.parse::<DispatchId>().is_err());
    }
}
