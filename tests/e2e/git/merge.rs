//! Merges, conflicts, and proofs.

use std::os::unix::fs::symlink;

use super::*;

#[tokio::test]
async fn a_conflict_is_resolved_in_a_checkout_and_proved() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let one = bed
        .work(&repository, "one", "shared.txt", "ONE\ntwo\nthree\n")
        .await;
    let two = bed
        .work(&repository, "two", "shared.txt", "1\ntwo\nthree\n")
        .await;
    let inputs = [one.clone(), two.clone()];
    let Merge::Conflict(conflict) = repository.merge(repository.base(), &inputs).await.unwrap()
    else {
        panic!("it merged");
    };
    assert_eq!((&conflict.onto, &conflict.input), (&one.commit, &two));
    assert_eq!(conflict.paths, ["shared.txt"]);

    let branch = Branch::of_attempt("run_1", "refinery-1", 1).unwrap();
    repository.start(&branch, &conflict.onto).await.unwrap();
    let checkout = repository.checkout(&branch).await.unwrap();
    checkout
        .write(&conflict.onto, &conflict.tree)
        .await
        .unwrap();
    let left = fs::read_to_string(checkout.folder().join("shared.txt")).unwrap();
    assert!(left.contains("<<<<<<< "), "{left}");
    let parents = [two.commit.clone()];
    let open = checkout.commit(&message(), &parents).await.unwrap().commit;
    assert_eq!(
        repository.unresolved(&open, &conflict.paths).await.unwrap(),
        conflict.paths
    );
    write(checkout.folder(), "shared.txt", "ONE 1\ntwo\nthree\n");
    let resolved = checkout.commit(&message(), &parents).await.unwrap().commit;
    assert_eq!(
        checkout.commit(&message(), &parents).await.unwrap().commit,
        resolved
    );
    assert!(
        repository
            .unresolved(&resolved, &conflict.paths)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(done(repository.merge(&resolved, &inputs).await), resolved);
    repository.prove(&resolved, &inputs).await.unwrap();
}

#[tokio::test]
async fn what_a_child_has_done_is_written_into_the_folder_of_its_parent() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let parent = bed.checkout(&repository, "one").await;
    write(parent.folder(), "parent.txt", "in work");
    let before = commit(&parent).await.commit;
    let branch = Branch::of_child("run_1", "one", 1, 1).unwrap();
    repository.start(&branch, &before).await.unwrap();
    let child = repository.checkout(&branch).await.unwrap();
    write(child.folder(), "deep/er/child.txt", "done");
    fs::remove_file(child.folder().join("shared.txt")).unwrap();
    let commit_of_child = commit(&child).await.commit;
    child.remove().await.unwrap();

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
    let missing = repository
        .prove(&one.commit, &inputs)
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
    let copy = repository.checkout(&branch).await.unwrap();
    write(copy.folder(), "two.txt", "2");
    let copied = commit(&copy).await.commit;
    let proof = repository.prove(&copied, &inputs).await.unwrap();
    assert_eq!(
        proof.inputs,
        [
            (one.clone(), Presence::Ancestor),
            (two.clone(), Presence::Patch)
        ]
    );

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
    assert!(repository.prove(&copied, &[of_merge]).await.is_err());
}
