use proptest::prelude::*;

use super::oracles::{Log, cases};
use super::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever takes the place of whatever: from then on no admission exceeds the new rule; what was taken stays
    /// taken; and nothing panics.
    #[test]
    fn a_reload_admits_no_more_than_the_new_rule_and_forgets_nothing_that_still_counts(
        (old, new) in (cases(), cases()),
        before in steps(),
        after in steps(),
    ) {
        let old_rule = Rule::new(&old.algorithm, None, None);
        let new_rule = Rule::new(&new.algorithm, None, Some(&old_rule));
        let mut from = vec![0; old_rule.words()];
        let mut now = 0;
        for step in before {
            now += step.pause * old.scale;
            let tick = Tick::from_nanos(now);
            old_rule.advance(&mut from, tick);
            if old_rule.too_costly(step.cost).is_none() && old_rule.room(&from, step.cost, tick) == FitTime::Now {
                old_rule.commit(&mut from, step.cost, Moment::at(tick));
            }
        }
        let latest = Tick::from_nanos(now);
        let layout = new_rule.layout_since(&old_rule);
        prop_assert_eq!(layout == LayoutChange::Reset, !new.carries(&old));
        let mut state = match layout {
            LayoutChange::Kept => from.clone(),
            _ => vec![0; new_rule.words()],
        };
        prop_assert_eq!(state.len(), new_rule.words());
        if layout != LayoutChange::Kept && layout != LayoutChange::Reset && !old_rule.is_idle(&from, latest) {
            new_rule.take_over(&old_rule, &from, &mut state, latest);
        }
        new_rule.advance(&mut state, latest);
        if old.algorithm == new.algorithm {
            for rate in 0..old_rule.rates() {
                let kept = new_rule.standing(&state, rate, latest);
                prop_assert_eq!(kept, old_rule.standing(&from, rate, latest), "the same");
            }
        }
        let mut log = Log::new();
        for step in after {
            now += step.pause * new.scale;
            let tick = Tick::from_nanos(now);
            new_rule.advance(&mut state, tick);
            if new_rule.too_costly(step.cost).is_none() && new_rule.room(&state, step.cost, tick) == FitTime::Now {
                prop_assert!(new.fits_after_reload(&log, step.cost, now), "{:?} at {}", step, now);
                new_rule.commit(&mut state, step.cost, Moment::at(tick));
                log.push((now, step.cost));
            }
        }
    }
}

fn rate(text: &str) -> [Rate; 1] {
    [text.parse().unwrap()]
}

/// The remaining count at `at` ms of the first rate of `new`, when under `old` so much was taken at each of some ms.
fn remains(old: &Algorithm, taken: &[(u64, u64)], new: &Algorithm, at: u64) -> u64 {
    remains_of_each(old, taken, new, at)[0]
}

fn remains_of_each(old: &Algorithm, taken: &[(u64, u64)], new: &Algorithm, at: u64) -> Vec<u64> {
    let tick = |millis| Tick::ZERO + Span::from_millis(millis);
    let old_rule = Rule::new(old, None, None);
    let mut from = vec![0; old_rule.words()];
    for (millis, cost) in taken {
        old_rule.advance(&mut from, tick(*millis));
        assert_eq!(old_rule.room(&from, *cost, tick(*millis)), FitTime::Now);
        old_rule.commit(&mut from, *cost, Moment::at(tick(*millis)));
    }
    let rule = Rule::new(new, None, Some(&old_rule));
    let mut state = from.clone();
    match rule.layout_since(&old_rule) {
        LayoutChange::Kept => {}
        LayoutChange::Reset => state = vec![0; rule.words()],
        _ => {
            state = vec![0; rule.words()];
            rule.take_over(&old_rule, &from, &mut state, tick(at));
        }
    }
    rule.advance(&mut state, tick(at));
    (0..rule.rates()).map(|rate| rule.standing(&state, rate, tick(at)).remaining).collect()
}

