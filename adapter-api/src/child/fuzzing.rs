//! Entry points for `tests/fuzz` to the private readers of this module.

use super::streams::{Line, Lines, Tail};

/// The lines of output that arrives in these pieces, and the largest number of bytes buffered at once.
pub fn lines(pieces: &[&[u8]], limit: usize) -> (Vec<Line>, usize) {
    let mut reader = Lines::new(limit);
    let (mut lines, mut held) = (Vec::new(), 0);
    for piece in pieces {
        let room = reader.room();
        room.extend_from_slice(piece);
        held = held.max(room.len());
        lines.extend(std::iter::from_fn(|| reader.pop()));
    }
    lines.extend(reader.finish());
    (lines, held)
}

/// The tail of stderr output that arrives in these pieces.
pub fn tail(pieces: &[&[u8]], limit: usize) -> String {
    let mut tail = Tail::new(limit);
    for piece in pieces {
        tail.room().extend_from_slice(piece);
        tail.trim();
    }
    tail.text()
}
