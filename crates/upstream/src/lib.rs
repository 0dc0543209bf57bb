//! Connections to the servers behind the gateway, as one worker sees them.
//!
//! Each worker keeps its own idle connections and its own count of requests in flight; nothing here is shared between
//! threads but the [`Load`] cells, which each worker writes alone and the code that balances may read, the
//! [`ServerStates`], which workers look at again where they have changed, and where they are asked for, the places of a
//! [`Bulkhead`] and the breaker of a [`Circuit`]. The room knows nothing of the configuration:
//! `gateway` hands it plain values. Its callers are `proxy/forward`, and `gateway` for the checks of health.

mod alone;
mod alone_connect;
mod bulkhead;
mod circuit;
mod connect;
mod echo;
mod line;
mod pace;
mod probe;
mod proxy_header;
mod states;
mod turn;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_proxy_protocol::Version;
use sluicegate_time::{Span, Tick};
use sluicegate_tls::UpstreamTls;
use sluicegate_transport::Protocol;

pub use alone::{AlonePlace, AlonePlaces};
pub use bulkhead::{Bulkhead, Caps, HeldPlace, NoPlace, Pending, QueueStanding, ServerPlaces};
pub use circuit::{Circuit, Pass};
pub use connect::{ConnectError, Leased, PrivateConnection, ServerConnections, ServerTimes, Watched};
pub use echo::EchoServers;
pub use pace::ConnectRate;
pub use probe::{ProbeError, probe_grpc, probe_http, probe_tcp};
pub use proxy_header::ProxyHeader;
pub use states::{GateView, ServerStates, Trial};
pub use turn::{Pace, TurnEnd};

/// Where a server is, and what it is called in logs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// As the configuration spells it: `127.0.0.1:9001`, `echo:a`. Stickiness hangs on this name.
    pub name: Arc<str>,
    /// An IP address or a DNS name, resolved at each connect.
    pub host: Arc<str>,
    /// The TCP port.
    pub port: u16,
}

/// How the servers of an upstream are spoken to.
#[derive(Clone, Debug, Default)]
pub struct Link {
    /// The protocol that is spoken.
    pub protocol: Protocol,
    /// Over TLS, if this says how.
    pub tls: Option<Arc<UpstreamTls>>,
    /// Whether each connection begins with a PROXY header, and of which version. Not for HTTP/2, whose connections carry
    /// requests of many clients.
    pub proxy_protocol: Option<Version>,
}

impl PartialEq for Link {
    /// Whether connections made by the one may be used by the other.
    fn eq(&self, other: &Self) -> bool {
        let same_tls = match (&self.tls, &other.tls) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            (None, None) => true,
            _ => false,
        };
        self.protocol == other.protocol && same_tls && self.proxy_protocol == other.proxy_protocol
    }
}

/// How much is asked of one server: a cell for each worker, written by that worker only.
#[derive(Debug)]
pub struct Load(Box<[Cell]>);

/// Of one worker; alone on its cache line, since others write their own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Cell {
    in_flight: AtomicU64,
    answered: AtomicU64,
    failed: AtomicU64,
    /// A moving mean, in nanoseconds.
    latency: AtomicU64,
    /// The clients that had a good answer last, the last one first: three, as [`RecentClients`](sluicegate_balance::RecentClients)
    /// has them, and not all of one moment for a reader meanwhile.
    clients: [AnsweredClient; 3],
}

/// A client that had a good answer: its number, and when.
#[derive(Debug, Default)]
struct AnsweredClient {
    number: AtomicU64,
    /// In nanoseconds; 0: there is none.
    at: AtomicU64,
}

/// How much was asked of a server, and how it answered, over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Requests whose answers had no status of a failure.
    pub answered: u64,
    /// Connects, requests and answers that failed.
    pub failed: u64,
    /// From sending a request to the head of its answer: the mean of about the last sixteen of each worker.
    pub latency: Span,
}

/// The last answer's weight in the mean: a sixteenth.
const LATENCY_SHIFT: u32 = 4;

impl Load {
    /// Cells for `workers` workers, all zero.
    pub fn new(workers: usize) -> Arc<Self> {
        Arc::new(Self((0..workers).map(|_| Cell::default()).collect()))
    }

    /// How many workers there are, at least 1.
    pub fn workers(&self) -> usize {
        self.0.len().max(1)
    }

