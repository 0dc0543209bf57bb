use super::divisor::Divisor;
use super::packed_counter::PackedCounter;
use super::several::{CostOutcome, RateMeter, take_by_steps};
use super::{CommitFacts, FitTime, LayoutChange, Moment, RateStanding};
use crate::quota::MAX_COUNT;
use sluicegate_time::{Span, Tick};

/// The shape of one ring: how many were admitted in each of the last slots of one rate, for one key.
///
/// A ring lives in a chunk of words: the index of its newest slot, then the counts, packed in lanes of the narrowest
/// width that holds twice the limit. Slot `k` is `[k w, (k+1) w)` from tick 0 and lives in lane `k mod summed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    pub(super) limit: u64,
    pub(super) window: Span,
    /// Slots per window.
    pub(super) slots: u32,
    /// Slots whose counts are held against the limit.
    summed: Divisor,
    /// Nanoseconds per slot.
    slot_nanos: Divisor,
    /// The largest limit that counts still in a ring may have been admitted under.
    ceiling: u64,
    lane: PackedCounter,
    words: usize,
}

impl Ring {
    /// `slots` divides `window`; `summed` is at least 1. `ceiling` is 0 for a ring without a past.
    pub(super) fn new(limit: u64, window: Span, slots: u32, summed: u32, ceiling: u64) -> Self {
        let ceiling = ceiling.max(limit);
        // Twice as much, since what turns out dearer than it was admitted for is counted on top.
        let lane = PackedCounter::holding(ceiling.saturating_mul(2));
        let summed = u64::from(summed.max(1));
        let slot_nanos = (window.as_nanos() / u64::from(slots.max(1))).max(1);
        Self {
            limit,
            window,
            slots,
            summed: Divisor::new(summed),
            slot_nanos: Divisor::new(slot_nanos),
            ceiling,
            lane,
            words: 1 + lane.words(summed as usize),
        }
    }

    /// The same slots, wide enough for whatever is charged without room.
    pub(super) fn with_debts(&self) -> Self {
        Self::new(self.limit, self.window, self.slots, self.summed.get() as u32, MAX_COUNT)
    }

    /// Nanoseconds that the summed slots cover.
    fn coverage(&self) -> u64 {
        self.slot_nanos.get().saturating_mul(self.summed.get())
    }

    /// Both keep their counts in the same slots; the limits may differ.
    fn same_slots(&self, other: &Self) -> bool {
        self.slot_nanos == other.slot_nanos && self.summed == other.summed
    }

    /// Both keep them in the same words.
    fn same_layout(&self, other: &Self) -> bool {
        self.same_slots(other) && self.lane == other.lane
    }

    #[inline]
    pub(super) fn slot_at(&self, now: Tick) -> u64 {
        self.slot_nanos.quotient(now.as_nanos())
    }

    /// Makes the slot of `now` the newest, zeroing what was skipped. A `now` in an older slot changes nothing: it is
    /// treated as the newest slot, which counts later than the truth and so never admits more.
    #[inline]
    pub(super) fn advance(&self, chunk: &mut [u64], now: Tick) {
        let Some((last, counts)) = chunk.split_first_mut() else { return };
        let slot = self.slot_at(now);
        let skipped = slot.saturating_sub(*last);
        if skipped == 0 {
            return;
        }
        if skipped >= self.summed.get() {
            counts.fill(0);
        } else {
            let mut lane = self.summed.remainder(*last);
            for _ in 0..skipped {
                lane = self.after(lane);
                let (word, up) = self.lane.place(lane);
                if let Some(word) = counts.get_mut(word) {
                    *word &= !(self.lane.most() << up);
                }
            }
        }
        *last = slot;
    }

    /// The count that is held against the limit, as of the newest slot.
    #[inline]
    pub(super) fn sum(&self, chunk: &[u64]) -> u64 {
        self.lane.sum_of(chunk.get(1..).unwrap_or_default())
    }

    /// Whether the ring would be empty at `now`; leaves it as it is, so that it still tells when it was last used.
    pub(super) fn is_empty_at(&self, chunk: &[u64], now: Tick) -> bool {
        let gone = self.slot_at(now).saturating_sub(last_of(chunk));
        gone >= self.summed.get() || self.oldest_first(chunk).skip(gone as usize).all(|(_, count)| count == 0)
    }

    /// The count of the newest slot.
    pub(super) fn newest(&self, chunk: &[u64]) -> u64 {
        let (word, up) = self.lane.place(self.summed.remainder(last_of(chunk)));
        (chunk.get(1 + word).copied().unwrap_or(0) >> up) & self.lane.most()
    }

