//! Databases for bridges of the tests.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forge_test_postgres::cluster;

/// A new database on the shared server: its name, and the URL for `store.url`.
pub(crate) fn database() -> (String, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("bridge_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    cluster().run("postgres", &format!("CREATE DATABASE {name}"));
    let url = cluster().url(&name, "forge");
    (name, url)
}

/// True if `FORGE_STORE=postgres` moves all tests to PostgreSQL.
pub(crate) fn is_database() -> bool {
    std::env::var_os("FORGE_STORE").is_some_and(|kind| kind == "postgres")
}

/// URL of the database of this home, if tests are moved to PostgreSQL. A file there keeps it for the
/// next bridge.
pub(super) fn from_environment(home: &Path) -> Option<String> {
    if !is_database() {
        return None;
    }
    let file = home.join("database.url");
    let url = std::fs::read_to_string(&file).unwrap_or_else(|_| {
        let (name, url) = database();
        drop_databases_without_home();
        homes().push((name, home.to_owned()));
        std::fs::write(&file, &url).unwrap();
        url
    });
    Some(url)
}

/// Databases, and the homes that they belong to.
fn homes() -> MutexGuard<'static, Vec<(String, PathBuf)>> {
    static HOMES: Mutex<Vec<(String, PathBuf)>> = Mutex::new(Vec::new());
    HOMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Drops the databases of tests that have ended, since those of all tests would fill the disk.
fn drop_databases_without_home() {
    let ended: Vec<_> = homes().extract_if(.., |(_, home)| !home.exists()).collect();
    for (name, _) in ended {
        cluster().run("postgres", &format!("DROP DATABASE {name} WITH (FORCE)"));
    }
}
