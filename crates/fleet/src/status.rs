use std::sync::{Mutex, MutexGuard, PoisonError};

use super::circuit::{CircuitState, ExchangeOutcome};
use super::store::{Address, StoreError, StoreServer};
use sluicegate_limiter::OnFailure;
use sluicegate_time::{Span, Tick};

/// Exchanges of which it is known how long they took.
const RECENT: usize = 1_024;

words! {
    /// How shared limits are decided now.
    pub enum Mode default Starting {
        /// The first connection to the store is being made.
        Starting = "starting",
        /// The store is asked.
        Shared = "shared",
        /// The store does not answer: each gateway decides alone, as `on_failure` says.
        Alone = "alone",
    }
}

/// A gateway's view of its fleet.
#[derive(Clone, Debug)]
pub struct Status {
    /// How shared limits are decided now.
    pub mode: Mode,
    /// Since when.
    pub since: Tick,
    /// The name of this gateway among the members.
    pub member: String,
    /// Gateways that live, this one included, as far as is known: `N` of the bounds.
    pub gateways: u32,
    /// The names of some, as the store said last.
    pub names: Vec<String>,
    /// The others know of this one. Before that it spends nothing that it has not been granted.
    pub is_known: bool,
    /// Where the store is, as it is configured.
    pub store: String,
    /// Its servers: one, or the masters of a cluster. None: none has been found yet.
    pub nodes: Vec<NodeStatus>,
    /// How long an answer may take.
    pub deadline: Span,
    /// The decision of limits without the store.
    pub on_failure: OnFailure,
    /// Why the store was lost the last time.
    pub lost: Option<StoreError>,
}

/// A server of the store.
#[derive(Clone, Debug)]
pub struct NodeStatus {
    /// Where it is.
    pub address: Address,
    /// The slots of a cluster that it has; 0 where there is none.
    pub slots: u16,
    /// Its maker and version; `None`: there is no connection.
    pub server: Option<StoreServer>,
    /// Whether it is asked, once there is a connection.
    pub circuit: CircuitState,
    /// Why it was lost the last time.
    pub lost: Option<StoreError>,
}

impl NodeStatus {
    /// Its circuit as operators see it: `closed` while it is asked, `open` or `half-open`.
    pub fn circuit_word(&self) -> &'static str {
        match (self.circuit, &self.server) {
            (CircuitState::Closed, None) => "open",
            (state, _) => state.word(),
        }
    }
}

impl Status {
    /// Whether the store is not asked, or a part of it: after failures, or since there is no connection.
    pub fn is_circuit_open(&self) -> bool {
        self.mode != Mode::Starting && self.circuit_word() != "closed"
    }

    /// The circuit as operators see it: of several servers the worst.
    pub fn circuit_word(&self) -> &'static str {
        match self.mode {
            Mode::Starting => "closed",
            Mode::Alone if self.nodes.is_empty() => "open",
            Mode::Alone | Mode::Shared => {
                let words = || self.nodes.iter().map(NodeStatus::circuit_word);
                words()
                    .find(|word| *word == "open")
                    .or_else(|| words().find(|word| *word != "closed"))
                    .unwrap_or("closed")
            }
        }
    }
}

/// How long the last exchanges with the store took, those that timed out among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// How many exchanges these are, at most 1,024.
    pub exchanges: usize,
    /// Half of them took no longer.
    pub p50: Span,
    /// 99 of 100 took no longer.
    pub p99: Span,
}

/// How many exchanges with the store have ended, by how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanges {
    /// The store has answered.
    pub answered: u64,
    /// The store has refused, the connection was lost, or none could be made.
    pub failed: u64,
    /// No answer came in time.
    pub timed_out: u64,
}

/// The notes of the thread of a fleet, for those who ask.
#[derive(Debug)]
pub(super) struct Board(Mutex<Notes>);

#[derive(Debug)]
struct Notes {
    status: Status,
    exchanges: Exchanges,
    recent: RecentSpans,
}

/// The last so many of something that takes time.
#[derive(Clone, Debug, Default)]
pub(super) struct RecentSpans {
    /// A ring.
    spans: Vec<Span>,
    next: usize,
}

impl RecentSpans {
    pub(super) fn push(&mut self, took: Span) {
        match self.spans.get_mut(self.next) {
            Some(oldest) => *oldest = took,
            None => self.spans.push(took),
        }
        self.next = (self.next + 1) % RECENT;
    }

    pub(super) fn latency(mut self) -> Latency {
        self.spans.sort_unstable();
        let at = |percent: usize| {
            let rank = (self.spans.len() * percent).div_ceil(100).max(1);
            self.spans.get(rank - 1).copied().unwrap_or_default()
        };
        Latency { exchanges: self.spans.len(), p50: at(50), p99: at(99) }
    }
}

impl Board {
    pub(super) fn new(status: Status) -> Self {
        Self(Mutex::new(Notes { status, exchanges: Exchanges::default(), recent: RecentSpans::default() }))
    }

    /// An exchange has ended.
    pub(super) fn ended(&self, outcome: ExchangeOutcome, took: Span) {
        let mut notes = self.lock();
        let Notes { exchanges, recent, .. } = &mut *notes;
        let count = match outcome {
            ExchangeOutcome::Answered => &mut exchanges.answered,
            ExchangeOutcome::Failed => &mut exchanges.failed,
            ExchangeOutcome::TimedOut => &mut exchanges.timed_out,
        };
        *count += 1;
        recent.push(took);
    }

    /// No connection could be made.
    pub(super) fn not_connected(&self) {
        self.lock().exchanges.failed += 1;
    }

    /// Changes the status.
    pub(super) fn update(&self, change: impl FnOnce(&mut Status)) {
        change(&mut self.lock().status);
    }

    pub(super) fn status(&self) -> Status {
        self.lock().status.clone()
    }

    pub(super) fn exchanges(&self) -> Exchanges {
        self.lock().exchanges
    }

    pub(super) fn latency(&self) -> Latency {
        let recent = self.lock().recent.clone();
        recent.latency()
    }

    fn lock(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn board() -> Board {
        Board::new(Status {
            mode: Mode::Starting,
            since: Tick::ZERO,
            member: "gw-1-0".to_owned(),
            gateways: 1,
            names: Vec::new(),
            is_known: false,
            store: "/run/store".to_owned(),
            nodes: Vec::new(),
            deadline: Span::from_millis(10),
            on_failure: OnFailure::Fair,
            lost: None,
        })
    }

    #[test]
    fn latencies_are_those_of_the_last_exchanges() {
        let (board, ms) = (board(), Span::from_millis);
        assert_eq!(board.latency(), Latency::default());
        board.ended(ExchangeOutcome::Answered, ms(3));
        assert_eq!(board.latency(), Latency { exchanges: 1, p50: ms(3), p99: ms(3) });
        for took in 1..=100 {
            board.ended(ExchangeOutcome::Answered, ms(took));
        }
        assert_eq!(board.latency(), Latency { exchanges: 101, p50: ms(50), p99: ms(99) });
        for _ in 0..RECENT {
            board.ended(ExchangeOutcome::TimedOut, ms(7));
        }
        assert_eq!(board.latency(), Latency { exchanges: RECENT, p50: ms(7), p99: ms(7) });
        board.ended(ExchangeOutcome::Failed, ms(1));
        board.not_connected();
        assert_eq!(board.exchanges(), Exchanges { answered: 101, failed: 2, timed_out: 1_024 });
        assert_eq!(board.latency().p50, ms(7), "no exchange has taken any time");
    }
}
