//! Why a request has a record.

use std::fmt;
use std::str::FromStr;

use sluicegate_words::Word as _;

words! {
    /// Why a request was not served.
    #[derive(PartialOrd, Ord)]
    pub enum Reason {
        /// A limit refused it.
        RateLimited = "rate-limited",
        /// Its key was blocked: by a penalty, or by hand.
        Blocked = "blocked",
        /// It could have waited, but the limit's queue was full.
        QueueFull = "queue-full",
        /// It waited for a place in vain.
        WaitTimeout = "wait-timeout",
        /// It was admitted and took too long.
        Timeout = "timeout",
        /// A breaker was open.
        Breaker = "breaker",
        /// Requests of its route's priority were shed.
        Shed = "shed",
        /// The gateway had no room for it: in the table of a limit, for a body, or without its store.
        Overload = "overload",
        /// No server could be reached, or its answer was no HTTP.
        UpstreamError = "upstream-error",
        /// It was kept to be sent later.
        Deferred = "deferred",
        /// Its head or its body was larger than allowed.
        TooLarge = "too-large",
        /// An operator cancelled it.
        Cancelled = "cancelled",
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// A text that names no [`Reason`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownReason(String);

impl fmt::Display for UnknownReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Reason::ALL.map(Reason::word).join(", ");
        write!(f, "{:?} is no reason: use one of {names}", self.0)
    }
}

impl std::error::Error for UnknownReason {}

impl FromStr for Reason {
    type Err = UnknownReason;

    fn from_str(text: &str) -> Result<Self, UnknownReason> {
        Self::from_word(text).ok_or_else(|| UnknownReason(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_parse_as_they_print() {
        for reason in Reason::ALL {
            assert_eq!(reason.word().parse(), Ok(reason));
        }
        assert!("late".parse::<Reason>().unwrap_err().to_string().contains("wait-timeout, timeout"));
    }
}
