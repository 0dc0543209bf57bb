//! A gateway's part of one key of a shared limit: a grant or a refusal of the store, and what it spent since.
//!
//! Pure: facts in, choice out. Where the words lie, who waits and what is sent is the shard's business.
//!
//! With `N` gateways that live, `L` the largest cost that the limit admits and `c = floor(overshoot L / N)`:
//!
//! 1. The store has said that the key is full until `t`: refused until then. Where grants are out that may come back before, it
//!    is refused until they have, and then asked again.
//! 2. A grant covers the cost and is still held: it is taken from that.
//! 3. The key is cold, and what was spent and not acknowledged stays at most `c`: it is admitted on credit.
//! 4. Otherwise the store is asked, and the request waits.
//!
//! A key is hot for a window after the store has refused it, and then has no credit. **Why the bound holds**: what is
//! granted was charged before it is spent, so it is never above the limit. Cost that is spent on credit is charged
//! whether there is room or not; but once the store is full, the next acknowledgement that a gateway gets says so, and
//! until then it spends at most `c`. So all gateways together are at most `N c` above. A grant is held for `T` at most,
//! so what is admitted in a stretch was charged in one that is `T` longer: the stretch in which the bound holds is by
//! `T` shorter than that of the limit alone.

use std::sync::Arc;

use super::algorithm::Rule;
use super::key::Fingerprint;
use super::settle::{Settle, SettleAnswer};
use super::sharing::{FleetView, LEASE_HOLD, PPM, SharedFleetView, StoreSharing};
use sluicegate_time::{Span, Tick};

/// Words of a key that is shared, behind those of the algorithm.
pub(super) const WORDS: usize = 6;

/// A shared limit's parameters, and its view of the fleet.
#[derive(Clone, Debug)]
pub(super) struct LeaseTerms {
    pub(super) sharing: StoreSharing,
    /// The largest cost that is ever admitted.
    most: u64,
    /// The longest window: so long a refusal makes a key hot.
    window: Span,
    /// Cost spent on credit is reported in each so many rounds, at the latest.
    pub(super) rounds: u32,
    /// How long a grant is held, less the time by which it seems younger than it is when it goes back.
    age_at_end: Span,
    seen: Arc<SharedFleetView>,
}

/// Cost spent on credit is reported within a quarter of the window, and within so many rounds. How late it is does not
/// touch the bound, which counts how much that is; but others refuse later, and then for longer.
const MOST_ROUNDS: u64 = 10;

/// The state of one key. Zeroes are those of a key that was never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lease {
    /// The rest of the grant; of a key that is [full](FULL) the smallest cost that was refused.
    amount: u32,
    flags: u32,
    /// Until when the grant may be spent, or the key is not asked for again, since it is full.
    until: Tick,
    /// Until when it is full by what is counted; of a key that is [alone](ALONE) when it looks for a place again.
    full_until: Tick,
    /// Spent since the last settle was sent.
    unreported: u32,
    /// Spent, sent, and not acknowledged.
    in_flight: u32,
    /// Until when it has no credit.
    hot_until: Tick,
    /// With less than that in hand another grant is asked for; of a key that is [full](FULL) for good how many were refused.
    refill: u32,
    /// Of the settle that is on its way.
    serial: u32,
}

/// The store has refused `amount` until `until`.
const FULL: u32 = 1;
/// It is in that [`ReportQueue`].
const LISTED: u32 = 1 << 1;
const SOON: u32 = 1 << 2;
const ASKED: u32 = 1 << 5;
/// A settle is on its way.
const BUSY: u32 = 1 << 3;
/// The words of the algorithm, which show what the store said last, have been counted on by this gateway alone since.
const LOCAL: u32 = 1 << 4;
/// It is full while others hold grants, or its requests give back late: so it may have room before it is said.
const MAY_FREE: u32 = 1 << 6;
/// It has no place in the store: this gateway counts it alone, and reports nothing of it until there is one.
const ALONE: u32 = 1 << 7;

/// A full key of a limit that takes back what requests have not cost is asked for again after so long.
const ASKED_AGAIN: Span = Span::from_secs(1);

