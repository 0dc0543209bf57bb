//! Bounds on how much one client may hold over HTTP/2, over all its connections to a worker together.
//!
//! Of a worker's requests and of the bytes of their heads a client may hold a share that shrinks with what is free: where a
//! fraction f is free, f² of the whole. That is the dynamic threshold of shared buffers (Choudhury and Hahne, "Dynamic queue
//! length thresholds for shared-memory packet switches", 1998: share <= alpha * free) with f as its alpha. A constant alpha
//! would not do, because requests, unlike packets, may stay: clients that come one after the other and hold all that they
//! can would leave a part that falls as a power of their number. With f² one alone can hold 38% of the worker, and n of them
//! leave about 1/(n + 1).

use std::cell::Cell;

/// Decoded bytes of the heads of one client's requests that are under way on a worker: 2,000 requests with cookies of
/// 4 KiB.
pub const CLIENT_HEADS: usize = 8 * 1024 * 1024;
/// The same for all clients together.
pub const WORKER_HEADS: usize = 32 * 1024 * 1024;

/// A client's part.
#[derive(Debug, Default)]
pub struct H2Share {
    /// Its requests that are under way, and the decoded bytes of their heads.
    streams: Cell<usize>,
    heads: Cell<usize>,
}

/// The part of a worker that all clients hold together.
#[derive(Debug)]
pub struct H2Totals {
    streams: Cell<usize>,
    heads: Cell<usize>,
    max_streams: usize,
}

words! {
    /// By which bound a request was refused unread.
    pub enum StreamBound {
        /// Requests at once of its connection.
        ConnectionStreams = "connection-streams",
        /// Decoded heads of its connection.
        ConnectionHeads = "connection-heads",
        /// Decoded heads of its client.
        ClientHeads = "client-heads",
        /// Requests that its client has given up before.
        ClientResets = "client-resets",
        /// Its client's share of the requests at once of the worker.
        ShareOfStreams = "share-of-streams",
        /// Its client's share of the decoded heads of the worker.
        ShareOfHeads = "share-of-heads",
        /// Requests at once of the worker.
        WorkerStreams = "worker-streams",
        /// Decoded heads of the worker.
        WorkerHeads = "worker-heads",
    }
}

/// The room of a request in its worker, which [`H2Totals::enter`] alone gives.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it is given back by H2Totals::leave"]
pub struct H2Room {
    bytes: usize,
}

impl H2Totals {
    /// Nothing yet, of at most so many requests at once.
    pub fn new(max_streams: usize) -> Self {
        Self { streams: Cell::new(0), heads: Cell::new(0), max_streams }
    }

    /// The most requests at once that one connection is promised: all of them have room in a worker that serves no other
    /// client.
    pub fn most_of_connection(&self, max_streams: u32) -> u32 {
        max_streams.min(u32::try_from(self.max_streams / 2).unwrap_or(u32::MAX)).max(1)
    }

    /// Counts a request with a head of so many bytes, unless there is no room for it. A client without another one has
    /// room as long as the worker has, and one with no more than `promised` as long as half of the worker is free; its
    /// share bounds a client beyond that, if it `has_share`.
    pub fn enter(
        &self,
        share: &H2Share,
        bytes: usize,
        (promised, has_share): (u32, bool),
    ) -> Result<H2Room, StreamBound> {
        let (streams, heads) = (self.streams.get() + 1, self.heads.get() + bytes);
        let (own_streams, own_heads) = (share.streams.get() + 1, share.heads.get() + bytes);
        if own_heads > CLIENT_HEADS {
            return Err(StreamBound::ClientHeads);
        }
        if heads > WORKER_HEADS {
            return Err(StreamBound::WorkerHeads);
        }
        if streams > self.max_streams {
            return Err(StreamBound::WorkerStreams);
        }
        if own_streams > 1 && has_share {
            if !is_within_share(own_heads, heads, WORKER_HEADS) {
                return Err(StreamBound::ShareOfHeads);
            }
            let is_promised = own_streams <= promised as usize && streams <= self.max_streams / 2;
            if !is_promised && !is_within_share(own_streams, streams, self.max_streams) {
                return Err(StreamBound::ShareOfStreams);
            }
        }
        self.set(share, (own_streams, streams), (own_heads, heads));
        Ok(H2Room { bytes })
    }

    /// Gives back the room of a request, once.
    pub fn leave(&self, share: &H2Share, room: &H2Room) {
        let bytes = room.bytes;
        let one_less = |streams: &Cell<usize>| streams.get().saturating_sub(1);
        let less = |heads: &Cell<usize>| heads.get().saturating_sub(bytes);
        let streams = (one_less(&share.streams), one_less(&self.streams));
        self.set(share, streams, (less(&share.heads), less(&self.heads)));
    }

