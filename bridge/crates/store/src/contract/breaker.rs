//! Open breakers: kept across a restart, replaced, deleted, bounded.

use super::Subject;
use super::sample::at;
use crate::Store;
use crate::destination::{MAX_BREAKERS, OpenBreaker};

fn open(origin: &str, until: i64) -> OpenBreaker {
    OpenBreaker {
        origin: origin.to_owned(),
        opened_at: at(1),
        until: at(until),
        times: 2,
        reason: "answered 503".to_owned(),
    }
}

async fn kept(store: &dyn Store) -> Vec<OpenBreaker> {
    let mut kept = store.open_breakers().await.unwrap();
    kept.sort_by(|a, b| a.origin.cmp(&b.origin));
    kept
}

pub async fn what_is_open_survives_a_restart_until_it_closes(subject: impl Subject) {
    let store = subject.open().await;
    assert_eq!(kept(&*store).await, []);
    let all = vec![
        open("https://a.example:443", 10),
        open("https://b.example:443", 20),
    ];
    store.keep_breakers(all.clone(), vec![]).await.unwrap();
    let store = subject.open().await;
    assert_eq!(kept(&*store).await, all);

    let again = open("https://b.example:443", 80);
    let closed = vec![
        "https://a.example:443".to_owned(),
        "https://c.example:443".to_owned(),
    ];
    store
        .keep_breakers(vec![again.clone()], closed)
        .await
        .unwrap();
    let store = subject.open().await;
    assert_eq!(kept(&*store).await, [again]);
}

pub async fn the_longest_waits_are_kept_when_there_are_too_many(subject: impl Subject) {
    let store = subject.open().await;
    let number = |n: usize| open(&format!("https://{n:05}.example:443"), 10 + n as i64);
    let all = (0..MAX_BREAKERS + 10).map(number).collect();
    store.keep_breakers(all, vec![]).await.unwrap();
    let kept = kept(&*store).await;
    assert_eq!(kept.len(), MAX_BREAKERS);
    assert_eq!(
        (kept.first(), kept.last()),
        (Some(&number(10)), Some(&number(MAX_BREAKERS + 9)))
    );
}
