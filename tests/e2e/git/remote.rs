//! Remotes that move, refuse, lie, or lead elsewhere.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::*;

/// Check 27: the target is checked out at the remote.
#[tokio::test]
async fn a_target_that_moved_is_merged_again() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    let one = bed.work(&repository, "one", "one.txt", "1").await;
    let target = Branch::of_run("run_1").unwrap();
    run(&bed.origin(), &["checkout", "-qb", target.as_str()]);
    write(&bed.origin(), "theirs.txt", "of a user");
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Theirs"]);
    let theirs = run(&bed.origin(), &["rev-parse", "HEAD"]);

    let moved = repository
        .publish(&target, None, &one.commit)
        .await
        .unwrap_err();
    assert!(
        matches!(&moved, Error::Moved { found, .. } if *found == theirs),
        "{moved}"
    );
    let onto = repository.fetch(&target).await.unwrap().unwrap();
    let Merge::Done(merged) = repository.merge(&onto, &[one]).await.unwrap() else {
        panic!("a conflict");
    };
    // It is checked out at the remote: the branch moves, the files of the user do not.
    repository
        .publish(&target, Some(&onto), &merged)
        .await
        .unwrap();
    assert!(!bed.origin().join("one.txt").exists());
    assert_eq!(run(&bed.origin(), &["rev-parse", "HEAD"]), merged.as_str());
}

#[tokio::test]
async fn a_push_that_is_refused_or_dropped_is_no_success() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    let one = bed.work(&repository, "one", "one.txt", "1").await;
    let publish = async || {
        repository
            .publish(&one.branch, None, &one.commit)
            .await
            .unwrap_err()
    };
    run(
        &bed.origin(),
        &["config", "receive.hideRefs", "refs/heads/forge"],
    );
    let refused = publish().await;
    assert!(
        matches!(&refused, Error::PushRefused { reason, .. } if reason.contains("hidden")),
        "{refused}"
    );
    run(&bed.origin(), &["config", "--unset", "receive.hideRefs"]);
    // As after a push on the same machine that was killed.
    let lock = format!(".git/refs/heads/{}.lock", one.branch);
    write(&bed.origin(), &lock, "");
    let refused = publish().await;
    assert!(
        matches!(&refused, Error::PushFailed { reason, .. }
            if reason.contains("/1.lock") && reason.contains("remove the file")),
        "{refused}"
    );
    fs::remove_file(bed.origin().join(lock)).unwrap();
    // It takes the push, and shows nothing of it.
    run(
        &bed.origin(),
        &["config", "uploadpack.hideRefs", "refs/heads/forge"],
    );
    let dropped = publish().await;
    assert!(matches!(dropped, Error::NotThere { .. }), "{dropped}");
    fs::rename(bed.origin(), bed.folder.path().join("away")).unwrap();
    assert!(matches!(publish().await, Error::RefusedUrl(_)));
}

#[tokio::test]
async fn the_start_is_a_branch_or_a_tag_that_exists() {
    let bed = Bed::new(Push::Always).await;
    let base = run(&bed.origin(), &["rev-parse", "HEAD"]);
    run(&bed.origin(), &["tag", "-a", "-m", "One", "v1"]);
    write(&bed.origin(), "later.txt", "x");
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Later"]);
    let tagged = bed
        .git
        .attach("run_1", &bed.url(), Some("v1"))
        .await
        .unwrap();
    assert_eq!(
        (tagged.base().as_str(), tagged.default_branch()),
        (&*base, Some("main"))
    );
    for start in ["none", "--x", "a*"] {
        let error = bed.git.attach("run_2", &bed.url(), Some(start)).await;
        let error = error.err().unwrap();
        assert!(
            matches!(&error, Error::NoRef(name) if name == start),
            "{error}"
        );
    }
    let error = bed
        .git
        .attach("../run", &bed.url(), None)
        .await
        .err()
        .unwrap();
    assert!(matches!(error, Error::BadId(_)), "{error}");
    let empty = bed.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    run(&empty, &["init", "-q"]);
    let url = bed.git.check(empty.to_str().unwrap()).unwrap();
    let error = bed.git.attach("run_2", &url, None).await.err().unwrap();
    assert!(matches!(error, Error::Empty), "{error}");
}

#[tokio::test]
async fn the_default_branch_is_never_pushed() {
    let bed = Bed::new(Push::Always).await;
    // A name that no run needs, or it would end before.
    run(
        &bed.origin(),
        &["checkout", "-qb", "forge/integration/run_2"],
    );
    let repository = bed.attach().await;
    let target = Branch::of_run("run_2").unwrap();
    let error = repository
        .publish(&target, None, repository.base())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::DefaultBranch(_)), "{error}");
}

