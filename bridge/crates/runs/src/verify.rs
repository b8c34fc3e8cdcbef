//! Check of a run: its stored state against the fold of its log.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use forge_base::id::RunId;
use forge_store::record::EventFilter;

use crate::event::{Entry, Event};
use crate::request::RunRequest;
use crate::{Error, Runs};

const PAGE: usize = 1024;
/// Differences that are reported.
const MAX_DIFFERENCES: usize = 100;

/// Result of a check.
#[derive(Debug, Serialize)]
pub struct Verified {
    pub ok: bool,
    /// Number of events that were folded.
    pub seq: u64,
    /// JSON pointers into the state, and gaps of the log.
    pub differences: Vec<String>,
}

impl Runs {
    /// Folds the log of a run and compares the result with what is stored.
    pub async fn verify(&self, id: RunId) -> Result<Verified, Error> {
        let store = &self.0.store;
        let record = store.run(id).await?.ok_or(Error::NotFound(id))?;
        let request = RunRequest::stored(&record)?;
        let mut state = request.first_state(record.created_at);
        let filter = EventFilter {
            run: Some(id),
            ..EventFilter::default()
        };
        let (mut after, mut seq) = (0, 0);
        let mut differences = Vec::new();
        while seq < record.seq {
            let page = store.events(&filter, after, PAGE).await?;
            for event in &page.events {
                if seq == record.seq {
                    break;
                }
                seq += 1;
                if event.seq != seq {
                    differences.push(format!("event {seq} has the number {}", event.seq));
                }
                let data = event.data.as_ref().map(|data| data.get());
                match Event::read(&event.kind, data) {
                    Some(folded) => {
                        state.fold(&Entry {
                            at: event.timestamp,
                            attempt: event.attempt,
                            event: folded,
                        });
                    }
                    None => differences
                        .push(format!("event {seq} has the unknown type {:?}", event.kind)),
                }
            }
            after = page.scanned;
            if !page.more && page.events.is_empty() {
                break;
            }
        }
        if seq != record.seq {
            differences.push(format!("{seq} of {} events are in the log", record.seq));
        }
        let stored: Value = serde_json::from_str(record.projection.get()).unwrap_or(Value::Null);
        compare(
            "",
            &stored,
            &serde_json::to_value(&state).unwrap_or(Value::Null),
            &mut differences,
        );
        differences.truncate(MAX_DIFFERENCES);
        Ok(Verified {
            ok: differences.is_empty(),
            seq,
            differences,
        })
    }
}

/// Adds the places where two values differ.
fn compare(at: &str, stored: &Value, folded: &Value, differences: &mut Vec<String>) {
    match (stored, folded) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for name in names {
                let [left, right] =
                    [one, other].map(|object| object.get(name).unwrap_or(&Value::Null));
                compare(&format!("{at}/{name}"), left, right, differences);
            }
        }
        (one, other) if one == other => {}
        (_, _) => differences.push(at.to_owned()),
    }
}
