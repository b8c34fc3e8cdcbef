//! Repositories of runs, and the servers that give them: servers that lead elsewhere or never end, trees that would be
//! written into a repository, and a repository with everything that git would start or follow.

use std::os::unix::fs::symlink;

use super::server::{Manner, Server, said};
use super::*;
use crate::runs::remote::serve;
use crate::runs::{Origin, plan, task};

/// One line of git's protocol.
fn line(text: &str) -> String {
    format!("{:04x}{text}", text.len() + 4)
}

/// References as the older protocol lists them.
fn listed(names: &[&str]) -> Vec<u8> {
    let id = "1".repeat(40);
    let mut text = line("# service=git-upload-pack\n") + "0000";
    for (number, name) in names.iter().enumerate() {
        let more = if number == 0 {
            "\0multi_ack symref=HEAD:refs/heads/main"
        } else {
            ""
        };
        text.push_str(&line(&format!("{id} {name}{more}\n")));
    }
    text.push_str("0000");
    git_answer(&text)
}

fn git_answer(body: &str) -> Vec<u8> {
    said(
        200,
        &["content-type: application/x-git-upload-pack-advertisement"],
        body,
    )
}

/// Servers of repositories, with the answer to each request for a path.
fn servers(inside: &str) -> Vec<(&'static str, Server)> {
    let mut servers = Vec::new();
    let mut add = |name, manner: Manner| {
        servers.push((name, Server::start(move |_, _| manner.clone())));
    };
    for (name, status) in [
        ("301", 301),
        ("302", 302),
        ("303", 303),
        ("307", 307),
        ("308", 308),
    ] {
        let location = format!("location: {inside}/info/refs?service=git-upload-pack");
        add(name, Manner::Bytes(said(status, &[&location], "")));
    }
    let bytes = |text: &str| text.as_bytes().to_vec();
    add(
        "Basic",
        Manner::Bytes(said(401, &["www-authenticate: Basic realm=\"a\""], "")),
    );
    add(
        "Negotiate",
        Manner::Bytes(said(401, &["www-authenticate: Negotiate"], "")),
    );
    add(
        "a proxy that asks",
        Manner::Bytes(said(407, &["proxy-authenticate: Basic realm=\"a\""], "")),
    );
    add(
        "a page",
        Manner::Bytes(said(200, &["content-type: text/html"], "<html>")),
    );
    add("no bytes", Manner::Bytes(Vec::new()));
    add("no answer", Manner::Silent);
    add(
        "an endless head",
        Manner::Flood(
            bytes("HTTP/1.1 200 X\r\n"),
            bytes("x-a: yyyyyyyyyyyyyyyyyyyyyyy\r\n"),
        ),
    );
    let head =
        "HTTP/1.1 200 X\r\ncontent-type: application/x-git-upload-pack-advertisement\r\n\r\n";
    let one = line("1111111111111111111111111111111111111111 refs/heads/a\n");
    add(
        "endless references",
        Manner::Flood(
            bytes(&(head.to_owned() + &line("# service=git-upload-pack\n") + "0000")),
            bytes(&one),
        ),
    );
    add("a slow list", Manner::Slow(bytes(head)));
    add(
        "an error for terminals",
        Manner::Bytes(git_answer(
            &(line("# service=git-upload-pack\n") + "0000" + &line("ERR \u{1b}[2J\u{202e}\n")),
        )),
    );
    add("a line without bytes", Manner::Bytes(git_answer("fff0")));
    add("no line", Manner::Bytes(git_answer("zzzz")));
    add(
        "a reference out of the folder",
        Manner::Bytes(listed(&[
            "refs/heads/main",
            "refs/heads/../../hooks/post-checkout",
        ])),
    );
    add(
        "a reference that is an option",
        Manner::Bytes(listed(&["refs/heads/--upload-pack=id", "refs/heads/-u"])),
    );
    add(
        "a reference with control characters",
        Manner::Bytes(listed(&["refs/heads/a\u{7}b", "refs/heads/main.lock"])),
    );
    add(
        "a long reference",
        Manner::Bytes(listed(&[&format!("refs/heads/{}", "a".repeat(60_000))])),
    );
    add(
        "another kind of ids",
        Manner::Bytes(git_answer(
            &(line("# service=git-upload-pack\n")
                + "0000"
                + &line("version 2\n")
                + &line("object-format=sha256\n")
                + "0000"),
        )),
    );
    add(
        "bundles elsewhere",
        Manner::Bytes(git_answer(
            &(line("# service=git-upload-pack\n")
                + "0000"
                + &line("version 2\n")
                + &line("bundle-uri\n")
                + &line("ls-refs\n")
                + &line("fetch=packfile-uris\n")
                + "0000"),
        )),
    );
    // A server without a program, whose objects would be elsewhere.
    let inside = inside.to_owned();
    let plain = Server::start(move |head, _| {
        let path = head.split(' ').nth(1).unwrap_or_default();
        let body = match path
            .split('?')
            .next()
            .unwrap()
            .rsplit_once("/a.git")
            .map_or("", |(_, rest)| rest)
        {
            "/info/refs" => format!("{}\trefs/heads/main\n", "1".repeat(40)),
            "/HEAD" => "ref: refs/heads/main\n".to_owned(),
            "/objects/info/http-alternates" => format!("{inside}/objects\n"),
            "/objects/info/alternates" => "../../../../../../etc\n".to_owned(),
            "/objects/info/packs" => "P pack-../../../etc/passwd.pack\n".to_owned(),
            _ => return Manner::Bytes(said(404, &[], "")),
        };
        Manner::Bytes(said(200, &["content-type: text/plain"], &body))
    });
    servers.push(("objects elsewhere", plain));
    servers
}

