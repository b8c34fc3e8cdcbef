//! Checks a library's manifest against what this bridge can serve. Pure.

use forge_adapter_api::foreign_json;
use std::path::Path;

use forge_adapter_api::Manifest;

use crate::boundary::load_error::LoadError;

/// The JSON schema version that this bridge speaks.
pub(crate) const SCHEMA: u32 = 1;

/// Language of the library, known from its entry symbol: only Rust code can panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Other,
}

/// Reads and checks a manifest.
pub(crate) fn read(
    bytes: &[u8],
    path: &Path,
    provider: &str,
    language: Language,
) -> Result<Manifest, LoadError> {
    let manifest: Manifest =
        foreign_json::from_slice(bytes).map_err(|error| LoadError::Manifest {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
    let (min, max) = (manifest.schema.min, manifest.schema.max);
    if !(min..=max).contains(&SCHEMA) {
        return Err(LoadError::Schema {
            path: path.to_owned(),
            min,
            max,
            wanted: SCHEMA,
        });
    }
    let unwinds = match language {
        Language::Rust => manifest.panic == "unwind",
        Language::Other => manifest.panic != "abort",
    };
    if !unwinds {
        return Err(LoadError::PanicStrategy {
            path: path.to_owned(),
            found: manifest.panic,
        });
    }
    if manifest.provider != provider {
        return Err(LoadError::Provider {
            path: path.to_owned(),
            found: manifest.provider,
            wanted: provider.to_owned(),
        });
    }
    Ok(manifest)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_manifest_that_does_not_fit_is_refused_in_one_line() {
        let good = json!({"name": "a", "version": "1", "provider": "a",
            "schema": {"min": 1, "max": 3}, "panic": "unwind"});
        let with = |key: &str, value: serde_json::Value| {
            let mut manifest = good.clone();
            manifest[key] = value;
            manifest
        };
        let table = [
            (good.clone(), Language::Rust, None),
            (
                with("panic", "abort".into()),
                Language::Rust,
                Some("unwind"),
            ),
            (with("panic", "".into()), Language::Rust, Some("unwind")),
            (with("panic", "".into()), Language::Other, None),
            (
                with("panic", "abort".into()),
                Language::Other,
                Some("unwind"),
            ),
            (with("provider", "b".into()), Language::Rust, Some(r#""b""#)),
            (
                with("schema", json!({"min": 2, "max": 4})),
                Language::Rust,
                Some("2 to 4, this bridge 1"),
            ),
            (with("schema", json!("1")), Language::Rust, Some("manifest")),
        ];
        for (manifest, language, expected) in table {
            let bytes = manifest.to_string().into_bytes();
            let found = read(&bytes, Path::new("/x.so"), "a", language);
            match expected {
                None => assert!(found.is_ok(), "{manifest}: {:?}", found.err()),
                Some(text) => {
                    let line = found.unwrap_err().to_string();
                    assert!(line.contains(text) && !line.contains('\n'), "{line}");
                }
            }
        }
    }
}
