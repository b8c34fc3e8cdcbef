//! Events outside executions, as the receiver of the registry gets them.

use forge_adapter_api::AdapterEvent;

/// An event outside any execution: `adapter.event`, `adapter.health`, `events.dropped`.
#[derive(Debug, Clone, PartialEq)]
pub struct Relayed {
    pub provider: String,
    pub event: AdapterEvent,
}