/// Where the cost of an admitted request comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BudgetSource {
    /// From what the store has granted.
    Grant,
    /// On credit: it is reported later.
    Credit,
    /// By this gateway's own count, since the store does not answer; of the limit it takes so much.
    Local { taken: u64 },
    /// By this gateway's own count, since the key has no place in the store; of the limit it takes so much.
    Alone { taken: u64 },
    /// Nothing decides: a failure leaves the limit open, or the limit only looks on.
    Unbounded,
}

/// A list of keys that have something to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportQueue {
    /// In each round.
    Rounds,
    /// Soon: much was spent on credit.
    Soon,
    /// At once: somebody waits, or little is left of the grant.
    Asks,
}

/// The answer to a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseDecision {
    Take(BudgetSource),
    /// Full until then, and not to be asked for before `ask_at`.
    Full {
        until: Tick,
        ask_at: Tick,
    },
    /// Nobody knows before the store has answered.
    Ask,
}

impl ReportQueue {
    fn flag(self) -> u32 {
        match self {
            Self::Rounds => LISTED,
            Self::Soon => SOON,
            Self::Asks => ASKED,
        }
    }
}

impl LeaseTerms {
    pub(super) fn new(sharing: StoreSharing, rule: &Rule, seen: Arc<SharedFleetView>) -> Self {
        let window = (0..rule.rates()).map(|rate| rule.longest(rate)).max().unwrap_or(Span::ZERO);
        let shortest = (0..rule.rates()).map(|rate| rule.quota(rate).1).min().unwrap_or(Span::ZERO);
        let rounds = (shortest.as_nanos() / 4 / LEASE_HOLD.as_nanos()).clamp(1, MOST_ROUNDS) as u32;
        // A message that goes back faster than the other one came says that a grant was charged before it was. Where that
        // names the window, a grant that opened one would be of the window before, and all of its rest lost. No grant of a
        // window ends after it, so that one seems older than this by half of the hold at least.
        let is_of_window = matches!(rule, Rule::FixedWindow(_) | Rule::SlidingCounter(_));
        let younger = if is_of_window { sharing.hold.as_nanos() / 2 } else { 0 };
        let age_at_end = Span::from_nanos(sharing.hold.as_nanos() - younger);
        Self { sharing, most: rule.largest(), window, rounds, age_at_end, seen }
    }

    /// When a grant was charged that may be held until then. Not where the end of a window has cut it short: then it seems
    /// older than it is, and what goes back goes to a window or slot that is over.
    pub(super) fn charged_at(&self, until: Tick) -> Tick {
        until - self.age_at_end
    }

    pub(super) fn view(&self) -> FleetView {
        self.seen.load()
    }

    /// Whether the store answers for this key.
    #[inline]
    pub(super) fn is_up(&self, key: Fingerprint) -> bool {
        self.seen.is_up(key)
    }

    /// The longest window.
    pub(super) fn window(&self) -> Span {
        self.window
    }

    /// Until when a key is hot that the store refuses now: for a window.
    pub(super) fn refused_until(&self, now: Tick) -> Tick {
        now + self.window
    }

    /// How much may be spent on credit: `c`.
    fn credit(&self, view: FleetView) -> u64 {
        if !view.is_known {
            return 0;
        }
        self.sharing.credit(self.most, view.live)
    }

    /// The share of what is left that this gateway asks for ahead, in millionths: its part among those that live. More
    /// would take from the others what they need; with less, a limit that is nearly used up is asked for one by one. The
    /// bound holds with any share, since all that is granted was charged.
    fn share_ppm(&self, view: FleetView) -> u32 {
        if view.is_known && self.sharing.overshoot_ppm > 0 { PPM / view.live } else { 0 }
    }

    /// The part that a cost takes of the whole limit when each gateway counts for itself.
    pub(super) fn taken_alone(&self, cost: u64, is_fair: bool, view: FleetView) -> u64 {
        if is_fair { cost.saturating_mul(u64::from(view.live)).min(self.most) } else { cost }
    }
}

impl Lease {
    pub(super) fn read(words: &[u64]) -> Self {
        let &[amounts, until, spent, hot_until, last, full_until] = words else { return Self::default() };
        let halves = |word: u64| (word as u32, (word >> 32) as u32);
        let ((amount, flags), (unreported, in_flight), (refill, serial)) =
            (halves(amounts), halves(spent), halves(last));
        let [until, hot_until, full_until] = [until, hot_until, full_until].map(Tick::from_nanos);
        Self { amount, flags, until, full_until, unreported, in_flight, hot_until, refill, serial }
    }

