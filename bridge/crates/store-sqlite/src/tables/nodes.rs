//! The node: the store belongs to one process.

use async_trait::async_trait;

use forge_store::node::Node;
use forge_store::roles::Nodes;

use crate::Sqlite;

#[async_trait]
impl Nodes for Sqlite {
    fn node(&self) -> &Node {
        &self.node
    }
}
