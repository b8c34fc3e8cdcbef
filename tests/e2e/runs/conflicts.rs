//! Conflicts of all kinds, in refineries and between the dependencies of a task; each proof is checked with plain git.

use std::io::Write as _;
use std::process::Stdio;

use super::super::harness::Bridge;
use super::killed::continued;
use super::*;

const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../tests/fixtures/runs/prove.py"
);

/// Claims of a `refinery.merged` that do not hold in the origin.
pub(crate) fn faults(origin: &Origin, base: &str, merged: &Value) -> String {
    let mut script = Command::new("python3");
    let script = script.arg(SCRIPT).arg(origin.path()).args([base, "-"]);
    let script = script.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(merged.to_string().as_bytes()).unwrap();
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.success(), printed.is_empty(), "{printed}");
    printed
}

/// Checks the proofs of a run that has ended.
fn proved(origin: &Origin, events: &[Value]) {
    let base = of(events, "run.attached")[0]["commit"].as_str().unwrap();
    let all = of(events, "refinery.merged");
    assert!(!all.is_empty());
    for merged in all {
        assert_eq!(faults(origin, base, merged), "", "{merged}");
    }
}

const KINDS: [(&str, &str); 7] = [
    ("added.txt", "add/add"),
    ("binary", "binary"),
    ("deleted.txt", "modify/delete"),
    ("folder", "file/directory"),
    ("new.txt", "rename/rename"),
    ("other.txt", "rename/rename"),
    ("text.txt", "contents"),
];

/// Origin, and two tasks that conflict in all of [`KINDS`].
fn conflicting() -> (Origin, [Value; 2]) {
    let origin = Origin::new();
    let work = origin.root.path().join("work");
    for (file, content) in [
        ("binary", "a\0b"),
        ("deleted.txt", "begin\n"),
        ("renamed.txt", "some text\n"),
        ("text.txt", "begin\n"),
    ] {
        std::fs::write(work.join(file), content).unwrap();
    }
    origin.git(&["-C", "work", "add", "."]);
    origin.git(&["-C", "work", "commit", "--quiet", "-m", "second"]);
    origin.git(&["-C", "work", "push", "--quiet", "../origin.git", "main"]);
    let orders = |side: &str, further: &str| {
        format!(
            "write added.txt {side}\nwrite binary {side}\nwrite text.txt {side}\ndelete renamed.txt\n{further}"
        )
    };
    let a = "delete deleted.txt\nwrite new.txt some text\nwrite folder/in.txt a\nwrite a.txt a";
    let b = "write deleted.txt b\nwrite other.txt some text\nwrite folder b\nwrite b.txt b";
    let tasks = [
        task("a", &[], &orders("a", a)),
        task("b", &[], &orders("b", b)),
    ];
    (origin, tasks)
}

#[tokio::test]
async fn a_refinery_tells_how_its_agent_has_decided_each_path() {
    let (origin, [a, b]) = conflicting();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    for (side, decisions) in [
        ("ours", "ours ours ours ours ours ours ours"),
        ("theirs", "theirs theirs theirs theirs theirs theirs theirs"),
        ("both", "both edited theirs ours ours theirs both"),
    ] {
        let orders = format!("resolve {side}\nwrite further.txt x");
        let merge = typed("merge", json!("refinery"), &["a", "b"], &orders);
        let after = task("after", &["merge"], "append text.txt after");
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        say(api, &run, &plan(&[a.clone(), b.clone(), merge, after])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "completed", "{record}");
        let events = events(api, &run).await;
        let conflict = of(&events, "refinery.conflict")[0];
        let files = conflict["files"].as_array().unwrap().iter();
        let kinds: Vec<_> = files
            .map(|file| {
                (
                    file["path"].as_str().unwrap(),
                    file["kind"].as_str().unwrap(),
                )
            })
            .collect();
        assert_eq!(kinds, KINDS, "{conflict}");
        let merged = of(&events, "refinery.merged")[0];
        let all = merged["decisions"].as_array().unwrap();
        let (others, decided): (Vec<_>, Vec<_>) =
            all.iter().partition(|one| one["kind"] == "unconflicted");
        let found: Vec<_> = decided
            .iter()
            .map(|one| one["decision"].as_str().unwrap())
            .collect();
        assert_eq!(found.join(" "), decisions, "{merged}");
        assert!(
            others.iter().any(|one| one["path"] == "further.txt"),
            "{merged}"
        );
        proved(&origin, &events);
        // A task after a refinery begins with what was merged.
        let text = origin.file(&format!("forge/integration/{run}"), "text.txt");
        assert!(
            text.ends_with("\nafter") && text.starts_with(['a', 'b']),
            "{text}"
        );
        verified(api, &run).await;

        // What the script is for: it finds a claim that does not hold.
        let base = of(&events, "run.attached")[0]["commit"].as_str().unwrap();
        let decided = merged["decisions"].as_array().unwrap().len();
        for number in 0..decided {
            let mut lying = merged.clone();
            let one = &mut lying["decisions"][number];
            let other = match one["decision"].as_str().unwrap() {
                "ours" => "theirs",
                "removed" => "edited",
                "edited" if one["kind"] == "unconflicted" => "removed",
                _ => "ours",
            };
            one["decision"] = json!(other);
            assert_ne!(faults(&origin, base, &lying), "", "{lying}");
            let mut silent = merged.clone();
            let all = silent["decisions"].as_array_mut().unwrap();
            let gone = all.remove(number);
            if gone["kind"] != "unconflicted" {
                assert_ne!(faults(&origin, base, &silent), "", "{silent}");
            }
        }
        let mut lying = merged.clone();
        lying["resultRef"] = merged["ontoRef"].clone();
        assert_ne!(faults(&origin, base, &lying), "", "{lying}");
    }
    bridge.stop().await;
}

