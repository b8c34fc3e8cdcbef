//! The way of results: from a checkout to a proved and published merge.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::*;

/// Checks 24 and 29.
#[tokio::test]
async fn work_is_merged_proved_and_published_and_the_users_checkout_stays() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    assert_eq!(repository.default_branch(), Some("main"));
    let one = bed.work(&repository, "one", "one.txt", "1").await;
    let two = bed.work(&repository, "two", "two.txt", "2").await;
    for input in [&one, &two] {
        repository
            .publish(&input.branch, None, &input.commit)
            .await
            .unwrap();
        // Again, as after a restart.
        repository
            .publish(&input.branch, None, &input.commit)
            .await
            .unwrap();
        assert_eq!(
            repository.published(&input.branch).await.unwrap().as_ref(),
            Some(&input.commit)
        );
    }
    let target = Branch::of_run("run_1").unwrap();
    assert_eq!(repository.fetch(&target).await.unwrap(), None);
    let inputs = [one.clone(), two.clone()];
    let merged = done(repository.merge(repository.base(), &inputs).await);
    assert_eq!(
        done(repository.merge(repository.base(), &inputs).await),
        merged,
        "the same commit"
    );
    assert_eq!(
        done(repository.merge(&merged, &inputs).await),
        merged,
        "nothing to merge"
    );
    repository
        .keep_onto(&merged, repository.base())
        .await
        .unwrap();
    repository.publish(&target, None, &merged).await.unwrap();
    let proof = repository
        .prove(&merged, &inputs, &Default::default())
        .await
        .unwrap();
    let presence = Presence::Ancestor;
    let claims = proof.claims.iter();
    assert!(
        claims
            .clone()
            .all(|claim| claim.presence == presence && claim.changed == 1)
    );
    assert!(claims.map(|claim| &claim.input).eq(&inputs));
    assert_eq!(
        bed.files(&merged),
        [".gitignore", "one.txt", "shared.txt", "two.txt"]
    );

    assert_eq!(
        run(&bed.origin(), &["status", "--porcelain", "--branch"]),
        "## main"
    );
    let at_remote = run(&bed.origin(), &["rev-parse", target.as_str()]);
    assert_eq!(at_remote, merged.as_str());
    let author = run(
        &bed.origin(),
        &["log", "-1", "--format=%an %at %B", "forge/run_1/one/1"],
    );
    assert_eq!(
        author,
        "forge-bridge 1700000000 Do the task\n\nWith \"quotes\""
    );
}

#[tokio::test]
async fn without_a_push_everything_stays_in_the_bare_repository() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let one = bed.work(&repository, "one", "one.txt", "1").await;
    repository
        .publish(&one.branch, None, &one.commit)
        .await
        .unwrap();
    let target = Branch::of_run("run_1").unwrap();
    repository
        .publish(&target, None, &one.commit)
        .await
        .unwrap();
    let moved = repository
        .publish(&target, None, repository.base())
        .await
        .unwrap_err();
    assert!(matches!(moved, Error::Moved { .. }), "{moved}");
    assert_eq!(repository.fetch(&target).await.unwrap(), Some(one.commit));
    assert_eq!(run(&bed.origin(), &["branch", "--list"]), "* main");
}

#[tokio::test]
async fn a_commit_has_the_files_that_were_left_and_repeats_as_itself() {
    let bed = Bed::new(Push::Never).await;
    write(&bed.origin(), "gone/file", "x");
    write(&bed.origin(), "becomes-folder", "x");
    write(&bed.origin(), "becomes-link/a", "x");
    write(&bed.origin(), "ignored/kept", "x");
    write(&bed.origin(), "crlf", "a\r\n$Id$\n");
    write(
        &bed.origin(),
        ".gitattributes",
        "* text=auto eol=lf ident\n",
    );
    run(&bed.origin(), &["add", "-A", "-f"]);
    run(&bed.origin(), &["commit", "-qm", "More"]);
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    let folder = checkout.folder();
    assert_eq!(run(folder, &["status", "--porcelain"]), "");
    assert_eq!(run(folder, &["remote"]), "");
    let nothing = commit(&checkout).await;
    assert_eq!(
        (&nothing.commit, nothing.changed.len()),
        (repository.base(), 0)
    );

    fs::remove_dir_all(folder.join("gone")).unwrap();
    fs::remove_file(folder.join("becomes-folder")).unwrap();
    write(folder, "becomes-folder/file", "new");
    fs::remove_dir_all(folder.join("becomes-link")).unwrap();
    symlink("/etc", folder.join("becomes-link")).unwrap();
    write(folder, "ignored/new", "not committed");
    write(folder, "ignored/kept", "committed");
    write(folder, "ä \"quoted\"\n\\name", "odd");
    fs::set_permissions(folder.join("shared.txt"), fs::Permissions::from_mode(0o755)).unwrap();
    // What an agent commits is what it leaves, whatever its index says.
    run(folder, &["commit", "-qam", "Mine"]);
    write(folder, "after", "its commit");

    let done = commit(&checkout).await;
    assert_eq!(done.left_out.total, 0);
    assert_eq!(
        commit(&checkout).await.commit,
        done.commit,
        "nothing more to commit"
    );
    let changes = run(
        &bed.bare(),
        &[
            "diff",
            "--raw",
            "-z",
            "--no-renames",
            "--abbrev=1",
            repository.base().as_str(),
            done.commit.as_str(),
        ],
    );
    let words: Vec<&str> = changes.split('\0').collect();
    let changes: Vec<(&str, &str)> = words
        .chunks_exact(2)
        .map(|pair| (&pair[0][1..14], pair[1]))
        .collect();
    assert_eq!(
        changes,
        [
            ("000000 100644", "after"),
            ("100644 000000", "becomes-folder"),
            ("000000 100644", "becomes-folder/file"),
            ("000000 120000", "becomes-link"),
            ("100644 000000", "becomes-link/a"),
            ("100644 000000", "gone/file"),
            ("100644 100644", "ignored/kept"),
            ("100644 100755", "shared.txt"),
            ("000000 100644", "ä \"quoted\"\n\\name"),
        ]
    );
    let checks = repository.folder_of(&done.commit).await.unwrap();
    assert_eq!(
        fs::read_to_string(checks.join("after")).unwrap(),
        "its commit"
    );
    write(&checks, "made by a check", "");
    assert!(
        !repository
            .folder_of(&done.commit)
            .await
            .unwrap()
            .join("made by a check")
            .exists()
    );
}