    /// When the newest slot begins.
    pub(super) fn newest_from(&self, chunk: &[u64]) -> Tick {
        Tick::from_nanos(last_of(chunk).saturating_mul(self.slot_nanos.get()))
    }

    /// When the slot after the newest begins.
    pub(super) fn newest_until(&self, chunk: &[u64]) -> Tick {
        Tick::from_nanos(last_of(chunk).saturating_add(1).saturating_mul(self.slot_nanos.get()))
    }

    /// When `cost` more fits, counted from the newest slot.
    #[inline]
    pub(super) fn room(&self, chunk: &[u64], cost: u64) -> FitTime {
        if cost > self.limit {
            return FitTime::Never { rate: 0 };
        }
        let excess = (self.sum(chunk) + cost).saturating_sub(self.limit);
        if excess == 0 {
            return FitTime::Now;
        }
        match self.freed_at_of(chunk, excess) {
            Some(at) => FitTime::At { at, rate: 0 },
            None => FitTime::Never { rate: 0 },
        }
    }

    /// Counts `cost` in the newest slot.
    #[inline]
    pub(super) fn commit(&self, chunk: &mut [u64], cost: u64) {
        let Some((last, counts)) = chunk.split_first_mut() else { return };
        self.lane.add(counts, self.summed.remainder(*last), cost);
    }

    /// Takes `cost` out of the slot that was the newest at `at`, if it still counts. A lane that is full to its brim gives
    /// nothing back: more may have been counted in it than it holds, and nobody knows how much more.
    pub(super) fn take_out(&self, chunk: &mut [u64], cost: u64, at: Tick) {
        let Some((last, counts)) = chunk.split_first_mut() else { return };
        let slot = self.slot_at(at);
        if last.checked_sub(slot).is_some_and(|newer| newer < self.summed.get()) {
            self.lane.take_out(counts, self.summed.remainder(slot), cost);
        }
    }

    /// The same of what was counted at about that time: what is not in that slot is taken out of later ones, then of earlier ones.
    fn take_out_about(&self, chunk: &mut [u64], mut cost: u64, at: Tick) {
        let (last, slot) = (last_of(chunk), self.slot_at(at));
        let oldest = (last + 1).saturating_sub(self.summed.get());
        let Some((_, counts)) = chunk.split_first_mut().filter(|_| slot >= oldest) else { return };
        for slot in (slot..=last).chain((oldest..slot).rev()) {
            let lane = self.summed.remainder(slot);
            let (word, up) = self.lane.place(lane);
            let there = (counts.get(word).copied().unwrap_or(0) >> up) & self.lane.most();
            if cost == 0 || there == self.lane.most() {
                return;
            }
            self.lane.take_out(counts, lane, cost);
            cost = cost.saturating_sub(there);
        }
    }

