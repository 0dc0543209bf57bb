use proptest::prelude::*;

use super::*;

/// Guava's code, in floating point and nanoseconds.
struct Guava {
    interval: f64,
    threshold: f64,
    max: f64,
    slope: f64,
    cool_down: f64,
    stored: f64,
    next: f64,
}

impl Guava {
    fn new(rate: Rate, warm_up: Span, factor: u32) -> Self {
        let interval = rate.window().as_nanos() as f64 / rate.limit() as f64;
        let (period, cold) = (warm_up.as_nanos() as f64, interval * f64::from(factor));
        let threshold = 0.5 * period / interval;
        let max = threshold + 2.0 * period / (interval + cold);
        let slope = (cold - interval) / (max - threshold);
        Self { interval, threshold, max, slope, cool_down: period / max, stored: max, next: 0.0 }
    }

    fn take(&mut self, cost: f64, now: f64) -> f64 {
        if now > self.next {
            self.stored = self.max.min(self.stored + (now - self.next) / self.cool_down);
            self.next = now;
        }
        let at = self.next;
        let spent = cost.min(self.stored);
        let above = (self.stored - self.threshold).max(0.0);
        let taken_above = above.min(spent);
        let time = |permits: f64| self.interval + permits * self.slope;
        let mut wait = taken_above * (time(above) + time(above - taken_above)) / 2.0;
        wait += self.interval * (spent - taken_above) + self.interval * (cost - spent);
        self.next += wait;
        self.stored -= spent;
        at
    }
}

struct Kept {
    rule: Rule,
    state: Vec<u64>,
}

impl Kept {
    fn new(rate: Rate, warm_up: Span, factor: u32) -> Self {
        let rule = Rule::new(&Algorithm::WarmUp(WarmUp::new(&[rate], warm_up, Some(factor)).unwrap()), None, None);
        Self { state: vec![0; rule.words()], rule }
    }

    /// Takes when it is its turn, at `now` or later; answers when that was.
    fn take(&mut self, cost: u64, now: Tick) -> Tick {
        let at = match self.rule.room(&self.state, cost, now) {
            FitTime::At { at, .. } => at,
            _ => now,
        };
        self.rule.commit(&mut self.state, cost, Moment::at(at));
        at
    }
}

fn near(a: Tick, b: f64) -> bool {
    (a.as_nanos() as f64 - b).abs() <= 1_000.0
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3_000))]

    /// Within a microsecond, whatever the costs and pauses.
    #[test]
    fn takes_its_turns_when_guava_does(
        limit in 1u64..500,
        warm_millis in 1u64..20_000,
        factor in 2u32..9,
        steps in prop::collection::vec((0u64..3_000, 1u64..6), 1..40),
    ) {
        let rate = Rate::new(limit, Span::from_secs(1)).unwrap();
        let warm_up = Span::from_millis(warm_millis);
        let (mut guava, mut kept) = (Guava::new(rate, warm_up, factor), Kept::new(rate, warm_up, factor));
        let mut now = Tick::ZERO;
        for (pause, cost) in steps {
            now = now + Span::from_millis(pause * 20 / limit.min(20));
            let at = kept.take(cost, now);
            let expected = guava.take(cost as f64, now.as_nanos() as f64);
            prop_assert!(near(at, expected), "{:?} is not {}", at, expected);
            let FitTime::At { at: next, .. } = kept.rule.room(&kept.state, 1, at) else { panic!("it took something") };
            prop_assert!(near(next, guava.next), "next: {:?} is not {}", next, guava.next);
            now = now.max(at);
            // The permits stored, unless rounding decides.
            let stored = guava.stored;
            if (stored - stored.round()).abs() > 1e-6 {
                prop_assert_eq!(kept.rule.standing(&kept.state, 0, at).remaining, stored as u64);
            }
        }
    }

    /// When what remains grows, it does so just then, and never shrinks while nobody comes.
    #[test]
    fn what_remains_grows_when_it_says(
        limit in 1u64..50,
        warm_millis in 1u64..5_000,
        factor in 2u32..9,
        steps in prop::collection::vec((0u64..500, 1u64..6), 1..20),
    ) {
        let rate = Rate::new(limit, Span::from_secs(1)).unwrap();
        let mut kept = Kept::new(rate, Span::from_millis(warm_millis), factor);
        let mut now = Tick::ZERO;
        for (pause, cost) in steps {
            now = kept.take(cost, now + Span::from_millis(pause));
            let standing = |now| kept.rule.standing(&kept.state, 0, now);
            let mut seen = standing(now);
            for _ in 0..5 {
                let Some(at) = seen.grows_at else { break };
                prop_assert_eq!(standing(at - Span::from_nanos(1)).remaining, seen.remaining);
                let grown = standing(at);
                prop_assert!(grown.remaining > seen.remaining, "{:?} at {:?}", grown, at);
                seen = grown;
            }
        }
        let end = now + Span::from_secs(3_600);
        prop_assert!(kept.rule.is_idle(&kept.state, end));
        prop_assert_eq!(kept.rule.standing(&kept.state, 0, end), kept.rule.fresh(0));
    }
}

