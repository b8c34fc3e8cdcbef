//! Retraction of the text of interrupted attempts. The output of a dispatch is that of its last attempt, so a reader
//! of the log is told that the text before it does not count.

use forge_plugin_host::Permit;
use forge_store::record::{EventFilter, Lease};
use forge_store::roles::EventLog;
use jiff::Timestamp;
use serde_json::json;

use forge_base::event::kind;

use super::event_batcher::EventBatcher;

/// Capability of adapters that continue an interrupted attempt without repeating its text.
const CONTINUES: &str = "continuation";
/// Events read at a time.
const PAGE: usize = 1000;

/// Retracts the text of the attempt before this one, if there is any. With `resumes`, the adapter was given the session
/// of that attempt: one that continues it keeps its text.
pub(super) async fn of_earlier_attempt(
    log: &dyn EventLog,
    lease: &Lease,
    adapter: &Permit,
    resumes: bool,
    now: Timestamp,
    batcher: &mut EventBatcher,
) {
    let continues = || {
        adapter
            .profile()
            .is_some_and(|profile| profile.supports(CONTINUES))
    };
    if resumes && continues() {
        return;
    }
    let earlier = lease.attempt - 1;
    if has_text(log, lease, earlier).await {
        batcher.note(kind::RETRACTED, &json!({ "attempt": earlier }), now);
    }
}

/// Looks for text of an attempt in the log. A log that cannot be read counts as one that has some.
async fn has_text(log: &dyn EventLog, lease: &Lease, attempt: u32) -> bool {
    let filter = EventFilter {
        dispatch: Some(lease.id),
        ..EventFilter::default()
    };
    let mut after = 0;
    loop {
        let Ok(page) = log.events(&filter, after, PAGE).await else {
            return true;
        };
        let is_text = |kind: &str| kind == kind::TEXT || kind == kind::THINKING;
        let mut events = page.events.iter();
        if events.any(|event| event.attempt == attempt && is_text(&event.kind)) {
            return true;
        }
        if !page.more {
            return false;
        }
        after = page.scanned;
    }
}
