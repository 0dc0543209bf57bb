use std::fmt;
use std::str::FromStr;

use sluicegate_time::{Span, SpanError};

/// The largest rate, burst or cost: ten to the twelfth.
pub const MAX_COUNT: u64 = 1_000_000_000_000;

/// The longest queue per key when the configuration does not say: planning a longer one anew holds up its shard.
pub const MAX_DEFAULT_QUEUE: u64 = 10_000;

/// So many requests in so much time: `L / W`. Neither is ever zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    limit: u64,
    window: Span,
}

/// Why something is not a rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RateError {
    /// It is not `requests/time`.
    Form,
    /// The limit is 0: nobody would ever be admitted.
    ZeroLimit,
    /// The limit is above [`MAX_COUNT`].
    LimitTooLarge,
    /// The window is 0.
    ZeroWindow,
    /// The window is no duration.
    Window(SpanError),
}

impl Rate {
    /// `limit` requests (1 to [`MAX_COUNT`]) in each `window` (not zero).
    pub fn new(limit: u64, window: Span) -> Result<Self, RateError> {
        if limit == 0 {
            return Err(RateError::ZeroLimit);
        }
        if limit > MAX_COUNT {
            return Err(RateError::LimitTooLarge);
        }
        if window.is_zero() {
            return Err(RateError::ZeroWindow);
        }
        Ok(Self { limit, window })
    }

    /// How many requests: `L`.
    pub const fn limit(self) -> u64 {
        self.limit
    }

    /// In how much time: `W`.
    pub const fn window(self) -> Span {
        self.window
    }
}

impl FromStr for Rate {
    type Err = RateError;

    /// Parses `"100/s"`, `"20/100ms"`, `"5000/h"`, `"3/1s"`: a whole number, a slash, a duration whose number may be
    /// left out when it is 1.
    fn from_str(text: &str) -> Result<Self, RateError> {
        let (limit, window) = text.split_once('/').ok_or(RateError::Form)?;
        let (limit, window) = (limit.trim(), window.trim());
        if limit.is_empty() || !limit.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(RateError::Form);
        }
        let limit = limit.parse().map_err(|_| RateError::LimitTooLarge)?;
        let window = if window.starts_with(|first: char| first.is_ascii_alphabetic()) {
            format!("1{window}").parse()
        } else {
            window.parse()
        };
        Self::new(limit, window.map_err(RateError::Window)?)
    }
}

impl fmt::Display for Rate {
    /// The shortest exact form: `100/s`, `20/100ms`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window.to_string();
        let unit = window.strip_prefix('1').filter(|rest| rest.starts_with(|c: char| c.is_ascii_alphabetic()));
        write!(f, "{}/{}", self.limit, unit.unwrap_or(&window))
    }
}

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form => write!(f, "a rate is a whole number, a slash and a time, like \"100/s\" or \"20/100ms\""),
            Self::ZeroLimit => write!(f, "a rate of 0 would admit nobody: give at least 1, or refuse in the route"),
            Self::LimitTooLarge => write!(f, "a rate is at most {MAX_COUNT} requests per window"),
            Self::ZeroWindow => write!(f, "the window of a rate cannot be empty: write \"100/s\" or \"100/50ms\""),
            Self::Window(_) => write!(f, "the part after the slash is no duration"),
        }
    }
}

impl std::error::Error for RateError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Window(error) => Some(error),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_parse_and_print_the_shortest_form() {
        for (text, printed, limit, nanos) in [
            ("100/s", "100/s", 100, 1_000_000_000),
            ("20/100ms", "20/100ms", 20, 100_000_000),
            ("5000/h", "5000/h", 5_000, 3_600_000_000_000),
            ("3/1s", "3/s", 3, 1_000_000_000),
            ("7/10s", "7/10s", 7, 10_000_000_000),
            ("1/60s", "1/m", 1, 60_000_000_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.limit(), rate.window().as_nanos()), (limit, nanos), "{text}");
            assert_eq!(rate.to_string(), printed);
            assert_eq!(printed.parse(), Ok(rate));
        }
    }

    #[test]
    fn refuses_what_is_no_rate() {
        for (text, error) in [
            ("100", RateError::Form),
            ("/s", RateError::Form),
            ("-1/s", RateError::Form),
            ("1.5/s", RateError::Form),
            ("0/s", RateError::ZeroLimit),
            ("1000000000001/s", RateError::LimitTooLarge),
            ("99999999999999999999999/s", RateError::LimitTooLarge),
            ("5/0s", RateError::ZeroWindow),
            ("5/", RateError::Window(SpanError::Form)),
            ("5/parsec", RateError::Window(SpanError::Unit("parsec".into()))),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(error), "{text}");
        }
        assert!("1000000000000/s".parse::<Rate>().is_ok());
    }
}
