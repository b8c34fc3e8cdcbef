//! Steps that were killed, and programs that do not work.

use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use tokio::time::timeout;

use super::*;

/// Cancels an operation after growing times until it completes, as a killed process would, and returns its result.
async fn until_done<T>(bed: &Bed, mut operation: impl AsyncFnMut() -> Result<T, Error>) -> T {
    let mut wait = Duration::from_millis(1);
    while wait < Duration::from_secs(60) {
        if let Ok(done) = timeout(wait, operation()).await {
            return done.unwrap();
        }
        wait += wait / 4 + Duration::from_millis(2);
        // As after a restart, which kills what is left first.
        while children(bed.folder.path()).living() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    panic!("it does not complete")
}

#[tokio::test]
async fn operations_that_were_cut_at_any_time_complete_when_they_are_repeated() {
    let bed = Bed::new(Push::Always).await;
    let repository = until_done(&bed, async || {
        bed.git.attach("run_1", &bed.url(), None).await
    })
    .await;
    let branch = Branch::of_attempt("run_1", "one", 1).unwrap();
    let checkout = until_done(&bed, async || {
        let repository = bed.git.attach("run_1", &bed.url(), None).await?;
        repository.start(&branch, repository.base()).await?;
        repository.make(&branch).await
    })
    .await;
    write(checkout.folder(), "one.txt", "1");
    let committed = until_done(&bed, async || {
        let repository = bed.git.attach("run_1", &bed.url(), None).await?;
        repository.open(&branch)?.commit(&message(), &[]).await
    })
    .await;
    let lock = bed.origin().join(format!(".git/refs/heads/{branch}.lock"));
    until_done(&bed, async || {
        // The git of the remote is killed too; its lock is left to those who use that repository.
        let _: std::io::Result<()> = fs::remove_file(&lock);
        let repository = bed.git.attach("run_1", &bed.url(), None).await?;
        repository.publish(&branch, None, &committed.commit).await
    })
    .await;
    let count = run(
        &bed.bare(),
        &[
            "rev-list",
            "--count",
            &format!("{}..{}", repository.base(), branch),
        ],
    );
    assert_eq!(count, "1", "one commit, however often it was begun");
}

#[tokio::test]
async fn leftovers_of_a_killed_process_are_removed() {
    let bed = Bed::new(Push::Never).await;
    let runs = bed.folder.path().join("runs/run_1");
    write(&runs, "new.git/HEAD", "half");
    bed.attach().await;
    for lock in [
        "config.lock",
        "HEAD.lock",
        "packed-refs.lock",
        "refs/heads/forge/run_1/one/1.lock",
    ] {
        write(&bed.bare(), lock, "");
    }
    write(&runs, "attempts/one/.new-1/.git/HEAD", "half");
    let repository = bed.attach().await;
    bed.work(&repository, "one", "one.txt", "1").await;
}

#[tokio::test]
async fn a_program_that_is_missing_old_or_stuck_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let find = async |script: Option<&str>| {
        let mut setup = setup(folder.path(), Push::Never, LocalHooks::Refuse);
        setup.search = folder.path().into();
        setup.timeout = Duration::from_secs(5);
        if let Some(script) = script {
            let program = folder.path().join("git");
            fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Git::find(setup).await.err().unwrap().to_string()
    };
    let begun = Instant::now();
    for (script, wanted) in [
        (None, "no git in PATH"),
        (Some("echo git version 2.37.9"), "2.37.9"),
        (Some("exit 3"), "exit code 3"),
        (Some("exec sleep 60"), "did not end within 5s"),
        (Some("exec yes"), "too large"),
    ] {
        let error = find(script).await;
        assert!(error.contains(wanted) && error.contains("2.38"), "{error}");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(60),
        "{:?}",
        begun.elapsed()
    );
}
