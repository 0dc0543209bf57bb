//! Cost that is given back: examples of each algorithm, and all of them against the list of what requests have really
//! cost.

use super::*;
use crate::MAX_RATES;

/// Commits that may be corrected, of one key.
struct Key {
    rule: Rule,
    state: Vec<u64>,
    /// The cost that was given back, as the ledger of a shard has it.
    given: u64,
}

#[derive(Clone, Copy, Debug)]
struct Held {
    at: Tick,
    cost: u64,
    words: [[u64; 2]; MAX_RATES],
    given: u64,
}

impl Key {
    fn new(algorithm: &Algorithm) -> Self {
        let rule = Rule::new(algorithm, None, None);
        Self { state: vec![0; rule.words()], rule, given: 0 }
    }

    fn fits(&mut self, cost: u64, now: Tick) -> bool {
        self.rule.advance(&mut self.state, now);
        self.rule.room(&self.state, cost, now) == FitTime::Now
    }

    fn take(&mut self, cost: u64, now: Tick) -> Held {
        self.take_due(cost, Moment::at(now))
    }

    fn take_due(&mut self, cost: u64, moment: Moment) -> Held {
        self.rule.advance(&mut self.state, moment.now);
        self.rule.commit(&mut self.state, cost, moment);
        Held { at: moment.now, cost, words: self.rule.first_words(&self.state), given: self.given }
    }

    fn correct(&mut self, held: Held, real: u64, now: Tick) {
        self.rule.advance(&mut self.state, now);
        let Some(back) = held.cost.checked_sub(real) else {
            return self.rule.commit(&mut self.state, real - held.cost, Moment::at(now));
        };
        let taken =
            held.words.map(|words| CommitFacts { at: held.at, words, given: self.given - held.given, is_about: false });
        self.rule.give_back(&mut self.state, back, taken.into_iter(), now);
        self.given += back;
    }

    /// How many of cost 1 pass one after another.
    fn left(&self, now: Tick) -> u64 {
        let mut copy = Self { rule: self.rule.clone(), state: self.state.clone(), given: 0 };
        (0..100)
            .take_while(|_| {
                let fits = copy.fits(1, now);
                if fits {
                    copy.take(1, now);
                }
                fits
            })
            .count() as u64
    }

    /// When the next one of cost 1 passes.
    fn next(&self, now: Tick) -> Tick {
        self.next_of(1, now)
    }

    fn next_of(&self, cost: u64, now: Tick) -> Tick {
        let mut state = self.state.clone();
        self.rule.advance(&mut state, now);
        match self.rule.room(&state, cost, now) {
            FitTime::At { at, .. } => at,
            _ => now,
        }
    }
}

fn at(millis: u64) -> Tick {
    Tick::from_nanos(1_000_000_000_000) + Span::from_millis(millis)
}

fn rate(text: &str) -> Vec<Rate> {
    vec![text.parse().unwrap()]
}

fn bucket(text: &str, burst: u64, refill: Refill) -> Algorithm {
    Algorithm::TokenBucket(TokenBucket::new(&rate(text), Some(burst), refill).unwrap())
}

fn gcra(text: &str, burst: u64) -> Algorithm {
    Algorithm::Gcra(Gcra::new(&rate(text), Some(burst)).unwrap())
}

fn wheel(text: &str, bound: Bound) -> Algorithm {
    Algorithm::TimerWheel(TimerWheel::new(&rate(text), None, bound).unwrap())
}

fn fixed(text: &str, align: Align) -> Algorithm {
    Algorithm::FixedWindow(FixedWindow::new(&rate(text), align).unwrap())
}

fn log(text: &str, min_difference: Span) -> Algorithm {
    Algorithm::SlidingLog(SlidingLog::new(&rate(text), min_difference, false).unwrap())
}

#[test]
fn a_wheel_gives_back_to_the_slot_of_the_commit_while_that_counts() {
    for bound in [Bound::Sliding, Bound::Strict] {
        let mut key = Key::new(&wheel("10/s", bound));
        let early = key.take(6, at(50));
        let late = key.take(3, at(450));
        assert_eq!(key.left(at(500)), 1);
        key.correct(early, 2, at(500));
        assert_eq!(key.left(at(500)), 5);
        key.correct(late, 0, at(500));
        assert_eq!(key.left(at(500)), 8, "what early has cost still counts");
        assert_eq!(key.left(at(1_100)), 10, "and leaves with its slot");
        let gone = key.take(10, at(2_000));
        key.take(7, at(3_200));
        key.correct(gone, 0, at(3_200));
        assert_eq!(key.left(at(3_200)), 3, "its slot has left");
    }
}

