//! Lists and their pages, and named secrets.

use super::Subject;
use super::sample::{PROVIDER, accept, at, begin, failed, ok, run, settlement, task};
use crate::record::{
    AfterAttempt, DeliveryFilter, DeliveryState, DispatchFilter, Finish, NewDispatch, Spending,
    Status,
};
use crate::sealed::{Place, Resealed};

pub async fn dispatches_are_listed_newest_first_in_pages(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(accept(&*store, task(&n.to_string())).await);
    }
    ids.reverse();
    let mut filter = DispatchFilter {
        limit: 2,
        ..DispatchFilter::default()
    };
    let mut seen = Vec::new();
    for expected in [2, 2, 1] {
        let page = store.dispatches(filter.clone()).await.unwrap();
        assert_eq!(page.items.len(), expected);
        seen.extend(page.items.iter().map(|dispatch| dispatch.id));
        filter.before = page.next;
    }
    assert_eq!(filter.before, None);
    assert_eq!(seen, ids);
}

pub async fn a_list_of_dispatches_is_filtered(subject: impl Subject) {
    let store = subject.open().await;
    run(&*store, task("ok"), ok(2)).await;
    let (_, delivery) = run(&*store, task("error"), failed("timeout", 2)).await;
    let dead = settlement(1, 5, AfterAttempt::Dead);
    store.settle(delivery.unwrap(), dead).await.unwrap();
    let running = NewDispatch {
        run_id: Some("run".to_owned()),
        accepted_at: at(10),
        ..task("running")
    };
    let running = accept(&*store, running).await;
    begin(&*store, running, 11).await;
    let queued = NewDispatch {
        run_id: Some("run".to_owned()),
        agent_id: "other".to_owned(),
        provider: "other".to_owned(),
        accepted_at: at(20),
        ..task("queued")
    };
    accept(&*store, queued).await;
    let text = |text: &str| Some(text.to_owned());
    let any = || DispatchFilter {
        limit: 10,
        ..DispatchFilter::default()
    };
    for (filter, expected) in [
        (any(), vec!["queued", "running", "error", "ok"]),
        (
            DispatchFilter {
                status: Some(Status::Ok),
                ..any()
            },
            vec!["ok"],
        ),
        (
            DispatchFilter {
                status: Some(Status::Finished),
                ..any()
            },
            vec!["error", "ok"],
        ),
        (
            DispatchFilter {
                status: Some(Status::Error),
                ..any()
            },
            vec!["error"],
        ),
        (
            DispatchFilter {
                status: Some(Status::Running),
                ..any()
            },
            vec!["running"],
        ),
        (
            DispatchFilter {
                status: Some(Status::Queued),
                ..any()
            },
            vec!["queued"],
        ),
        (
            DispatchFilter {
                provider: text("other"),
                ..any()
            },
            vec!["queued"],
        ),
        (
            DispatchFilter {
                agent_id: text("agent"),
                ..any()
            },
            vec!["running", "error", "ok"],
        ),
        (
            DispatchFilter {
                run_id: text("run"),
                ..any()
            },
            vec!["queued", "running"],
        ),
        (
            DispatchFilter {
                run_id: text("run"),
                status: Some(Status::Running),
                ..any()
            },
            vec!["running"],
        ),
        (
            DispatchFilter {
                task_prefix: text("o"),
                ..any()
            },
            vec!["ok"],
        ),
        (
            DispatchFilter {
                task_prefix: text("r%"),
                ..any()
            },
            vec![],
        ),
        (
            DispatchFilter {
                delivery: Some(DeliveryState::Dead),
                ..any()
            },
            vec!["error"],
        ),
        (
            DispatchFilter {
                delivery: Some(DeliveryState::Pending),
                ..any()
            },
            vec!["ok"],
        ),
        (
            DispatchFilter {
                run_id: text("none"),
                ..any()
            },
            vec![],
        ),
        (
            DispatchFilter {
                since: Some(at(10)),
                ..any()
            },
            vec!["queued", "running"],
        ),
        (
            DispatchFilter {
                since: Some(at(21)),
                ..any()
            },
            vec![],
        ),
    ] {
        let page = store.dispatches(filter.clone()).await.unwrap();
        let seen: Vec<_> = page.items.iter().map(|d| d.task_id.as_str()).collect();
        assert_eq!(seen, expected, "{filter:?}");
        assert!(page.next.is_none());
        assert!(page.items.iter().all(|dispatch| dispatch.result.is_none()));
        for dispatch in page.items {
            let expected = match dispatch.task_id.as_str() {
                "ok" => Some(DeliveryState::Pending),
                "error" => Some(DeliveryState::Dead),
                _ => None,
            };
            assert_eq!(dispatch.delivery, expected, "{}", dispatch.task_id);
        }
    }
}

