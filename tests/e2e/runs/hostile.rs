//! Hostile input: addresses of repositories, paths of artifacts, and a repository full of traps.

use std::collections::BTreeSet;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::super::git::hostile::{set_traps, trap};
use super::super::harness::process::Home;
use super::*;

/// Addresses that are refused. `{in}` is a folder below the local roots, `{out}` another one with a repository.
const ADDRESSES: [&str; 44] = [
    "",
    "a",
    "../a",
    "~/a",
    "git@example.com:a/b.git",
    "ext::sh -c id",
    "ext::sh%20-c%20id",
    "fd::17/foo",
    "https::https://example.com/a",
    "-u",
    "--upload-pack=touch /tmp/a",
    "ssh://-oProxyCommand=id/a",
    "ssh://-oa@example.com/a",
    "ssh://git@example.com/a",
    "git://example.com/a",
    "http://example.com/a",
    "ftp://example.com/a",
    "rsync://example.com/a",
    "javascript:alert(1)",
    "data:text/plain,a",
    "https://user:password@example.org/a",
    "https://user@example.org/a",
    "https://example.com",
    "https://example.com/a?b",
    "https://example.com/a#b",
    "https://example.com/a%2f..%2fb",
    "https://example.com/%252e%252e/b",
    "https://example.com/a%00",
    "https://example.com/a b",
    "https://example.com/a\n",
    "https://example.com/\u{1b}[2J",
    "https:\\\\example.com\\a",
    "https://exämple.com/a",
    "https://10.0.0.1/a",
    "https://0xa000001/a",
    "https://169.254.169.254/latest",
    "https://[fd00::1]/a",
    "file:///etc",
    "/",
    "{out}/work",
    "{in}/../etc",
    "file://{in}/%2e%2e/etc",
    "{in}/link",
    "{in}/empty",
];

/// No program is started for an address that is refused: a `git` that notes its calls is asked for its version only.
#[tokio::test]
async fn addresses_that_are_refused_start_no_program() {
    let (origin, outside) = (Origin::new(), Origin::new());
    let inside = origin.root.path();
    symlink(outside.path(), inside.join("link")).unwrap();
    std::fs::create_dir(inside.join("empty")).unwrap();
    let mut home = Home::new(&[]);
    let bin = home.dir.path().join("bin");
    let calls = home.dir.path().join("calls");
    std::fs::create_dir(&bin).unwrap();
    let search = std::env::var("PATH").unwrap();
    let script = format!(
        "#!/bin/sh\necho \"$@\" >> '{}'\nPATH='{search}' exec git \"$@\"\n",
        calls.display()
    );
    std::fs::write(bin.join("git"), script).unwrap();
    std::fs::set_permissions(bin.join("git"), std::fs::Permissions::from_mode(0o755)).unwrap();
    home.set("PATH", &format!("{}:{search}", bin.display()));
    std::fs::write(home.dir.path().join("forge-bridge.toml"), origin.settings()).unwrap();
    let bridge = home.start();
    let api = &bridge.api;
    let noted = || std::fs::read_to_string(&calls).unwrap();
    assert_eq!(noted(), "version\n");

    let long = format!("https://example.com/{}", "a".repeat(2048));
    let texts = ADDRESSES.iter().copied().chain([&*long]).map(|address| {
        let address = address.replace("{in}", inside.to_str().unwrap());
        json!(address.replace("{out}", outside.root.path().to_str().unwrap()))
    });
    let others = [json!(null), json!(7), json!(true), json!([]), json!({})];
    for address in texts.chain(others) {
        let (status, answer) = api.post("/api/v1/runs", &json!({"repoUrl": address})).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{address}: {answer}");
        assert_eq!(answer["code"], "INVALID_REQUEST", "{address}: {answer}");
        assert_eq!(
            answer["details"][0]["field"], "repoUrl",
            "{address}: {answer}"
        );
    }
    let (_, listed) = api.get("/api/v1/runs").await;
    assert_eq!(listed["runs"], json!([]));
    assert_eq!(noted(), "version\n");

    // The same program serves a run.
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &plan(&[task("a", &[], "write a.txt a")])).await;
    assert_eq!(ended(api, &run).await["status"], "completed");
    assert!(noted().contains("push --porcelain"), "{}", noted());
    bridge.kill();
}

