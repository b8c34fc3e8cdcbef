//! Files of agents that are not committed, and folders that they take away: named, never lost without a word.

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::*;

#[tokio::test]
async fn what_an_agent_leaves_out_is_named_and_an_edit_of_a_linked_file_is_kept() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let nested = "write nested/.git gitdir: elsewhere\nwrite nested/file x\nsay its report";
    let call = json!({"type": 1, "title": "Nested", "instructions": nested});
    let tasks = [
        task("a", &[], "await .git/go\nsay done"),
        task("idle", &[], "say nothing to do"),
        task("starter", &[], &format!("append s.txt s\nspawn {call}")),
        task("silent", &[], "nothing that is an order"),
    ];
    say(api, &run, &plan(&tasks)).await;
    let folder = checkout(&bridge, &run, "a", 1);
    until("the agent of a", || async {
        let (_, record) = api.get(&format!("/api/v1/runs/{run}")).await;
        (record["tasks"]["a"]["status"] == "RUNNING").then_some(())
    })
    .await;
    let large = std::fs::File::create(folder.join("large")).unwrap();
    large.set_len(64 * 1024 * 1024 + 1).unwrap();
    std::fs::create_dir_all(folder.join("nested/.git")).unwrap();
    std::fs::write(folder.join("nested/.git/HEAD"), "ref: refs/heads/main").unwrap();
    std::fs::write(folder.join("nested/file"), "x").unwrap();
    mknodat(CWD, folder.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    mknodat(
        CWD,
        folder.join(".gitignore"),
        FileType::Fifo,
        Mode::RWXU,
        0,
    )
    .unwrap();
    std::fs::write(folder.join("README.md"), "edited").unwrap();
    std::fs::hard_link(folder.join("README.md"), folder.with_file_name("store")).unwrap();
    release(&bridge, &run, "a", 1);

    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let edited = origin.file(&format!("forge/integration/{run}"), "README.md");
    assert_eq!(edited, "edited");
    let special = "it is not a file";
    let wanted = json!([
        {"path": ".gitignore", "reason": special},
        {"path": "large", "reason": "it is larger than 64 MiB"},
        {"path": "nested/", "reason": "it is a repository of its own"},
        {"path": "pipe", "reason": special},
    ]);
    let events = events(api, &run).await;
    let completed = of(&events, "task.completed");
    let of_task = |id: &str| {
        let mut all = completed.iter();
        *all.find(|data| data["taskId"] == id).unwrap()
    };
    assert_eq!(of_task("a")["leftOut"], wanted);
    assert_eq!(of_task("a")["changedFiles"], 1);
    assert_eq!(of_task("idle")["changedFiles"], 0);
    assert_eq!(of_task("starter")["changedFiles"], 1);
    assert_eq!(record["tasks"]["a"]["leftOutCount"], 4);
    assert_eq!(record["tasks"]["idle"]["changedFiles"], 0);
    let (_, detail) = api.get(&format!("/api/v1/runs/{run}/tasks/a")).await;
    assert_eq!(detail["leftOut"], wanted);
    let walkthrough = detail["walkthrough"].as_str().unwrap();
    let line =
        "## Left out\n\nThe commit does not have:\n\n- .gitignore: it is not a file\n- large:";
    assert!(walkthrough.contains(line), "{walkthrough}");
    let (_, silent) = api.get(&format!("/api/v1/runs/{run}/tasks/silent")).await;
    let walkthrough = silent["walkthrough"].as_str().unwrap();
    assert!(walkthrough.contains("changed_files: 0"), "{walkthrough}");
    // The starter reads it in the result of its call.
    let report = of(&events, "tool.result")[0]["result"].to_string();
    assert!(report.contains("- nested/: it is a repository"), "{report}");
    verified(api, &run).await;
    bridge.stop().await;
}

#[tokio::test]
async fn an_attempt_whose_checkout_or_tracked_file_is_gone_fails_and_says_so() {
    let origin = Origin::new();
    let bridge = Bridge::configured(&origin.settings(), &[]).await;
    let api = &bridge.api;
    let run = create(api, &json!({"repoUrl": origin.url()})).await;
    let tasks = [
        task("moved", &[], "write m.txt m\nawait .git/go"),
        task("pipe", &[], "write p.txt p\nawait .git/go"),
    ];
    say(api, &run, &plan(&tasks)).await;
    running(api, &run, 2).await;
    let folder = checkout(&bridge, &run, "moved", 1);
    until("its file", || async {
        folder.join("m.txt").exists().then_some(())
    })
    .await;
    std::fs::rename(&folder, folder.with_file_name("elsewhere")).unwrap();
    std::fs::create_dir_all(folder.join(".git")).unwrap();
    let piped = checkout(&bridge, &run, "pipe", 1);
    std::fs::remove_file(piped.join("README.md")).unwrap();
    mknodat(CWD, piped.join("README.md"), FileType::Fifo, Mode::RWXU, 0).unwrap();
    for attempt in [1, 2] {
        for name in ["moved", "pipe"] {
            let folder = checkout(&bridge, &run, name, attempt);
            until("the attempt", || async {
                folder.join(".git").exists().then_some(())
            })
            .await;
            release(&bridge, &run, name, attempt);
        }
    }
    let record = ended(api, &run).await;
    assert_eq!(record["status"], "completed", "{record}");
    let events = events(api, &run).await;
    let failed = of(&events, "task.failed");
    let errors: Vec<_> = failed
        .iter()
        .map(|data| data["error"].as_str().unwrap())
        .collect();
    assert_eq!(errors.len(), 2, "{errors:?}");
    let has = |text: &str| errors.iter().any(|error| error.contains(text));
    assert!(has("another folder is at this path"), "{errors:?}");
    assert!(
        has("README.md cannot be read back: it is not a file"),
        "{errors:?}"
    );
    let target = format!("forge/integration/{run}");
    assert_eq!(origin.file(&target, "m.txt"), "m");
    bridge.stop().await;
}
