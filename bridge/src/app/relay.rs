//! Recording of adapter events that belong to no execution.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::mpsc;

use forge_base::event::{NewEvent, kind};
use forge_dispatch::Dispatcher;
use forge_plugin_host::Relayed;
use forge_store::roles::EventLog;

/// Maximum number of events written in one batch.
const RELAY_BATCH: usize = 128;

/// Task that records adapter events outside executions.
pub(super) struct Relay {
    pub(super) store: Arc<dyn EventLog>,
    pub(super) dispatcher: Dispatcher,
}

impl Relay {
    pub(super) async fn run(self, mut relayed: mpsc::Receiver<Relayed>) {
        let mut batch = Vec::with_capacity(RELAY_BATCH);
        while relayed.recv_many(&mut batch, RELAY_BATCH).await > 0 {
            let mut by_provider: BTreeMap<String, Vec<NewEvent>> = BTreeMap::new();
            for Relayed { provider, event } in batch.drain(..) {
                if event.kind == kind::ADAPTER_HEALTH {
                    // An adapter that is back online might have queued dispatches.
                    self.dispatcher.wake();
                }
                let new = NewEvent::new(event.kind, Timestamp::now());
                let new = match event.data {
                    Some(data) => new.with(&data),
                    None => new,
                };
                by_provider.entry(provider).or_default().push(new);
            }
            for (provider, events) in by_provider {
                if let Err(error) = self.store.append_unbound(&provider, events).await {
                    tracing::warn!(
                        adapter.id = provider,
                        "events of {provider} are lost: {error}"
                    );
                }
            }
        }
    }
}