#[test]
fn taken_tokens_stay_taken_whatever_the_new_pace() {
    let bucket = |text, burst| Algorithm::TokenBucket(TokenBucket::new(&rate(text), burst, Refill::Greedy).unwrap());
    let interval =
        |text, burst| Algorithm::TokenBucket(TokenBucket::new(&rate(text), burst, Refill::Interval).unwrap());
    let gcra = |text, burst| Algorithm::Gcra(Gcra::new(&rate(text), burst).unwrap());
    let old = bucket("10/s", None);
    for (new, remaining) in [
        (bucket("10/s", None), 3),
        (bucket("10/s", Some(20)), 13),
        (bucket("1/s", Some(10)), 3),
        (bucket("1000/s", None), 993),
        (bucket("1/s", Some(5)), 0),
        (bucket("3/s", Some(9)), 2),
        (interval("10/s", None), 3),
        (gcra("10/s", Some(10)), 10),
    ] {
        assert_eq!(remains(&old, &[(1, 7)], &new, 1), remaining, "{new:?}");
    }
    assert_eq!(remains(&interval("10/s", None), &[(1, 7)], &old, 900), 3);
    assert_eq!(remains(&interval("10/s", None), &[(1, 7)], &old, 1001), 10, "its period is over");
    assert_eq!(remains(&interval("10/s", None), &[(1, 7)], &interval("2/100ms", Some(8)), 900), 1);
    for (at, remaining) in [(100, 1), (101, 1), (102, 1)] {
        let new = interval("2/100ms", Some(8));
        assert_eq!(remains(&interval("10/s", None), &[(1, 7)], &new, at), remaining, "a new period at {at} ms at most");
    }
}

#[test]
fn counts_of_a_window_stay_in_one() {
    let fixed = |text, align| Algorithm::FixedWindow(FixedWindow::new(&rate(text), align).unwrap());
    let (epoch, first) = (Align::Epoch, Align::First);
    for (old, new, at, remaining) in [
        (fixed("10/s", epoch), fixed("12/s", epoch), 1_999, 5),
        (fixed("10/s", epoch), fixed("10/m", epoch), 1_999, 3),
        (fixed("10/s", epoch), fixed("10/s", first), 1_999, 3),
        (fixed("10/s", first), fixed("10/s", epoch), 2_199, 3),
        (fixed("10/s", first), fixed("10/s", epoch), 2_200, 10),
        (fixed("10/s", first), fixed("9/2s", first), 1_999, 2),
        (fixed("10/s", first), fixed("10/700ms", first), 1_900, 10),
        (fixed("300/s", first), fixed("200/s", epoch), 2_199, 193),
    ] {
        assert_eq!(remains(&old, &[(1_200, 7)], &new, at), remaining, "{old:?} {new:?} at {at}");
    }
    let counter = |text| Algorithm::SlidingCounter(SlidingCounter::new(&rate(text)).unwrap());
    assert_eq!(remains(&counter("10/s"), &[(100, 6), (1_200, 3)], &counter("20/s"), 1_500), 14);
    assert_eq!(remains(&counter("10/s"), &[(100, 6), (1_200, 3)], &counter("20/m"), 1_500), 11, "all counts in full");
    let window = |text, cap| Algorithm::SlidingWindow(SlidingWindow::new(&rate(text), None, cap).unwrap());
    assert_eq!(remains(&window("10/s", Some(9)), &[(100, 6), (150, 3)], &window("10/s", Some(9)), 199), 0);
    assert_eq!(remains(&window("10/s", Some(9)), &[(100, 6), (150, 3)], &window("20/2s", Some(20)), 199), 11);
}

