//! Reasons why a store cannot be opened, each with its remedy.

use crate::engine::link::LinkError;
use crate::lineage::Elsewhere;

/// Reason why the store cannot be opened. `database` names hosts and database. Nothing was changed then.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot connect to the database {database}: {reason}")]
    Connect { database: String, reason: String },
    #[error(
        "the server of {database} is older than PostgreSQL 14 (it reports {version}); use a newer one"
    )]
    TooOld { database: String, version: i64 },
    #[error(
        "{database} is a standby, which cannot be written; name the primary, or all hosts with target_session_attrs=read-write"
    )]
    Standby { database: String },
    #[error("{database} can lose what was committed: {setting}; set it to {wanted}")]
    NotDurable {
        database: String,
        setting: String,
        wanted: &'static str,
    },
    #[error("{database} has the encoding {encoding}; create it with UTF8")]
    Encoding { database: String, encoding: String },
    #[error(
        "{database} was written by a newer forge-bridge (version {version}, this one supports up to {known}); use that version"
    )]
    Newer {
        database: String,
        version: i64,
        known: i64,
    },
    #[error(
        "a copy of a store into {database} is not complete; run `forge-bridge store copy` again, until it says so"
    )]
    Copying { database: String },
    #[error("there is no store in {database}")]
    Missing { database: String },
    #[error(
        "the store in {database} is a copy: {elsewhere}; run `forge-bridge store adopt` to make it a store of its own"
    )]
    Elsewhere {
        database: String,
        elsewhere: Elsewhere,
    },
    #[error(
        "the tables in {database} must be changed to version {version}, on which the node {node} cannot work; stop it, or update it first"
    )]
    ShutsOut {
        database: String,
        version: i64,
        node: String,
    },
    #[error("the tables in {database} cannot be changed to version {version}: {reason}")]
    Step {
        database: String,
        version: i64,
        reason: String,
    },
    #[error("cannot create the tables in {database}: {reason}")]
    Create { database: String, reason: String },
    #[error("the server of {database} makes or removes no database for the trial: {reason}")]
    Trial { database: String, reason: String },
    #[error("cannot read the store in {database}: {reason}")]
    Read { database: String, reason: String },
}

impl OpenError {
    pub(crate) fn create(database: &str, error: &LinkError) -> Self {
        Self::Create {
            database: database.to_owned(),
            reason: error.to_string(),
        }
    }
}
