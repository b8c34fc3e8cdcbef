//! The nodes that share the store.

use async_trait::async_trait;

use forge_store::Result;
use forge_store::node::{Node, NodeRecord};
use forge_store::roles::Nodes;

use crate::Postgres;
use crate::engine::keeper::{NODES, record};

#[async_trait]
impl Nodes for Postgres {
    fn node(&self) -> &Node {
        &self.published.node
    }

    async fn nodes(&self) -> Result<Vec<NodeRecord>> {
        self.all(NODES, Vec::new(), record).await
    }
}
