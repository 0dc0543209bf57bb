//! The servers of an upstream that may be chosen now: [`Roster::gate`](super::Roster::gate) makes it, every choice asks it.
//!
//! A gate never changes. It holds until its servers' states change or [`Gate::until`] has come, whichever is first; then
//! another one takes its place.

use sluicegate_time::Tick;

/// A draw that is below every share: with it, shares count as open.
pub(super) const BELOW_EVERY_SHARE: u64 = 0;

/// Whether a server may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eligibility {
    /// Any request may go to it.
    Open,
    /// It is starting slowly: this share of the draws, out of 2^32, is admitted; at least 1.
    Share(u32),
    /// One request at a time may try whether it works again. The gate admits it to all: the caller takes the token.
    Probe,
    /// No request goes to it.
    Shut,
}

/// Where a server stands at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Door {
    pub(super) entry: Eligibility,
    pub(super) is_ejected: bool,
}

/// The servers of one upstream that may be chosen, by index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    doors: Box<[Door]>,
    has_shares: bool,
    is_panic: bool,
    is_plain: bool,
    until: Tick,
}

impl Gate {
    pub(super) fn new(doors: Vec<Door>, is_panic: bool, until: Tick) -> Self {
        let has_shares = doors.iter().any(|door| matches!(door.entry, Eligibility::Share(_)));
        let is_plain = !is_panic && doors.iter().all(|door| door.entry == Eligibility::Open && !door.is_ejected);
        Self { doors: doors.into(), has_shares, is_panic, is_plain, until }
    }

    /// Says whether a server may be chosen; one that the gate does not know is shut.
    pub fn entry(&self, server: usize) -> Eligibility {
        self.doors.get(server).map_or(Eligibility::Shut, |door| door.entry)
    }

    /// Says whether a server may be chosen for a request with this draw: a hash of what makes requests stick, so that a
    /// key comes to a starting server once and stays, or random bits. A draw that one share admits is admitted by every
    /// larger share too, of whatever server.
    pub fn admits(&self, server: usize, draw: u64) -> bool {
        match self.entry(server) {
            Eligibility::Open | Eligibility::Probe => true,
            Eligibility::Share(share) => mixed(draw) >> 32 < u64::from(share),
            Eligibility::Shut => false,
        }
    }

    /// Says whether a server admits a share of the requests only.
    pub fn has_shares(&self) -> bool {
        self.has_shares
    }

    /// Says whether all servers are out, and requests go to them as if none were.
    pub fn is_panic(&self) -> bool {
        self.is_panic
    }

    /// Says whether a success of this server must be told to the roster: it is ejected, and requests reach it
    /// nevertheless, as probes or in panic mode.
    pub fn wants_verdict(&self, server: usize) -> bool {
        self.doors.get(server).is_some_and(|door| door.is_ejected && door.entry != Eligibility::Shut)
    }

    /// Returns the instant until which it holds if no server's state changes; [`Tick::MAX`] is never.
    pub fn until(&self) -> Tick {
        self.until
    }

    /// Says whether all servers are open and none wants a verdict: a choice needs no gate then.
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    pub(super) fn servers(&self) -> usize {
        self.doors.len()
    }
}

/// The finalizer of `MurmurHash3`: each bit of the draw changes each bit of the result with probability 1/2. Where a key
/// stands on the ring says nothing about its place here, and neither do the server that random bits draw; 0 stays 0.
fn mixed(draw: u64) -> u64 {
    let draw = (draw ^ (draw >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let draw = (draw ^ (draw >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    draw ^ (draw >> 33)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gate, noise};
    use super::*;

    #[test]
    fn a_share_admits_its_part_of_the_draws_and_a_larger_one_the_same_draws_and_more() {
        let tenths = gate(&[1u32, 2, 5, 9].map(|tenths| Eligibility::Share(((u64::from(tenths) << 32) / 10) as u32)));
        let mut counts = [0u32; 4];
        for draw in (0..50_000).map(noise) {
            let admits = [0, 1, 2, 3].map(|server| tenths.admits(server, draw));
            assert!(admits.is_sorted(), "{draw}: {admits:?}");
            counts.iter_mut().zip(admits).for_each(|(count, is_admitted)| *count += u32::from(is_admitted));
        }
        // Five standard deviations of the widest are 560.
        for (count, expected) in counts.into_iter().zip([5_000u32, 10_000, 25_000, 45_000]) {
            assert!(count.abs_diff(expected) < 560, "{counts:?}");
        }
    }

    #[test]
    fn draws_in_a_row_are_mixed_too() {
        let half = gate(&[Eligibility::Share(1 << 31)]);
        let admitted = (1..=10_000).filter(|draw| half.admits(0, *draw)).count();
        assert!(admitted.abs_diff(5_000) < 250, "{admitted}");
    }

    #[test]
    fn the_smallest_share_admits_the_draw_that_is_below_every_share() {
        let smallest = gate(&[Eligibility::Share(1)]);
        assert!(smallest.admits(0, BELOW_EVERY_SHARE));
        assert!(!smallest.admits(0, 1));
        assert!(!gate(&[Eligibility::Shut]).admits(0, BELOW_EVERY_SHARE));
    }

    #[test]
    fn a_gate_is_plain_only_if_a_choice_needs_nothing_of_it() {
        let all_of = |entry, is_ejected, is_panic| Gate::new(vec![Door { entry, is_ejected }], is_panic, Tick::MAX);
        assert!(all_of(Eligibility::Open, false, false).is_plain());
        assert!(!all_of(Eligibility::Open, true, true).is_plain());
        assert!(!all_of(Eligibility::Open, false, true).is_plain());
        assert!(!all_of(Eligibility::Share(1 << 31), false, false).is_plain());
        assert!(!all_of(Eligibility::Probe, true, false).is_plain());
        assert!(all_of(Eligibility::Probe, true, false).wants_verdict(0));
        assert!(all_of(Eligibility::Open, true, true).wants_verdict(0));
        assert!(!all_of(Eligibility::Shut, true, false).wants_verdict(0));
    }

    #[test]
    fn a_server_the_gate_does_not_know_is_shut() {
        let one = gate(&[Eligibility::Open]);
        assert_eq!((one.entry(1), one.admits(1, 0), one.wants_verdict(1)), (Eligibility::Shut, false, false));
    }
}