/// Names of entries that git, or a file system, takes for others; each is the tree of a repository of its own.
const NAMES: [&str; 12] = [
    ".git",
    ".GIT",
    ".Git",
    "git~1",
    "GIT~1",
    ".g\\342\\200\\214it",
    ".git ",
    "..",
    ".",
    ".git\\\\hooks",
    "a/b",
    ".git::$INDEX_ALLOCATION",
];

/// A repository whose tree has an entry of this name with a hook in it.
fn with_tree(name: &str) -> Option<Origin> {
    let origin = Origin::new();
    let blob = origin.git(&["-C", "work", "rev-parse", "HEAD:README.md"]);
    let script = format!(
        "set -e; cd origin.git; h=$(printf '100755 blob {blob}\\tpost-checkout\\n' | git mktree); \
         g=$(printf '040000 tree %s\\thooks\\n' $h | git mktree); \
         t=$(printf '040000 tree %s\\t{name}\\n' $g | git mktree); \
         c=$(git -c user.name=a -c user.email=a commit-tree -m evil $t); git update-ref refs/heads/main $c"
    );
    let made = std::process::Command::new("sh")
        .args(["-c", &script])
        .current_dir(origin.root())
        .output();
    made.unwrap().status.success().then_some(origin)
}

/// A repository with everything that git would start, follow or fetch.
fn with_traps(private: &str, inside: &str) -> Origin {
    let origin = Origin::new();
    let work = origin.root().join("work");
    let write = |file: &str, text: &str| fs::write(work.join(file), text).unwrap();
    write(
        ".gitattributes",
        "* filter=evil diff=evil merge=evil ident export-subst\nnone.txt working-tree-encoding=UTF-16\n",
    );
    let modules = [
        ("s", format!("{inside}/s.git")),
        ("t", "ext::sh -c id".to_owned()),
        ("u", "--upload-pack=id".to_owned()),
        ("../../v", "./x".to_owned()),
    ];
    let modules = modules.map(|(name, url)| {
        format!("[submodule \"{name}\"]\n\tpath = s\n\turl = {url}\n\tupdate = !id\n")
    });
    write(".gitmodules", &modules[0].replace("!id", "checkout"));
    write("modules", &modules.concat());
    write(".lfsconfig", &format!("[lfs]\n\turl = {inside}/lfs\n"));
    write(".gitconfig", "[include]\n\tpath = /etc/passwd\n");
    write(
        "lfs",
        &format!(
            "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5\n",
            "0".repeat(64)
        ),
    );
    write("-rf", "an option");
    write("--help", "an option");
    write("$(id)", "a command");
    write("a\nb", "two lines");
    write("\u{202e}txt.exe", "another direction");
    for (name, target) in [
        ("out", private),
        ("environ", "/proc/self/environ"),
        ("memory", "/proc/self/mem"),
        ("up", "../../../../../.."),
        ("key", "../../../../../secret.key"),
        ("device", "/dev/zero"),
        ("self", "self"),
    ] {
        symlink(target, work.join(name)).unwrap();
    }
    let head = origin.git(&["-C", "work", "rev-parse", "HEAD"]);
    let link = format!("160000,{head},s");
    origin.git(&["-C", "work", "update-index", "--add", "--cacheinfo", &link]);
    origin.git(&["-C", "work", "add", "--all"]);
    origin.git(&[
        "-C",
        "work",
        "commit",
        "--quiet",
        "-m",
        "--upload-pack=id $(id) \u{1b}[2J",
    ]);
    origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "main"]);
    origin
}

