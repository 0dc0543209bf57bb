//! How an exchange ends that does not get its route's answer: one table, from what happened to the status and the words of
//! the gateway's answer, the outcome, the dead letter, the counter, and what becomes of the client's connection.
//!
//! A new way to end is a variant of [`Cause`] and a row of [`Ending::of`], and nothing else: the compiler asks for the row.
//! Callers: `decide/end`, which carries an ending out, and `decide/refuse`, which adds to it what a limit and its route say.

use std::borrow::Cow;

use super::error::{ExchangeError, TimeoutKind};
use crate::meters::{ConnectionMeters, Decision, Outcome};
use sluicegate_admission::Malformed;
use sluicegate_dead_letter::Reason;
use sluicegate_http1::Fault;
use sluicegate_limiter::RefusalReason;

/// The status in logs where a connection was closed without an answer, as nginx has it. It is never sent.
pub const NO_RESPONSE: u16 = 444;
/// The status in logs where the client did not wait for an answer, as nginx has it. It is never sent.
const CLIENT_CLOSED: u16 = 499;
/// The status of a refusal whose limit is not known any more.
pub const TOO_MANY_REQUESTS: u16 = 429;

/// Something that ends an exchange before its route's answer does.
#[derive(Clone, Copy, Debug)]
pub enum Cause<'c> {
    /// The bytes that came are not a request.
    Fault(Fault),
    /// A head was begun and not completed in time.
    LateHead,
    /// Admission cannot understand the request.
    Malformed(Malformed),
    /// No route matches.
    NoRoute,
    /// The request names no host, and its listener sends it to `https` of the same host.
    HostlessListener,
    /// The request names no host, and its route redirects to where one is needed.
    HostlessRoute,
    /// The route has rewritten the target into one that no server may get.
    Rewritten(Malformed),
    /// It came over the gateway's own way for requests that it has kept, and is none of those.
    Unvouched,
    /// A limit refused the request.
    Refused(RefusalReason),
    /// There was no room to read the body that has the key of a limit which refuses requests without.
    KeyUnread,
    /// The request lacks the key of a limit that refuses such requests.
    KeyMissing,
    /// The exchange with a server broke.
    ExchangeError(&'c ExchangeError),
}

/// A row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// How it is counted and logged.
    pub outcome: Outcome,
    /// The status of the answer.
    pub status: Status,
    /// The words of the answer.
    pub words: Words,
    /// The reason of its dead letter; `None`: it leaves none.
    pub reason: Option<Reason>,
    /// Its counter, beside that of its outcome.
    pub counted: Counted,
    /// The fate of the client's connection.
    pub fate: EndingFate,
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// This one.
    Fixed(u16),
    /// That of the limit's refusals.
    OfLimit,
}

impl Status {
    /// The status, where a limit's is `of_limit`.
    pub fn or(self, of_limit: impl FnOnce() -> u16) -> u16 {
        match self {
            Self::Fixed(status) => status,
            Self::OfLimit => of_limit(),
        }
    }
}

/// The words of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Words {
    /// These.
    Fixed(&'static str),
    /// The words of a fault.
    Fault(Fault),
    /// The words of a request that admission cannot understand.
    Malformed(Malformed),
    /// The same, about the target that the route has made.
    Rewritten(Malformed),
    /// Words about a limit.
    OfLimit {
        /// The words before the limit's name.
        before: &'static str,
        /// The words after it.
        after: &'static str,
        /// Whether they go on with when to try again.
        says_when: bool,
        /// The words where the limit is not known any more.
        nameless: &'static str,
    },
}

impl Words {
    /// The words where no limit is named.
    pub fn text(self) -> Cow<'static, str> {
        match self {
            Self::Fixed(text) | Self::OfLimit { nameless: text, .. } => Cow::Borrowed(text),
            Self::Fault(fault) => Cow::Owned(fault.to_string()),
            Self::Malformed(fault) => Cow::Owned(fault.to_string()),
            Self::Rewritten(fault) => Cow::Owned(format!("Rewritten for the server, {fault}")),
        }
    }

    /// Puts the words about the limit of this name together. By hand, since every refusal of a flood is told so.
    pub fn write(self, limit: &str, retry_after_secs: Option<u64>, detail: &mut String) {
        detail.clear();
        let Self::OfLimit { before, after, says_when, .. } = self else { return detail.push_str(&self.text()) };
        detail.extend([before, limit, after]);
        match retry_after_secs {
            _ if !says_when => {}
            Some(secs) => detail.extend(["try again in ", itoa::Buffer::new().format(secs), " s."]),
            None => detail.push_str("try again later."),
        }
    }
}