/// Checks 30 and 32: the list of artifacts names the paths under which they are, with the documented types. Check 31:
/// no other path finds anything.
#[tokio::test]
async fn artifacts_are_found_by_the_listed_paths_only() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(
        api,
        &run,
        &plan(&[task("a", &[], "write a.txt a\nsay done")]),
    )
    .await;
    let record = ended(api, &run).await;
    let listed = record["artifacts"].as_object().unwrap();
    let paths: BTreeSet<_> = listed.keys().map(String::as_str).collect();
    let wanted = [
        "a/1/walkthrough.md",
        "dag.json",
        "specs/style.md",
        "tasks/a.md",
    ];
    assert_eq!(paths, BTreeSet::from(wanted));
    let of_run = format!("/api/v1/runs/{run}/artifacts");
    let get = async |path: &str| {
        let request = api.request(Method::GET, &format!("{of_run}/{path}"));
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        let headers = answer.headers().clone();
        (headers, answer.bytes().await.unwrap())
    };
    for path in wanted {
        let (headers, content) = get(path).await;
        assert_eq!(listed[path]["size"], content.len(), "{path}");
        let kind = match path.ends_with(".json") {
            true => "application/json; charset=utf-8",
            false => "text/markdown; charset=utf-8",
        };
        assert_eq!(headers["content-type"], kind, "{path}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        for alias in [format!(".forge/{path}"), format!("artifacts/{run}/{path}")] {
            assert_eq!(get(&alias).await.1, content, "{alias}");
        }
    }
    let (_, walkthrough) = get("walkthroughs/a-walkthrough.md").await;
    assert_eq!(walkthrough, get("a/1/walkthrough.md").await.1);

    for path in [
        "../dag.json",
        "tasks/../dag.json",
        "tasks/%2e%2e/dag.json",
        "tasks%2F..%2Fdag.json",
        "tasks%252F..%252Fdag.json",
        "%2e%2e%2fdag.json",
        "..%5cdag.json",
        "tasks\\a.md",
        "tasks%5Ca.md",
        "./dag.json",
        "%2e/dag.json",
        "/dag.json",
        "%2Fdag.json",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "..%2f..%2f..%2fetc%2fpasswd",
        "tasks//a.md",
        "tasks/a.md/",
        "tasks/a.md%00",
        "tasks/a.md%00.json",
        "%00",
        "tasks/a.md%20",
        "TASKS/A.MD",
        ".forge/../dag.json",
        ".forge/.forge/dag.json",
        "artifacts/../dag.json",
        "walkthroughs/..-walkthrough.md",
        "walkthroughs/b-walkthrough.md",
        "a",
        "tasks",
        "%ff%fe",
        "",
    ] {
        let answer = raw(api, &format!("{of_run}/{path}")).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        let status = head.split(' ').nth(1).unwrap_or_default();
        let body: Value = serde_json::from_str(body).unwrap_or_default();
        let is_refused = match path {
            // No path, or not a text: no artifact is named.
            "" | "%ff%fe" => matches!(status, "400" | "404") && body["code"].is_string(),
            _ => status == "404" && body["code"] == "ARTIFACT_NOT_FOUND",
        };
        assert!(is_refused, "{path:?}: {answer}");
    }
    bridge.stop().await;
}

/// A repository with hooks, filters, links out of the tree and a submodule, and an agent that spoils its own checkout:
/// nothing runs, nothing outside is read or written, and the rest is merged.
#[tokio::test]
async fn a_repository_with_traps_runs_nothing_and_is_merged() {
    let origin = Origin::new();
    let (work, outside) = (
        origin.root.path().join("work"),
        tempfile::tempdir().unwrap(),
    );
    std::fs::write(outside.path().join("secret.txt"), "hush").unwrap();
    let write = |file: &str, text: &str| std::fs::write(work.join(file), text).unwrap();
    write(".gitattributes", "* filter=evil diff=evil merge=evil\n");
    write(
        ".gitmodules",
        "[submodule \"s\"]\n\tpath = s\n\turl = https://example.com/s\n\tupdate = checkout\n",
    );
    symlink(outside.path(), work.join("out")).unwrap();
    symlink(outside.path().join("secret.txt"), work.join("secret.txt")).unwrap();
    symlink("../../../../../..", work.join("up")).unwrap();
    let head = origin.git(&["-C", "work", "rev-parse", "HEAD"]);
    let link = format!("160000,{head},s");
    origin.git(&["-C", "work", "update-index", "--add", "--cacheinfo", &link]);
    let added = [".gitattributes", ".gitmodules", "out", "secret.txt", "up"];
    origin.git(&[&["-C", "work", "add"], &added[..]].concat());
    origin.git(&["-C", "work", "commit", "--quiet", "-m", "traps"]);
    origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "main"]);
    let trap = trap(origin.root.path());
    set_traps(&origin.path(), &trap);

    let settings = format!("{}local_hooks = \"ignore\"\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let instructions = [
        "append .git/config [core] fsmonitor = {trap}",
        "append .git/config [core] hooksPath = {hooks}",
        "append .git/config [filter \"evil\"] clean = {trap}",
        "write .git/objects/info/alternates {out}",
        "write .gitattributes * filter=evil",
        "write .GIT/config x",
        "write sub/git~1/config x",
        "write nested/.git gitdir: {out}",
        "write s/file of a submodule",
        "append README.md a",
        "write honest.txt work",
    ];
    let instructions = instructions.join("\n").replace("{trap}", &trap);
    let instructions = instructions.replace("{out}", outside.path().to_str().unwrap());
    let hooks = origin.path().join("hooks").display().to_string();
    let a = task("a", &[], &instructions.replace("{hooks}", &hooks));
    let tasks = [
        a,
        task("b", &["a"], "append README.md b"),
        task("c", &["a"], "write c.txt c"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    assert!(!origin.root.path().join("trace").exists(), "something ran");
    let left: Vec<_> = std::fs::read_dir(outside.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");

    std::fs::remove_file(origin.path().join("config")).unwrap();
    let target = format!("forge/integration/{run}");
    let listed = origin.git(&["--git-dir=origin.git", "ls-tree", "-r", &target]);
    let listed: Vec<_> = listed
        .lines()
        .map(|line| (&line[..6], line.split_once('\t').unwrap().1))
        .collect();
    let wanted = [
        ("100644", ".gitattributes"),
        ("100644", ".gitmodules"),
        ("100644", "README.md"),
        ("100644", "c.txt"),
        ("100644", "honest.txt"),
        ("120000", "out"),
        ("160000", "s"),
        ("120000", "secret.txt"),
        ("120000", "up"),
    ];
    assert_eq!(listed, wanted);
    let secret = origin.file(&target, "secret.txt");
    assert_eq!(
        secret,
        outside.path().join("secret.txt").display().to_string()
    );
    verified(api, &run).await;
    bridge.stop().await;
}