/// A program that leaves a trace: its path as the bridge knows it.
fn trap(campaign: &Campaign) -> String {
    let program = campaign.places.work().join("trap");
    let trace = campaign.places.seen(&campaign.places.work().join("trace"));
    fs::write(
        &program,
        format!("#!/bin/sh\necho \"$0 $@\" >> {trace}\ncat\n"),
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    campaign.places.seen(&program)
}

async fn ended(campaign: &Campaign, run: &str) -> Value {
    let path = format!("/api/v1/runs/{run}");
    until("the run to end", || async {
        let record = campaign.get(&path).await;
        let ends = ["completed", "failed", "cancelled"];
        ends.iter()
            .any(|end| record["status"] == *end)
            .then_some(record)
    })
    .await
}

async fn begun(campaign: &Campaign, url: &str) -> Option<String> {
    let (status, created) = campaign
        .post(OTHER, "/api/v1/runs", &json!({"repoUrl": url}))
        .await;
    assert!(
        status == StatusCode::CREATED || status == StatusCode::BAD_REQUEST,
        "{url}: {status} {created}"
    );
    created["runId"].as_str().map(str::to_owned)
}

async fn campaign(setting: Setting) {
    let inside = CallbackSink::start().await;
    let servers = servers(&inside.url("/inside"));
    let trees: Vec<_> = NAMES
        .iter()
        .filter_map(|name| Some((name, with_tree(name)?)))
        .collect();
    assert!(trees.len() > 6, "{}", trees.len());
    let private = match setting {
        Setting::Shipped => "/srv/work/private",
        Setting::Ordinary => "../../../../../../../../work/private",
    };
    let trapped = with_traps(private, &inside.url("/inside"));
    let before: std::sync::Arc<crate::runs::remote::Before> = std::sync::Arc::new(|_, _| true);
    let origins = trees.iter().map(|(_, origin)| origin).chain([&trapped]);
    let addresses: Vec<String> = origins
        .map(|origin| serve(origin.root(), std::sync::Arc::clone(&before)))
        .collect();
    let mut repositories: Vec<String> = servers.iter().map(|(_, server)| server.url("/")).collect();
    repositories.extend(addresses.iter().cloned());
    let hosts = repositories.iter().map(|url| {
        url.trim_start_matches("http://")
            .trim_end_matches('/')
            .to_owned()
    });
    let needs = Needs {
        allow: hosts.collect(),
        settings: format!(
            "[runs]\nprovider = \"echo\"\nmodel = \"run\"\ngreeting = \"none\"\npatience = \"1s\"\ngit_timeout = \"5s\"\n\
             repositories = {repositories:?}\n"
        ),
        ..Needs::default()
    };
    let Some(mut campaign) = Campaign::start("repositories", setting, needs).await else {
        return;
    };
    let mut failing = Vec::new();
    for (name, server) in &servers {
        failing.push((
            (*name).to_owned(),
            begun(&campaign, &server.url("/a.git")).await,
        ));
    }
    for ((name, _), address) in trees.iter().zip(&addresses) {
        failing.push((
            format!("tree {name}"),
            begun(&campaign, &format!("{address}/origin.git")).await,
        ));
    }
    let address = addresses.last().unwrap();
    let run = begun(&campaign, &format!("{address}/origin.git"))
        .await
        .unwrap();
    let trap = trap(&campaign);
    let work = [
        "append README.md a".to_owned(),
        "write honest.txt work".to_owned(),
        format!("append .git/config [core] fsmonitor = {trap}"),
        format!("append .git/config [filter \"evil\"] clean = {trap}"),
        format!("append .git/config [merge \"evil\"] driver = {trap}"),
        format!("append .git/config [core] sshCommand = {trap}"),
        "append .git/config [include] path = /etc/passwd".to_owned(),
        "write .git/objects/info/alternates ../../../repository.git/objects".to_owned(),
        "write .GIT/config x".to_owned(),
        "write sub/git~1/config x".to_owned(),
        format!(
            "write nested/.git gitdir: {}",
            campaign.places.seen(&campaign.places.work())
        ),
    ];
    let tasks = [
        task("a", &[], &work.join("\n")),
        task("b", &[], "write b.txt b"),
        task("c", &["a"], "write c.txt c"),
    ];
    let message = json!({"runId": run, "message": plan(&tasks)});
    let (status, said) = campaign
        .post(OTHER, "/api/v1/captain/message", &message)
        .await;
    assert!(status.is_success(), "{said}");
    for (name, run) in failing {
        campaign.tried(&[]);
        let Some(run) = run else { continue };
        let record = ended(&campaign, &run).await;
        assert_eq!(record["status"], "failed", "{setting} {name}: {record}");
    }
    let record = ended(&campaign, &run).await;
    campaign.tried(&[]);
    assert_eq!(record["status"], "completed", "{setting}: {record}");
    let trace = campaign.places.work().join("trace");
    assert!(
        !trace.exists(),
        "{setting}: {:?}",
        fs::read_to_string(trace)
    );
    // Every object that was pushed.
    fs::remove_file(trapped.root().join("origin.git/config")).unwrap();
    let objects = [
        "--git-dir=origin.git",
        "cat-file",
        "--batch-all-objects",
        "--batch",
    ];
    campaign.received.extend(trapped.git_bytes(&objects));
    for (name, server) in &servers {
        let requests = server.received();
        assert!(!requests.is_empty(), "{name}: not asked");
        for request in &requests {
            let head = String::from_utf8_lossy(request).to_lowercase();
            assert!(
                !head.contains("\r\nauthorization:") && !head.contains("\r\ncookie:"),
                "{name}: {head}"
            );
        }
        campaign.received.extend(requests.concat());
    }
    assert_eq!(inside.received().len(), 0, "{:?}", inside.received());
    campaign.prove().await;
}

#[tokio::test]
async fn a_repository_reads_and_changes_nothing_of_others() {
    for setting in [Setting::Shipped, Setting::Ordinary] {
        campaign(setting).await;
    }
}
