use jiff::Timestamp;
use jiff::tz::TimeZone;
use proptest::prelude::*;

use super::*;
use crate::{Clock, ManualClock, Span, Wall};

const ZONES: [&str; 6] =
    ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Havana"];

fn zone(name: &str) -> Zone {
    Zone::named(name).unwrap()
}

fn days(names: &[Weekday]) -> Days {
    names.iter().fold(Days::default(), |days, day| days.with(*day))
}

fn weekly(days: Days, from: &str, until: &str, name: &str) -> ScheduleRules {
    ScheduleRules::weekly(days, from.parse().unwrap(), until.parse().unwrap(), zone(name)).unwrap()
}

fn once(from: &str, until: &str, name: &str) -> Result<ScheduleRules, ScheduleError> {
    let local = |text: &str| (!text.is_empty()).then(|| text.parse().unwrap());
    ScheduleRules::once(local(from), local(until), zone(name))
}

fn tick(text: &str) -> Tick {
    Tick::from_nanos(u64::try_from(text.parse::<Timestamp>().unwrap().as_nanosecond()).unwrap())
}

fn wall(text: &str) -> Wall {
    Wall::from_nanos(tick(text).as_nanos())
}

/// Whether it holds a nanosecond before an instant and at it, asked in both orders, and of one that remembers nothing.
fn around(rules: &ScheduleRules, text: &str) -> (bool, bool) {
    let (at, before) = (tick(text), tick(text) - Span::from_nanos(1));
    let fresh = |now| Schedule::new(rules.clone()).is_active(now);
    let asked = Schedule::new(rules.clone());
    for now in [before, at, before, at] {
        assert_eq!(asked.is_active(now), fresh(now), "{rules} around {text}");
    }
    (fresh(before), fresh(at))
}

const BEGINS: (bool, bool) = (false, true);
const ENDS: (bool, bool) = (true, false);
const HOLDS: (bool, bool) = (true, true);
const RESTS: (bool, bool) = (false, false);

#[test]
fn working_hours_hold_on_working_days_by_the_clocks_of_the_zone() {
    use Weekday::{Friday, Monday, Thursday, Tuesday, Wednesday};
    let rules = weekly(days(&[Monday, Tuesday, Wednesday, Thursday, Friday]), "09:00", "18:00", "Europe/Berlin");
    for (text, expected) in [
        // Friday the 27th of March 2026, at UTC+1, and Monday the 30th, at UTC+2.
        ("2026-03-27T08:00:00Z", BEGINS),
        ("2026-03-27T12:00:00Z", HOLDS),
        ("2026-03-27T17:00:00Z", ENDS),
        ("2026-03-28T12:00:00Z", RESTS),
        ("2026-03-29T12:00:00Z", RESTS),
        ("2026-03-30T07:00:00Z", BEGINS),
        ("2026-03-30T16:00:00Z", ENDS),
    ] {
        assert_eq!(around(&rules, text), expected, "{text}");
    }
}

#[test]
fn what_ends_earlier_than_it_begins_goes_over_midnight() {
    let rules = weekly(days(&[Weekday::Saturday]), "22:00", "06:00", "America/New_York");
    for (text, expected) in [
        ("2026-01-03T03:00:00Z", RESTS),
        ("2026-01-04T03:00:00Z", BEGINS),
        ("2026-01-04T05:00:00Z", HOLDS),
        ("2026-01-04T11:00:00Z", ENDS),
        ("2026-01-05T03:00:00Z", RESTS),
    ] {
        assert_eq!(around(&rules, text), expected, "{text}");
    }
}

