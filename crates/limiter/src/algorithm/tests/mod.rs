//! Every algorithm against a naive oracle: the list of what was admitted, searched from end to end.

mod corrections;
mod oracles;
mod reload;
mod warm_up;

use proptest::prelude::*;

use super::*;
use oracles::{Case, Log, cases};

#[derive(Clone, Copy, Debug)]
struct Step {
    pause: u64,
    cost: u64,
    /// If there is no room it comes again when there is.
    patient: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pause = prop_oneof![3 => Just(0u64), 5 => 0u64..40, 3 => 0u64..400, 1 => 0u64..30_000];
    let cost = prop_oneof![5 => Just(1u64), 2 => 1u64..5, 1 => 1u64..20];
    let step =
        (pause, cost, prop::bool::weighted(0.3)).prop_map(|(pause, cost, patient)| Step { pause, cost, patient });
    prop::collection::vec(step, 1..60)
}

/// How many of cost 1 pass one after another.
fn drained(case: &Case, rate: usize, log: &Log, now: u64, most: u64) -> u64 {
    let mut log = log.clone();
    let mut passed = 0;
    while passed < most && case.fits(rate, &log, 1, now) {
        log.push((now, 1));
        passed += 1;
    }
    passed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6_000))]

    /// Every decision, every instant of room to the nanosecond on both sides, what remains and when that grows; and
    /// forgetting a key whenever it is idle changes none of them.
    #[test]
    fn agrees_with_the_list_of_what_was_admitted(
        case in cases(),
        start in prop_oneof![Just(0u64), 0u64..5_000, Just(1_800_000_000_000_000_007)],
        steps in steps(),
    ) {
        let rule = Rule::new(&case.algorithm, None, None);
        let (mut state, mut forgetful) = (vec![0; rule.words()], vec![0; rule.words()]);
        let (mut log, mut now) = (Log::new(), start);
        for step in steps {
            now += step.pause * case.scale;
            let tick = Tick::from_nanos(now);
            if rule.is_idle(&forgetful, tick) {
                forgetful.fill(0);
            }
            for state in [&mut state, &mut forgetful] {
                rule.advance(state, tick);
            }
            let could_ever = rule.too_costly(step.cost).is_none();
            prop_assert_eq!(could_ever, case.largest().is_none_or(|largest| step.cost <= largest));
            if !could_ever {
                continue;
            }
            let room = rule.room(&state, step.cost, tick);
            let when = |room| match room {
                FitTime::Now => tick,
                FitTime::At { at, .. } => at,
                FitTime::Never { .. } | FitTime::OnRelease { .. } => Tick::MAX,
            };
            let forgotten = rule.room(&forgetful, step.cost, tick);
            if case.forgets_more_strictly() {
                prop_assert!(when(forgotten) >= when(room), "{:?} before {:?}", forgotten, room);
            } else {
                prop_assert_eq!(room, forgotten, "forgotten at {}", now);
            }
            match room {
                FitTime::Now => prop_assert!(case.fits_all(&log, step.cost, now), "{:?} at {}: too much", step, now),
                FitTime::Never { .. } | FitTime::OnRelease { .. } => prop_assert!(false, "{:?} never fits", step),
                FitTime::At { at, rate } => {
                    let at = at.as_nanos();
                    prop_assert!(at > now);
                    prop_assert!(case.fits_all(&log, step.cost, at), "{:?} at {}: refused at {}", step, now, at);
                    prop_assert!(!case.fits_all(&log, step.cost, at - 1), "{:?} at {}: before {}", step, now, at);
                    prop_assert!(!case.fits(rate, &log, step.cost, at - 1), "the rate whose room comes last");
                    if step.patient {
                        now = at;
                    }
                }
            }
            let tick = Tick::from_nanos(now);
            for state in [&mut state, &mut forgetful] {
                rule.advance(state, tick);
            }
            for rate in 0..rule.rates() {
                let standing = rule.standing(&state, rate, tick);
                prop_assert_eq!(standing.remaining, drained(&case, rate, &log, now, 1_000), "rate {} at {}", rate, now);
                if let Some(at) = standing.grows_at.map(Tick::as_nanos) {
                    prop_assert!(at > now);
                    prop_assert_eq!(drained(&case, rate, &log, at - 1, 1_000), standing.remaining, "before {}", at);
                    prop_assert!(drained(&case, rate, &log, at, 1_000) > standing.remaining, "at {}", at);
                } else {
                    let later = drained(&case, rate, &log, now + 1_000_000 * case.scale, 1_000);
                    prop_assert_eq!(later, standing.remaining, "it does not grow");
                }
            }
            if rule.room(&state, step.cost, tick) == FitTime::Now {
                for state in [&mut state, &mut forgetful] {
                    rule.commit(state, step.cost, Moment::at(tick));
                }
                log.push((now, step.cost));
            }
        }
        // In the end it is as good as new.
        let end = Tick::from_nanos(now + 10_000_000 * case.scale);
        prop_assert!(rule.is_idle(&state, end));
        rule.advance(&mut state, end);
        for rate in 0..rule.rates() {
            prop_assert!(rule.standing(&state, rate, end).remaining >= rule.fresh(rate).remaining, "as good as new");
        }
    }

    /// No number that can be configured or sent makes it panic, and time to come back is never in the past.
    #[test]
    fn the_largest_numbers_do_not_wrap(
        algorithm in oracles::extreme(),
        steps in prop::collection::vec((oracles::any_number(), oracles::any_number(), any::<bool>()), 1..20),
    ) {
        let rule = Rule::new(&algorithm, None, None);
        let mut state = vec![0; rule.words()];
        let mut now = 0u64;
        for (pause, cost, regardless) in steps {
            now = now.saturating_add(pause);
            let tick = Tick::from_nanos(now);
            rule.advance(&mut state, tick);
            let room = rule.room(&state, cost.min(rule.largest()), tick);
            if let FitTime::At { at, .. } = room {
                prop_assert!(at > tick || at == Tick::MAX);
            }
            for rate in 0..rule.rates() {
                let _ = rule.standing(&state, rate, tick);
            }
            if regardless || room == FitTime::Now {
                rule.commit(&mut state, cost.min(rule.largest()), Moment::at(tick));
            }
            let _ = (rule.is_idle(&state, tick), rule.recency(&state));
        }
    }
}