pub async fn usage_is_added_up_by_property(subject: impl Subject) {
    const DAY: i64 = 24 * 3600;
    let store = subject.open().await;
    let spending = |model: Option<&str>, cost_micros| Spending {
        model: model.map(str::to_owned),
        tokens_in: Some(10),
        tokens_out: None,
        cost_micros,
    };
    let other = || NewDispatch {
        agent_id: "other".to_owned(),
        ..task("other")
    };
    for (new, seconds, code, spending) in [
        (task("before"), 1, None, Some(spending(Some("m"), Some(1)))),
        (task("one"), 5, None, Some(spending(Some("m"), Some(20)))),
        (task("unknown"), 6, None, None),
        (
            task("two"),
            DAY + 1,
            Some("timeout"),
            Some(spending(None, None)),
        ),
        (other(), DAY + 2, None, Some(spending(Some("m"), Some(300)))),
    ] {
        let finish = Finish {
            error_code: code.map(str::to_owned),
            spending,
            ..ok(seconds)
        };
        run(&*store, new, finish).await;
    }
    let store = subject.open().await;
    let sums = store.spending(at(5)).await.unwrap();
    for (sums, expected) in [
        (
            sums.by_day,
            vec![
                (Some("2027-01-15"), 1, 0, 20, 0),
                (Some("2027-01-16"), 2, 1, 300, 1),
            ],
        ),
        (sums.by_adapter, vec![(Some(PROVIDER), 3, 1, 320, 1)]),
        (
            sums.by_agent,
            vec![(Some("agent"), 2, 1, 20, 1), (Some("other"), 1, 0, 300, 0)],
        ),
        (
            sums.by_model,
            vec![(None, 1, 1, 0, 1), (Some("m"), 2, 0, 320, 0)],
        ),
    ] {
        assert_eq!(sums.left_out, None);
        let found = sums.values.iter().map(|(value, sum)| {
            assert_eq!(sum.tokens_in, 10 * sum.signals);
            (
                value.as_deref(),
                sum.signals,
                sum.errors,
                sum.cost_micros,
                sum.unpriced,
            )
        });
        assert_eq!(Vec::from_iter(found), expected);
    }
    let all = DispatchFilter {
        limit: 10,
        ..DispatchFilter::default()
    };
    let page = store.dispatches(all).await.unwrap();
    let costs = page.items.into_iter().map(|dispatch| {
        let spending = dispatch.spending?;
        Some(spending.cost_micros)
    });
    assert_eq!(
        Vec::from_iter(costs),
        [
            Some(Some(300)),
            Some(None),
            None,
            Some(Some(20)),
            Some(Some(1))
        ]
    );
}