/// The counter of an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// None but that of the outcome.
    Alone,
    /// A fault of the client.
    ClientFault(Fault),
    /// A request that admission cannot understand.
    Malformed(Malformed),
    /// A fault of the server.
    UpstreamFault(Fault),
    /// A switch that nobody asked for.
    UnaskedSwitch,
    /// A body above `max_body_size`.
    BodyTooLarge,
    /// A head that came too slowly.
    HeadTimeout,
    /// A client that stopped sending its body.
    BodyTimeout,
    /// A client that sent its body below `min_body_rate`, or too slowly for the place that it held.
    BodyTooSlow,
    /// A client that stopped reading.
    ReadTimeout,
    /// A server that stopped reading.
    UpstreamReadTimeout,
    /// A server that stopped sending.
    UpstreamBodyTimeout,
    /// The decision of the limit.
    Decision(Decision),
}

impl Counted {
    /// Counts it, but for the decision of a limit, which is counted with the limit.
    pub fn count(self, meters: &ConnectionMeters) {
        match self {
            Self::Alone | Self::Decision(_) => {}
            Self::ClientFault(fault) => meters.client_fault(fault),
            Self::Malformed(fault) => meters.malformed(fault),
            Self::UpstreamFault(fault) => meters.upstream_fault(fault),
            Self::UnaskedSwitch => meters.unexpected_upgrade.inc(),
            Self::BodyTooLarge => meters.body_too_large.inc(),
            Self::HeadTimeout => meters.head_timeout.inc(),
            Self::BodyTimeout => meters.body_timeout.inc(),
            Self::BodyTooSlow => meters.body_too_slow.inc(),
            Self::ReadTimeout => meters.read_timeout.inc(),
            Self::UpstreamReadTimeout => meters.upstream_read_timeout.inc(),
            Self::UpstreamBodyTimeout => meters.upstream_body_timeout.inc(),
        }
    }
}

/// The fate of the client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndingFate {
    /// It may carry another request after the answer.
    Keep,
    /// It closes after the answer.
    Close,
    /// It closes after the answer, and once the client has read it: nothing of what follows was understood.
    Linger,
    /// It closes at once, without an answer.
    Cut,
}

impl Ending {
    /// The row of `cause`.
    pub fn of(cause: Cause<'_>) -> Self {
        let (outcome, status, words, reason, counted, fate) = match cause {
            Cause::Refused(why) => return Self::of_refusal(why),
            Cause::ExchangeError(error) => return Self::of_error(error),
            Cause::KeyUnread => return Self::of_unread_key(),
            Cause::KeyMissing => return Self::of_missing_key(),
            // What follows on the connection may not be what it seems.
            Cause::Fault(fault) => (
                Outcome::Malformed,
                status_of(fault),
                Words::Fault(fault),
                is_too_large(fault).then_some(Reason::TooLarge),
                Counted::ClientFault(fault),
                EndingFate::Linger,
            ),
            Cause::LateHead => (
                Outcome::Timeout,
                408,
                Words::Fixed("The request's head did not come in time."),
                Some(Reason::Timeout),
                Counted::HeadTimeout,
                EndingFate::Linger,
            ),
            // As for a fault.
            Cause::Malformed(fault) => {
                let counted = Counted::Malformed(fault);
                (Outcome::Malformed, 400, Words::Malformed(fault), None, counted, EndingFate::Close)
            }
            Cause::NoRoute => {
                (Outcome::NoRoute, 404, Words::Fixed("No route matches."), None, Counted::Alone, EndingFate::Keep)
            }
            Cause::HostlessListener => (Outcome::Malformed, 400, HOSTLESS, None, Counted::Alone, EndingFate::Close),
            Cause::HostlessRoute => (Outcome::Malformed, 400, HOSTLESS, None, Counted::Alone, EndingFate::Keep),
            Cause::Rewritten(fault) => {
                (Outcome::Malformed, 400, Words::Rewritten(fault), None, Counted::Alone, EndingFate::Keep)
            }
            // Whoever sends it tries it again, with a token that holds.
            Cause::Unvouched => {
                let words = Words::Fixed("The gateway does not know this request as its own.");
                (Outcome::Malformed, 503, words, None, Counted::Alone, EndingFate::Close)
            }
        };
        Self { outcome, status: Status::Fixed(status), words, reason, counted, fate }
    }