/// In UTC.
fn of_calendar(rate: &str) -> Algorithm {
    let rates = [rate.parse().unwrap()];
    Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &sluicegate_time::Zone::utc()).unwrap())
}

#[test]
fn a_window_does_not_open_before_the_one_before_it_is_over() {
    let window = FixedWindow::new(&["1/s".parse().unwrap()], Align::First).unwrap();
    let rule = Rule::new(&Algorithm::FixedWindow(window), None, None);
    let at = |millis| Tick::ZERO + Span::from_millis(millis);
    let mut state = vec![0; rule.words()];
    rule.commit(&mut state, 1, Moment::at(at(0)));
    // Due a little before its room came, as after a reload.
    rule.commit(&mut state, 1, Moment { now: at(1_001), due: at(999), era: 0 });
    assert_eq!(rule.room(&state, 1, at(1_002)), FitTime::At { at: at(2_000), rate: 0 });
}

#[test]
fn a_refusal_says_whether_room_comes_later_for_it() {
    let rates = ["2/s".parse().unwrap()];
    let log = |counts_refused| Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, counts_refused).unwrap());
    let gcra = Algorithm::Gcra(Gcra::new(&rates, None).unwrap());
    let penalty = Penalty::new(2, Span::from_secs(1), Span::from_secs(9)).ok();
    let (nothing, entered, blocked) = (Noted::Nothing, Noted::Entered, Noted::Blocked);
    for (algorithm, penalty, noted) in [
        (&log(true), None, [entered, entered, entered]),
        (&log(false), None, [nothing, nothing, nothing]),
        (&log(true), penalty, [entered, blocked, entered]),
        (&log(false), penalty, [nothing, blocked, nothing]),
        (&gcra, penalty, [nothing, blocked, nothing]),
    ] {
        let rule = Rule::new(algorithm, penalty, None);
        let mut state = vec![0; rule.words()];
        for (millis, noted) in [0, 10, 20].into_iter().zip(noted) {
            let now = Tick::ZERO + Span::from_millis(millis);
            let before = rule.room(&state, 2, now);
            assert_eq!(rule.note_refused(&mut state, 1, now), noted, "{algorithm:?} {penalty:?}");
            assert!(noted != Noted::Nothing || rule.room(&state, 2, now) == before, "{algorithm:?} {penalty:?}");
        }
    }
}

