//! How a limit is shared with other gateways, and what is known of them.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::key::Fingerprint;
use sluicegate_time::Span;

/// How long a grant of a leased limit is held.
pub const LEASE_HOLD: Span = Span::from_millis(100);

/// One, in the unit of [`StoreSharing::overshoot_ppm`].
pub const PPM: u32 = 1_000_000;

words! {
    /// The fate of requests while the store of a fleet does not answer.
    pub enum OnFailure default Fair {
        /// Each gateway admits its part of the limit: `L` divided by the gateways that were last known to live.
        Fair = "fair",
        /// Each gateway admits the whole limit.
        Full = "full",
        /// Every request passes.
        Open = "open",
        /// Every request is refused with 503.
        Closed = "closed",
    }
}

/// How a limit is shared by the gateways of a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Through a store, which grants budget.
    Store(StoreSharing),
    /// Each gateway admits at once, and tells the others: see [`Limit::tell_peers`](crate::Limit::tell_peers).
    Peers,
}

/// How a limit is shared through a store. A key that the store has called full stays refused until the
/// instant that the store has named, whatever else happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreSharing {
    /// The part of `L`, in millionths, that all gateways together may spend before they report it. 0: nothing, and nothing
    /// is granted ahead of those who wait for it.
    pub overshoot_ppm: u32,
    /// How long a grant may be held.
    pub hold: Span,
    /// How long a request waits for the store at most, over all its shared limits.
    pub deadline: Span,
    /// The fate of requests when the store does not answer in that time.
    pub on_failure: OnFailure,
    /// Its requests may give back what they have not cost, at any time: so a full key is asked for once a second.
    pub gives_back: bool,
}

impl Sharing {
    /// How it is shared through a store, if it is.
    pub fn store(self) -> Option<StoreSharing> {
        match self {
            Self::Store(sharing) => Some(sharing),
            Self::Peers => None,
        }
    }
}

impl StoreSharing {
    /// How much of a limit each of so many gateways may spend before it reports it: `c`. `most` is the largest cost that the
    /// limit admits.
    pub fn credit(&self, most: u64, gateways: u32) -> u64 {
        let all = u128::from(most) * u128::from(self.overshoot_ppm) / u128::from(PPM);
        u64::try_from(all / u128::from(gateways.max(1))).unwrap_or(u64::MAX)
    }

    /// Whether each request asks the store: nothing is granted ahead, and nothing spent before it is granted.
    pub fn is_strict(&self) -> bool {
        self.overshoot_ppm == 0 && self.hold == self.deadline
    }
}

/// A gateway's knowledge of its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetView {
    /// Gateways that live, this one included; at least one.
    pub live: u32,
    /// The others know of this gateway: before that it spends nothing that it has not been granted.
    pub is_known: bool,
    /// The store answers, at least a part of it. If not, no request waits for it.
    pub is_up: bool,
}

/// Tells of a key whether it lies in a part of the store that does not answer, where others do.
pub type AwayKeys = Arc<dyn Fn(Fingerprint) -> bool + Send + Sync>;

impl Default for FleetView {
    /// That of a gateway that has just started: it tries to reach the store, and knows nobody.
    fn default() -> Self {
        Self { live: 1, is_known: false, is_up: true }
    }
}

/// A [`FleetView`] that the fleet writes and every check of a shared limit reads.
pub(super) struct SharedFleetView {
    bits: AtomicU64,
    /// Read only while the bits say that there is one.
    away: RwLock<Option<AwayKeys>>,
}

const KNOWN: u64 = 1 << 32;
const UP: u64 = 1 << 33;
/// A part of the store is away.
const PARTLY: u64 = 1 << 34;

impl SharedFleetView {
    pub(super) fn load(&self) -> FleetView {
        view_of(self.bits.load(Ordering::Relaxed))
    }

    /// Whether the store answers for this key.
    #[inline]
    pub(super) fn is_up(&self, key: Fingerprint) -> bool {
        let bits = self.bits.load(Ordering::Relaxed);
        bits & UP != 0 && (bits & PARTLY == 0 || !self.is_away(key))
    }

    #[cold]
    fn is_away(&self, key: Fingerprint) -> bool {
        self.away.read().unwrap_or_else(PoisonError::into_inner).as_ref().is_some_and(|away| away(key))
    }

    /// Answers the view that this one replaces.
    pub(super) fn swap(&self, view: FleetView) -> FleetView {
        let away = self.away.write().unwrap_or_else(PoisonError::into_inner);
        let partly = if away.is_some() { PARTLY } else { 0 };
        view_of(self.bits.swap(bits_of(view) | partly, Ordering::Relaxed))
    }

    /// From now on these keys are away; `None`: none is.
    pub(super) fn set_away(&self, keys: Option<AwayKeys>) {
        let mut away = self.away.write().unwrap_or_else(PoisonError::into_inner);
        *away = keys;
        match &*away {
            Some(_) => self.bits.fetch_or(PARTLY, Ordering::Relaxed),
            None => self.bits.fetch_and(!PARTLY, Ordering::Relaxed),
        };
    }
}

impl Default for SharedFleetView {
    fn default() -> Self {
        Self { bits: AtomicU64::new(bits_of(FleetView::default())), away: RwLock::new(None) }
    }
}

impl fmt::Debug for SharedFleetView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.load().fmt(f)
    }
}

fn view_of(bits: u64) -> FleetView {
    FleetView { live: (bits as u32).max(1), is_known: bits & KNOWN != 0, is_up: bits & UP != 0 }
}

fn bits_of(view: FleetView) -> u64 {
    let FleetView { live, is_known, is_up } = view;
    u64::from(live) | if is_known { KNOWN } else { 0 } | if is_up { UP } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_is_read_as_it_was_written() {
        let seen = SharedFleetView::default();
        assert_eq!(seen.load(), FleetView::default());
        for (live, is_known, is_up) in [(1, true, false), (u32::MAX, false, true), (3, true, true)] {
            let view = FleetView { live, is_known, is_up };
            let before = seen.load();
            assert_eq!(seen.swap(view), before);
            assert_eq!(seen.load(), view);
        }
    }

    #[test]
    fn keys_of_a_part_that_is_away_are_so_until_it_is_back_whatever_else_is_seen() {
        let (seen, key) = (SharedFleetView::default(), Fingerprint::from_bits);
        assert!(seen.is_up(key(2)));
        seen.set_away(Some(Arc::new(|key| key.bits() % 2 == 0)));
        assert_eq!([1, 2].map(|bits| seen.is_up(key(bits))), [true, false]);
        seen.swap(FleetView { live: 3, is_known: true, is_up: true });
        assert_eq!([1, 2].map(|bits| seen.is_up(key(bits))), [true, false]);
        assert_eq!(seen.load(), FleetView { live: 3, is_known: true, is_up: true });
        seen.swap(FleetView { is_up: false, ..seen.load() });
        assert_eq!([1, 2].map(|bits| seen.is_up(key(bits))), [false, false], "none of it answers");
        seen.swap(FleetView { is_up: true, ..seen.load() });
        seen.set_away(None);
        assert_eq!([1, 2].map(|bits| seen.is_up(key(bits))), [true, true]);
    }
}
