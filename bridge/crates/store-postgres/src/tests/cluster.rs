//! A server for tests: a cluster in a temporary folder, with a socket there and no port. It ends with the process of the
//! tests, however that ends, and its folder with it.

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::engine::link::Link;
use crate::engine::target::Target;

/// Folder of the server's programs: that of the newest version which a package has installed.
pub(crate) fn programs() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten();
    let folders = versions.map(|version| version.unwrap().path().join("bin"));
    let newest = folders
        .filter(|folder| folder.join("postgres").exists())
        .max();
    newest.expect("no server is installed: install the package postgresql")
}

/// Makes the cluster, says so in one line, and removes it when its input ends. A server does not run as root.
const SCRIPT: &str = r#"
set -e
folder=$1 bin=$2
shift 2
port=5432
for option; do
  case $option in
    port=*) port=${option#port=} ;;
    hot_standby=on) standby=yes ;;
  esac
done
as=
if [ "$(id -u)" = 0 ]; then
  chown postgres "$folder"
  as="setpriv --reuid postgres --regid postgres --clear-groups"
fi
end() {
  pid=$(head -n 1 "$folder/data/postmaster.pid" 2>/dev/null) || true
  if [ -n "$pid" ]; then
    kill -QUIT "$pid" 2>/dev/null || true
    while kill -0 "$pid" 2>/dev/null; do sleep 0.02; done
  fi
  rm -rf "$folder"
}
trap end EXIT
$as "$bin/initdb" -D "$folder/data" -U forge -A trust -E UTF8 --locale=C --no-sync >"$folder/log" 2>&1
[ -z "$standby" ] || $as touch "$folder/data/standby.signal"
$as "$bin/postgres" -D "$folder/data" -k "$folder" -c listen_addresses= -c max_connections=500 \
  -c shared_buffers=64MB -c max_wal_size=256MB "$@" >>"$folder/log" 2>&1 &
pid=$!
until "$bin/pg_isready" -q -h "$folder" -p "$port"; do kill -0 "$pid"; sleep 0.05; done
echo ready
cat >/dev/null
"#;

pub(crate) struct Cluster {
    pub(crate) folder: PathBuf,
    /// The server ends when the input of this process does.
    _keeper: Child,
}

impl Cluster {
    /// Starts a server with these options; with `hot_standby=on`, one that follows a primary that is never there.
    pub(crate) fn start(options: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut keeper = Command::new("sh")
            .args(["-c", SCRIPT, "sh"])
            .args([&folder, &programs()])
            .args(options)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut ready = String::new();
        let output = keeper.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "the server did not start");
        Self {
            folder,
            _keeper: keeper,
        }
    }

    /// Stops the server as if its machine had failed, and starts it again.
    pub(crate) async fn crash(&self) {
        let script = r#"
            as=; [ "$(id -u)" != 0 ] || as="setpriv --reuid postgres --regid postgres --clear-groups"
            exec $as "$2/pg_ctl" -D "$1/data" -m immediate -s -w -l "$1/data/log" restart"#;
        let mut restart = Command::new("sh");
        restart
            .args(["-c", script, "sh"])
            .args([&self.folder, &programs()]);
        let done = tokio::task::spawn_blocking(move || restart.status());
        assert!(done.await.unwrap().unwrap().success());
    }

    /// Address of a database.
    pub(crate) fn target(&self, database: &str, user: &str) -> Target {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        Target::new(&format!("postgres://{user}@{folder}/{database}"), None).unwrap()
    }
}

/// The server that most tests share.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&[]))
}

/// A database of its own on the shared server.
pub(crate) struct Database {
    pub(crate) name: String,
    is_created: OnceLock<()>,
}

impl Database {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        Self {
            name: format!("store_{}", NUMBER.fetch_add(1, Ordering::Relaxed)),
            is_created: OnceLock::new(),
        }
    }

    /// Creates the database the first time.
    pub(crate) async fn create(&self) {
        if self.is_created.set(()).is_ok() {
            run("postgres", &format!("CREATE DATABASE {}", self.name)).await;
        }
    }

    pub(crate) fn target(&self) -> Target {
        cluster().target(&self.name, "forge")
    }
}

/// Carries out a script in a database of the shared server.
pub(crate) async fn run(database: &str, script: &str) {
    let target = cluster().target(database, "forge");
    let mut link = Link::connect(&target).await.unwrap();
    link.run(script).await.unwrap();
}