#[test]
fn a_counter_whose_every_nanosecond_weighs_waits_out_two_windows() {
    // More requests than the window has nanoseconds: the last of it weighs one still.
    let counter = SlidingCounter::new(&["2000000/1ms".parse().unwrap()]).unwrap();
    let rule = Rule::new(&Algorithm::SlidingCounter(counter), None, None);
    let at = |micros: u64| Tick::ZERO + Span::from_nanos(micros * 1_000);
    let mut state = vec![0; rule.words()];
    rule.commit(&mut state, 2_000_000, Moment::at(at(0)));
    assert_eq!(rule.room(&state, 2_000_000, at(0)), FitTime::At { at: at(2_000), rate: 0 });
    rule.advance(&mut state, at(1_999));
    assert_eq!(rule.room(&state, 2_000_000, at(1_999)), FitTime::At { at: at(2_000), rate: 0 });
}

#[test]
fn a_key_is_idle_from_the_instant_at_which_nothing_counts_any_more() {
    let rates = ["4/s".parse().unwrap()];
    let span = Span::from_secs;
    let apart = |millis| SlidingLog::new(&rates, Span::from_millis(millis), false).unwrap();
    let millis = |millis| Tick::from_nanos(10_000_000_000_000) + Span::from_millis(millis);
    for (algorithm, until) in [
        (Algorithm::TimerWheel(TimerWheel::new(&rates, Some(10), Bound::Sliding).unwrap()), 1_000),
        (Algorithm::TimerWheel(TimerWheel::new(&rates, Some(10), Bound::Strict).unwrap()), 1_100),
        (Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap()), 250),
        (Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Interval).unwrap()), 1_000),
        (Algorithm::Gcra(Gcra::new(&rates, Some(3)).unwrap()), 250),
        (Algorithm::LeakyBucket(LeakyBucket::new(&rates, None).unwrap()), 250),
        (Algorithm::FixedWindow(FixedWindow::new(&rates, Align::Epoch).unwrap()), 1_000),
        (Algorithm::FixedWindow(FixedWindow::new(&rates, Align::First).unwrap()), 1_000),
        // At 10,000 s it is 02:46:40 of the clock.
        (of_calendar("4/h"), 800_000),
        (of_calendar("4/d"), 76_400_000),
        (Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, None).unwrap()), 1_000),
        (Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()), 2_000),
        (Algorithm::SlidingLog(apart(0)), 1_000),
        (Algorithm::SlidingLog(apart(700)), 1_000),
        (Algorithm::SlidingLog(apart(1_500)), 1_500),
        (Algorithm::SmoothBursty(SmoothBursty::new(&rates, Some(span(2))).unwrap()), 2_250),
    ] {
        let rule = Rule::new(&algorithm, None, None);
        let mut state = vec![0; rule.words()];
        assert!(rule.is_idle(&state, millis(0)), "{algorithm:?}: never seen");
        rule.advance(&mut state, millis(0));
        rule.commit(&mut state, 1, Moment::at(millis(0)));
        let idle = |now| rule.is_idle(&state, now);
        assert_eq!((idle(millis(until) - Span::from_nanos(1)), idle(millis(until))), (false, true), "{algorithm:?}");
    }
}