#[test]
fn counts_of_a_calendar_go_on_in_the_same_windows_and_nowhere_else() {
    use crate::CalendarRate;
    use sluicegate_time::Zone;
    let calendar = |rates: &[&str], zone: &str| {
        let rates: Vec<CalendarRate> = rates.iter().map(|text| text.parse().unwrap()).collect();
        Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &Zone::named(zone).unwrap()).unwrap())
    };
    let plain = |align| Algorithm::FixedWindow(FixedWindow::new(&rate("10/d"), align).unwrap());
    let berlin = "Europe/Berlin";
    let (kept, rescaled, reset) = (LayoutChange::Kept, LayoutChange::Rescaled, LayoutChange::Reset);
    for (old, new, layout, remaining) in [
        (calendar(&["10/d"], berlin), calendar(&["10/d"], berlin), kept, vec![3]),
        (calendar(&["10/d"], berlin), calendar(&["12/d"], berlin), kept, vec![5]),
        (calendar(&["10/d"], berlin), calendar(&["5/d"], berlin), kept, vec![0]),
        (calendar(&["10/d"], berlin), calendar(&["10/d"], "UTC"), reset, vec![10]),
        (calendar(&["10/d"], berlin), calendar(&["10/month"], berlin), reset, vec![10]),
        (calendar(&["10/d"], "UTC"), plain(Align::Epoch), reset, vec![10]),
        (plain(Align::Epoch), calendar(&["10/d"], "UTC"), reset, vec![10]),
        (plain(Align::First), calendar(&["10/d"], "UTC"), reset, vec![10]),
        (calendar(&["10/d", "30/7d"], berlin), calendar(&["30/7d", "10/d"], berlin), rescaled, vec![23, 3]),
        (calendar(&["10/d"], berlin), calendar(&["30/month", "10/d"], berlin), rescaled, vec![30, 3]),
        (calendar(&["10/d", "30/7d"], berlin), calendar(&["10/d", "30/month"], berlin), rescaled, vec![3, 30]),
        (calendar(&["10/d", "30/7d"], berlin), calendar(&["20/7d"], berlin), rescaled, vec![13]),
        (calendar(&["10/d", "30/7d"], berlin), calendar(&["20/month"], berlin), reset, vec![20]),
    ] {
        let old_rule = Rule::new(&old, None, None);
        let new_rule = Rule::new(&new, None, Some(&old_rule));
        assert_eq!(new_rule.layout_since(&old_rule), layout, "{old:?} {new:?}");
        assert_eq!(remains_of_each(&old, &[(1_200, 7)], &new, 1_900), remaining, "{old:?} {new:?}");
    }
}

#[test]
fn another_number_of_rates_takes_over_from_the_likeliest() {
    let bucket = |rates: &[&str]| {
        let rates: Vec<Rate> = rates.iter().map(|text| text.parse().unwrap()).collect();
        Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap())
    };
    assert_eq!(remains(&bucket(&["10/s", "50/m"]), &[(1, 7)], &bucket(&["50/m"]), 1), 43, "the same rate");
    assert_eq!(remains(&bucket(&["10/s", "50/m"]), &[(1, 7)], &bucket(&["60/m", "10/s"]), 1), 53, "the same window");
    assert_eq!(remains(&bucket(&["10/s"]), &[(1, 7)], &bucket(&["80/h", "10/s"]), 1), 73, "the longest there is");
}

#[test]
fn each_rate_takes_over_from_its_like_wherever_that_stood() {
    let bucket = |rates: &[&str]| {
        let rates: Vec<Rate> = rates.iter().map(|text| text.parse().unwrap()).collect();
        Algorithm::TokenBucket(TokenBucket::new(&rates, None, Refill::Greedy).unwrap())
    };
    // At 501 ms two of the seven are still taken from the first rate, and all of them from the second.
    let old = bucket(&["10/s", "50/m"]);
    for (new, remaining) in [
        (bucket(&["10/s", "50/m"]), vec![8, 43]),
        (bucket(&["50/m", "10/s"]), vec![43, 8]),
        (bucket(&["50/m"]), vec![43]),
        (bucket(&["80/h", "10/s"]), vec![78, 8]),
        (bucket(&["60/m", "20/s"]), vec![53, 18]),
        (bucket(&["80/h", "90/d", "20/s"]), vec![78, 83, 18]),
    ] {
        assert_eq!(remains_of_each(&old, &[(1, 7)], &new, 501), remaining, "{new:?}");
    }
}

#[test]
fn a_log_that_reaches_further_back_holds_what_was_entered_and_nothing_else() {
    let log = |text| Algorithm::SlidingLog(SlidingLog::new(&rate(text), Span::ZERO, false).unwrap());
    assert_eq!(remains(&log("5/s"), &[(1, 1)], &log("5/10s"), 2), 4);
    assert_eq!(remains(&log("5/s"), &[(1, 1)], &log("5/10s"), 10_000), 4);
    assert_eq!(remains(&log("5/s"), &[(1, 1)], &log("5/10s"), 10_001), 5);
    assert_eq!(remains(&log("5/s"), &[(1, 2), (2, 3)], &log("3/s"), 3), 0, "the newest stay");
    assert_eq!(remains(&log("5/s"), &[(1, 2), (2, 3)], &log("3/s"), 1_001), 0);
    assert_eq!(remains(&log("5/s"), &[(1, 2), (2, 3)], &log("8/s"), 3), 3);
}

