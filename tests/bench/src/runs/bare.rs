//! The parts of a run without it: for each task a clone, a dispatch in it, a commit and a push; then the merges, their
//! push, and the reading back.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow, bail, ensure};
use serde_json::json;

use super::super::loaded::Caller;
use super::super::target::Target;
use super::origin::{Origin, git, run};
use super::reader::Reader;

/// Does the work of a run with this number of tasks, so many at once; returns the time it took.
pub(crate) fn work(
    target: &Target,
    origin: &Origin,
    tasks: usize,
    at_once: usize,
) -> anyhow::Result<Duration> {
    let folder = tempfile::Builder::new()
        .prefix("bare-")
        .tempdir_in(origin.root())?;
    let folder = folder.path();
    let name = folder.file_name().and_then(|name| name.to_str());
    let name = name.context("the folder has no name")?;
    let path = origin.path();
    let path = path.to_str().context("the path is no text")?;
    let begun = Instant::now();
    git(
        folder,
        &["clone", "--quiet", "--bare", path, "bare.git"],
        "",
    )?;
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let worker = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= tasks {
                    return anyhow::Ok(());
                }
                task(target, folder, (name, number))?;
            }
        };
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        for worker in workers {
            worker.join().map_err(|_| anyhow!("a worker panicked"))??;
        }
        anyhow::Ok(())
    })?;
    merge(folder, (name, tasks))?;
    Ok(begun.elapsed())
}

/// Does the same as a shell script does it, without agents.
pub(crate) fn script(origin: &Origin, tasks: usize, at_once: usize) -> anyhow::Result<Duration> {
    let folder = tempfile::Builder::new()
        .prefix("script-")
        .tempdir_in(origin.root())?;
    let begun = Instant::now();
    let mut script = Command::new("bash");
    script.args(["-c", include_str!("script.sh"), "script"]);
    script.arg(origin.path()).arg(folder.path());
    script.args([tasks.to_string(), at_once.to_string()]);
    run(&mut script, "")?;
    Ok(begun.elapsed())
}

/// One task: a checkout of its own, a dispatch, a commit and a push to the origin.
fn task(target: &Target, folder: &Path, (name, number): (&str, usize)) -> anyhow::Result<()> {
    let checkout = folder.join(number.to_string());
    let own = number.to_string();
    git(
        folder,
        &["clone", "--quiet", "--shared", "bare.git", &own],
        "",
    )?;
    dispatch(target, &checkout, &format!("{name}-{number}"), number)?;
    git(&checkout, &["add", "--all"], "")?;
    git(&checkout, &["commit", "--quiet", "--message", &own], "")?;
    let branch = format!("HEAD:refs/heads/{name}/{number}");
    git(&checkout, &["push", "--quiet", "origin", &branch], "")?;
    let branch = format!("{name}/{number}");
    git(
        &folder.join("bare.git"),
        &["push", "--quiet", "origin", &branch],
        "",
    )?;
    Ok(())
}

/// Runs a dispatch that writes a file, to its end.
fn dispatch(target: &Target, checkout: &Path, id: &str, number: usize) -> anyhow::Result<()> {
    let body = json!({
        "taskId": id, "agentId": "bench", "provider": "echo", "model": "run", "callbackUrl": null,
        "message": super::run::instructions(number), "workspace": {"dir": checkout},
    });
    let mut caller = Caller::connect(target)?;
    let (status, answer) = caller.call("POST", "/api/v2/dispatch", &body.to_string())?;
    ensure!(status == 202, "{status}: {answer}");
    let mut reader = Reader::open(target, &format!("/api/v2/dispatch/{id}/events"))?;
    while let Some((_, event)) = reader.next()? {
        match event["type"].as_str() {
            Some("execution.completed") => return Ok(()),
            Some("execution.failed") => bail!("{event}"),
            _ => {}
        }
    }
    bail!("the stream of the dispatch ended before it")
}

/// Merges all branches, one after the other, pushes the result and reads it back.
fn merge(folder: &Path, (name, tasks): (&str, usize)) -> anyhow::Result<()> {
    let bare = folder.join("bare.git");
    let mut tip = git(&bare, &["rev-parse", "main"], "")?;
    for number in 0..tasks {
        let branch = format!("refs/heads/{name}/{number}");
        let tree = git(&bare, &["merge-tree", "--write-tree", &tip, &branch], "")?;
        let commit = [
            "commit-tree",
            &tree,
            "-p",
            &tip,
            "-p",
            &branch,
            "-m",
            "merge",
        ];
        tip = git(&bare, &commit, "")?;
    }
    let target = format!("refs/heads/{name}/integration");
    git(
        &bare,
        &["push", "--quiet", "origin", &format!("{tip}:{target}")],
        "",
    )?;
    let read = git(&bare, &["ls-remote", "origin", &target], "")?;
    ensure!(read.starts_with(&tip), "the target is {read}");
    let merged = format!("refs/heads/{name}/*");
    let merged = git(&bare, &["for-each-ref", "--merged", &tip, &merged], "")?;
    ensure!(merged.lines().count() == tasks, "not all are merged");
    Ok(())
}
