use std::sync::atomic::{self, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::task::Waker;

use super::algorithm::{Algorithm, FULL_SCALE, LayoutChange, Penalty, Rule, share_of};
use super::key::Fingerprint;
use super::lease::{self, Lease, LeaseTerms};
use super::shard::{Shard, ShardCounts};
use super::sharing::{SharedFleetView, Sharing};
use super::sync::{AtomicU64, Mutex, MutexGuard};
use super::urgent_signal::UrgentSignal;
use sluicegate_time::{Span, Tick};

/// The size of a shard's table at `max_keys`, about: it is copied to grow, and no single request waits long for that.
const BYTES_PER_SHARD: u64 = 256 * 1024;
const MAX_SHARDS: u64 = 65_536;

words! {
    /// The answer of a limit to a request that does not fit.
    pub enum Mode default Enforce {
        /// Refuses it, or lets it wait.
        Enforce = "enforce",
        /// Counts and reports, never refuses: a dry run.
        Shadow = "shadow",
        /// Nothing: the limit is not looked at.
        Off = "off",
    }
}

words! {
    /// The fate of a new key when the table holds `max_keys` keys and none that was looked at is idle.
    pub enum OnFull default EvictOldest {
        /// The least recently used of a few is forgotten, never one with a queue. A client that can make up `max_keys`
        /// keys can reset one so.
        EvictOldest = "evict-oldest",
        /// The new key's request is admitted, uncounted.
        Allow = "allow",
        /// The new key's request is refused, although there may be an idle key among those that were not looked at.
        Refuse = "refuse",
    }
}

/// The parameters of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitSpec {
    /// Its identity across reloads.
    pub name: Arc<str>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Whether it refuses.
    pub mode: Mode,
    /// How long a request over the limit may wait for room; zero: it is refused at once.
    pub max_wait: Span,
    /// How many may wait per key. `None`: [`Algorithm::default_max_queue`].
    pub max_queue: Option<u64>,
    /// How many keys are kept; at least one. Threads that insert at the same instant may exceed it by one each, and so
    /// may keys whose waiters have their turn.
    pub max_keys: u64,
    /// The fate of a new key when they would be more.
    pub on_full: OnFull,
    /// The penalty of a key that keeps hitting the limit.
    pub penalty: Option<Penalty>,
    /// How it is shared with other gateways; `None`: it is this one's alone.
    pub sharing: Option<Sharing>,
    /// Whether its numbers are [scaled](Limit::set_scale).
    pub is_adaptive: bool,
}

impl LimitSpec {
    /// A limit of at most 100,000 keys that refuses at once what is over it: no waiting, no penalty, no fleet.
    pub fn new(name: &str, algorithm: Algorithm) -> Self {
        Self {
            name: name.into(),
            algorithm,
            mode: Mode::Enforce,
            max_wait: Span::ZERO,
            max_queue: None,
            max_keys: 100_000,
            on_full: OnFull::EvictOldest,
            penalty: None,
            sharing: None,
            is_adaptive: false,
        }
    }
}

/// The outcome of [`Limit::reconfigure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconfigured {
    /// Nothing had changed.
    Same,
    /// Other parameters, the same counts.
    Changed,
    /// Other slots or another pace: the counts were taken over, never less strictly than they stood.
    Rescaled,
    /// Another algorithm: every key starts afresh.
    Restarted,
}

/// How a limit is doing, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitStats {
    /// Keys in the table.
    pub keys: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Keys forgotten because that changes no decision.
    pub evicted_idle: u64,
    /// Keys forgotten, with their counts, because the table was full.
    pub evicted_live: u64,
    /// Requests refused because the table was full.
    pub refused_full: u64,
    /// Requests admitted uncounted because the table was full.
    pub allowed_full: u64,
    /// Blocks that the penalty has begun.
    pub blocks: u64,
}

