//! Counts of shared limits that gateways tell each other, without a store: the protocol alone, where time and messages are
//! arguments.
//!
//! Each gateway admits by its own bucket, at once, which is the limiter's, and tells its peers what it has spent. They take it out of their buckets,
//! below zero if need be: the next admission waits for the debt. The limits are token buckets with greedy refill, and gcra.
//!
//! - [`SpendLedger`]: the counts of one gateway. It is told what was admitted, makes datagrams, hears those of its peers, and says
//!   what is to be charged.
//! - [`Datagram`]: one message, as values and as bytes. Its sender must be known: `fleet` signs it.
//! - [`ReplayWindow`]: the numbers of datagrams that have come. [`RefillRate`]: a rate and a burst, in whole units.
//!
//! It knows no sockets, reads no clock, and has no threads. Invariants: a bucket lacks at least what its own gateway has spent
//! (no budget from nothing); a peer is charged at most what it has spent in that life of the key; everything has a bound of
//! [`LedgerSettings`]. Its caller is `fleet`.
//!
//! # The protocol
//!
//! A gateway has an incarnation, a random number of its life. Of each key that it spends it has an epoch, a number that no
//! earlier life of the key at this incarnation had; a count of all tokens that it spent in it; and a level, of which below. A
//! count is cumulative, so that loss, repetition and order of messages do no harm.
//!
//! A gateway tells each peer each changed count, of some that it looks at those first that charge most, again after
//! [`resend_after`](LedgerSettings::resend_after) until the peer has acknowledged a datagram with that count. A datagram has a
//! number for each receiver; an acknowledgement names the highest one that has come, and the 64 before it. A count of which no
//! bucket would remember anything is not told any more.
//!
//! A receiver keeps of each peer and key the last epoch and count. It charges the difference, at most the level. The first
//! count of a life is a difference to zero; so is the first of a later epoch. An older count or epoch changes nothing. Counts of
//! a peer that is gone are kept, so that nothing is charged twice when it comes back in the same life.
//!
//! **The level** is the bucket of the sender's own spend alone, as it was one to two graces ago, and all that it spent since.
//! It caps two charges: of a first count, which may be old, and of a heal. So a heal charges each peer at most `B + 2 r G` (`B`
//! the burst, `r` the rate, `G` the grace), not all of the cut. It does not cap others: a spend that is heard within a grace is
//! in the level. A level that leaks from the first instant would: at 100/s one token leaks in 10 ms, so of a peer that spends
//! 50/s a charge after 20 ms would be next to nothing, and two gateways would admit nearly twice the rate. So the grace is to be
//! longer than the usual lag, and no longer than needed: a newcomer is charged up to its refill too much.
//!
//! # The bounds of all gateways together
//!
//! `N` gateways; the lag `l` is the time in which a spend is heard by all: the way of a datagram, the interval of telling,
//! resends; in a cut, the length of the cut. In any stretch of `t`:
//!
//! - **Hard bound**: `B + r t + (N - 1) (B + r l)`. Let gateway `i` be the last to admit, at `e`. Then at most `B` is missing from
//!   its bucket; of that which was taken out since the stretch began at most `r t` has come back; so what it knows of is at most
//!   `B + r t`. Of each peer it does not know the spend of the last `l`, which that peer's bucket bounds by `B + r l`. The part of a cut
//!   that a heal does not charge is in it too, with `l` the cut: it is at most its refill. Of several cuts the lengths
//!   add up. Without `r l` the bound does not hold: two gateways that are cut for `t` admit `2 (B + r t)`.
//! - **Soft bound**, while nothing is cut or crashes, and `l` is within the grace: `B + r t` and what the others have spent in the
//!   last `l`: that is all that `i` does not know.
//! - **A crash or an eviction** forgets a bucket, and may lose what was not told. The argument above holds before and after it, so
//!   each adds one hard bound at most. All states and seeds of the tests stay within less: each counts as one more gateway.
//! - **Lower bound**: let gateway `i` always have a request of cost `k`. Then more than `B - k` is missing from its bucket all the
//!   time, so no refill is lost: the charges in the stretch are at least `r t + B - k - m`, `m` what was missing when it began. By
//!   the hard bound, from when the bucket was last full, `m` is at most `N (B + r l)`. A charge is a spend of the stretch or of the
//!   time `l` before it, where all together admit at least `r t - k - (N - 1) B - N r l`.
//!
//! # Choices
//!
//! - An evicted key: the spend that is not told yet stays among the leftovers until all peers that live know it, and the key goes
//!   on with it if it comes again before. Beyond [`max_leftovers`](LedgerSettings::max_leftovers), or while no peer lives, it is
//!   lost: over-admission within the bound of an eviction. [`BoundHits`] counts what finds no place among the leftovers.
//! - The members' list says which incarnation of a peer lives: a datagram of another one is dropped, and told again until the list
//!   knows. So incarnations need no order.
//! - A peer's link outlives its absence, and is dropped when another peer needs the place. If it comes back after that in the same
//!   life, its counts are first counts again: what the buckets remember is charged twice. More gateways than
//!   [`max_peers`](LedgerSettings::max_peers) would be needed.
//! - A level is a time at the sender's rate. So while a rate is another one at some gateways, those with the lower rate charge the
//!   others too little: as much as the lower rate gives in that time.
//! - Buckets of gateways may stay apart while a key is asked for more than its rate at several of them: the one that lacks least
//!   admits all. The bounds hold all the same.
//! - Not there: gossip (entries of other gateways than the sender), and the owner of a range.

mod datagram;
mod exchange;
mod ledger;
mod link;
mod own_total;
mod rate;
mod replay_window;

pub use datagram::{Acknowledgement, Datagram, DatagramError, KeyCount};
pub use exchange::{PeerEvent, Received};
pub use ledger::{BoundHits, LedgerSettings, SpendLedger};
pub use rate::RefillRate;
pub use replay_window::ReplayWindow;

/// A key of a shared limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CountKey {
    /// The number of the limit's rate, the same at all gateways.
    pub limit: u64,
    /// The key's fingerprint under the fleet's secret.
    pub fingerprint: u64,
}

/// The place of a peer in the fleet, as the members' list numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub u32);

#[cfg(test)]
mod tests;
