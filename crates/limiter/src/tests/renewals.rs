//! Months that begin on the day of each key.

use std::convert::Infallible;
use std::num::NonZeroU8;

use jiff::civil::{Date, date};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;

use super::*;
use sluicegate_time::Zone;

fn months(rates: &[&str]) -> LimitSpec {
    let rates: Vec<CalendarRate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    let window = FixedWindow::of_calendar(&rates, &Zone::named("Europe/Berlin").unwrap()).unwrap();
    assert!(window.has_months());
    LimitSpec { algorithm: Algorithm::FixedWindow(window), ..spec("1/s") }
}

fn on(day: u8, cost: u64) -> [Ask; MAX_LIMITS] {
    asks(1, cost).map(|ask| Ask { renews: NonZeroU8::new(day), ..ask })
}

fn ask(policy: &Arc<Policy>, day: u8, cost: u64, now: Tick) -> Verdict {
    policy.check(&on(day, cost), Span::MAX, now, &mut Report::default())
}

/// How many more a key has at `now` that states this day; 0: none.
fn left(policy: &Arc<Policy>, day: u8, now: Tick) -> usize {
    (0..1_000).take_while(|_| matches!(ask(policy, day, 1, now), Verdict::Admitted(_))).count()
}

/// Midnight in Berlin.
fn midnight(date: Date) -> Tick {
    let begins = date.to_zoned(TimeZone::get("Europe/Berlin").unwrap()).unwrap().start_of_day().unwrap();
    Tick::from_nanos(u64::try_from(begins.timestamp().as_nanosecond()).unwrap())
}

fn just_before(at: Tick) -> Tick {
    at - Span::from_nanos(1)
}

#[test]
fn an_ask_is_no_larger_for_it() {
    assert_eq!(size_of::<Ask>(), 32);
}

#[test]
fn a_month_begins_on_the_day_of_its_key_or_on_its_last() {
    for (day, spent, ends) in [
        (15, date(2026, 1, 20), date(2026, 2, 15)),
        (15, date(2026, 2, 14), date(2026, 2, 15)),
        (31, date(2026, 2, 10), date(2026, 2, 28)),
        (31, date(2026, 2, 28), date(2026, 3, 31)),
        (31, date(2026, 4, 1), date(2026, 4, 30)),
        (30, date(2028, 2, 20), date(2028, 2, 29)),
        (1, date(2026, 2, 10), date(2026, 3, 1)),
        (0, date(2026, 2, 10), date(2026, 3, 1)),
    ] {
        let (_, policy) = one(months(&["3/month"]));
        let (spent, ends) = (midnight(spent), midnight(ends));
        assert_eq!(left(&policy, day, spent), 3, "{day}");
        assert_eq!(refused(ask(&policy, day, 1, just_before(ends))).retry_at, Some(ends), "{day}");
        assert_eq!(left(&policy, day, ends), 3, "{day}");
        assert_eq!(refused(check(&policy, 1, 1, ends)).quota, 3);
    }
}

#[test]
fn another_day_lowers_nothing_in_the_month_that_runs() {
    let (limit, policy) = one(months(&["3/month"]));
    let (spent, end, next) = (midnight(date(2026, 6, 10)), midnight(date(2026, 7, 1)), midnight(date(2026, 7, 15)));
    assert_eq!(left(&policy, 1, spent), 3);
    for day in 0..=31 {
        assert_eq!(refused(ask(&policy, day, 1, just_before(end))).retry_at, Some(end), "{day}");
    }
    assert_eq!(left(&policy, 15, end), 3, "now the month is that of the new day");
    assert_eq!(limit.reconfigure(months(&["4/month"])), Reconfigured::Changed);
    assert_eq!((left(&policy, 1, end), left(&policy, 0, end)), (1, 0), "a reload keeps the day");
    assert_eq!(refused(ask(&policy, 1, 1, end)).retry_at, Some(next));
    assert_eq!(left(&policy, 0, next), 4);
    assert_eq!(refused(check(&policy, 1, 1, next)).retry_at, Some(midnight(date(2026, 8, 15))), "it is kept");
}

#[test]
fn a_request_that_waits_opens_the_month_of_its_day() {
    let (_, policy) = one(LimitSpec { max_wait: Span::from_secs(60), ..months(&["2/month"]) });
    let (end, next) = (midnight(date(2026, 7, 1)), midnight(date(2026, 7, 15)));
    assert_eq!(left(&policy, 1, midnight(date(2026, 6, 30))), 2);
    let mut waiting = queued(ask(&policy, 15, 1, end - Span::from_secs(50)));
    assert!(matches!(waiting.attempt(end), Attempt::Admitted(_)));
    assert_eq!(left(&policy, 0, end), 1);
    assert_eq!(refused(check(&policy, 1, 1, end)).retry_at, Some(next - Span::from_secs(60)));
}

