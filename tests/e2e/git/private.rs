//! Agents that change the repository of their run, as one that runs as the user of the bridge can: settings, hooks and
//! attributes that are there start nothing, and choose neither address nor credentials.

use super::hostile::{set_traps, trap};
use super::*;

/// Settings that send a push and its credentials elsewhere, or start something.
fn hostile(elsewhere: &Path, trap: &str) -> String {
    let elsewhere = elsewhere.display();
    format!(
        "[core]\n\tbare = maybe\n\tworktree = /\n\trepositoryFormatVersion = 99\n[include]\n\tpath = {elsewhere}/config\n\
         [url \"file://{elsewhere}\"]\n\tinsteadOf = /\n\tpushInsteadOf = /\n\tinsteadOf = file:///\n\
         [http]\n\tproxy = http://127.0.0.1:9\n\tsslVerify = false\n\tcookieFile = /etc/passwd\n\tsaveCookies = true\n\
         [http \"https://\"]\n\textraHeader = X: y\n[credential \"https://\"]\n\thelper = !{trap}\n\
         [remote \"origin\"]\n\treceivepack = {trap}\n\tuploadpack = {trap}\n[pack]\n\tpackSizeLimit = 1\n\
         [push]\n\tgpgSign = true\n[gpg]\n\tprogram = {trap}\n[commit]\n\tgpgSign = true\n[trailer \"x\"]\n\tcommand = {trap}\n\
         [merge]\n\tdefault = evil\n\trenormalize = true\n[extensions]\n\tworktreeConfig = true\n\tpartialClone = origin\n"
    )
}

#[tokio::test]
async fn what_an_agent_writes_into_the_repository_of_its_run_decides_nothing() {
    let bed = Bed::new(Push::Always).await;
    let repository = bed.attach().await;
    let checkout = bed.checkout(&repository, "one").await;
    let elsewhere = bed.folder.path().join("elsewhere.git");
    fs::create_dir(&elsewhere).unwrap();
    run(&elsewhere, &["init", "-q", "--bare"]);
    let trap = trap(bed.folder.path());
    let bare = bed.bare();
    let spoil = || {
        set_traps(&bare, &trap);
        let former = fs::read_to_string(bare.join("config")).unwrap();
        let config = former + &hostile(&elsewhere, &trap);
        fs::write(bare.join("config"), &config).unwrap();
        fs::write(bare.join("config.worktree"), &config).unwrap();
        fs::write(elsewhere.join("config"), &config).unwrap();
        write(
            &bare,
            "info/attributes",
            "* filter=evil diff=evil merge=evil text eol=crlf ident\n",
        );
        write(&bare, "info/exclude", "*\n");
        write(&bare, "info/grafts", &format!("{}\n", repository.base()));
        write(&bare, "shallow", &format!("{}\n", repository.base()));
        write(&bare, "commondir", &elsewhere.display().to_string());
        write(
            &bare,
            "objects/info/alternates",
            &elsewhere.join("objects").display().to_string(),
        );
        // The git directories that are kept for later steps.
        let kept = fs::read_dir(bed.folder.path().join("runs/.steps")).unwrap();
        for (number, own) in kept.map(|entry| entry.unwrap().path()).enumerate() {
            match number % 3 {
                0 => write(&own, "config", &config),
                1 => write(&own, "commondir", &elsewhere.display().to_string()),
                _ => write(
                    &own,
                    "info/attributes",
                    "* filter=evil text eol=crlf ident\n",
                ),
            }
        }
    };
    spoil();
    write(checkout.folder(), "mine.txt", "mine $Id$\n");
    let done = commit(&checkout).await;
    assert_eq!(done.changed, ["mine.txt"]);
    spoil();
    let branch = checkout.branch().clone();
    repository
        .publish(&branch, None, &done.commit)
        .await
        .unwrap();
    assert_eq!(
        run(&bed.origin(), &["rev-parse", branch.as_str()]),
        done.commit.as_str()
    );
    assert_eq!(
        run(&bed.origin(), &["show", &format!("{branch}:mine.txt")]),
        "mine $Id$"
    );
    spoil();
    // The next steps of a run: copies, merges, proofs, and all of it after a restart.
    let again = bed.attach().await;
    assert_eq!(again.base(), repository.base());
    assert_eq!(again.default_branch(), Some("main"));
    let two = bed.work(&again, "two", "two.txt", "2").await;
    let one = Input {
        branch,
        commit: done.commit,
    };
    let inputs = [one, two];
    let merged = super::done(again.merge(again.base(), &inputs).await);
    spoil();
    again
        .prove(&merged, &inputs, &Default::default())
        .await
        .unwrap();
    let target = Branch::of_run("run_1").unwrap();
    assert_eq!(again.fetch(&target).await.unwrap(), None);
    again.publish(&target, None, &merged).await.unwrap();
    spoil();
    assert_eq!(again.fetch(&target).await.unwrap(), Some(merged));
    again.folder_of(&inputs[1].commit).await.unwrap();

    assert_eq!(
        fs::read_to_string(bed.folder.path().join("trace")).ok(),
        None
    );
    assert_eq!(
        fs::read_dir(elsewhere.join("refs/heads")).unwrap().count(),
        0
    );
}
