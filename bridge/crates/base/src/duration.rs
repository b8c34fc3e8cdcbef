//! Durations in the notation of the config file: `"250ms"`, `"30s"`, `"5m"`, `"24h"`, `"7d"`. For
//! `#[serde(with = "crate::config::duration")]`.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serializer};

/// Units with their milliseconds, ascending.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Parses a whole number and a unit; several can follow each other, as in `"1h30m"`.
pub fn parse(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut millis: u64 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        let after = &rest[digits..];
        let end = after
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(after.len());
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == &after[..end])?;
        millis = millis.checked_add(number.checked_mul(*factor)?)?;
        rest = &after[end..];
    }
    Some(Duration::from_millis(millis))
}

/// Formats with the largest unit that divides the duration; fractions of a millisecond are truncated.
pub fn format(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let exact = UNITS
        .iter()
        .rev()
        .find(|(_, factor)| millis > 0 && millis % factor == 0);
    match exact {
        Some((unit, factor)) => format!("{}{unit}", millis / factor),
        None => "0s".to_owned(),
    }
}

pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&format(*duration))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| {
        serde::de::Error::custom(format_args!(
            "wanted a duration such as \"250ms\", \"30s\", \"5m\", \"24h\" or \"7d\", found {text:?}"
        ))
    })
}

/// Variant for an optional duration.
pub mod option {
    use super::{Deserialize, Deserializer, Duration, Serializer};

    pub fn serialize<S: Serializer>(
        duration: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        match duration {
            Some(duration) => super::serialize(duration, serializer),
            None => serializer.serialize_none(),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Given(#[serde(with = "super")] Duration);
        Ok(Option::<Given>::deserialize(deserializer)?.map(|given| given.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_a_unit() {
        let table = [
            ("250ms", Some(250)),
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("1h30m", Some(5_400_000)),
            ("7d", Some(604_800_000)),
            ("0s", Some(0)),
            ("", None),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("5 minutes", None),
            ("99999999999999999999s", None),
            ("18446744073709551615d", None),
        ];
        for (text, millis) in table {
            assert_eq!(parse(text), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in ["250ms", "30s", "90s", "2h", "7d", "0s"] {
            assert_eq!(format(parse(text).unwrap()), text);
        }
    }
}