    /// Gives back what was `taken`.
    pub(super) fn take_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts) {
        if taken.is_about {
            self.take_out_about(chunk, cost, taken.at);
        } else {
            self.take_out(chunk, cost, taken.at);
        }
    }

    /// How many more of cost 1 fit, and when that number grows.
    pub(super) fn standing(&self, chunk: &[u64]) -> (u64, Option<Tick>) {
        let sum = self.sum(chunk);
        if sum == 0 {
            return (self.limit, None);
        }
        // Above the limit (it was lowered) the first slots to go only bring the sum down to it.
        let grows = sum.saturating_sub(self.limit) + 1;
        (self.limit.saturating_sub(sum), self.freed_at_of(chunk, grows))
    }

    /// Writes into `to`, an empty chunk of this ring, the counts of `from`, a chunk of `old`, as they stood at
    /// `latest`, the last instant at which anything was counted. Each count goes to the slot that holds the end of its
    /// old slot, or `latest` if that is earlier: never before the truth, so nothing is forgotten early.
    pub(super) fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        let Some((last, counts)) = to.split_first_mut() else { return };
        *last = self.slot_at(latest);
        let first_free = last_of(from).saturating_add(1);
        for (frees, count) in old.oldest_first(from) {
            let Some(slot) = first_free.saturating_add(frees).checked_sub(old.summed.get()) else { continue };
            if count == 0 {
                continue;
            }
            let end = slot.saturating_add(1).saturating_mul(old.slot_nanos.get()).saturating_sub(1);
            let slot = self.slot_at(latest.min(Tick::from_nanos(end)));
            if *last - slot < self.summed.get() {
                self.lane.add(counts, self.summed.remainder(slot), count);
            }
        }
    }

    fn freed_at_of(&self, chunk: &[u64], much: u64) -> Option<Tick> {
        let (last, counts) = chunk.split_first()?;
        self.freed_at(self.lane, counts, *last, self.summed.remainder(*last), much)
    }

    /// The instant from which `much` of what is counted now, at most all and not 0, no longer is; `lane` is that of the
    /// ring, `newest` the lane of the newest slot, `last`. From the oldest lane on, a word at a time; the word that holds
    /// the oldest is looked at first from there on, and last up to there.
    #[allow(clippy::inline_always, reason = "with the width known it is half as long")]
    #[inline(always)]
    fn freed_at(&self, lane: PackedCounter, counts: &[u64], last: u64, newest: u64, much: u64) -> Option<Tick> {
        let oldest = self.after(newest);
        let (first, up) = lane.place(oldest);
        let newer = u64::MAX << up;
        let (mut at, mut word) = (first, *counts.get(first)? & newer);
        let (mut left, mut freed) = (counts.len(), 0);
        loop {
            if word != 0 {
                let all = freed + if much - freed == 1 { 1 } else { lane.sum(word) };
                if all >= much {
                    break;
                }
                freed = all;
            }
            left = left.checked_sub(1)?;
            at = if at + 1 == counts.len() { 0 } else { at + 1 };
            word = *counts.get(at)?;
            if left == 0 {
                word &= !newer;
            }
        }
        let lane = lane.first_of(at) + u64::from(lane.that_reaches(word, much - freed));
        let frees = if lane >= oldest { lane - oldest } else { lane + self.summed.get() - oldest };
        let slot = last.saturating_add(1).saturating_add(frees);
        Some(Tick::from_nanos(slot.saturating_mul(self.slot_nanos.get())))
    }

    /// [`take`](Meter::take) with the width of the lanes known.
    #[allow(clippy::inline_always, reason = "with the width known it is half as long")]
    #[inline(always)]
    fn take_in(&self, lane: PackedCounter, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
        Self::advance(self, chunk, moment.now);
        let Some((last, counts)) = chunk.split_first_mut() else { return take_by_steps(self, chunk, cost, moment) };
        let (newest, all) = (self.summed.remainder(*last), lane.sum_of(counts).saturating_add(cost));
        if all <= self.limit {
            lane.add(counts, newest, cost);
            let grows_at = if all == 0 { None } else { self.freed_at(lane, counts, *last, newest, 1) };
            return CostOutcome {
                room: FitTime::Now,
                standing: RateStanding { remaining: self.limit - all, grows_at },
            };
        }
        if cost != 1 {
            return take_by_steps(self, chunk, cost, moment);
        }
        match self.freed_at(lane, counts, *last, newest, all - self.limit) {
            Some(at) => {
                let room = FitTime::At { at, rate: 0 };
                CostOutcome { room, standing: RateStanding::none_until(room) }
            }
            None => take_by_steps(self, chunk, cost, moment),
        }
    }

    /// The counts, oldest slot first; the `i`-th leaves the sum when slot `last + 1 + i` begins.
    fn oldest_first<'a>(&'a self, chunk: &'a [u64]) -> impl Iterator<Item = (u64, u64)> + 'a {
        let counts = chunk.get(1..).unwrap_or_default();
        let mut lane = self.summed.remainder(last_of(chunk));
        (0..self.summed.get()).map(move |index| {
            lane = self.after(lane);
            let (word, up) = self.lane.place(lane);
            (index, (counts.get(word).copied().unwrap_or(0) >> up) & self.lane.most())
        })
    }

    const fn after(&self, lane: u64) -> u64 {
        if lane + 1 == self.summed.get() { 0 } else { lane + 1 }
    }
}

impl RateMeter for Ring {
    fn words(&self) -> usize {
        self.words
    }

    fn quota(&self) -> (u64, Span) {
        (self.limit, self.window)
    }

    #[inline]
    fn largest(&self) -> u64 {
        self.limit
    }

    fn fresh(&self) -> u64 {
        self.limit
    }

    #[inline]
    fn advance(&self, chunk: &mut [u64], now: Tick) {
        Self::advance(self, chunk, now);
    }

    #[inline]
    fn room(&self, chunk: &[u64], cost: u64, _: Tick) -> FitTime {
        Self::room(self, chunk, cost)
    }

    #[inline]
    fn commit(&self, chunk: &mut [u64], cost: u64, _: Moment) {
        Self::commit(self, chunk, cost);
    }

