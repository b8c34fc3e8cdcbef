//! One gateway and one model shared by all tests of the binary; an adapter for each test.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use forge_adapter_api::{ExecutionAdapter as _, ExecutionRequest, HealthStatus};
use forge_adapter_openclaw::OpenClaw;
use forge_test_model::{Model, Received};
use forge_test_runtimes::{OPENCLAW_TOKEN, OpenClaw as Server};
pub(crate) use forge_test_support::deadline::until_some as until;
use forge_test_support::execution::{Execution, run};
use forge_test_support::instance::{initialize, with_members};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Tokens of one model call: 31 input, 5 of them cached; 9 output, 2 of them reasoning. Its cost in US dollars, at 1 for
/// a million of input tokens, 2 of output, 0.1 of cached.
const CALL: (u64, u64) = (31, 9);
const COST: f64 = 26e-6 + 18e-6 + 0.5e-6;

/// The model's runtime, which outlives those of single tests.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().unwrap());
static MODEL: LazyLock<Model> = LazyLock::new(|| RUNTIME.block_on(Model::start()));
/// Killed at the end of the process.
static SERVER: LazyLock<Server> =
    LazyLock::new(|| forge_test_runtimes::openclaw(MODEL.url(), &settings().to_string()));
/// Held by all tests; exclusively by those that stop the gateway.
static IN_USE: RwLock<()> = RwLock::const_new(());

pub(crate) struct Bench {
    pub(crate) adapter: OpenClaw,
    pub(crate) server: &'static Server,
    _in_use: RwLockReadGuard<'static, ()>,
}

impl Bench {
    pub(crate) async fn new() -> Self {
        Self::with(json!({})).await
    }

    /// Sets up an adapter with these members in its table.
    pub(crate) async fn with(table: Value) -> Self {
        let (server, in_use) = in_use().await;
        let adapter: OpenClaw = initialize(with_members(config(server.url()), &table)).await;
        // A gateway that is just ready can refuse connections for a while.
        until("a connection", async || {
            let health = adapter.check_health().await;
            (health.status == HealthStatus::Healthy).then_some(())
        })
        .await;
        Self {
            adapter,
            server,
            _in_use: in_use,
        }
    }

    pub(crate) async fn run(&self, request: ExecutionRequest) -> Execution {
        run(&self.adapter, request).await
    }

    pub(crate) async fn say(&self, id: &str, message: &str) -> Execution {
        self.run(request(id, message)).await
    }
}

/// The gateway; no test stops it while the guard lives.
pub(crate) async fn in_use() -> (&'static Server, RwLockReadGuard<'static, ()>) {
    let guard = IN_USE.read().await;
    (server().await, guard)
}

/// The gateway, which no other test uses while the guard lives.
pub(crate) async fn alone() -> (&'static Server, RwLockWriteGuard<'static, ()>) {
    let guard = IN_USE.write().await;
    (server().await, guard)
}

async fn server() -> &'static Server {
    tokio::task::spawn_blocking(|| &*SERVER).await.unwrap()
}

pub(crate) fn config(server: &str) -> Value {
    json!({"url": server, "token": OPENCLAW_TOKEN})
}

/// A sandbox that is off; agents whose tools run in it, and in one that cannot be had.
fn settings() -> Value {
    let sandbox = json!({
        "mode": "off", "backend": "ssh", "scope": "session", "workspaceAccess": "rw",
        "ssh": {"command": namespace_program(), "target": "box@localhost:22"},
    });
    json!({"agents": {
        "defaults": {"sandbox": sandbox},
        "entries": {
            "boxed": {"sandbox": {"mode": "all"}},
            "dockerless": {"sandbox": {"mode": "all", "backend": "docker"}},
        },
    }})
}

/// A file that sandboxed tools do not see.
pub(crate) fn planted() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("openclaw/hidden/planted.txt")
}

/// Writes the planted file, and the program that stands for `ssh` and hides the file's folder from what it runs.
fn namespace_program() -> PathBuf {
    let (file, empty) = (planted(), planted().with_file_name("../empty"));
    let (hidden, program) = (file.parent().unwrap(), file.with_file_name("../ssh"));
    let _ = fs::remove_dir_all(hidden);
    fs::create_dir_all(hidden).unwrap();
    fs::create_dir_all(&empty).unwrap();
    fs::write(&file, "planted").unwrap();
    let (empty, hidden) = (empty.display(), hidden.display());
    let script = format!(
        "#!/bin/bash\nexec unshare --mount --map-root-user /bin/sh -c \
         'mount --bind {empty} {hidden} && exec /bin/sh -c \"$0\"' \"${{@: -1}}\"\n"
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    program
}

/// A request to the default agent; `id` is that of its dispatch and unique among all tests.
pub(crate) fn request(id: &str, message: &str) -> ExecutionRequest {
    ExecutionRequest {
        execution_id: format!("{id}/1"),
        task_id: format!("task-{id}"),
        agent_id: "main".to_owned(),
        ..ExecutionRequest::sample(message)
    }
}

/// Asserts usage and cost of exactly this number of model calls.
#[track_caller]
pub(crate) fn used(ran: &Execution, calls: u64) {
    ran.used(calls, CALL);
    assert_eq!(ran.result.usage.cache_read_tokens, Some(calls * 5));
    #[expect(clippy::cast_precision_loss, reason = "a few calls")]
    let cost = COST * calls as f64;
    assert!(
        (ran.result.cost_usd.unwrap() - cost).abs() < 1e-9,
        "{:?}",
        ran.result.cost_usd
    );
}

/// Requests to the model whose messages contain this text.
pub(crate) fn asked(text: &str) -> Vec<Received> {
    let mut requests = MODEL.requests();
    requests.retain(|request| request.body["messages"].to_string().contains(text));
    requests
}
