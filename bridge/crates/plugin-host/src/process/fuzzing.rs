//! Readers that are private to this module, opened to `tests/fuzz`.

use super::frame::Frame;
use super::lines::{self, Line};

/// What a line carries: the number of its call, and the payload.
pub type Carried = (u64, Vec<u8>);

/// The frames in these bytes written again, up to what is none, and why it is none.
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

/// What a program's line says; `None` for what carries no JSON.
pub fn line(bytes: &[u8]) -> Result<Option<Carried>, String> {
    Ok(match lines::read(bytes)? {
        Line::Manifest(payload) => Some((0, payload)),
        Line::Event { id, event } => Some((id, event)),
        Line::Answer { id, answer } => Some((id, answer)),
        Line::Error { id, error } => Some((id, error)),
        Line::Log { .. } => None,
    })
}

/// The line that begins a call.
pub fn start(id: u64, op: &str, payload: &[u8]) -> Vec<u8> {
    lines::start(id, op, payload)
}

/// The number in the beginning of a line.
pub fn id_of(head: &[u8]) -> Option<u64> {
    lines::id_of(head)
}
