//! Line splitting of a program's output: independent of how the output is cut, and bounded in memory by the line limit.

use forge_adapter_api::child::{Line, fuzzing};

use crate::pieces::cut;

const LIMIT: usize = 40;
/// Bytes read at once.
const PIECE: usize = 64;

pub(crate) fn run(data: &[u8]) {
    let (whole, pieces) = cut(data);
    let (found, held) = fuzzing::lines(&pieces, LIMIT);
    assert_eq!(found, expected(whole));
    assert!(held <= LIMIT + PIECE, "{held} bytes were held");
    let ones: Vec<&[u8]> = whole.chunks(1).collect();
    assert_eq!(fuzzing::lines(&ones, LIMIT).0, found);

    let tail = fuzzing::tail(&pieces, LIMIT);
    let start = whole.len().saturating_sub(LIMIT);
    assert_eq!(tail, String::from_utf8_lossy(&whole[start..]).trim());
}

fn expected(whole: &[u8]) -> Vec<Line> {
    let mut lines: Vec<&[u8]> = whole.split(|byte| *byte == b'\n').collect();
    // Text after the last line end is a line only if not empty.
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    let line = |line: &[u8]| {
        if line.len() > LIMIT {
            let bytes = line.len() as u64;
            let start = String::from_utf8_lossy(&line[..LIMIT]);
            let start = start
                .trim_end_matches(char::REPLACEMENT_CHARACTER)
                .to_owned();
            return Line::TooLong { bytes, start };
        }
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        Line::Text(String::from_utf8_lossy(line).into_owned())
    };
    lines.into_iter().map(line).collect()
}
