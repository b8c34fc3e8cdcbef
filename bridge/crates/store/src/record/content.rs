//! Contents that are stored apart from request and result.

/// Bytes of a dispatch that are stored apart from its request and its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The whole output, if the result holds only its beginning.
    Output,
    /// An output file, by its position in the result.
    OutputFile(usize),
    /// An attachment, by its position in the request.
    Attachment(usize),
}

/// Part of a content.
#[derive(Debug)]
pub struct Piece {
    pub bytes: Vec<u8>,
    /// Bytes of the whole content.
    pub total: u64,
}
