//! Clears the private copies of libraries that no adapter runs from: those of earlier editions, and what a
//! kill left half done. A copy is made anew whenever it is missing, so nothing is lost.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;

use forge_base::failpoint;

/// Removes everything in the folders below `folder` that is not named by one of these digests. Blocks;
/// before anything can be reloaded. What cannot be removed is said and stays.
pub(super) fn clear(folder: &Path, digests: &BTreeSet<String>) {
    match remove_unnamed(folder, digests) {
        Ok(0) => {}
        Ok(count) => tracing::info!(
            "{count} copies of earlier editions were removed below {}",
            folder.display()
        ),
        Err(error) => tracing::warn!(
            "copies of earlier editions stay below {}: {error}",
            folder.display()
        ),
    }
    failpoint::point("copies.cleared");
}

fn remove_unnamed(folder: &Path, digests: &BTreeSet<String>) -> io::Result<usize> {
    let mut removed = 0;
    let libraries = match fs::read_dir(folder) {
        // Nothing was ever copied.
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
        fs::write(folder.join("note"), "somebody else's").unwrap();
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
