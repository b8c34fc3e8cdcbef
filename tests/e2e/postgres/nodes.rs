//! A bridge is a node of its database: its id is in `data_dir`, which one process at a time uses, and its start ends the
//! processes of no other node.

use forge_test_postgres::cluster;

use super::home;
use crate::harness::api::quiet;
use crate::harness::process::Home;
use crate::harness::until;

#[tokio::test]
async fn the_id_stays_and_a_second_process_on_the_folder_is_refused() {
    let (home, database) = home(&[]);
    let bridge = home.start();
    let Err(log) = home.launch() else {
        panic!("a second process uses the folder");
    };
    let holder = format!("another bridge (process {})", bridge.id());
    assert!(log.contains(&holder), "{log}");
    // The refused one has not ended the epoch of the first.
    let id = bridge.api.dispatch(quiet("t", "ok")).await;
    bridge.api.finished(&id).await;
    bridge.kill();
    home.start().kill();
    let id = std::fs::read_to_string(home.dir.path().join("data/node")).unwrap();
    let nodes = cluster().run(&database, "SELECT convert_from(id, 'UTF8') FROM node");
    assert_eq!(nodes, id.trim());
}

#[tokio::test]
async fn the_start_of_a_second_node_ends_no_process_of_the_first() {
    let (mut first, database) = home(&[("BRIDGE_ADAPTERS", "command")]);
    let settings = first.dir.path().join("bridge.toml");
    let text = "[adapters.command]\nprogram = \"sh\"\nargs = [\"-c\", \"echo $$ > $HOME/pid; exec sleep 300\"]\n";
    std::fs::write(&settings, text).unwrap();
    first.set("BRIDGE_CONFIG", &settings.display().to_string());
    first.set("PATH", &std::env::var("PATH").unwrap());
    let bridge = first.start();
    bridge.api.dispatch(quiet("t", "any")).await;
    let file = first.dir.path().join("pid");
    let pid = until("the program", async || {
        let text = std::fs::read_to_string(&file).ok()?;
        text.trim().parse::<u32>().ok()
    })
    .await;
    let mut second = Home::new(&[]);
    second.set("BRIDGE_STORE", &cluster().url(&database, "forge"));
    second.set(
        "BRIDGE_SECRET_KEY_FILE",
        &first.variables["BRIDGE_SECRET_KEY_FILE"],
    );
    let other = second.start();
    let is_alive = || std::fs::exists(format!("/proc/{pid}/cwd")).unwrap();
    assert!(is_alive(), "{}", second.log());
    other.kill();
    assert!(is_alive());
    // Its own are found by the next start, as before.
    bridge.kill();
    drop(first.start());
    until("the end of the program", async || {
        (!is_alive()).then_some(())
    })
    .await;
}
