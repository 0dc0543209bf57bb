use std::fmt::Debug;

use super::penalty::Penalty;
use super::{CommitFacts, FitTime, LayoutChange, Moment, Noted, RateStanding};
use crate::MAX_RATES;
use sluicegate_time::{Span, Tick};

/// One rate of one algorithm: how its state is kept in a chunk of a key's words, and asked.
///
/// A chunk of zeroes is a key that was never seen. `now` does not go back from one call to the next on the same chunk.
pub(super) trait RateMeter: Clone + Debug + PartialEq {
    /// Words per chunk.
    fn words(&self) -> usize;

    /// The quota and window that the rate headers show.
    fn quota(&self) -> (u64, Span);

    /// No window is longer.
    fn longest(&self) -> Span {
        self.quota().1
    }

    /// The largest cost that is ever admitted.
    fn largest(&self) -> u64;

    /// The remaining count of a key that was never seen.
    fn fresh(&self) -> u64;

    /// The most that ever remains of a key.
    fn most(&self) -> u64 {
        self.fresh()
    }

    /// Brings the chunk up to `now`. A rate that reckons from instants needs no such thing.
    #[inline]
    fn advance(&self, _chunk: &mut [u64], _now: Tick) {}

    /// When `cost`, at most [`largest`](Self::largest), fits.
    fn room(&self, chunk: &[u64], cost: u64, now: Tick) -> FitTime;

    /// Takes `cost`.
    fn commit(&self, chunk: &mut [u64], cost: u64, moment: Moment);

    /// The era under which what is in flight was taken.
    fn era(&self, _chunk: &[u64]) -> u64 {
        0
    }

    /// Gives back what was taken under `era`.
    fn release(&self, _chunk: &mut [u64], _cost: u64, _era: u64) {}

    /// Gives back `cost` of what was `taken`, because the request has cost so much less.
    ///
    /// Never more than leaves the key where it would be if the real cost had been taken at once: what time has worked off
    /// or refilled meanwhile is not given back again. Only windows and periods that a request has opened stay where they
    /// are, although it has cost nothing in the end. Less is allowed, and is stricter; so is nothing, which is the default.
    fn give_back(&self, _chunk: &mut [u64], _cost: u64, _taken: &CommitFacts, _now: Tick) {}

    /// Takes `cost` if it fits, and says what remains: the questions and the commit above in one, for the many requests
    /// with which nothing else is to be done. An algorithm that is asked very often may answer them together.
    #[inline]
    fn take(&self, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
        take_by_steps(self, chunk, cost, moment)
    }

    /// The remaining count, and when it grows.
    fn standing(&self, chunk: &[u64], now: Tick) -> RateStanding;

    /// When a cost that is granted ahead has to be spent, so that it is spent where it is counted; `None`: it does not matter.
    /// The chunk is [advanced](Self::advance) to now.
    fn grant_ends(&self, _chunk: &[u64]) -> Option<Tick> {
        None
    }

    /// Whether the chunk may be forgotten.
    fn is_idle(&self, chunk: &[u64], now: Tick) -> bool;

    /// Grows with the time of the last use.
    fn recency(&self, chunk: &[u64]) -> u64 {
        chunk.first().copied().unwrap_or(0)
    }

    /// Whether a commit that was due at `a` and is made at `b` leaves the same state as one made at `a`.
    fn same_moment(&self, a: Tick, b: Tick) -> bool;

    /// The change that a chunk written under `old` needs.
    fn layout_since(&self, old: &Self) -> LayoutChange;

    /// The one of the `olds` that this rate, the `index`-th, takes over from.
    fn source(&self, index: usize, olds: &[Self]) -> Option<usize> {
        likeliest(self, index, olds)
    }

    /// Whether what was counted under `old`, with which another rate goes on, says something of this one too.
    fn continues(&self, _old: &Self) -> bool {
        true
    }

    /// This rate with room for what `old` may have written.
    fn remembering(&self, _old: &Self) -> Self {
        self.clone()
    }

    /// Rebuilds the chunk `from`, written under `old` up to the instant `latest`, into the zeroed chunk `to`.
    fn take_over(&self, old: &Self, from: &[u64], to: &mut [u64], latest: Tick);

    /// Whether refusals for want of room are counted too.
    fn counts_refused(&self) -> bool {
        false
    }

    /// A request was refused for want of room.
    fn note_refused(&self, _chunk: &mut [u64], _cost: u64, _now: Tick) {}
}

