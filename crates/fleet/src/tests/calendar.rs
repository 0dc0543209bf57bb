//! Windows of a calendar, whose bounds the gateway sends along.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::families::{DRIVEN, HOLD, Pair, driven, either, run_from};
use super::server::{Raw, Server};
use crate::scripts::of_family;
use crate::shared::{ScriptReply, SharedLimit};
use sluicegate_limiter::{Algorithm, CalendarRate, FixedWindow, Settle};
use sluicegate_time::{CalendarUnit, Weekday, Zone};

const SECOND: u64 = 1_000_000;
const HOUR: u64 = 3_600 * SECOND;
const UNITS: [CalendarUnit; 4] = [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week, CalendarUnit::Month];
/// Berlin's day of 23 hours, 29 March 2026, from 28 March, 23:00 UTC, on.
const SHORT_DAY: u64 = 1_774_738_800 * SECOND;
/// Its day of 25 hours, 25 October 2026, from 24 October, 22:00 UTC, on.
const LONG_DAY: u64 = 1_792_879_200 * SECOND;

fn of_calendar(rates: &[(u64, CalendarUnit)], zone: &str) -> Algorithm {
    let rates: Vec<_> = rates.iter().map(|(limit, unit)| CalendarRate::new(*limit, *unit).unwrap()).collect();
    Algorithm::FixedWindow(FixedWindow::of_calendar(&rates, &Zone::named(zone).unwrap()).unwrap())
}

fn windows(limits: impl Strategy<Value = u64>) -> impl Strategy<Value = Algorithm> {
    let zone = select(vec!["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Sao_Paulo"]);
    let day = select(Weekday::ALL.to_vec());
    (vec((limits, select(UNITS.to_vec())), 1..5), zone, day).prop_map(|(rates, zone, day)| {
        let Algorithm::FixedWindow(window) = of_calendar(&rates, zone) else { panic!("no window") };
        Algorithm::FixedWindow(window.with_weeks_from(day))
    })
}

/// A few microseconds, or hours, before clocks are changed or a month ends.
fn borders() -> impl Strategy<Value = u64> {
    let border = select(vec![
        SHORT_DAY,
        SHORT_DAY + 2 * HOUR,
        SHORT_DAY + 23 * HOUR,
        LONG_DAY,
        LONG_DAY + 3 * HOUR,
        LONG_DAY + 25 * HOUR,
        // Lord Howe: by half an hour back, on 4 April 2026, 15:00 UTC.
        1_775_314_800 * SECOND,
        // Sao Paulo: midnight of 4 November 2018 was skipped, at 03:00 UTC.
        1_541_300_400 * SECOND,
        // New York: 1 November 2026, 06:00 UTC, and its first midnight at 04:00 UTC.
        1_793_512_800 * SECOND,
        1_793_505_600 * SECOND,
        // UTC: February's end with 28 days, with 29, a year's, and a Monday.
        1_772_323_200 * SECOND,
        1_709_251_200 * SECOND,
        1_767_225_600 * SECOND,
        1_767_571_200 * SECOND,
    ]);
    (border, prop_oneof![0u64..80, 0..2 * HOUR, 0..48 * HOUR]).prop_map(|(border, before)| border - before)
}

#[test]
fn the_window_of_a_calendar_in_lua_counts_as_in_rust() {
    let small = windows(1u64..13);
    let large = windows(select(vec![4_294_967_295, 4_294_967_291, 1_000_003]));
    run_from(&Server::start(), either(small, large), borders());
}

fn ask(spent: u64, need: u64) -> Settle {
    Settle { spent, need, want: need, ..Settle::default() }
}

#[test]
fn a_day_of_23_hours_and_one_of_25_end_when_clocks_show_midnight() {
    let server = Server::start();
    let mut store = server.raw();
    for (key, begins, hours) in [("short", SHORT_DAY, 23), ("long", LONG_DAY, 25)] {
        let day = of_calendar(&[(5, CalendarUnit::Day)], "Europe/Berlin");
        let mut pair = Pair::new(&mut store, key.to_owned(), day);
        let mut at = |settle, now| {
            let reply = pair.settle(&settle, now).unwrap();
            (reply[0], reply[1], reply[2], reply[4])
        };
        let ends = begins + hours * HOUR;
        let day = (hours * HOUR).cast_signed();
        assert_eq!(at(ask(0, 5), begins - 1), (5, 1, -1, 0), "the grant ends with its day, in a microsecond");
        assert_eq!(at(ask(0, 5), begins), (5, 100_000, -1, 0));
        assert_eq!(at(ask(0, 1), begins), (0, 0, day, 0), "{hours} hours");
        assert_eq!(at(ask(7, 1), ends - 1), (0, 0, 1, 0));
        assert_eq!(at(ask(0, 1), ends), (1, 100_000, -1, 4), "a debt ends with its window");
    }
}

#[test]
fn months_of_28_30_and_31_days_are_full_until_their_end() {
    let server = Server::start();
    let mut store = server.raw();
    let month = of_calendar(&[(5, CalendarUnit::Month)], "UTC");
    let mut pair = Pair::new(&mut store, "month".to_owned(), month);
    // From 1 February 2026 on.
    let mut begins = 1_769_904_000 * SECOND;
    for days in [28, 31, 30] {
        let reply = pair.settle(&ask(5, 1), begins).unwrap();
        assert_eq!((reply[0], reply[2]), (0, (days * 24 * HOUR).cast_signed()), "{days} days");
        begins += days * 24 * HOUR;
        assert_eq!(pair.settle(&ask(0, 0), begins - 1).unwrap()[4], 0);
    }
}

