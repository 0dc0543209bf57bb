//! Flood control: which refusals get a record of their own, and the counters of those that do not.
//!
//! Decided on the request path before anything is built: an attack costs it one or two atomics and at most one lookup in
//! the key table. A request is recorded if the second's budget ([`Budget`]) and its key's allow; else it is counted in a
//! slot of its (reason, limit), which the writer empties once a second into one aggregate line each.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::record::{Reason, Tally};
use super::{Event, Settings};
use crate::limiter::{
    Algorithm, Ask, Bound, Counting, Fingerprint, Limit, LimitSpec, MAX_COUNT, Mode, OnFull, Policy, Rate, Report,
    TimerWheel, Verdict,
};
use crate::time::{Span, Tick};

/// How many keys the per-key rate remembers; beyond it the oldest are forgotten and may record again.
const MAX_KEYS: u64 = 65_536;
/// How many different (reason, limit) are counted apart; beyond it they share a counter per reason, whose lines name
/// the limit [`OTHER_LIMITS`].
const MAX_SLOTS: usize = 1024;
/// How many slots are tried for one (reason, limit) before it counts among the others.
const MAX_PROBES: usize = 16;
/// What aggregates of too many limits are called.
pub(super) const OTHER_LIMITS: &str = "(other)";

/// What becomes of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Share {
    /// A record of its own.
    Record,
    /// A count in an aggregate.
    Count,
}

/// Shared by all who offer; nothing in it waits but for the key table's shard.
pub(super) struct Flood {
    budget: Budget,
    key_rate: AtomicU64,
    key_limit: Arc<Limit>,
    keys: Arc<Policy>,
    slots: Box<[Slot]>,
    others: [Slot; Reason::ALL.len()],
}

impl Flood {
    pub(super) fn new(settings: &Settings) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let key_limit = Limit::new(LimitSpec {
            name: "dead-letter-keys".into(),
            algorithm: per_second(settings.max_key_rate)?,
            mode: Mode::Enforce,
            max_wait: Span::ZERO,
            max_queue: None,
            max_keys: MAX_KEYS,
            on_full: OnFull::EvictOldest,
            penalty: None,
        });
        Ok(Self {
            budget: Budget::new(settings.max_record_rate),
            key_rate: AtomicU64::new(settings.max_key_rate),
            keys: Policy::new(vec![Arc::clone(&key_limit)])?,
            key_limit,
            slots: std::iter::repeat_with(Slot::default).take(MAX_SLOTS).collect(),
            others: std::array::from_fn(|_| Slot::default()),
        })
    }

    /// Takes over new rates; what this second has already seen counts.
    pub(super) fn reconfigure(&self, settings: &Settings) -> Result<(), Box<dyn Error + Send + Sync>> {
        let algorithm = per_second(settings.max_key_rate)?;
        let spec = self.key_limit.spec();
        if spec.algorithm != algorithm {
            self.key_limit.reconfigure(LimitSpec { algorithm, ..spec });
        }
        self.key_rate.store(settings.max_key_rate, Ordering::Relaxed);
        self.budget.max.store(settings.max_record_rate, Ordering::Relaxed);
        Ok(())
    }

    /// Decides; an event that is to be counted has been counted.
    pub(super) fn admit(&self, event: &Event<'_>) -> Share {
        let second = event.now.as_nanos() / NANOS_PER_SECOND;
        // The key's count is touched only while the second has room, so that a flood costs no table lookup.
        let recorded =
            self.budget.has_room(second) && self.key_allows(event.key, event.now) && self.budget.take(second);
        if recorded {
            return Share::Record;
        }
        self.slot(event.reason, event.limit).add(event.now);
        Share::Count
    }

    /// Empties the counters.
    pub(super) fn drain(&self, now: Tick) -> Vec<Tally> {
        let slots = self.slots.iter().filter_map(|slot| {
            let (reason, limit) = slot.owner.get()?;
            slot.take(*reason, limit.clone(), now)
        });
        let others = Reason::ALL.into_iter().zip(&self.others);
        slots.chain(others.filter_map(|(reason, slot)| slot.take(reason, Some(OTHER_LIMITS.into()), now))).collect()
    }

    /// How many events are counted and not yet drained.
    pub(super) fn waiting(&self) -> u64 {
        self.slots.iter().chain(&self.others).map(|slot| slot.count.load(Ordering::Relaxed)).sum()
    }

    fn key_allows(&self, key: Option<Fingerprint>, now: Tick) -> bool {
        if key.is_none() {
            return true;
        }
        self.key_rate.load(Ordering::Relaxed) > 0
            && matches!(
                self.keys.check(
                    &[Ask { key, cost: 1, counting: Counting::AtOnce }],
                    Span::MAX,
                    now,
                    &mut Report::default()
                ),
                Verdict::Admitted(_)
            )
    }

    fn slot(&self, reason: Reason, limit: Option<&Arc<str>>) -> &Slot {
        let start = hash(reason, limit.map_or("", |limit| limit));
        for probe in 0..MAX_PROBES {
            let Some(slot) = self.slots.get(start.wrapping_add(probe) % MAX_SLOTS) else { break };
            let (own_reason, own_limit) = slot.owner.get_or_init(|| (reason, limit.cloned()));
            if *own_reason == reason && own_limit.as_deref() == limit.map(|limit| &**limit) {
                return slot;
            }
        }
        &self.others[reason as usize]
    }
}