#[test]
fn other_rates_and_costs_that_are_corrected_stay_as_they_are() {
    let (_, policy) = one(months(&["8/d", "10/month"]));
    let take = |cost, now| {
        let asks = on(15, cost).map(|ask| Ask { counting: Counting::Corrected, ..ask });
        match policy.check(&asks, Span::MAX, now, &mut Report::default()) {
            Verdict::Admitted(permit) => permit,
            other => panic!("there is room: {other:?}"),
        }
    };
    let (begin, end) = (midnight(date(2026, 6, 15)), midnight(date(2026, 7, 15)));
    let mut cheap = take(8, begin);
    assert_eq!(refused(ask(&policy, 15, 1, begin)).retry_at, Some(midnight(date(2026, 6, 16))), "the day");
    cheap.settle(begin, |_, _| Spent::Cost(3));
    let (late, dear) = (take(3, begin), take(2, begin));
    assert_eq!((left(&policy, 15, just_before(end)), left(&policy, 15, end)), (2, 8));
    for (mut permit, real) in [(late, 1), (dear, 3)] {
        permit.settle(end + Span::from_secs(86_400), |_, _| Spent::Cost(real));
    }
    assert_eq!(left(&policy, 15, end + Span::from_secs(86_400)), 1, "one more was spent, and nothing came back");
}

#[test]
fn state_files_of_before_there_were_such_days_are_read_still() {
    let layout = one(months(&["5/month"])).0.key_layout().unwrap().text;
    let calendar = "OfCalendar { limit: 5, calendar: Calendar(Month, Europe/Berlin) }";
    assert_eq!(layout, format!("FixedWindow(RateSet([OfCalendar({calendar})], None))"));
}

#[test]
fn a_process_that_takes_over_knows_the_days_of_its_keys() {
    let (limit, policy) = one(months(&["5/month"]));
    let (now, end) = (midnight(date(2026, 6, 10)), midnight(date(2026, 6, 20)));
    let next = Limit::new(limit.spec());
    let copied = limit.copy_and_follow(now, |records| {
        next.take_over_keys(records, now);
        Ok::<_, Infallible>(())
    });
    copied.unwrap();
    assert_eq!(left(&policy, 20, now), 5, "it is new after the copy");
    let mut followed = Vec::new();
    limit.take_followed(&mut followed);
    next.count_followed(&followed);
    assert_eq!(refused(ask(&super::policy(&[&next]), 1, 1, now)).retry_at, Some(end));
}

#[test]
fn the_first_month_of_the_epoch_is_no_exception() {
    let (_, policy) = one(months(&["3/month"]));
    assert_eq!(left(&policy, 5, Tick::ZERO), 3);
    assert_eq!(refused(ask(&policy, 1, 1, Tick::ZERO)).retry_at, Some(midnight(date(1970, 1, 5))));
}

/// The month from a day on that a date is in, by its last beginning and the next one.
fn month_of(day: u8, of: Date) -> (Tick, Tick) {
    let begins: Vec<Date> = (-2..=2)
        .map(|months| {
            let month = of.first_of_month().checked_add(months.months()).unwrap();
            month.with().day(day.cast_signed().min(month.days_in_month())).build().unwrap()
        })
        .collect();
    let next = begins.iter().position(|begin| *begin > of).unwrap();
    (midnight(begins[next - 1]), midnight(begins[next]))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// A count with an end: until then it stays, then the month of the day that is stated begins, or that of the last one.
    #[test]
    fn agrees_with_a_count_that_is_held_to_its_end(
        steps in prop::collection::vec((0_u64..900, prop_oneof![1 => Just(0_u8), 3 => 1_u8..=31], 1_u64..4), 1..60),
    ) {
        let (_, policy) = one(months(&["5/month"]));
        let (mut now, mut day, mut end, mut count) = (midnight(date(2027, 12, 30)), 1, Tick::ZERO, 0);
        for (hours, stated, cost) in steps {
            now = now + Span::from_secs(hours * 3_600);
            if now >= end {
                let at = Timestamp::from_nanosecond(i128::from(now.as_nanos())).unwrap();
                let of = at.to_zoned(TimeZone::get("Europe/Berlin").unwrap()).date();
                day = if stated == 0 { day } else { stated };
                (end, count) = (month_of(day, of).1, 0);
            }
            let told = match ask(&policy, stated, cost, now) {
                Verdict::Admitted(_) => None,
                other => refused(other).retry_at,
            };
            let fits = count + cost <= 5;
            prop_assert_eq!(told, (!fits).then_some(end), "{} on {} at {:?}", cost, stated, now);
            count += if fits { cost } else { 0 };
        }
    }
}
