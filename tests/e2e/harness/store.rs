//! Databases for bridges of the tests.

use std::sync::atomic::{AtomicU32, Ordering};

use forge_test_postgres::cluster;

/// A new database on the shared server: its name, and the URL for `store.url`.
pub(crate) fn database() -> (String, String) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("bridge_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    cluster().run("postgres", &format!("CREATE DATABASE {name}"));
    let url = cluster().url(&name, "forge");
    (name, url)
}

/// URL of a new database, if `FORGE_STORE=postgres` moves all tests to PostgreSQL.
pub(super) fn from_environment() -> Option<String> {
    let is_database = std::env::var_os("FORGE_STORE").is_some_and(|kind| kind == "postgres");
    is_database.then(|| database().1)
}
