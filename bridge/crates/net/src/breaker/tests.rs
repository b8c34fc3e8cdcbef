//! Tests of `breaker`.

use proptest::prelude::*;

use super::*;

fn at(seconds: u64) -> Timestamp {
    time::after(
        Timestamp::UNIX_EPOCH,
        Duration::from_secs(1_000_000 + seconds),
    )
}

fn fail(breaker: &mut Breaker, count: u32, seconds: u64) -> Option<Change> {
    let config = Config::default();
    let failed = (0..count).map(|_| {
        let turn = breaker.turn();
        breaker.report(Health::Down, turn, at(seconds), &config)
    });
    failed.last().flatten()
}

fn word(breaker: &Breaker) -> &'static str {
    match breaker.phase() {
        Phase::Closed => "closed",
        Phase::Open(_) => "open",
        Phase::HalfOpen(..) => "half open",
    }
}

#[test]
fn it_opens_when_enough_outcomes_in_the_window_failed() {
    // Seconds, number of up and of down outcomes.
    type Outcomes = [(u64, u32, u32)];
    let cases: [(&Outcomes, &str); 8] = [
        (&[(0, 0, 9)], "closed"),
        (&[(0, 0, 10)], "open"),
        (&[(0, 3, 6), (1, 0, 1)], "open"),
        (&[(0, 4, 6)], "closed"),
        (&[(0, 1000, 0), (1, 0, 100)], "closed"),
        (&[(0, 1000, 0), (70, 0, 10)], "open"),
        (&[(0, 0, 9), (70, 0, 9)], "closed"),
        (&[(0, 0, 5), (20, 0, 3), (40, 0, 2)], "open"),
    ];
    for (steps, expected) in cases {
        let config = Config::default();
        let mut breaker = Breaker::closed();
        for (seconds, up, down) in steps {
            for (sign, count) in [(Health::Up, *up), (Health::Down, *down)] {
                for _ in 0..count {
                    let turn = breaker.turn();
                    breaker.report(sign, turn, at(*seconds), &config);
                }
            }
        }
        assert_eq!(word(&breaker), expected, "{steps:?}");
    }
}

#[test]
fn each_failed_probe_doubles_the_wait_up_to_its_longest_and_three_good_ones_close_it() {
    let config = Config::default();
    let mut breaker = Breaker::closed();
    fail(&mut breaker, 10, 0);
    let mut now = 0;
    for (times, wait) in [(1, 30), (2, 60), (3, 120), (4, 240), (5, 300), (6, 300)] {
        let until = at(now + wait);
        let trip = Trip {
            opened_at: at(0),
            until,
            times,
        };
        assert_eq!(breaker.phase(), Phase::Open(trip));
        breaker.pass(at(now + wait - 1));
        assert_eq!(breaker.room(32, &config), 0);
        now += wait;
        breaker.pass(at(now));
        assert_eq!(
            (word(&breaker), breaker.room(32, &config)),
            ("half open", 3)
        );
        assert_eq!(breaker.room(2, &config), 2);
        if times < 6 {
            fail(&mut breaker, 1, now);
        }
    }
    let turn = breaker.turn();
    for expected in [None, None, Some(Change::Closed)] {
        let change = breaker.report(Health::Up, turn, at(now), &config);
        assert_eq!(change, expected);
    }
    assert_eq!((word(&breaker), breaker.room(32, &config)), ("closed", 32));
    assert_eq!(fail(&mut breaker, 9, now), None, "the past is forgotten");
}

#[test]
fn an_attempt_of_an_earlier_turn_says_nothing() {
    let config = Config::default();
    let mut breaker = Breaker::closed();
    let early = breaker.turn();
    fail(&mut breaker, 10, 0);
    breaker.pass(at(30));
    for sign in [Health::Up, Health::Down, Health::Up, Health::Up] {
        assert_eq!(breaker.report(sign, early, at(31), &config), None);
    }
    assert_eq!(word(&breaker), "half open");
}

#[test]
fn what_was_stored_goes_on_and_a_wait_of_another_clock_is_cut() {
    let config = Config::default();
    let trip = |until| Trip {
        opened_at: at(0),
        until: at(until),
        times: 3,
    };
    for (until, expected) in [(50, 50), (120, 120), (300, 120), (1_000_000, 120)] {
        let breaker = Breaker::restored(trip(until), at(0), &config);
        assert_eq!(breaker.phase(), Phase::Open(trip(expected)));
    }
}

#[test]
fn a_wait_is_not_longer_after_the_clock_was_set_back() {
    let mut breaker = Breaker::closed();
    fail(&mut breaker, 10, 3_600);
    // An hour back.
    breaker.pass(at(1));
    assert!(matches!(breaker.phase(), Phase::Open(trip) if trip.until == at(31)));
    breaker.pass(at(30));
    assert_eq!(word(&breaker), "open");
    breaker.pass(at(31));
    assert_eq!(word(&breaker), "half open");
}

#[test]
fn every_status_says_whether_the_receiver_works() {
    for status in 100..=999 {
        let down = status == 429 || status >= 500;
        let expected = if down { Health::Down } else { Health::Up };
        assert_eq!(Health::of_status(status), expected, "{status}");
    }
}

#[test]
fn a_ratio_is_a_part_of_one() {
    for (text, fits) in [
        ("0.5", true),
        ("1", true),
        ("0", false),
        ("1.5", false),
        ("-1", false),
    ] {
        let config = format!(r#"{{"failure_ratio": {text}}}"#);
        assert_eq!(
            serde_json::from_str::<Config>(&config).is_ok(),
            fits,
            "{text}"
        );
    }
}

proptest! {
    #[test]
    fn it_never_blocks_for_longer_than_the_longest_wait(
        steps in proptest::collection::vec((any::<bool>(), 0_u64..400), 0..200)
    ) {
        let config = Config::default();
        let mut breaker = Breaker::closed();
        let mut now = 0;
        for (up, pause) in steps {
            now += pause;
            breaker.pass(at(now));
            let sign = if up { Health::Up } else { Health::Down };
            let turn = breaker.turn();
            breaker.report(sign, turn, at(now), &config);
            let mut later = breaker.clone();
            later.pass(at(now + 300));
            prop_assert!(later.room(32, &config) > 0);
        }
    }
}