    /// In flight over all workers.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|cell| cell.in_flight.load(Ordering::Relaxed)).sum()
    }

    /// In flight from one worker.
    pub fn of(&self, worker: usize) -> u64 {
        self.0.get(worker).map_or(0, |cell| cell.in_flight.load(Ordering::Relaxed))
    }

    /// The answers so far.
    pub fn answers(&self) -> Answers {
        let sum = |read: fn(&Cell) -> &AtomicU64| self.0.iter().map(|cell| read(cell).load(Ordering::Relaxed)).sum();
        let means = self.0.iter().map(|cell| cell.latency.load(Ordering::Relaxed)).filter(|mean| *mean > 0);
        let (count, total) = means.fold((0u64, 0u64), |(count, total), mean| (count + 1, total.saturating_add(mean)));
        let latency = Span::from_nanos(total.checked_div(count).unwrap_or(0));
        Answers { answered: sum(|cell| &cell.answered), failed: sum(|cell| &cell.failed), latency }
    }

    fn add(&self, worker: usize) {
        self.write(worker, |cell| &cell.in_flight, |count| count.saturating_add(1));
    }

    fn remove(&self, worker: usize) {
        self.write(worker, |cell| &cell.in_flight, |count| count.saturating_sub(1));
    }

    fn answered(&self, worker: usize, took: Span) {
        self.write(worker, |cell| &cell.answered, |count| count.saturating_add(1));
        self.write(
            worker,
            |cell| &cell.latency,
            |mean| match mean {
                0 => took.as_nanos(),
                mean => mean - (mean >> LATENCY_SHIFT) + (took.as_nanos() >> LATENCY_SHIFT),
            },
        );
    }

    /// A client had a good answer.
    #[inline]
    fn answered_client(&self, worker: usize, client: u64, now: Tick) {
        let Some(Cell { clients, .. }) = self.0.get(worker) else { return };
        let [first, ..] = clients;
        if first.number.load(Ordering::Relaxed) != client {
            Self::move_to_front(clients, client);
        }
        first.at.store(now.as_nanos(), Ordering::Relaxed);
    }

    fn move_to_front(clients: &[AnsweredClient; 3], client: u64) {
        let (mut number, mut at) = (client, 0);
        for place in clients {
            let before = place.number.load(Ordering::Relaxed);
            place.number.store(number, Ordering::Relaxed);
            let was_at = place.at.load(Ordering::Relaxed);
            place.at.store(at, Ordering::Relaxed);
            if before == client {
                return;
            }
            (number, at) = (before, was_at);
        }
    }

    /// The clients that had a good answer at this instant or later, over all workers.
    fn clients_answered_since(&self, instant: Tick) -> impl Iterator<Item = u64> {
        let places = self.0.iter().flat_map(|cell| &cell.clients);
        let read = |place: &AnsweredClient| (place.number.load(Ordering::Relaxed), place.at.load(Ordering::Relaxed));
        let answered = places.map(read).filter(move |(_, at)| *at > 0 && *at >= instant.as_nanos());
        answered.map(|(number, _)| number)
    }

    fn failed(&self, worker: usize) {
        self.write(worker, |cell| &cell.failed, |count| count.saturating_add(1));
    }

    #[inline]
    fn write(&self, worker: usize, of: impl Fn(&Cell) -> &AtomicU64, next: impl Fn(u64) -> u64) {
        if let Some(cell) = self.0.get(worker).map(of) {
            // One writer per cell: a plain load and store is exact and spares the locked instruction.
            cell.store(next(cell.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_the_sum_of_what_the_workers_hold() {
        let load = Load::new(2);
        load.add(0);
        load.add(0);
        load.add(1);
        load.remove(0);
        assert_eq!((load.of(0), load.of(1), load.total()), (1, 1, 2));
        load.remove(1);
        load.remove(1);
        load.add(7);
        assert_eq!(load.total(), 1);
    }

    #[test]
    fn the_last_three_clients_that_were_answered_are_known_of_each_worker() {
        let load = Load::new(2);
        let at = |secs| Tick::ZERO + Span::from_secs(secs);
        for (secs, client) in [(1, 7), (2, 8), (3, 7), (4, 9), (5, 10), (6, 7)] {
            load.answered_client(0, client, at(secs));
        }
        load.answered_client(1, 8, at(2));
        let since = |secs| load.clients_answered_since(at(secs)).collect::<Vec<_>>();
        assert_eq!((since(0), since(4), since(6), since(7)), (vec![7, 10, 9, 8], vec![7, 10, 9], vec![7], vec![]));
    }

    #[test]
    fn answers_are_counted_and_their_latency_is_a_moving_mean() {
        let load = Load::new(2);
        assert_eq!(load.answers(), Answers::default());
        load.answered(0, Span::from_millis(16));
        load.answered(0, Span::from_millis(32));
        load.failed(1);
        let mean_of_one = Answers { answered: 2, failed: 1, latency: Span::from_millis(17) };
        assert_eq!(load.answers(), mean_of_one, "a worker without answers has no part in it");
        load.answered(1, Span::from_millis(1));
        assert_eq!(load.answers().latency, Span::from_millis(9));
    }
}
