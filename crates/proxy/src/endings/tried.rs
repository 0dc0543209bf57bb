//! Tries that failed, and why.

use std::borrow::Cow;

use super::error::{ExchangeError, TimeoutKind};
use crate::meters::Retried;
use sluicegate_upstream::ConnectError;

/// A try that failed.
#[derive(Clone, Copy, Debug)]
pub struct Tried {
    /// The place of its server in the upstream.
    pub server: usize,
    /// The reason.
    pub why: Failure,
}

/// The reason why a try failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The connect failed.
    Connect,
    /// The connect took too long.
    ConnectTimeout,
    /// The connection ended before the head of an answer.
    Reset,
    /// The answer was not valid.
    Invalid,
    /// There was no answer in time.
    Timeout,
    /// The answer had this status.
    Status(u16),
}

impl Failure {
    /// The reason in one word.
    pub fn word(self) -> Cow<'static, str> {
        match self {
            Self::Connect => "connect".into(),
            Self::ConnectTimeout => "connect-timeout".into(),
            Self::Reset => "reset".into(),
            Self::Invalid => "invalid".into(),
            Self::Timeout => "timeout".into(),
            Self::Status(status) => status.to_string().into(),
        }
    }

    /// That of a connect.
    pub fn of_connect(error: &ConnectError) -> Self {
        match error {
            ConnectError::Timeout => Self::ConnectTimeout,
            _ => Self::Connect,
        }
    }

    /// That of an exchange that broke before the head of its answer, if the server may be the reason.
    pub fn of(error: &ExchangeError) -> Option<Self> {
        match error {
            ExchangeError::Silent { .. } | ExchangeError::Unread | ExchangeError::Upstream(_) => Some(Self::Reset),
            ExchangeError::Response(_) | ExchangeError::Unasked(_) => Some(Self::Invalid),
            ExchangeError::Timeout(
                TimeoutKind::Try
                | TimeoutKind::Deadline
                | TimeoutKind::Head
                | TimeoutKind::UpstreamReads
                | TimeoutKind::UpstreamSends,
            ) => Some(Self::Timeout),
            ExchangeError::Status(status) => Some(Self::Status(*status)),
            ExchangeError::Unreachable(_)
            | ExchangeError::OutOfService
            | ExchangeError::Breaker { .. }
            | ExchangeError::QueueFull
            | ExchangeError::Shed
            | ExchangeError::Request(_)
            | ExchangeError::TooLarge
            | ExchangeError::ClientGone
            | ExchangeError::Cancelled
            | ExchangeError::Timeout(
                TimeoutKind::ClientSends
                | TimeoutKind::ClientDrips
                | TimeoutKind::ClientHolds
                | TimeoutKind::ClientReads,
            ) => None,
        }
    }

    /// The status that it counts as where `on` of `retry` lists statuses.
    pub fn status(self) -> Option<u16> {
        match self {
            Self::Reset | Self::Invalid => Some(502),
            Self::Timeout => Some(504),
            Self::Status(status) => Some(status),
            Self::Connect | Self::ConnectTimeout => None,
        }
    }

    /// How a retry after it is counted.
    pub fn counted(self) -> Retried {
        match self {
            Self::Reset => Retried::Reset,
            Self::Invalid => Retried::Invalid,
            Self::Timeout => Retried::Timeout,
            Self::Status(_) => Retried::Status,
            Self::Connect | Self::ConnectTimeout => Retried::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::SwitchFault;
    use super::*;

    #[test]
    fn a_reset_and_a_malformed_answer_count_as_502_and_what_is_late_as_504() {
        let status = |error: &ExchangeError| Failure::of(error).and_then(Failure::status);
        assert_eq!(status(&ExchangeError::Silent { written: true }), Some(502));
        assert_eq!(status(&ExchangeError::Unasked(SwitchFault::NotAsked)), Some(502));
        assert_eq!(status(&ExchangeError::Timeout(TimeoutKind::Try)), Some(504));
        assert_eq!(status(&ExchangeError::Status(503)), Some(503));
        assert_eq!(
            (status(&ExchangeError::ClientGone), status(&ExchangeError::Timeout(TimeoutKind::ClientSends))),
            (None, None)
        );
    }
}
