//! Conflicts: those that git has marked in files, and those whose sides are files of their own.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use forge_adapter_api::Result;
use forge_adapter_api::folder::Folder;

use crate::files::failed;
use crate::order::Side;

const OURS: &[u8] = b"<<<<<<<";
const BASE: &[u8] = b"|||||||";
const THEIRS: &[u8] = b"=======";
const END: &[u8] = b">>>>>>>";
/// Larger files are taken to have no conflict.
const LARGEST_BYTES: u64 = 4 << 20;

/// Keeps one side, or both, of all conflicts in the files of a workspace; returns the paths of the files.
pub(crate) fn resolve(folder: &Folder, side: Side) -> Result<Vec<String>> {
    let mut resolved = Vec::new();
    let files = files(folder.path()).map_err(|error| failed("list", ".", &error))?;
    for path in files {
        let name = path.to_string_lossy().into_owned();
        let error = |error: io::Error| failed("resolve", &name, &error);
        let mut content = Vec::new();
        // Only names come from the listing; a file that is no longer what it was is skipped.
        let Ok(file) = folder.open_below(&path) else {
            continue;
        };
        file.take(LARGEST_BYTES)
            .read_to_end(&mut content)
            .map_err(error)?;
        if let Some(kept) = keep(&content, side) {
            folder.write_below(&path, &kept).map_err(error)?;
            resolved.push(name);
        }
    }
    for path in unmarked(folder.path()).map_err(|error| failed("list", ".", &error))? {
        let name = path.to_string_lossy().into_owned();
        let chosen = choose(&folder.path().join(&path), side);
        chosen.map_err(|error| failed("resolve", &name, &error))?;
        resolved.push(name);
    }
    Ok(resolved)
}

/// Paths beside which there is a side, in order.
fn unmarked(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let all = entries(root)?;
    let sides = all.iter().filter(|path| {
        let end = path.extension();
        end.is_some_and(|end| end == "ours" || end == "theirs")
    });
    Ok(sides.map(|path| path.with_extension("")).collect())
}

/// Puts one side at a path, or one after the other, and removes their files. A side without a file has nothing there, or
/// a folder.
fn choose(path: &Path, side: Side) -> io::Result<()> {
    let of = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let file = PathBuf::from(name);
        file.symlink_metadata().is_ok().then_some(file)
    };
    let (ours, theirs) = (of(".ours"), of(".theirs"));
    let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
    let kept = match (side, &ours, &theirs) {
        (Side::Ours, ours, _) => ours.as_ref(),
        (Side::Theirs, _, theirs) => theirs.as_ref(),
        (Side::Both, Some(ours), Some(theirs)) => {
            if !ours.is_symlink() && !theirs.is_symlink() {
                let content = [fs::read(ours)?, fs::read(theirs)?].concat();
                fs::write(ours, content)?;
            }
            Some(ours)
        }
        (Side::Both, ours, theirs) => ours.as_ref().or(theirs.as_ref()).filter(|_| !is_folder),
    };
    if let Some(kept) = kept {
        if is_folder {
            fs::remove_dir_all(path)?;
        }
        fs::rename(kept, path)?;
    }
    for file in [&ours, &theirs].into_iter().flatten() {
        match fs::remove_file(file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Relative paths of the regular files below a folder that can have markers, in order.
fn files(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = entries(root)?;
    files.retain(|path| {
        let found = root.join(path).symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() < LARGEST_BYTES)
    });
    Ok(files)
}

/// Relative paths of everything but folders below a folder, without git's own, in order.
fn entries(root: &Path) -> io::Result<Vec<PathBuf>> {
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() && entry.file_name() != ".git" {
                folders.push(entry.path());
            } else if !kind.is_dir() {
                let path = entry.path();
                files.push(path.strip_prefix(root).unwrap_or(&path).to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The content without markers; `None` if there are none, or a conflict does not end.
fn keep(content: &[u8], side: Side) -> Option<Vec<u8>> {
    let mut kept = Vec::with_capacity(content.len());
    // The marker that the current lines are below.
    let mut below: Option<&[u8]> = None;
    let mut found = false;
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        let next = match below {
            None => [OURS].as_slice(),
            Some(OURS) => &[BASE, THEIRS],
            Some(BASE) => &[THEIRS],
            Some(_) => &[END],
        };
        match next.iter().copied().find(|marker| is_marker(line, marker)) {
            Some(END) => below = None,
            Some(marker) => {
                below = Some(marker);
                found = true;
            }
            None => {
                let stays = match below {
                    None => true,
                    Some(OURS) => side != Side::Theirs,
                    Some(BASE) => false,
                    Some(_) => side != Side::Ours,
                };
                if stays {
                    kept.extend_from_slice(line);
                }
            }
        }
    }
    (found && below.is_none()).then_some(kept)
}

/// A marker is alone in its line, or followed by a name.
fn is_marker(line: &[u8], marker: &[u8]) -> bool {
    let rest = line.strip_prefix(marker);
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b' ' | b'\n' | b'\r')))
}

#[cfg(test)]
mod tests {
    //! Lines that stay of a conflict.

    use super::*;

    const CONFLICT: &[u8] =
        b"a\n<<<<<<< one\nours\n||||||| base\nold\n=======\ntheirs\n>>>>>>> two\nb\n";

    #[test]
    fn the_side_that_was_asked_for_stays() {
        let table = [
            (Side::Ours, "a\nours\nb\n"),
            (Side::Theirs, "a\ntheirs\nb\n"),
            (Side::Both, "a\nours\ntheirs\nb\n"),
        ];
        for (side, wanted) in table {
            let kept = keep(CONFLICT, side).unwrap();
            assert_eq!(String::from_utf8(kept).unwrap(), wanted, "{side:?}");
        }
    }

    #[test]
    fn a_side_that_is_a_file_is_put_at_its_path() {
        // Files with their text, where `/` is a folder with a file; then what is left.
        for (files, side, wanted) in [
            (&["f.ours o", "f.theirs t"][..], Side::Ours, "f o"),
            (&["f.ours o", "f.theirs t"], Side::Theirs, "f t"),
            (&["f.ours o", "f.theirs t"], Side::Both, "f ot"),
            (&["f.ours o"], Side::Theirs, ""),
            (&["f.ours o"], Side::Both, "f o"),
            (&["f/in i", "f.theirs t"], Side::Theirs, "f t"),
            (&["f/in i", "f.theirs t"], Side::Ours, "f/in i"),
            (&["f/in i", "f.theirs t"], Side::Both, "f/in i"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                let (name, text) = file.split_once(' ').unwrap();
                let path = folder.path().join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let resolved = resolve(&Folder::open(folder.path()).unwrap(), side).unwrap();
            assert_eq!(resolved, ["f"], "{files:?}");
            let left = entries(folder.path()).unwrap().into_iter().map(|path| {
                let text = fs::read_to_string(folder.path().join(&path)).unwrap();
                format!("{} {text}", path.display())
            });
            assert_eq!(
                left.collect::<Vec<_>>().join("\n"),
                wanted,
                "{files:?} {side:?}"
            );
        }
    }

    #[test]
    fn a_file_without_a_whole_conflict_stays_as_it_is() {
        for text in [
            "a\n=======\nb\n",
            "<<<<<<< one\nours\n=======\n",
            "<<<<<<<<\n",
            "",
        ] {
            assert_eq!(keep(text.as_bytes(), Side::Both), None, "{text:?}");
        }
    }
}
