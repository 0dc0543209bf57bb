use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, Offset, TimeZone, TimeZoneDatabase, TimeZoneTransition};

/// The largest distance from UTC in seconds, that of [`Zone::fixed`]: one second less than a day.
const FURTHEST: i32 = 86_399;

/// A time zone: what the clocks on the walls show, and when they are changed. Two are equal if their names are.
#[derive(Clone)]
pub struct Zone {
    name: Arc<str>,
    rules: TimeZone,
}

/// No such time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownZone;

impl Zone {
    /// UTC.
    pub fn utc() -> Self {
        Self { name: "UTC".into(), rules: TimeZone::UTC }
    }

    /// The zone of this IANA name, such as `Europe/Berlin`; upper and lower case are the same. Its rules are those of the
    /// system's zoneinfo, or where that has none, of the database that comes with the program. The one thing in this room
    /// that reads files: for configurations, not for traffic.
    pub fn named(name: &str) -> Result<Self, UnknownZone> {
        let rules = TimeZone::get(name).or_else(|_| TimeZoneDatabase::bundled().get(name)).map_err(|_| UnknownZone)?;
        let name = rules.iana_name().map(Arc::from).ok_or(UnknownZone)?;
        Ok(Self { name, rules })
    }

    /// A zone whose clocks are `east` seconds ahead of UTC, or behind it if negative, and never changed; `None` if that is
    /// a day or more. For tests and simulations.
    pub fn fixed(east: i32) -> Option<Self> {
        let offset = Offset::from_seconds(east).ok().filter(|_| (-FURTHEST..=FURTHEST).contains(&east))?;
        Some(Self { name: format!("UTC{east:+}s").into(), rules: TimeZone::fixed(offset) })
    }

    /// Its IANA name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of all zones.
    pub fn names() -> Vec<String> {
        let mut names: Vec<String> = jiff::tz::db().available().map(|name| name.to_string()).collect();
        names.extend(TimeZoneDatabase::bundled().available().map(|name| name.to_string()));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// The reading of the clocks at a second since the epoch.
    pub(super) fn local(&self, second: i64) -> DateTime {
        self.rules.to_datetime(timestamp(second))
    }

    /// The second since the epoch at which the clocks show `local`. Of a time that comes twice the first one; a time that
    /// is skipped is as much later as the clocks go forward ("compatible", as RFC 5545 and Temporal have it).
    pub(super) fn at(&self, local: DateTime) -> i64 {
        self.rules.to_ambiguous_timestamp(local).compatible().map_or(i64::MAX, Timestamp::as_second)
    }

    /// The first second since the epoch of a date: where its midnight is skipped, when the clocks go forward.
    pub(super) fn begins(&self, date: Date) -> i64 {
        let midnight = date.at(0, 0, 0, 0);
        let ambiguous = self.rules.to_ambiguous_timestamp(midnight);
        if !matches!(ambiguous.offset(), AmbiguousOffset::Gap { .. }) {
            return self.at(midnight);
        }
        self.changed_before(self.at(midnight))
    }

    /// When the clocks were changed last, up to and with `second`; `i64::MIN` if never.
    pub(super) fn changed_before(&self, second: i64) -> i64 {
        let mut changes = self.rules.preceding(timestamp(second.saturating_add(1)));
        changes.find(|change| self.moves_clocks(change)).map_or(i64::MIN, |change| change.timestamp().as_second())
    }

    /// When they are changed next; `i64::MAX` if never.
    pub(super) fn changes_after(&self, second: i64) -> i64 {
        let mut changes = self.rules.following(timestamp(second));
        changes.find(|change| self.moves_clocks(change)).map_or(i64::MAX, |change| change.timestamp().as_second())
    }

    /// Some only give the zone another abbreviation, and some nothing at all.
    fn moves_clocks(&self, change: &TimeZoneTransition<'_>) -> bool {
        let before = change.timestamp().as_second().saturating_sub(1);
        self.rules.to_offset(timestamp(before)) != change.offset()
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Zone {}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is no such time zone: zones have IANA names, like \"Europe/Berlin\"")
    }
}

impl std::error::Error for UnknownZone {}