/// [`Meter::take`], a question after the other.
#[inline(never)]
pub(super) fn take_by_steps<M: RateMeter>(rate: &M, chunk: &mut [u64], cost: u64, moment: Moment) -> CostOutcome {
    rate.advance(chunk, moment.now);
    let room = rate.room(chunk, cost, moment.now);
    if room == FitTime::Now {
        rate.commit(chunk, cost, moment);
    }
    CostOutcome { room, standing: rate.standing(chunk, moment.now) }
}

/// [`Meter::source`]: the same rate, else one of the same window, else the one in its place, else the longest.
pub(super) fn likeliest<M: RateMeter>(rate: &M, index: usize, olds: &[M]) -> Option<usize> {
    let (limit, window) = rate.quota();
    let find = |same: &dyn Fn((u64, Span)) -> bool| {
        let at = |at: &usize| olds.get(*at).is_some_and(|old| same(old.quota()));
        Some(index).filter(at).or_else(|| (0..olds.len()).find(at))
    };
    find(&|old| old == (limit, window))
        .or_else(|| find(&|(_, old)| old == window))
        .or_else(|| (index < olds.len()).then_some(index))
        .or_else(|| (0..olds.len()).max_by_key(|at| olds.get(*at).map(|old| old.quota().1)))
}

/// The outcome for a cost that was to be taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CostOutcome {
    /// [`Room::Now`]: it was taken.
    pub(crate) room: FitTime,
    /// How the rate stands afterwards.
    pub(crate) standing: RateStanding,
}

/// The rates of one limit, all of which hold: their chunks lie side by side in the words of a key, and behind them that
/// of the penalty, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RateSet<M>(Vec<M>, Option<Penalty>);

#[allow(private_bounds, reason = "a rate is nobody's business outside")]
impl<M: RateMeter> RateSet<M> {
    /// Each of `rates`, with room for what the rates before it, if any, have written.
    pub(super) fn new(rates: &[M], penalty: Option<Penalty>, previous: Option<&Self>) -> Self {
        let with_past = |(index, rate): (usize, &M)| {
            let source = previous.and_then(|previous| previous.source_of(rates, index));
            source.map_or_else(|| rate.clone(), |(_, old)| rate.remembering(old))
        };
        Self(rates.iter().enumerate().map(with_past).collect(), penalty)
    }

    pub(super) fn words(&self) -> usize {
        self.words_of_rates() + self.words_of_penalty()
    }

    pub(super) fn rates(&self) -> usize {
        self.0.len()
    }

    pub(super) fn quota(&self, rate: usize) -> (u64, Span) {
        self.0.get(rate).map_or((0, Span::ZERO), RateMeter::quota)
    }

    pub(super) fn longest(&self, rate: usize) -> Span {
        self.0.get(rate).map_or(Span::ZERO, RateMeter::longest)
    }

    pub(super) fn fresh(&self, rate: usize) -> u64 {
        self.0.get(rate).map_or(0, RateMeter::fresh)
    }

    pub(super) fn most(&self, rate: usize) -> u64 {
        self.0.get(rate).map_or(0, RateMeter::most)
    }

    pub(super) fn largest(&self) -> u64 {
        self.0.iter().map(RateMeter::largest).min().unwrap_or(0)
    }

    /// The most that is counted of a cost that nobody was asked about before it was spent: what is ever admitted, or a
    /// window's worth, where bursts are smaller than that.
    pub(super) fn most_counted(&self) -> u64 {
        self.0.iter().map(|rate| rate.largest().max(rate.quota().0)).min().unwrap_or(0)
    }

    #[inline]
    pub(super) fn too_costly(&self, cost: u64) -> Option<usize> {
        self.0.iter().position(|rate| cost > rate.largest())
    }

    #[inline]
    pub(super) fn advance(&self, state: &mut [u64], now: Tick) {
        self.each_chunk(state, |rate, chunk| rate.advance(chunk, now));
    }

    #[inline]
    pub(super) fn room(&self, state: &[u64], cost: u64, now: Tick) -> FitTime {
        let mut all = self.blocked_until(state, now).map_or(FitTime::Now, |at| FitTime::At { at, rate: 0 });
        for (index, (rate, chunk)) in self.chunks(state).enumerate() {
            match rate.room(chunk, cost, now) {
                FitTime::Now => {}
                FitTime::Never { .. } => return FitTime::Never { rate: index },
                // A block comes first: until it ends nobody has to look whether others have ended.
                FitTime::OnRelease { .. } if all != FitTime::Now => {}
                FitTime::OnRelease { .. } => all = FitTime::OnRelease { rate: index },
                FitTime::At { at, .. } => match all {
                    FitTime::OnRelease { .. } => {}
                    FitTime::At { at: latest, .. } if latest >= at => {}
                    _ => all = FitTime::At { at, rate: index },
                },
            }
        }
        all
    }

