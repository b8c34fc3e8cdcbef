//! A library's description of itself and its log records, before they are trusted.

use forge_adapter_api::Profile;
use forge_plugin_host::fuzzing;
use serde_json::Value;

/// Input: a byte that selects the reader, and the bytes to read.
pub(crate) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    match choice % 6 {
        0 => {
            if let Ok(manifest) = fuzzing::manifest(bytes) {
                assert_eq!(
                    (manifest.provider.as_str(), manifest.panic.as_str()),
                    ("echo", "unwind")
                );
            }
        }
        1 => {
            if let Ok(profile) = serde_json::from_slice::<Profile>(bytes) {
                let text = serde_json::to_vec(&profile).unwrap();
                let again: Profile = serde_json::from_slice(&text).unwrap();
                assert_eq!(again, profile);
            }
        }
        2 => {
            if let Err(why) = fuzzing::format(bytes, bytes.len() as u64) {
                assert!(!why.is_empty() && !why.contains('\n'), "{why:?}");
            }
        }
        3 => {
            let (message, rest) = fuzzing::record(&String::from_utf8_lossy(bytes));
            assert!(
                message.len() <= 8 * bytes.len()
                    && rest.is_none_or(|rest| rest.len() <= 8 * bytes.len())
            );
        }
        4 => {
            let error = fuzzing::error(bytes);
            assert!(!error.code.is_empty() && error.code.len() <= 256);
        }
        _ => beginning(bytes),
    }
}

/// Checks that the output found in a truncated answer is that of the whole answer, or a prefix of it.
fn beginning(bytes: &[u8]) {
    let Ok(Value::Object(whole)) = serde_json::from_slice::<Value>(bytes) else {
        fuzzing::beginning(bytes, bytes.len());
        return;
    };
    let once =
        bytes.windows(8).filter(|key| key == b"\"output\"").count() == 1 && !bytes.contains(&b'\\');
    let Some(Value::String(output)) = whole.get("output").filter(|_| once) else {
        fuzzing::beginning(bytes, bytes.len());
        return;
    };
    for end in 0..=bytes.len() {
        if let Some(found) = fuzzing::beginning(&bytes[..end], bytes.len())["output"].as_str() {
            assert!(output.starts_with(found), "{found:?} of {output:?}");
        }
    }
    let found = fuzzing::beginning(bytes, bytes.len());
    assert_eq!(found["output"].as_str(), Some(output.as_str()));
}
