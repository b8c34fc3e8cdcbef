//! PostgreSQL servers for tests: each is a cluster in a temporary folder, with a socket there and no port. It ends with the
//! process of the tests, however that ends, and its folder with it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by panicking"
)]

use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Folder of the server's programs: that of the newest version which a package has installed.
pub fn programs() -> PathBuf {
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
const KEEP: &str = include_str!("cluster.sh");
const CONTROL: &str = r#"
    as=; [ "$(id -u)" != 0 ] || as="setpriv --reuid postgres --regid postgres --clear-groups"
    exec $as "$2/pg_ctl" -D "$1/data" -m immediate -s -w -l "$1/data/log" "$3"
"#;

pub struct Cluster {
    pub folder: PathBuf,
    /// The server ends when the input of this process does.
    _keeper: Child,
}

impl Cluster {
    /// Starts a server with these options; with `hot_standby=on`, one that follows a primary that is never there.
    pub fn start(options: &[&str]) -> Self {
        Self::start_with(options, None)
    }

    /// Starts a server with the database `postgres` on a disk of this size, which needs the right to mount; `small_disk` says
    /// where. Without that right, it has none.
    pub fn start_on_small_disk(size: &str) -> Self {
        let server = Self::start_with(&[], Some(size));
        if let Some(disk) = server.small_disk() {
            let place = format!("CREATE TABLESPACE small LOCATION '{}'", disk.display());
            server.run("template1", &place);
            server.run("template1", "ALTER DATABASE postgres SET TABLESPACE small");
        }
        server
    }

    /// Folder on the small disk of the database `postgres`, if it could be mounted.
    pub fn small_disk(&self) -> Option<PathBuf> {
        Some(self.folder.join("small")).filter(|disk| disk.exists())
    }

    fn start_with(options: &[&str], small_disk: Option<&str>) -> Self {
        let folder = tempfile::tempdir().unwrap().keep();
        let mut keeper = Command::new("sh")
            .args(["-c", KEEP, "sh"])
            .args([&folder, &programs()])
            .args(options)
            .env("SMALL_DISK", small_disk.unwrap_or_default())
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

    /// Stops the server as if its machine had failed. Blocks.
    pub fn stop(&self) {
        self.control("stop");
    }

    /// Starts the server again with its options; one that runs is stopped first, as by `stop`. Blocks.
    pub fn restart(&self) {
        self.control("restart");
    }

    /// Stops the server as if its machine had failed, and promotes a standby with the same data in its place. Blocks.
    pub fn fail_over(&self) {
        self.stop();
        self.promote();
    }

    /// Stops another server as if its machine had failed, and promotes this one in its place, which is stopped: as a standby
    /// that has received everything. The other one can come back by `restart`. Blocks.
    pub fn fail_over_from(&self, other: &Self) {
        const COPY: &str = r#"
            mv "$1/data/postmaster.opts" "$1/opts" && rm -rf "$1/data" && cp -a "$2/data" "$1/data" &&
              rm -f "$1/data/postmaster.pid" && mv "$1/opts" "$1/data/postmaster.opts"
        "#;
        other.stop();
        let done = Command::new("sh")
            .args(["-c", COPY, "sh"])
            .args([&self.folder, &other.folder])
            .status();
        assert!(done.unwrap().success());
        self.promote();
    }

    fn promote(&self) {
        std::fs::write(self.folder.join("data/standby.signal"), "").unwrap();
        self.restart();
        self.control("promote");
    }

    /// Freezes the server, or lets it continue: connections stay, new ones are taken by the kernel, and nothing answers.
    pub fn set_frozen(&self, is_frozen: bool) {
        const FREEZE: &str = r#"
            read -r postmaster <"$1/data/postmaster.pid"
            kill "$2" "$postmaster" $(cat "/proc/$postmaster/task/$postmaster/children")
        "#;
        let signal = if is_frozen { "-STOP" } else { "-CONT" };
        let done = Command::new("sh")
            .args(["-c", FREEZE, "sh"])
            .arg(&self.folder)
            .arg(signal)
            .status();
        assert!(done.unwrap().success());
    }

    /// Keeps the data as they are now, for `fail_over_to_kept`. The server is stopped for it. Blocks.
    pub fn keep(&self) {
        self.stop();
        self.copy("data", "kept");
        self.restart();
    }

    /// As `fail_over`, to a standby that has received nothing since `keep`. Blocks.
    pub fn fail_over_to_kept(&self) {
        self.stop();
        self.copy("kept", "data");
        self.promote();
    }

    fn copy(&self, from: &str, to: &str) {
        let script = r#"rm -rf "$1/$3" && cp -a "$1/$2" "$1/$3""#;
        let done = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&self.folder)
            .args([from, to])
            .status();
        assert!(done.unwrap().success());
    }

    /// Shell command that does the same as `restart`.
    pub fn restart_command(&self) -> String {
        let (folder, programs) = (self.folder.display(), programs());
        let programs = programs.display();
        format!("set -- {folder} {programs} restart\n{CONTROL}")
    }

    fn control(&self, action: &str) {
        let done = Command::new("sh")
            .args(["-c", CONTROL, "sh"])
            .args([&self.folder, &programs()])
            .arg(action)
            .status();
        assert!(done.unwrap().success(), "pg_ctl {action} failed");
    }

    /// Address of a database.
    pub fn url(&self, database: &str, user: &str) -> String {
        let folder = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://{user}@{folder}/{database}")
    }

    /// Carries out a script in a database; returns the rows of its last statement, one a line. Blocks.
    pub fn run(&self, database: &str, script: &str) -> String {
        let done = Command::new(programs().join("psql"))
            .args(["-XAtq", "-v", "ON_ERROR_STOP=1", "-U", "forge", "-h"])
            .arg(&self.folder)
            .args(["-d", database, "-c", script])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{script}: {errors}");
        String::from_utf8(done.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }
}

/// The server that most tests of a process share.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::start(&[]))
}
