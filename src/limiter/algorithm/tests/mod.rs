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
                Room::Now => tick,
                Room::At { at, .. } => at,
                Room::Never { .. } | Room::OnRelease { .. } => Tick::MAX,
            };
            let forgotten = rule.room(&forgetful, step.cost, tick);
            if case.forgets_more_strictly() {
                prop_assert!(when(forgotten) >= when(room), "{:?} before {:?}", forgotten, room);
            } else {
                prop_assert_eq!(room, forgotten, "forgotten at {}", now);
            }
            match room {
                Room::Now => prop_assert!(case.fits_all(&log, step.cost, now), "{:?} at {}: too much", step, now),
                Room::Never { .. } | Room::OnRelease { .. } => prop_assert!(false, "{:?} never fits", step),
                Room::At { at, rate } => {
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
            if rule.room(&state, step.cost, tick) == Room::Now {
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
            if let Room::At { at, .. } = room {
                prop_assert!(at > tick || at == Tick::MAX);
            }
            for rate in 0..rule.rates() {
                let _ = rule.standing(&state, rate, tick);
            }
            if regardless || room == Room::Now {
                rule.commit(&mut state, cost.min(rule.largest()), Moment::at(tick));
            }
            let _ = (rule.is_idle(&state, tick), rule.recency(&state));
        }
    }
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
    assert_eq!(rule.room(&state, 1, at(1_002)), Room::At { at: at(2_000), rate: 0 });
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
