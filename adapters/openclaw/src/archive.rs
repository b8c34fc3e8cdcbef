//! Archive of a skill.

/// A zip archive with one stored file.
pub(crate) fn archive(name: &str, content: &[u8]) -> Vec<u8> {
    let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes();
    let length = [&number(name.len())[..2], &[0, 0]].concat();
    // Version 2.0, UTF-8, stored, 1980-01-01.
    let kind = [20, 0, 0, 8, 0, 0, 0, 0, 33, 0];
    let sizes = [
        crc(content).to_le_bytes(),
        number(content.len()),
        number(content.len()),
    ]
    .concat();
    let local = [
        b"PK\x03\x04",
        &kind[..],
        &sizes,
        &length,
        name.as_bytes(),
        content,
    ]
    .concat();
    let central = [
        b"PK\x01\x02\x14\0",
        &kind[..],
        &sizes,
        &length,
        &[0; 14],
        name.as_bytes(),
    ]
    .concat();
    let (at, size) = (number(local.len()), number(central.len()));
    let end = [b"PK\x05\x06\0\0\0\0\x01\0\x01\0", &size[..], &at, &[0, 0]].concat();
    [local, central, end].concat()
}

fn crc(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| {
        if crc & 1 == 1 {
            crc >> 1 ^ 0xEDB8_8320
        } else {
            crc >> 1
        }
    };
    !bytes
        .iter()
        .fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_the_checksum_and_headers_of_its_file() {
        assert_eq!(crc(b"123456789"), 0xCBF4_3926);
        let archive = archive("SKILL.md", b"x");
        assert_eq!(archive.len(), 30 + 8 + 1 + 46 + 8 + 22);
    }
}
