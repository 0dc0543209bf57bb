//! Requests that a client has given up: HTTP/2 streams that it has reset, and requests that were under way when it closed
//! their connection. Servers and this worker have worked for them in vain, so they are charged to the client, over all its
//! connections to a worker.

use std::cell::Cell;

use super::client_ledger::Debt;
use crate::time::{Span, Tick};

/// How long it takes to pay for a request that its client has given up: 100 of them a second are borne.
const COST: Span = Span::from_millis(10);
/// Beyond this debt the client is refused: 2,000 at once are borne.
const MAX_DEBT: Span = Span::from_secs(20);
/// A debt beyond this is let off: a client that closes thousands of requests at once, as a proxy that restarts may,
/// is refused for two seconds, and not for as long as they would take to pay.
const MOST_KEPT_OF_DEBT: Span = Span::from_secs(22);
/// Requests that were answered and pay for one that is given up.
const ANSWERS_PER_REQUEST: u32 = 2;
/// The most of them that are kept for later.
const MAX_ANSWERS: u32 = 4_000;

/// The requests that one client has given up.
#[derive(Debug, Default)]
pub struct GivenUp {
    /// Answers that pay for requests that are yet to be given up.
    answers: Cell<u32>,
    debt: Debt,
}

/// Whether so many answers pay for so many requests that are given up.
pub fn pays_for(answers: u32, given_up: u32) -> bool {
    given_up <= answers / ANSWERS_PER_REQUEST
}

impl GivenUp {
    /// Notes requests that the client has given up, and those of it that were answered.
    pub fn note(&self, requests: u32, answers: u32, now: Tick) {
        let answers = self.answers.get().saturating_add(answers);
        let paid = requests.min(answers / ANSWERS_PER_REQUEST);
        self.answers.set((answers - paid * ANSWERS_PER_REQUEST).min(MAX_ANSWERS));
        if requests > paid {
            let cost = Span::from_nanos(COST.as_nanos().saturating_mul(u64::from(requests - paid)));
            self.debt.charge_up_to(cost, MOST_KEPT_OF_DEBT, now);
        }
    }

    /// Notes requests that were answered.
    pub fn note_answers(&self, answers: u32) {
        self.answers.set(self.answers.get().saturating_add(answers).min(MAX_ANSWERS));
    }

    /// Whether it has given up more than is borne.
    pub fn is_over(&self, now: Tick) -> bool {
        self.over_for(now).is_some()
    }

    /// How long it has given up more than is borne, if it has.
    pub fn over_for(&self, now: Tick) -> Option<Span> {
        let beyond = self.debt.owed(now).as_nanos().checked_sub(MAX_DEBT.as_nanos());
        beyond.filter(|beyond| *beyond > 0).map(Span::from_nanos)
    }

    /// Whether it has ever given up more than was answered.
    pub fn has_owed(&self) -> bool {
        self.debt.has_been_charged()
    }

    /// Whether something of that is not paid for.
    pub fn owes(&self, now: Tick) -> bool {
        !self.debt.owed(now).is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn two_thousand_are_borne_at_once_and_a_hundred_a_second() {
        let given_up = GivenUp::default();
        let start = at(1_000);
        given_up.note(2_000, 0, start);
        assert!(!given_up.is_over(start) && given_up.owes(start));
        given_up.note(1, 0, start);
        assert_eq!(given_up.over_for(start), Some(COST));
        assert!(given_up.is_over(start) && !given_up.is_over(at(1_010)));
        for second in 2..1_000 {
            given_up.note(100, 0, at(second * 1_000));
            assert!(!given_up.is_over(at(second * 1_000 + 10)), "{second}");
        }
        assert!(!given_up.owes(at(2_000_000)));
    }

    #[test]
    fn two_answers_pay_for_one_now_or_later_up_to_a_number() {
        let given_up = GivenUp::default();
        for _ in 0..5_000 {
            given_up.note(1, 2, at(1));
            given_up.note_answers(2);
            given_up.note(1, 0, at(1));
        }
        assert!(!given_up.has_owed());
        given_up.note_answers(100_000);
        given_up.note(0, 100_000, at(1));
        given_up.note(2_000, 0, at(1));
        assert!(!given_up.has_owed(), "4,000 answers pay for 2,000 requests");
        given_up.note(1, 1, at(1));
        assert!(given_up.has_owed());
        given_up.note(1, 1, at(1));
        assert_eq!(given_up.debt.owed(at(1)), COST, "half an answer is kept");
    }
}
