//! Reload of adapters in use: executions end on the generation on which they began, and a generation that cannot
//! serve never becomes active.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use forge_adapter_api::HealthStatus;
use forge_plugin_host::{Adapter, Registry};
use serde_json::json;
use tokio::task::JoinSet;

use super::{Place, SOON, execute, listen, run, start, table};

/// A registry with one adapter, of which several versions are built.
struct Stage {
    place: Place,
    registry: Registry,
    adapter: Adapter,
    _listening: JoinSet<()>,
}

impl Stage {
    async fn new(drain: Duration) -> Self {
        let place = Place::new();
        put(&place, &["EDITION=\"1\""]);
        let mut setup = place.setup(&["edition"]);
        let journal = place.folder.path().join("journal");
        let settings = table(json!({ "journal": journal, "max_concurrent": 2 }));
        setup.tables = [("edition".to_owned(), settings)].into();
        setup.config.reload_drain = drain;
        let (registry, mut relayed) = start(setup).await;
        let mut listening = JoinSet::new();
        listening.spawn(async move { while relayed.recv().await.is_some() {} });
        let adapter = registry.get("edition").unwrap();
        Self {
            place,
            registry,
            adapter,
            _listening: listening,
        }
    }

    /// Installs another version and reloads the adapter.
    async fn reload(&self, defines: &[&str]) -> Result<(), String> {
        put(&self.place, defines);
        let reloaded = self.adapter.reload().await;
        reloaded.map_err(|error| error.to_string())
    }

    fn gate(&self) -> PathBuf {
        self.place.folder.path().join("gate")
    }

    fn journal(&self) -> Vec<String> {
        let text = fs::read_to_string(self.place.folder.path().join("journal"));
        text.unwrap().lines().map(str::to_owned).collect()
    }

    /// Version of the active generation.
    async fn serving(&self) -> String {
        answer(run(&self.adapter, "now").await.1)
    }

    async fn until_left(&self) {
        let mut tick = tokio::time::interval(Duration::from_millis(5));
        let left = async {
            while !self.adapter.leaving().is_empty() {
                tick.tick().await;
            }
        };
        tokio::time::timeout(SOON, left).await.unwrap();
    }
}

/// Replaces the library by a rename, as recommended to operators.
fn put(place: &Place, defines: &[&str]) {
    let next = place.compile("next", "edition/edition.c", defines);
    fs::rename(next, place.library("edition")).unwrap();
}

fn answer(answer: Result<serde_json::Value, String>) -> String {
    answer.unwrap()["output"].as_str().unwrap().to_owned()
}

const FOR_EVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn what_runs_ends_on_its_own_edition_and_the_next_begins_on_the_new_one() {
    let stage = Stage::new(FOR_EVER).await;
    let adapter = &stage.adapter;
    let first = adapter.digest().unwrap();
    let permit = adapter.reserve().unwrap();
    let held = execute(adapter, &format!("hold:{}", stage.gate().display())).unwrap();

    stage.reload(&["EDITION=\"2\""]).await.unwrap();
    assert_eq!(stage.serving().await, "2");
    assert_eq!(adapter.version().as_deref(), Some("2.0.0"));
    let leaving = adapter.leaving();
    assert_eq!((leaving.len(), leaving[0].running), (1, 1));
    assert_eq!(
        (leaving[0].version.as_str(), &leaving[0].digest),
        ("1.0.0", &first)
    );
    // The limit applies to both generations together.
    assert_eq!((adapter.running(), adapter.max_concurrent()), (1, 2));
    let other = adapter.reserve().unwrap();
    assert!(adapter.reserve().is_none());
    drop(other);
    assert_eq!(stage.journal(), ["initialize 1", "initialize 2"]);

    fs::write(stage.gate(), "").unwrap();
    assert_eq!(answer(listen(held).await.1), "1");
    drop(permit);
    stage.until_left().await;
    assert_eq!(
        stage.journal(),
        ["initialize 1", "initialize 2", "shutdown 1", "destroy 1"]
    );
    assert_eq!(stage.serving().await, "2");
    stage.registry.shutdown(SOON).await;
    assert_eq!(stage.journal()[4..], ["shutdown 2", "destroy 2"]);
}

