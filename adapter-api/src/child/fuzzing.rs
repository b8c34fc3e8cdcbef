//! Readers that are private to this module, opened to `tests/fuzz`.

use super::streams::{Line, Lines, Tail};

/// The lines of what a program writes in these pieces, and the most that was held at once.
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

/// The end of what a program writes to stderr in these pieces.
pub fn tail(pieces: &[&[u8]], limit: usize) -> String {
    let mut tail = Tail::new(limit);
    for piece in pieces {
        tail.room().extend_from_slice(piece);
        tail.trim();
    }
    tail.text()
}
