use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit, Zoned};
use proptest::prelude::*;

use super::*;

const UNITS: [CalendarUnit; 4] = [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month];

const ZONES: [&str; 10] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "America/Sao_Paulo",
    "America/Havana",
    "America/St_Johns",
    "Africa/Casablanca",
];

fn calendar(unit: CalendarUnit, zone: &str) -> Calendar {
    Calendar::new(unit, Zone::named(zone).unwrap())
}

fn wall(text: &str) -> Wall {
    Wall::from_nanos(u64::try_from(text.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap())
}

/// As `2026-03-29T01:00:00Z`.
fn shown(wall: Wall) -> String {
    Timestamp::from_nanosecond(i128::from(wall.as_nanos())).unwrap().to_string()
}

fn window(calendar: &Calendar, now: &str) -> String {
    let CalendarWindow { from, until } = calendar.window(wall(now));
    format!("{} {}", shown(from), shown(until))
}

#[test]
fn a_window_ends_at_local_midnight() {
    use CalendarUnit::{Day, Hour, Month, Week};
    for (unit, zone, now, expected) in [
        (Day, "UTC", "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z 2026-01-02T00:00:00Z"),
        (Day, "UTC", "2026-01-01T23:59:59.999999999Z", "2026-01-01T00:00:00Z 2026-01-02T00:00:00Z"),
        (Day, "Europe/Berlin", "2026-01-01T22:59:59Z", "2025-12-31T23:00:00Z 2026-01-01T23:00:00Z"),
        (Day, "Europe/Berlin", "2026-01-01T23:00:00Z", "2026-01-01T23:00:00Z 2026-01-02T23:00:00Z"),
        (Day, "America/New_York", "2026-07-04T03:59:59Z", "2026-07-03T04:00:00Z 2026-07-04T04:00:00Z"),
        (Day, "Asia/Kathmandu", "2026-07-04T18:14:59Z", "2026-07-03T18:15:00Z 2026-07-04T18:15:00Z"),
        (Hour, "Asia/Kathmandu", "2026-07-04T18:14:59Z", "2026-07-04T17:15:00Z 2026-07-04T18:15:00Z"),
        (Hour, "Europe/Berlin", "2026-07-04T18:14:59Z", "2026-07-04T18:00:00Z 2026-07-04T19:00:00Z"),
        // Weeks begin on Monday: the 5th of January, and the 29th of December.
        (Week, "Europe/Berlin", "2026-01-04T22:59:59Z", "2025-12-28T23:00:00Z 2026-01-04T23:00:00Z"),
        (Week, "Europe/Berlin", "2026-01-04T23:00:00Z", "2026-01-04T23:00:00Z 2026-01-11T23:00:00Z"),
        // One with a day of 23 hours, one with a day of 25.
        (Week, "Europe/Berlin", "2026-03-25T12:00:00Z", "2026-03-22T23:00:00Z 2026-03-29T22:00:00Z"),
        (Week, "America/New_York", "2026-10-28T12:00:00Z", "2026-10-26T04:00:00Z 2026-11-02T05:00:00Z"),
        // Months end as they do, February with 28 or 29 days.
        (Month, "UTC", "2026-02-28T23:59:59Z", "2026-02-01T00:00:00Z 2026-03-01T00:00:00Z"),
        (Month, "UTC", "2028-02-28T23:59:59Z", "2028-02-01T00:00:00Z 2028-03-01T00:00:00Z"),
        (Month, "UTC", "2100-02-10T00:00:00Z", "2100-02-01T00:00:00Z 2100-03-01T00:00:00Z"),
        (Month, "Europe/Berlin", "2026-03-31T21:59:59Z", "2026-02-28T23:00:00Z 2026-03-31T22:00:00Z"),
        (Month, "America/New_York", "2026-12-01T04:59:59Z", "2026-11-01T04:00:00Z 2026-12-01T05:00:00Z"),
    ] {
        assert_eq!(window(&calendar(unit, zone), now), expected, "{unit:?} of {zone} at {now}");
    }
}

#[test]
fn a_day_on_which_clocks_are_changed_has_another_length() {
    for (zone, now, expected, hours) in [
        ("Europe/Berlin", "2026-03-29T00:30:00Z", "2026-03-28T23:00:00Z 2026-03-29T22:00:00Z", 23),
        ("Europe/Berlin", "2026-10-25T21:30:00Z", "2026-10-24T22:00:00Z 2026-10-25T23:00:00Z", 25),
        ("America/New_York", "2026-03-08T05:00:00Z", "2026-03-08T05:00:00Z 2026-03-09T04:00:00Z", 23),
        ("America/New_York", "2026-11-01T04:00:00Z", "2026-11-01T04:00:00Z 2026-11-02T05:00:00Z", 25),
        // The 30th of December 2011 was skipped: the 31st follows upon the 29th.
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T10:00:00Z 2011-12-30T10:00:00Z", 24),
        ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-30T10:00:00Z 2011-12-31T10:00:00Z", 24),
        // Clocks went from 00:01 back to 23:01 of the day before: the new day had begun.
        ("America/St_Johns", "2010-11-07T02:30:30Z", "2010-11-07T02:30:00Z 2010-11-08T03:30:00Z", 25),
        ("America/St_Johns", "2010-11-07T03:00:00Z", "2010-11-07T02:30:00Z 2010-11-08T03:30:00Z", 25),
    ] {
        let calendar = calendar(CalendarUnit::Day, zone);
        assert_eq!(window(&calendar, now), expected, "{zone} at {now}");
        let CalendarWindow { from, until } = calendar.window(wall(now));
        assert_eq!(until.since(from), Span::from_secs(hours * 3_600), "{zone} at {now}");
    }
}

#[test]
fn hours_are_of_sixty_minutes_and_begin_anew_where_clocks_are_changed_by_less() {
    for (zone, now, expected) in [
        // 02:00 to 03:00 twice: two hours.
        ("Europe/Berlin", "2026-10-25T00:59:59Z", "2026-10-25T00:00:00Z 2026-10-25T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25T01:00:00Z", "2026-10-25T01:00:00Z 2026-10-25T02:00:00Z"),
        ("Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29T01:00:00Z 2026-03-29T02:00:00Z"),
        // 02:00 back to 01:30, and 02:00 on to 02:30.
        ("Australia/Lord_Howe", "2026-04-04T14:59:59Z", "2026-04-04T14:00:00Z 2026-04-04T15:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T15:10:00Z", "2026-04-04T15:00:00Z 2026-04-04T15:30:00Z"),
        // 23:30 on to 00:00.
        ("Asia/Pyongyang", "2018-05-04T14:45:00Z", "2018-05-04T14:30:00Z 2018-05-04T15:00:00Z"),
        ("Asia/Pyongyang", "2018-05-04T15:00:00Z", "2018-05-04T15:00:00Z 2018-05-04T16:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-03T15:30:00Z", "2026-10-03T15:30:00Z 2026-10-03T16:00:00Z"),
    ] {
        assert_eq!(window(&calendar(CalendarUnit::Hour, zone), now), expected, "{zone} at {now}");
    }
}

#[test]
fn the_ends_of_time_are_in_windows() {
    for unit in UNITS {
        for zone in ZONES {
            let calendar = calendar(unit, zone);
            let first = calendar.window(Wall::EPOCH);
            assert_eq!(first.from, Wall::EPOCH, "what was before the epoch is cut off");
            assert!(first.until > Wall::EPOCH && first.until <= Wall::EPOCH + Span::from_secs(31 * 86_400));
            let last = calendar.window(Wall::MAX);
            assert!(last.from < Wall::MAX && last.until == Wall::MAX);
        }
    }
}

#[test]
fn who_is_a_little_behind_is_told_the_window_before() {
    let calendar = calendar(CalendarUnit::Day, "Europe/Berlin");
    let (before, after) = ("2026-01-01T22:59:59.999999999Z", "2026-01-01T23:00:00Z");
    let (yesterday, today) = ("2025-12-31T23:00:00Z 2026-01-01T23:00:00Z", "2026-01-01T23:00:00Z 2026-01-02T23:00:00Z");
    for _ in 0..3 {
        assert_eq!(window(&calendar, after), today);
        assert_eq!(window(&calendar, before), yesterday);
    }
    // Somebody has looked far ahead, and the two of now are remembered again.
    for ahead in ["2026-02-01T00:00:00Z", "2026-03-01T00:00:00Z"] {
        assert_ne!(window(&calendar, ahead), today);
        for _ in 0..2 {
            assert_eq!((window(&calendar, before), window(&calendar, after)), (yesterday.into(), today.into()));
        }
    }
}

#[test]
fn the_window_of_now_stays_remembered_whoever_looks_ahead() {
    let calendar = calendar(CalendarUnit::Hour, "Europe/Berlin");
    let remembers = |now: &str| {
        calendar
            .known
            .iter()
            .any(|known| Stretch::from_bits(known.load(Ordering::Relaxed)).contains(wall(now).as_secs()))
    };
    let at = |hour: u64| format!("2026-01-01T{hour:02}:10:00Z");
    for hour in 0..20 {
        calendar.window(wall(&at(hour)));
        calendar.window(wall(&at(hour + 1)));
        assert!(remembers(&at(hour)) && remembers(&at(hour + 1)), "{hour}");
    }
}

#[test]
fn weeks_begin_on_the_day_that_is_chosen() {
    let weeks = |day| calendar(CalendarUnit::Week, "Europe/Berlin").with_weeks_from(day);
    for (day, now, expected) in [
        // The 4th of January 2026 is a Sunday.
        (Weekday::Sunday, "2026-01-03T22:59:59Z", "2025-12-27T23:00:00Z 2026-01-03T23:00:00Z"),
        (Weekday::Sunday, "2026-01-03T23:00:00Z", "2026-01-03T23:00:00Z 2026-01-10T23:00:00Z"),
        (Weekday::Saturday, "2026-01-03T22:59:59Z", "2026-01-02T23:00:00Z 2026-01-09T23:00:00Z"),
        (Weekday::Monday, "2026-01-03T23:00:00Z", "2025-12-28T23:00:00Z 2026-01-04T23:00:00Z"),
        (Weekday::Tuesday, "2026-01-05T22:59:59Z", "2025-12-29T23:00:00Z 2026-01-05T23:00:00Z"),
        // Clocks go forward on Sunday the 29th of March, at two: the week from there on has 167 hours.
        (Weekday::Sunday, "2026-03-29T12:00:00Z", "2026-03-28T23:00:00Z 2026-04-04T22:00:00Z"),
    ] {
        assert_eq!(window(&weeks(day), now), expected, "{day:?} {now}");
        assert_eq!(window(&weeks(day).clone(), now), expected, "a copy of {day:?} {now}");
    }
    for day in Weekday::ALL {
        let calendar = weeks(day);
        for second in (0..400).map(|nth| 1_767_000_000 + nth * 40_000) {
            let CalendarWindow { from, until } = calendar.window(Wall::EPOCH + Span::from_secs(second));
            let zone = TimeZone::get("Europe/Berlin").unwrap();
            let first = Timestamp::from_second(from.as_secs().cast_signed()).unwrap().to_zoned(zone.clone());
            let next = Timestamp::from_second(until.as_secs().cast_signed()).unwrap().to_zoned(zone);
            assert_eq!(first.weekday().to_monday_zero_offset() as u8, day as u8);
            assert_eq!((first.hour(), next.hour()), (0, 0));
            assert_eq!(first.date().checked_add(7.days()).unwrap(), next.date());
        }
    }
}

#[test]
fn months_begin_on_the_day_that_is_chosen_or_on_their_last() {
    let months = |day| calendar(CalendarUnit::Month, "Europe/Berlin").with_months_from(day);
    for (day, now, expected) in [
        (15, "2026-01-14T22:59:59Z", "2025-12-14T23:00:00Z 2026-01-14T23:00:00Z"),
        (15, "2026-01-14T23:00:00Z", "2026-01-14T23:00:00Z 2026-02-14T23:00:00Z"),
        (31, "2026-01-31T12:00:00Z", "2026-01-30T23:00:00Z 2026-02-27T23:00:00Z"),
        (31, "2026-02-28T12:00:00Z", "2026-02-27T23:00:00Z 2026-03-30T22:00:00Z"),
        (31, "2026-04-01T12:00:00Z", "2026-03-30T22:00:00Z 2026-04-29T22:00:00Z"),
        (30, "2028-02-29T12:00:00Z", "2028-02-28T23:00:00Z 2028-03-29T22:00:00Z"),
        (29, "2027-02-28T12:00:00Z", "2027-02-27T23:00:00Z 2027-03-28T22:00:00Z"),
        (1, "2026-02-28T22:59:59Z", "2026-01-31T23:00:00Z 2026-02-28T23:00:00Z"),
    ] {
        assert_eq!(window(&months(day), now), expected, "{day} {now}");
        assert_eq!(window(&months(day).clone(), now), expected, "a copy of {day} {now}");
    }
}

#[test]
fn equal_calendars_cut_time_at_the_same_places() {
    let berlin = calendar(CalendarUnit::Day, "Europe/Berlin");
    berlin.window(wall("2026-01-01T00:00:00Z"));
    assert_eq!(berlin, berlin.clone());
    assert_eq!(berlin, calendar(CalendarUnit::Day, "europe/berlin"));
    assert_ne!(berlin, calendar(CalendarUnit::Week, "Europe/Berlin"));
    assert_ne!(berlin, calendar(CalendarUnit::Day, "Europe/Paris"));
    let weeks = calendar(CalendarUnit::Week, "Europe/Berlin");
    assert_ne!(weeks, weeks.clone().with_weeks_from(Weekday::Sunday));
    assert_eq!(berlin, berlin.clone().with_weeks_from(Weekday::Sunday), "days are the same");
    let texts = [&weeks, &weeks.clone().with_weeks_from(Weekday::Sunday)].map(|weeks| format!("{weeks:?}"));
    assert_eq!(texts, ["Calendar(Week, Europe/Berlin)", "Calendar(Week from sunday, Europe/Berlin)"]);
    let months = calendar(CalendarUnit::Month, "Europe/Berlin");
    assert_ne!(months, months.with_months_from(31));
    assert_eq!((&months, &berlin), (&months.with_months_from(1), &berlin.with_months_from(31)));
    let texts = [&months, &months.with_months_from(31)].map(|months| format!("{months:?}"));
    assert_eq!(texts, ["Calendar(Month, Europe/Berlin)", "Calendar(Month from 31, Europe/Berlin)"]);
}

/// The window of an instant by jiff's own days and months, made anew each time; hours by its rounding.
fn naive(unit: CalendarUnit, zone: &str, second: i64) -> (i64, i64) {
    let now = Timestamp::from_second(second).unwrap().to_zoned(TimeZone::get(zone).unwrap());
    let start = |zoned: Zoned| zoned.start_of_day().unwrap();
    let first = match unit {
        CalendarUnit::Hour => {
            let floor = jiff::ZonedRound::new().smallest(Unit::Hour).mode(jiff::RoundMode::Floor);
            let first = now.round(floor).unwrap();
            return (first.timestamp().as_second(), first.timestamp().as_second() + 3_600);
        }
        CalendarUnit::Day => start(now),
        CalendarUnit::Week => {
            let monday = now.date().nth_weekday(-1, jiff::civil::Weekday::Monday).unwrap();
            let monday = if now.date().weekday() == jiff::civil::Weekday::Monday { now.date() } else { monday };
            start(monday.to_zoned(now.time_zone().clone()).unwrap())
        }
        CalendarUnit::Month => start(now.first_of_month().unwrap()),
    };
    let next = match unit {
        CalendarUnit::Hour | CalendarUnit::Day => start(first.checked_add(1.day()).unwrap()),
        CalendarUnit::Week => start(first.checked_add(1.week()).unwrap()),
        CalendarUnit::Month => start(first.checked_add(1.month()).unwrap()),
    };
    (first.timestamp().as_second(), next.timestamp().as_second())
}

/// The month from a day on that an instant is in: of the beginnings around it the last one before, and the first one after.
fn naive_month(day: i8, zone: &str, second: i64) -> (i64, i64) {
    let rules = TimeZone::get(zone).unwrap();
    let now = Timestamp::from_second(second).unwrap().to_zoned(rules.clone()).date();
    let begins = (-2..=2).map(|months| {
        let month = now.first_of_month().checked_add(months.months()).unwrap();
        let date = month.with().day(day.min(month.days_in_month())).build().unwrap();
        date.to_zoned(rules.clone()).unwrap().start_of_day().unwrap().timestamp().as_second()
    });
    let begins: Vec<i64> = begins.collect();
    let next = begins.iter().position(|begin| *begin > second).unwrap();
    (begins[next - 1], begins[next])
}

/// Seconds of 2000 to 2060: anywhere, and around where clocks are changed.
fn seconds(zone: &'static str) -> impl Strategy<Value = i64> {
    let (low, high) = (946_684_800i64, 2_840_140_800i64);
    let near = (low..high, -90_000i64..90_000).prop_map(move |(second, off)| {
        let rules = TimeZone::get(zone).unwrap();
        let change = rules.following(Timestamp::from_second(second).unwrap()).next();
        change.map_or(second, |change| change.timestamp().as_second()) + off
    });
    prop_oneof![low..high, near]
}

fn asked() -> impl Strategy<Value = (CalendarUnit, &'static str, Vec<i64>)> {
    (prop::sample::select(&UNITS[..]), prop::sample::select(&ZONES[..]))
        .prop_flat_map(|(unit, zone)| (Just(unit), Just(zone), prop::collection::vec(seconds(zone), 1..20)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn agrees_with_months_from_a_day_made_anew(
        (zone, seconds) in prop::sample::select(&ZONES[..])
            .prop_flat_map(|zone| (Just(zone), prop::collection::vec(seconds(zone), 1..20))),
        day in 1_u8..=31,
    ) {
        let calendar = calendar(CalendarUnit::Month, zone).with_months_from(day);
        for second in seconds.into_iter().filter(|second| zone != "America/St_Johns" || *second > 1_325_376_000) {
            let CalendarWindow { from, until } = calendar.window(Wall::EPOCH + Span::from_secs(second as u64));
            let found = (from.as_secs().cast_signed(), until.as_secs().cast_signed());
            prop_assert_eq!(found, naive_month(day.cast_signed(), zone, second), "from {} of {} at {}", day, zone, second);
        }
    }

    /// In whichever order it is asked. St. John's, whose days were cut across midnight until 2011, is in the table above, and
    /// hours of half an hour too.
    #[test]
    fn agrees_with_windows_made_anew_for_every_instant((unit, zone, seconds) in asked()) {
        let calendar = calendar(unit, zone);
        for second in seconds {
            let is_odd = match zone {
                "America/St_Johns" => second < 1_325_376_000,
                "Australia/Lord_Howe" => unit == CalendarUnit::Hour,
                _ => false,
            };
            let expected = naive(unit, zone, second);
            let CalendarWindow { from, until } = calendar.window(Wall::EPOCH + Span::from_secs(second as u64));
            let found = (from.as_nanos() / 1_000_000_000, until.as_nanos() / 1_000_000_000);
            if !is_odd {
                prop_assert_eq!(found, (expected.0 as u64, expected.1 as u64), "{:?} of {} at {}", unit, zone, second);
            }
            // Windows of any zone lie side by side.
            let inside = from.as_nanos() <= second as u64 * 1_000_000_000 && (second as u64) * 1_000_000_000 < until.as_nanos();
            prop_assert!(inside);
            let (next, before) = (calendar.window(until), calendar.window(from - Span::from_nanos(1)));
            prop_assert_eq!((next.from, before.until), (until, from), "{:?} of {} at {}", unit, zone, second);
        }
    }
}
