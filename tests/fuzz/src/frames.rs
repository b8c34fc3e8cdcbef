//! Messages between the bridge and an adapter's process: frames to its child, lines to a program.

use forge_plugin_host::fuzzing;
use serde_json::Value;
use serde_json::value::RawValue;

const MOST: usize = 64;

/// Input: a byte that selects the reader, and the bytes to read.
pub(crate) fn run(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else {
        return;
    };
    match choice % 3 {
        0 => frames(bytes),
        1 => line(bytes),
        _ => start(choice, bytes),
    }
}

fn frames(bytes: &[u8]) {
    let (again, wrong) = fuzzing::frames(bytes, MOST);
    assert!(
        bytes.starts_with(&again),
        "frames are written as they were read"
    );
    assert_eq!(wrong.is_none(), again.len() == bytes.len(), "{wrong:?}");
}

fn line(bytes: &[u8]) {
    let first = fuzzing::id_of(bytes);
    match fuzzing::line(bytes) {
        Ok(Some((id, payload))) => {
            // String content is checked when it is read, as for a library's answers: an escape can be half a surrogate
            // pair.
            assert!(serde_json::from_slice::<&RawValue>(&payload).is_ok());
            // `id_of` takes the first id of a line and is used only for lines above the limit; both readers have to
            // agree.
            assert!(first.is_none_or(|first| first == id), "{first:?} {id}");
        }
        Ok(None) => {}
        Err(why) => assert!(!why.is_empty()),
    }
}

fn start(id: u8, payload: &[u8]) {
    let line = fuzzing::start(u64::from(id), "execute", payload);
    assert_eq!(
        line.iter().filter(|byte| **byte == b'\n').count(),
        1,
        "one line"
    );
    let Ok(payload) = serde_json::from_slice::<Value>(payload) else {
        return;
    };
    let line: Value = serde_json::from_slice(&line).unwrap();
    assert_eq!(line["op"], "execute");
    assert_eq!(line["payload"], payload);
}
