//! Space of copies: what they share, and what is left of removed ones.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use super::*;

/// Size of the content that the base of [`large`] has.
const LARGE: usize = 8 << 20;

/// A repository with a file that does not compress.
async fn large() -> Bed {
    let bed = Bed::new(Push::Always).await;
    fs::write(bed.origin().join("large.bin"), noise(LARGE, 1)).unwrap();
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Large"]);
    bed
}

/// Bytes that do not compress.
fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    (0..size).map(|_| next()).collect()
}

/// Files below a folder.
fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let below = entries.flat_map(|entry| match entry.file_type().unwrap().is_dir() {
        true => files_below(&entry.path()),
        false => vec![entry.path()],
    });
    below.collect()
}

fn size_below(folder: &Path) -> u64 {
    let files = files_below(folder).into_iter();
    files
        .map(|file| fs::symlink_metadata(file).unwrap().len())
        .sum()
}

#[tokio::test]
async fn a_copy_has_only_the_objects_that_are_new() {
    let bed = large().await;
    let repository = bed.attach().await;
    let first = bed.checkout(&repository, "one").await;
    let objects = |checkout: &Checkout| size_below(&checkout.folder().join(".git/objects"));
    assert!(objects(&first) < 1024, "{}", objects(&first));
    fs::write(first.folder().join("new.bin"), noise(1 << 20, 2)).unwrap();
    let done = commit(&first).await.commit;

    // The result of a dependency, as a checkout and for checks.
    let branch = Branch::of_attempt("run_1", "two", 1).unwrap();
    repository.start(&branch, &done).await.unwrap();
    let second = repository.make(&branch).await.unwrap();
    let checks = repository.folder_of(&done).await.unwrap();
    for folder in [second.folder(), &checks] {
        let own = size_below(&folder.join(".git/objects"));
        assert!((1 << 20..2 << 20).contains(&own), "{own}");
        assert_eq!(run(folder, &["status", "--porcelain"]), "");
        assert_eq!(run(folder, &["rev-parse", "HEAD"]), done.as_str());
        assert_eq!(run(folder, &["fsck", "--no-dangling"]), "");
    }
    assert_eq!(
        run(second.folder(), &["branch", "--show-current"]),
        branch.as_str()
    );
}

#[tokio::test]
async fn shared_objects_are_a_second_copy_and_are_made_again_when_an_agent_damages_them() {
    let bed = large().await;
    let repository = bed.attach().await;
    let first = bed.checkout(&repository, "one").await;
    let shared = bed.folder.path().join("runs/run_1/shared.git");
    for file in files_below(&shared.join("objects")) {
        let metadata = fs::metadata(&file).unwrap();
        assert_eq!(
            (metadata.nlink(), metadata.mode() & 0o777),
            (1, 0o444),
            "{file:?}"
        );
        assert_eq!(
            fs::metadata(file.parent().unwrap()).unwrap().mode() & 0o777,
            0o555
        );
    }
    assert!(!shared.join("objects/info/alternates").exists());
    let intact = run(&bed.bare(), &["fsck", "--full"]);
    for file in files_below(&shared.join("objects")) {
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&file, "damaged").unwrap();
    }
    assert_eq!(run(&bed.bare(), &["fsck", "--full"]), intact);
    write(first.folder(), "mine.txt", "mine");
    assert_eq!(commit(&first).await.changed, ["mine.txt"]);
    let second = bed.checkout(&repository, "two").await;
    assert_eq!(run(second.folder(), &["fsck", "--no-dangling"]), "");
    fs::remove_dir_all(&shared).unwrap();
    let third = bed.checkout(&repository, "three").await;
    assert_eq!(run(third.folder(), &["status", "--porcelain"]), "");
}

#[tokio::test]
async fn removed_checkouts_are_out_of_the_way_at_once_and_deleted_before_the_next_one_is_made() {
    let bed = large().await;
    let repository = bed.attach().await;
    let runs = bed.folder.path().join("runs");
    let first = bed.checkout(&repository, "one").await;
    write(&runs, "run_1/attempts/one/.new-2/half", "half");
    let mut found = bed.git.checkouts("run_1").unwrap();
    found.sort();
    let name = |attempt: &str| ("one".to_owned(), attempt.to_owned());
    assert_eq!(found, [name("1"), name("2")]);
    for attempt in [1, 2, 3] {
        let branch = Branch::of_attempt("run_1", "one", attempt).unwrap();
        bed.git.discard("run_1", &branch).unwrap();
    }
    assert!(!first.folder().exists() && !runs.join("run_1/attempts/one").exists());
    bed.checkout(&repository, "two").await;
    assert_eq!(fs::read_dir(runs.join(".trash")).unwrap().count(), 0);
    assert_eq!(bed.git.runs().unwrap(), ["run_1"]);
    bed.git.remove("run_1").unwrap();
    assert_eq!(bed.git.runs().unwrap(), [""; 0]);
}
