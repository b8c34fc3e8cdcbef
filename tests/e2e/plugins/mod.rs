//! The plug-in host with real libraries: well-behaved, hostile and broken ones.

mod apart;
mod broken;
mod generations;
mod good;
mod hostile;
mod lines;
mod loading;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forge_adapter_api::{AdapterError, SteerRequest};
use forge_base::tasks::Tasks;
use forge_plugin_host::{
    Adapter, AdapterTable, Call, Config, Error, Item, Registry, Relayed, Setup, Steered, Trust,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;

use super::harness::{library, until};

/// Timeout of these tests, longer than any step takes.
const SOON: Duration = Duration::from_secs(20);

/// Temporary folder with libraries and their private copies.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("plugins")).unwrap();
        fs::set_permissions(folder.path().join("plugins"), Permissions::from_mode(0o755)).unwrap();
        Self { folder }
    }

    fn library(&self, name: &str) -> PathBuf {
        self.folder
            .path()
            .join("plugins")
            .join(library::file_name(name))
    }

    /// Compiles a C adapter of `tests/fixtures`.
    fn compile(&self, name: &str, source: &str, defines: &[&str]) -> PathBuf {
        let library = self.library(name);
        library::compile(&library, source, defines);
        library
    }

    /// Installs the echo adapter of this build, changed by `edit`.
    fn echo_as(&self, name: &str, edit: impl FnOnce(Vec<u8>) -> Vec<u8>) -> PathBuf {
        let binary = std::env::current_exe().unwrap();
        let built = binary.parent().unwrap().join(format!(
            "libforge_adapter_echo.{}",
            std::env::consts::DLL_EXTENSION
        ));
        let library = self.library(name);
        fs::write(&library, edit(fs::read(built).unwrap())).unwrap();
        fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
        library
    }

    fn setup(&self, ids: &[&str]) -> Setup {
        Setup {
            config: Config {
                adapters: ids.iter().map(|&id| id.to_owned()).collect(),
                path: vec![self.folder.path().join("plugins")],
                trust: Trust::Enforce,
                ..Config::default()
            },
            tables: BTreeMap::new(),
            env: BTreeMap::new(),
            store_id: "store".to_owned(),
            epoch: 0,
            state_dir: self.folder.path().join("state"),
            temp_dir: None,
            supervisor: Vec::new(),
            relay: Vec::new(),
            user: None,
            users: BTreeMap::new(),
            built_in: None,
            tracker: Tasks::here(),
        }
    }
}

async fn start(setup: Setup) -> (Registry, mpsc::Receiver<Relayed>) {
    Registry::start(setup).await.unwrap()
}

/// Error of a registry that must not start.
async fn refusal(setup: Setup) -> Error {
    match Registry::start(setup).await {
        Ok(_) => panic!("it started"),
        Err(error) => error,
    }
}

fn table(value: Value) -> AdapterTable {
    serde_json::from_value(value).unwrap()
}

/// A request for this model.
fn request(model: &str) -> Vec<u8> {
    let request = json!({
        "executionId": "dsp_1/1", "taskId": "task", "agentId": "agent", "attempt": 1,
        "message": "hello", "model": model, "timeoutSeconds": 60, "outputStrategy": "stream",
    });
    request.to_string().into_bytes()
}

/// All items of a call in order, and its answer.
async fn listen(mut call: Call) -> (Vec<Item>, Result<Value, String>) {
    let mut items = Vec::new();
    loop {
        match tokio::time::timeout(SOON, call.next()).await.unwrap() {
            Item::Done(answer) => {
                let answer = answer
                    .map(|bytes| serde_json::from_slice(&bytes).unwrap())
                    .map_err(|error| error.code);
                return (items, answer);
            }
            item @ (Item::Event(_) | Item::Dropped(_)) => items.push(item),
        }
    }
}

/// Starts an execution. Its slot is released immediately, so that it does not count towards the limit.
fn execute(adapter: &Adapter, model: &str) -> Result<Call, AdapterError> {
    let permit = adapter.reserve();
    let permit = permit.unwrap_or_else(|| panic!("no room: {:?}", adapter.history()));
    permit.execute(request(model))
}

async fn run(adapter: &Adapter, model: &str) -> (Vec<Item>, Result<Value, String>) {
    listen(execute(adapter, model).unwrap()).await
}

/// A message to steer this execution with.
fn message(execution_id: &str) -> SteerRequest {
    SteerRequest {
        execution_id: execution_id.to_owned(),
        task_id: "task".to_owned(),
        message: "wrap up".to_owned(),
    }
}

/// Asserts that a message ends the echo adapter's execution, and is refused for any other.
async fn steers(echo: &Adapter) {
    let permit = echo.reserve().unwrap();
    let steering = permit.steering();
    let steered = steering.steer(&message("dsp_1/1")).await;
    assert_eq!(steered, Ok(Steered::NotRunning));
    let call = permit.execute(request("slow:60000")).unwrap();
    let steered = until("the execution to take a message", || async {
        let other = steering.steer(&message("dsp_1/2")).await;
        assert_eq!(other, Ok(Steered::NotRunning));
        let steered = steering.steer(&message("dsp_1/1")).await.unwrap();
        (steered != Steered::NotRunning).then_some(steered)
    });
    assert_eq!(steered.await, Steered::Delivered);
    let answer = listen(call).await.1.unwrap();
    assert_eq!(answer["output"], "hello\nsteered: wrap up");
    let steered = steering.steer(&message("dsp_1/1")).await;
    assert_eq!(steered, Ok(Steered::NotRunning));
}

/// Asserts that the adapter executes requests.
async fn assert_well(adapter: &Adapter) {
    let (items, answer) = run(adapter, "ok").await;
    assert!(!items.is_empty());
    assert_eq!(answer.unwrap()["status"], "ok");
}

/// Waits until a file has content; returns it.
async fn appears(path: &Path) -> String {
    until("what was written", || async {
        // The file is created before its content is written.
        let text = fs::read_to_string(path).unwrap_or_default();
        (!text.is_empty()).then_some(text)
    })
    .await
}