    pub(super) fn write(self, words: &mut [u64]) {
        let Self { amount, flags, until, full_until, unreported, in_flight, hot_until, refill, serial } = self;
        let word = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let [until, hot_until, full_until] = [until, hot_until, full_until].map(Tick::as_nanos);
        let all =
            [word(amount, flags), until, word(unreported, in_flight), hot_until, word(refill, serial), full_until];
        for (to, from) in words.iter_mut().zip(all) {
            *to = from;
        }
    }

    /// Answers `cost` while the store answers.
    #[inline]
    pub(super) fn ask(&self, terms: &LeaseTerms, cost: u64, now: Tick) -> LeaseDecision {
        match self.known(cost, now) {
            Some(say) => say,
            None if now >= self.hot_until && self.owed() + cost <= terms.credit(terms.view()) => {
                LeaseDecision::Take(BudgetSource::Credit)
            }
            None => LeaseDecision::Ask,
        }
    }

    /// Answers `cost` by the store's last word, as long as it holds.
    #[inline]
    pub(super) fn known(&self, cost: u64, now: Tick) -> Option<LeaseDecision> {
        if now >= self.until {
            return None;
        }
        let covers = u64::from(self.amount) >= cost;
        match self.flags & FULL != 0 {
            true if cost >= u64::from(self.amount) => {
                Some(LeaseDecision::Full { until: self.full_until, ask_at: self.until })
            }
            false if covers => Some(LeaseDecision::Take(BudgetSource::Grant)),
            _ => None,
        }
    }

    /// The same while the store cannot be asked: a key that was full with no grant out stays full.
    pub(super) fn known_alone(&self, cost: u64, now: Tick) -> Option<LeaseDecision> {
        let is_settled = self.flags & (FULL | MAY_FREE) == FULL && now < self.full_until;
        let full = LeaseDecision::Full { until: self.full_until, ask_at: self.full_until };
        self.known(cost, now).or_else(|| (is_settled && cost >= u64::from(self.amount)).then_some(full))
    }

    /// A request was refused because the key is full until then, for good.
    pub(super) fn note_refused(&mut self) {
        if self.flags & (FULL | MAY_FREE) == FULL && self.until == self.full_until {
            self.refill = self.refill.saturating_add(1);
        }
    }

    /// The store has so much room: it is not full any more for costs like that. Answers how many were refused for good
    /// although room came earlier.
    pub(super) fn free(&mut self, room: u64, now: Tick) -> u64 {
        if self.flags & FULL == 0 || room < u64::from(self.amount) {
            return 0;
        }
        let is_early = self.flags & MAY_FREE == 0 && self.until == self.full_until && now < self.until;
        let refused = std::mem::take(&mut self.refill);
        self.flags &= !(FULL | MAY_FREE);
        self.amount = 0;
        if is_early { refused.into() } else { 0 }
    }

    /// Spends `cost` of `source`; `is_up`: the store answers for the key. Answers whether it is to be asked, or told, before the
    /// next round.
    #[inline]
    pub(super) fn spend(
        &mut self,
        terms: &LeaseTerms,
        source: BudgetSource,
        cost: u64,
        is_up: bool,
    ) -> Option<ReportQueue> {
        let cost = u32::try_from(cost).unwrap_or(u32::MAX);
        if source == BudgetSource::Grant {
            self.amount = self.amount.saturating_sub(cost);
            return (self.amount < self.refill && self.flags & BUSY == 0).then_some(ReportQueue::Asks);
        }
        if self.is_alone() {
            return None;
        }
        // A debt above a whole limit is forgotten: so much an outage costs those who come after, and no more.
        let free = terms.most.saturating_sub(self.owed());
        self.unreported = self.unreported.saturating_add(cost.min(u32::try_from(free).unwrap_or(u32::MAX)));
        let is_much = is_up && u64::from(self.unreported) * 2 > terms.credit(terms.view());
        (is_much && self.flags & BUSY == 0).then_some(ReportQueue::Soon)
    }