/// A live limit: its parameters and its table of keys. Outlives configurations; shared by the policies of the routes
/// that use it.
#[derive(Debug)]
pub struct Limit {
    /// The order in which the locks of several limits are taken.
    id: u64,
    name: Arc<str>,
    params: Mutex<Arc<Params>>,
    /// How many keys there are, over all shards; touched only when one comes or goes.
    keys: AtomicU64,
    /// Those that have been asked for a key, under the lock of `params` made by who asked first: there may be tens of thousands
    /// of limits that nobody asks, and of a limit with few keys most shards have none. Std's in the models too: what is made
    /// under a lock is never waited for.
    shards: OnceLock<Box<[OnceLock<Box<Padded>>]>>,
    /// One less than the number of shards, which is a power of two.
    mask: usize,
    /// Latest view of the fleet: store reachable, number of gateways.
    seen: Arc<SharedFleetView>,
    bell: UrgentSignal,
    /// Whether shards that are made note what they count. Std's in the models too: written under the lock of `params`.
    follows: atomic::AtomicBool,
    /// Whether they note it for the peers, too.
    tells: atomic::AtomicBool,
    /// A shard has noted something for the peers.
    has_spends: Arc<atomic::AtomicBool>,
    /// It has taken over keys of another process.
    is_heir: atomic::AtomicBool,
}

/// Two workers at work in neighbouring shards do not share a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Padded(Mutex<Shard>);

/// The parameters of a shard: switched under its lock, so that a change applies from its next operation on, whichever
/// configuration a request came with.
#[derive(Debug)]
pub(super) struct Params {
    pub(super) spec: LimitSpec,
    pub(super) rule: Rule,
    pub(super) stance: EffectiveMode,
    pub(super) max_queue: u64,
    /// `None`: it is not shared.
    pub(super) lease: Option<LeaseTerms>,
    /// How many shards there are, and how many keys each may make in the store a window.
    shards: u64,
    pub(super) shard_keys: u64,
    /// It is enforced, one rate, and not shared, so that most checks may go the short way.
    pub(super) is_plain: bool,
    /// Of the first rate, as clients are told.
    pub(super) quota: (u64, Span),
    /// The share of its numbers that holds, in basis points.
    scale: u32,
}

/// How a limit treats all requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EffectiveMode {
    Enforce,
    Shadow,
    /// Not looked at; who waits is let go in order.
    Pass,
    /// Not looked at; who waits has waited in vain.
    Closed,
}