    #[inline]
    fn take(&self, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
        match self.lane {
            PackedCounter::U8 => self.take_in(PackedCounter::U8, chunk, cost, moment),
            PackedCounter::U16 => self.take_in(PackedCounter::U16, chunk, cost, moment),
            _ => self.take_in(self.lane, chunk, cost, moment),
        }
    }

    fn give_back(&self, chunk: &mut [u64], cost: u64, taken: &CommitFacts, _: Tick) {
        self.take_back(chunk, cost, taken);
    }

    #[inline]
    fn standing(&self, chunk: &[u64], _: Tick) -> RateStanding {
        let (remaining, grows_at) = Self::standing(self, chunk);
        RateStanding { remaining, grows_at }
    }

    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool {
        self.is_empty_at(chunk, now)
    }

    fn same_moment(&self, a: Tick, b: Tick) -> bool {
        self.slot_at(a) == self.slot_at(b)
    }

    fn layout_since(&self, old: &Self) -> LayoutChange {
        if self.same_layout(old) {
            LayoutChange::Kept
        } else if self.same_slots(old) {
            LayoutChange::Repacked
        } else {
            LayoutChange::Rescaled
        }
    }

    /// The one with the same slots, else the finest history that reaches far enough back, else the longest.
    fn source(&self, index: usize, olds: &[Self]) -> Option<usize> {
        let same = |at: &usize| olds.get(*at).is_some_and(|old| old.same_slots(self));
        let all = || olds.iter().enumerate();
        Some(index).filter(same).or_else(|| (0..olds.len()).find(same)).or_else(|| {
            let reaching = all().filter(|(_, old)| old.coverage() >= self.coverage());
            let nearest = reaching.min_by_key(|(_, old)| old.coverage());
            nearest.or_else(|| all().max_by_key(|(_, old)| old.coverage())).map(|(at, _)| at)
        })
    }

    fn remembering(&self, old: &Self) -> Self {
        Self::new(self.limit, self.window, self.slots, self.summed.get() as u32, old.ceiling)
    }

    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick) {
        Self::take_over(self, old, from, to, latest);
    }
}

