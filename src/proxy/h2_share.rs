//! Bounds on how much one client may hold and do over HTTP/2, over all its connections to a worker together.

use std::cell::Cell;
use std::rc::Rc;

use super::client_ledger::{ClientAccount, Debt};
use super::worker::{Counted, Worker};
use crate::time::{Span, Tick};

/// Decoded bytes of the heads of one client's requests that are under way on a worker: 2,000 requests with cookies of
/// 4 KiB.
pub const CLIENT_HEADS: usize = 8 * 1024 * 1024;
/// The same for all clients together.
pub const WORKER_HEADS: usize = 32 * 1024 * 1024;

/// How long it takes to pay for a request that its client has given up: 100 of them a second are borne.
const RESET_COST: Span = Span::from_millis(10);
/// Beyond this debt for them the client is refused: 2,000 at once are borne.
const MAX_RESET_DEBT: Span = Span::from_secs(20);
/// A debt beyond this is let off: a client that closes thousands of requests at once, as a proxy that restarts may,
/// is refused for two seconds, and not for as long as they would take to pay.
const MOST_KEPT_OF_DEBT: Span = Span::from_secs(22);
/// Requests that were answered and pay for one that is given up.
const ANSWERS_PER_RESET: u32 = 2;
/// The most of them that are kept for later.
const MAX_ANSWERS: u32 = 4_000;

/// A client's part.
#[derive(Debug, Default)]
pub struct H2Share {
    heads: Cell<usize>,
    /// Answers that pay for resets to come.
    answers: Cell<u32>,
    resets: Debt,
}

/// By which bound a request was refused unread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum StreamBound {
    /// Requests at once of its connection.
    ConnectionStreams,
    /// Decoded heads of its connection.
    ConnectionHeads,
    /// Decoded heads of its client.
    ClientHeads,
    /// Requests that its client has given up before.
    ClientResets,
    /// Requests at once of the worker.
    WorkerStreams,
    /// Decoded heads of the worker.
    WorkerHeads,
}

impl StreamBound {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 6] = [
        (Self::ConnectionStreams, "connection-streams"),
        (Self::ConnectionHeads, "connection-heads"),
        (Self::ClientHeads, "client-heads"),
        (Self::ClientResets, "client-resets"),
        (Self::WorkerStreams, "worker-streams"),
        (Self::WorkerHeads, "worker-heads"),
    ];
}

impl H2Share {
    /// Notes requests that the client has given up, and those of it that were answered.
    pub fn note(&self, resets: u32, answers: u32, now: Tick) {
        let answers = self.answers.get().saturating_add(answers);
        let paid = resets.min(answers / ANSWERS_PER_RESET);
        self.answers.set((answers - paid * ANSWERS_PER_RESET).min(MAX_ANSWERS));
        if resets > paid {
            let cost = Span::from_nanos(RESET_COST.as_nanos().saturating_mul(u64::from(resets - paid)));
            self.resets.charge_up_to(cost, MOST_KEPT_OF_DEBT, now);
        }
    }

    /// Whether it has given up more than is borne.
    pub fn is_over(&self, now: Tick) -> bool {
        self.resets.owed(now) > MAX_RESET_DEBT
    }

    /// Whether it has ever given up more than was answered.
    pub fn has_owed(&self) -> bool {
        self.resets.has_been_charged()
    }

    /// Whether something of that is not paid for.
    pub fn owes(&self, now: Tick) -> bool {
        !self.resets.owed(now).is_zero()
    }
}

/// A request's place in its worker, with the bytes of its head. Dropping it gives both back.
pub struct StreamPlace {
    account: Rc<ClientAccount>,
    bytes: usize,
    streams: Counted,
}

impl StreamPlace {
    /// A place for a request with a head of so many bytes, unless there is none.
    pub fn take(
        worker: &Rc<Worker>,
        account: &Rc<ClientAccount>,
        bytes: usize,
        now: Tick,
    ) -> Result<Self, StreamBound> {
        let share = &account.h2;
        if share.is_over(now) {
            return Err(StreamBound::ClientResets);
        }
        let of_client = share.heads.get() + bytes;
        let of_worker = worker.heads.get() + bytes;
        if of_client > CLIENT_HEADS {
            return Err(StreamBound::ClientHeads);
        }
        if of_worker > WORKER_HEADS {
            return Err(StreamBound::WorkerHeads);
        }
        let streams = worker.enter_stream().ok_or(StreamBound::WorkerStreams)?;
        share.heads.set(of_client);
        worker.heads.set(of_worker);
        Ok(Self { account: Rc::clone(account), bytes, streams })
    }
}

impl Drop for StreamPlace {
    fn drop(&mut self) {
        let heads = &self.account.h2.heads;
        heads.set(heads.get().saturating_sub(self.bytes));
        let heads = &self.streams.worker().heads;
        heads.set(heads.get().saturating_sub(self.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    #[test]
    fn two_thousand_resets_are_borne_at_once_and_a_hundred_a_second() {
        let share = H2Share::default();
        let start = at(1_000);
        share.note(2_000, 0, start);
        assert!(!share.is_over(start) && share.owes(start));
        share.note(1, 0, start);
        assert!(share.is_over(start) && !share.is_over(at(1_010)));
        for second in 2..1_000 {
            share.note(100, 0, at(second * 1_000));
            assert!(!share.is_over(at(second * 1_000 + 10)), "{second}");
        }
        assert!(!share.owes(at(2_000_000)));
    }

    #[test]
    fn two_answers_pay_for_a_reset_now_or_later_up_to_a_number() {
        let share = H2Share::default();
        for _ in 0..10_000 {
            share.note(1, 2, at(1));
        }
        assert!(!share.has_owed());
        share.note(0, 100_000, at(1));
        share.note(2_000, 0, at(1));
        assert!(!share.has_owed(), "4,000 answers pay for 2,000 resets");
        share.note(1, 1, at(1));
        assert!(share.has_owed());
        share.note(1, 1, at(1));
        assert_eq!(share.resets.owed(at(1)), RESET_COST, "half an answer is kept");
    }

    #[test]
    fn every_bound_has_its_own_place() {
        for (place, (bound, _)) in StreamBound::ALL.iter().enumerate() {
            assert_eq!(*bound as usize, place);
        }
    }
}
