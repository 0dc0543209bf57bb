//! `active` of a limit or a route, and `zone`.

use std::str::FromStr;

use crate::findings::{Reported, quoted};
use crate::form::Form;
use crate::kind::{Context, by, each, inner};
use crate::nearest::nearest;
use crate::reader::Node;
use crate::section::{Declare, section};
use sluicegate_time::{DayTime, Days, LocalTime, ScheduleError, ScheduleRules, Weekday, Zone};

const TIME: Form = Form::Text("a time such as \"09:00\" or \"2026-12-24T18:00\"");
const DAYS: Form = Form::List(&Form::Words(|| day_words().into_iter().map(|(word, _)| (word, "")).collect()), 1, 7);
/// The form of a time zone.
pub(super) const ZONE: Form = Form::Text("a time zone, such as \"Europe/Berlin\"");

const EXAMPLE: &str = "{ from = \"09:00\", until = \"18:00\" }";

/// A time as it is written.
#[derive(Clone, Copy)]
pub(crate) enum WrittenTime {
    Day(DayTime),
    Local(LocalTime),
}

section! {
    /// `active`
    read as ActiveKeys {
        /// The beginning: a time of day, such as "09:00", or one of a certain day, such as "2026-12-24T18:00".
        from: Option<WrittenTime> = inner(TIME, time).or_nothing("midnight"),
        /// The end, in the same form.
        until: Option<WrittenTime> = inner(TIME, time).or_nothing("midnight"),
        /// Days of the week on which it begins.
        days: Option<Days> = inner(DAYS, days).or_nothing("every day"),
        /// The time zone of these.
        zone: Zone = by(ZONE, zone, Zone::to_string).or("UTC"),
    }
}

/// The time zone of `zone`, UTC where it is not written.
pub(super) fn zone_or_utc(node: Option<&Node<'_>>) -> Result<Zone, Reported> {
    node.map_or_else(|| Ok(Zone::utc()), named_zone)
}

fn zone(node: &Node<'_>, _: &Context<'_>) -> Result<Zone, Reported> {
    named_zone(node)
}

fn named_zone(node: &Node<'_>) -> Result<Zone, Reported> {
    let name = node.string("a time zone in quotes", "\"Europe/Berlin\"")?;
    if let Ok(zone) = Zone::named(name) {
        return Ok(zone);
    }
    let names = Zone::names();
    let help = match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => {
            "zones have IANA names, like \"Europe/Berlin\" or \"America/New_York\"; the default is \"UTC\"".to_owned()
        }
    };
    Err(node.error(format!("there is no time zone {}", quoted(name)), help))
}

/// Reads `active`.
pub(crate) fn read(node: &Node<'_>, context: &Context<'_>) -> Result<ScheduleRules, Reported> {
    let mut reader = node.inner("`active`", EXAMPLE)?;
    let keys = ActiveKeys::read(&mut reader, context);
    let says_a_time = ["from", "until", "days"].into_iter().any(|key| reader.has(key) || reader.has_misspelt(key));
    reader.done();
    if !says_a_time {
        let help = format!("give `from`, `until` or `days`: active = {EXAMPLE}");
        return Err(node.error("`active` says no time", help));
    }
    let ActiveKeys { from, until, days, zone } = keys;
    let (from_node, until_node) = (from.node, until.node);
    let (from, until, days_node, days, zone) = (from.value?, until.value?, days.node, days.value?, zone.value?);
    let is_once = [from, until].iter().flatten().any(|time| matches!(time, WrittenTime::Local(_)));
    if let (Some(days), true) = (&days_node, is_once) {
        let help = "remove `days`, or write `from` and `until` as times of day, like \"09:00\"";
        return Err(days.on_key().error("`days` beside a date: it is one stretch of time", help));
    }
    let made = match (from, until) {
        (Some(WrittenTime::Day(_)), Some(WrittenTime::Local(_)))
        | (Some(WrittenTime::Local(_)), Some(WrittenTime::Day(_))) => {
            let help = "write both as times of day, like \"09:00\", or both with a date, like \"2026-12-24T18:00\"";
            let message = "of `from` and `until` one has a date, and one has none";
            return Err(until_node.as_ref().unwrap_or(node).error(message, help));
        }
        _ if is_once => ScheduleRules::once(from.and_then(local), until.and_then(local), zone),
        _ => {
            let (from, until) = (from.and_then(of_day), until.and_then(of_day));
            let (from, until) = (from.unwrap_or(DayTime::MIDNIGHT), until.unwrap_or(DayTime::END));
            ScheduleRules::weekly(days.unwrap_or(Days::ALL), from, until, zone)
        }
    };
    made.map_err(|error| report(error, node, from_node.as_ref(), until_node.as_ref()))
}

fn report(error: ScheduleError, node: &Node<'_>, from: Option<&Node<'_>>, until: Option<&Node<'_>>) -> Reported {
    let (place, message, help) = match error {
        ScheduleError::FromMidnight => (from, "no day begins at 24:00", "write \"00:00\" for the beginning of a day"),
        ScheduleError::Backwards => {
            (until, "`active` ends before it begins", "set a later end, or an earlier beginning")
        }
        _ => (until, "`active` ends when it begins", "set another end; for whole days leave both out, and name `days`"),
    };
    place.unwrap_or(node).error(message, help)
}

/// With a date if it looks so: a mistake in it is then told as one.
fn time(node: &Node<'_>, _: &Context<'_>) -> Result<WrittenTime, Reported> {
    let text = node.string("a time in quotes", "\"09:00\" or \"2026-12-24T18:00\"")?;
    if text.contains(['-', 'T']) {
        parsed(node, text).map(WrittenTime::Local)
    } else {
        parsed(node, text).map(WrittenTime::Day)
    }
}

fn parsed<T: FromStr<Err = ScheduleError>>(node: &Node<'_>, text: &str) -> Result<T, Reported> {
    let no_time = |error: ScheduleError| {
        node.error(format!("{}: invalid time {}", node.label(), quoted(text)), error.to_string())
    };
    text.parse().map_err(no_time)
}

fn of_day(time: WrittenTime) -> Option<DayTime> {
    if let WrittenTime::Day(time) = time { Some(time) } else { None }
}

fn local(time: WrittenTime) -> Option<LocalTime> {
    if let WrittenTime::Local(time) = time { Some(time) } else { None }
}

/// Each day by its first letters, and in full.
fn day_words() -> Vec<(&'static str, Weekday)> {
    let short = Weekday::ALL.iter().map(|day| (day.short(), *day));
    short.chain(Weekday::ALL.iter().map(|day| (day.word(), *day))).collect()
}

fn days(node: &Node<'_>, _: &Context<'_>) -> Result<Days, Reported> {
    const ALL_DAYS: &str = "[\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]";
    let items = node.array(ALL_DAYS)?;
    if items.is_empty() {
        let help = format!("leave it out for every day, or write days = {ALL_DAYS}");
        return Err(node.error("`days` is empty", help));
    }
    let words = day_words();
    let mut seen: Vec<Weekday> = Vec::new();
    let days = each(&items, |item| {
        let day = item.one_of(&words)?;
        if seen.contains(&day) {
            let message = format!("{} is in `days` twice", quoted(item.as_text().unwrap_or_default()));
            return Err(item.error(message, "remove one"));
        }
        seen.push(day);
        Ok(day)
    })?;
    Ok(days.into_iter().fold(Days::default(), Days::with))
}