#[test]
fn a_lane_that_is_full_to_its_brim_gives_nothing_back() {
    let mut key = Key::new(&fixed("200/h", Align::Epoch));
    let held = key.take(100, at(0));
    let large = key.take(100, at(0));
    // A lane holds 255: 200 more are counted as 55.
    key.correct(large, 300, at(1));
    key.correct(held, 0, at(2));
    assert_eq!(key.left(at(2)), 0, "300 were really taken");
}

#[test]
fn a_sub_window_has_room_again_under_its_own_cap() {
    let mut key = Key::new(&Algorithm::SlidingWindow(SlidingWindow::new(&rate("20/10s"), Some(10), None).unwrap()));
    let held = key.take(4, at(0));
    assert_eq!(key.left(at(1)), 0, "four in one sub-window");
    key.correct(held, 1, at(2));
    assert_eq!(key.left(at(2)), 3);
}

#[test]
fn a_counter_gives_back_to_the_window_before_too() {
    let mut key = Key::new(&Algorithm::SlidingCounter(SlidingCounter::new(&rate("10/s")).unwrap()));
    let held = key.take(8, at(0));
    assert_eq!(key.left(at(1_500)), 6, "half of the window before weighs 4");
    key.correct(held, 2, at(1_500));
    assert_eq!(key.left(at(1_500)), 9);
    key.correct(held, 0, at(2_000));
    assert_eq!(key.left(at(2_000)), 10);
}

#[test]
fn a_fixed_window_gives_back_only_while_it_is_that_of_the_commit() {
    for align in [Align::Epoch, Align::First] {
        let mut key = Key::new(&fixed("10/s", align));
        let (first, second) = (key.take(6, at(0)), key.take(4, at(1)));
        key.correct(first, 1, at(999));
        assert_eq!(key.left(at(999)), 5, "{align:?}");
        key.take(5, at(1_000));
        key.correct(second, 0, at(1_001));
        assert_eq!(key.left(at(1_001)), 5, "{align:?}: another window");
    }
}

#[test]
fn a_window_that_is_given_back_whole_has_not_been_opened() {
    let mut key = Key::new(&fixed("10/s", Align::First));
    let held = key.take(10, at(0));
    key.correct(held, 0, at(300));
    key.take(10, at(600));
    assert_eq!(key.next(at(700)), at(1_600));
    // One that is over is not touched, so that the next one does not open before its end.
    let mut key = Key::new(&fixed("10/s", Align::First));
    let held = key.take(10, at(0));
    key.correct(held, 0, at(1_001));
    key.take_due(1, Moment { now: at(1_001), due: at(999), era: 0 });
    assert_eq!(key.left(at(1_999)), 9, "opened at 1000, not at 999");
    assert_eq!(key.left(at(2_000)), 10);
    // Nor is one that came to nothing forgotten altogether.
    let held = key.take(1, at(2_001));
    key.correct(held, 0, at(2_002));
    key.take_due(1, Moment { now: at(2_003), due: at(1_999), era: 0 });
    assert_eq!(key.left(at(3_000)), 9, "opened at 2001, not at 1999");
}

#[test]
fn an_instant_moves_back_by_what_was_not_used() {
    for algorithm in [gcra("1/s", 10), bucket("1/s", 10, Refill::Greedy)] {
        let mut key = Key::new(&algorithm);
        let held = key.take(10, at(0));
        assert_eq!(key.left(at(0)), 0);
        key.correct(held, 3, at(0));
        assert_eq!(key.left(at(0)), 7);
        assert_eq!(key.left(at(2_999)), 9);
        assert_eq!(key.left(at(3_000)), 10);
    }
}

#[test]
fn what_time_has_worked_off_is_not_given_back_again() {
    let mut key = Key::new(&gcra("1/s", 10));
    let held = key.take(5, at(0));
    key.take(1, at(3_000));
    // Had the first cost 1 at once, the second would have found the burst whole: 1 second of it is used, less half of one.
    key.correct(held, 1, at(3_500));
    assert_eq!(key.next(at(3_500)), at(3_500));
    assert_eq!(key.left(at(3_500)), 9);
    let mut alone = Key::new(&gcra("1/s", 10));
    alone.take(1, at(0));
    alone.take(1, at(3_000));
    assert_eq!(alone.left(at(3_500)), 9);
    assert_eq!(alone.left(at(4_000)), 10);
    assert_eq!(key.left(at(4_499)), 9, "half a second stricter");
    assert_eq!(key.left(at(4_500)), 10);
}

