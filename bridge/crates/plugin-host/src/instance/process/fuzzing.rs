//! Access to private parsers of this module for `tests/fuzz`.

use super::frame::Frame;
use super::lines::{self, Line};

/// Call id and payload of a line.
pub type Carried = (u64, Vec<u8>);

/// Reads the frames in these bytes and writes them again, up to the first invalid one; returns its error, too.
pub fn frames(mut bytes: &[u8], most: usize) -> (Vec<u8>, Option<String>) {
    let mut again = Vec::new();
    loop {
        match Frame::read(&mut bytes, most) {
            Ok(Some(frame)) => {
                let _ = (frame.call(), frame.count(), frame.record(), frame.text());
                if let Err(error) = frame.write(&mut again) {
                    return (again, Some(error.to_string()));
                }
            }
            Ok(None) => return (again, None),
            Err(error) => return (again, Some(error.to_string())),
        }
    }
}

/// Call id and payload of a program's line; `None` for a log record.
pub fn line(bytes: &[u8]) -> Result<Option<Carried>, String> {
    Ok(match lines::read(bytes)? {
        Line::Manifest(payload) => Some((0, payload)),
        Line::Event { id, event } => Some((id, event)),
        Line::Answer { id, answer } => Some((id, answer)),
        Line::Error { id, error } => Some((id, error)),
        Line::Log { .. } => None,
    })
}

/// The line that starts a call.
pub fn start(id: u64, op: &str, payload: &[u8]) -> Vec<u8> {
    lines::start(id, op, payload)
}

/// The call id at the beginning of a line.
pub fn id_of(head: &[u8]) -> Option<u64> {
    lines::id_of(head)
}
