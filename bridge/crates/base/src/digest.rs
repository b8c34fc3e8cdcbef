//! SHA-256 and HMAC-SHA256 from the library that does TLS as well: fast even on processors without SHA instructions.

use std::io::{self, Read};

use ring::digest::{Context, SHA256};
use ring::hmac;

pub type Digest = [u8; 32];

const PIECE_BYTES: usize = 128 * 1024;

pub fn sha256(bytes: impl AsRef<[u8]>) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(bytes.as_ref());
    hasher.finish()
}

/// SHA-256 of everything read from `source`; each piece is also passed to `on_the_way`.
pub fn sha256_of(
    source: &mut impl Read,
    mut on_the_way: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<Digest> {
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; PIECE_BYTES];
    loop {
        match source.read(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => {
                hasher.update(&buffer[..read]);
                on_the_way(&buffer[..read])?;
            }
        }
    }
}

/// Incremental SHA-256.
pub struct Hasher(Context);

impl Default for Hasher {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Hasher {
    pub fn update(&mut self, piece: &[u8]) {
        self.0.update(piece);
    }

    pub fn finish(self) -> Digest {
        let digest = self.0.finish();
        digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }
}

/// Key for HMAC-SHA256.
#[derive(Clone)]
pub struct MacKey(hmac::Key);

impl MacKey {
    pub fn new(key: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, key))
    }

    /// HMAC of the concatenated pieces.
    pub fn mac<'a>(&self, pieces: impl IntoIterator<Item = &'a [u8]>) -> Digest {
        let mut context = hmac::Context::with_key(&self.0);
        for piece in pieces {
            context.update(piece);
        }
        let tag = context.sign();
        tag.as_ref().try_into().expect("SHA-256 has 32 bytes")
    }

    /// True if `mac` is the HMAC of the bytes; compared in constant time.
    pub fn verifies(&self, bytes: &[u8], mac: &Digest) -> bool {
        hmac::verify(&self.0, bytes, mac).is_ok()
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    hex_digits(bytes).map(char::from).collect()
}

/// Lower-case hexadecimal digits as ASCII bytes.
pub fn hex_digits(bytes: &[u8]) -> impl Iterator<Item = u8> {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xf]);
    halves.map(|half| DIGITS[usize::from(half)])
}

/// Decodes hexadecimal digits of either case; `None` if the text is anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|[high, low]| {
        let byte = digit(*high)? << 4 | digit(*low)?;
        u8::try_from(byte).ok()
    });
    bytes.collect::<Option<_>>().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_as_digits_is_read_back() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes.clone()));
        assert_eq!(from_hex(&hex(&bytes).to_uppercase()), Some(bytes));
        for wrong in ["0", "0g", "+1", "é0"] {
            assert_eq!(from_hex(wrong), None, "{wrong}");
        }
    }

    /// FIPS 180-2, B.1.
    #[test]
    fn a_digest_is_that_of_the_standard() {
        let wanted = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hex(&sha256("abc")), wanted);
        let mut seen = Vec::new();
        let keep = |piece: &[u8]| {
            seen.extend_from_slice(piece);
            Ok(())
        };
        assert_eq!(sha256_of(&mut &b"abc"[..], keep).unwrap(), sha256("abc"));
        assert_eq!(seen, b"abc");
    }

    /// RFC 4231, test case 2.
    #[test]
    fn a_mac_is_that_of_the_standard() {
        let wanted = "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843";
        let pieces = [&b"what do ya want "[..], b"for nothing?"];
        assert_eq!(hex(&MacKey::new(b"Jefe").mac(pieces)), wanted);
    }
}