#[test]
fn what_an_earlier_request_got_back_is_not_given_to_a_later_one_as_well() {
    let mut key = Key::new(&gcra("1/s", 20));
    let (first, second) = (key.take(10, at(0)), key.take(5, at(0)));
    key.correct(first, 0, at(1_000));
    assert_eq!(key.next(at(1_000)), at(1_000));
    key.take(3, at(5_500));
    key.correct(second, 0, at(5_500));
    // The three were let in at 5.5 s, when nothing else was taken: until 8.5 s. Stricter by half a second, not by less.
    assert_eq!(key.left(at(5_500)), 16);
    assert_eq!(key.left(at(6_000)), 17);
}

#[test]
fn an_interval_bucket_gets_no_token_twice() {
    let mut key = Key::new(&bucket("2/s", 10, Refill::Interval));
    let held = key.take(10, at(0));
    assert_eq!(key.left(at(4_000)), 8);
    key.take(8, at(4_000));
    key.correct(held, 0, at(4_000));
    assert_eq!(key.left(at(4_000)), 2, "eight of the ten are back already");
    assert_eq!(key.left(at(5_000)), 4, "its periods stay where they are");
    let mut key = Key::new(&bucket("2/s", 10, Refill::Interval));
    let held = key.take(7, at(0));
    key.correct(held, 3, at(1_500));
    assert_eq!(key.left(at(1_500)), 9, "three less the two that came back");
    assert_eq!(key.left(at(2_000)), 10);
}

#[test]
fn an_interval_bucket_gives_nothing_of_what_others_had_back_already() {
    let mut key = Key::new(&bucket("2/s", 10, Refill::Interval));
    let (first, second) = (key.take(5, at(0)), key.take(3, at(0)));
    key.correct(first, 0, at(500));
    assert_eq!(key.left(at(500)), 7);
    // Two periods have brought back what the second still misses: these five are another's.
    key.take(5, at(2_000));
    key.correct(second, 0, at(2_000));
    assert_eq!(key.left(at(2_000)), 5);
}

#[test]
fn stamps_of_its_very_instant_are_taken_out_and_no_others() {
    let mut key = Key::new(&log("10/s", Span::ZERO));
    key.take(2, at(0));
    let held = key.take(5, at(100));
    key.take(3, at(200));
    key.correct(held, 1, at(300));
    assert_eq!(key.left(at(300)), 4);
    for (millis, left) in [(999, 4), (1_000, 6), (1_099, 6), (1_100, 7), (1_199, 7), (1_200, 10)] {
        assert_eq!(key.left(at(millis)), left, "{millis}");
    }
    let full = key.take(10, at(2_000));
    key.correct(full, 4, at(2_999));
    assert_eq!(key.left(at(2_999)), 6);
    let late = key.take(6, at(2_999));
    key.correct(late, 6, at(3_000));
    key.correct(full, 0, at(3_000));
    assert_eq!(key.left(at(3_000)), 4, "they have left");
}

#[test]
fn stamps_that_were_written_over_are_not_taken_out_again() {
    let mut key = Key::new(&log("5/s", Span::ZERO));
    let held = key.take(3, at(0));
    let other = key.take(2, at(500));
    // Two more without room: two stamps of the first request are lost.
    key.correct(other, 4, at(600));
    key.correct(held, 2, at(700));
    assert_eq!(key.left(at(700)), 0, "2 and 4 are more than 5");
    assert_eq!(key.left(at(1_000)), 1);
    // Once somebody finds room it is forgotten.
    let next = key.take(1, at(1_000));
    key.correct(next, 0, at(1_001));
    assert_eq!(key.left(at(1_001)), 1);
}

#[test]
fn who_has_cost_nothing_keeps_nobody_at_a_distance() {
    let apart = Span::from_millis(1_500);
    let mut key = Key::new(&log("5/s", apart));
    key.take(1, at(0));
    let held = key.take(2, at(1_600));
    assert_eq!(key.next(at(1_600)), at(3_100));
    key.correct(held, 0, at(1_700));
    assert_eq!(key.next(at(1_700)), at(1_700));
    // Its stamps have left, but their distance is kept until it is known that they cost nothing.
    let mut key = Key::new(&log("5/s", apart));
    let held = key.take(5, at(0));
    assert_eq!(key.next(at(1_200)), at(1_500));
    key.correct(held, 0, at(1_200));
    assert_eq!(key.next(at(1_200)), at(1_200));
}