impl Limit {
    /// A limit without any keys yet.
    pub fn new(spec: LimitSpec) -> Arc<Self> {
        // std's in the models too: it outlives each of them, and orders nothing but numbers.
        static CREATED: atomic::AtomicU64 = atomic::AtomicU64::new(0);
        let seen = Arc::default();
        let params = Arc::new(Params::new(spec, None, FULL_SCALE, &seen));
        let shards = params.shards;
        Arc::new(Self {
            id: CREATED.fetch_add(1, Ordering::Relaxed),
            name: Arc::clone(&params.spec.name),
            keys: AtomicU64::new(0),
            shards: OnceLock::new(),
            mask: (shards - 1) as usize,
            params: Mutex::new(params),
            seen,
            bell: UrgentSignal::default(),
            follows: atomic::AtomicBool::new(false),
            tells: atomic::AtomicBool::new(false),
            has_spends: Arc::default(),
            is_heir: atomic::AtomicBool::new(false),
        })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its parameters as they are now.
    pub fn spec(&self) -> LimitSpec {
        lock(&self.params).spec.clone()
    }

    /// Gives it other parameters; counts and waiters stay. Shard by shard: each applies them from its next operation
    /// on. The number of shards stays, so a `max_keys` that grows much, or many more slots, makes longer pauses when a
    /// shard grows.
    pub fn reconfigure(&self, spec: LimitSpec) -> Reconfigured {
        let mut current = lock(&self.params);
        let next = Params::new(spec, Some(&current), current.scale, &self.seen);
        if next.spec == current.spec && next.stance == current.stance {
            return Reconfigured::Same;
        }
        let layout = next.rule.layout_since(&current.rule);
        let heads = self.switch(&mut current, next);
        drop(current);
        wake_all(heads);
        match layout {
            LayoutChange::Kept | LayoutChange::Repacked => Reconfigured::Changed,
            LayoutChange::Rescaled => Reconfigured::Rescaled,
            LayoutChange::Reset => Reconfigured::Restarted,
        }
    }

    /// From now on this share of its numbers holds, in basis points, if it is adaptive: counts and waiters stay. 100% is
    /// [`FULL_SCALE`](crate::FULL_SCALE). Takes each shard's lock in turn; where algorithms keep instants, each key is
    /// written anew.
    pub fn set_scale(&self, scale: u32) {
        let mut current = lock(&self.params);
        if !current.spec.is_adaptive || current.scale == scale {
            return;
        }
        let scaled = Params::new(current.spec.clone(), Some(&current), scale, &self.seen);
        // One that was released stays so.
        let next = Params { stance: current.stance, ..scaled };
        let heads = self.switch(&mut current, next);
        drop(current);
        wake_all(heads);
    }

    /// It is removed from the configuration: from now on it is as with `mode = "off"`, its waiters are let go in order
    /// and its keys forgotten. A later [`reconfigure`](Self::reconfigure) puts it back.
    pub fn release(&self) {
        self.retire(EffectiveMode::Pass);
    }

    /// It is replaced by another algorithm or key: who waits ends as timed out, and from now on it is as with
    /// `mode = "off"`, for good.
    pub fn close(&self) {
        self.retire(EffectiveMode::Closed);
    }

    /// Counts `cost` of a key at `now`, whether there is room or not, and answers when all that the key owes fits: until
    /// then its caller waits. Callers of one key have their turns in the order in which they have charged. A caller
    /// that gives up waiting [gives back](Self::refund) what it has charged.
    pub fn charge(&self, key: Fingerprint, cost: u64, now: Tick) -> Tick {
        self.lock(key).charge(key, cost, now, &self.keys)
    }

    /// Counts what a key has spent already, at `now`, as [`Permit::settle`](super::Permit::settle) counts what costs more than there
    /// is room for. `client` is as it would be [asked](super::Ask::client).
    pub fn count(&self, key: Fingerprint, client: u32, cost: u64, now: Tick) {
        let wakers = self.lock(key).count((key, client), cost, now, &self.keys);
        // Waking runs code of the caller: the lock is given back by now.
        wakers.wake();
    }

    /// Gives back what was charged for something that does not happen, so that nobody waits for who has gone. Turns that
    /// were told before stay.
    pub fn refund(&self, key: Fingerprint, cost: u64) {
        self.lock(key).refund(key, cost);
    }

    /// A limit of its own with a copy of the part of the table that a key is in, and of who waits there. Questions to
    /// it change nothing here. The copy is made under the lock of that part: some 256 KiB, and a line for each who waits.
    pub(super) fn copy_for(&self, key: Fingerprint) -> Arc<Self> {
        let params = lock(&self.params);
        let copy = Self {
            id: self.id,
            name: Arc::clone(&self.name),
            keys: AtomicU64::new(self.key_count()),
            shards: OnceLock::new(),
            mask: self.mask,
            params: Mutex::new(Arc::clone(&params)),
            seen: Arc::clone(&self.seen),
            bell: UrgentSignal::default(),
            follows: atomic::AtomicBool::new(false),
            tells: atomic::AtomicBool::new(false),
            has_spends: Arc::default(),
            is_heir: atomic::AtomicBool::new(false),
        };
        drop(params);
        let at = key.bits() as usize & self.mask;
        if let Some(shard) = self.shards.get().and_then(|shards| shards.get(at)?.get()) {
            let mut shard = lock(&shard.0).clone();
            shard.forget_notes();
            let shards = copy.shards.get_or_init(|| (0..=self.mask).map(|_| OnceLock::new()).collect());
            // Nobody else has it yet.
            let _ = shards[at].set(Box::new(Padded(Mutex::new(shard))));
        }
        Arc::new(copy)
    }

    /// After so long nothing of what was counted counts any more, but for the block of a penalty.
    pub fn longest_window(&self) -> Span {
        let rule = &lock(&self.params).rule;
        (0..rule.rates()).map(|rate| rule.longest(rate)).max().unwrap_or(Span::ZERO)
    }

    /// How many keys its table holds.
    pub fn key_count(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// How it is doing. Takes each shard's lock in turn.
    pub fn stats(&self) -> LimitStats {
        let mut stats = LimitStats { keys: self.key_count(), ..LimitStats::default() };
        for shard in self.made() {
            let shard = lock(shard);
            let ShardCounts { evicted_idle, evicted_live, refused_full, allowed_full, blocks } = shard.counts();
            stats.waiting += shard.waiting();
            stats.evicted_idle += evicted_idle;
            stats.evicted_live += evicted_live;
            stats.refused_full += refused_full;
            stats.allowed_full += allowed_full;
            stats.blocks += blocks;
        }
        stats
    }

    /// The parameters that it works by now.
    pub(super) fn params(&self) -> Arc<Params> {
        Arc::clone(&lock(&self.params))
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn keys(&self) -> &AtomicU64 {
        &self.keys
    }

    /// Nobody makes a shard meanwhile.
    pub(super) fn lock_params(&self) -> MutexGuard<'_, Arc<Params>> {
        lock(&self.params)
    }

    /// Whether shards that are made note what they count; written under [`lock_params`](Self::lock_params).
    pub(super) fn follows(&self) -> &atomic::AtomicBool {
        &self.follows
    }

    /// Whether shards that are made note what they count for the peers; written as that.
    pub(super) fn tells(&self) -> &atomic::AtomicBool {
        &self.tells
    }

    /// Whether it has taken over keys of another process.
    pub(super) fn is_heir(&self) -> &atomic::AtomicBool {
        &self.is_heir
    }

    /// Whether a shard has noted something for the peers since it was looked.
    pub(super) fn has_spends(&self) -> &Arc<atomic::AtomicBool> {
        &self.has_spends
    }

    pub(super) fn seen(&self) -> &SharedFleetView {
        &self.seen
    }

    pub(super) fn bell(&self) -> &UrgentSignal {
        &self.bell
    }

    /// Locks the shard that owns a key: the low bits choose it, the high ones the place within.
    #[expect(clippy::inline_always, reason = "a part of each check, which has more callers than the one that is hot")]
    #[inline(always)]
    pub(super) fn lock(&self, key: Fingerprint) -> MutexGuard<'_, Shard> {
        let at = key.bits() as usize & self.mask;
        let shard = self.shards.get().and_then(|shards| shards.get(at)?.get());
        lock(shard.map_or_else(|| self.make(at), |shard| &shard.0))
    }

    /// The shard of a key, if it has been made: nothing is made for a question.
    pub(super) fn made_for(&self, key: Fingerprint) -> Option<&Mutex<Shard>> {
        let shard = self.shards.get()?.get(key.bits() as usize & self.mask)?;
        Some(&shard.get()?.0)
    }

    /// Whether one shard owns both keys.
    pub(super) fn is_together(&self, one: Fingerprint, other: Fingerprint) -> bool {
        (one.bits() ^ other.bits()) as usize & self.mask == 0
    }

    /// Makes a shard by the parameters of now. The task that switches them holds their lock until all shards that there
    /// are have been told, so none is made by the old ones.
    #[cold]
    #[inline(never)]
    fn make(&self, at: usize) -> &Mutex<Shard> {
        let params = lock(&self.params);
        let shards = self.shards.get_or_init(|| (0..=self.mask).map(|_| OnceLock::new()).collect());
        let make = || {
            let mut shard = Shard::new(Arc::clone(&params));
            if self.follows.load(Ordering::Relaxed) {
                shard.follow();
            }
            if self.tells.load(Ordering::Relaxed) {
                shard.tell_peers(Some(&self.has_spends));
            }
            Box::new(Padded(Mutex::new(shard)))
        };
        &shards[at].get_or_init(make).0
    }

    /// The shards that have been made.
    pub(super) fn made(&self) -> impl Iterator<Item = &Mutex<Shard>> {
        self.shards.get().into_iter().flatten().filter_map(|shard| Some(&shard.get()?.0))
    }

    fn retire(&self, stance: EffectiveMode) {
        let mut current = lock(&self.params);
        if current.stance == EffectiveMode::Closed {
            return;
        }
        let next = Params { stance, ..Params::new(current.spec.clone(), Some(&current), current.scale, &self.seen) };
        let heads = self.switch(&mut current, next);
        for shard in self.made() {
            lock(shard).forget_all(&self.keys);
        }
        drop(current);
        wake_all(heads);
    }

    /// The heads of all queues, who have to look again once no lock is held.
    fn switch(&self, current: &mut Arc<Params>, next: Params) -> Vec<Waker> {
        *current = Arc::new(next);
        let switch = |shard: &Mutex<Shard>| lock(shard).switch(Arc::clone(current), &self.keys);
        self.made().flat_map(switch).collect()
    }
}

impl Params {
    fn new(spec: LimitSpec, previous: Option<&Self>, scale: u32, seen: &Arc<SharedFleetView>) -> Self {
        let scale = if spec.is_adaptive { scale } else { FULL_SCALE };
        let algorithm = spec.algorithm.scaled(scale);
        let rule = Rule::new(&algorithm, spec.penalty, previous.map(|previous| &previous.rule));
        let stance = match (previous, spec.mode) {
            (Some(Self { stance: EffectiveMode::Closed, .. }), _) => EffectiveMode::Closed,
            (_, Mode::Enforce) => EffectiveMode::Enforce,
            (_, Mode::Shadow) => EffectiveMode::Shadow,
            (_, Mode::Off) => EffectiveMode::Pass,
        };
        let max_queue = match spec.max_queue {
            Some(written) if scale < FULL_SCALE => share_of(written, scale).min(written),
            Some(written) => written,
            None => algorithm.default_max_queue(spec.max_wait),
        };
        let spec = LimitSpec { max_keys: spec.max_keys.max(1), ..spec };
        let sharing = spec.sharing.and_then(Sharing::store);
        let lease = sharing.map(|sharing| LeaseTerms::new(sharing, &rule, Arc::clone(seen)));
        let is_plain = stance == EffectiveMode::Enforce && rule.is_single() && lease.is_none();
        let words = rule.words() + lease.as_ref().map_or(0, |_| lease::WORDS);
        let shards = previous.map_or_else(|| shards_for(spec.max_keys, words), |previous| previous.shards);
        let shard_keys = spec.max_keys.div_ceil(shards);
        let mut params =
            Self { spec, rule, stance, max_queue, lease, shards, shard_keys, is_plain, quota: (0, Span::ZERO), scale };
        params.quota = params.quota_to_show(0);
        params
    }

