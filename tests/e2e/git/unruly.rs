//! Folders as unruly agents leave them: each commit ends, has what is regular, and names the rest.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;

use rustix::fs::{CWD, FileType, Mode, OFlags, mkdirat, mknodat, openat};
use rustix::io::Errno;

use super::*;

fn special(folder: &Path, name: &str, kind: FileType) -> Result<(), Errno> {
    let path = folder.join(name);
    let _ = fs::remove_file(&path);
    // The null device.
    mknodat(CWD, path, kind, Mode::RWXU, rustix::fs::makedev(1, 3))
}

fn pipe(folder: &Path, name: &str) {
    special(folder, name, FileType::Fifo).unwrap();
}

/// Makes folders in each other, with a file in the last one.
fn nest(folder: &Path, name: &str, levels: usize) {
    let mut at = openat(CWD, folder, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..levels {
        mkdirat(&at, name, Mode::RWXU).unwrap();
        at = openat(&at, name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    openat(&at, "file", OFlags::CREATE | OFlags::WRONLY, Mode::RWXU).unwrap();
}

fn bytes(folder: &Path, name: &[u8]) {
    fs::write(folder.join(OsStr::from_bytes(name)), "x").unwrap();
}

fn large(folder: &Path, name: &str) {
    let file = fs::File::create(folder.join(name)).unwrap();
    file.set_len(64 * 1024 * 1024 + 1).unwrap();
}

/// Name, what the agent does, what is committed, and what is left out.
type Case = (
    &'static str,
    fn(&Path),
    &'static [&'static str],
    &'static [&'static str],
);

const CASES: &[Case] = &[
    ("FIFO", |folder| pipe(folder, "pipe"), &[], &["pipe"]),
    (
        "FIFO .gitignore",
        |folder| {
            fs::create_dir(folder.join("sub")).unwrap();
            pipe(&folder.join("sub"), ".gitignore");
            write(folder, "sub/file", "x");
        },
        &["sub/file"],
        &["sub/.gitignore"],
    ),
    (
        "FIFO .gitattributes",
        |folder| pipe(folder, ".gitattributes"),
        &[],
        &[".gitattributes"],
    ),
    (
        "FIFO .git",
        |folder| {
            fs::remove_dir_all(folder.join(".git")).unwrap();
            pipe(folder, ".git");
        },
        &[],
        &[".git"],
    ),
    (
        "socket",
        |folder| drop(UnixListener::bind(folder.join("socket")).unwrap()),
        &[],
        &["socket"],
    ),
    (
        "ignored FIFO",
        |folder| {
            fs::create_dir(folder.join("ignored")).unwrap();
            pipe(&folder.join("ignored"), "pipe");
        },
        &[],
        &[],
    ),
    (
        "names in Latin-1, with line breaks, quotes, dots and spaces at their end",
        |folder| {
            for name in [
                &b"latin-\xe4"[..],
                b"latin-\xf6",
                b"a\nb\"c\\",
                b"dot.",
                b"space ",
            ] {
                bytes(folder, name);
            }
        },
        &[
            r#""a\nb\"c\\""#,
            "dot.",
            r#""latin-\344""#,
            r#""latin-\366""#,
            r#""space ""#,
        ],
        &[],
    ),
    (
        ".git as file",
        |folder| {
            write(folder, "worktree/.git", "gitdir: /nowhere");
            write(folder, "worktree/file", "x");
            write(folder, "other/.git", "no repository");
            write(folder, "other/file", "x");
        },
        &["other/file"],
        &["other/.git", "worktree/"],
    ),
    (
        "nested repository",
        |folder| {
            write(folder, "nested/file", "x");
            run(&folder.join("nested"), &["init", "-q"]);
        },
        &[],
        &["nested/"],
    ),
    (
        "filters, and submodules with odd addresses",
        |folder| {
            write(folder, ".gitattributes", "* filter=evil\n");
            let text = "[submodule \"s\"]\n\tpath = s\n\turl = --upload-pack=false\n[submodule \"../../x\"]\n\tpath = ../x\n\turl = ext::sh\n";
            write(folder, ".gitmodules", text);
        },
        &[".gitattributes", ".gitmodules"],
        &[],
    ),
    (
        "large file",
        |folder| large(folder, "large"),
        &[],
        &["large"],
    ),
    (
        "large .gitignore",
        |folder| {
            write(folder, "sub/.gitignore", &"file\n".repeat(300_000));
            write(folder, "sub/file", "x");
        },
        &["sub/.gitignore", "sub/file"],
        &["sub/.gitignore"],
    ),
    (
        "rules that double the time of a match",
        |folder| {
            write(
                folder,
                "sub/.gitignore",
                &format!("{}b\n*.o\n", "**/a".repeat(60)),
            );
            write(folder, &format!("sub/{}file", "a/".repeat(60)), "x");
            write(folder, "sub/a.o", "x");
        },
        &[],
        &["sub/.gitignore"],
    ),
    (
        "hard links of its own",
        |folder| {
            fs::hard_link(folder.join("shared.txt"), folder.join("second")).unwrap();
            write(folder, "second", "edited");
        },
        &["second", "shared.txt"],
        &[],
    ),
];

#[tokio::test]
async fn a_commit_ends_has_what_is_regular_and_names_the_rest() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    for (number, (name, leave, committed, left_out)) in CASES.iter().enumerate() {
        let checkout = bed.checkout(&repository, &format!("t{number}")).await;
        leave(checkout.folder());
        write(checkout.folder(), "z-honest", name);
        let done = commit(&checkout).await;
        let told: Vec<_> = done
            .left_out
            .listed
            .iter()
            .map(|one| one.path.as_str())
            .collect();
        assert_eq!(told, *left_out, "{name}: {done:?}");
        if *name != "rules that double the time of a match" {
            let wanted: Vec<_> = committed.iter().copied().chain(["z-honest"]).collect();
            let mut changed: Vec<_> = done.changed.iter().map(String::as_str).collect();
            changed.sort_by_key(|path| path.trim_start_matches('"'));
            assert_eq!(changed, wanted, "{name}");
        } else {
            assert!(
                !done.changed.iter().any(|path| path.ends_with(".o")),
                "{done:?}"
            );
            assert_eq!(done.changed.len(), 3, "{done:?}");
        }
        assert_eq!(bed.show(&done.commit, "z-honest"), *name);
        // A folder with all of it can be made again, and removed.
        repository.folder_of(&done.commit).await.unwrap();
        repository.discard_checks(&done.commit).await.unwrap();
        let folder = checkout.folder().to_owned();
        remove(&bed, &checkout).await;
        assert!(!folder.exists(), "{name}");
    }
}

