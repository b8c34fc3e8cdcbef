//! An adapter's instance outside a bridge, and its table.

use forge_adapter_api::{Config, ExecutionAdapter, Host};
use serde_json::Value;

/// Initializes an adapter with this table, on a detached host.
pub async fn initialize<A: ExecutionAdapter>(table: Value) -> A {
    let config = Config::try_from(table).unwrap();
    A::initialize(Host::detached(), config).await.unwrap()
}

/// Adds members to a table, in place of those with the same names.
pub fn with_members(mut table: Value, members: &Value) -> Value {
    let members = members.as_object().unwrap().clone();
    table.as_object_mut().unwrap().extend(members);
    table
}