    /// The quota and window of a rate as clients are told.
    pub(super) fn shown_quota(&self, rate: usize) -> (u64, Span) {
        if rate == 0 { self.quota } else { self.quota_to_show(rate) }
    }

    /// As many windows as it takes to admit all that may remain of a burst, a queue, or savings: so what remains is never above the
    /// quota, and `L / W` stays the pace.
    fn quota_to_show(&self, rate: usize) -> (u64, Span) {
        let (limit, window) = self.rule.quota(rate);
        let is_queue = self.stance == EffectiveMode::Enforce && self.rule.counts_waiters() && self.max_queue > 0;
        let most = if is_queue { self.max_queue } else { self.rule.most(rate) };
        let windows = most.div_ceil(limit.max(1)).max(1);
        (limit.saturating_mul(windows), Span::from_nanos(window.as_nanos().saturating_mul(windows)))
    }

    /// Words of a key: those of the algorithm first.
    pub(super) fn words(&self) -> usize {
        self.rule.words() + self.lease.as_ref().map_or(0, |_| lease::WORDS)
    }

    /// Whether forgetting a key changes no later decision, and loses nothing that is to be told to the fleet.
    #[inline]
    pub(super) fn is_idle(&self, state: &[u64], now: Tick) -> bool {
        self.rule.is_idle(state, now) && (self.lease.is_none() || self.lease_of(state).is_idle(now))
    }

