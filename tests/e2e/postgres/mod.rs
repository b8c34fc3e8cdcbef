//! Bridges whose store is a PostgreSQL database, on a real server.

mod check;
mod copy;
mod crowd;
mod faults;
mod fleet;
mod keys;
mod nodes;
mod outage;
mod refusals;
mod signals;
mod work;

use super::harness::process::Home;
use super::harness::store::database;

/// A home whose bridge keeps its record in a new database, and the name of that.
fn home(variables: &[(&str, &str)]) -> (Home, String) {
    let (name, url) = database();
    let mut home = Home::new(variables);
    home.set("BRIDGE_STORE", &url);
    (home, name)
}
