//! The commit that a run begins with, and remotes that have none.

use super::*;

/// A commit that is on no branch's tip, and one that is on a tag only.
#[tokio::test]
async fn a_run_begins_at_a_commit_by_its_whole_id() {
    let bed = Bed::new(Push::Always).await;
    let first = run(&bed.origin(), &["rev-parse", "HEAD"]);
    write(&bed.origin(), "later.txt", "x");
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Later"]);
    let commit_tree = ["commit-tree", "-m", "Aside", "HEAD^{tree}"];
    let aside = run(&bed.origin(), &commit_tree);
    run(&bed.origin(), &["tag", "aside", &aside]);
    for (number, commit) in [&first, &aside, &first.to_uppercase()]
        .into_iter()
        .enumerate()
    {
        let name = format!("run_1{number}");
        let start = bed.git.attach(&name, &bed.url(), Some(commit)).await;
        let start = start.unwrap_or_else(|error| panic!("{commit}: {error}"));
        assert_eq!(start.base().as_str(), commit.to_lowercase());
        assert_eq!(start.default_branch(), Some("main"));
    }
    let tree = run(&bed.origin(), &["rev-parse", "HEAD^{tree}"]);
    let long = "a".repeat(64);
    for absent in [&"a".repeat(40), &tree, &long] {
        let error = bed.git.attach("run_3", &bed.url(), Some(absent)).await;
        let error = error.err().unwrap();
        assert!(
            matches!(&error, Error::NoCommit(id) if id.as_str() == absent),
            "{error}"
        );
        assert!(error.to_string().contains(absent.as_str()), "{error}");
    }
    // The beginning of an id is the name of a branch, or nothing.
    let error = bed
        .git
        .attach("run_3", &bed.url(), Some(&first[..12]))
        .await;
    let error = error.err().unwrap().to_string();
    assert!(error.contains("named by its whole id"), "{error}");
    run(&bed.origin(), &["branch", &first[..12], &first]);
    let branch = bed
        .git
        .attach("run_3", &bed.url(), Some(&first[..12]))
        .await;
    assert_eq!(branch.unwrap().base().as_str(), first);
}

#[tokio::test]
async fn a_remote_without_a_beginning_says_why() {
    let bed = Bed::new(Push::Always).await;
    let error = async |name: &str, start: Option<&str>| {
        let path = bed.folder.path().join(name);
        let url = bed.git.check(path.to_str().unwrap()).unwrap();
        let error = bed.git.attach("run_2", &url, start).await.err().unwrap();
        (error.to_string(), error)
    };
    run(bed.folder.path(), &["init", "-q", "empty"]);
    for start in [None, Some("main")] {
        let (text, found) = error("empty", start).await;
        assert!(matches!(found, Error::Empty), "{start:?}: {text}");
    }
    run(bed.folder.path(), &["clone", "-q", "origin", "headless"]);
    let headless = bed.folder.path().join("headless");
    run(&headless, &["symbolic-ref", "HEAD", "refs/heads/absent"]);
    let (text, found) = error("headless", None).await;
    assert!(
        matches!(&found, Error::NoHead(branch) if branch == "main"),
        "{text}"
    );
    let (text, found) = error("headless", Some("absent")).await;
    assert!(matches!(found, Error::NoRef(_)), "{text}");
    let url = bed.git.check(headless.to_str().unwrap()).unwrap();
    let named = bed.git.attach("run_3", &url, Some("main")).await.unwrap();
    assert_eq!(named.default_branch(), None);

    write(&bed.origin(), "later.txt", "x");
    run(&bed.origin(), &["add", "-A"]);
    run(&bed.origin(), &["commit", "-qm", "Later"]);
    let origin = format!("file://{}", bed.origin().display());
    run(
        bed.folder.path(),
        &["clone", "-q", "--depth", "1", &origin, "shallow"],
    );
    let head = run(&bed.origin(), &["rev-parse", "HEAD"]);
    for start in [None, Some("main"), Some(&*head)] {
        let (text, found) = error("shallow", start).await;
        assert!(matches!(found, Error::Shallow), "{start:?}: {text}");
    }
}