/// A tick ends in 2554, and timestamps go to 9999.
fn timestamp(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use jiff::civil::date;

    use super::*;

    fn zone(name: &str) -> Zone {
        Zone::named(name).unwrap()
    }

    /// As `2026-03-29T01:00:00Z`.
    fn shown(second: i64) -> String {
        Timestamp::from_second(second).unwrap().to_string()
    }

    #[test]
    fn a_zone_has_one_name_however_it_is_written() {
        assert_eq!(zone("europe/berlin").name(), "Europe/Berlin");
        assert_eq!(zone("europe/berlin"), zone("Europe/Berlin"));
        assert_ne!(zone("Europe/Berlin"), zone("Europe/Paris"));
        assert_eq!(Zone::utc(), zone("UTC"));
        assert_eq!((format!("{:?}", Zone::utc()), Zone::utc().to_string()), ("Zone(UTC)".into(), "UTC".into()));
    }

    #[test]
    fn what_is_no_name_of_a_zone_is_refused() {
        for name in
            ["", "Europe/Berlim", "CET-1CEST", "+02:00", "Etc/Unknown", "../UTC", "/etc/localtime", "Mars/Olympus"]
        {
            assert_eq!(Zone::named(name), Err(UnknownZone), "{name:?}");
        }
    }

    #[test]
    fn the_program_brings_every_zone_along() {
        let bundled = TimeZoneDatabase::bundled();
        for name in ["Europe/Berlin", "America/New_York", "Pacific/Apia", "Asia/Kathmandu", "UTC"] {
            assert!(bundled.get(name).is_ok(), "{name}");
            assert!(Zone::names().iter().any(|known| known == name), "{name}");
        }
    }

    #[test]
    fn a_fixed_zone_is_less_than_a_day_away() {
        assert_eq!(Zone::fixed(-1).unwrap().local(1).to_string(), "1970-01-01T00:00:00");
        assert!(Zone::fixed(86_399).is_some() && Zone::fixed(-86_399).is_some());
        assert!(Zone::fixed(86_400).is_none() && Zone::fixed(-86_400).is_none() && Zone::fixed(i32::MIN).is_none());
    }

    #[test]
    fn a_skipped_time_is_later_and_a_repeated_one_is_the_first() {
        let berlin = zone("Europe/Berlin");
        for (local, expected) in [
            (date(2026, 3, 29).at(1, 59, 59, 0), "2026-03-29T00:59:59Z"),
            (date(2026, 3, 29).at(2, 0, 0, 0), "2026-03-29T01:00:00Z"),
            (date(2026, 3, 29).at(2, 30, 0, 0), "2026-03-29T01:30:00Z"),
            (date(2026, 3, 29).at(3, 0, 0, 0), "2026-03-29T01:00:00Z"),
            (date(2026, 10, 25).at(2, 0, 0, 0), "2026-10-25T00:00:00Z"),
            (date(2026, 10, 25).at(2, 59, 59, 0), "2026-10-25T00:59:59Z"),
            (date(2026, 10, 25).at(3, 0, 0, 0), "2026-10-25T02:00:00Z"),
        ] {
            assert_eq!(shown(berlin.at(local)), expected, "{local}");
        }
        // A whole day is skipped: it is the next one.
        let apia = zone("Pacific/Apia");
        assert_eq!(shown(apia.at(date(2011, 12, 30).at(9, 0, 0, 0))), "2011-12-30T19:00:00Z");
        assert_eq!(shown(apia.at(date(2011, 12, 31).at(9, 0, 0, 0))), "2011-12-30T19:00:00Z");
    }

    #[test]
    fn what_moves_no_clock_is_no_change() {
        // Files of zones may end with an entry at 2^31 - 1 that changes nothing.
        let last = i64::from(i32::MAX);
        let kathmandu = zone("Asia/Kathmandu");
        assert_eq!(shown(kathmandu.changed_before(last)), "1985-12-31T18:30:00Z");
        assert_eq!(kathmandu.changes_after(last - 1), i64::MAX);
        assert_eq!(Zone::utc().changed_before(last), i64::MIN);
        let berlin = zone("Europe/Berlin");
        let change = "2026-03-29T01:00:00Z".parse::<Timestamp>().unwrap().as_second();
        assert_eq!((berlin.changed_before(change), berlin.changes_after(change - 1)), (change, change));
        assert_eq!(shown(berlin.changed_before(change - 1)), "2025-10-26T01:00:00Z");
        assert_eq!(shown(berlin.changes_after(change)), "2026-10-25T01:00:00Z");
    }

    #[test]
    fn a_date_begins_with_its_first_instant() {
        for (name, day, expected) in [
            ("Europe/Berlin", date(2026, 3, 29), "2026-03-28T23:00:00Z"),
            ("Europe/Berlin", date(2026, 3, 30), "2026-03-29T22:00:00Z"),
            ("America/New_York", date(2026, 11, 2), "2026-11-02T05:00:00Z"),
            ("Asia/Kathmandu", date(2026, 1, 1), "2025-12-31T18:15:00Z"),
            // Clocks go from 00:00 to 01:00.
            ("America/Sao_Paulo", date(2018, 11, 4), "2018-11-04T03:00:00Z"),
            // Clocks go from 23:30 to 00:30: half of the skipped hour is of this day.
            ("America/Toronto", date(1919, 3, 31), "1919-03-31T04:30:00Z"),
            // The skipped day begins, and ends, with the one after it.
            ("Pacific/Apia", date(2011, 12, 30), "2011-12-30T10:00:00Z"),
            ("Pacific/Apia", date(2011, 12, 31), "2011-12-30T10:00:00Z"),
            // 00:00 to 01:00 comes twice: the first one.
            ("America/Havana", date(2026, 11, 1), "2026-11-01T04:00:00Z"),
        ] {
            let begins = zone(name).begins(day);
            assert_eq!(shown(begins), expected, "{name} {day}");
        }
    }
}