    #[inline]
    pub(super) fn commit(&self, state: &mut [u64], cost: u64, moment: Moment) {
        self.each_chunk(state, |rate, chunk| rate.commit(chunk, cost, moment));
    }

    /// Whether it is one rate and nothing else.
    pub(super) fn is_single(&self) -> bool {
        self.0.len() == 1 && !self.counts_refused()
    }

    /// For a [single](Self::is_single) rate.
    #[allow(clippy::inline_always, reason = "the whole of a check is one run of instructions")]
    #[inline(always)]
    pub(super) fn take(&self, state: &mut [u64], cost: u64, moment: Moment) -> Option<CostOutcome> {
        Some(self.0.first()?.take(state, cost, moment))
    }

    pub(super) fn era(&self, state: &[u64]) -> u64 {
        self.chunks(state).next().map_or(0, |(rate, chunk)| rate.era(chunk))
    }

    pub(super) fn release(&self, state: &mut [u64], cost: u64, era: u64) {
        self.each_chunk(state, |rate, chunk| rate.release(chunk, cost, era));
    }

    /// Writes the state of a key of which so much of each rate remains at `now`, as if the rest had just been taken.
    pub(super) fn show(&self, mut state: &mut [u64], remaining: &[u64], now: Tick) {
        for (rate, remaining) in self.0.iter().zip(remaining) {
            let Some((chunk, rest)) = state.split_at_mut_checked(rate.words()) else { return };
            chunk.fill(0);
            let taken = rate.fresh().saturating_sub(*remaining);
            if taken > 0 {
                rate.advance(chunk, now);
                rate.commit(chunk, taken, Moment::at(now));
            }
            state = rest;
        }
    }

    /// The first words of each rate's chunk.
    pub(super) fn first_words(&self, state: &[u64]) -> [[u64; 2]; MAX_RATES] {
        let mut all = [[0; 2]; MAX_RATES];
        for (first, (_, chunk)) in all.iter_mut().zip(self.chunks(state)) {
            for (to, from) in first.iter_mut().zip(chunk) {
                *to = *from;
            }
        }
        all
    }

    pub(super) fn give_back(
        &self,
        mut state: &mut [u64],
        cost: u64,
        taken: impl Iterator<Item = CommitFacts>,
        now: Tick,
    ) {
        for (rate, taken) in self.0.iter().zip(taken) {
            let Some((chunk, rest)) = state.split_at_mut_checked(rate.words()) else { return };
            rate.give_back(chunk, cost, &taken, now);
            state = rest;
        }
    }

