//! Removes private copies of libraries that no adapter runs from: those of earlier generations, and partial files left
//! by a kill. A missing copy is created again when needed, so nothing is lost.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use forge_base::failpoint;

/// Removes every file in the sub-folders of `folder` that is not named by one of these digests. Blocks; must run before
/// a reload is possible. A failure is logged, and the remaining files stay.
pub(crate) fn clear(folder: &Path, digests: &BTreeSet<String>) {
    match remove_unnamed(folder, digests) {
        Ok(0) => {}
        Ok(count) => tracing::info!(
            "removed {count} library copies of earlier generations from {}",
            folder.display()
        ),
        Err(error) => tracing::warn!(
            "cannot remove library copies of earlier generations from {}: {error}",
            folder.display()
        ),
    }
    failpoint::point("copies.cleared");
}

fn remove_unnamed(folder: &Path, digests: &BTreeSet<String>) -> io::Result<usize> {
    let mut removed = 0;
    let libraries = match fs::read_dir(folder) {
        // No library was ever copied.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        libraries => libraries?,
    };
    for library in libraries {
        let library = library?;
        if !library.file_type()?.is_dir() {
            continue;
        }
        let mut left = 0;
        for file in fs::read_dir(library.path())? {
            let file = file?;
            let path = file.path();
            let digest = path.file_stem().and_then(|stem| stem.to_str());
            let named = digest.is_some_and(|digest| digests.contains(digest));
            if named || file.file_type()?.is_dir() {
                left += 1;
                continue;
            }
            fs::remove_file(&path)?;
            removed += 1;
        }
        if left == 0 {
            fs::remove_dir(library.path())?;
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serves_stays_and_all_else_goes() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("adapters");
        let digests = BTreeSet::from(["aa".to_owned(), "bb".to_owned()]);
        assert_eq!(remove_unnamed(&folder, &digests).unwrap(), 0);
        for file in [
            "echo/aa.so",
            "echo/aa.json",
            "echo/bb.so",
            "echo/cc.so",
            "echo/cc.json",
            "echo/.tmpXyZ",
            "gone/dd.so",
        ] {
            let path = folder.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        fs::write(folder.join("note"), "not a copy").unwrap();
        assert_eq!(remove_unnamed(&folder, &digests).unwrap(), 4);
        let names = |folder: &Path| {
            let entries = fs::read_dir(folder).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort_unstable();
            names
        };
        assert_eq!(names(&folder), ["echo", "note"]);
        assert_eq!(names(&folder.join("echo")), ["aa.json", "aa.so", "bb.so"]);
    }
}
