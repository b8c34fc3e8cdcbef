//! Conflicts of every kind, with agents that do nothing, take a side, or write something else.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use super::*;

/// Name of a conflict, its kind, the paths to be decided, and the scripts of the base and both sides.
type Row = (
    &'static str,
    Kind,
    &'static [&'static [u8]],
    [&'static str; 3],
);

const ROWS: &[Row] = &[
    (
        "contents",
        Kind::Contents,
        &[b"f"],
        [
            r"printf 'a\nb\nc\n' > f",
            r"printf 'a\nO\nc\n' > f",
            r"printf 'a\nT\nc\n' > f",
        ],
    ),
    (
        "a document about conflicts",
        Kind::Contents,
        &[b"f"],
        [
            r"printf '<<<<<<< \na\n=======\nb\n>>>>>>> x\n' > f",
            r"printf '<<<<<<< \nO\n=======\nb\n>>>>>>> x\n' > f",
            r"printf '<<<<<<< \nT\n=======\nb\n>>>>>>> x\n' > f",
        ],
    ),
    (
        "binary",
        Kind::Binary,
        &[b"f"],
        [
            r"printf 'a\0b' > f",
            r"printf 'a\0o' > f",
            r"printf 'a\0t' > f; chmod +x f",
        ],
    ),
    (
        "symlink",
        Kind::Symlink,
        &[b"f"],
        ["ln -s a f", "ln -sfn o f", "ln -sfn t f"],
    ),
    (
        "modify/delete",
        Kind::ModifyDelete,
        &[b"f"],
        ["echo a > f", "echo o > f", "rm f"],
    ),
    (
        "delete/modify of an ignored file",
        Kind::ModifyDelete,
        &[b"ignored/f"],
        [
            "mkdir ignored; echo a > ignored/f",
            "rm ignored/f",
            "echo t > ignored/f",
        ],
    ),
    (
        "delete/rename",
        Kind::RenameDelete,
        &[b"g"],
        ["seq 9 > f", "rm f", "mv f g"],
    ),
    (
        "rename/delete",
        Kind::RenameDelete,
        &[b"g"],
        ["seq 9 > f", "mv f g", "rm f"],
    ),
    (
        "rename/rename",
        Kind::RenameRename,
        &[b"g", b"h"],
        ["seq 9 > f", "mv f g", "mv f h"],
    ),
    (
        "folder/file",
        Kind::FileDirectory,
        &[b"f"],
        ["echo a > x", "mkdir f; echo o > f/in", "echo t > f"],
    ),
    (
        "file/folder",
        Kind::FileDirectory,
        &[b"f"],
        ["echo a > f", "echo o > f", "rm f; mkdir f; echo t > f/in"],
    ),
    (
        "add/add",
        Kind::AddAdd,
        &[b"f"],
        ["echo a > x", "echo o > f", "echo t > f"],
    ),
    (
        "mode",
        Kind::Mode,
        &[b"f"],
        ["echo a > x", "echo n > f", "echo n > f; chmod +x f"],
    ),
    (
        "type",
        Kind::DistinctTypes,
        &[b"f"],
        ["echo a > f", "echo o > f", "ln -sfn t f"],
    ),
    (
        "names that are hard to read",
        Kind::Contents,
        &[b" ", b"a\nb", "em\u{2003}".as_bytes()],
        [
            "for n in \" \" \"a\nb\" \"em\u{2003}\"; do echo a > \"$n\"; done",
            "for n in \" \" \"a\nb\" \"em\u{2003}\"; do echo o > \"$n\"; done",
            "for n in \" \" \"a\nb\" \"em\u{2003}\"; do echo t > \"$n\"; done",
        ],
    ),
    (
        "a name in Latin-1, and one that a side would have",
        Kind::Binary,
        &[b"gr\xfcn"],
        [
            r#"n=$(printf 'gr\374n'); printf 'a\0b' > "$n"; echo taken > "$n.ours""#,
            r#"n=$(printf 'gr\374n'); printf 'a\0o' > "$n""#,
            r#"n=$(printf 'gr\374n'); printf 'a\0t' > "$n""#,
        ],
    ),
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Agent {
    Idle,
    Ours,
    Theirs,
    Edits,
}

fn shell(folder: &Path, script: &str) {
    let mut command = Command::new("sh");
    let status = command.args(["-ec", script]).current_dir(folder).status();
    assert!(status.unwrap().success(), "{script}");
}

async fn changed(bed: &Bed, repository: &Repository, task: &str, script: &str) -> Input {
    let checkout = bed.checkout(repository, task).await;
    shell(checkout.folder(), script);
    let commit = commit(&checkout).await.commit;
    let branch = checkout.branch().clone();
    Input { branch, commit }
}

/// Base of a run with what a script leaves.
async fn begun(script: &str) -> (Bed, Repository) {
    let bed = Bed::new(Push::Never).await;
    shell(&bed.origin(), script);
    run(&bed.origin(), &["add", "-A", "-f"]);
    run(&bed.origin(), &["commit", "-qm", "Base"]);
    let repository = bed.attach().await;
    (bed, repository)
}

async fn conflict_of(repository: &Repository, inputs: &[Input]) -> Conflict {
    match repository.merge(repository.base(), inputs).await.unwrap() {
        Merge::Conflict(conflict) => conflict,
        Merge::Done(_) => panic!("it merged"),
    }
}

/// Folder of an attempt of a refinery, as its agent is given it.
async fn given(
    repository: &Repository,
    attempt: u32,
    inputs: &[Input],
    conflict: &Conflict,
) -> Checkout {
    let branch = Branch::of_attempt("run_1", "merge", attempt).unwrap();
    repository.start(&branch, &conflict.onto).await.unwrap();
    let checkout = repository.make_with(&branch, inputs, Some(&conflict.given));
    let checkout = checkout.await.unwrap();
    checkout.begin(0, &conflict.onto).await.unwrap();
    checkout
}

fn at(folder: &Path, path: &[u8]) -> PathBuf {
    folder.join(OsStr::from_bytes(path))
}

fn clear(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path).unwrap();
    } else if fs::symlink_metadata(path).is_ok() {
        fs::remove_file(path).unwrap();
    }
}