#[test]
fn a_leaky_bucket_makes_the_next_one_wait_for_the_real_cost() {
    let mut key = Key::new(&Algorithm::LeakyBucket(LeakyBucket::new(&rate("1/s"), None).unwrap()));
    let held = key.take(8, at(0));
    assert_eq!(key.next(at(0)), at(8_000));
    key.correct(held, 3, at(1_000));
    assert_eq!(key.next(at(1_000)), at(3_000));
    let held = key.take(8, at(3_000));
    key.correct(held, 1, at(5_000));
    assert_eq!(key.next(at(5_000)), at(5_000), "not before now");
}

#[test]
fn savings_that_were_not_needed_are_saved_again() {
    let smooth = |seconds| {
        let span = Some(Span::from_secs(seconds));
        Key::new(&Algorithm::SmoothBursty(SmoothBursty::new(&rate("1/s"), span).unwrap()))
    };
    let mut key = smooth(5);
    key.take(1, at(0));
    let held = key.take(4, at(6_000));
    assert_eq!(key.left(at(6_000)), 2, "one of five is left, and its turn");
    key.correct(held, 1, at(6_000));
    assert_eq!(key.left(at(6_000)), 5);
    let mut key = smooth(5);
    key.take(1, at(0));
    let held = key.take(9, at(6_000));
    assert_eq!(key.next(at(6_000)), at(10_000));
    key.correct(held, 2, at(6_500));
    assert_eq!(key.left(at(6_500)), 4, "three and a half saved, and its turn");
}

#[test]
fn a_warm_key_gets_nothing_back() {
    let warm_up = WarmUp::new(&rate("2/s"), Span::from_secs(4), None).unwrap();
    let mut key = Key::new(&Algorithm::WarmUp(warm_up));
    let held = key.take(5, at(0));
    let before = key.next(at(1));
    key.correct(held, 1, at(1));
    assert_eq!(key.next(at(1)), before);
    let more = key.take(1, before);
    let next = key.next(before);
    key.correct(more, 2, before);
    assert!(key.next(before) > next, "but what is missing is counted");
}

/// Windows that open, one for each rate, by the requests in it: it is open while what has come in it has cost anything.
struct Windows(Vec<OpenWindow>);

struct OpenWindow {
    limit: u64,
    length: u64,
    from: u64,
    /// Places in the log.
    entries: Vec<usize>,
}

impl Windows {
    fn of(case: &Case) -> Self {
        let window = |(limit, length)| OpenWindow { limit, length, from: 0, entries: Vec::new() };
        Self(case.windows().into_iter().map(window).collect())
    }

    fn fits(&self, log: &Log, cost: u64, now: u64) -> bool {
        self.0.iter().all(|window| window.count(log, now) + cost <= window.limit)
    }

    /// One more entry of the log.
    fn push(&mut self, log: &Log, now: u64) {
        for window in &mut self.0 {
            if window.count(log, now) == 0 {
                (window.from, window.entries) = (now, Vec::new());
            }
            window.entries.push(log.len() - 1);
        }
    }
}