/// The store's clock is at `now`, the gateway thinks it is at `believed`.
fn settle(store: &mut Raw, shared: &SharedLimit, settle: &Settle, believed: u64, now: u64) -> ScriptReply {
    let script = of_family(DRIVEN, shared.family());
    store.ask(&["SCRIPT", "LOAD", script.text()]);
    let numbers = shared.arguments(settle, HOLD, None, believed);
    shared.reply(&driven(store, &script, "key", &numbers, now)).unwrap()
}

#[test]
fn a_settle_of_another_window_than_the_stores_is_not_done_and_says_the_clock() {
    let server = Server::start();
    let mut store = server.raw();
    // The day is another one, the month is the same.
    let rates = [(5, CalendarUnit::Month), (5, CalendarUnit::Day)];
    let Algorithm::FixedWindow(window) = of_calendar(&rates, "Europe/Berlin") else { panic!("no window") };
    let shared = SharedLimit::new(&Algorithm::FixedWindow(window)).unwrap();
    let late = |clock| ScriptReply { answer: None, clock };
    // It is on its way as the day begins; and its clock is ahead of the store's.
    assert_eq!(settle(&mut store, &shared, &ask(1, 1), SHORT_DAY - 1, SHORT_DAY), late(SHORT_DAY));
    assert_eq!(settle(&mut store, &shared, &ask(1, 1), SHORT_DAY, SHORT_DAY - 1), late(SHORT_DAY - 1));
    assert_eq!(store.integers(&["EXISTS", "key"]), [0], "nothing was charged");
    // Asked again by the clock of the reply.
    let answer = settle(&mut store, &shared, &ask(1, 1), SHORT_DAY, SHORT_DAY).answer.unwrap();
    assert_eq!((answer.granted, answer.remaining), (1, [3, 3, 0, 0]));
    let next = SHORT_DAY + 23 * HOUR;
    assert_eq!(settle(&mut store, &shared, &ask(2, 0), next - 1, next), late(next));
    let answer = settle(&mut store, &shared, &ask(2, 0), next, next).answer.unwrap();
    assert_eq!(answer.remaining, [1, 3, 0, 0], "charged once, to the day in which it came");
}

#[test]
fn a_clock_that_is_set_back_over_midnight_grants_no_day_anew() {
    let server = Server::start();
    let mut store = server.raw();
    let shared = SharedLimit::new(&of_calendar(&[(5, CalendarUnit::Day)], "Europe/Berlin")).unwrap();
    let mut remaining = |cost, now| settle(&mut store, &shared, &ask(cost, 0), now, now).answer.unwrap().remaining[0];
    assert_eq!(remaining(3, SHORT_DAY), 2);
    assert_eq!(remaining(1, SHORT_DAY - HOUR), 1, "it stands still, in the new day");
    assert_eq!(remaining(0, SHORT_DAY), 1);
    assert_eq!(remaining(0, SHORT_DAY + 23 * HOUR), 5);
}

/// Two gateways with other rules of the same zone, one of which thinks that its day begins an hour later.
#[test]
fn a_window_that_has_not_ended_is_counted_on_in_whatever_the_asker_thinks() {
    let server = Server::start();
    let mut store = server.raw();
    let day = |zone| SharedLimit::new(&of_calendar(&[(5, CalendarUnit::Day)], zone)).unwrap();
    let (berlin, london) = (day("Europe/Berlin"), day("Europe/London"));
    let mut remaining = |shared: &SharedLimit, cost, now| {
        settle(&mut store, shared, &ask(cost, 0), now, now).answer.unwrap().remaining[0]
    };
    assert_eq!(remaining(&berlin, 2, LONG_DAY + 2 * HOUR), 3);
    assert_eq!(remaining(&london, 2, LONG_DAY + 3 * HOUR), 1);
    assert_eq!(remaining(&berlin, 1, LONG_DAY + 25 * HOUR - 1), 0);
    assert_eq!(remaining(&london, 0, LONG_DAY + 25 * HOUR), 5);
}

#[test]
fn a_damaged_window_of_a_calendar_is_an_answer_all_the_same() {
    let server = Server::start();
    let mut store = server.raw();
    let shared = SharedLimit::new(&of_calendar(&[(5, CalendarUnit::Day)], "Europe/Berlin")).unwrap();
    let after = (LONG_DAY + 49 * HOUR).to_string();
    for field in ["at", "0:from", "0:until", "0:count"] {
        for value in ["", "nan", "inf", "-7", "1e300", "9007199254740991", "x", "1.5", &after] {
            store.ask(&["DEL", "key"]);
            settle(&mut store, &shared, &ask(2, 0), LONG_DAY, LONG_DAY);
            store.ask(&["HSET", "key", field, value]);
            for _ in 0..3 {
                assert!(
                    settle(&mut store, &shared, &ask(1, 1), LONG_DAY, LONG_DAY).answer.is_some(),
                    "{field} {value}"
                );
            }
        }
    }
}
