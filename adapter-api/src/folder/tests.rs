//! Tests of files below a folder: what leads out of it, and what is no file.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FileType, mknodat};

use super::*;

/// A folder `w` with a file outside of it, `secret`, and with everything that could lead there.
struct Place {
    base: PathBuf,
    folder: Folder,
    _held: tempfile::TempDir,
    _socket: UnixListener,
}

impl Place {
    fn new() -> Self {
        let held = tempfile::tempdir().unwrap();
        let base = held.path().canonicalize().unwrap();
        let dir = base.join("w");
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(base.join("secret"), "secret").unwrap();
        fs::write(dir.join("output.md"), "done").unwrap();
        fs::write(dir.join("sub/x"), "deep").unwrap();
        symlink(base.join("secret"), dir.join("link")).unwrap();
        symlink(base.join("new"), dir.join("dangling")).unwrap();
        symlink(&base, dir.join("up")).unwrap();
        symlink(&dir, base.join("alias")).unwrap();
        symlink("/proc/self/root", dir.join("magic")).unwrap();
        symlink("/dev/null", dir.join("device")).unwrap();
        fs::hard_link(base.join("secret"), dir.join("hard")).unwrap();
        let read_write = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, dir.join("pipe"), FileType::Fifo, read_write, 0).unwrap();
        let socket = UnixListener::bind(dir.join("socket")).unwrap();
        Self {
            folder: Folder::open(&dir).unwrap(),
            base,
            _held: held,
            _socket: socket,
        }
    }

    fn secret(&self) -> String {
        fs::read_to_string(self.base.join("secret")).unwrap()
    }
}

/// Paths that neither lead to a file below the folder nor may be created.
const REFUSED: [&str; 16] = [
    "link",
    "dangling",
    "up/secret",
    "up/new",
    "magic/etc/hostname",
    "device",
    "hard",
    "pipe",
    "socket",
    "../secret",
    "sub/../../secret",
    "/etc/hostname",
    "sub",
    "output.md/x",
    ".",
    "",
];

#[test]
fn files_are_read_without_leaving_the_folder() {
    let place = Place::new();
    let read = |opened: io::Result<File>| {
        let mut text = String::new();
        opened?.read_to_string(&mut text).map(|_| text)
    };
    // The calls of newer kernels and the replacement for older ones.
    let both = |path: &str| {
        let walked = plain(Path::new(path))
            .and_then(|path| walk(&place.folder.descriptor, &path, OFlags::RDONLY | NO_WAIT))
            .and_then(|opened| regular(opened.into()));
        [read(place.folder.open_below(Path::new(path))), read(walked)]
    };
    for (path, content) in [("output.md", "done"), ("./sub/x", "deep")] {
        for text in both(path) {
            assert_eq!(text.unwrap(), content, "{path}");
        }
    }
    for path in REFUSED.into_iter().chain(["absent"]) {
        for text in both(path) {
            assert!(text.is_err(), "{path}: {text:?}");
        }
    }
    // A device, without a link to it.
    let devices = Folder::open(Path::new("/dev")).unwrap();
    assert!(devices.open_below(Path::new("null")).is_err());
}

#[test]
fn files_are_written_without_leaving_the_folder() {
    let place = Place::new();
    let write = |path: &str, text: &str| place.folder.write_below(Path::new(path), text.as_bytes());
    for path in ["output.md", "./new", "sub/a/b/new"] {
        for text in ["longer", "short"] {
            write(path, text).unwrap();
            let found = fs::read_to_string(place.folder.path().join(path)).unwrap();
            assert_eq!(found, text, "{path}");
        }
    }
    for path in REFUSED {
        let written = write(path, "stolen");
        assert!(written.is_err(), "{path}");
    }
    assert_eq!(place.secret(), "secret");
    assert!(!place.base.join("new").exists());
}

#[test]
fn files_are_removed_without_leaving_the_folder() {
    let place = Place::new();
    let remove = |path: &str| place.folder.remove_below(Path::new(path));
    for path in ["output.md", "./sub/x", "link", "hard"] {
        remove(path).unwrap();
        let found = fs::symlink_metadata(place.folder.path().join(path));
        assert!(found.is_err(), "{path}");
    }
    for path in [
        "up/secret",
        "../secret",
        "/etc/hostname",
        "sub",
        "absent",
        "magic/etc/hostname",
        ".",
        "",
    ] {
        assert!(remove(path).is_err(), "{path}");
    }
    assert_eq!(place.secret(), "secret");
}

#[test]
fn new_files_are_no_more_accessible_than_their_folder() {
    let place = Place::new();
    let mode = |path: &str| {
        let metadata = fs::metadata(place.folder.path().join(path)).unwrap();
        metadata.permissions().mode() & 0o777
    };
    for (folder, file, deep) in [(0o700, 0o600, 0o700), (0o750, 0o640, 0o750)] {
        let permissions = fs::Permissions::from_mode(folder);
        fs::set_permissions(place.folder.path(), permissions).unwrap();
        let name = format!("{folder}/file");
        place.folder.write_below(Path::new(&name), b"").unwrap();
        assert_eq!((mode(&name), mode(&folder.to_string())), (file, deep));
    }
}

#[test]
fn a_folder_stays_the_same_when_its_path_is_taken() {
    let place = Place::new();
    let (before, after) = (place.base.join("w"), place.base.join("moved"));
    let id = place.folder.id().unwrap();
    assert!(Folder::open(&place.base.join("alias")).is_err());
    fs::rename(&before, &after).unwrap();
    assert!(Folder::open(&before).is_err());
    fs::create_dir(&before).unwrap();
    assert_ne!(Folder::open(&before).unwrap().id().unwrap(), id);
    assert_eq!(Folder::open(&after).unwrap().id().unwrap(), id);
    place.folder.write_below(Path::new("new"), b"").unwrap();
    assert!(after.join("new").exists());
    for path in ["relative", "/tmp/..", ""] {
        assert!(Folder::open(Path::new(path)).is_err(), "{path}");
    }
    assert!(Folder::open(Path::new("/")).is_ok());
}

#[test]
fn a_link_that_comes_and_goes_never_leads_out() {
    let place = Place::new();
    let (flip, ended) = (place.folder.path().join("flip"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                // Each can fail, because the other thread creates the folder too.
                let _ = fs::create_dir(&flip);
                let _ = fs::remove_dir_all(&flip);
                let _ = symlink(&place.base, &flip);
                let _ = fs::remove_file(&flip);
            }
        });
        let path = Path::new("flip/secret");
        for _ in 0..5_000 {
            // Most attempts fail.
            let _ = place.folder.write_below(path, b"stolen");
            if let Ok(file) = place.folder.open_below(path) {
                assert_ne!(io::read_to_string(file).unwrap(), "secret");
            }
        }
        ended.store(true, Ordering::Relaxed);
    });
    assert_eq!(place.secret(), "secret");
}