impl OpenWindow {
    fn count(&self, log: &Log, now: u64) -> u64 {
        let entries = if now < self.from + self.length { self.entries.as_slice() } else { &[] };
        entries.iter().map(|entry| log[*entry].1).sum()
    }
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request that asks for so much.
    Ask(u64),
    /// The real cost of one that is held, by its place among them.
    Correct(usize, u64),
    /// The key is forgotten if it is idle.
    Forget,
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let pause = prop_oneof![3 => Just(0u64), 5 => 0u64..40, 3 => 0u64..400, 1 => 0u64..3_000];
    let cost = || prop_oneof![3 => Just(1u64), 4 => 1u64..8, 1 => 1u64..20];
    let real = prop_oneof![3 => Just(0u64), 4 => 0u64..4, 1 => 0u64..16];
    let event = prop_oneof![
        6 => cost().prop_map(Event::Ask),
        5 => (any::<prop::sample::Index>(), real).prop_map(|(which, real)| Event::Correct(which.index(64), real)),
        1 => Just(Event::Forget),
    ];
    prop::collection::vec((pause, event), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Whatever is admitted would be admitted by the list of what the requests before it have really cost: each at its own
    /// time, and what it cost more when that became known.
    #[test]
    fn nobody_is_admitted_whom_real_costs_keep_out(
        case in prop_oneof![7 => cases(), 1 => oracles::wheels()],
        start in prop_oneof![Just(1u64), 0u64..5_000, Just(1_800_000_000_000_000_007)],
        events in events(),
    ) {
        let mut key = Key::new(&case.algorithm);
        let (mut log, mut now) = (Log::new(), start);
        let mut windows = Windows::of(&case);
        let (mut held, mut overdrawn) = (Vec::<(Held, usize)>::new(), false);
        for (pause, event) in events {
            now += pause * case.scale;
            let tick = Tick::from_nanos(now);
            match event {
                Event::Ask(cost) if key.rule.too_costly(cost).is_none() => {
                    let fits = key.fits(cost, tick);
                    let should = case.fits_by_real_costs(&log, cost, now) && windows.fits(&log, cost, now);
                    prop_assert!(!fits || should, "{} at {} of {:?}", cost, now, log);
                    if case.corrects_exactly() && !overdrawn {
                        prop_assert_eq!(fits, should, "{} at {} of {:?}", cost, now, log);
                    }
                    if fits {
                        held.push((key.take(cost, tick), log.len()));
                        log.push((now, cost));
                        windows.push(&log, now);
                    }
                }
                Event::Correct(which, real) if !held.is_empty() => {
                    let (taken, entry) = held.remove(which % held.len());
                    overdrawn |= real > taken.cost && !key.fits(real - taken.cost, tick);
                    key.correct(taken, real, tick);
                    if real > taken.cost {
                        log.push((now, real - taken.cost));
                        windows.push(&log, now);
                    } else {
                        log[entry].1 = real;
                    }
                }
                Event::Forget if key.rule.is_idle(&key.state, tick) => key.state.fill(0),
                _ => {}
            }
        }
    }

    /// If it is known before anybody else comes, it is as if it had been known at once.
    #[test]
    fn corrected_before_anybody_else_comes_it_is_as_if_it_had_cost_that_at_once(
        case in prop_oneof![7 => cases(), 1 => oracles::wheels()],
        before in prop::collection::vec((0u64..300, 1u64..6), 0..8),
        (estimate, real) in (1u64..20, 0u64..20),
        (took, later) in (0u64..400, prop::collection::vec(0u64..200, 1..6)),
    ) {
        let (mut key, mut now) = (Key::new(&case.algorithm), 7_000_000_000u64);
        for (pause, cost) in before {
            now += pause * case.scale;
            if key.rule.too_costly(cost).is_none() && key.fits(cost, Tick::from_nanos(now)) {
                key.take(cost, Tick::from_nanos(now));
            }
        }
        let estimate = estimate.min(key.rule.largest());
        now = key.next_of(estimate, Tick::from_nanos(now)).as_nanos();
        let (tick, real) = (Tick::from_nanos(now), real.min(estimate));
        prop_assert!(key.fits(estimate, tick));
        let mut other = Key { rule: key.rule.clone(), state: key.state.clone(), given: 0 };
        let held = key.take(estimate, tick);
        other.take(real, tick);
        now += took * case.scale;
        key.correct(held, real, Tick::from_nanos(now));
        for pause in later {
            now += pause * case.scale;
            let tick = Tick::from_nanos(now);
            let mut rooms = [&mut key, &mut other].map(|key| {
                key.rule.advance(&mut key.state, tick);
                (1..=key.rule.largest().min(30)).map(|cost| key.rule.room(&key.state, cost, tick)).collect::<Vec<_>>()
            });
            prop_assert_eq!(std::mem::take(&mut rooms[0]), std::mem::take(&mut rooms[1]), "at {}", now);
            if key.fits(1, tick) {
                key.take(1, tick);
                other.take(1, tick);
            }
        }
    }

    /// Nothing that can be configured or stated makes giving back panic, and it never makes room scarcer.
    #[test]
    fn the_largest_corrections_do_not_wrap(
        algorithm in oracles::extreme(),
        steps in prop::collection::vec((oracles::any_number(), oracles::any_number(), oracles::any_number()), 1..20),
    ) {
        let (mut key, mut now) = (Key::new(&algorithm), 0u64);
        let mut held = Vec::new();
        for (pause, cost, real) in steps {
            now = now.saturating_add(pause);
            let tick = Tick::from_nanos(now);
            let cost = cost.min(key.rule.largest());
            held.push((key.take(cost, tick), real));
            if pause % 2 == 1 {
                let (taken, real) = held.remove((real % held.len() as u64) as usize);
                let next = key.next(tick);
                let real = real.min(taken.cost);
                key.correct(taken, real, tick);
                prop_assert!(key.next(tick) <= next, "{:?} back to {}", taken, real);
            }
        }
    }
}