/// Decides all paths, with nothing but what the folder has.
fn work(agent: Agent, folder: &Path, conflict: &Conflict) {
    for path in &conflict.paths {
        let file = at(folder, &path.path);
        let sides = match &path.form {
            Form::Sides { ours, theirs } => [ours, theirs],
            Form::Marked(_) => [&None, &None],
        };
        let [ours, theirs] = sides.map(|side| side.as_ref().map(|side| at(folder, side)));
        let commit = match agent {
            Agent::Ours => &conflict.onto,
            _ => &conflict.input.commit,
        };
        let kept = match agent {
            Agent::Idle => return,
            Agent::Ours => ours.clone(),
            Agent::Theirs => theirs.clone(),
            Agent::Edits => {
                clear(&file);
                fs::write(&file, "edited\n").unwrap();
                None
            }
        };
        if agent != Agent::Edits && matches!(path.form, Form::Marked(_)) {
            let name = String::from_utf8(path.path.clone()).unwrap();
            let text = run(folder, &["show", &format!("{commit}:{name}")]);
            fs::write(&file, text + "\n").unwrap();
        }
        if let Some(kept) = kept {
            clear(&file);
            fs::rename(kept, &file).unwrap();
        }
        [ours, theirs].iter().flatten().for_each(|side| clear(side));
    }
}