    /// The fleet's words of a key of a shared limit.
    pub(super) fn lease_of(&self, state: &[u64]) -> Lease {
        Lease::read(state.get(self.rule.words()..).unwrap_or_default())
    }

    pub(super) fn set_lease(&self, state: &mut [u64], lease: Lease) {
        lease.write(state.get_mut(self.rule.words()..).unwrap_or_default());
    }
}

/// How many shards keep each one's table at about [`BYTES_PER_SHARD`]; a power of two.
fn shards_for(max_keys: u64, state_words: usize) -> u64 {
    let record = (state_words as u64).saturating_add(1).saturating_mul(8);
    // A table that has grown is 2/3 full.
    let bytes = max_keys.saturating_mul(record).saturating_mul(3) / 2;
    bytes.div_ceil(BYTES_PER_SHARD).clamp(1, MAX_SHARDS).next_power_of_two()
}

pub(super) fn wake_all(wakers: Vec<Waker>) {
    for waker in wakers {
        waker.wake();
    }
}

/// A thread that panicked under a lock left counts that are at worst one request off: better than refusing everybody.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::super::{Bound, Gcra, Rate, TimerWheel};
    use super::*;

    #[test]
    fn a_shards_table_stays_small_whatever_a_key_takes() {
        assert_eq!(shards_for(1, 3), 1);
        assert_eq!(shards_for(1_000, 3), 1);
        assert_eq!(shards_for(1_000_000, 3), 256);
        // 3,600 slots of one byte.
        assert_eq!(shards_for(1_000_000, 451), 32_768);
        assert_eq!(shards_for(90_000, 451), 2_048);
        assert_eq!(shards_for(u64::MAX, usize::MAX), MAX_SHARDS);
    }

