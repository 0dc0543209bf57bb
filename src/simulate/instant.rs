//! Instants as logs write them.

use jiff::Timestamp;

use crate::time::Tick;

/// Reads instants. It remembers the minute, or the second, of the last one: lines of a log are near each other.
#[derive(Debug, Default)]
pub(super) struct Instants {
    /// `2026-01-02T03:04:` and its instant.
    minute: Option<(String, u64)>,
    /// `02/Jan/2026:03:04:05 +0000` and its instant.
    second: Option<(String, u64)>,
}

const SECOND: u64 = 1_000_000_000;

impl Instants {
    /// Of a text: RFC 3339 (`2026-01-02T03:04:05.678Z`), a time without a zone, which is UTC, or a number as of
    /// [`number`](Self::number).
    pub(super) fn text(&mut self, text: &str) -> Option<Tick> {
        if let Some(at) = self.minutely(text) {
            return Some(at);
        }
        if let Ok(number) = text.parse() {
            return Self::number(number);
        }
        let instant: Timestamp = text.parse().ok().or_else(|| {
            let civil: jiff::civil::DateTime = text.parse().ok()?;
            civil.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
        })?;
        let at = u64::try_from(instant.as_nanosecond()).ok()?;
        if let Some(minute) = text.get(..17).filter(|_| text.ends_with('Z')) {
            self.minute = Some((minute.to_owned(), at / (60 * SECOND) * (60 * SECOND)));
        }
        Some(Tick::from_nanos(at))
    }

    /// Seconds since 1970, with a fraction or without; or milli-, micro- or nanoseconds, where that many seconds would be after
    /// the year 5000.
    pub(super) fn number(number: f64) -> Option<Tick> {
        let per_unit = match number {
            ..0.0 => return None,
            ..1e11 => 1e9,
            ..1e14 => 1e6,
            ..1e17 => 1e3,
            _ => 1.0,
        };
        let nanos = number * per_unit;
        // The double next to an instant of today is 200 ns away: microseconds are what is known.
        (nanos < 1.8e19).then(|| Tick::from_nanos((nanos / 1e3).round() as u64 * 1_000))
    }

    /// `SS.fffZ` of the minute that is known.
    fn minutely(&self, text: &str) -> Option<Tick> {
        let (minute, start) = self.minute.as_ref()?;
        let rest = text.strip_prefix(minute.as_str())?.strip_suffix('Z')?;
        let (seconds, fraction) = rest.split_at_checked(2)?;
        let fraction = match fraction.strip_prefix('.') {
            Some(digits) if (1..=9).contains(&digits.len()) => digits,
            None if fraction.is_empty() => "0",
            _ => return None,
        };
        if !seconds.bytes().chain(fraction.bytes()).all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds < 60)?;
        let nanos = fraction.bytes().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let scale = 10_u64.pow(9 - fraction.len() as u32);
        Some(Tick::from_nanos(start + seconds * SECOND + nanos * scale))
    }

    /// Of `02/Jan/2026:03:04:05 +0000`, as Apache and nginx write it.
    pub(super) fn combined(&mut self, text: &str) -> Option<Tick> {
        if let Some((known, at)) = &self.second
            && known == text
        {
            return Some(Tick::from_nanos(*at));
        }
        let instant = Timestamp::strptime("%d/%b/%Y:%H:%M:%S %z", text).ok()?;
        let at = u64::try_from(instant.as_nanosecond()).ok()?;
        self.second = Some((text.to_owned(), at));
        Some(Tick::from_nanos(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_an_instant_is_read_and_known_minutes_change_nothing() {
        let expected = Some(Tick::from_nanos(1_767_323_045_678_000_000));
        let mut instants = Instants::default();
        for _ in 0..2 {
            for text in [
                "2026-01-02T03:04:05.678Z",
                "2026-01-02T03:04:05.678000000Z",
                "2026-01-02T04:04:05.678+01:00",
                "2026-01-02 03:04:05.678",
                "1767323045.678",
                "1767323045678",
            ] {
                assert_eq!(instants.text(text), expected, "{text}");
            }
            let whole = Some(Tick::from_nanos(1_767_323_045_000_000_000));
            assert_eq!(instants.text("2026-01-02T03:04:05Z"), whole);
            assert_eq!(instants.combined("02/Jan/2026:03:04:05 +0000"), whole);
            assert_eq!(instants.combined("01/Jan/2026:22:04:05 -0500"), whole);
        }
        assert_eq!(Instants::number(1.5), Some(Tick::from_nanos(1_500_000_000)));
        assert_eq!(Instants::number(1_767_323_045.678), expected);
    }

    #[test]
    fn what_is_no_instant_is_none_also_in_a_minute_that_is_known() {
        let mut instants = Instants::default();
        assert!(instants.text("2026-01-02T03:04:05Z").is_some());
        for text in [
            "",
            "yesterday",
            "2026-01-02T03:04:60.1234567891Z",
            "2026-01-02T03:04:",
            "2026-01-02T03:04:+5Z",
            "2026-01-02T03:04:05.+1Z",
            "1960-01-01T00:00:00Z",
            "-5",
            "1e30",
            "NaN",
            "inf",
        ] {
            assert_eq!(instants.text(text), None, "{text}");
        }
        assert_eq!(instants.combined("02/Foo/2026:03:04:05 +0000"), None);
        assert_eq!(instants.combined("02/Jan/2026:03:04:05"), None);
    }
}
