//! Admin's connections: their holders, and the one that is closed for the next.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::task::{AbortHandle, Id};

/// The connections that are open.
#[derive(Default)]
pub(super) struct ConnectionTable {
    held: HashMap<Id, (Option<IpAddr>, Arc<Seat>, AbortHandle)>,
    turns: Arc<AtomicU64>,
}

/// How a connection is used.
#[derive(Default)]
pub(super) struct Seat {
    turns: Arc<AtomicU64>,
    /// The thing that is being answered: a request, and a stream that is its answer.
    asking: AtomicUsize,
    has_asked: AtomicBool,
    /// The turn in which it was opened, or in which it took its last answer, or piece of one.
    since: AtomicU64,
}

/// A request that is being answered, until this is dropped.
pub(super) struct Asking(Arc<Seat>);

impl ConnectionTable {
    /// A seat for a connection that was accepted.
    pub(super) fn open(&self) -> Arc<Seat> {
        let since = AtomicU64::new(self.turns.fetch_add(1, Ordering::Relaxed));
        Arc::new(Seat { turns: Arc::clone(&self.turns), since, ..Seat::default() })
    }

    /// The task that serves it. Peers of a Unix socket are one.
    pub(super) fn take(&mut self, peer: Option<IpAddr>, seat: Arc<Seat>, task: AbortHandle) {
        self.held.insert(task.id(), (peer.map(|peer| peer.to_canonical()), seat, task));
    }

    /// Its task has ended.
    pub(super) fn leave(&mut self, task: Id) {
        self.held.remove(&task);
    }

    /// Ends a connection over which no request is being answered, if there is one: of the peer that has most connections, first
    /// those that never sent a whole request, the oldest one; then of the others, the longest idle. One whose client has not
    /// read its answer is idle too, and since it took the last piece of it.
    pub(super) fn reclaim(&mut self) -> bool {
        let is_free = |seat: &Seat| !seat.is_asking();
        let mut counts = HashMap::new();
        for (peer, _, _) in self.held.values() {
            *counts.entry(*peer).or_insert(0_usize) += 1;
        }
        let rank = |(peer, seat): (&Option<IpAddr>, &Seat)| {
            let count = counts.get(peer).copied().unwrap_or(0);
            // A peer that asks all the time takes the place of none that has not asked yet.
            (usize::MAX - count, seat.has_asked.load(Ordering::Relaxed), seat.since.load(Ordering::Relaxed))
        };
        let free = self.held.iter().filter(|(_, (_, seat, _))| is_free(seat));
        let Some(chosen) = free.min_by_key(|(_, (peer, seat, _))| rank((peer, seat))).map(|(id, _)| *id) else {
            return false;
        };
        if let Some((_, _, task)) = self.held.remove(&chosen) {
            task.abort();
        }
        true
    }
}

impl Seat {
    /// A whole request has come.
    pub(super) fn ask(self: &Arc<Self>) -> Asking {
        self.asking.fetch_add(1, Ordering::Relaxed);
        self.has_asked.store(true, Ordering::Relaxed);
        Asking(Arc::clone(self))
    }

    /// When it took an answer, or a piece of one, for the last time, if it is taking one now that may go on.
    pub(super) fn taking(&self) -> Option<u64> {
        self.is_asking().then(|| self.since.load(Ordering::Relaxed))
    }

    fn is_asking(&self) -> bool {
        self.asking.load(Ordering::Relaxed) > 0
    }

    /// It has taken an answer, or a piece of one.
    pub(super) fn answered(&self) {
        self.since.store(self.turns.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.answered();
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bytes::Bytes;
    use http_body_util::BodyExt;
    use tokio::sync::Semaphore;
    use tokio::task::JoinSet;

    use super::super::pieces::Pieces;
    use super::*;
    use crate::telemetry::Registry;

    #[tokio::test]
    async fn the_peer_that_has_most_gives_first_and_before_one_that_has_not_asked_yet() {
        let (mut seats, mut tasks) = (ConnectionTable::default(), JoinSet::new());
        let mut open = |peer: [u8; 4]| {
            let (seat, task) = (seats.open(), tasks.spawn(std::future::pending::<()>()));
            seats.take(Some(Ipv4Addr::from(peer).into()), Arc::clone(&seat), task.clone());
            (seat, task.id())
        };
        let (new, many) = (open([192, 0, 2, 1]), [(); 4].map(|()| open([192, 0, 2, 2])));
        many.iter().skip(1).for_each(|(seat, _)| drop(seat.ask()));
        let busy = many[3].0.ask();
        let mut gone = Vec::new();
        while seats.reclaim() {
            gone.push(tasks.join_next_with_id().await.unwrap().unwrap_err().id());
        }
        assert_eq!(gone, [many[0].1, many[1].1, many[2].1, new.1], "the busy one stays");
        drop(busy);
    }

    #[tokio::test]
    async fn of_those_that_have_asked_the_one_that_took_nothing_for_longest_goes_first() {
        let (mut seats, mut tasks) = (ConnectionTable::default(), JoinSet::new());
        let held = [(); 4].map(|()| {
            let (seat, task) = (seats.open(), tasks.spawn(std::future::pending::<()>()));
            seats.take(Some(Ipv4Addr::LOCALHOST.into()), Arc::clone(&seat), task.clone());
            drop(seat.ask());
            (seat, task.id())
        });
        let busy = held[1].0.ask();
        // Two read their pages: the one a piece that was made before, the other one that is made for it.
        for (at, first) in [(0, Some(Bytes::from("piece"))), (2, None)] {
            let (page, places) = (Registry::new().page(), Arc::new(Semaphore::new(1)));
            let mut pieces = Pieces::new([first, None], page, places, Arc::clone(&held[at].0));
            assert!(pieces.frame().await.unwrap().is_ok());
        }
        let mut gone = Vec::new();
        while seats.reclaim() {
            gone.push(tasks.join_next_with_id().await.unwrap().unwrap_err().id());
        }
        assert_eq!(gone, [3, 0, 2].map(|at| held[at].1));
        drop(busy);
        assert!(seats.reclaim());
    }
}