#[tokio::test]
async fn the_same_file_is_another_instance_of_the_same_image() {
    let stage = Stage::new(FOR_EVER).await;
    let digest = stage.adapter.digest();
    for _ in 0..25 {
        stage.adapter.reload().await.unwrap();
        assert_eq!(stage.adapter.digest(), digest);
    }
    stage.until_left().await;
    let begun = stage
        .journal()
        .iter()
        .filter(|line| line.starts_with("init"))
        .count();
    assert_eq!((begun, stage.serving().await.as_str()), (26, "1"));
    let copies = fs::read_dir(stage.place.folder.path().join("state/adapters/edition"));
    assert_eq!(copies.unwrap().count(), 1);
}

#[tokio::test]
async fn what_cannot_serve_changes_nothing_and_says_why() {
    let stage = Stage::new(FOR_EVER).await;
    for (defines, wanted) in [
        (["EDITION=\"2\"", "CREATE"], "create failed: no room"),
        (
            ["EDITION=\"2\"", "INITIALIZE"],
            "initialize failed: no such service",
        ),
        (
            ["EDITION=\"2\"", "CAPABILITIES"],
            "capabilities returned no valid profile",
        ),
        (["EDITION=\"2\"", "HEALTH"], "no route"),
        (["EDITION=\"2\"", "MOST=\"0\""], "maxConcurrent 0"),
    ] {
        let why = stage.reload(&defines).await.unwrap_err();
        assert!(why.contains(wanted), "{why}");
        assert_eq!(stage.serving().await, "1", "{wanted}");
        assert_eq!(stage.adapter.health().status, HealthStatus::Healthy);
        assert!(stage.adapter.leaving().is_empty());
    }
    let library = stage.place.library("edition");
    fs::write(&library, "no library").unwrap();
    let why = stage.adapter.reload().await.unwrap_err().to_string();
    assert!(why.contains("wanted a shared library"), "{why}");
    fs::remove_file(&library).unwrap();
    let why = stage.adapter.reload().await.unwrap_err().to_string();
    assert!(why.contains("BRIDGE_PLUGIN_PATH"), "{why}");
    assert_eq!(stage.serving().await, "1");
    assert_eq!(stage.adapter.history().len(), 1, "its health never changed");
}

#[tokio::test]
async fn one_that_never_loaded_is_there_after_a_reload() {
    let place = Place::new();
    let (registry, _relayed) = start(place.setup(&["echo", "edition"])).await;
    let adapter = registry.get("edition").unwrap();
    assert!(adapter.load_error().is_some() && adapter.reserve().is_none());
    put(&place, &["EDITION=\"1\""]);
    adapter.reload().await.unwrap();
    assert_eq!(
        (adapter.load_error(), adapter.health().status),
        (None, HealthStatus::Healthy)
    );
    assert_eq!(answer(run(&adapter, "now").await.1), "1");
    registry.shutdown(SOON).await;
}

#[tokio::test]
async fn twenty_images_and_then_it_says_what_to_do() {
    let stage = Stage::new(FOR_EVER).await;
    for n in 2..=20 {
        stage.reload(&[&format!("EDITION=\"{n}\"")]).await.unwrap();
    }
    let why = stage.reload(&["EDITION=\"21\""]).await.unwrap_err();
    assert!(
        why.contains("beside the 20") && why.contains("restart the bridge"),
        "{why}"
    );
    assert_eq!(stage.serving().await, "20");
    stage.reload(&["EDITION=\"7\""]).await.unwrap();
    assert_eq!(stage.serving().await, "7", "its image is there already");
}

#[tokio::test]
async fn a_drain_has_an_end() {
    let stage = Stage::new(Duration::from_millis(100)).await;
    let permit = stage.adapter.reserve().unwrap();
    let held = execute(&stage.adapter, "hold:/nonexistent/gate").unwrap();
    stage.reload(&["EDITION=\"2\""]).await.unwrap();
    assert_eq!(listen(held).await.1.unwrap_err(), "adapter_unavailable");
    drop(permit);
    stage.until_left().await;
    assert_eq!(stage.journal()[2..], ["shutdown 1", "destroy 1"]);
    assert_eq!(stage.serving().await, "2");
}

#[tokio::test]
async fn the_end_of_the_bridge_ends_all_editions() {
    let stage = Stage::new(FOR_EVER).await;
    let permit = stage.adapter.reserve().unwrap();
    stage.reload(&["EDITION=\"2\""]).await.unwrap();
    stage.registry.shutdown(SOON).await;
    let mut ends = stage.journal().split_off(2);
    ends.sort();
    assert_eq!(ends, ["destroy 1", "destroy 2", "shutdown 1", "shutdown 2"]);
    let late = stage.adapter.reload().await.unwrap_err().to_string();
    assert_eq!(late, "the bridge is shutting down");
    drop(permit);
}
