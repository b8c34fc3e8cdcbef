//! Splits bytes into pieces as a network can, deterministically.

/// Splits the rest of `data` after its first byte, which is the seed.
pub(crate) fn cut(data: &[u8]) -> (&[u8], Vec<&[u8]>) {
    let Some((&seed, whole)) = data.split_first() else {
        return (data, Vec::new());
    };
    // A linear congruential generator: mostly short pieces, occasionally a long one.
    let mut state = u32::from(seed) * 2 + 1;
    let mut pieces = Vec::new();
    let mut rest = whole;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let bits = state >> 24;
        let length = if bits > 240 { 64 } else { (bits % 7) as usize };
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    (whole, pieces)
}