#[test]
fn a_warm_key_keeps_its_rate_to_the_fraction_of_a_nanosecond() {
    for limit in [3u64, 7, 700] {
        let rate = Rate::new(limit, Span::from_secs(1)).unwrap();
        let mut kept = Kept::new(rate, Span::from_millis(1), 2);
        let turn = |kept: &Kept| match kept.rule.room(&kept.state, 1, Tick::ZERO) {
            FitTime::At { at, .. } => at.as_nanos(),
            _ => 0,
        };
        // By then it is warm. All are counted in advance, so that none waits for a whole nanosecond.
        kept.rule.commit(&mut kept.state, 100, Moment::at(Tick::ZERO));
        let (from, turns) = (turn(&kept), limit * 1_000);
        for _ in 0..turns {
            kept.rule.commit(&mut kept.state, 1, Moment::at(Tick::ZERO));
        }
        let took = turn(&kept) - from;
        // Each turn is rounded up to 2^-16 ns in a few places, and the last one to a whole nanosecond.
        let most = 1_000_000_000_000 + 1 + turns.div_ceil(1 << 14);
        assert!((1_000_000_000_000 - 1..=most).contains(&took), "{turns} turns in {took} ns");
    }
}

#[test]
fn one_cost_of_three_is_three_of_one() {
    for factor in [2, 3, 7] {
        let (rate, warm_up) = (Rate::new(2, Span::from_secs(1)).unwrap(), Span::from_secs(4));
        let (mut one, mut three) = (Kept::new(rate, warm_up, factor), Kept::new(rate, warm_up, factor));
        for _ in 0..5 {
            one.take(3, Tick::ZERO);
            for _ in 0..3 {
                three.take(1, Tick::ZERO);
            }
            assert!(one.state[0].abs_diff(three.state[0]) <= 1_000, "{:?} {:?}", one.state, three.state);
        }
    }
}

#[test]
fn the_area_above_the_threshold_takes_the_warm_up_and_below_it_half() {
    let (rate, second) = (Rate::new(2, Span::from_secs(1)).unwrap(), 1_000_000_000);
    let mut kept = Kept::new(rate, Span::from_secs(4), 3);
    assert_eq!(kept.rule.fresh(0).remaining, 8 + 1, "eight permits, and one goes");
    for (permits, after) in [(4, 4 * second), (4, 6 * second)] {
        kept.take(permits, Tick::ZERO);
        let now = Tick::from_nanos(kept.state[0] + 1);
        // Counted from the first turn, since the second waits for it.
        assert!(kept.state[0].abs_diff(after) <= 1_000, "{:?}", kept.state);
        assert!(matches!(kept.rule.room(&kept.state, 1, now), FitTime::Now));
    }
    assert_eq!(kept.rule.standing(&kept.state, 0, Tick::ZERO).remaining, 0, "all are taken");
}

#[test]
fn a_reload_keeps_the_turn_and_the_warmth_in_proportion() {
    let rate = Rate::new(2, Span::from_secs(1)).unwrap();
    let mut kept = Kept::new(rate, Span::from_secs(4), 3);
    kept.take(6, Tick::ZERO);
    let other =
        Rule::new(&Algorithm::WarmUp(WarmUp::new(&[rate], Span::from_secs(8), None).unwrap()), None, Some(&kept.rule));
    assert_eq!(other.layout_since(&kept.rule), LayoutChange::Rescaled);
    let mut state = vec![0; other.words()];
    other.take_over(&kept.rule, &kept.state, &mut state, Tick::ZERO);
    assert_eq!(other.room(&state, 1, Tick::ZERO), kept.rule.room(&kept.state, 1, Tick::ZERO));
    assert_eq!(kept.rule.standing(&kept.state, 0, Tick::ZERO).remaining, 2);
    assert_eq!(other.standing(&state, 0, Tick::ZERO).remaining, 4, "of 16");
}

#[test]
fn a_warm_key_is_not_a_nanosecond_faster_than_its_rate() {
    let rate = Rate::new(3, Span::from_secs(1)).unwrap();
    let mut kept = Kept::new(rate, Span::from_millis(1), 3);
    kept.take(100, Tick::ZERO);
    let warm = kept.take(1, Tick::ZERO);
    let mut now = warm;
    for _ in 0..300 {
        now = kept.take(1, now);
    }
    let took = now.since(warm).as_nanos();
    assert!((100_000_000_000..=100_000_000_300).contains(&took), "{took} ns for 300 requests");
}
