//! Merges, conflicts, and proofs.

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use super::*;

#[tokio::test]
async fn what_a_child_has_done_is_written_into_the_folder_of_its_parent() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let parent = bed.checkout(&repository, "one").await;
    write(parent.folder(), "parent.txt", "in work");
    let before = commit(&parent).await.commit;
    let branch = Branch::of_child("run_1", "one", 1, 1).unwrap();
    repository.start(&branch, &before).await.unwrap();
    let child = repository.make(&branch).await.unwrap();
    write(child.folder(), "deep/er/child.txt", "done");
    fs::remove_file(child.folder().join("shared.txt")).unwrap();
    let commit_of_child = commit(&child).await.commit;
    bed.git.discard("run_1", child.branch()).unwrap();

    let input = Input {
        branch,
        commit: commit_of_child,
    };
    let merged = done(repository.merge(&before, &[input]).await);
    repository
        .advance(parent.branch(), Some(&before), &merged)
        .await
        .unwrap();
    // Outside of the folder, where a link of the agent leads.
    let outside = bed.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, parent.folder().join("deep")).unwrap();
    parent.write(&before, &merged).await.unwrap();
    assert_eq!(
        fs::read_to_string(parent.folder().join("deep/er/child.txt")).unwrap(),
        "done"
    );
    assert!(!parent.folder().join("shared.txt").exists());
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    assert_eq!(
        commit(&parent).await.commit,
        merged,
        "the folder is as the commit"
    );
}

/// Check 26.
#[tokio::test]
async fn a_result_without_an_input_is_not_proved_and_a_copied_patch_is() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let one = bed.work(&repository, "one", "one.txt", "1").await;
    let two = bed.work(&repository, "two", "two.txt", "2").await;
    let inputs = [one.clone(), two.clone()];
    let none = BTreeSet::new();
    let missing = repository
        .prove(&one.commit, &inputs, &none)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        missing.contains("run_1/two/1") && !missing.contains("run_1/one/1"),
        "{missing}"
    );

    // A rebase by an agent: the same change on another commit.
    let branch = Branch::of_attempt("run_1", "three", 1).unwrap();
    repository.start(&branch, &one.commit).await.unwrap();
    let copy = repository.make(&branch).await.unwrap();
    write(copy.folder(), "two.txt", "2");
    let copied = commit(&copy).await.commit;
    let proof = repository.prove(&copied, &inputs, &none).await.unwrap();
    let found: Vec<_> = proof
        .claims
        .iter()
        .map(|claim| (&claim.input, claim.presence))
        .collect();
    assert_eq!(found, [(&one, Presence::Ancestor), (&two, Presence::Patch)]);

    // A merge that keeps nothing of the other side has its commit, and one that was made of a merge has no patch.
    let merged = done(
        repository
            .merge(&one.commit, std::slice::from_ref(&two))
            .await,
    );
    let of_merge = Input {
        branch: two.branch,
        commit: merged,
    };
    assert!(repository.prove(&copied, &[of_merge], &none).await.is_err());
}