    /// That of a limit's refusal, where its route does not drop what is refused.
    fn of_refusal(why: RefusalReason) -> Self {
        const OVER: &str = "Over the limit \"";
        let (outcome, decision, reason, before, after) = match why {
            RefusalReason::Rate => (Outcome::Refused, Decision::Refused, Reason::RateLimited, OVER, "\"; "),
            RefusalReason::QueueFull => (Outcome::Refused, Decision::QueueFull, Reason::QueueFull, OVER, "\"; "),
            RefusalReason::WaitTimeout => (
                Outcome::WaitTimeout,
                Decision::WaitTimeout,
                Reason::WaitTimeout,
                "Timed out waiting for limit \"",
                "\"; ",
            ),
            RefusalReason::TooCostly => {
                let after = "\"; this request can never fit in it.";
                (Outcome::Refused, Decision::TooCostly, Reason::RateLimited, OVER, after)
            }
            RefusalReason::TableFull => (
                Outcome::Refused,
                Decision::TableFull,
                Reason::Overload,
                "The limit \"",
                "\" counts as many clients as it can; ",
            ),
            RefusalReason::Blocked => {
                (Outcome::Blocked, Decision::Blocked, Reason::Blocked, "Blocked by the limit \"", "\"; ")
            }
            RefusalReason::StoreDown => {
                (Outcome::Refused, Decision::StoreDown, Reason::Overload, "The limit \"", "\" cannot reach its store; ")
            }
        };
        // The client of a limit that is closed while its store is away has done nothing wrong, and its rate is not what it
        // should mind.
        let status = if why == RefusalReason::StoreDown { Status::Fixed(503) } else { Status::OfLimit };
        let says_when = why != RefusalReason::TooCostly;
        Self {
            outcome,
            status,
            words: Words::OfLimit { before, after, says_when, nameless: "Over the limit." },
            reason: Some(reason),
            counted: Counted::Decision(decision),
            fate: EndingFate::Keep,
        }
    }

    fn of_missing_key() -> Self {
        Self {
            outcome: Outcome::Refused,
            status: Status::OfLimit,
            words: Words::OfLimit {
                before: "The request lacks the key of limit \"",
                after: "\".",
                says_when: false,
                nameless: "The request lacks the key of a limit.",
            },
            reason: Some(Reason::RateLimited),
            counted: Counted::Decision(Decision::MissingKey),
            fate: EndingFate::Keep,
        }
    }

    /// It is not the client's fault.
    fn of_unread_key() -> Self {
        Self {
            status: Status::Fixed(503),
            words: Words::OfLimit {
                before: "The gateway has no room to read the body for the limit \"",
                after: "\"; ",
                says_when: true,
                nameless: "The gateway has no room to read the body.",
            },
            reason: Some(Reason::Overload),
            ..Self::of_missing_key()
        }
    }

