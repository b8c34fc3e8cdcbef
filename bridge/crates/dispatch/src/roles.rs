//! Roles of the store that the pipeline uses.

use std::sync::Arc;

use forge_store::roles::{
    Accept, Approvals, EventLog, Executions, Nodes, Outbox, Queue, Records, Store,
};

/// One store, by its roles. Cheap to clone.
#[derive(Clone)]
pub struct Roles {
    pub(crate) accept: Arc<dyn Accept>,
    pub(crate) queue: Arc<dyn Queue>,
    pub(crate) approvals: Arc<dyn Approvals>,
    pub(crate) executions: Arc<dyn Executions>,
    pub(crate) events: Arc<dyn EventLog>,
    pub(crate) outbox: Arc<dyn Outbox>,
    pub(crate) nodes: Arc<dyn Nodes>,
    pub(crate) records: Arc<dyn Records>,
}

impl From<Arc<dyn Store>> for Roles {
    fn from(store: Arc<dyn Store>) -> Self {
        Self {
            accept: Arc::clone(&store) as Arc<dyn Accept>,
            queue: Arc::clone(&store) as Arc<dyn Queue>,
            approvals: Arc::clone(&store) as Arc<dyn Approvals>,
            executions: Arc::clone(&store) as Arc<dyn Executions>,
            events: Arc::clone(&store) as Arc<dyn EventLog>,
            outbox: Arc::clone(&store) as Arc<dyn Outbox>,
            nodes: Arc::clone(&store) as Arc<dyn Nodes>,
            records: store,
        }
    }
}