    fn set(&self, share: &H2Share, streams: (usize, usize), heads: (usize, usize)) {
        share.streams.set(streams.0);
        self.streams.set(streams.1);
        share.heads.set(heads.0);
        self.heads.set(heads.1);
    }
}

/// Whether a client may hold `own` of what all together hold `all` of.
fn is_within_share(own: usize, all: usize, bound: usize) -> bool {
    let free = bound.saturating_sub(all) as u128;
    own as u128 * bound as u128 <= free * free
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many requests with heads of so many bytes get in, one after the other, and what ends that.
    fn fill(totals: &H2Totals, share: &H2Share, bytes: usize) -> (usize, StreamBound) {
        let mut count = 0;
        loop {
            match totals.enter(share, bytes, (1, true)) {
                Ok(_) => count += 1,
                Err(bound) => return (count, bound),
            }
        }
    }

    #[test]
    fn a_client_holds_a_share_of_the_streams_that_shrinks_with_what_is_free() {
        let totals = H2Totals::new(1_000);
        let clients: Vec<H2Share> = (0..12).map(|_| H2Share::default()).collect();
        let held: Vec<_> = clients[..10].iter().map(|client| fill(&totals, client, 1)).collect();
        let expected = [381, 186, 106, 67, 45, 33, 24, 19, 15, 12];
        assert_eq!(held, expected.map(|count| (count, StreamBound::ShareOfStreams)));
        // A ninth is left to those who come after ten that hold all that they can.
        assert_eq!(1_000 - totals.streams.get(), 112);
        // A client that gives back most has room for as many as others have now.
        (0..381).for_each(|_| totals.leave(&clients[0], &H2Room { bytes: 1 }));
        assert_eq!((clients[0].streams.get(), clients[0].heads.get()), (0, 0));
        assert_eq!(fill(&totals, &clients[10], 1).0, 131);
    }

    #[test]
    fn who_has_no_request_under_way_may_have_one_as_long_as_there_is_room() {
        let totals = H2Totals::new(10);
        let clients: Vec<H2Share> = (0..12).map(|_| H2Share::default()).collect();
        let held: Vec<_> = clients.iter().map(|client| fill(&totals, client, 0)).collect();
        use StreamBound::{ShareOfStreams, WorkerStreams};
        assert_eq!(held[..6], [3, 2, 1, 1, 1, 1].map(|count| (count, ShareOfStreams)));
        assert_eq!(held[6..], [1, 0, 0, 0, 0, 0].map(|count| (count, WorkerStreams)));
        let totals = H2Totals::new(1);
        assert_eq!(fill(&totals, &H2Share::default(), 0), (1, WorkerStreams));
    }

    #[test]
    fn clients_that_fill_the_heads_leave_a_share_to_others() {
        const KIB: usize = 1024;
        let totals = H2Totals::new(100_000);
        let clients: Vec<H2Share> = (0..7).map(|_| H2Share::default()).collect();
        let held: Vec<_> = clients.iter().map(|client| fill(&totals, client, 64 * KIB)).collect();
        use StreamBound::{ClientHeads, ShareOfHeads};
        assert_eq!(held[..2], [(128, ClientHeads); 2]);
        assert_eq!(held[2..], [68, 41, 27, 19, 14].map(|count| (count, ShareOfHeads)));
        let one_more = H2Share::default();
        assert_eq!(fill(&totals, &one_more, 4 * KIB), (179, ShareOfHeads));
        assert_eq!(fill(&totals, &one_more, WORKER_HEADS), (0, ClientHeads));
    }

    #[test]
    fn one_connection_has_all_that_it_is_promised_while_half_is_free() {
        let totals = H2Totals::new(128);
        assert_eq!([1, 63, 64, 128].map(|max_streams| totals.most_of_connection(max_streams)), [1, 63, 64, 64]);
        assert_eq!(H2Totals::new(1).most_of_connection(128), 1);
        let (one, other) = (H2Share::default(), H2Share::default());
        let fill = |share| (0..128).take_while(|_| totals.enter(share, 1, (64, true)).is_ok()).count();
        assert_eq!(fill(&one), 64);
        assert_eq!(fill(&other), 17, "a share of the other half");
        // A proxy speaks for many.
        let proxy = H2Share::default();
        assert_eq!((0..128).take_while(|_| totals.enter(&proxy, 1, (64, false)).is_ok()).count(), 47);
    }
}
