use std::fmt;
use std::str::FromStr;

use super::quota::{Rate, RateError};
use sluicegate_time::{CalendarUnit, Span};

/// How a file spells the windows that a calendar has and that are no length of time.
const MONTH: &str = "month";
const WEEK: &str = "week";

/// So many requests in each hour, day, week or month of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CalendarRate {
    rate: Rate,
    unit: CalendarUnit,
}

/// Why something is no rate of a calendar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalendarRateError {
    /// It is no rate at all.
    Rate(RateError),
    /// It is one, but no calendar has windows of that length.
    Window(Span),
}

impl CalendarRate {
    /// `limit` requests (1 to [`MAX_COUNT`](super::MAX_COUNT)) in each `unit`.
    pub fn new(limit: u64, unit: CalendarUnit) -> Result<Self, RateError> {
        Ok(Self { rate: Rate::new(limit, unit.usual())?, unit })
    }

    /// In what.
    pub const fn unit(self) -> CalendarUnit {
        self.unit
    }

    /// As a rate in the usual length of the unit: 30 days for a month.
    pub const fn usual(self) -> Rate {
        self.rate
    }

    /// The unit of a text that is written as a rate per week or month, which only a calendar has.
    pub fn unit_in_words(text: &str) -> Option<CalendarUnit> {
        match text.split_once('/')?.1.trim() {
            MONTH => Some(CalendarUnit::Month),
            WEEK => Some(CalendarUnit::Week),
            _ => None,
        }
    }
}

impl FromStr for CalendarRate {
    type Err = CalendarRateError;

    /// Parses `"100/h"`, `"1000/d"`, `"5000/week"`, which is `"5000/7d"` too, and `"20000/month"`.
    fn from_str(text: &str) -> Result<Self, CalendarRateError> {
        if let Some(unit) = Self::unit_in_words(text) {
            let limit = text.split_once('/').map_or(text, |(limit, _)| limit);
            let rate: Rate = format!("{limit}/d").parse().map_err(CalendarRateError::Rate)?;
            return Self::new(rate.limit(), unit).map_err(CalendarRateError::Rate);
        }
        let rate: Rate = text.parse().map_err(CalendarRateError::Rate)?;
        let unit = [CalendarUnit::Hour, CalendarUnit::Day, CalendarUnit::Week]
            .into_iter()
            .find(|unit| unit.usual() == rate.window())
            .ok_or(CalendarRateError::Window(rate.window()))?;
        Ok(Self { rate, unit })
    }
}

impl fmt::Display for CalendarRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            CalendarUnit::Month => write!(f, "{}/{MONTH}", self.rate.limit()),
            _ => self.rate.fmt(f),
        }
    }
}

impl fmt::Display for CalendarRateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rate(error) => error.fmt(f),
            Self::Window(window) => {
                write!(f, "a calendar has no windows of {window}: count per \"h\", \"d\", \"week\" or \"month\"")
            }
        }
    }
}

impl std::error::Error for CalendarRateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // It is what it says, so its cause is the one behind it.
            Self::Rate(error) => error.source(),
            Self::Window(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_of_a_calendar_parse_and_print_the_shortest_form() {
        for (text, printed, limit, unit) in [
            ("100/h", "100/h", 100, CalendarUnit::Hour),
            ("100/60m", "100/h", 100, CalendarUnit::Hour),
            ("1000/d", "1000/d", 1_000, CalendarUnit::Day),
            ("1000/24h", "1000/d", 1_000, CalendarUnit::Day),
            ("5000/7d", "5000/7d", 5_000, CalendarUnit::Week),
            ("5000/week", "5000/7d", 5_000, CalendarUnit::Week),
            (" 20000 / month ", "20000/month", 20_000, CalendarUnit::Month),
        ] {
            let rate: CalendarRate = text.parse().unwrap();
            assert_eq!((rate.usual().limit(), rate.unit()), (limit, unit), "{text}");
            assert_eq!(rate.usual().window(), unit.usual());
            assert_eq!(rate.to_string(), printed);
            assert_eq!(printed.parse(), Ok(rate));
        }
    }

    #[test]
    fn refuses_what_no_calendar_has() {
        for (text, error) in [
            ("100/s", CalendarRateError::Window(Span::from_secs(1))),
            ("100/2d", CalendarRateError::Window(Span::from_secs(2 * 86_400))),
            ("100/30d", CalendarRateError::Window(Span::from_secs(30 * 86_400))),
            ("0/month", CalendarRateError::Rate(RateError::ZeroLimit)),
            ("1000000000001/month", CalendarRateError::Rate(RateError::LimitTooLarge)),
            ("/month", CalendarRateError::Rate(RateError::Form)),
            ("month", CalendarRateError::Rate(RateError::Form)),
            ("week", CalendarRateError::Rate(RateError::Form)),
            ("0/week", CalendarRateError::Rate(RateError::ZeroLimit)),
        ] {
            assert_eq!(text.parse::<CalendarRate>(), Err(error), "{text}");
        }
        for text in ["5/2month", "5/2week", "5/weeks", "5/months", "5/Month", "5/month/d"] {
            assert!(
                matches!(text.parse::<CalendarRate>(), Err(CalendarRateError::Rate(RateError::Window(_)))),
                "{text}"
            );
        }
    }
}
