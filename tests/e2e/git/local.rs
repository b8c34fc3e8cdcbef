//! Repositories on this machine: their hooks, and those of another owner.

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

use super::*;

fn hook(file: &Path, mode: u32) {
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(file, "#!/bin/sh\ncat >> trace\nexit 0\n").unwrap();
    fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
}

/// A setting of the origin, a file with its mode, and the hook that is active then.
const HOOKS: &[(&str, &str, u32, Option<&str>)] = &[
    ("", ".git/hooks/pre-receive", 0o755, Some("pre-receive")),
    ("", ".git/hooks/update", 0o755, Some("update")),
    ("", ".git/hooks/post-receive", 0o700, Some("post-receive")),
    (
        "",
        ".git/hooks/reference-transaction",
        0o755,
        Some("reference-transaction"),
    ),
    ("", ".git/hooks/post-update", 0o755, Some("post-update")),
    ("", ".git/hooks/proc-receive", 0o755, Some("proc-receive")),
    (
        "",
        ".git/hooks/push-to-checkout",
        0o755,
        Some("push-to-checkout"),
    ),
    ("", ".git/hooks/pre-receive", 0o644, None),
    ("", ".git/hooks/pre-receive.sample", 0o755, None),
    ("", ".git/hooks/pre-commit", 0o755, None),
    (
        "core.hooksPath {in}/elsewhere",
        "elsewhere/update",
        0o755,
        Some("update"),
    ),
    (
        "core.hookspath own",
        ".git/own/update",
        0o755,
        Some("update"),
    ),
    (
        "core.hooksPath {in}/elsewhere",
        ".git/hooks/update",
        0o755,
        None,
    ),
    (
        "include.path {in}/more",
        "elsewhere/update",
        0o755,
        Some("update"),
    ),
    (
        "hook.mine.command true",
        "elsewhere/update",
        0o755,
        Some("hook.mine.command"),
    ),
];

#[tokio::test]
async fn a_repository_with_an_active_hook_is_refused_with_its_name() {
    for (number, (setting, file, mode, wanted)) in HOOKS.iter().enumerate() {
        let bed = Bed::new(Push::Always).await;
        let origin = bed.origin();
        let fill = |text: &str| text.replace("{in}", origin.to_str().unwrap());
        fs::remove_dir_all(origin.join(".git/hooks")).unwrap();
        fs::write(
            origin.join("more"),
            fill("[Core]\n\tHooksPath = {in}/elsewhere\n"),
        )
        .unwrap();
        let calls = bed.attach().await;
        if let Some((name, value)) = setting.split_once(' ') {
            run(&origin, &["config", name, &fill(value)]);
        }
        hook(&origin.join(file), *mode);
        let context = format!("{number}: {file}");
        let checked = bed.git.check_hooks(&bed.url()).await;
        let attached = bed.git.attach("run_2", &bed.url(), None).await.map(drop);
        // One that appears later is found by the next call.
        let branch = Branch::of_run("run_1").unwrap();
        let pushed = calls.publish(&branch, None, calls.base()).await;
        for result in [checked, attached, pushed] {
            let found = match &result {
                Ok(()) => None,
                Err(Error::Hook(name)) => Some(name.as_str()),
                Err(other) => panic!("{context}: {other}"),
            };
            assert_eq!(found, *wanted, "{context}");
        }
        let error = Error::Hook("update".to_owned()).to_string();
        assert!(
            error.contains("update") && error.contains("refuse"),
            "{error}"
        );
    }
}

/// The hook writes where it is run, so its traces are in the repository.
#[tokio::test]
async fn hooks_are_run_or_ignored_as_the_operator_says() {
    for (hooks, push, is_run) in [
        (LocalHooks::Run, Push::Always, true),
        (LocalHooks::Ignore, Push::Always, false),
        (LocalHooks::Refuse, Push::Never, false),
    ] {
        let bed = Bed::with(push, hooks).await;
        hook(&bed.origin().join(".git/hooks/post-receive"), 0o755);
        let repository = bed.attach().await;
        let branch = Branch::of_run("run_1").unwrap();
        let base = repository.base().clone();
        repository.publish(&branch, None, &base).await.unwrap();
        let trace = fs::read_to_string(bed.origin().join(".git/trace")).ok();
        let line = is_run.then(|| {
            format!(
                "{} {base} {}\n",
                "0".repeat(40),
                "refs/heads/forge/integration/run_1"
            )
        });
        assert_eq!(trace, line, "{hooks:?} {push:?}");
    }
    let bed = Bed::with(Push::Always, LocalHooks::Run).await;
    let file = bed.origin().join(".git/hooks/pre-receive");
    hook(&file, 0o755);
    fs::write(&file, "#!/bin/sh\necho not today >&2\nexit 1\n").unwrap();
    let repository = bed.attach().await;
    let branch = Branch::of_run("run_1").unwrap();
    let refused = repository.publish(&branch, None, repository.base()).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("not today"), "{refused}");
}

fn give_away(path: &Path) {
    let kind = fs::symlink_metadata(path).unwrap();
    if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            give_away(&entry.unwrap().path());
        }
    }
    std::os::unix::fs::lchown(path, Some(12_345), Some(12_345)).unwrap();
}

#[tokio::test]
async fn a_repository_of_another_owner_is_used_and_its_hooks_are_not_run() {
    if !rustix::process::geteuid().is_root() {
        // Only root can give files away.
        return;
    }
    let bed = Bed::with(Push::Always, LocalHooks::Run).await;
    symlink("shared.txt", bed.origin().join("link")).unwrap();
    give_away(&bed.origin());
    let repository = bed.attach().await;
    let branch = Branch::of_run("run_1").unwrap();
    let base = repository.base().clone();
    repository.publish(&branch, None, &base).await.unwrap();
    assert_eq!(repository.fetch(&branch).await.unwrap(), Some(base.clone()));
    // Neither the hook of a foreign repository nor a foreign hook.
    let file = bed.origin().join(".git/hooks/update");
    hook(&file, 0o755);
    let refused = bed.git.check_hooks(&bed.url()).await.unwrap_err();
    assert!(
        matches!(&refused, Error::ForeignHook(name) if name == "update"),
        "{refused}"
    );
    chown(bed.origin(), Some(0), Some(0)).unwrap();
    bed.git.check_hooks(&bed.url()).await.unwrap();
    chown(&file, Some(12_345), None).unwrap();
    assert!(bed.git.check_hooks(&bed.url()).await.is_err());
}