    /// A request has cost less than was spent for it. Answers what is to be given back to the store.
    pub(super) fn unspend(&mut self, cost: u64) -> u64 {
        let here = u64::from(self.unreported).min(cost);
        self.unreported -= here as u32;
        cost - here
    }

    /// Spent and not acknowledged.
    #[inline]
    pub(super) fn owed(&self) -> u64 {
        u64::from(self.unreported) + u64::from(self.in_flight)
    }

    /// The rest of a grant that is still held.
    pub(super) fn granted(&self, now: Tick) -> u64 {
        if self.flags & FULL == 0 && now < self.until { u64::from(self.amount) } else { 0 }
    }

    /// Whether it is a grant of which nothing more may be spent.
    fn is_over(&self, now: Tick) -> bool {
        self.flags & FULL == 0 && self.amount > 0 && now >= self.until
    }

    /// The next message to the store; `need` and `want` are the costs of those who wait, and `reports` says whether a
    /// credit is to be reported. `None`: nothing, or it has not answered the last time yet. From then on a settle of this
    /// `serial` is on its way.
    pub(super) fn settle(
        &mut self,
        terms: &LeaseTerms,
        ((need, want), reports): ((u64, u64), bool),
        serial: u32,
        now: Tick,
    ) -> Option<Settle> {
        if self.flags & BUSY != 0 {
            return None;
        }
        let (back, charged_at) = if self.is_over(now) { self.take_back(terms) } else { (0, now) };
        let held = self.granted(now);
        // Those who wait take what is held first.
        let (need, want) = if want <= held { (0, 0) } else { (need, want - held) };
        let refills = need == 0 && held > 0 && self.amount < self.refill;
        let share_ppm = if need > 0 || refills { terms.share_ppm(terms.view()) } else { 0 };
        let back_age = now.since(charged_at);
        let settle = Settle { spent: u64::from(self.unreported), back, back_age, need, want, share_ppm };
        if (settle.spent == 0 || !reports) && back == 0 && need == 0 && share_ppm == 0 {
            return None;
        }
        self.in_flight = self.in_flight.saturating_add(self.unreported);
        self.unreported = 0;
        self.serial = serial;
        self.flags |= BUSY;
        Some(settle)
    }

    /// Gives up the grant: its rest, and when it was charged.
    pub(super) fn take_back(&mut self, terms: &LeaseTerms) -> (u64, Tick) {
        if self.flags & FULL != 0 {
            return (0, Tick::ZERO);
        }
        let back = u64::from(std::mem::take(&mut self.amount));
        self.refill = 0;
        (back, terms.charged_at(self.until))
    }

    /// Whether the settle that is on its way has this number.
    pub(super) fn awaits(&self, serial: u32) -> bool {
        self.flags & BUSY != 0 && self.serial == serial
    }

    /// Whether a message of the key is on its way.
    pub(super) fn is_busy(&self) -> bool {
        self.flags & BUSY != 0
    }

    /// The store has answered a settle that was sent at `sent`; `front` is the cost of the first who waits. The rest of a grant
    /// that it replaces is handed back, and when it was charged.
    pub(super) fn answered(
        &mut self,
        terms: &LeaseTerms,
        (settle, sent): (&Settle, Tick),
        answer: &SettleAnswer,
        front: u64,
        now: Tick,
    ) -> (u64, Tick) {
        let mut back = (0, Tick::ZERO);
        self.flags &= !(BUSY | LOCAL);
        self.in_flight = self.in_flight.saturating_sub(u32::try_from(settle.spent).unwrap_or(u32::MAX));
        let asked = settle.need.max(1);
        if answer.granted > 0 {
            let (kept, ends) = (self.granted(now) as u32, sent + answer.life);
            if kept == 0 {
                back = self.take_back(terms);
            }
            self.until = if kept > 0 { self.until.min(ends) } else { ends };
            self.amount = kept.saturating_add(u32::try_from(answer.granted).unwrap_or(u32::MAX));
            self.refill = self.amount / 2;
            self.flags &= !(FULL | MAY_FREE);
        } else if let Some(retry) = answer.retry {
            self.hot_until = self.hot_until.max(terms.refused_until(now));
            // A grant that is still held is spent first, and the store is not asked before it is. One that is too small for
            // the request that waits goes back: the key is full for costs like that.
            let held = self.granted(now);
            if held > 0 && held >= front {
                self.refill = self.refill.min(1);
            } else {
                back = self.take_back(terms);
                self.amount = u32::try_from(asked).unwrap_or(u32::MAX);
                self.fill(terms, sent, retry, answer.out);
            }
        }
        back
    }