#[test]
fn records_are_rebuilt_only_when_they_have_to_be() {
    let gcra = |text| Algorithm::Gcra(Gcra::new(&rate(text), Some(5)).unwrap());
    let bucket = |text, refill| Algorithm::TokenBucket(TokenBucket::new(&rate(text), Some(90), refill).unwrap());
    let fixed = |text, align| Algorithm::FixedWindow(FixedWindow::new(&rate(text), align).unwrap());
    let log = |text, apart| Algorithm::SlidingLog(SlidingLog::new(&rate(text), apart, false).unwrap());
    let smooth =
        |text, saved| Algorithm::SmoothBursty(SmoothBursty::new(&rate(text), Some(Span::from_secs(saved))).unwrap());
    let warm =
        |text, secs, factor| Algorithm::WarmUp(WarmUp::new(&rate(text), Span::from_secs(secs), Some(factor)).unwrap());
    let counter = |text| Algorithm::SlidingCounter(SlidingCounter::new(&rate(text)).unwrap());
    let window = |text, cap| Algorithm::SlidingWindow(SlidingWindow::new(&rate(text), None, cap).unwrap());
    let (second, millis) = (Span::from_secs(1), Span::from_millis(1));
    let (greedy, interval, kept, rescaled) =
        (Refill::Greedy, Refill::Interval, LayoutChange::Kept, LayoutChange::Rescaled);
    for (old, new, layout) in [
        (gcra("7/s"), gcra("7/s"), kept),
        (gcra("7/s"), gcra("14/2s"), kept),
        (gcra("7/s"), gcra("8/s"), rescaled),
        (bucket("7/s", greedy), bucket("14/2s", greedy), kept),
        (bucket("7/s", greedy), bucket("7/s", interval), rescaled),
        (bucket("7/s", interval), bucket("7/s", interval), kept),
        (bucket("7/s", interval), bucket("8/s", interval), rescaled),
        (bucket("7/s", interval), bucket("7/2s", interval), rescaled),
        (fixed("7/s", Align::First), fixed("8/s", Align::First), kept),
        (fixed("7/s", Align::First), fixed("7/2s", Align::First), rescaled),
        (fixed("7/s", Align::First), fixed("7/s", Align::Epoch), rescaled),
        (fixed("7/s", Align::Epoch), fixed("8/s", Align::Epoch), kept),
        (fixed("7/s", Align::Epoch), fixed("7/2s", Align::Epoch), rescaled),
        (fixed("7/s", Align::Epoch), fixed("300/s", Align::Epoch), LayoutChange::Repacked),
        (log("7/s", millis), log("7/s", second), kept),
        (log("7/s", millis), log("8/s", millis), rescaled),
        (log("7/s", millis), log("7/2s", millis), rescaled),
        (smooth("7/s", 2), smooth("7/s", 2), kept),
        (smooth("7/s", 2), smooth("7/s", 3), rescaled),
        (smooth("7/s", 2), smooth("8/s", 2), rescaled),
        (warm("7/s", 2, 3), warm("8/s", 2, 4), kept),
        (warm("7/s", 2, 3), warm("7/s", 3, 3), rescaled),
        (counter("7/s"), counter("8/s"), kept),
        (counter("7/s"), counter("7/2s"), rescaled),
        (window("70/s", Some(9)), window("80/s", Some(8)), kept),
        (window("70/s", Some(9)), window("70/2s", Some(9)), rescaled),
    ] {
        let old_rule = Rule::new(&old, None, None);
        assert_eq!(Rule::new(&new, None, Some(&old_rule)).layout_since(&old_rule), layout, "{old:?} {new:?}");
    }
}

#[test]
fn a_warm_key_stays_as_warm_in_proportion() {
    let warm = |period| Algorithm::WarmUp(WarmUp::new(&rate("2/s"), Span::from_secs(period), None).unwrap());
    // Cold it has stored 2 requests for each second of its period; half of them are spent.
    for (period, stored) in [(4, 4), (2, 2), (12, 12)] {
        assert_eq!(remains(&warm(4), &[(1, 4)], &warm(period), 1), stored, "{period} s");
    }
}