const NANOS_PER_SECOND: u64 = 1_000_000_000;
/// Seconds by which an event may be older than the newest.
const MAX_STRAGGLE: u32 = 60;

/// So many a second, in one word: the second in the upper half, its count in the lower.
struct Budget {
    max: AtomicU64,
    spent: AtomicU64,
}

impl Budget {
    fn new(max: u64) -> Self {
        Self { max: AtomicU64::new(max), spent: AtomicU64::new(0) }
    }

    fn has_room(&self, second: u64) -> bool {
        count_in(self.spent.load(Ordering::Relaxed), second) < self.max()
    }

    fn take(&self, second: u64) -> bool {
        let next = |word: u64| {
            let count = count_in(word, second);
            // A straggler of an earlier second pays in the current one.
            let base = if is_later(second, word) { second << 32 } else { word & (u64::MAX << 32) };
            (count < self.max()).then_some(base | (count + 1))
        };
        self.spent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    fn max(&self) -> u64 {
        self.max.load(Ordering::Relaxed).min(u64::from(u32::MAX))
    }
}

fn count_in(word: u64, second: u64) -> u64 {
    if is_later(second, word) { 0 } else { word & u64::from(u32::MAX) }
}

/// Whether `second` begins a new count: it is neither the word's nor one that a straggler may come from. Of the second
/// 32 bits are kept; the wrap in the year 2106 is a step like any other.
fn is_later(second: u64, word: u64) -> bool {
    ((word >> 32) as u32).wrapping_sub(second as u32) > MAX_STRAGGLE
}

/// The counter of one (reason, limit). The owner is set once and stays: names are few, and a name that a reload
/// removed may come back. A cache line of its own, because different workers refuse by different limits.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    owner: OnceLock<(Reason, Option<Arc<str>>)>,
    count: AtomicU64,
    /// The first and last instant counted; 0 is none.
    from: AtomicU64,
    to: AtomicU64,
}

impl Slot {
    fn add(&self, now: Tick) {
        let now = now.as_nanos().max(1);
        let from = self.from.load(Ordering::Relaxed);
        if from == 0 || now < from {
            self.from.store(now, Ordering::Relaxed);
        }
        self.to.fetch_max(now, Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Release);
    }

    /// The count is exact; `from` and `to` may miss an event that is being added at this moment.
    fn take(&self, reason: Reason, limit: Option<Arc<str>>, now: Tick) -> Option<Tally> {
        let count = self.count.swap(0, Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let instant = |cell: &AtomicU64| match cell.swap(0, Ordering::Relaxed) {
            0 => now,
            nanos => Tick::from_nanos(nanos),
        };
        let (from, to) = (instant(&self.from), instant(&self.to));
        Some(Tally { reason, limit, count, from: from.min(to), to: to.max(from) })
    }
}

/// FNV-1a: names come from the operator's file, not from strangers.
fn hash(reason: Reason, limit: &str) -> usize {
    let start = 0xcbf2_9ce4_8422_2325 ^ reason as u64;
    let hash = limit.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ hash >> 32) as usize
}