#[tokio::test]
async fn every_kind_of_conflict_is_decided_or_named() {
    for (name, kind, paths, [base, ours, theirs]) in ROWS {
        let (bed, repository) = begun(base).await;
        let inputs = [
            changed(&bed, &repository, "one", ours).await,
            changed(&bed, &repository, "two", theirs).await,
        ];
        let conflict = conflict_of(&repository, &inputs).await;
        let found: Vec<_> = conflict.paths.iter().map(|path| &*path.path).collect();
        assert_eq!(found, **paths, "{name}");
        assert!(
            conflict.paths.iter().all(|path| path.kind == *kind),
            "{name}: {conflict:?}"
        );
        assert_eq!(conflict_of(&repository, &inputs).await, conflict, "{name}");
        let agents = [Agent::Idle, Agent::Ours, Agent::Theirs, Agent::Edits];
        for (agent, attempt) in agents.into_iter().zip(1..) {
            let about = format!("{name}, {agent:?}");
            let checkout = given(&repository, attempt, &inputs, &conflict).await;
            work(agent, checkout.folder(), &conflict);
            let settled = checkout
                .settle(&message(), 0, Some(&conflict))
                .await
                .unwrap();
            // As after a kill, with whatever is in the folder now.
            write(checkout.folder(), "late.txt", "late");
            let again = checkout
                .settle(&message(), 0, Some(&conflict))
                .await
                .unwrap();
            assert_eq!(again, settled, "{about}");
            let wanted = match agent {
                Agent::Idle => {
                    assert_eq!(settled.undecided, conflict.names(), "{about}");
                    continue;
                }
                Agent::Ours => Decision::Ours,
                Agent::Theirs => Decision::Theirs,
                Agent::Edits => Decision::Edited,
            };
            assert!(settled.undecided.is_empty(), "{about}: {settled:?}");
            let (others, decided): (Vec<_>, Vec<_>) = settled
                .decisions
                .iter()
                .partition(|one| one.kind == Kind::Unconflicted);
            assert_eq!(decided.len(), paths.len(), "{about}: {settled:?}");
            assert!(
                decided.iter().all(|one| one.decision == wanted),
                "{about}: {settled:?}"
            );
            // A file in place of a folder removes what was in it.
            let is_folder = *kind == Kind::FileDirectory;
            assert!(others.is_empty() || is_folder, "{about}: {settled:?}");
            let files = bed.files(&settled.commit).join(" ");
            assert_eq!(
                files.matches(".ours").count(),
                base.matches(".ours").count(),
                "{about}"
            );
            assert!(
                !files.contains(".theirs") && !files.contains('~'),
                "{about}: {files}"
            );

            assert_eq!(
                done(repository.merge(&settled.commit, &inputs).await),
                settled.commit
            );
            repository
                .keep_onto(&settled.commit, repository.base())
                .await
                .unwrap();
            let named: BTreeSet<_> = settled
                .decisions
                .iter()
                .map(|one| one.path.clone())
                .collect();
            let proof = repository
                .prove(&settled.commit, &inputs, &named)
                .await
                .unwrap();
            assert!(
                proof.claims.iter().all(|claim| claim.changed > 0),
                "{about}: {proof:?}"
            );
        }
    }
}

#[tokio::test]
async fn half_a_decision_is_none() {
    let (bed, repository) = begun(r"printf 'a\0b' > f; echo a > g; printf 'a\nb\n' > h").await;
    let inputs = [
        changed(
            &bed,
            &repository,
            "one",
            r"printf 'a\0o' > f; rm g; printf 'a\no\n' > h",
        )
        .await,
        changed(
            &bed,
            &repository,
            "two",
            r"printf 'a\0t' > f; echo t > g; printf 'a\nt\n' > h",
        )
        .await,
    ];
    let conflict = conflict_of(&repository, &inputs).await;
    let [f, g, h] = ["f (binary)", "g (modify/delete)", "h (contents)"];
    let both = "printf 'a\\no\\nt\\n' > h";
    for (attempt, (script, undecided, decisions)) in (1..).zip([
        (
            "rm f.theirs; mv g.theirs g; sed -i /====/d h",
            vec![f, h],
            "",
        ),
        (
            "echo x >> f.ours; echo x > g; grep -v '<<<' h > i; mv i h",
            vec![f, h],
            "",
        ),
        (
            &*format!("mv f.theirs f; rm g.theirs; {both}"),
            vec![],
            "theirs ours both",
        ),
        // What is left unchanged beside a decision is dropped, and what is changed is the agent's.
        (
            &*format!("cp f.theirs f; echo x >> f.ours; mv g.theirs k; {both}"),
            vec![],
            "theirs ours both edited edited",
        ),
        (
            "rm f.*; echo x > g; printf 'a\\nx\\n' > h",
            vec![],
            "removed edited edited",
        ),
        (
            "mv f.ours f; mkdir g; mv g.theirs g/g; rm h",
            vec![],
            "ours ours removed edited",
        ),
        ("rm shared.txt; mv f.ours f; mv g.theirs g", vec![h], ""),
    ]) {
        let checkout = given(&repository, attempt, &inputs, &conflict).await;
        shell(checkout.folder(), script);
        let settled = checkout
            .settle(&message(), 0, Some(&conflict))
            .await
            .unwrap();
        assert_eq!(settled.undecided, undecided, "{script}: {g}");
        let found = settled.decisions.iter();
        let found: Vec<_> = found
            .map(|one| format!("{:?}", one.decision).to_lowercase())
            .collect();
        if undecided.is_empty() {
            assert_eq!(found.join(" "), decisions, "{script}: {settled:?}");
        }
    }
}

