//! Bytes of an adapter whose length is beyond a limit, and perhaps beyond the memory behind it. The kernel copies them and
//! stops where nothing can be read; reading there would end the process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{MemfdFlags, memfd_create};

/// Copies the bytes up to the first that cannot be read; none if the system has no descriptor left.
pub(crate) fn readable(bytes: &[u8]) -> Vec<u8> {
    copy(bytes).unwrap_or_default()
}

fn copy(bytes: &[u8]) -> io::Result<Vec<u8>> {
    let file = File::from(memfd_create("foreign bytes", MemfdFlags::CLOEXEC)?);
    let length = file.write_at(bytes, 0)?;
    let mut copy = vec![0; length];
    file.read_exact_at(&mut copy, 0)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_bytes_are_copied_whole() {
        for length in [0, 1, 3 * 1024 * 1024] {
            let bytes = vec![b'x'; length];
            assert_eq!(readable(&bytes), bytes, "{length}");
        }
    }
}
