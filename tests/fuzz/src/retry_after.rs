//! `Retry-After` values of a receiver or an endpoint.

use std::time::{Duration, SystemTime};

use forge_adapter_transport::fuzzing;
use forge_delivery::verdict::{Outcome, Series, Verdict, decide_retry};
use forge_net::backoff::{self, Policy};
use jiff::Timestamp;
use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};

const DAY: Duration = Duration::from_secs(86_400);

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let now = Timestamp::from_second(1_800_000_000).unwrap();
    if let Some(wait) = backoff::retry_after(&text, now) {
        assert!(wait <= DAY);
    }
    let outcome = Outcome::Answered {
        status: 503,
        retry_after: Some(text.into_owned()),
    };
    let series = Series {
        attempt: 1,
        since: now,
        policy: Policy::Default,
    };
    match decide_retry(&outcome, series, now, 0.5) {
        Verdict::Retry { due } => {
            assert!(due > now && due.duration_since(now) <= DAY.try_into().unwrap());
        }
        other => panic!("{other:?}"),
    }
    if let Ok(value) = HeaderValue::from_bytes(data) {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, value)]);
        fuzzing::retry_after(
            &headers,
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        );
    }
}