/// `rate` in each whole second; a rate of 0 is kept out by the caller.
fn per_second(rate: u64) -> Result<Algorithm, Box<dyn Error + Send + Sync>> {
    let rate = Rate::new(rate.clamp(1, MAX_COUNT), Span::from_secs(1))?;
    Ok(Algorithm::TimerWheel(TimerWheel::new(&[rate], None, Bound::Slot)?))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::limiter::KeyHasher;

    fn flood(max_record_rate: u64, max_key_rate: u64) -> Flood {
        Flood::new(&Settings { max_record_rate, max_key_rate, ..Settings::default() }).unwrap()
    }

    fn key(name: &str) -> Fingerprint {
        let mut builder = KeyHasher::fixed().start();
        builder.part(0, name.as_bytes());
        builder.finish()
    }

    fn event(limit: Option<&Arc<str>>, key: Option<Fingerprint>, now: Tick) -> Event<'_> {
        Event { reason: Reason::RateLimited, limit, route: None, key, now }
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn recorded(flood: &Flood, events: usize, key: Option<Fingerprint>, now: Tick) -> usize {
        (0..events).filter(|_| flood.admit(&event(None, key, now)) == Share::Record).count()
    }

    #[test]
    fn a_second_records_no_more_than_its_budget() {
        let flood = flood(5, 100);
        assert_eq!(recorded(&flood, 9, None, at(0)), 5);
        assert_eq!(recorded(&flood, 9, None, at(999)), 0);
        assert_eq!(recorded(&flood, 9, None, at(1_000)), 5);
        assert_eq!(recorded(&flood, 9, None, at(500)), 0, "a straggler pays in the current second");
        assert_eq!(flood.waiting(), 4 + 9 + 4 + 9);
    }

    #[test]
    fn a_key_records_no_more_than_its_rate_and_leaves_the_rest_to_others() {
        let flood = flood(100, 3);
        assert_eq!(recorded(&flood, 50, Some(key("a")), at(0)), 3);
        assert_eq!(recorded(&flood, 50, Some(key("b")), at(0)), 3);
        assert_eq!(recorded(&flood, 50, None, at(0)), 50);
        assert_eq!(recorded(&flood, 50, Some(key("a")), at(1_000)), 3);
    }

    #[test]
    fn a_spent_second_leaves_the_keys_alone() {
        let flood = flood(2, 2);
        assert_eq!(recorded(&flood, 2, None, at(0)), 2);
        assert_eq!(recorded(&flood, 9, Some(key("a")), at(0)), 0);
        flood.reconfigure(&Settings { max_record_rate: 4, max_key_rate: 2, ..Settings::default() }).unwrap();
        assert_eq!(recorded(&flood, 9, Some(key("a")), at(0)), 2, "the key had not paid for what the second refused");
    }

    #[test]
    fn rates_of_zero_count_everything() {
        assert_eq!(recorded(&flood(0, 10), 9, None, at(0)), 0);
        let no_keys = flood(10, 0);
        assert_eq!(recorded(&no_keys, 9, Some(key("a")), at(0)), 0);
        assert_eq!(recorded(&no_keys, 1, None, at(0)), 1);
    }

    #[test]
    fn counts_are_kept_by_reason_and_limit_with_their_first_and_last_instant() {
        let flood = flood(0, 0);
        let (one, other): (Arc<str>, Arc<str>) = ("one".into(), "other".into());
        for (limit, millis) in [(&one, 20), (&other, 30), (&one, 10), (&one, 40)] {
            flood.admit(&event(Some(limit), None, at(millis)));
        }
        flood.admit(&Event { reason: Reason::Timeout, ..event(Some(&one), None, at(50)) });
        let mut tallies = flood.drain(at(60));
        tallies.sort_by_key(|tally| (tally.reason, tally.limit.clone()));
        let tally = |reason, limit: &Arc<str>, count, from, to| Tally {
            reason,
            limit: Some(Arc::clone(limit)),
            count,
            from: at(from),
            to: at(to),
        };
        assert_eq!(
            tallies,
            [
                tally(Reason::RateLimited, &one, 3, 10, 40),
                tally(Reason::RateLimited, &other, 1, 30, 30),
                tally(Reason::Timeout, &one, 1, 50, 50),
            ]
        );
        assert_eq!(flood.drain(at(70)), []);
    }

    #[test]
    fn too_many_limits_share_a_counter_and_lose_no_count() {
        let flood = flood(0, 0);
        for name in 0..2 * MAX_SLOTS {
            flood.admit(&event(Some(&name.to_string().into()), None, at(1)));
        }
        let tallies = flood.drain(at(2));
        assert_eq!(tallies.iter().map(|tally| tally.count).sum::<u64>(), 2 * MAX_SLOTS as u64);
        assert!(tallies.len() <= MAX_SLOTS + 1);
        assert!(tallies.iter().any(|tally| tally.limit.as_deref() == Some(OTHER_LIMITS) && tally.count > 1));
    }

    #[test]
    fn the_seconds_of_32_bits_wrap_without_a_stop() {
        let budget = Budget::new(1);
        let last = u64::from(u32::MAX);
        for second in [1, 1 << 31, 3 << 30] {
            assert!(budget.take(second) && !budget.take(second), "{second}");
        }
        assert!(budget.take(last) && !budget.take(last));
        assert!(budget.take(last + 1) && !budget.take(last + 1));
    }

    #[test]
    fn no_count_is_lost_between_threads_and_a_drain() {
        let flood = flood(100, 0);
        let limit: Arc<str> = "l".into();
        let (mut records, mut drained) = (0, 0);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..20_000).filter(|_| flood.admit(&event(Some(&limit), None, at(5))) == Share::Record).count()
                    })
                })
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                drained += flood.drain(at(5)).iter().map(|tally| tally.count).sum::<u64>();
            }
            records = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        });
        drained += flood.drain(at(5)).iter().map(|tally| tally.count).sum::<u64>();
        assert_eq!(records, 100);
        assert_eq!(drained, 4 * 20_000 - 100);
    }
}