#[test]
fn whole_days_that_follow_each_other_are_one() {
    let weekend = weekly(days(&[Weekday::Saturday, Weekday::Sunday]), "00:00", "24:00", "Asia/Kathmandu");
    for (text, expected) in [
        ("2026-01-02T18:15:00Z", BEGINS),
        ("2026-01-03T18:15:00Z", HOLDS),
        ("2026-01-04T18:15:00Z", ENDS),
        ("2026-01-07T18:15:00Z", RESTS),
    ] {
        assert_eq!(around(&weekend, text), expected, "{text}");
    }
    let always = weekly(Days::ALL, "00:00", "24:00", "Europe/Berlin");
    for text in ["1970-01-01T00:00:01Z", "2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z", "2026-12-31T23:00:00Z"] {
        assert_eq!(around(&always, text), HOLDS, "{text}");
    }
    let nearly = weekly(Days::ALL, "18:00", "09:00", "UTC");
    for (text, expected) in [("2026-01-01T09:00:00Z", ENDS), ("2026-01-01T18:00:00Z", BEGINS)] {
        assert_eq!(around(&nearly, text), expected, "{text}");
    }
}

#[test]
fn a_time_that_is_skipped_is_later_by_as_much_and_one_that_comes_twice_is_the_first() {
    for (from, until, begins, ends) in [
        // Clocks go from 02:00 to 03:00 on the 29th of March 2026.
        ("02:30", "05:00", "2026-03-29T01:30:00Z", "2026-03-29T03:00:00Z"),
        ("01:00", "02:30", "2026-03-29T00:00:00Z", "2026-03-29T01:30:00Z"),
        ("02:00", "02:30", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z"),
        // And from 03:00 back to 02:00 on the 25th of October.
        ("02:30", "05:00", "2026-10-25T00:30:00Z", "2026-10-25T04:00:00Z"),
        ("01:00", "02:30", "2026-10-24T23:00:00Z", "2026-10-25T00:30:00Z"),
        ("02:00", "03:00", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z"),
    ] {
        let rules = weekly(Days::ALL, from, until, "Europe/Berlin");
        assert_eq!((around(&rules, begins), around(&rules, ends)), (BEGINS, ENDS), "{from} to {until}");
    }
    // What would end before it begins is not.
    for (from, until) in [("02:00", "03:00"), ("02:30", "03:15")] {
        let rules = weekly(Days::ALL, from, until, "Europe/Berlin");
        let schedule = Schedule::new(rules);
        let minutes = (0..24 * 60)
            .filter(|minute| schedule.is_active(tick("2026-03-28T23:00:00Z") + Span::from_secs(minute * 60)));
        let after = tick("2026-03-29T22:00:00Z");
        let counted = minutes.filter(|minute| tick("2026-03-28T23:00:00Z") + Span::from_secs(minute * 60) < after);
        assert_eq!(counted.count(), 0, "{from} to {until}");
    }
    for (text, expected) in [("2026-03-08T07:30:00Z", BEGINS), ("2026-03-08T08:00:00Z", ENDS)] {
        assert_eq!(around(&weekly(Days::ALL, "02:30", "04:00", "America/New_York"), text), expected, "{text}");
    }
}

#[test]
fn a_day_that_is_skipped_is_held_on_the_next() {
    // In Samoa Thursday the 29th of December 2011 was followed by Saturday the 31st.
    let fridays = weekly(days(&[Weekday::Friday]), "09:00", "18:00", "Pacific/Apia");
    let saturdays = weekly(days(&[Weekday::Saturday]), "09:00", "18:00", "Pacific/Apia");
    for rules in [&fridays, &saturdays] {
        assert_eq!(around(rules, "2011-12-30T19:00:00Z"), BEGINS, "{rules}");
        assert_eq!(around(rules, "2011-12-31T04:00:00Z"), ENDS, "{rules}");
    }
    let thursdays = weekly(days(&[Weekday::Thursday]), "22:00", "06:00", "Pacific/Apia");
    assert_eq!(around(&thursdays, "2011-12-30T08:00:00Z"), BEGINS);
    assert_eq!(around(&thursdays, "2011-12-30T16:00:00Z"), ENDS, "at 06:00 of the 31st");
}

#[test]
fn a_week_in_which_there_is_nothing_is_not_the_end() {
    let sundays = Schedule::new(weekly(days(&[Weekday::Sunday]), "02:00", "03:00", "Europe/Berlin"));
    // On the 29th of March 2026 there is no such hour.
    for (text, holds) in [
        ("2026-03-22T01:30:00Z", true),
        ("2026-03-22T02:00:00Z", false),
        ("2026-03-23T12:00:00Z", false),
        ("2026-03-29T01:00:00Z", false),
        ("2026-04-05T00:00:00Z", true),
        ("2026-04-05T01:00:00Z", false),
    ] {
        assert_eq!(sundays.is_active(tick(text)), holds, "{text}");
    }
}

#[test]
fn a_stretch_of_its_own_begins_and_ends_once() {
    let both = once("2026-12-24T18:00", "2026-12-27T06:00:30", "Europe/Berlin").unwrap();
    assert_eq!(around(&both, "2026-12-24T17:00:00Z"), BEGINS);
    assert_eq!(around(&both, "2026-12-27T05:00:30Z"), ENDS);
    let from = once("2026-12-24T18:00", "", "UTC").unwrap();
    for (text, expected) in [
        ("1970-01-01T00:00:01Z", RESTS),
        ("2026-12-24T18:00:00Z", BEGINS),
        ("2039-01-01T00:00:00Z", HOLDS),
        ("2500-01-01T00:00:00Z", HOLDS),
    ] {
        assert_eq!(around(&from, text), expected, "{text}");
    }
    let until = once("", "2026-03-29T02:30", "Europe/Berlin").unwrap();
    assert_eq!(around(&until, "2026-03-29T01:30:00Z"), ENDS, "as much later as clocks go forward");
    assert_eq!(around(&until, "1970-01-01T00:00:01Z"), HOLDS);
    // Beyond what a tick can say, on either side.
    let ever = once("0001-01-01T00:00", "9999-12-31T23:59:59", "UTC").unwrap();
    assert!(Schedule::new(ever.clone()).is_active(Tick::ZERO) && Schedule::new(ever).is_active(Tick::MAX));
    let never = once("9998-01-01T00:00", "", "UTC").unwrap();
    assert!(!Schedule::new(never.clone()).is_active(Tick::ZERO) && !Schedule::new(never).is_active(Tick::MAX));
}

#[test]
fn what_is_no_schedule_is_refused() {
    let on = |days, from: &str, until: &str| {
        ScheduleRules::weekly(days, from.parse().unwrap(), until.parse().unwrap(), Zone::utc())
    };
    assert_eq!(on(Days::default(), "09:00", "18:00"), Err(ScheduleError::NoDays));
    assert_eq!(on(Days::ALL, "24:00", "06:00"), Err(ScheduleError::FromMidnight));
    assert_eq!(on(Days::ALL, "09:00", "09:00:00"), Err(ScheduleError::SameTime));
    assert_eq!(once("", "", "UTC"), Err(ScheduleError::Endless));
    assert_eq!(once("2026-12-24T18:00", "2026-12-24T18:00", "UTC"), Err(ScheduleError::SameTime));
    assert_eq!(once("2026-12-24T18:00", "2026-12-24T17:59", "UTC"), Err(ScheduleError::Backwards));
    // 02:30 is 03:30 that day.
    assert_eq!(once("2026-03-29T02:30", "2026-03-29T03:30", "Europe/Berlin"), Err(ScheduleError::SameTime));
    assert_eq!(once("2026-03-29T02:30", "2026-03-29T03:15", "Europe/Berlin"), Err(ScheduleError::Backwards));
}

#[test]
fn times_parse_strictly_and_print_the_same_text() {
    for text in ["00:00", "09:00", "23:59", "23:59:59", "24:00", "00:00:01"] {
        assert_eq!(text.parse::<DayTime>().map(|time| time.to_string()), Ok(text.to_owned()));
    }
    for text in [
        "",
        "9:00",
        "09",
        "09:0",
        "09:60",
        "24:01",
        "24:00:01",
        "25:00",
        "09:00:60",
        "+9:00",
        "09:00:00:00",
        " 09:00",
        "09.00",
    ] {
        assert_eq!(text.parse::<DayTime>(), Err(ScheduleError::DayTime), "{text:?}");
    }
    for text in ["2026-12-24T18:00", "2028-02-29T00:00:01", "0001-01-01T00:00"] {
        assert_eq!(text.parse::<LocalTime>().map(|time| time.to_string()), Ok(text.to_owned()));
    }
    for text in [
        "2026-12-24",
        "2026-12-24T24:00",
        "2026-12-24 18:00",
        "2026-12-24T18:00Z",
        "2026-12-24T18:00+01:00",
        "2026-02-29T18:00",
        "2026-13-01T18:00",
        "26-12-24T18:00",
        "+2026-12-24T18:00",
        "2026-1-1T18:00",
    ] {
        assert_eq!(text.parse::<LocalTime>(), Err(ScheduleError::LocalTime), "{text:?}");
    }
}

#[test]
fn a_schedule_is_shown_as_it_is_written() {
    let some = days(&[Weekday::Monday, Weekday::Sunday]);
    assert_eq!(weekly(some, "09:00", "18:00", "Europe/Berlin").to_string(), "09:00 to 18:00, mon sun, Europe/Berlin");
    assert_eq!(weekly(Days::ALL, "00:00", "24:00", "UTC").to_string(), "00:00 to 24:00, every day, UTC");
    assert_eq!(once("2026-12-24T18:00", "", "UTC").unwrap().to_string(), "from 2026-12-24T18:00, UTC");
    assert_eq!(once("", "2026-12-24T18:00", "UTC").unwrap().to_string(), "until 2026-12-24T18:00, UTC");
    let both = once("2026-12-24T18:00", "2026-12-25T00:00:01", "UTC").unwrap();
    assert_eq!(both.to_string(), "2026-12-24T18:00 to 2026-12-25T00:00:01, UTC");
}

#[test]
fn what_is_remembered_is_the_latest_that_was_asked() {
    let schedule = Schedule::new(weekly(Days::ALL, "09:00", "18:00", "UTC"));
    let known = || Stretch::from_bits(schedule.known.load(Ordering::Relaxed));
    assert!(schedule.is_active(tick("2026-01-01T12:00:00Z")));
    assert_eq!((known().from(), known().until()), (wall("2026-01-01T09:00:00Z"), wall("2026-01-01T18:00:00Z")));
    assert!(!schedule.is_active(tick("2026-01-01T18:00:00Z")));
    assert_eq!((known().from(), known().until()), (wall("2026-01-01T18:00:00Z"), wall("2026-01-02T09:00:00Z")));
    assert!(schedule.is_active(tick("2026-01-01T17:59:59.999999999Z")), "of who is a little behind");
    assert_eq!(known().from(), wall("2026-01-01T18:00:00Z"), "who does not make others look again");
}

#[test]
fn it_follows_the_wall_clock_both_ways() {
    let clock = ManualClock::new();
    clock.advance(Span::from_nanos(tick("2026-01-01T08:00:00Z").as_nanos()));
    let of_clock = Clock::Manual(clock.clone());
    let rules = weekly(Days::ALL, "09:00", "18:00", "UTC");
    let schedule = Schedule::going_by(of_clock.offset().clone(), rules);
    assert!(!schedule.is_active(clock.now()));
    clock.set_wall_forward(Span::from_secs(2 * 3_600));
    assert!(!schedule.is_active(clock.now()), "nothing has read it yet");
    of_clock.follow_wall();
    assert!(schedule.is_active(clock.now()), "it is 10:00");
    clock.set_wall_back(Span::from_secs(3 * 3_600));
    of_clock.follow_wall();
    assert!(!schedule.is_active(clock.now()), "it is 07:00");
    let known = || Stretch::from_bits(schedule.known.load(Ordering::Relaxed));
    assert_eq!(known().until(), wall("2026-01-01T09:00:00Z"), "it is remembered, too");
    clock.advance(Span::from_secs(2 * 3_600));
    assert!(schedule.is_active(clock.now()), "it is 09:00");
}

#[test]
fn threads_on_both_sides_of_an_edge_are_each_told_what_is_so() {
    let schedule = Schedule::new(weekly(Days::ALL, "09:00", "18:00", "UTC"));
    let (before, after) = (tick("2026-01-01T08:59:59.999999999Z"), tick("2026-01-01T09:00:00Z"));
    std::thread::scope(|scope| {
        for now in [before, after, before, after] {
            let schedule = &schedule;
            scope.spawn(move || (0..20_000).for_each(|_| assert_eq!(schedule.is_active(now), now == after)));
        }
    });
}

/// Whether an instant is in what begins on one of the two hundred days around it, each looked at alone.
fn naive(days: Days, from: u32, until: u32, name: &str, second: i64) -> bool {
    let rules = TimeZone::get(name).unwrap();
    let now = Timestamp::from_second(second).unwrap();
    let today = rules.to_datetime(now).date();
    let local = |date: Date, seconds: u32| {
        let hour = i8::try_from(seconds / 3_600).unwrap();
        let local = date.at(hour, (seconds / 60 % 60) as i8, (seconds % 60) as i8, 0);
        local.to_zoned(rules.clone()).unwrap().timestamp()
    };
    (-100..100).any(|offset| {
        let date = today.checked_add(i64::from(offset).days()).unwrap();
        let next = date.tomorrow().unwrap();
        let until = match until {
            DAY => local(next, 0),
            until if until < from => local(next, until),
            until => local(date, until),
        };
        let is_day = Weekday::ALL[date.weekday().to_monday_zero_offset() as usize];
        days.with(is_day) == days && local(date, from) <= now && now < until
    })
}

fn asked() -> impl Strategy<Value = (&'static str, Vec<i64>)> {
    prop::sample::select(&ZONES[..]).prop_flat_map(|zone| {
        let second = (1_700_000_000i64..1_900_000_000, -200_000i64..200_000).prop_map(move |(second, off)| {
            let rules = TimeZone::get(zone).unwrap();
            let change = rules.following(Timestamp::from_second(second).unwrap()).next();
            change.map_or(second, |change| change.timestamp().as_second()) + off
        });
        (Just(zone), prop::collection::vec(second, 1..8))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Around where clocks are changed, in whichever order it is asked, and at the ends of what it remembers.
    #[test]
    fn agrees_with_each_day_looked_at_alone(
        (name, seconds) in asked(),
        bits in 1u8..128,
        from in prop_oneof![Just(0u32), (0u32..48).prop_map(|half| half * 1_800), 0..DAY],
        until in prop_oneof![Just(DAY), (0u32..49).prop_map(|half| half * 1_800), 0..DAY],
    ) {
        prop_assume!(from != until);
        let rules = ScheduleRules::weekly(Days(bits), DayTime(from), DayTime(until), zone(name)).unwrap();
        let schedule = Schedule::new(rules);
        for second in seconds {
            let now = Tick::ZERO + Span::from_secs(second as u64);
            prop_assert_eq!(schedule.is_active(now), naive(Days(bits), from, until, name, second), "{}", second);
            let known = Stretch::from_bits(schedule.known.load(Ordering::Relaxed));
            if known.contains(second as u64) {
                for edge in [known.from(), known.until() - Span::from_secs(1), known.until()] {
                    let edge_second = (edge.as_nanos() / 1_000_000_000).cast_signed();
                    let expected = naive(Days(bits), from, until, name, edge_second);
                    prop_assert_eq!(schedule.is_active(Tick::from_nanos(edge.as_nanos())), expected, "the edge {}", edge_second);
                }
            }
        }
    }
}