    /// Bytes of a limit but for the tables of its shards and what its spec holds.
    fn weight(limit: &Limit) -> usize {
        let places = limit.shards.get().map_or(0, |shards| size_of_val::<[_]>(shards));
        size_of::<Limit>() + size_of::<Params>() + places + limit.made().count() * size_of::<Padded>()
    }

    #[test]
    fn weighs_little_until_it_is_asked_and_then_by_the_shard() {
        let wheel = TimerWheel::new(&["100/s".parse().unwrap()], None, Bound::Sliding).unwrap();
        let limit =
            Limit::new(LimitSpec { max_keys: 1_000_000, ..LimitSpec::new("many", Algorithm::TimerWheel(wheel)) });
        assert_eq!(limit.stats(), LimitStats::default());
        limit.reconfigure(LimitSpec { max_wait: Span::from_secs(1), ..limit.spec() });
        assert!(weight(&limit) <= 2 * 1024, "{}", weight(&limit));
        for asked in 1..=300u64 {
            limit.charge(Fingerprint::from_bits(asked), 1, Tick::ZERO);
            let made = asked.min(limit.mask as u64 + 1);
            assert_eq!((limit.made().count() as u64, limit.stats().keys), (made, asked));
        }
        assert!(weight(&limit) <= 128 * 1024, "{}", weight(&limit));
        limit.release();
        assert_eq!(limit.stats().keys, 0);
    }

    #[test]
    fn a_shard_that_is_made_after_a_change_lives_by_it() {
        let spec = |limit: u64| LimitSpec {
            name: "changed".into(),
            algorithm: Algorithm::Gcra(
                Gcra::new(&[Rate::new(limit, Span::from_secs(1)).unwrap()], Some(limit)).unwrap(),
            ),
            mode: Mode::Enforce,
            max_wait: Span::ZERO,
            max_queue: None,
            max_keys: 1_000_000,
            on_full: OnFull::EvictOldest,
            penalty: None,
            sharing: None,
            is_adaptive: false,
        };
        let limit = Limit::new(spec(1));
        for (key, rate) in [(1, 1), (2, 5), (3, 2)] {
            limit.reconfigure(spec(rate));
            // One more than fits waits until there is room for it.
            let owed: Vec<Tick> =
                (0..=rate).map(|_| limit.charge(Fingerprint::from_bits(key), 1, Tick::ZERO)).collect();
            assert_eq!(owed.iter().filter(|at| **at == Tick::ZERO).count() as u64, rate, "{owed:?}");
        }
        assert_eq!(limit.made().count(), 3);
    }
}