    /// That of an exchange that broke before a byte of its answer went out. Later there is no answer, and the connection is
    /// cut, so that nobody takes what went out for all of it.
    fn of_error(error: &ExchangeError) -> Self {
        let (outcome, status, words, counted, fate) = match error {
            ExchangeError::Unreachable(_) => {
                let words = "No server of the upstream can be reached.";
                (Outcome::UpstreamError, 502, words, Counted::Alone, EndingFate::Keep)
            }
            ExchangeError::OutOfService => {
                let words = "All servers of the upstream are out of service.";
                (Outcome::UpstreamError, 503, words, Counted::Alone, EndingFate::Keep)
            }
            ExchangeError::Breaker { .. } => {
                let words = "The upstream fails too often; nothing is sent to it for a while.";
                (Outcome::Breaker, 503, words, Counted::Alone, EndingFate::Keep)
            }
            ExchangeError::QueueFull => {
                let words = "The upstream has as many requests as it may have.";
                (Outcome::QueueFull, 503, words, Counted::Alone, EndingFate::Keep)
            }
            ExchangeError::Shed => {
                let words = "There is too much to do, and others come first.";
                (Outcome::Shed, 503, words, Counted::Alone, EndingFate::Keep)
            }
            // A status ends no exchange: its request is sent again.
            ExchangeError::Silent { .. }
            | ExchangeError::Unread
            | ExchangeError::Upstream(_)
            | ExchangeError::Status(_) => (Outcome::UpstreamError, 502, BROKEN_OFF, Counted::Alone, EndingFate::Keep),
            ExchangeError::Unasked(_) => {
                let words = "The upstream's answer 101 is no switch of protocols that was asked for.";
                (Outcome::UpstreamError, 502, words, Counted::UnaskedSwitch, EndingFate::Close)
            }
            // An answer that could be understood in two ways is a doubt about everybody who takes part.
            ExchangeError::Response(fault) => {
                let words = "The upstream's answer is not valid.";
                (Outcome::UpstreamError, 502, words, Counted::UpstreamFault(*fault), EndingFate::Close)
            }
            ExchangeError::Request(fault) => return Self::of_request(*fault),
            ExchangeError::TooLarge => {
                (Outcome::Malformed, 413, "The request's body is too large.", Counted::BodyTooLarge, EndingFate::Close)
            }
            ExchangeError::ClientGone => (Outcome::ClientGone, CLIENT_CLOSED, "", Counted::Alone, EndingFate::Cut),
            ExchangeError::Cancelled => {
                (Outcome::Cancelled, 503, "An operator cancelled the request.", Counted::Alone, EndingFate::Close)
            }
            ExchangeError::Timeout(kind) => {
                let (status, words, counted, fate) = of_timeout(*kind);
                (Outcome::Timeout, status, words, counted, fate)
            }
        };
        let reason = match (error, outcome) {
            (ExchangeError::TooLarge, _) => Some(Reason::TooLarge),
            (_, Outcome::Timeout) => Some(Reason::Timeout),
            (_, Outcome::UpstreamError) => Some(Reason::UpstreamError),
            (_, Outcome::Breaker) => Some(Reason::Breaker),
            (_, Outcome::QueueFull) => Some(Reason::QueueFull),
            (_, Outcome::Shed) => Some(Reason::Shed),
            (_, Outcome::Cancelled) => Some(Reason::Cancelled),
            _ => None,
        };
        Self { outcome, status: Status::Fixed(status), words: Words::Fixed(words), reason, counted, fate }
    }

    /// That of a request whose body is not acceptable.
    fn of_request(fault: Fault) -> Self {
        Self {
            outcome: Outcome::Malformed,
            status: Status::Fixed(status_of(fault)),
            words: Words::Fault(fault),
            reason: None,
            counted: Counted::ClientFault(fault),
            fate: EndingFate::Close,
        }
    }

    /// The same where the route drops what its limits refuse.
    pub fn dropped(self) -> Self {
        Self { outcome: Outcome::Dropped, status: Status::Fixed(NO_RESPONSE), fate: EndingFate::Cut, ..self }
    }

    /// The status, where it is not for the limit to say.
    pub fn own_status(self) -> u16 {
        self.status.or(|| TOO_MANY_REQUESTS)
    }
}

const HOSTLESS: Words = Words::Fixed("The request does not say which host it is for.");
const BROKEN_OFF: &str = "The upstream closed the connection early.";
const STOOD_STILL: &str = "Idle timeout.";

/// The status, the words, the counter and the fate of the connection where something was not in time.
fn of_timeout(kind: TimeoutKind) -> (u16, &'static str, Counted, EndingFate) {
    match kind {
        TimeoutKind::Deadline | TimeoutKind::Head | TimeoutKind::Try => {
            (504, "The upstream did not answer in time.", Counted::Alone, EndingFate::Keep)
        }
        TimeoutKind::ClientSends => {
            (408, "The request's body did not come in time.", Counted::BodyTimeout, EndingFate::Close)
        }
        TimeoutKind::ClientDrips => {
            (408, "The request's body came too slowly.", Counted::BodyTooSlow, EndingFate::Close)
        }
        TimeoutKind::ClientHolds => {
            (408, "Other clients wait for the place of this upload.", Counted::BodyTooSlow, EndingFate::Close)
        }
        TimeoutKind::ClientReads => (504, STOOD_STILL, Counted::ReadTimeout, EndingFate::Cut),
        TimeoutKind::UpstreamReads => (504, STOOD_STILL, Counted::UpstreamReadTimeout, EndingFate::Close),
        TimeoutKind::UpstreamSends => (504, STOOD_STILL, Counted::UpstreamBodyTimeout, EndingFate::Close),
    }
}

