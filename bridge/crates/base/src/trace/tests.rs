//! Tests of `trace`.

use super::*;

fn context() -> TraceContext {
    TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap()
}

fn span(name: &'static str) -> Span {
    Span::new(
        context(),
        None,
        name,
        Timestamp::UNIX_EPOCH,
        Timestamp::UNIX_EPOCH,
    )
}

#[test]
fn a_header_is_read_and_written() {
    for header in [
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000001-0000000000000001-00",
    ] {
        assert_eq!(TraceContext::parse(header).unwrap().to_string(), header);
    }
    assert!(context().is_sampled());
}

#[test]
fn stages_have_spans_of_their_own_that_are_the_same_again() {
    let stages = [
        Stage::Execute(1),
        Stage::Execute(2),
        Stage::Deliver(7, 1),
        Stage::Deliver(7, 2),
        Stage::Deliver(8, 1),
    ];
    let spans = stages.map(|stage| context().stage(stage).span);
    assert_eq!(spans, stages.map(|stage| context().stage(stage).span));
    let distinct: std::collections::BTreeSet<_> = spans.into_iter().collect();
    assert_eq!(distinct.len(), stages.len());
    assert!(!distinct.contains(&context().span));
}

#[test]
fn what_finds_no_room_is_counted() {
    let (spans, mut waiting) = Spans::bounded(2 * (SPAN_BYTES + 10), 1.0);
    for name in ["one", "two", "three"] {
        spans.put(span(name));
    }
    let load = spans.load().unwrap();
    assert_eq!(load.dropped.get(), 1);
    let mut taken = Vec::new();
    waiting.take_rest(&mut taken, 10);
    assert_eq!(taken.len(), 2);
    assert_eq!(load.bytes(), 0);
    spans.put(span("again"));
    assert_eq!(load.dropped.get(), 1);
}

#[test]
fn nothing_is_recorded_that_the_caller_does_not_want_recorded() {
    let (spans, _waiting) = Spans::bounded(1000, 1.0);
    let quiet = TraceContext {
        flags: 0,
        ..context()
    };
    assert_eq!(spans.wanted(|| Some(quiet)), None);
    assert_eq!(spans.wanted(|| Some(context())), Some(context()));
    assert_eq!(Spans::default().wanted(|| Some(context())), None);
}

#[test]
fn about_the_share_of_traces_that_begin_here_is_recorded() {
    for (share, expected) in [(0.0, 0..=0), (0.1, 850..=1150), (1.0, 10_000..=10_000)] {
        let (spans, _waiting) = Spans::bounded(1000, share);
        let unsampled = (0..10_000).map(|_| spans.unsampled(|| Some(TraceContext::start())));
        let kept = unsampled.filter(Option::is_none).count();
        assert!(expected.contains(&kept), "{share}: {kept}");
    }
    let other = Spans::default().unsampled(|| Some(context()));
    assert_eq!(other, None, "not decided without an exporter");
}

#[test]
fn texts_are_cut() {
    let span = span("s").text("a", "ü".repeat(1000)).failed(Some("code"));
    assert!(span.size() < 700, "{}", span.size());
}
