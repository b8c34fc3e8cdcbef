//! Repositories and agents that try to run something or to reach out of their folder.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixListener;

use super::*;

/// Hooks that git knows, and what else it starts.
const HOOKS: [&str; 14] = [
    "pre-receive",
    "update",
    "post-receive",
    "post-update",
    "reference-transaction",
    "proc-receive",
    "push-to-checkout",
    "post-checkout",
    "pre-push",
    "pre-commit",
    "post-commit",
    "post-merge",
    "post-index-change",
    "fsmonitor",
];

/// Writes a program that leaves a trace, and returns its path.
pub(crate) fn trap(folder: &Path) -> String {
    let program = folder.join("trap");
    let trace = folder.join("trace");
    fs::write(
        &program,
        format!("#!/bin/sh\necho \"$0 $@\" >> {}\ncat\n", trace.display()),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    program.display().to_string()
}

/// Sets up everything in a git directory that could start the program.
pub(crate) fn set_traps(git_dir: &Path, trap: &str) {
    fs::create_dir_all(git_dir.join("hooks")).unwrap();
    for hook in HOOKS {
        fs::copy(trap, git_dir.join("hooks").join(hook)).unwrap();
    }
    let config = format!(
        "[core]\n\tfsmonitor = {trap}\n\thooksPath = {hooks}\n\talternateRefsCommand = {trap}\n\tsshCommand = {trap}\n\
         \tgitProxy = {trap}\n\tpager = {trap}\n\teditor = {trap}\n[filter \"evil\"]\n\tclean = {trap}\n\tsmudge = {trap}\n\
         \tprocess = {trap}\n\trequired = true\n[diff \"evil\"]\n\tcommand = {trap}\n\ttextconv = {trap}\n[merge \"evil\"]\n\
         \tdriver = {trap}\n[uploadpack]\n\tpackObjectsHook = {trap}\n[credential]\n\thelper = {trap}\n[gc]\n\tauto = 1\n\
         [alias]\n\tupload-pack = !{trap}\n",
        hooks = git_dir.join("hooks").display(),
    );
    let path = git_dir.join("config");
    let former = fs::read_to_string(&path).unwrap_or_default();
    fs::write(path, former + &config).unwrap();
}

#[tokio::test]
async fn a_remote_with_traps_runs_nothing() {
    let bed = Bed::with(Push::Always, LocalHooks::Ignore).await;
    let origin = bed.origin();
    let outside = bed.folder.path().join("outside.txt");
    fs::write(&outside, "secret").unwrap();
    symlink(&outside, origin.join("link")).unwrap();
    write(
        &origin,
        ".gitattributes",
        "* filter=evil diff=evil merge=evil\n",
    );
    write(
        &origin,
        ".gitmodules",
        "[submodule \"s\"]\n\tpath = s\n\turl = https://example.com/s\n\tupdate = checkout\n",
    );
    let head = run(&origin, &["rev-parse", "HEAD"]);
    run(
        &origin,
        &[
            "update-index",
            "--add",
            "--cacheinfo",
            &format!("160000,{head},s"),
        ],
    );
    run(&origin, &["add", ".gitattributes", ".gitmodules", "link"]);
    run(&origin, &["commit", "-qm", "Traps"]);
    set_traps(&origin.join(".git"), &trap(bed.folder.path()));

    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    assert_eq!(
        fs::read_dir(checkout.folder().join("s")).unwrap().count(),
        0
    );
    write(checkout.folder(), "s/file", "of a submodule");
    write(checkout.folder(), "shared.txt", "changed");
    let done = commit(&checkout).await;
    assert_eq!(done.changed, ["shared.txt"]);
    assert_eq!(done.left_out.total, 1);
    let kept = run(&bed.bare(), &["ls-tree", done.commit.as_str(), "s", "link"]);
    assert!(
        kept.contains(&format!("160000 commit {head}\ts")) && kept.contains("120000"),
        "{kept}"
    );
    assert_eq!(
        bed.show(&done.commit, "link"),
        outside.display().to_string()
    );
    repository
        .publish(checkout.branch(), None, &done.commit)
        .await
        .unwrap();
    let two = bed.work(&repository, "two", "shared.txt", "two").await;
    let one = Input {
        branch: checkout.branch().clone(),
        commit: done.commit,
    };
    assert!(matches!(
        repository.merge(repository.base(), &[one, two]).await,
        Ok(Merge::Conflict(_))
    ));
    assert_eq!(
        fs::read_to_string(bed.folder.path().join("trace")).ok(),
        None
    );
}

#[tokio::test]
async fn an_agent_that_rewrites_its_repository_runs_nothing_and_reads_nothing() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    let (folder, outside) = (checkout.folder(), bed.folder.path().join("outside"));
    fs::create_dir(&outside).unwrap();
    write(&outside, "secret.txt", "secret");
    let trap = trap(bed.folder.path());
    // Its own repository, one in a folder, and one elsewhere.
    set_traps(&folder.join(".git"), &trap);
    write(
        folder,
        ".git/objects/info/alternates",
        outside.to_str().unwrap(),
    );
    let text = format!("[core]\n\tworktree = {}\n", outside.display());
    fs::write(folder.join(".git/config.worktree"), text).unwrap();
    write(folder, ".gitattributes", "* filter=evil\n");
    write(folder, "nested/a.txt", "a");
    run(&folder.join("nested"), &["init", "-q"]);
    run(&folder.join("nested"), &["add", "a.txt"]);
    run(&folder.join("nested"), &["commit", "-qm", "Nested"]);
    write(folder, "nested/a.txt", "b");
    set_traps(&folder.join("nested/.git"), &trap);
    write(
        folder,
        "file-repository/.git",
        &format!("gitdir: {}", bed.origin().join(".git").display()),
    );
    // Ways out.
    symlink(&outside, folder.join("out")).unwrap();
    symlink(outside.join("secret.txt"), folder.join("secret.txt")).unwrap();
    symlink("../../../../../..", folder.join("up")).unwrap();
    fs::remove_file(folder.join("shared.txt")).unwrap();
    fs::hard_link(outside.join("secret.txt"), folder.join("shared.txt")).unwrap();
    write(folder, ".GIT/config", "x");
    write(folder, "sub/git~1/config", "x");
    write(folder, "sub/.g\u{200c}it/config", "x");
    let _socket = UnixListener::bind(folder.join("socket")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    let large = fs::File::create(folder.join("large")).unwrap();
    large.set_len(64 * 1024 * 1024 + 1).unwrap();
    write(folder, "honest.txt", "work");
    let count_before = fs::read_dir(bed.folder.path()).unwrap().count();

    let done = commit(&checkout).await;
    assert_eq!(
        done.changed,
        [
            ".gitattributes",
            "honest.txt",
            "out",
            "secret.txt",
            // The agent could read it, and may commit what it reads.
            "shared.txt",
            "up"
        ]
    );
    let left_out: Vec<&str> = done
        .left_out
        .listed
        .iter()
        .map(|entry| entry.path.as_str())
        .collect();
    assert_eq!(
        left_out,
        [
            "\"sub/.g\\342\\200\\214it/\"",
            ".GIT/",
            "file-repository/",
            "large",
            "nested/",
            "pipe",
            "socket",
            "sub/git~1/"
        ]
    );
    assert_eq!(bed.show(&done.commit, "shared.txt"), "secret");
    repository
        .publish(checkout.branch(), None, &done.commit)
        .await
        .unwrap();

    // Without a repository, and with a link in its place.
    fs::remove_dir_all(folder.join(".git")).unwrap();
    write(folder, "more.txt", "more");
    assert_eq!(commit(&checkout).await.changed, ["more.txt"]);
    symlink(bed.origin().join(".git"), folder.join(".git")).unwrap();
    fs::remove_file(folder.join("more.txt")).unwrap();
    assert_eq!(commit(&checkout).await.changed, ["more.txt"]);
    assert_eq!(
        fs::read_to_string(bed.folder.path().join("trace")).ok(),
        None
    );
    assert_eq!(
        fs::read_dir(bed.folder.path()).unwrap().count(),
        count_before
    );
    bed.git.discard("run_1", checkout.branch()).unwrap();
    assert!(outside.join("secret.txt").exists() && bed.origin().join(".git").exists());
}

#[tokio::test]
async fn a_tree_that_would_be_written_into_a_repository_is_not_fetched() {
    let bed = Bed::new(Push::Always).await;
    let origin = bed.origin();
    let blob = run(&origin, &["hash-object", "-w", "shared.txt"]);
    fs::write(
        bed.folder.path().join("tree"),
        format!("100755 blob {blob}\tpost-checkout\n"),
    )
    .unwrap();
    let make = |text: &str| {
        let script = format!("printf '{text}' | git -C {} mktree", origin.display());
        let output = Command::new("sh").args(["-c", &script]).output().unwrap();
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    };
    let hooks = make(&format!("100755 blob {blob}\\tpost-checkout\\n"));
    let git = make(&format!("040000 tree {hooks}\\thooks\\n"));
    let top = make(&format!("040000 tree {git}\\t.git\\n"));
    let evil = run(&origin, &["commit-tree", "-m", "Evil", &top]);
    run(&origin, &["update-ref", "refs/heads/main", &evil]);
    let error = bed
        .git
        .attach("run_1", &bed.url(), None)
        .await
        .err()
        .unwrap();
    assert!(matches!(error, Error::Remote(_)), "{error}");
}

#[tokio::test]
async fn a_folder_that_its_agent_has_closed_is_removed() {
    let bed = Bed::new(Push::Never).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    write(checkout.folder(), "closed/file", "x");
    fs::set_permissions(
        checkout.folder().join("closed"),
        fs::Permissions::from_mode(0o0),
    )
    .unwrap();
    bed.git.discard("run_1", checkout.branch()).unwrap();
    bed.git.remove("run_1").unwrap();
    assert!(!bed.folder.path().join("runs/run_1").exists());
}