fn last_of(chunk: &[u64]) -> u64 {
    chunk.first().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::*;

    const SECOND: Span = Span::from_secs(1);

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn empty(ring: &Ring) -> Vec<u64> {
        vec![0; ring.words()]
    }

    #[test]
    fn lanes_of_each_width_sum_and_saturate() {
        for most in [0xff, 0xffff, 0xffff_ffff, super::super::super::MAX_COUNT] {
            let ring = Ring::new(most, SECOND, 10, 10, 0);
            let mut chunk = empty(&ring);
            for slot in 0..10 {
                ring.advance(&mut chunk, at(slot * 100));
                ring.commit(&mut chunk, slot + 1);
            }
            assert_eq!(ring.sum(&chunk), 55);
            assert_eq!(
                ring.oldest_first(&chunk).map(|(_, count)| count).collect::<Vec<_>>(),
                (1..=10).collect::<Vec<_>>()
            );
            ring.commit(&mut chunk, most);
            assert!(ring.sum(&chunk) >= most, "a full lane does not wrap");
            assert_eq!(ring.oldest_first(&chunk).next(), Some((0, 1)), "and does not spill");
        }
    }

    #[test]
    fn a_count_leaves_exactly_when_its_slot_does() {
        let ring = Ring::new(3, SECOND, 10, 10, 0);
        let mut chunk = empty(&ring);
        ring.advance(&mut chunk, at(50));
        ring.commit(&mut chunk, 2);
        ring.advance(&mut chunk, at(950));
        ring.commit(&mut chunk, 1);
        assert_eq!(ring.room(&chunk, 1), FitTime::At { at: at(1000), rate: 0 });
        assert_eq!(ring.room(&chunk, 3), FitTime::At { at: at(1900), rate: 0 });
        assert_eq!(ring.room(&chunk, 4), FitTime::Never { rate: 0 });
        assert_eq!(ring.standing(&chunk), (0, Some(at(1000))));
        ring.advance(&mut chunk, Tick::from_nanos(999_999_999));
        assert_eq!(ring.sum(&chunk), 3);
        ring.advance(&mut chunk, at(1000));
        assert_eq!(ring.sum(&chunk), 1);
        assert!(!ring.is_empty_at(&chunk, Tick::from_nanos(1_899_999_999)));
        assert!(ring.is_empty_at(&chunk, at(1900)));
        ring.advance(&mut chunk, at(1_000_000));
        assert_eq!(ring.sum(&chunk), 0);
    }

    #[test]
    fn an_earlier_now_counts_in_the_newest_slot() {
        let ring = Ring::new(3, SECOND, 10, 10, 0);
        let mut chunk = empty(&ring);
        ring.advance(&mut chunk, at(1200));
        ring.commit(&mut chunk, 1);
        ring.advance(&mut chunk, at(1199));
        ring.commit(&mut chunk, 1);
        assert_eq!(ring.sum(&chunk), 2);
        assert_eq!(ring.room(&chunk, 2), FitTime::At { at: at(2200), rate: 0 });
    }

    #[test]
    fn a_lowered_limit_frees_room_only_below_it() {
        let old = Ring::new(300, SECOND, 10, 10, 0);
        let ring = Ring::new(5, SECOND, 10, 10, 0).remembering(&old);
        assert!(ring.same_layout(&old), "the counts of 300 still fit");
        let mut chunk = empty(&old);
        old.commit(&mut chunk, 2);
        old.advance(&mut chunk, at(100));
        old.commit(&mut chunk, 296);
        old.advance(&mut chunk, at(200));
        old.commit(&mut chunk, 2);
        assert_eq!(ring.standing(&chunk), (0, Some(at(1100))), "not yet when the first two go");
        assert_eq!(ring.room(&chunk, 4), FitTime::At { at: at(1200), rate: 0 });
    }

    #[test]
    fn a_taken_over_count_goes_to_the_slot_that_holds_its_end() {
        let old = Ring::new(10, SECOND, 10, 10, 0);
        let mut from = empty(&old);
        for millis in [50, 250, 949] {
            old.advance(&mut from, at(millis));
            old.commit(&mut from, 1);
        }
        let ring = Ring::new(10, SECOND, 4, 4, 0).remembering(&old);
        let mut to = empty(&ring);
        ring.take_over(&old, &from, &mut to, at(949));
        // Ends 100, 300 and (not 1000 but) 949 ms: slots 0, 1 and 3 of 250 ms.
        assert_eq!(ring.oldest_first(&to).map(|(_, count)| count).collect::<Vec<_>>(), [1, 1, 0, 1]);
        assert_eq!(ring.room(&to, 8), FitTime::At { at: at(1000), rate: 0 });
        assert_eq!(ring.room(&to, 9), FitTime::At { at: at(1250), rate: 0 });
    }

    proptest! {
        /// Slot by slot, as the definition has it; in lanes of each width, with slots that end in the middle of a word.
        #[test]
        fn room_comes_when_enough_of_the_oldest_slots_are_gone(
            limit in select(vec![1, 7, 0xff, 0xffff, 0xffff_ffff, 1 << 40]),
            slots in 1u32..40,
            commits in vec((0u64..8, 1u64..6), 0..40),
            cost in 1u64..9,
        ) {
            let window = Span::from_millis(u64::from(slots) * 100);
            let ring = Ring::new(limit, window, slots, slots, 0);
            let (mut chunk, mut now) = (empty(&ring), 0);
            for (pause, much) in commits {
                now += pause;
                ring.advance(&mut chunk, at(now * 100));
                if ring.room(&chunk, much) == FitTime::Now {
                    ring.commit(&mut chunk, much);
                }
            }
            let counts: Vec<u64> = ring.oldest_first(&chunk).map(|(_, count)| count).collect();
            let sum: u64 = counts.iter().sum();
            let expected = if cost > limit {
                FitTime::Never { rate: 0 }
            } else if sum + cost <= limit {
                FitTime::Now
            } else {
                let mut left = sum;
                let gone = counts.iter().position(|count| { left -= count; left + cost <= limit }).unwrap();
                FitTime::At { at: at((now + 1 + gone as u64) * 100), rate: 0 }
            };
            prop_assert_eq!(ring.room(&chunk, cost), expected);
            if let FitTime::At { at, .. } = ring.room(&chunk, 1) {
                prop_assert_eq!(ring.standing(&chunk), (0, Some(at)), "who has been told need not ask");
            }
        }
    }

    #[test]
    fn the_end_of_time_does_not_overflow() {
        let ring = Ring::new(3, Span::MAX, 1, 2, 0);
        let mut chunk = empty(&ring);
        ring.advance(&mut chunk, Tick::MAX);
        ring.commit(&mut chunk, 3);
        assert_eq!(ring.room(&chunk, 1), FitTime::At { at: Tick::MAX, rate: 0 });
        let ring = Ring::new(3, Span::from_nanos(1), 1, 1, 0);
        ring.advance(&mut chunk, Tick::MAX);
        assert_eq!(ring.sum(&chunk[..ring.words()]), 0);
    }
}