#[test]
fn all_that_is_in_flight_is_given_back_under_the_era_of_the_first() {
    let rule = Rule::new(&Algorithm::Concurrency(Concurrency::new(3).unwrap()), None, None);
    let mut state = vec![0; rule.words()];
    let at = |secs| Tick::ZERO + Span::from_secs(secs);
    let take = |state: &mut Vec<u64>, era| {
        rule.commit(state, 1, Moment { era, ..Moment::at(at(era)) });
        (rule.era(state), rule.recency(state))
    };
    // A live key is forgotten in between, and so the shard's era has grown.
    let (first, second) = (take(&mut state, 5), take(&mut state, 6));
    assert_eq!((first.0, second.0), (5, 5));
    assert!(first.1 < second.1, "the later one was used more recently");
    rule.release(&mut state, 1, 6);
    assert_eq!(rule.standing(&state, 0, at(7)).remaining, 1, "not what was taken here");
    rule.release(&mut state, 1, first.0);
    rule.release(&mut state, 1, second.0);
    assert_eq!(rule.standing(&state, 0, at(7)).remaining, 3);
    assert_eq!(take(&mut state, 8).0, 8);
    assert!(Concurrency::new(0).is_err() && Concurrency::new(1).is_ok());
}

#[test]
fn a_moment_is_a_slot_or_what_a_timer_may_be_late() {
    let rates: Vec<Rate> = vec!["4/s".parse().unwrap(), "9/2s".parse().unwrap()];
    let one = &rates[..1];
    let fixed = |align| Algorithm::FixedWindow(FixedWindow::new(one, align).unwrap());
    let wheel = |rates: &[Rate]| Algorithm::TimerWheel(TimerWheel::new(rates, Some(1), Bound::Sliding).unwrap());
    let at = |micros: u64| Tick::ZERO + Span::from_nanos(micros * 1_000);
    let (slack, second) = (2_000, 1_000_000);
    for (algorithm, a, b, same) in [
        (wheel(one), second, second + 999_999, true),
        (wheel(one), second, second - 1, false),
        (wheel(&rates), second, second + 999_999, true),
        (wheel(&rates), 0, second, false),
        (fixed(Align::Epoch), second, second + 999_999, true),
        (fixed(Align::Epoch), second, 2 * second, false),
        (of_calendar("4/h"), second, 3_599 * second, true),
        (of_calendar("4/h"), second, 3_600 * second, false),
        (fixed(Align::First), second, second + slack, true),
        (fixed(Align::First), second, second + slack + 1, false),
        (fixed(Align::First), second, second - 1, false),
        (Algorithm::Gcra(Gcra::new(one, None).unwrap()), second, second + slack, true),
        (Algorithm::Gcra(Gcra::new(one, None).unwrap()), second, second - 1, false),
        (Algorithm::Concurrency(Concurrency::new(1).unwrap()), 0, 9 * second, true),
    ] {
        let rule = Rule::new(&algorithm, None, None);
        assert_eq!(rule.same_moment(at(a), at(b)), same, "{algorithm:?} {a} {b}");
    }
}

#[test]
fn the_largest_cost_fits_a_new_key_and_one_more_never_does() {
    let rates = ["40/s".parse().unwrap()];
    for algorithm in [
        Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap()),
        Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Interval).unwrap()),
        Algorithm::Gcra(Gcra::new(&rates, Some(3)).unwrap()),
        Algorithm::LeakyBucket(LeakyBucket::new(&rates, None).unwrap()),
        Algorithm::FixedWindow(FixedWindow::new(&rates, Align::First).unwrap()),
        of_calendar("40/month"),
        Algorithm::SlidingWindow(SlidingWindow::new(&rates, None, None).unwrap()),
        Algorithm::SlidingCounter(SlidingCounter::new(&rates).unwrap()),
        Algorithm::SlidingLog(SlidingLog::new(&rates, Span::ZERO, false).unwrap()),
        Algorithm::SmoothBursty(SmoothBursty::new(&rates, None).unwrap()),
        Algorithm::WarmUp(WarmUp::new(&rates, Span::from_secs(1), None).unwrap()),
        Algorithm::Concurrency(Concurrency::new(7).unwrap()),
    ] {
        let rule = Rule::new(&algorithm, None, None);
        let (state, largest) = (vec![0; rule.words()], rule.largest());
        assert_eq!(rule.room(&state, largest, Tick::ZERO), FitTime::Now, "{algorithm:?}");
        assert_eq!(rule.room(&state, largest + 1, Tick::ZERO), FitTime::Never { rate: 0 }, "{algorithm:?}");
        assert_eq!((rule.too_costly(largest), rule.too_costly(largest + 1)), (None, Some(0)), "{algorithm:?}");
    }
}