    /// One rate, and its chunk.
    pub(super) fn rate_of<'s>(&self, mut state: &'s mut [u64], index: usize) -> Option<(&M, &'s mut [u64])> {
        for before in self.0.get(..index)? {
            state = state.get_mut(before.words()..)?;
        }
        let rate = self.0.get(index)?;
        Some((rate, state.get_mut(..rate.words())?))
    }

    pub(super) fn counts_refused(&self) -> bool {
        self.1.is_some() || self.0.iter().any(RateMeter::counts_refused)
    }

    pub(super) fn note_refused(&self, state: &mut [u64], cost: u64, now: Tick) -> Noted {
        self.each_chunk(state, |rate, chunk| rate.note_refused(chunk, cost, now));
        let from = self.words_of_rates();
        if self
            .1
            .zip(state.get_mut(from..from + self.words_of_penalty()))
            .is_some_and(|(penalty, chunk)| penalty.note(chunk, now))
        {
            Noted::Blocked
        } else if self.0.iter().any(RateMeter::counts_refused) {
            Noted::Entered
        } else {
            Noted::Nothing
        }
    }

    #[inline]
    pub(super) fn standing(&self, state: &[u64], rate: usize, now: Tick) -> RateStanding {
        let nothing = RateStanding { remaining: 0, grows_at: None };
        if self.blocked_until(state, now).is_some()
            && let FitTime::At { at, .. } = self.room(state, 1, now)
        {
            return RateStanding { remaining: 0, grows_at: Some(at) };
        }
        self.chunks(state).nth(rate).map_or(nothing, |(rate, chunk)| rate.standing(chunk, now))
    }

    pub(super) fn grant_ends(&self, state: &[u64]) -> Option<Tick> {
        self.chunks(state).filter_map(|(rate, chunk)| rate.grant_ends(chunk)).min()
    }

    #[inline]
    pub(super) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        self.chunks(state).all(|(rate, chunk)| rate.is_idle(chunk, now))
            && self.1.is_none_or(|penalty| penalty.is_idle(self.penalty_chunk(state), now))
    }

    pub(super) fn recency(&self, state: &[u64]) -> u64 {
        self.chunks(state).next().map_or(0, |(rate, chunk)| rate.recency(chunk))
    }

    pub(super) fn same_moment(&self, a: Tick, b: Tick) -> bool {
        self.0.iter().all(|rate| rate.same_moment(a, b))
    }

    pub(super) fn layout_since(&self, old: &Self) -> LayoutChange {
        if (0..self.0.len()).all(|index| old.source_of(&self.0, index).is_none()) {
            return LayoutChange::Reset;
        }
        if self.0.len() != old.0.len() {
            return LayoutChange::Rescaled;
        }
        let penalties =
            if self.words_of_penalty() == old.words_of_penalty() { LayoutChange::Kept } else { LayoutChange::Repacked };
        self.0
            .iter()
            .zip(&old.0)
            .map(|(rate, old)| rate.layout_since(old))
            .chain([penalties])
            .max()
            .unwrap_or(penalties)
    }

    pub(super) fn take_over(&self, old: &Self, from: &[u64], mut to: &mut [u64], latest: Tick) {
        for (index, rate) in self.0.iter().enumerate() {
            let Some((chunk, rest)) = to.split_at_mut_checked(rate.words()) else { return };
            if let Some((source, old_rate)) = old.source_of(&self.0, index)
                && let Some((_, from)) = old.chunks(from).nth(source)
            {
                rate.take_over(old_rate, from, chunk, latest);
            }
            to = rest;
        }
        if let (Some(_), Some(_)) = (self.1, old.1) {
            for (to, from) in to.iter_mut().zip(old.penalty_chunk(from)) {
                *to = *from;
            }
        }
    }

    fn words_of_rates(&self) -> usize {
        self.0.iter().map(RateMeter::words).sum()
    }

    fn words_of_penalty(&self) -> usize {
        self.1.map_or(0, Penalty::words)
    }

    fn penalty_chunk<'a>(&self, state: &'a [u64]) -> &'a [u64] {
        let from = self.words_of_rates();
        state.get(from..from + self.words_of_penalty()).unwrap_or_default()
    }

    /// Until when the penalty blocks the key; `None` if it does not.
    #[inline]
    pub(super) fn blocked_until(&self, state: &[u64], now: Tick) -> Option<Tick> {
        self.1?;
        Penalty::blocked_until(self.penalty_chunk(state), now)
    }

    /// Ends the block of the penalty, and forgets the refusals and the blocks that led to it.
    pub(super) fn end_block(&self, state: &mut [u64]) {
        let from = self.words_of_rates();
        if let Some(chunk) = state.get_mut(from..from + self.words_of_penalty()) {
            chunk.fill(0);
        }
    }

    fn source_of(&self, news: &[M], index: usize) -> Option<(usize, &M)> {
        let new = news.get(index)?;
        let source = new.source(index, &self.0)?;
        let old = self.0.get(source)?;
        let goes_on = |(other, rate): (usize, &M)| {
            let is_it = other == source || rate.quota().1 == old.quota().1;
            is_it && other != index && rate.source(other, &self.0) == Some(source)
        };
        let is_added = !new.continues(old) && news.iter().enumerate().any(goes_on);
        (!is_added).then_some((source, old))
    }

    #[inline]
    fn each_chunk(&self, mut state: &mut [u64], act: impl Fn(&M, &mut [u64])) {
        for rate in &self.0 {
            let Some((chunk, rest)) = state.split_at_mut_checked(rate.words()) else { return };
            act(rate, chunk);
            state = rest;
        }
    }

    #[inline]
    fn chunks<'a>(&'a self, mut state: &'a [u64]) -> impl Iterator<Item = (&'a M, &'a [u64])> + 'a {
        self.0.iter().map_while(move |rate| {
            let (chunk, rest) = state.split_at_checked(rate.words())?;
            state = rest;
            Some((rate, chunk))
        })
    }
}
