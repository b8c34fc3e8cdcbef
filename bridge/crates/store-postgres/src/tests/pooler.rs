//! The store behind PgBouncer in transaction mode, which gives each transaction another server process.

use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use forge_store::contract::sample::{ok, run, task};
use forge_store::roles::{EventLog as _, Maintenance as _, Records as _};

use super::cluster::{Database, cluster};
use super::open;
use crate::Target;
use crate::engine::link::Link;

const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// Ends when it is dropped.
struct Pooler {
    folder: tempfile::TempDir,
    child: Child,
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pooler {
    /// Starts a pooler before the shared server, with a socket in its own folder.
    fn start() -> Self {
        let program = Path::new(PROGRAM);
        assert!(
            program.exists(),
            "{PROGRAM} is missing: install the package pgbouncer"
        );
        let folder = tempfile::tempdir().unwrap();
        let (own, server) = (folder.path().display(), cluster().folder.display());
        let settings = format!(
            "[databases]\n* = host={server} user=forge\n[pgbouncer]\nlisten_addr =\nunix_socket_dir = {own}\n\
             auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nlogfile = {own}/log\n"
        );
        let file = folder.path().join("settings");
        std::fs::File::create(&file)
            .unwrap()
            .write_all(settings.as_bytes())
            .unwrap();
        // Everybody in this folder: it refuses to run as root.
        let open = Command::new("chmod")
            .arg("a+rwx")
            .arg(folder.path())
            .status();
        assert!(open.unwrap().success());
        let is_root =
            std::fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        let mut command = match is_root.unwrap() {
            0 => {
                let mut other = Command::new("setpriv");
                other.args([
                    "--reuid",
                    "postgres",
                    "--regid",
                    "postgres",
                    "--clear-groups",
                ]);
                other.arg(PROGRAM);
                other
            }
            _ => Command::new(PROGRAM),
        };
        let child = command.arg("-q").arg(&file).spawn().unwrap();
        Self { folder, child }
    }

    fn target(&self, database: &str) -> Target {
        let folder = self.folder.path().display().to_string().replace('/', "%2F");
        Target::new(&format!("postgres://forge@{folder}:6432/{database}"), None).unwrap()
    }
}

#[tokio::test]
async fn a_store_works_behind_a_pooler_in_transaction_mode() {
    let database = Database::new();
    database.create().await;
    let pooler = Pooler::start();
    let end = Instant::now() + Duration::from_secs(20);
    while let Err(error) = Link::connect(&pooler.target("postgres")).await {
        assert!(Instant::now() < end, "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let store = open(pooler.target(&database.name)).await;
    for n in 0..20 {
        let dispatch = run(&store, task(&n.to_string()), ok(2));
        let (id, _) = dispatch.await;
        let read = store.dispatch(id).await.unwrap().unwrap();
        assert!(read.result.is_some());
    }
    assert_eq!(store.counts().deliveries_pending, 20);
    let bounds = store.log_bounds();
    store.close().await;
    let again = open(database.target()).await;
    assert_eq!(again.log_bounds(), bounds);
}
