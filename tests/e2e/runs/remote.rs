//! Remotes over HTTP, with hooks of their own: a push that is refused or silently undone, and branches that move.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::*;

/// Called with the head and the body of each request before it is served; `false` closes the connection.
pub(crate) type Before = dyn Fn(&str, &[u8]) -> bool + Send + Sync;

/// Sends what git has printed to a client.
pub(super) type SendOutput = dyn Fn(&TcpStream, &[u8]) + Send + Sync;

/// Serves the repositories in a folder as servers of git do, hooks included. Returns their address.
pub(crate) fn serve(root: &Path, before: Arc<Before>) -> String {
    serve_as(root, before, true)
}

/// One that sends its data in its own way.
pub(super) fn serve_through(root: &Path, send: Arc<SendOutput>) -> String {
    listen(root, Arc::new(|_, _| true), send, true)
}

/// One that does not know the newer protocol of git gives only what its branches and tags name.
fn serve_as(root: &Path, before: Arc<Before>, is_new: bool) -> String {
    let send = |mut stream: &TcpStream, output: &[u8]| {
        let _ = stream.write_all(output);
    };
    listen(root, before, Arc::new(send), is_new)
}

fn listen(root: &Path, before: Arc<Before>, send: Arc<SendOutput>, is_new: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let root = root.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (root, before, send) = (root.clone(), Arc::clone(&before), Arc::clone(&send));
            std::thread::spawn(move || answer(stream, &root, &*before, &*send, is_new));
        }
    });
    address
}

/// Passes one request to `git http-backend`.
fn answer(mut stream: TcpStream, root: &Path, before: &Before, send: &SendOutput, is_new: bool) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let header = |wanted: &str| {
        let mut found = head.iter().filter_map(|line| line.split_once(": "));
        let found = found.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
        found.map_or_else(String::new, |(_, value)| value.to_owned())
    };
    let mut body = vec![0; header("content-length").parse().unwrap_or(0)];
    reader.read_exact(&mut body).unwrap();
    if !before(&head.join("\n"), &body) {
        return;
    }
    let words: Vec<&str> = head[0].split(' ').collect();
    let (path, query) = words[1].split_once('?').unwrap_or((words[1], ""));
    let mut git = Command::new("git");
    git.arg("http-backend")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REMOTE_USER", "tester")
        .env("REQUEST_METHOD", words[0])
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    if is_new {
        git.env("GIT_PROTOCOL", header("git-protocol"));
    }
    let mut git = git.spawn().unwrap();
    // It reads nothing of what it refuses.
    let _ = git.stdin.take().unwrap().write_all(&body);
    let output = git.wait_with_output().unwrap().stdout;
    let status = match output.strip_prefix(b"Status: ") {
        Some(rest) => String::from_utf8_lossy(&rest[..3]).into_owned(),
        None => "200".to_owned(),
    };
    let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\n");
    let _ = stream.write_all(head.as_bytes());
    send(&stream, &output);
}

/// Settings of runs whose repositories are at these addresses.
pub(super) fn settings(addresses: &[String]) -> String {
    format!(
        "[runs]\nprovider = \"echo\"\nmodel = \"run\"\ngreeting = \"none\"\nrepositories = {addresses:?}\n"
    )
}

