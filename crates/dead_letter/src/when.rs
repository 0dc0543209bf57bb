use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use sluicegate_time::{Span, Wall};

/// A point in time as someone writes it who asks for entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// `2026-01-02T03:04:05Z`
    At(Wall),
    /// `15m`: so long ago.
    Ago(Span),
}

impl When {
    /// The instant that it is for someone who asks at `now`.
    pub fn resolve(self, now: Wall) -> Wall {
        match self {
            Self::At(at) => at,
            Self::Ago(span) => now - span,
        }
    }
}

/// A text that is no [`When`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WhenError;

impl fmt::Display for WhenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("use a time like 2026-01-02T03:04:05Z or 2026-01-02, or how long ago, like 90s, 15m, 2h or 3d")
    }
}

impl std::error::Error for WhenError {}

impl FromStr for When {
    type Err = WhenError;

    fn from_str(text: &str) -> Result<Self, WhenError> {
        if let Ok(span) = text.parse() {
            return Ok(Self::Ago(span));
        }
        let civil = || text.parse::<DateTime>().and_then(|local| local.to_zoned(TimeZone::UTC));
        let instant = text.parse::<Timestamp>().or_else(|_| civil().map(|zoned| zoned.timestamp()));
        let nanos = instant.ok().and_then(|instant| u64::try_from(instant.as_nanosecond()).ok());
        nanos.map(|nanos| Self::At(Wall::from_nanos(nanos))).ok_or(WhenError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_parse_in_their_forms() {
        // 2026-01-02T03:04:05Z
        let at = Ok(When::At(Wall::from_nanos(1_767_323_045_000_000_000)));
        assert_eq!("2026-01-02T03:04:05Z".parse(), at);
        assert_eq!("2026-01-02T04:04:05+01:00".parse(), at);
        assert_eq!("2026-01-02T03:04:05".parse(), at);
        assert_eq!("15m".parse(), Ok(When::Ago(Span::from_secs(900))));
        assert!("2026-01-02".parse::<When>().is_ok());
        assert!("yesterday".parse::<When>().is_err());
        assert!("1900-01-01".parse::<When>().is_err());
    }
}
