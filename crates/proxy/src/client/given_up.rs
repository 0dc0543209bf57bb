//! Requests of HTTP/2 that a client has cancelled before their answer began, and soon after it had sent them: by a reset or by
//! the end of their connection. Servers and this worker have worked for them in vain, at no cost to the client, so they are
//! charged to it, over all its connections to a worker (CVE-2023-44487).
//!
//! HTTP/1 is not charged. There a cancel costs its client a connection, `connect_rate` bounds what it costs servers (of
//! HTTP/1; to one of HTTP/2 it is a stream, which limits bound), and who leaves a server that stalls is no attacker: behind one
//! address there may be thousands of them.

use std::cell::Cell;

use sluicegate_time::{Span, Tick};

/// How long it takes to pay for a request: 500 a second are borne.
const COST: Span = Span::from_millis(2);
/// A request that a server has answered pays for half of one.
const PAID_BY_ANSWER: Span = Span::from_millis(1);
/// Beyond this debt the client is refused: 10,000 at once are borne.
const MAX_DEBT: Span = Span::from_secs(20);
/// A debt beyond this is let off: a client that cancels thousands of requests at once, as a proxy that restarts may,
/// is refused for two seconds, and not for as long as they would take to pay.
const MOST_KEPT_OF_DEBT: Span = Span::from_secs(22);

/// The requests that one client has given up, as the time when they are paid for: each adds to it.
#[derive(Debug, Default)]
pub struct GivenUp(Cell<Tick>);

/// Whether so many answers pay for so many requests that are given up.
pub fn pays_for(answers: u32, given_up: u32) -> bool {
    given_up <= answers / 2
}

impl GivenUp {
    /// Notes requests that the client has given up, and those of it that were answered.
    pub fn note(&self, requests: u32, answers: u32, now: Tick) {
        let owed = self.owed(now).as_nanos() + COST.as_nanos() * u64::from(requests);
        let owed = owed.saturating_sub(PAID_BY_ANSWER.as_nanos() * u64::from(answers));
        if owed > 0 || self.has_owed() {
            self.0.set(now + Span::from_nanos(owed).min(MOST_KEPT_OF_DEBT));
        }
    }

    /// Whether it has given up more than is borne.
    pub fn is_over(&self, now: Tick) -> bool {
        self.owed(now) > MAX_DEBT
    }

    /// Whether it has ever given up more than was answered.
    pub fn has_owed(&self) -> bool {
        self.0.get() > Tick::ZERO
    }

    /// How long it takes to pay for what it has given up.
    pub fn owed(&self, now: Tick) -> Span {
        self.0.get().since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn ten_thousand_are_borne_at_once_and_five_hundred_a_second() {
        let given_up = GivenUp::default();
        given_up.note(10_000, 0, at(1_000));
        assert!(!given_up.is_over(at(1_000)));
        given_up.note(1, 0, at(1_000));
        assert!(given_up.is_over(at(1_000)) && given_up.is_over(at(1_001)) && !given_up.is_over(at(1_002)));
        for second in 2..1_000 {
            given_up.note(500, 0, at(second * 1_000));
            assert!(!given_up.is_over(at(second * 1_000 + 2)), "{second}");
        }
        assert_eq!(given_up.owed(at(2_000_000)), Span::ZERO);
    }

    #[test]
    fn a_client_is_refused_for_two_seconds_at_the_most() {
        let given_up = GivenUp::default();
        given_up.note(1_000_000, 0, at(1));
        assert!(given_up.is_over(at(2_000)) && !given_up.is_over(at(2_001)));
    }

    #[test]
    fn two_answers_pay_for_one_that_was_given_up_with_them_or_before() {
        let given_up = GivenUp::default();
        for _ in 0..50_000 {
            given_up.note(1, 2, at(1));
        }
        assert!(!given_up.has_owed());
        given_up.note(2, 0, at(1));
        given_up.note(0, 3, at(1));
        assert_eq!(given_up.owed(at(1)), PAID_BY_ANSWER, "half of one is left");
        given_up.note(0, 1_000, at(1));
        assert_eq!(given_up.owed(at(1)), Span::ZERO);
        given_up.note(1, 0, at(1));
        assert_eq!(given_up.owed(at(1)), COST, "the past is no credit");
    }
}
