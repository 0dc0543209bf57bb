//! `active` of a limit or a route, and `zone`.

use std::str::FromStr;

use crate::config::findings::{Finding, quoted};
use crate::config::nearest::nearest;
use crate::config::reader::{Node, Reader};
use crate::time::{DayTime, Days, LocalTime, ScheduleError, ScheduleRules, Weekday, Zone};

const EXAMPLE: &str = "{ from = \"09:00\", until = \"18:00\" }";

/// A time as it is written.
#[derive(Clone, Copy)]
enum Written {
    Day(DayTime),
    Local(LocalTime),
}

/// Lowers `active`; `None` where it could not be read.
#[allow(clippy::option_option, reason = "the outer says whether it could be read, the inner what it says")]
pub(super) fn lower(reader: &mut Reader<'_>) -> Option<Option<ScheduleRules>> {
    let Some(node) = reader.optional("active") else { return Some(None) };
    active(&node).map(Some)
}

/// The time zone of `zone`, UTC if it is left out.
pub(super) fn zone(node: Option<&Node<'_>>) -> Option<Zone> {
    let Some(node) = node else { return Some(Zone::utc()) };
    let name = node.text("a time zone in quotes", "\"Europe/Berlin\"")?;
    if let Ok(zone) = Zone::named(name) {
        return Some(zone);
    }
    let names = Zone::names();
    let help = match nearest(name, names.iter().map(String::as_str)) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => {
            "zones have IANA names, like \"Europe/Berlin\" or \"America/New_York\"; the default is \"UTC\"".to_owned()
        }
    };
    node.error(format!("there is no time zone {}", quoted(name)), help);
    None
}

fn active(node: &Node<'_>) -> Option<ScheduleRules> {
    let mut reader = node.table("`active`", EXAMPLE)?;
    let (from_node, until_node) = (reader.optional("from"), reader.optional("until"));
    let from = from_node.as_ref().map_or(Some(None), |node| time(node).map(Some));
    let until = until_node.as_ref().map_or(Some(None), |node| time(node).map(Some));
    let days_node = reader.optional("days");
    let days = days_node.as_ref().map_or(Some(Days::ALL), days);
    let zone = zone(reader.optional("zone").as_ref());
    if !["from", "until", "days"].into_iter().any(|key| reader.has(key) || reader.has_misspelt(key)) {
        node.error("`active` says no time", format!("give `from`, `until` or `days`: active = {EXAMPLE}"));
        reader.done(&[]);
        return None;
    }
    reader.done(&[]);
    let (from, until, days, zone) = (from?, until?, days?, zone?);
    let is_once = [from, until].iter().flatten().any(|time| matches!(time, Written::Local(_)));
    if let (Some(days_node), true) = (&days_node, is_once) {
        let finding = Finding::error(days_node.key_span(), "`days` beside a date: it is one stretch of time");
        days_node.push(finding.help("remove `days`, or write `from` and `until` as times of day, like \"09:00\""));
        return None;
    }
    let made = match (from, until) {
        (Some(Written::Day(_)), Some(Written::Local(_))) | (Some(Written::Local(_)), Some(Written::Day(_))) => {
            let help = "write both as times of day, like \"09:00\", or both with a date, like \"2026-12-24T18:00\"";
            until_node.as_ref().unwrap_or(node).error("of `from` and `until` one has a date, and one has none", help);
            return None;
        }
        _ if is_once => ScheduleRules::once(from.and_then(local), until.and_then(local), zone),
        _ => {
            let (from, until) = (from.and_then(of_day), until.and_then(of_day));
            ScheduleRules::weekly(days, from.unwrap_or(DayTime::MIDNIGHT), until.unwrap_or(DayTime::END), zone)
        }
    };
    made.map_err(|error| report(error, node, from_node.as_ref(), until_node.as_ref())).ok()
}

fn report(error: ScheduleError, node: &Node<'_>, from: Option<&Node<'_>>, until: Option<&Node<'_>>) {
    let (place, message, help) = match error {
        ScheduleError::FromMidnight => (from, "no day begins at 24:00", "write \"00:00\" for the beginning of a day"),
        ScheduleError::Backwards => {
            (until, "`active` ends before it begins", "set a later end, or an earlier beginning")
        }
        _ => (until, "`active` ends when it begins", "set another end; for whole days leave both out, and name `days`"),
    };
    place.unwrap_or(node).error(message, help);
}

/// With a date if it looks so: a mistake in it is then told as one.
fn time(node: &Node<'_>) -> Option<Written> {
    let text = node.text("a time in quotes", "\"09:00\" or \"2026-12-24T18:00\"")?;
    if text.contains(['-', 'T']) {
        parsed(node, text).map(Written::Local)
    } else {
        parsed(node, text).map(Written::Day)
    }
}

fn parsed<T: FromStr<Err = ScheduleError>>(node: &Node<'_>, text: &str) -> Option<T> {
    match text.parse() {
        Ok(time) => Some(time),
        Err(error) => {
            node.error(format!("{} = {} is no time", node.label(), quoted(text)), error.to_string());
            None
        }
    }
}

fn of_day(time: Written) -> Option<DayTime> {
    if let Written::Day(time) = time { Some(time) } else { None }
}

fn local(time: Written) -> Option<LocalTime> {
    if let Written::Local(time) = time { Some(time) } else { None }
}

fn days(node: &Node<'_>) -> Option<Days> {
    const ALL_DAYS: &str = "[\"mon\", \"tue\", \"wed\", \"thu\", \"fri\"]";
    let items = node.items(ALL_DAYS)?;
    if items.is_empty() {
        node.error("`days` is empty", format!("leave it out for every day, or write days = {ALL_DAYS}"));
        return None;
    }
    let words: Vec<(&'static str, Weekday)> = Weekday::ALL
        .iter()
        .map(|day| (day.short(), *day))
        .chain(Weekday::ALL.iter().map(|day| (day.word(), *day)))
        .collect();
    let mut seen: Vec<Weekday> = Vec::new();
    let days = super::each(&items, |item| {
        let day = item.choice(&words, &[])?;
        if seen.contains(&day) {
            item.error(format!("{} is in `days` twice", quoted(item.as_text().unwrap_or_default())), "remove one");
            return None;
        }
        seen.push(day);
        Some(day)
    })?;
    Some(days.into_iter().fold(Days::default(), Days::with))
}