    /// It is full for `retry` by what is counted; for `out` grants may still come back.
    fn fill(&mut self, terms: &LeaseTerms, sent: Tick, retry: Span, out: Span) {
        self.flags = self.flags & !MAY_FREE | FULL;
        (self.until, self.full_until) = (sent + retry, sent + retry);
        if terms.sharing.gives_back {
            self.until = self.until.min(sent + ASKED_AGAIN);
        }
        if !out.is_zero() {
            self.flags |= MAY_FREE;
            // Not more often than a grant is held.
            self.until = self.until.min(sent + out.max(LEASE_HOLD));
            self.full_until = self.full_until.min(self.until.max(sent + ASKED_AGAIN));
        }
    }

    /// No answer came in time. It may have been charged; it is charged again later, since to lose budget is allowed, and
    /// to make it is not.
    pub(super) fn unanswered(&mut self) {
        self.flags &= !BUSY;
        self.unreported = self.unreported.saturating_add(std::mem::take(&mut self.in_flight));
    }

    /// The store is not to be believed any more that it refuses. A key of the same store stays without credit: its counts are
    /// those of before.
    pub(super) fn forget_refusal(&mut self, is_same_store: bool) {
        if !is_same_store {
            self.hot_until = Tick::ZERO;
        }
        if self.flags & FULL != 0 {
            (self.amount, self.until) = (0, Tick::ZERO);
            self.flags &= !(FULL | MAY_FREE);
        }
    }

    /// Nothing was granted, spent or refused, and no answer is awaited: one that is on its way is of before. It stays in its
    /// lists.
    pub(super) fn forget(&mut self) {
        *self = Self { flags: self.flags & !(FULL | MAY_FREE | LOCAL | BUSY), ..Self::default() };
    }

    /// Whether this gateway has counted by itself since the last answer.
    pub(super) fn is_local(&self) -> bool {
        self.flags & LOCAL != 0
    }

    pub(super) fn set_local(&mut self) {
        self.flags |= LOCAL;
    }

    /// Whether this gateway counts it alone, since it has no place in the store.
    pub(super) fn is_alone(&self) -> bool {
        self.flags & ALONE != 0
    }

    pub(super) fn set_alone(&mut self) {
        self.flags |= ALONE | LOCAL;
    }

    /// Whether a key that is alone is to look for a place now: once a window.
    pub(super) fn looks_for_place(&mut self, terms: &LeaseTerms, now: Tick) -> bool {
        let looks = now >= self.full_until;
        if looks {
            self.full_until = now + terms.window;
        }
        looks
    }

    /// It has a place from now on. The limit has so much `taken` of it, which is its debt there.
    pub(super) fn end_alone(&mut self, terms: &LeaseTerms, taken: u64) {
        self.flags &= !ALONE;
        self.full_until = Tick::ZERO;
        let spent = taken.div_ceil(u64::from(terms.view().live)).min(terms.most);
        self.unreported = u32::try_from(spent).unwrap_or(u32::MAX);
    }

    /// Enters it into a list; answers whether it was not there.
    pub(super) fn list(&mut self, list: ReportQueue) -> bool {
        let flag = list.flag();
        let is_new = self.flags & flag == 0;
        self.flags |= flag;
        is_new
    }

    /// It was taken from a list.
    pub(super) fn unlist(&mut self, list: ReportQueue) {
        self.flags &= !list.flag();
    }

    /// Whether there will be something to tell the store, sooner or later.
    pub(super) fn has_news(&self) -> bool {
        self.unreported > 0 || self.flags & FULL == 0 && self.amount > 0
    }

    /// Whether it may be forgotten.
    pub(super) fn is_idle(&self, now: Tick) -> bool {
        let says_nothing = if self.flags & FULL != 0 { now >= self.until } else { self.amount == 0 };
        says_nothing && self.flags & (BUSY | SOON | ASKED) == 0 && self.owed() == 0 && now >= self.hot_until
    }
}
