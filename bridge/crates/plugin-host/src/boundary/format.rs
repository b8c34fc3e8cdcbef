//! Recognises the kind of a file by its first bytes, for clearer errors than the dynamic loader's. Pure.

/// Number of first bytes that [`check`] needs.
pub(crate) const HEAD: usize = 4096;

const ET_DYN: u16 = 3;

/// Machines by their number in an ELF header.
const MACHINES: [(u16, &str); 7] = [
    (3, "x86"),
    (40, "arm"),
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
    (21, "powerpc64"),
    (22, "s390x"),
];

/// Checks that `head` begins a shared library of `length` bytes for `arch` (as `std::env::consts::ARCH` spells it). The
/// error names the kind of file found instead.
pub(crate) fn check(head: &[u8], length: u64, arch: &str) -> Result<(), String> {
    if cfg!(target_os = "macos") {
        return mach(head);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(describe(head));
    }
    let (Some(class), Some(order), Some(kind), Some(machine)) =
        (head.get(4), head.get(5), head.get(16..18), head.get(18..20))
    else {
        return Err("an ELF file that ends inside its header".to_owned());
    };
    let number = |bytes: &[u8]| match order {
        2 => u16::from_be_bytes([bytes[0], bytes[1]]),
        _ => u16::from_le_bytes([bytes[0], bytes[1]]),
    };
    let machine = number(machine);
    let name = MACHINES
        .iter()
        .find(|(number, _)| *number == machine)
        .map_or_else(
            || format!("machine {machine}"),
            |(_, name)| (*name).to_owned(),
        );
    if name != arch {
        return Err(format!("a library for {name}"));
    }
    let width = if usize::BITS == 64 { 2 } else { 1 };
    if *class != width {
        return Err("a library of another word size".to_owned());
    }
    if number(kind) != ET_DYN {
        return Err("an ELF file but not a shared library".to_owned());
    }
    match extent(head, *order == 2) {
        // The loader would map pages beyond the end of the file, and the first access would kill the process.
        Some(wanted) if wanted > length => Err(format!(
            "a library that was cut off ({length} of at least {wanted} bytes)"
        )),
        Some(_) | None => Ok(()),
    }
}

/// End of the last loaded segment of a 64-bit ELF file; `None` if the table of segments is not in `head`.
fn extent(head: &[u8], big_endian: bool) -> Option<u64> {
    const LOAD: u64 = 1;
    const ENTRY: usize = 56;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = head.get(at..at.checked_add(size)?)?;
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        Some(if big_endian {
            bytes.iter().fold(0, add)
        } else {
            bytes.iter().rev().fold(0, add)
        })
    };
    let table = usize::try_from(number(32, 8)?).ok()?;
    let count = usize::try_from(number(56, 2)?).ok()?;
    let mut end = 0;
    for index in 0..count {
        let entry = table.checked_add(index * ENTRY)?;
        if number(entry, 4)? == LOAD {
            end = end.max(number(entry + 8, 8)?.saturating_add(number(entry + 32, 8)?));
        }
    }
    Some(end)
}

fn mach(head: &[u8]) -> Result<(), String> {
    let known = [
        b"\xcf\xfa\xed\xfe".as_slice(),
        b"\xca\xfe\xba\xbe".as_slice(),
    ];
    if known.iter().any(|magic| head.starts_with(magic)) {
        Ok(())
    } else {
        Err(describe(head))
    }
}

fn describe(head: &[u8]) -> String {
    let kinds: [(&[u8], &str); 7] = [
        (b"\x7fELF", "an ELF library, which is not for this system"),
        (b"\xcf\xfa\xed\xfe", "a macOS library"),
        (b"\xca\xfe\xba\xbe", "a macOS universal library"),
        (b"MZ", "a Windows library"),
        (b"!<arch>\n", "a static archive"),
        (b"#!", "a script"),
        (b"version https://git-lfs", "a Git LFS pointer"),
    ];
    if head.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some((_, kind)) = kinds.iter().find(|(magic, _)| {
        // A head shorter than the magic is compared as far as it goes.
        head.len() >= 2 && (head.starts_with(magic) || magic.starts_with(head))
    }) {
        return (*kind).to_owned();
    }
    let text = head
        .iter()
        .all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    if text {
        "a text file".to_owned()
    } else {
        "something else".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(class: u8, kind: u16, machine: u16) -> Vec<u8> {
        let mut head = b"\x7fELF".to_vec();
        head.extend([class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        head.extend(kind.to_le_bytes());
        head.extend(machine.to_le_bytes());
        head
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn what_is_no_library_for_this_machine_is_named() {
        let table = [
            (elf(2, 3, 62), None),
            (elf(2, 3, 183), Some("a library for aarch64")),
            (elf(2, 3, 999), Some("a library for machine 999")),
            (elf(2, 2, 62), Some("an ELF file but not a shared library")),
            (elf(1, 3, 62), Some("a library of another word size")),
            (
                b"\x7fELF\x02".to_vec(),
                Some("an ELF file that ends inside its header"),
            ),
            (b"hello, this is text\n".to_vec(), Some("a text file")),
            (b"#!/bin/sh\n".to_vec(), Some("a script")),
            (b"!<arch>\nlibx.a/  ".to_vec(), Some("a static archive")),
            (b"MZ\x90\0".to_vec(), Some("a Windows library")),
            (b"version https://git-".to_vec(), Some("a Git LFS pointer")),
            (Vec::new(), Some("an empty file")),
            (vec![0; 20], Some("something else")),
        ];
        let mut cut = elf(2, 3, 62);
        cut.resize(64 + 56, 0);
        cut[32] = 64;
        cut[56] = 1;
        cut[64] = 1;
        cut[64 + 32..64 + 40].copy_from_slice(&5000_u64.to_le_bytes());
        let cut_off = "a library that was cut off (4096 of at least 5000 bytes)";
        for (head, found) in table.into_iter().chain([(cut, Some(cut_off))]) {
            let expected: Result<(), String> = found.map_or(Ok(()), |text| Err(text.to_owned()));
            assert_eq!(check(&head, 4096, "x86_64"), expected, "{head:?}");
        }
    }
}
