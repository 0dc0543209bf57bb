//! The errors that break an exchange.

use std::fmt;
use std::io;

use crate::client::Gone;
use sluicegate_http1::Fault;
use sluicegate_time::{Span, Tick};
use sluicegate_upstream::ConnectError;

/// Why an exchange ended before its response did.
#[derive(Debug)]
pub enum ExchangeError {
    /// No server could be reached; the last error.
    Unreachable(Option<ConnectError>),
    /// The answer has this status, and the request is sent to another server.
    Status(u16),
    /// The operator has taken all servers out of service.
    OutOfService,
    /// The upstream's breaker is open.
    Breaker {
        /// When the next probe may be sent.
        retry_at: Tick,
    },
    /// There was no place at the upstream, and none in the line, or none in time.
    QueueFull,
    /// The gateway, or what it goes by, is overloaded, and requests of this priority are shed.
    Shed,
    /// The server closed the connection without a byte of an answer.
    Silent {
        /// Whether it had taken a byte of the request.
        written: bool,
    },
    /// The server has not even looked at the request (RFC 9113, 8.7).
    Unread,
    /// The server's connection failed in the middle of its answer.
    Upstream(io::Error),
    /// The server's answer is not acceptable.
    Response(Fault),
    /// The server answered 101, and that is no switch of protocols that the request asked for.
    Unasked(SwitchFault),
    /// The request's body is not acceptable.
    Request(Fault),
    /// The request's body is larger than allowed.
    TooLarge,
    /// The client went away.
    ClientGone,
    /// An operator has cancelled it.
    Cancelled,
    /// Something took too long.
    Timeout(TimeoutKind),
}

/// When a request that was shed may come again: what sheds looks once a second, and comes to rest in some.
const SHED_RETRY: Span = Span::from_secs(5);

impl ExchangeError {
    /// When the client should try again, where that can be said.
    pub fn retry_at(&self, now: Tick) -> Option<Tick> {
        match self {
            Self::Breaker { retry_at } => Some(*retry_at),
            // Nobody knows when a place is free.
            Self::QueueFull => Some(now + Span::from_secs(1)),
            Self::Shed => Some(now + SHED_RETRY),
            _ => None,
        }
    }
}

/// The kind of timeout that an exchange ran into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeoutKind {
    /// The whole: the timeout of the route or of a limit.
    Deadline,
    /// The head of the answer: the route's `response_timeout`.
    Head,
    /// The head of the answer to one try: `per_try` of `retry`.
    Try,
    /// The client did not go on sending its request.
    ClientSends,
    /// The client sent its request too slowly.
    ClientDrips,
    /// The client's upload held a place at the upstream that other clients waited for.
    ClientHolds,
    /// The client did not go on reading.
    ClientReads,
    /// The upstream did not go on taking the request.
    UpstreamReads,
    /// The upstream did not go on sending its response.
    UpstreamSends,
}

/// Why an answer 101 is no switch of protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwitchFault {
    /// The request asked for none, or its offer was not passed on.
    NotAsked,
    /// The protocol is none that the request offered.
    OtherProtocol,
    /// The request's body is not complete.
    BodyUnderWay,
    /// `Sec-WebSocket-Accept` is not the answer to the key of the request.
    WrongAccept,
}

impl SwitchFault {
    /// In words, behind "the server answered 101, but".
    pub fn words(self) -> &'static str {
        match self {
            Self::NotAsked => "the request asked for no upgrade",
            Self::OtherProtocol => "for no protocol that the request offered",
            Self::BodyUnderWay => "before the request's body was complete",
            Self::WrongAccept => "its Sec-WebSocket-Accept does not fit the key of the request",
        }
    }
}

impl From<Gone> for ExchangeError {
    fn from(_: Gone) -> Self {
        Self::ClientGone
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(Some(error)) => write!(f, "{error}"),
            Self::Unreachable(None) => write!(f, "the upstream has no server"),
            Self::OutOfService => write!(f, "all servers of the upstream are out of service (drain or off)"),
            Self::Status(status) => write!(f, "the server answered {status}"),
            Self::Breaker { .. } => write!(f, "the breaker of the upstream is open"),
            Self::QueueFull => {
                write!(f, "no place at the upstream within pending_timeout (max_in_flight, max_pending)")
            }
            Self::Shed => write!(f, "shed: requests of the route's priority are refused under overload"),
            Self::Silent { .. } => write!(f, "the server closed the connection without an answer"),
            Self::Unread => write!(f, "the server refused the stream, unread, and another one"),
            Self::Upstream(error) => write!(f, "the server broke its answer off: {error}"),
            Self::Response(fault) => write!(f, "the server's answer is refused ({}): {fault}", fault.word()),
            Self::Unasked(fault) => write!(f, "the server answered 101, but {}", fault.words()),
            Self::Request(fault) => write!(f, "the request is refused ({}): {fault}", fault.word()),
            Self::TooLarge => write!(f, "the request's body is larger than max_body_size"),
            Self::ClientGone => write!(f, "the client went away"),
            Self::Cancelled => write!(f, "an operator cancelled the request"),
            Self::Timeout(TimeoutKind::Deadline) => write!(f, "the timeout is over"),
            Self::Timeout(TimeoutKind::Head) => write!(f, "the response_timeout is over"),
            Self::Timeout(TimeoutKind::Try) => write!(f, "the per_try of retry is over"),
            Self::Timeout(TimeoutKind::ClientDrips) => write!(f, "the client sent below min_body_rate"),
            Self::Timeout(TimeoutKind::ClientHolds) => {
                write!(f, "the upload held a place above its client's share of max_in_flight while others waited")
            }
            Self::Timeout(TimeoutKind::ClientSends) => write!(f, "the client stopped sending for body_timeout"),
            Self::Timeout(TimeoutKind::ClientReads) => write!(f, "the client stopped reading for body_timeout"),
            Self::Timeout(TimeoutKind::UpstreamReads) => write!(f, "the server stopped reading for body_timeout"),
            Self::Timeout(TimeoutKind::UpstreamSends) => write!(f, "the server stopped sending for body_timeout"),
        }
    }
}