/// Server that answers every request with this, and reports the head of each.
async fn server(answer: String) -> (u16, mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (heads, seen) = mpsc::unbounded_channel();
    Tasks::here().spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = vec![0; 4096];
            let read = stream.read(&mut head).await.unwrap_or(0);
            let _ = heads.send(String::from_utf8_lossy(&head[..read]).into_owned());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (port, seen)
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_a_name_can_be_pinned() {
    let folder = tempfile::tempdir().unwrap();
    let no = "HTTP/1.1 404 No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let (elsewhere, mut seen_elsewhere) = server(no.to_owned()).await;
    let there = format!("location: http://127.0.0.1:{elsewhere}/b\r\ncontent-length: 0");
    let go = format!("HTTP/1.1 302 Go\r\n{there}\r\nconnection: close\r\n\r\n");
    let (port, mut seen) = server(go).await;
    let mut setup = setup(folder.path(), Push::Never, LocalHooks::Refuse);
    let named = [format!("http://localhost:{port}")];
    let guard = Guard::new(&["127.0.0.0/8".to_owned()]).unwrap();
    let rules = UrlRules::new(&named, &[], guard).unwrap();
    let keyed = [(named[0].clone(), "Bearer hush".into())].into();
    setup.remotes = Remotes::new(rules, &keyed, None, Push::Never, LocalHooks::Refuse).unwrap();
    let git = Git::find(setup).await.unwrap();
    let url = git.check(&format!("http://localhost:{port}/a")).unwrap();
    let error = git.attach("run_1", &url, None).await.err().unwrap();
    assert!(matches!(error, Error::Remote(_)), "{error}");
    let head = seen.recv().await.unwrap();
    assert!(
        head.contains("GET /a/info/refs") && head.contains("uthorization: Bearer hush"),
        "{head}"
    );
    assert!(seen_elsewhere.try_recv().is_err());

    // The setting that pins names, with a name that has no other address.
    let pin = format!("http.curloptResolve=name.invalid:{port}:127.0.0.1");
    let url = format!("http://name.invalid:{port}/c");
    let mut git = Command::new("git");
    let ended = spawn_blocking(move || git.args(["-c", &pin, "ls-remote", &url]).output());
    assert!(!ended.await.unwrap().unwrap().status.success());
    assert!(seen.recv().await.unwrap().contains("GET /c/info/refs"));
}

/// A foreign branch that excludes the branches of a run is told before anything is made, and stays.
#[tokio::test]
async fn branches_that_cannot_be_made_are_told_when_the_repository_is_attached() {
    for (found, wanted) in [
        ("forge", Some("forge/integration/run_1")),
        ("forge/integration", Some("forge/integration/run_1")),
        ("forge/integration/run_1", Some("forge/integration/run_1")),
        ("forge/integration/run_1/x", Some("forge/integration/run_1")),
        ("forge/run_1", Some("forge/run_1")),
        ("forge/run_1/one/1", Some("forge/run_1")),
        ("forge/integration/run_2", None),
        ("forge/run_10/one/1", None),
        ("forge/one/1", None),
        ("forged", None),
    ] {
        let bed = Bed::new(Push::Always).await;
        run(&bed.origin(), &["branch", found]);
        let attached = bed.git.attach("run_1", &bed.url(), None).await;
        let told = attached.as_ref().err().map(ToString::to_string);
        let expected = wanted.map(|wanted| {
            format!(
                "the branches of this run cannot be made: the repository has a branch {found:?}, and the run needs \
                 {wanted:?}; rename it"
            )
        });
        assert_eq!(told, expected);
        if let Ok(repository) = attached {
            let branch = bed.checkout(&repository, "one").await.branch().clone();
            let published = repository.publish(&branch, None, repository.base()).await;
            published.unwrap();
        }
        run(&bed.origin(), &["rev-parse", "--verify", found]);
    }
}

/// The branch of an attempt is created, never taken over, whatever its commit is.
#[tokio::test]
async fn a_foreign_branch_is_not_moved() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    let work = bed.work(&repository, "one", "one.txt", "1").await;
    write(&bed.origin(), "theirs.txt", "2");
    run(&bed.origin(), &["checkout", "-qb", work.branch.as_str()]);
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Theirs"]);
    let theirs = run(&bed.origin(), &["rev-parse", "HEAD"]);
    let refused = repository.publish(&work.branch, None, &work.commit).await;
    assert!(matches!(refused, Err(Error::Moved { .. })), "{refused:?}");
    let found = run(&bed.origin(), &["rev-parse", work.branch.as_str()]);
    assert_eq!(found, theirs);
}
