//! The walk of a checkout: the rules of its files, and a folder that is not the one that was made.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;

use super::*;

/// Act of the agent on its folder, and the words of the error.
type Way = (fn(&Path), &'static str);

#[tokio::test]
async fn a_checkout_that_was_removed_or_replaced_is_not_made_again() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let ways: &[Way] = &[
        (|folder| fs::remove_dir_all(folder).unwrap(), "is gone"),
        (
            |folder| {
                fs::remove_dir_all(folder).unwrap();
                fs::create_dir(folder).unwrap();
            },
            "was replaced",
        ),
        (
            |folder| {
                let moved = folder.with_file_name("moved");
                fs::rename(folder, &moved).unwrap();
                symlink(moved, folder).unwrap();
            },
            "was replaced",
        ),
        (
            |folder| {
                fs::remove_dir_all(folder).unwrap();
                fs::write(folder, "x").unwrap();
            },
            "was replaced",
        ),
    ];
    for (number, (leave, wanted)) in ways.iter().enumerate() {
        let checkout = bed.checkout(&repository, &format!("t{number}")).await;
        let branch = checkout.branch().clone();
        // As after a kill before its agent begins.
        repository.make(&branch).await.unwrap();
        leave(checkout.folder());
        for lost in [
            checkout.commit(&message(), &[]).await.err(),
            repository.open(&branch).err(),
            repository.make(&branch).await.err(),
        ] {
            let error = lost.unwrap();
            assert!(
                error.to_string().contains(wanted) && !error.is_transient(),
                "{error}"
            );
        }
        repository.renew(&branch).await.unwrap();
        assert_eq!(
            fs::read_to_string(checkout.folder().join("shared.txt")).unwrap(),
            "one\ntwo\nthree\n"
        );
    }
}

/// Rules as git reads them: the files that git lists are those that are committed.
#[tokio::test]
async fn rules_have_the_effect_that_they_have_in_git() {
    let bed = Bed::new(Push::Never).await;
    write(&bed.origin(), "build/kept.o", "x");
    write(&bed.origin(), "build/deep/kept.o", "x");
    run(&bed.origin(), &["add", "-Af"]);
    run(&bed.origin(), &["commit", "-qm", "Kept"]);
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    let folder = checkout.folder();
    let rules = "# comment\nbuild/\n*.o\n!keep.o\n/top\nsub/*.txt\n**/any\na/**/z\n\\#sharp\nend\\ \nfold[a-c]\n{x,y}\n*~\r\n";
    write(folder, ".gitignore", rules);
    write(folder, "sub/.gitignore", "!b.txt\n*.md\nonly/\n");
    write(folder, "sub/only/.gitignore", "!*\n");
    fs::write(folder.join(OsStr::from_bytes(b"latin\xe4")), "x").unwrap();
    fs::write(folder.join("latin-rules"), "").unwrap();
    fs::create_dir(folder.join("l")).unwrap();
    fs::write(folder.join("l/.gitignore"), b"x\xe4\n").unwrap();
    fs::write(folder.join(OsStr::from_bytes(b"l/x\xe4")), "x").unwrap();
    for path in [
        "build/new",
        "build/kept.o",
        "build/deep/kept.o",
        "a.o",
        "keep.o",
        "top",
        "sub/top",
        "sub/a.txt",
        "sub/b.txt",
        "sub/c/d.txt",
        "sub/r.md",
        "r.md",
        "sub/only/x",
        "p/q/any",
        "any/thing",
        "a/z",
        "a/b/c/z",
        "#sharp",
        "end ",
        "folda",
        "foldd",
        "x",
        "{x,y}",
        "back~",
        "sub/build/x",
    ] {
        write(folder, path, "changed");
    }
    let expected = run(folder, &["status", "--porcelain", "-z", "-uall"]);
    let mut expected: Vec<_> = expected
        .split('\0')
        .filter(|line| !line.is_empty())
        .map(|line| line[3..].to_owned())
        .collect();
    expected.sort();
    let mut done: Vec<_> = commit(&checkout).await.changed;
    let is_latin = |path: &String| path.contains("344");
    let latin: Vec<_> = done.extract_if(.., |path| is_latin(path)).collect();
    assert_eq!(latin, [r#""latin\344""#]);
    for path in &mut done {
        *path = path.trim_matches('"').to_owned();
    }
    done.sort();
    expected.retain(|path| !path.contains('\u{fffd}'));
    assert_eq!(done, expected);
}