#[tokio::test]
async fn deep_folders_and_long_paths_are_walked_committed_and_removed() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    for (task, name, levels, file) in [
        ("deep", "d", 4_000, None),
        ("long", &*"n".repeat(250), 20, None),
        ("fits", "d", 1_900, Some("d/".repeat(1_900) + "file")),
    ] {
        let checkout = bed.checkout(&repository, task).await;
        nest(checkout.folder(), name, levels);
        write(checkout.folder(), "honest", "x");
        let done = commit(&checkout).await;
        let wanted: Vec<_> = file.iter().cloned().chain(["honest".to_owned()]).collect();
        assert_eq!(done.changed, wanted);
        assert_eq!(done.left_out.total, usize::from(file.is_none()));
        for one in &done.left_out.listed {
            assert_eq!(one.reason, "its path is longer than 4,095 bytes");
        }
        repository.folder_of(&done.commit).await.unwrap();
        repository.discard_checks(&done.commit).await.unwrap();
        let folder = checkout.folder().to_owned();
        remove(&bed, &checkout).await;
        assert!(!folder.exists());
    }
}

/// Act of the agent on a tracked file, and the end of the error; `None`: the commit works.
type Fault = (fn(&Path), Option<&'static str>);

#[tokio::test]
async fn a_tracked_file_that_cannot_be_read_back_is_an_error() {
    let bed = Bed::new(Push::Never).await;
    large(&bed.origin(), "big");
    write(&bed.origin(), "sub/file", "x");
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Large"]);
    let repository = bed.attach().await;
    let faults: &[Fault] = &[
        (|_| {}, None),
        (
            |folder| pipe(folder, "shared.txt"),
            Some("shared.txt cannot be read back: it is not a file"),
        ),
        (
            |folder| pipe(folder, ".gitignore"),
            Some(".gitignore cannot be read back: it is not a file"),
        ),
        (
            |folder| {
                fs::remove_file(folder.join("shared.txt")).unwrap();
                drop(UnixListener::bind(folder.join("shared.txt")).unwrap());
            },
            Some("shared.txt cannot be read back: it is not a file"),
        ),
        (
            |folder| {
                let mut file = fs::File::options()
                    .write(true)
                    .open(folder.join("big"))
                    .unwrap();
                std::io::Write::write_all(&mut file, b"changed").unwrap();
            },
            Some("big cannot be read back: it has changed and is larger than 64 MiB"),
        ),
        (
            |folder| {
                let executable = fs::Permissions::from_mode(0o755);
                fs::set_permissions(folder.join("big"), executable).unwrap();
            },
            None,
        ),
        (
            |folder| {
                pipe(folder, "shared.txt");
                pipe(folder, ".gitignore");
            },
            Some("it is not a file (1 others cannot either)"),
        ),
    ];
    for (number, (leave, wanted)) in faults.iter().enumerate() {
        let checkout = bed.checkout(&repository, &format!("t{number}")).await;
        leave(checkout.folder());
        write(checkout.folder(), "honest", "x");
        let done = checkout.commit(&message(), &[]).await;
        match (done, wanted) {
            (Ok(done), None) => assert!(done.left_out.listed.is_empty(), "{done:?}"),
            (Err(error), Some(wanted)) => {
                assert!(error.to_string().ends_with(wanted), "{error}");
                assert!(!error.is_transient());
            }
            (done, wanted) => panic!("{number}: {done:?}, {wanted:?}"),
        }
    }
}

/// Root reads everything, so this runs in threads without the capabilities that let it.
#[test]
fn files_and_folders_that_cannot_be_read_are_named() {
    let drop_rights = || {
        use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
        let mut sets = capabilities(None).unwrap();
        sets.effective -= CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        set_capabilities(None, sets).unwrap();
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime
        .worker_threads(1)
        .enable_all()
        .on_thread_start(drop_rights);
    let runtime = runtime.build().unwrap();
    runtime.block_on(async {
        let bed = Bed::new(Push::Never).await;
        write(&bed.origin(), "sub/file", "x");
        run(&bed.origin(), &["add", "-A"]);
        run(&bed.origin(), &["commit", "-qm", "Sub"]);
        let repository = bed.attach().await;
        let close = |folder: &Path, path: &str, mode| {
            fs::set_permissions(folder.join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        let checkout = bed.checkout(&repository, "new").await;
        write(checkout.folder(), "file", "x");
        write(checkout.folder(), "closed/file", "x");
        write(checkout.folder(), "listed/file", "x");
        write(checkout.folder(), "honest", "x");
        close(checkout.folder(), "file", 0);
        close(checkout.folder(), "closed", 0);
        close(checkout.folder(), "listed", 0o600);
        let done = commit(&checkout).await;
        assert_eq!(done.changed, ["honest"]);
        let told: Vec<_> = done
            .left_out
            .listed
            .iter()
            .map(|one| (&*one.path, one.reason))
            .collect();
        let reason = "it cannot be read";
        assert_eq!(
            told,
            [
                ("closed/", reason),
                ("file", reason),
                ("listed/file", reason)
            ]
        );
        for (task, path, mode) in [
            ("file", "shared.txt", 0),
            ("folder", "sub", 0),
            ("listed", "sub", 0o600),
        ] {
            let checkout = bed.checkout(&repository, task).await;
            close(checkout.folder(), path, mode);
            let error = checkout.commit(&message(), &[]).await.unwrap_err();
            assert!(matches!(error, Error::Unreadable { .. }), "{error}");
        }
    });
}

#[tokio::test]
async fn a_device_is_left_out() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    if let Err(error) = special(checkout.folder(), "device", FileType::CharacterDevice) {
        eprintln!("skipped: no device can be made here: {error}");
        return;
    }
    write(checkout.folder(), "honest", "x");
    let done = commit(&checkout).await;
    assert_eq!(done.changed, ["honest"]);
    assert_eq!(done.left_out.listed[0].path, "device");
}

/// True if this process can give a folder to another user.
#[expect(clippy::print_stderr, reason = "a test that does not run says why")]
fn can_give() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can give a folder to another user");
    }
    is_root
}

/// As with `process.user`: a file of the bridge with a second name in the folder can be one that the agent must not read.
#[tokio::test]
async fn a_file_of_another_user_with_several_names_is_not_read() {
    if !can_give() {
        return;
    }
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    std::os::unix::fs::chown(checkout.folder(), Some(65534), None).unwrap();
    write(bed.folder.path(), "secret", "secret");
    fs::hard_link(
        bed.folder.path().join("secret"),
        checkout.folder().join("new"),
    )
    .unwrap();
    let done = commit(&checkout).await;
    assert_eq!((done.changed.len(), done.left_out.total), (0, 1));
    fs::remove_file(checkout.folder().join("shared.txt")).unwrap();
    fs::hard_link(
        bed.folder.path().join("secret"),
        checkout.folder().join("shared.txt"),
    )
    .unwrap();
    let error = checkout.commit(&message(), &[]).await.unwrap_err();
    assert!(matches!(error, Error::Unreadable { .. }), "{error}");
}

/// A program of another user can move a file of the bridge that it cannot read: only the folder of the file counts.
#[tokio::test]
async fn a_closed_file_of_another_user_is_not_read() {
    if !can_give() {
        return;
    }
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    std::os::unix::fs::chown(checkout.folder(), Some(65534), None).unwrap();
    write(checkout.folder(), "moved", "secret");
    let closed = fs::Permissions::from_mode(0o600);
    fs::set_permissions(checkout.folder().join("moved"), closed).unwrap();
    let done = commit(&checkout).await;
    assert_eq!((done.changed.len(), done.left_out.total), (0, 1));
    assert_eq!(done.left_out.listed[0].path, "moved");
}

/// Files that the bridge adds to a checkout of another user belong to that user, and nothing else changes hands.
#[tokio::test]
async fn what_is_written_into_a_checkout_belongs_to_its_user() {
    if !can_give() {
        return;
    }
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let first = bed.checkout(&repository, "one").await;
    write(first.folder(), "deep/er/file", "x");
    std::os::unix::fs::symlink("file", first.folder().join("deep/er/link")).unwrap();
    let done = commit(&first).await;
    let second = bed.checkout(&repository, "two").await;
    std::os::unix::fs::chown(second.folder(), Some(65534), Some(65534)).unwrap();
    second.write(repository.base(), &done.commit).await.unwrap();
    for (path, expected) in [
        ("deep", 65534),
        ("deep/er", 65534),
        ("deep/er/file", 65534),
        ("deep/er/link", 65534),
        ("shared.txt", 0),
    ] {
        let found = fs::symlink_metadata(second.folder().join(path)).unwrap();
        assert_eq!(
            std::os::unix::fs::MetadataExt::uid(&found),
            expected,
            "{path}"
        );
    }
}
