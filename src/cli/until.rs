//! `--until` in the words of an operator: `monday`, `tomorrow 9:00`. The gateway gets an instant.

use std::fs;

use jiff::civil::{Date, DateTime, Time, Weekday};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{Timestamp, ToSpan as _};

use crate::time::Clock;

/// The end of an exception, as the gateway takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Until {
    /// For the gateway.
    pub text: String,
    /// The zone that a time without one was taken in, to be told.
    pub taken: Option<String>,
}

const REMEDY: &str =
    "write +2h, monday, tomorrow 9:00, 18:00, 2026-12-01, 2026-12-01T08:00:00Z, or 2026-12-01T09:00:00+01:00";

/// Reads `--until`. A day of the week or a time of the day is the next one, on the clocks of this machine (`TZ`, else
/// /etc/localtime). The gateway reads the other forms: dates are in UTC.
///
/// # Errors
/// How to write it.
pub fn read(text: &str) -> Result<Until, String> {
    let (name, zone) = local_zone();
    at(text, Clock::system().wall_now().timestamp(), &name, &zone)
}

fn at(text: &str, now: Timestamp, name: &str, zone: &TimeZone) -> Result<Until, String> {
    let text = text.trim();
    let is_relative = text.starts_with(|first: char| first.is_ascii_alphabetic());
    let time_alone = time_of(text);
    if !is_relative && time_alone.is_none() {
        let has_no_zone = text.parse::<Timestamp>().is_err() && text.parse::<DateTime>().is_ok();
        let taken = has_no_zone.then(|| format!("until {text} in UTC"));
        return Ok(Until { text: text.to_owned(), taken });
    }
    let today = now.to_zoned(zone.clone()).datetime();
    let wrong = || format!("{text:?} is no instant: {REMEDY}");
    let local = match time_alone {
        Some(time) if time > today.time() => today.date().to_datetime(time),
        Some(time) => after(today.date(), 1).ok_or_else(wrong)?.to_datetime(time),
        None => {
            let (day, time) = text.split_once([' ', 'T']).unwrap_or((text, ""));
            let time = if time.trim().is_empty() { Some(Time::midnight()) } else { time_of(time.trim()) };
            day_of(&day.to_ascii_lowercase(), today.date()).ok_or_else(wrong)?.to_datetime(time.ok_or_else(wrong)?)
        }
    };
    let instant = local.to_zoned(zone.clone()).map_err(|_| wrong())?.timestamp();
    let shown = format!("until {} {} in {name} ({instant})", local.date(), local.time());
    Ok(Until { text: instant.to_string(), taken: Some(shown) })
}

/// `9:00`, `18:30:15`
fn time_of(text: &str) -> Option<Time> {
    let mut parts = text.split(':').map(|part| {
        let is_number = matches!(part.len(), 1 | 2) && part.bytes().all(|byte| byte.is_ascii_digit());
        part.parse::<i8>().ok().filter(|_| is_number)
    });
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next().unwrap_or(Some(0))?);
    let time = Time::new(hour, minute, second, 0).ok()?;
    parts.next().is_none().then_some(time)
}

/// `tomorrow`, `monday`, `mon`: a day of the week is never today.
fn day_of(word: &str, today: Date) -> Option<Date> {
    const DAYS: [(&str, Weekday); 7] = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    match word {
        "today" => Some(today),
        "tomorrow" => after(today, 1),
        _ => {
            let is_named = |name: &str| name == word || word.len() == 3 && name.starts_with(word);
            let (_, day) = DAYS.into_iter().find(|(name, _)| is_named(name))?;
            (1..=7).filter_map(|days| after(today, days)).find(|date| date.weekday() == day)
        }
    }
}

fn after(date: Date, days: i64) -> Option<Date> {
    date.checked_add(days.days()).ok()
}

/// The zone of this machine's clocks, and its name; UTC where that is not known.
fn local_zone() -> (String, TimeZone) {
    let named = |name: &str| {
        let zone = TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name)).ok()?;
        Some((name.to_owned(), zone))
    };
    let variable = std::env::var("TZ").ok().filter(|name| !name.is_empty());
    let of_machine = || {
        let link = fs::canonicalize("/etc/localtime").ok()?;
        Some(link.to_str()?.split_once("/zoneinfo/")?.1.to_owned())
    };
    let name = variable.or_else(of_machine).unwrap_or_default();
    named(name.trim_start_matches(':')).unwrap_or_else(|| ("UTC".to_owned(), TimeZone::UTC))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_times_are_the_next_ones_on_the_clocks_of_the_machine() {
        let zone = TimeZoneDatabase::bundled().get("Europe/Berlin").unwrap();
        // A Thursday, 17:22 in Berlin.
        let now: Timestamp = "2026-11-26T16:22:00Z".parse().unwrap();
        let read = |text: &str| at(text, now, "Europe/Berlin", &zone);
        for (text, instant) in [
            ("monday", "2026-11-29T23:00:00Z"),
            ("Mon 9:00", "2026-11-30T08:00:00Z"),
            ("thursday", "2026-12-02T23:00:00Z"),
            ("tomorrow", "2026-11-26T23:00:00Z"),
            ("tomorrow 9:00", "2026-11-27T08:00:00Z"),
            ("today 18:30:15", "2026-11-26T17:30:15Z"),
            ("18:00", "2026-11-26T17:00:00Z"),
            ("9:00", "2026-11-27T08:00:00Z"),
        ] {
            let until = read(text).unwrap();
            assert_eq!(until.text, instant, "{text}");
            assert!(until.taken.unwrap().contains(" in Europe/Berlin ("), "{text}");
        }
        // The gateway reads these, and says what is wrong with them.
        for text in ["+2h", "2026-12-01T08:00:00Z", "2026-12-01T08:00:00+01:00", "2h", ""] {
            assert_eq!(read(text), Ok(Until { text: text.to_owned(), taken: None }), "{text}");
        }
        for text in ["2026-12-01", "2026-12-01T09:00"] {
            assert_eq!(read(text).unwrap().taken, Some(format!("until {text} in UTC")));
        }
        for text in ["soon", "mo", "tomorrow 25:00", "monday 9", "tomorrow 9:00:00:00", "tomorrow -1:00", "m\u{f6}ndag"]
        {
            assert!(read(text).unwrap_err().contains("write +2h, monday, tomorrow 9:00"), "{text}");
        }
    }
}
