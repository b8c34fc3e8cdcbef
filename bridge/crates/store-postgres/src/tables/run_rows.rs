//! Rows of the tables of runs.

use jiff::Timestamp;
use serde_json::value::RawValue;

use forge_base::digest::Digest;
use forge_base::id::RunId;
use forge_store::record::{RunArtifact, RunStatus};

use crate::rows::table::{fields, row};

row! {
    RunRow in "run" {
        id: RunId, status: RunStatus,
        /// Number of events.
        seq: u64,
        artifact_bytes: u64, created_at: Timestamp, ended_at: Option<Timestamp>, expires_at: Option<Timestamp>,
        key: Option<String>, fingerprint: Digest, trace_id: String, taken_over: Option<Box<RawValue>>,
        /// Node that drives it.
        node: String,
    }
}
row! { RunBody { id: RunId, request: Box<RawValue>, projection: Box<RawValue> } }
fields!(RunArtifact { path kind updated_at bytes });
row! { ArtifactRow { id: RunId } artifact: RunArtifact }
