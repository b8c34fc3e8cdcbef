//! Rules files: any bytes are rules or problems with a message, and rules judge a record.

use forge_base::json;
use forge_signals::{Offline, Record, Rules, Teams};
use jiff::Timestamp;

const RECORD: &[u8] =
    br#"{"adapter": "a", "ts": 0, "model": "m", "tokens_in": 1, "user_id": "u", "cost_usd": 1}"#;

/// Input: a rules file.
pub(crate) fn run(data: &[u8]) {
    match Rules::read(data) {
        Ok(rules) => {
            let record = Record::read(&json::parse(RECORD).unwrap()).unwrap();
            let mut offline = Offline::new(rules, Teams::new());
            let first = offline
                .judge(&record, "s", Timestamp::UNIX_EPOCH)
                .is_blocked();
            let second = offline
                .judge(&record, "s", Timestamp::MAX)
                .decided
                .is_some();
            std::hint::black_box((first, second));
        }
        Err(problems) => assert!(problems.iter().all(|one| !one.message.is_empty())),
    }
}