/// Adds a hook to the remote.
pub(super) fn hook(origin: &Origin, name: &str, script: &str) {
    let path = origin.path().join("hooks").join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

/// A hook, its script, and a part of the error that it leads to. `{ref}` is the pattern of its branches.
const HOOKS: [(&str, &str, &str); 4] = [
    (
        "pre-receive",
        "while read old new ref; do case $ref in {ref}) exit 1;; esac; done",
        "hook declined",
    ),
    ("update", "case $1 in {ref}) exit 1;; esac", "hook declined"),
    (
        "post-receive",
        "while read old new ref; do case $ref in {ref}) git update-ref -d $ref;; esac; done",
        "is absent at the remote",
    ),
    (
        "post-receive",
        "while read old new ref; do case $ref in {ref}) git update-ref $ref main;; esac; done",
        "at the remote instead of",
    ),
];

/// Check 25. A push that the remote refuses or silently undoes is never reported as merged.
#[tokio::test]
async fn a_push_that_is_refused_or_dropped_gives_no_merge() {
    let origins: Vec<_> = HOOKS.iter().map(|_| Origin::new()).collect();
    let quiet: Arc<Before> = Arc::new(|_, _| true);
    let addresses = origins.iter();
    let addresses = addresses.map(|origin| serve(origin.root.path(), Arc::clone(&quiet)));
    let addresses: Vec<_> = addresses.collect();
    let bridge = Bridge::configured(&settings(&addresses), &[]).await;
    let api = &bridge.api;
    for branches in ["refs/heads/forge/integration/*", "refs/heads/forge/*/a/*"] {
        let mut runs = Vec::new();
        for ((origin, address), (name, script, _)) in origins.iter().zip(&addresses).zip(HOOKS) {
            let _ = std::fs::remove_dir_all(origin.path().join("hooks"));
            hook(origin, name, &script.replace("{ref}", branches));
            let url = format!("{address}/origin.git");
            let run = create(api, &json!({"repoUrl": url})).await;
            say(api, &run, &plan(&[task("a", &[], "write a.txt one")])).await;
            runs.push(run);
        }
        for (run, (name, script, error)) in runs.iter().zip(HOOKS) {
            let record = ended(api, run).await;
            let context = format!("{branches} {name} {script}");
            let is_of_task = branches.contains("/a/");
            let pushes = if is_of_task { 1 } else { 2 };
            assert_eq!(record["status"], "failed", "{context}: {record}");
            assert_eq!(record["mergedTasks"], 0, "{context}: {record}");
            let events = events(api, run).await;
            assert_eq!(of(&events, "refinery.merged").len(), 0, "{context}");
            // The remote is asked once: it would say the same again.
            let failed = of(&events, "task.failed");
            assert_eq!(failed.len(), 1, "{context}: {failed:?}");
            let told = failed[0]["error"].as_str().unwrap();
            assert!(told.contains(error), "{context}: {told}");
            assert_eq!(failed[0]["counted"], false, "{context}");
            assert_eq!(of(&events, "task.scheduled").len(), pushes, "{context}");
            let pushed = of(&events, "branch.pushed");
            assert_eq!(
                pushed.len(),
                usize::from(!is_of_task),
                "{context}: {pushed:?}"
            );
            let ready = of(&events, "task.status");
            let ready = ready
                .iter()
                .filter(|data| data["newStatus"] == "MERGE_READY");
            assert_eq!(ready.count(), pushed.len(), "{context}");
            verified(api, run).await;
        }
    }
    bridge.stop().await;
}

/// A target that moves after it was fetched: before the remote tells the push where it is, or after.
#[tokio::test]
async fn a_target_that_moves_before_the_push_is_merged_again() {
    for is_told in [false, true] {
        let origin = Arc::new(Origin::new());
        std::fs::write(origin.root.path().join("work/theirs.txt"), "theirs\n").unwrap();
        origin.git(&["-C", "work", "checkout", "--quiet", "-b", "theirs"]);
        origin.git(&["-C", "work", "add", "."]);
        origin.git(&["-C", "work", "commit", "--quiet", "-m", "theirs"]);
        origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "theirs"]);
        let target = Arc::new(Mutex::new(String::new()));
        let has_moved = AtomicBool::new(false);
        let before: Arc<Before> = {
            let (origin, target) = (Arc::clone(&origin), Arc::clone(&target));
            Arc::new(move |line: &str, body: &[u8]| {
                let name = "forge/integration/".as_bytes();
                let is_push = match is_told {
                    true => body.windows(name.len()).any(|part| part == name),
                    false => {
                        let heads = ["--git-dir=origin.git", "branch", "--list", "forge/*/a/1"];
                        line.contains("?service=git-receive-pack") && !origin.git(&heads).is_empty()
                    }
                };
                if is_push && !has_moved.swap(true, Ordering::SeqCst) {
                    let target = format!("refs/heads/{}", target.lock().unwrap());
                    origin.git(&["--git-dir=origin.git", "update-ref", &target, "theirs"]);
                }
                true
            })
        };
        let address = serve(origin.root.path(), before);
        let bridge = Bridge::configured(&settings(std::slice::from_ref(&address)), &[]).await;
        let api = &bridge.api;
        let run = create(api, &json!({"repoUrl": format!("{address}/origin.git")})).await;
        *target.lock().unwrap() = format!("forge/integration/{run}");
        say(api, &run, &plan(&[task("a", &[], "write a.txt one")])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{is_told}: {record}");
        let branch = target.lock().unwrap().clone();
        assert_eq!(origin.file(&branch, "a.txt"), "one");
        assert_eq!(origin.file(&branch, "theirs.txt"), "theirs", "{is_told}");
        let events = events(api, &run).await;
        assert_eq!(of(&events, "task.failed").len(), 0, "{is_told}: {events:?}");
        let merged = of(&events, "refinery.merged");
        assert_eq!(merged.len(), 1);
        let tip = origin.git(&["--git-dir=origin.git", "rev-parse", &branch]);
        assert_eq!(merged[0]["resultRef"], *tip);
        verified(api, &run).await;
        bridge.stop().await;
    }
}

/// A run that begins at a commit, on servers that give it by its id, and on those that do not.
#[tokio::test]
async fn a_commit_is_fetched_from_servers_of_both_protocols() {
    let origin = Origin::new();
    let first = origin.git(&["--git-dir=origin.git", "rev-parse", "main"]);
    std::fs::write(origin.root.path().join("work/later.txt"), "later").unwrap();
    origin.git(&["-C", "work", "add", "."]);
    origin.git(&["-C", "work", "commit", "--quiet", "-m", "later"]);
    origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "main"]);
    let before: Arc<Before> = Arc::new(|_, _| true);
    let addresses = [true, false];
    let addresses =
        addresses.map(|is_new| serve_as(origin.root.path(), Arc::clone(&before), is_new));
    let bridge = Bridge::configured(&settings(&addresses), &[]).await;
    let api = &bridge.api;
    for address in &addresses {
        let url = format!("{address}/origin.git");
        let run = create(api, &json!({"repoUrl": url, "ref": first})).await;
        say(api, &run, &plan(&[task("a", &[], "write a.txt one")])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{address}: {record}");
        let events = events(api, &run).await;
        let attached = json!({"ref": first, "commit": first});
        assert_eq!(of(&events, "run.attached"), [&attached], "{address}");
        let target = format!("forge/integration/{run}");
        let files = origin.git(&["--git-dir=origin.git", "ls-tree", "--name-only", &target]);
        assert_eq!(files, "README.md\na.txt", "{address}");
        let absent = "1".repeat(40);
        let run = create(api, &json!({"repoUrl": url, "ref": absent})).await;
        let record = ended(api, &run).await;
        let error = record["error"].as_str().unwrap();
        assert!(error.contains("no commit 1111"), "{address}: {error}");
    }
    bridge.stop().await;
}