pub async fn deliveries_are_listed_newest_first_and_filtered(subject: impl Subject) {
    let store = subject.open().await;
    let mut ids = Vec::new();
    for n in 0..3 {
        let (_, delivery) = run(&*store, task(&n.to_string()), ok(n)).await;
        ids.push(delivery.unwrap());
    }
    let dead = settlement(1, 5, AfterAttempt::Dead);
    store.settle(ids[1], dead).await.unwrap();
    let any = || DeliveryFilter {
        limit: 10,
        ..DeliveryFilter::default()
    };
    let host = |host: &str| Some(host.to_owned());
    for (filter, expected) in [
        (any(), vec![2, 1, 0]),
        (
            DeliveryFilter {
                status: Some(DeliveryState::Dead),
                ..any()
            },
            vec![1],
        ),
        (
            DeliveryFilter {
                status: Some(DeliveryState::Pending),
                ..any()
            },
            vec![2, 0],
        ),
        (
            DeliveryFilter {
                host: host("a.example"),
                ..any()
            },
            vec![2, 1, 0],
        ),
        (
            DeliveryFilter {
                host: host("a.example:443"),
                ..any()
            },
            vec![2, 1, 0],
        ),
        (
            DeliveryFilter {
                host: host("a.example:80"),
                ..any()
            },
            vec![],
        ),
        (
            DeliveryFilter {
                host: host("example"),
                ..any()
            },
            vec![],
        ),
        (
            DeliveryFilter {
                since: Some(at(1)),
                ..any()
            },
            vec![2, 1],
        ),
    ] {
        let page = store.deliveries(filter.clone()).await.unwrap();
        let seen: Vec<_> = page.items.iter().map(|delivery| delivery.id).collect();
        let expected: Vec<_> = expected
            .into_iter()
            .map(|place: usize| ids[place])
            .collect();
        assert_eq!(seen, expected, "{filter:?}");
        for delivery in &page.items {
            let last: Vec<_> = delivery.attempts.iter().map(|last| last.number).collect();
            let expected: Vec<_> = (delivery.attempt_count > 0)
                .then_some(delivery.attempt_count)
                .into_iter()
                .collect();
            assert_eq!(last, expected, "the last attempt alone");
            assert!(delivery.attempts.iter().all(|last| last.answer.is_none()));
        }
    }
    let two = DeliveryFilter { limit: 2, ..any() };
    let first = store.deliveries(two.clone()).await.unwrap();
    assert_eq!(first.items.len(), 2);
    let rest = DeliveryFilter {
        before: first.next,
        ..two
    };
    let rest = store.deliveries(rest).await.unwrap();
    assert_eq!((rest.items[0].id, rest.next), (ids[0], None));
}

pub async fn a_sealed_value_is_written_once(subject: impl Subject) {
    let store = subject.open().await;
    assert_eq!(store.sealed("secret").await.unwrap(), None);
    let first = store.seal_once("secret", b"one".to_vec()).await.unwrap();
    let second = store.seal_once("secret", b"two".to_vec()).await.unwrap();
    assert_eq!(
        (first.as_slice(), second.as_slice()),
        (&b"one"[..], &b"one"[..])
    );
    let store = subject.open().await;
    let kept = store.sealed("secret").await.unwrap();
    assert_eq!(kept.as_deref(), Some(&b"one"[..]));
}

pub async fn what_is_sealed_is_found_and_resealed(subject: impl Subject) {
    let store = subject.open().await;
    store.seal_once("name", b"one".to_vec()).await.unwrap();
    let mut places = vec![Place::Named("name".to_owned())];
    for n in 0..5 {
        let plain = NewDispatch {
            secrets: None,
            ..task(&format!("plain {n}"))
        };
        accept(&*store, plain).await;
        places.push(Place::Dispatch(accept(&*store, task(&n.to_string())).await));
    }
    let (mut found, mut after) = (Vec::new(), Some(0));
    while let Some(from) = after {
        let page = store.sealed_page(from, 4).await.unwrap();
        assert!(page.items.len() <= 4 + 1, "a page is bounded");
        found.extend(page.items);
        after = page.next;
    }
    let found_places: Vec<_> = found.iter().map(|sealed| sealed.place.clone()).collect();
    assert_eq!(found_places, places);
    let change = |place: &Place, from: &[u8]| Resealed {
        place: place.clone(),
        from: from.to_vec(),
        to: b"resealed".to_vec(),
    };
    let changes = vec![
        change(&places[0], b"one"),
        change(&places[1], b"sealed"),
        change(&places[2], b"something else"),
    ];
    assert_eq!(store.reseal(changes).await.unwrap(), 2);
    let store = subject.open().await;
    let page = store.sealed_page(0, 100).await.unwrap();
    let bytes: Vec<_> = page
        .items
        .iter()
        .map(|sealed| sealed.bytes.as_slice())
        .collect();
    let (to, from) = (&b"resealed"[..], &b"sealed"[..]);
    assert_eq!(bytes, [to, to, from, from, from, from]);
}
