//! Sessions of both APIs: their ids and events, and those that a start reads.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;

use forge_base::event::NewEvent;
use forge_store::record::{SignalSession, SignalSource};
use forge_store::roles::Signals;

use crate::money::dollars;

/// Time that a signal waits for the store.
pub(crate) const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Sessions read per step.
const PAGE: usize = 250;

/// Hands over the sessions of a source with a signal since a time, step by step: all at once take more memory than what
/// is kept of them.
pub(crate) async fn recent(
    store: &dyn Signals,
    source: SignalSource,
    since: Timestamp,
    mut restore: impl FnMut(SignalSession),
) -> forge_store::Result<()> {
    let mut after = None;
    loop {
        let page = store
            .recent_signal_sessions(source, since, after, PAGE)
            .await?;
        let is_last = page.len() < PAGE;
        after = page.last().map(|session| session.id.clone());
        page.into_iter().for_each(&mut restore);
        if is_last {
            return Ok(());
        }
    }
}

pub(crate) fn new_id() -> String {
    format!("sess_{}", Uuid::now_v7().simple())
}

pub(crate) fn session_event(
    kind: &'static str,
    session: &SignalSession,
    at: Timestamp,
) -> NewEvent {
    let totals = &session.totals;
    NewEvent::new(kind, at).with(&json!({
        "sessionId": session.id, "clientSessionId": session.client_session_id, "adapter": session.adapter,
        "userId": session.user_id,
        "totals": {
            "signalCount": totals.signals, "errorCount": totals.errors, "totalTokensIn": totals.tokens_in,
            "totalTokensOut": totals.tokens_out, "totalCostUsd": dollars(totals.cost_micros),
        },
    }))
}
