//! Windows of the calendar, with exact numbers: midnights of Berlin and New York, ends of months, waiting, reloads.

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use sluicegate_time::{Clock, ManualClock, Weekday, Zone};

const BERLIN: &str = "Europe/Berlin";
const NEW_YORK: &str = "America/New_York";

fn of_calendar(rates: &[&str], zone: &str) -> Algorithm {
    let rates: Vec<CalendarRate> = rates.iter().map(|rate| rate.parse().unwrap()).collect();
    Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &Zone::named(zone).unwrap()).unwrap())
}

fn with(rates: &[&str], zone: &str) -> (Arc<Limit>, Arc<Policy>) {
    one(LimitSpec { algorithm: of_calendar(rates, zone), ..spec("1/s") })
}

fn tick(text: &str) -> Tick {
    Tick::from_nanos(u64::try_from(text.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap())
}

fn just_before(text: &str) -> Tick {
    tick(text) - Span::from_nanos(1)
}

/// The lines of the rate headers: quota, window, what remains and when that grows, in seconds.
fn lines(policy: &Arc<Policy>, now: Tick) -> Vec<(u64, u64, u64, Option<u64>)> {
    let mut report = Report::default();
    let _ = policy.check(&asks(1, MAX_COUNT), Span::ZERO, now, &mut report);
    let line =
        |line: &QuotaLine| (line.quota, line.window.as_secs_ceil(), line.remaining, line.reset.map(Span::as_secs_ceil));
    report.lines().iter().map(line).collect()
}

#[test]
fn a_week_begins_on_the_day_that_is_chosen_and_another_day_counts_from_zero() {
    let weeks = |day| {
        let rates = ["3/week".parse().unwrap()];
        let window = FixedWindow::of_calendar(&rates, &Zone::named(BERLIN).unwrap()).unwrap();
        LimitSpec { algorithm: Algorithm::FixedWindow(window.with_weeks_from(day)), ..spec("1/s") }
    };
    let (limit, policy) = one(weeks(Weekday::Sunday));
    // Sunday the 4th of January 2026 begins at 23:00 UTC.
    let (spent, ends) = ("2026-01-02T12:00:00Z", "2026-01-03T23:00:00Z");
    assert_eq!(drain(&policy, 1, tick(spent)), 3);
    assert_eq!(refused(check(&policy, 1, 1, just_before(ends))).retry_at, Some(tick(ends)));
    assert_eq!(drain(&policy, 1, tick(ends)), 3);
    limit.reconfigure(weeks(Weekday::Sunday));
    assert_eq!(drain(&policy, 1, tick(ends)), 0);
    limit.reconfigure(weeks(Weekday::Monday));
    assert_eq!(drain(&policy, 1, tick(ends)), 3);
    assert_eq!(refused(check(&policy, 1, 1, tick(ends))).retry_at, Some(tick("2026-01-04T23:00:00Z")));
}

#[test]
fn a_window_is_full_to_its_last_nanosecond_and_the_next_one_is_empty() {
    for (rate, zone, spent, ends) in [
        ("3/d", "UTC", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"),
        ("3/d", BERLIN, "2026-06-01T12:00:00Z", "2026-06-01T22:00:00Z"),
        ("3/d", BERLIN, "2026-12-01T12:00:00Z", "2026-12-01T23:00:00Z"),
        ("3/d", NEW_YORK, "2026-06-01T12:00:00Z", "2026-06-02T04:00:00Z"),
        // The days of 23 and 25 hours, spent at their midnights.
        ("3/d", BERLIN, "2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"),
        ("3/d", BERLIN, "2026-10-24T22:00:00Z", "2026-10-25T23:00:00Z"),
        ("3/d", NEW_YORK, "2026-03-08T05:00:00Z", "2026-03-09T04:00:00Z"),
        ("3/d", NEW_YORK, "2026-11-01T04:00:00Z", "2026-11-02T05:00:00Z"),
        ("3/h", "Asia/Kathmandu", "2026-06-01T12:15:00Z", "2026-06-01T13:15:00Z"),
        ("3/7d", BERLIN, "2026-10-18T22:00:00Z", "2026-10-25T23:00:00Z"),
        ("3/month", BERLIN, "2026-01-31T22:59:59Z", "2026-01-31T23:00:00Z"),
        ("3/month", "UTC", "2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"),
        ("3/month", "UTC", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("3/month", NEW_YORK, "2026-11-01T04:00:00Z", "2026-12-01T05:00:00Z"),
    ] {
        let (_, policy) = with(&[rate], zone);
        assert_eq!(drain(&policy, 1, tick(spent)), 3, "{rate} {zone} {spent}");
        assert_eq!(drain(&policy, 1, just_before(ends)), 0, "{rate} {zone} before {ends}");
        let refusal = refused(check(&policy, 1, 1, just_before(ends)));
        assert_eq!((refusal.why, refusal.retry_at), (RefusalReason::Rate, Some(tick(ends))), "{rate} {zone} {spent}");
        assert_eq!(drain(&policy, 1, tick(ends)), 3, "{rate} {zone} {ends}");
    }
}

#[test]
fn the_headers_count_to_local_midnight_and_name_the_usual_length() {
    let (_, policy) = with(&["3/h", "10/d", "40/7d", "100/month"], BERLIN);
    // A Tuesday, the last day of March, at 14:30:00.5, two days after clocks went forward.
    let now = tick("2026-03-31T12:30:00.5Z");
    assert_eq!(
        lines(&policy, now),
        [(3, 3_600, 3, None), (10, 86_400, 10, None), (40, 604_800, 40, None), (100, 2_592_000, 100, None)]
    );
    assert!(admitted(&policy, 1, now));
    assert_eq!(
        lines(&policy, now),
        [
            (3, 3_600, 2, Some(1_800)),
            (10, 86_400, 9, Some(34_200)),
            (40, 604_800, 39, Some(466_200)),
            (100, 2_592_000, 99, Some(34_200)),
        ]
    );
    let (_, policy) = with(&["10/d"], BERLIN);
    assert!(admitted(&policy, 1, tick("2026-10-24T22:00:00Z")));
    assert_eq!(lines(&policy, tick("2026-10-24T22:00:00Z")), [(10, 86_400, 9, Some(90_000))], "25 hours");
}

#[test]
fn every_rate_holds_in_its_own_windows() {
    let (_, policy) = with(&["2/h", "3/d"], BERLIN);
    assert_eq!(drain(&policy, 1, tick("2026-01-01T20:10:00Z")), 2);
    assert_eq!(
        refused(check(&policy, 1, 1, tick("2026-01-01T20:10:00Z"))).retry_at,
        Some(tick("2026-01-01T21:00:00Z"))
    );
    assert_eq!(drain(&policy, 1, tick("2026-01-01T21:00:00Z")), 1);
    let refusal = refused(check(&policy, 1, 1, tick("2026-01-01T21:00:00Z")));
    assert_eq!((refusal.quota, refusal.retry_at), (3, Some(tick("2026-01-01T23:00:00Z"))));
    assert_eq!(drain(&policy, 1, tick("2026-01-01T23:00:00Z")), 2);
}

#[test]
fn costs_add_up_and_what_never_fits_says_so() {
    let (_, policy) = with(&["10/d"], BERLIN);
    let now = tick("2026-01-01T12:00:00Z");
    assert!(matches!(check(&policy, 1, 7, now), Verdict::Admitted(_)));
    assert_eq!(refused(check(&policy, 1, 4, now)).remaining, 3);
    assert!(matches!(check(&policy, 1, 3, now), Verdict::Admitted(_)));
    assert_eq!(refused(check(&policy, 1, 11, now)).why, RefusalReason::TooCostly);
}

#[test]
fn who_may_wait_waits_for_midnight() {
    let algorithm = of_calendar(&["2/d"], BERLIN);
    let max_wait = Span::from_secs(60);
    let (limit, policy) = one(LimitSpec { algorithm, max_wait, ..spec("1/s") });
    let midnight = tick("2026-10-25T23:00:00Z");
    let now = midnight - Span::from_secs(50);
    assert_eq!(drain(&policy, 1, tick("2026-10-24T22:00:00Z")), 2);
    assert_eq!(refused(check(&policy, 1, 1, midnight - Span::from_secs(61))).retry_at, Some(midnight - max_wait));
    let mut waiting = queued(check(&policy, 1, 1, now));
    assert_eq!(waiting.wake_at(now), midnight);
    assert_eq!(waiting.wake_at(just_before("2026-10-25T23:00:00Z")), midnight);
    assert!(matches!(waiting.attempt(midnight), Attempt::Admitted(_)));
    assert_eq!((drain(&policy, 1, midnight), limit.stats().waiting), (1, 0), "it is counted in the new day");
}

#[test]
fn a_worker_that_is_a_little_behind_counts_in_the_newest_window() {
    let (_, policy) = with(&["3/d"], BERLIN);
    let midnight = tick("2026-01-01T23:00:00Z");
    assert_eq!(drain(&policy, 1, just_before("2026-01-01T23:00:00Z")), 3);
    assert!(admitted(&policy, 1, midnight));
    let behind = just_before("2026-01-01T23:00:00Z");
    assert!(admitted(&policy, 1, behind) && admitted(&policy, 1, behind), "of the new day");
    assert_eq!(refused(check(&policy, 1, 1, behind)).retry_at, Some(tick("2026-01-02T23:00:00Z")));
    // What two limits by one calendar ask of it on both sides of midnight does not mix.
    let algorithm = of_calendar(&["3/d"], BERLIN);
    let limit = || one(LimitSpec { algorithm: algorithm.clone(), ..spec("1/s") });
    let ((_, one), (_, other)) = (limit(), limit());
    for _ in 0..3 {
        assert!(admitted(&one, 1, midnight) && admitted(&other, 1, behind));
    }
    assert!(!admitted(&one, 1, midnight) && !admitted(&other, 1, behind));
    assert_eq!(drain(&other, 1, midnight), 3);
}

#[test]
fn in_shadow_mode_it_counts_and_refuses_nobody() {
    let algorithm = of_calendar(&["1/d"], BERLIN);
    let (_, policy) = one(LimitSpec { algorithm, mode: Mode::Shadow, ..spec("1/s") });
    let mut report = Report::default();
    let now = tick("2026-01-01T12:00:00Z");
    for refusals in [0, 1, 1] {
        assert!(matches!(policy.check(&asks(1, 1), Span::MAX, now, &mut report), Verdict::Admitted(_)));
        assert_eq!(report.shadow_refusals().count(), refusals);
    }
}

#[test]
fn what_a_response_corrects_is_of_the_day_of_its_request() {
    let (_, policy) = with(&["10/d"], BERLIN);
    let (evening, midnight) = (tick("2026-01-01T22:00:00Z"), tick("2026-01-01T23:00:00Z"));
    let take = |cost, now| match policy.check(
        &[Ask { key: Some(key(1)), cost, counting: Counting::Corrected, ..Ask::default() }],
        Span::MAX,
        now,
        &mut Report::default(),
    ) {
        Verdict::Admitted(permit) => permit,
        other => panic!("there is room: {other:?}"),
    };
    let (mut cheap, mut late) = (take(4, evening), take(6, evening));
    cheap.settle(evening, |_, _| Spent::Cost(1));
    assert_eq!(lines(&policy, evening), [(10, 86_400, 3, Some(3_600))]);
    let mut dear = take(3, evening);
    dear.settle(midnight, |_, _| Spent::Cost(5));
    assert_eq!(lines(&policy, midnight)[0].2, 8, "what it cost more is of the day on which that became known");
    late.settle(midnight, |_, _| Spent::Nothing);
    assert_eq!(lines(&policy, midnight)[0].2, 8, "what was too much was of the day before");
}

#[test]
fn failures_of_a_long_month_are_all_counted_when_they_are_known() {
    let (limit, policy) = with(&["2/month"], BERLIN);
    // The first minute of a month of 31 days.
    let now = tick("2025-12-31T23:00:30Z");
    let ask = [Ask { key: Some(key(1)), cost: 1, counting: Counting::Later, ..Ask::default() }];
    let permits: Vec<Permit> = (0..5)
        .map(|_| match policy.check(&ask, Span::MAX, now, &mut Report::default()) {
            Verdict::Admitted(permit) => permit,
            other => panic!("nothing is counted yet: {other:?}"),
        })
        .collect();
    for mut permit in permits {
        permit.settle(now, |_, _| Spent::AsAsked);
    }
    let month = tick("2026-01-31T23:00:00Z");
    assert_eq!(refused(check(&policy, 1, 1, now)).retry_at, Some(month));
    let more = LimitSpec { algorithm: of_calendar(&["6/month"], BERLIN), ..limit.spec() };
    assert_eq!((limit.reconfigure(more), drain(&policy, 1, now)), (Reconfigured::Changed, 1), "all five are counted");
    assert_eq!(drain(&policy, 1, month), 6);
}

#[test]
fn a_reload_keeps_counts_of_the_same_windows() {
    let day = |rates: &[&str], zone| LimitSpec { algorithm: of_calendar(rates, zone), ..spec("1/s") };
    let (limit, policy) = one(day(&["5/d"], BERLIN));
    let now = tick("2026-01-01T12:00:00Z");
    assert_eq!(drain(&policy, 1, now), 5);
    assert_eq!(limit.reconfigure(day(&["5/d"], BERLIN)), Reconfigured::Same);
    assert_eq!(limit.reconfigure(day(&["7/d"], BERLIN)), Reconfigured::Changed);
    assert_eq!(drain(&policy, 1, now), 2);
    assert_eq!(limit.reconfigure(day(&["9/month", "8/d"], BERLIN)), Reconfigured::Rescaled);
    assert_eq!(drain(&policy, 1, now), 1, "the day has counted on, the month begins");
    assert_eq!(limit.reconfigure(day(&["9/month", "8/d"], NEW_YORK)), Reconfigured::Restarted);
    assert_eq!(drain(&policy, 1, now), 8);
    assert!(!of_calendar(&["5/d"], BERLIN).eq(&of_calendar(&["5/d"], NEW_YORK)));
    assert_eq!(of_calendar(&["5/d"], NEW_YORK).carries(&of_calendar(&["5/d"], BERLIN)), Carry::Nothing);
}

#[test]
fn a_rate_per_month_is_spelled_so() {
    let algorithm = of_calendar(&["5/h", "9/month"], BERLIN);
    assert_eq!([0, 1, 2].map(|rate| algorithm.rate_text(rate)), ["5/h", "9/month", ""]);
    assert_eq!(algorithm.bytes_per_key(), 40, "a fingerprint, and two words for each rate");
    let zone = Zone::utc();
    assert!(FixedWindow::of_calendar(&[], &zone).is_err());
    assert!(FixedWindow::of_calendar(&["1/d".parse().unwrap(); MAX_RATES + 1], &zone).is_err());
}

/// A limit by days of UTC, and a clock whose wall clock can be set. It shows `now` at first.
fn by_the_wall(rate: &str, now: &str) -> (Arc<Policy>, ManualClock, Clock) {
    let hands = ManualClock::new();
    hands.advance(tick(now).since(Tick::ZERO));
    let clock = Clock::Manual(hands.clone());
    let Algorithm::FixedWindow(window) = of_calendar(&[rate], "UTC") else { unreachable!() };
    let algorithm = Algorithm::FixedWindow(window.going_by(clock.offset()));
    (one(LimitSpec { algorithm, ..spec("1/s") }).1, hands, clock)
}

const HOUR: Span = Span::from_secs(3_600);
const TWO_HOURS: Span = Span::from_secs(7_200);
const DAY: Span = Span::from_secs(86_400);

#[test]
fn after_a_step_back_the_count_of_the_later_window_goes_on_in_the_earlier_one() {
    let (policy, hands, clock) = by_the_wall("3/d", "2026-01-01T22:30:00Z");
    let now = hands.now();
    assert_eq!(drain(&policy, 1, now), 3);
    hands.set_wall_forward(TWO_HOURS);
    assert_eq!(drain(&policy, 1, now), 0, "nothing has read the wall clock yet");
    clock.follow_wall();
    assert_eq!((drain(&policy, 1, now), drain(&policy, 2, now)), (3, 3), "the second of January");
    hands.set_wall_back(TWO_HOURS);
    clock.follow_wall();
    let third = tick("2026-01-03T00:00:00Z");
    for later in ["2026-01-01T22:30:00Z", "2026-01-01T23:59:59Z", "2026-01-02T00:00:00Z", "2026-01-02T12:00:00Z"] {
        let now = tick(later);
        assert_eq!((drain(&policy, 1, now), drain(&policy, 2, now)), (0, 0), "{later}");
        assert_eq!(refused(check(&policy, 1, 1, now)).retry_at, Some(third), "{later}");
    }
    assert_eq!(drain(&policy, 3, now), 3);
    assert_eq!(drain(&policy, 3, tick("2026-01-02T00:00:00Z")), 0, "one quota for both days");
    assert_eq!((drain(&policy, 1, third), drain(&policy, 3, third)), (3, 3));
}

#[test]
fn a_wrong_year_at_boot_freezes_no_quota() {
    let (policy, hands, clock) = by_the_wall("3/month", "2036-01-15T12:00:00Z");
    let booted = hands.now();
    assert_eq!(drain(&policy, 1, booted), 3);
    let years = tick("2036-01-15T12:00:00Z").since(tick("2026-01-15T12:00:00Z"));
    hands.set_wall_back(years);
    clock.follow_wall();
    let over = booted + DAY;
    for now in [booted, booted + HOUR, over - Span::from_nanos(1)] {
        assert_eq!(drain(&policy, 1, now), 0, "{now:?}");
        assert_eq!(refused(check(&policy, 1, 1, now)).retry_at, Some(over));
    }
    hands.advance(DAY);
    clock.follow_wall();
    assert_eq!((drain(&policy, 1, over), drain(&policy, 1, over)), (3, 0));
    let february = tick("2026-02-01T00:00:00Z") + years;
    assert_eq!(refused(check(&policy, 1, 1, over)).retry_at, Some(february));
    assert_eq!(drain(&policy, 1, february), 3);
}

/// Steps of ten minutes: so nothing is asked in the last minute of a window, where the next one is counted in, too.
#[derive(Clone, Copy, Debug)]
enum Happens {
    Pass(u64),
    Forward(u64),
    Back(u64),
    Take(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    prop_oneof![
        (1u64..40).prop_map(Happens::Pass),
        (1u64..400).prop_map(Happens::Pass),
        prop_oneof![1u64..20, 1u64..300].prop_map(Happens::Forward),
        prop_oneof![1u64..20, 1u64..300].prop_map(Happens::Back),
        (1u64..6).prop_map(Happens::Take),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The window is that of the highest time that the wall clock has shown for a day, and each gives its quota once.
    #[test]
    fn windows_follow_a_wall_clock_that_is_set((rate, unit) in prop_oneof![Just(("5/h", 3_600)), Just(("5/d", 86_400))],
        all in prop::collection::vec(happens(), 1..30)) {
        let tens = |steps: u64| Span::from_secs(600 * steps);
        let (policy, hands, clock) = by_the_wall(rate, "2026-01-15T12:05:00Z");
        let wall = |ahead: i64| (hands.now().as_nanos() / 1_000_000_000).cast_signed() + ahead;
        // The time by which the wall clock is ahead, when it was set back, and what it showed then.
        let (mut ahead, mut peaks) = (0_i64, Vec::<(Tick, i64)>::new());
        let (mut counted, mut count) = (0, 0);
        for one in all {
            match one {
                Happens::Pass(steps) => hands.advance(tens(steps)),
                Happens::Forward(steps) => {
                    hands.set_wall_forward(tens(steps));
                    ahead += steps.cast_signed() * 600;
                }
                Happens::Back(steps) => {
                    peaks.push((hands.now(), wall(ahead)));
                    hands.set_wall_back(tens(steps));
                    ahead -= steps.cast_signed() * 600;
                }
                Happens::Take(_) => {}
            }
            clock.follow_wall();
            let Happens::Take(most) = one else { continue };
            let recent = peaks.iter().filter(|(at, _)| hands.now().since(*at) < DAY).map(|(_, wall)| *wall);
            let window = recent.chain([wall(ahead)]).max().unwrap() / unit;
            if counted != window {
                (counted, count) = (window, 0);
            }
            let taken = (0..most).filter(|_| admitted(&policy, 1, hands.now())).count() as u64;
            prop_assert_eq!(taken, most.min(5 - count));
            count += taken;
        }
    }
}