#[tokio::test]
async fn an_agent_that_settles_has_both_commits_and_no_way_to_the_repository_of_the_run() {
    let (bed, repository) = begun("echo a > f").await;
    let inputs = [
        changed(&bed, &repository, "one", "echo o > f").await,
        changed(&bed, &repository, "two", "echo t > f").await,
    ];
    let conflict = conflict_of(&repository, &inputs).await;
    let checkout = given(&repository, 1, &inputs, &conflict).await;
    for input in &inputs {
        let found = run(checkout.folder(), &["rev-parse", input.branch.as_str()]);
        assert_eq!(found, input.commit.as_str());
        run(checkout.folder(), &["log", "-1", "-p", found.as_str()]);
    }
    assert_eq!(run(checkout.folder(), &["remote"]), "");
}

#[tokio::test]
async fn what_is_changed_in_a_merge_without_a_conflict_is_named() {
    let (bed, repository) = begun("echo a > f").await;
    let input = changed(&bed, &repository, "one", "echo o > f; echo o > g").await;
    let branch = Branch::of_attempt("run_1", "merge", 1).unwrap();
    repository.start(&branch, &input.commit).await.unwrap();
    let checkout = repository.make(&branch).await.unwrap();
    checkout.begin(0, &input.commit).await.unwrap();
    shell(checkout.folder(), "echo x > f; rm g; echo n > n");
    let settled = checkout.settle(&message(), 2, None).await.unwrap();
    let found = settled.decisions.iter();
    let found: Vec<_> = found
        .map(|one| (&*one.path, one.kind, one.decision))
        .collect();
    let kind = Kind::Unconflicted;
    let wanted = [
        ("f", kind, Decision::Edited),
        ("g", kind, Decision::Removed),
        ("n", kind, Decision::Edited),
    ];
    assert_eq!(found, wanted);
    let inputs = [input];
    repository
        .keep_onto(&settled.commit, repository.base())
        .await
        .unwrap();
    let named = |paths: &[&str]| paths.iter().map(|&path| path.to_owned()).collect();
    let lost = repository
        .prove(&settled.commit, &inputs, &named(&["f"]))
        .await;
    let lost = lost.unwrap_err().to_string();
    assert_eq!(lost, "the result does not contain: g of forge/run_1/one/1");
    let proof = repository
        .prove(&settled.commit, &inputs, &named(&["f", "g"]))
        .await;
    assert_eq!(proof.unwrap().claims[0].changed, 2);
}

/// Scripts of two tasks and a third that builds on both; nothing of it conflicts, and nothing is decided.
#[tokio::test]
async fn what_git_merges_by_itself_is_proved_without_decisions() {
    let base = "seq 20 > f; seq 30 > k; echo a > g";
    for [one, two, three] in [
        ["sed -i 1d f", "sed -i 20d f", "echo x > x"],
        ["git mv f h; sed -i 1d h", "sed -i 20d f", "echo x > x"],
        ["git mv f h", "git mv f h; sed -i 5d h", "echo x > x"],
        ["rm g; echo n > n", "sed -i 1d f", "echo a > g; git mv f m"],
        [
            "mkdir d; git mv k d/k",
            "sed -i 9d k; echo x > x",
            "rm -r d x",
        ],
        ["true", "true", "echo x > x"],
    ] {
        let (bed, repository) = begun(base).await;
        let mut inputs = vec![
            changed(&bed, &repository, "one", one).await,
            changed(&bed, &repository, "two", two).await,
        ];
        let both = done(repository.merge(repository.base(), &inputs).await);
        let branch = Branch::of_attempt("run_1", "three", 1).unwrap();
        repository.start(&branch, &both).await.unwrap();
        let none = BTreeSet::new();
        repository
            .keep_onto(&both, repository.base())
            .await
            .unwrap();
        repository.prove(&both, &inputs, &none).await.unwrap();
        // The first is in the target already, and the third contains the second.
        let target = done(repository.merge(repository.base(), &inputs[..1]).await);
        inputs.push(changed(&bed, &repository, "three", three).await);
        let merged = done(repository.merge(&target, &inputs).await);
        repository.keep_onto(&merged, &target).await.unwrap();
        let proof = repository.prove(&merged, &inputs, &none).await.unwrap();
        assert_eq!(proof.claims[0].changed, 0, "{one}: {proof:?}");
        assert_eq!(merged, inputs[2].commit, "{one}");
    }
}