/// Whether a fault is one of size.
fn is_too_large(fault: Fault) -> bool {
    matches!(fault, Fault::TargetTooLong | Fault::HeadTooLarge | Fault::TooManyFields)
}

/// The status that answers a request with this fault.
fn status_of(fault: Fault) -> u16 {
    match fault {
        Fault::TargetTooLong => 414,
        Fault::HeadTooLarge | Fault::TooManyFields => 431,
        Fault::Expectation => 417,
        Fault::CodingUnknown => 501,
        Fault::Version => 505,
        _ => 400,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::error::SwitchFault;
    use super::*;
    use sluicegate_time::Tick;

    /// A row in words.
    fn row(name: &str, cause: Cause<'_>) -> String {
        let Ending { outcome, status, words, reason, counted, fate } = Ending::of(cause);
        let status = match status {
            Status::Fixed(status) => status.to_string(),
            Status::OfLimit => "the limit's".to_owned(),
        };
        let mut said = String::new();
        words.write("x", Some(3), &mut said);
        let reason = reason.map_or("none", Reason::word);
        format!("{name}: {} {status} {said:?}, dead letter {reason}, counted {counted:?}, {fate:?}", outcome.word())
    }

    fn assert_rows(causes: &[(&str, Cause<'_>)], expected: &[&str]) {
        let rows: Vec<_> = causes.iter().map(|(name, cause)| row(name, *cause)).collect();
        assert_eq!(rows, expected, "{rows:#?}");
    }

    #[test]
    fn requests_that_get_nowhere_end_as_the_table_says() {
        let encoding = Malformed::PathEncoding;
        assert_rows(
            &[
                ("fault", Cause::Fault(Fault::HostMissing)),
                ("large", Cause::Fault(Fault::HeadTooLarge)),
                ("late head", Cause::LateHead),
                ("malformed", Cause::Malformed(encoding)),
                ("no route", Cause::NoRoute),
                ("hostless listener", Cause::HostlessListener),
                ("hostless route", Cause::HostlessRoute),
                ("rewritten", Cause::Rewritten(encoding)),
                ("unvouched", Cause::Unvouched),
            ],
            &[
                "fault: malformed 400 \"The request has no Host field.\", dead letter none, \
                 counted ClientFault(HostMissing), Linger",
                "large: malformed 431 \"The head is too large.\", dead letter too-large, \
                 counted ClientFault(HeadTooLarge), Linger",
                "late head: timeout 408 \"The request's head did not come in time.\", dead letter timeout, \
                 counted HeadTimeout, Linger",
                "malformed: malformed 400 \"The path holds a percent sign without two hex digits.\", dead letter none, \
                 counted Malformed(PathEncoding), Close",
                "no route: no-route 404 \"No route matches.\", dead letter none, counted Alone, Keep",
                "hostless listener: malformed 400 \"The request does not say which host it is for.\", dead letter none, \
                 counted Alone, Close",
                "hostless route: malformed 400 \"The request does not say which host it is for.\", dead letter none, \
                 counted Alone, Keep",
                "rewritten: malformed 400 \"Rewritten for the server, The path holds a percent sign without two hex \
                 digits.\", dead letter none, counted Alone, Keep",
                "unvouched: malformed 503 \"The gateway does not know this request as its own.\", dead letter none, \
                 counted Alone, Close",
            ],
        );
    }

    #[test]
    fn refusals_end_as_the_table_says() {
        assert_rows(
            &[
                ("rate", Cause::Refused(RefusalReason::Rate)),
                ("queue full", Cause::Refused(RefusalReason::QueueFull)),
                ("wait timeout", Cause::Refused(RefusalReason::WaitTimeout)),
                ("too costly", Cause::Refused(RefusalReason::TooCostly)),
                ("table full", Cause::Refused(RefusalReason::TableFull)),
                ("blocked", Cause::Refused(RefusalReason::Blocked)),
                ("store down", Cause::Refused(RefusalReason::StoreDown)),
                ("key missing", Cause::KeyMissing),
                ("key unread", Cause::KeyUnread),
            ],
            &[
                "rate: refused the limit's \"Over the limit \\\"x\\\"; try again in 3 s.\", dead letter rate-limited, \
                 counted Decision(Refused), Keep",
                "queue full: refused the limit's \"Over the limit \\\"x\\\"; try again in 3 s.\", dead letter queue-full, \
                 counted Decision(QueueFull), Keep",
                "wait timeout: wait-timeout the limit's \"Timed out waiting for limit \\\"x\\\"; try again in 3 s.\", \
                 dead letter wait-timeout, counted Decision(WaitTimeout), Keep",
                "too costly: refused the limit's \"Over the limit \\\"x\\\"; this request can never fit in it.\", \
                 dead letter rate-limited, counted Decision(TooCostly), Keep",
                "table full: refused the limit's \"The limit \\\"x\\\" counts as many clients as it can; try again in 3 \
                 s.\", dead letter overload, counted Decision(TableFull), Keep",
                "blocked: blocked the limit's \"Blocked by the limit \\\"x\\\"; try again in 3 s.\", dead letter blocked, \
                 counted Decision(Blocked), Keep",
                "store down: refused 503 \"The limit \\\"x\\\" cannot reach its store; try again in 3 s.\", \
                 dead letter overload, counted Decision(StoreDown), Keep",
                "key missing: refused the limit's \"The request lacks the key of limit \\\"x\\\".\", \
                 dead letter rate-limited, counted Decision(MissingKey), Keep",
                "key unread: refused 503 \"The gateway has no room to read the body for the limit \\\"x\\\"; try again \
                 in 3 s.\", dead letter overload, counted Decision(MissingKey), Keep",
            ],
        );
        let dropped = Ending::of(Cause::Refused(RefusalReason::Rate)).dropped();
        let own = Ending::of(Cause::Refused(RefusalReason::Rate));
        assert_eq!((dropped.outcome, dropped.own_status(), dropped.fate), (Outcome::Dropped, 444, EndingFate::Cut));
        assert_eq!((dropped.reason, dropped.counted), (own.reason, own.counted));
        assert_eq!((own.own_status(), &*own.words.text()), (429, "Over the limit."), "of a limit that is gone");
        let keyless = Ending::of(Cause::KeyMissing).words.text();
        assert_eq!(keyless, "The request lacks the key of a limit.");
    }

    #[test]
    fn exchanges_that_break_end_as_the_table_says() {
        let error = [
            ExchangeError::Unreachable(None),
            ExchangeError::OutOfService,
            ExchangeError::Breaker { retry_at: Tick::ZERO },
            ExchangeError::QueueFull,
            ExchangeError::Shed,
            ExchangeError::Silent { written: true },
            ExchangeError::Unread,
            ExchangeError::Upstream(io::Error::from(io::ErrorKind::ConnectionReset)),
            ExchangeError::Response(Fault::ChunkSize),
            ExchangeError::Unasked(SwitchFault::NotAsked),
            ExchangeError::Request(Fault::ChunkSize),
            ExchangeError::TooLarge,
            ExchangeError::ClientGone,
            ExchangeError::Timeout(TimeoutKind::Deadline),
            ExchangeError::Timeout(TimeoutKind::Head),
            ExchangeError::Timeout(TimeoutKind::Try),
            ExchangeError::Timeout(TimeoutKind::ClientSends),
            ExchangeError::Timeout(TimeoutKind::ClientDrips),
            ExchangeError::Timeout(TimeoutKind::ClientHolds),
            ExchangeError::Timeout(TimeoutKind::ClientReads),
            ExchangeError::Timeout(TimeoutKind::UpstreamReads),
            ExchangeError::Timeout(TimeoutKind::UpstreamSends),
        ];
        let names: Vec<_> = error.iter().map(|error| format!("{error:?}")).collect();
        let rows: Vec<_> =
            names.iter().zip(&error).map(|(name, error)| row(name, Cause::ExchangeError(error))).collect();
        let expected = [
            "Unreachable(None): upstream-error 502 \"No server of the upstream can be reached.\", \
             dead letter upstream-error, counted Alone, Keep",
            "OutOfService: upstream-error 503 \"All servers of the upstream are out of service.\", \
             dead letter upstream-error, counted Alone, Keep",
            "Breaker { retry_at: Tick(0) }: breaker 503 \"The upstream fails too often; nothing is sent to it for a while.\", \
             dead letter breaker, counted Alone, Keep",
            "QueueFull: queue-full 503 \"The upstream has as many requests as it may have.\", dead letter queue-full, \
             counted Alone, Keep",
            "Shed: shed 503 \"There is too much to do, and others come first.\", dead letter shed, counted Alone, Keep",
            "Silent { written: true }: upstream-error 502 \"The upstream closed the connection early.\", \
             dead letter upstream-error, counted Alone, Keep",
            "Unread: upstream-error 502 \"The upstream closed the connection early.\", dead letter upstream-error, \
             counted Alone, Keep",
            "Upstream(Kind(ConnectionReset)): upstream-error 502 \"The upstream closed the connection early.\", \
             dead letter upstream-error, counted Alone, Keep",
            "Response(ChunkSize): upstream-error 502 \"The upstream's answer is not valid.\", \
             dead letter upstream-error, counted UpstreamFault(ChunkSize), Close",
            "Unasked(NotAsked): upstream-error 502 \"The upstream's answer 101 is no switch of protocols that was asked \
             for.\", dead letter upstream-error, counted UnaskedSwitch, Close",
            "Request(ChunkSize): malformed 400 \"The size of a chunk is malformed.\", dead letter none, \
             counted ClientFault(ChunkSize), Close",
            "TooLarge: malformed 413 \"The request's body is too large.\", dead letter too-large, counted BodyTooLarge, \
             Close",
            "ClientGone: client-gone 499 \"\", dead letter none, counted Alone, Cut",
            "Timeout(Deadline): timeout 504 \"The upstream did not answer in time.\", dead letter timeout, counted Alone, \
             Keep",
            "Timeout(Head): timeout 504 \"The upstream did not answer in time.\", dead letter timeout, counted Alone, Keep",
            "Timeout(Try): timeout 504 \"The upstream did not answer in time.\", dead letter timeout, counted Alone, Keep",
            "Timeout(ClientSends): timeout 408 \"The request's body did not come in time.\", dead letter timeout, \
             counted BodyTimeout, Close",
            "Timeout(ClientDrips): timeout 408 \"The request's body came too slowly.\", dead letter timeout, \
             counted BodyTooSlow, Close",
            "Timeout(ClientHolds): timeout 408 \"Other clients wait for the place of this upload.\", dead letter timeout, \
             counted BodyTooSlow, Close",
            "Timeout(ClientReads): timeout 504 \"Idle timeout.\", dead letter timeout, \
             counted ReadTimeout, Cut",
            "Timeout(UpstreamReads): timeout 504 \"Idle timeout.\", dead letter timeout, \
             counted UpstreamReadTimeout, Close",
            "Timeout(UpstreamSends): timeout 504 \"Idle timeout.\", dead letter timeout, \
             counted UpstreamBodyTimeout, Close",
        ];
        assert_eq!(rows, expected, "{rows:#?}");
    }

    #[test]
    fn every_fault_of_a_request_has_its_status() {
        let other: Vec<_> = Fault::ALL.into_iter().filter(|fault| status_of(*fault) != 400).collect();
        let statuses: Vec<_> = other.iter().map(|fault| (*fault, status_of(*fault))).collect();
        for (fault, status) in [
            (Fault::TargetTooLong, 414),
            (Fault::HeadTooLarge, 431),
            (Fault::TooManyFields, 431),
            (Fault::Expectation, 417),
            (Fault::CodingUnknown, 501),
            (Fault::Version, 505),
        ] {
            assert!(statuses.contains(&(fault, status)), "{fault:?}");
        }
        assert_eq!(statuses.len(), 6);
        for fault in Fault::ALL {
            let (of_head, of_body) =
                (Ending::of(Cause::Fault(fault)), Ending::of(Cause::ExchangeError(&ExchangeError::Request(fault))));
            assert_eq!((of_head.status, of_head.words), (of_body.status, of_body.words));
            assert_eq!(of_head.reason.is_some(), [414, 431].contains(&status_of(fault)), "{fault:?}");
        }
        for fault in Malformed::ALL {
            assert_eq!(Ending::of(Cause::Malformed(fault)).own_status(), 400);
        }
    }
}