#[tokio::test]
async fn an_agent_that_does_nothing_leaves_all_conflicts_and_they_are_named() {
    let (origin, [a, b]) = conflicting();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let all = KINDS
        .map(|(path, kind)| format!("{path} ({kind})"))
        .join(", ");
    let merge = typed("merge", json!("refinery"), &["a", "b"], "say nothing");
    let both = task("merge", &["a", "b"], "write c.txt c");
    for last in [merge, both] {
        let run = create(api, &json!({"repoUrl": origin.url()})).await;
        say(api, &run, &plan(&[a.clone(), b.clone(), last])).await;
        let record = ended(api, &run).await;
        assert_eq!(record["status"], "failed", "{record}");
        let error = record["tasks"]["merge"]["error"].as_str().unwrap();
        assert_eq!(error, format!("the agent left conflicts in {all}"));
        let events = events(api, &run).await;
        assert!(of(&events, "refinery.merged").is_empty());
        verified(api, &run).await;
    }
    bridge.stop().await;
}

/// Tasks of which the third and the fourth build on results that conflict.
fn dependent() -> Vec<Value> {
    vec![
        task("a", &[], "write same.txt a\nwrite a.txt a"),
        task("b", &[], "write same.txt b\nwrite b.txt b"),
        task("c", &["a", "b"], "append same.txt c\nwrite c.txt c"),
        task("d", &["b", "c", "a"], "append same.txt d"),
    ]
}

#[tokio::test]
async fn the_agent_of_a_task_settles_the_conflicts_of_its_dependencies_first() {
    let origin = Origin::new();
    let settings = format!("{}[adapters.echo]\nsettle = \"both\"\n", origin.settings());
    let bridge = Bridge::configured(&settings, &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    say(api, &run, &plan(&dependent())).await;
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "same.txt"), "a\nb\nc\nd");
    for id in ["a", "b", "c"] {
        assert_eq!(origin.file(&target, &format!("{id}.txt")), id);
    }
    let events = events(api, &run).await;
    let conflicts = of(&events, "refinery.conflict");
    assert_eq!(conflicts.len(), 1, "{conflicts:?}");
    assert_eq!(conflicts[0]["taskId"], "c");
    let settled = of(&events, "refinery.settled")[0];
    assert_eq!(
        (&settled["taskId"], &settled["decisions"][0]["decision"]),
        (&json!("c"), &json!("both"))
    );
    let dispatches = of(&events, "usage").into_iter();
    let dispatches = dispatches.filter(|data| data["taskId"] == "c").count();
    assert_eq!(dispatches, 2, "one settles, and one does the task");
    let tasks = record["tasks"].as_object().unwrap();
    assert!(
        tasks.values().all(|task| task["attemptId"] == "1"),
        "{record}"
    );
    proved(&origin, &events);
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn a_killed_bridge_continues_what_is_settled() {
    for point in (3..=11).map(|passing| format!("run.settle:{passing}")) {
        let origin = Origin::new();
        let settings = "[adapters.echo]\nsettle = \"both\"\n";
        let mut tasks = dependent();
        tasks.push(task("e", &[], "write same.txt e"));
        let merge = ["d", "e"];
        tasks.push(typed(
            "merge",
            json!("refinery"),
            &merge,
            "resolve both\nwrite m.txt m",
        ));
        let request = json!({"repoUrl": origin.url()});
        let (bridge, record) = continued(&origin, settings, &point, &request, &plan(&tasks)).await;
        let run = record["runId"].as_str().unwrap();
        let target = format!("forge/integration/{run}");
        let same = origin.file(&target, "same.txt");
        assert_eq!(same, "a\nb\nc\nd\ne", "{point}");
        let events = events(&bridge.api, run).await;
        proved(&origin, &events);
        bridge.kill();
    }
}
