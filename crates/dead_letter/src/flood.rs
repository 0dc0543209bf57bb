//! Flood control: which refusals get a record of their own, and the counters of those that do not.
//!
//! Decided on the request path before anything is built: an attack costs it a few atomics and at most one lookup in
//! the key table. A request is recorded if the budgets of records and of bytes ([`Budget`]) and its key's rate allow; else it is
//! counted in a slot of its (reason, limit), which the writer empties once a second into one aggregate line each.
//!
//! The budgets are shared between clients ([`Clients`]): one that has had little lately may use them up, one that has had its
//! share only down to the half. So a client alone may have all of them, and can never keep others from theirs, however many keys
//! it makes up.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::Event;
use super::reason::Reason;
use super::tally::{KeyName, Tally, TopKey};
use sluicegate_config::DeadLetter;
use sluicegate_limiter::{
    Algorithm, Ask, Bound, Counting, Fingerprint, Limit, LimitSpec, MAX_COUNT, Policy, Rate, Report, TimerWheel,
    Verdict,
};
use sluicegate_telemetry::{Top, TopKeys};
use sluicegate_time::{Span, Tick, WallOffset};

/// How many keys the per-key rate remembers; beyond it the oldest are forgotten and may record again.
const MAX_KEYS: u64 = 65_536;
/// How many different (reason, limit) are counted apart; beyond it they share a counter per reason, whose lines name
/// the limit [`OTHER_LIMITS`].
const MAX_SLOTS: usize = 1024;
/// Keys that an aggregate names.
const MAX_TOP: usize = 10;
/// Sets of eight keys that are counted for that.
const TOP_SETS: usize = 4;
/// How many slots are tried for one (reason, limit) before it counts among the others.
const MAX_PROBES: usize = 16;
/// The name of aggregates of too many limits.
pub(super) const OTHER_LIMITS: &str = "(other)";

/// The treatment of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloodVerdict {
    /// A record of its own.
    Record,
    /// A count in an aggregate.
    Count,
}

/// Shared by all who offer; nothing in it waits but for the key table's shard.
pub(super) struct Flood {
    records: Budget,
    bytes: Budget,
    clients: Clients,
    key_rate: AtomicU64,
    key_limit: Arc<Limit>,
    keys: Arc<Policy>,
    slots: Box<[Slot]>,
    others: [Slot; Reason::ALL.len()],
    shadow_others: [Slot; Reason::ALL.len()],
}

/// Rates that only have to be taken over.
pub(super) struct Rates {
    keys: LimitSpec,
    max_key_rate: u64,
    max_record_rate: u64,
    max_byte_rate: u64,
}

impl Flood {
    pub(super) fn new(settings: &DeadLetter) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let key_limit = Limit::new(LimitSpec {
            max_keys: MAX_KEYS,
            ..LimitSpec::new("dead-letter-keys", per_second(settings.max_key_rate)?)
        });
        Ok(Self {
            records: Budget::new(settings.max_record_rate),
            bytes: Budget::new(settings.max_byte_rate),
            clients: Clients::default(),
            key_rate: AtomicU64::new(settings.max_key_rate),
            keys: Policy::new(vec![Arc::clone(&key_limit)])?,
            key_limit,
            slots: std::iter::repeat_with(Slot::default).take(MAX_SLOTS).collect(),
            others: std::array::from_fn(|_| Slot::default()),
            shadow_others: std::array::from_fn(|_| Slot::default()),
        })
    }

    /// Makes new rates ready.
    pub(super) fn stage(&self, settings: &DeadLetter) -> Result<Rates, Box<dyn Error + Send + Sync>> {
        let DeadLetter { max_key_rate, max_record_rate, max_byte_rate, .. } = *settings;
        let keys = LimitSpec { algorithm: per_second(max_key_rate)?, ..self.key_limit.spec() };
        Ok(Rates { keys, max_key_rate, max_record_rate, max_byte_rate })
    }

    /// Takes them over; what this second has already seen counts.
    pub(super) fn commit(&self, rates: Rates) {
        let Rates { keys, max_key_rate, max_record_rate, max_byte_rate } = rates;
        if self.key_limit.spec().algorithm != keys.algorithm {
            self.key_limit.reconfigure(keys);
        }
        self.key_rate.store(max_key_rate, Ordering::Relaxed);
        self.records.rate.store(max_record_rate, Ordering::Relaxed);
        self.bytes.rate.store(max_byte_rate, Ordering::Relaxed);
    }

    /// Whether the budgets have room for a record: nothing that costs more than that is done for an event of a flood.
    pub(super) fn has_room(&self, now: Tick) -> bool {
        self.records.has_room(now, BURST) && self.bytes.has_room(now, BURST)
    }

    /// Decides; an event that is to be counted has been counted.
    pub(super) fn admit(&self, event: &Event<'_>, name: impl FnOnce() -> KeyName) -> FloodVerdict {
        if self.records_one(event) {
            return FloodVerdict::Record;
        }
        let slot = self.slot(event);
        slot.add(event.now);
        if let Some(key) = event.key {
            slot.rank(key, name);
        }
        FloodVerdict::Count
    }

    fn records_one(&self, event: &Event<'_>) -> bool {
        let now = event.now;
        if !self.has_room(now) {
            return false;
        }
        let most = if self.clients.had_its_share(event.client, now) { BURST_OF_HEAVY } else { BURST };
        let recorded = self.records.has_room(now, most)
            && self.bytes.has_room(now, most)
            && self.key_allows(event.key, now)
            && self.records.take(now, most);
        if recorded {
            self.bytes.charge(event.bytes, now);
            self.clients.charge(event.client, self.records.cost(1).max(self.bytes.cost(event.bytes)), now);
        }
        recorded
    }

    /// A record took so many bytes more than its event had said.
    pub(super) fn charge_more(&self, bytes: u64, now: Tick) {
        self.bytes.charge(bytes, now);
    }

    /// Empties the counters.
    pub(super) fn drain(&self, now: Tick, offset: &WallOffset) -> Vec<Tally> {
        let slots = self.slots.iter().filter_map(|slot| {
            let (reason, is_shadow, limit) = slot.owner.get()?;
            slot.take((*reason, *is_shadow), limit.clone(), (now, offset))
        });
        let others = |slots, is_shadow| Reason::ALL.into_iter().map(move |reason| (reason, is_shadow)).zip(slots);
        let others = others(&self.others, false).chain(others(&self.shadow_others, true));
        slots
            .chain(others.filter_map(|(kind, slot)| slot.take(kind, Some(OTHER_LIMITS.into()), (now, offset))))
            .collect()
    }

    /// How many events are counted and not yet drained.
    pub(super) fn waiting(&self) -> u64 {
        self.slots
            .iter()
            .chain(&self.others)
            .chain(&self.shadow_others)
            .map(|slot| slot.count.load(Ordering::Relaxed))
            .sum()
    }

    fn key_allows(&self, key: Option<Fingerprint>, now: Tick) -> bool {
        if key.is_none() {
            return true;
        }
        self.key_rate.load(Ordering::Relaxed) > 0
            && matches!(
                self.keys.check(
                    &[Ask { key, cost: 1, counting: Counting::AtOnce, ..Ask::default() }],
                    Span::MAX,
                    now,
                    &mut Report::default()
                ),
                Verdict::Admitted(_)
            )
    }

    fn slot(&self, event: &Event<'_>) -> &Slot {
        let Event { reason, is_shadow, limit, .. } = *event;
        let start = hash(reason, limit.map_or("", |limit| limit)) ^ usize::from(is_shadow);
        for probe in 0..MAX_PROBES {
            let Some(slot) = self.slots.get(start.wrapping_add(probe) % MAX_SLOTS) else { break };
            let (own_reason, own_shadow, own_limit) = slot.owner.get_or_init(|| (reason, is_shadow, limit.cloned()));
            if (*own_reason, *own_shadow) == (reason, is_shadow) && own_limit.as_deref() == limit.map(|limit| &**limit)
            {
                return slot;
            }
        }
        let others = if is_shadow { &self.shadow_others } else { &self.others };
        &others[reason as usize]
    }
}

/// A budget refills in slices of this length: what it admits comes in handfuls that are written as fast as they come, and none
/// is so large that requests wait behind it.
pub(super) const SLICE: Span = Span::from_millis(10);
/// How much of a budget may be used at once: a tenth of a second's.
const BURST: Span = Span::from_millis(100);
/// The same, for a client that has had its share: the rest is for others.
const BURST_OF_HEAVY: Span = Span::from_millis(50);
/// A client's share of a budget is this part of it, and all of a second's at once.
const SHARES: u64 = 32;
const SHARE_BURST: Span = Span::from_secs(1);
/// Cells for what clients have had. Clients that meet in one share a share; under a random secret nobody chooses whom he meets.
const CELLS: usize = 4096;

/// So much a second, as the instant until which what was taken has used it up (GCRA): one word, whatever the rate.
struct Budget {
    rate: AtomicU64,
    used_until: AtomicU64,
}

impl Budget {
    fn new(rate: u64) -> Self {
        Self { rate: AtomicU64::new(rate), used_until: AtomicU64::new(0) }
    }

    /// Whether less than `most` of it is used up.
    fn has_room(&self, now: Tick, most: Span) -> bool {
        self.rate.load(Ordering::Relaxed) > 0
            && self.used_until.load(Ordering::Relaxed).saturating_sub(slice_of(now)) < most.as_nanos()
    }

    /// Takes one, if there is room.
    fn take(&self, now: Tick, most: Span) -> bool {
        let (now, cost) = (slice_of(now), self.cost(1));
        let next =
            |until: u64| (until.saturating_sub(now) < most.as_nanos()).then(|| until.max(now).saturating_add(cost));
        self.used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }

    /// Takes so many, room or not.
    fn charge(&self, amount: u64, now: Tick) {
        let (now, cost) = (slice_of(now), self.cost(amount));
        let next = |until: u64| Some(until.max(now).saturating_add(cost));
        let _ = self.used_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// How long it takes to come in again.
    fn cost(&self, amount: u64) -> u64 {
        let rate = self.rate.load(Ordering::Relaxed).max(1);
        amount.saturating_mul(SECOND_NANOS).div_ceil(rate)
    }
}

const SECOND_NANOS: u64 = 1_000_000_000;

fn slice_of(now: Tick) -> u64 {
    now.as_nanos() - now.as_nanos() % SLICE.as_nanos()
}

/// The shares that clients have had of the budgets: for each the instant until which it has used up its own.
struct Clients(Box<[AtomicU64]>);

impl Default for Clients {
    fn default() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(CELLS).collect())
    }
}

impl Clients {
    fn cell(&self, client: Option<Fingerprint>) -> Option<&AtomicU64> {
        self.0.get(client?.bits() as usize % CELLS)
    }

    fn had_its_share(&self, client: Option<Fingerprint>, now: Tick) -> bool {
        self.cell(client)
            .is_some_and(|cell| cell.load(Ordering::Relaxed).saturating_sub(slice_of(now)) >= SHARE_BURST.as_nanos())
    }

    /// `cost` is that of the whole budget. A client that has had more than its share has its share again within a second or so.
    fn charge(&self, client: Option<Fingerprint>, cost: u64, now: Tick) {
        let Some(cell) = self.cell(client) else { return };
        let now = slice_of(now);
        let most = now.saturating_add(2 * SHARE_BURST.as_nanos());
        let next = |until: u64| Some(until.max(now).saturating_add(cost.saturating_mul(SHARES)).min(most.max(until)));
        let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

/// The counter of one (reason, whether it is shadow, limit). The owner is set once and stays: names are few, and a name that a reload
/// removed may come back. A cache line of its own, because different workers refuse by different limits.
#[repr(align(64))]
#[derive(Default)]
struct Slot {
    owner: OnceLock<(Reason, bool, Option<Arc<str>>)>,
    count: AtomicU64,
    /// The first and last instant counted; 0 is none.
    from: AtomicU64,
    to: AtomicU64,
    top: Mutex<Option<TopKeys<KeyName>>>,
}

impl Slot {
    /// Counts a key among those that come most often. Nobody waits for that: where another thread is at it, the key is not
    /// counted this time.
    fn rank(&self, key: Fingerprint, name: impl FnOnce() -> KeyName) {
        if let Ok(mut top) = self.top.try_lock() {
            top.get_or_insert_with(|| TopKeys::new(TOP_SETS)).add(key.bits(), name);
        }
    }

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
    fn take(
        &self,
        (reason, is_shadow): (Reason, bool),
        limit: Option<Arc<str>>,
        (now, offset): (Tick, &WallOffset),
    ) -> Option<Tally> {
        let count = self.count.swap(0, Ordering::Acquire);
        if count == 0 {
            return None;
        }
        let instant = |cell: &AtomicU64| match cell.swap(0, Ordering::Relaxed) {
            0 => now,
            nanos => Tick::from_nanos(nanos),
        };
        let (from, to) = (instant(&self.from), instant(&self.to));
        let top = self.top.lock().unwrap_or_else(PoisonError::into_inner).take();
        let top = top.iter().flat_map(|top| top.top(MAX_TOP)).map(|Top { name, count, excess, .. }| TopKey {
            name: name.clone(),
            count,
            excess,
        });
        let (from, to) = (offset.wall(from.min(to)), offset.wall(to.max(from)));
        Some(Tally { reason, is_shadow, limit, count, from, to, top: top.collect() })
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
    use std::path::Path;
    use std::thread;

    use super::super::tests::settings;
    use super::*;
    use sluicegate_limiter::KeyHasher;

    fn flood(max_record_rate: u64, max_key_rate: u64) -> Flood {
        Flood::new(&DeadLetter { max_record_rate, max_key_rate, max_byte_rate: 1 << 40, ..settings(Path::new("")) })
            .unwrap()
    }

    fn key(name: &str) -> Fingerprint {
        let mut builder = KeyHasher::fixed().start();
        builder.part(0, name.as_bytes());
        builder.finish()
    }

    fn event(limit: Option<&Arc<str>>, key: Option<Fingerprint>, now: Tick) -> Event<'_> {
        Event {
            reason: Reason::RateLimited,
            is_shadow: false,
            limit,
            route: None,
            key,
            client: None,
            bytes: 1_000,
            now,
        }
    }

    fn at(millis: u64) -> Tick {
        Tick::ZERO + Span::from_millis(millis)
    }

    fn recorded(flood: &Flood, events: usize, key: Option<Fingerprint>, now: Tick) -> usize {
        (0..events).filter(|_| flood.admit(&event(None, key, now), KeyName::default) == FloodVerdict::Record).count()
    }

    #[test]
    fn a_budget_comes_in_slices_and_a_tenth_of_it_at_once() {
        let flood = flood(2_000, 100);
        assert_eq!(recorded(&flood, 999, None, at(0)), 200);
        assert_eq!(recorded(&flood, 999, None, at(9)), 0);
        for slice in 1..=100 {
            assert_eq!(recorded(&flood, 50, None, at(10 * slice)), 20, "{slice}");
        }
        assert_eq!(recorded(&flood, 9, None, at(500)), 0, "a straggler pays in the current slice");
        assert_eq!(recorded(&flood, 999, None, at(60_000)), 200);
        assert_eq!(flood.waiting(), 799 + 999 + 100 * 30 + 9 + 799);
    }

    #[test]
    fn a_small_budget_has_one_at_once() {
        let flood = flood(5, 100);
        let taken = (0..20).map(|slice| recorded(&flood, 9, None, at(100 * slice))).collect::<Vec<_>>();
        assert_eq!(taken, [1, 0].repeat(10), "five a second");
    }

    #[test]
    fn bytes_are_a_budget_of_their_own() {
        let settings = DeadLetter { max_byte_rate: 1_000_000, max_record_rate: 1_000_000, ..settings(Path::new("")) };
        let flood = Flood::new(&settings).unwrap();
        let of = |bytes, millis| {
            let event = Event { bytes, ..event(None, None, at(millis)) };
            (0..999).filter(|_| flood.admit(&event, KeyName::default) == FloodVerdict::Record).count()
        };
        assert_eq!(of(1_000, 0), 100);
        let second: usize = (1..=100).map(|slice| of(1_000, 10 * slice)).sum();
        assert_eq!(second, 1_000);
        assert_eq!(of(1_000_000, 60_000), 1, "a record larger than that is one of a second");
        assert_eq!((of(1, 60_890), of(1, 60_910) > 0), (0, true));
        flood.charge_more(1_000_000, at(70_000));
        assert_eq!((of(1, 70_890), of(1, 70_910) > 0), (0, true), "what was underestimated is paid later");
    }

    #[test]
    fn a_client_that_had_its_share_leaves_half_to_others_and_has_all_where_nobody_comes() {
        let flood = flood(2_000, 1_000_000);
        let from = |client: &str, number, millis| {
            let made_up = |index: usize| Some(key(&format!("{client} {millis} {index}")));
            let client = Some(key(client));
            let event = |index| Event { client, ..event(None, made_up(index), at(millis)) };
            (0..number).filter(|index| flood.admit(&event(*index), KeyName::default) == FloodVerdict::Record).count()
        };
        // Its share of a second at first, then what is left of the half.
        assert_eq!(from("attacker", 999, 0), 100);
        let alone: usize = (1..=500).map(|slice| from("attacker", 99, 10 * slice)).sum();
        assert_eq!(alone, 10_000, "all of it, over five seconds");
        // Ten clients, each within its share, in the attacker's sixth second.
        let (mut attacker, mut honest) = (0, 0);
        for slice in 501..=600 {
            attacker += from("attacker", 99, 10 * slice);
            if slice % 2 == 0 {
                honest += (0..10).map(|number| from(&format!("honest {number}"), 1, 10 * slice)).sum::<usize>();
            }
        }
        assert_eq!((honest, attacker), (500, 1_510));
    }

    #[test]
    fn a_key_records_no_more_than_its_rate_and_leaves_the_rest_to_others() {
        let flood = flood(1_000, 3);
        assert_eq!(recorded(&flood, 50, Some(key("a")), at(0)), 3);
        assert_eq!(recorded(&flood, 50, Some(key("b")), at(0)), 3);
        assert_eq!(recorded(&flood, 50, None, at(0)), 50);
        assert_eq!(recorded(&flood, 50, Some(key("a")), at(1_000)), 3);
    }

    #[test]
    fn a_spent_budget_leaves_the_keys_alone() {
        let flood = flood(20, 2);
        assert_eq!(recorded(&flood, 2, None, at(0)), 2);
        assert_eq!(recorded(&flood, 9, Some(key("a")), at(0)), 0);
        let settings = DeadLetter { max_record_rate: 2_000, max_key_rate: 2, ..settings(Path::new("")) };
        flood.commit(flood.stage(&settings).unwrap());
        assert_eq!(recorded(&flood, 9, Some(key("a")), at(10)), 2, "the key had not paid for what the budget refused");
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
            flood.admit(&event(Some(limit), None, at(millis)), KeyName::default);
        }
        flood.admit(
            &Event { reason: Reason::Timeout, is_shadow: false, ..event(Some(&one), None, at(50)) },
            KeyName::default,
        );
        let mut tallies = flood.drain(at(60), &WallOffset::default());
        tallies.sort_by_key(|tally| (tally.reason, tally.limit.clone()));
        let tally = |reason, limit: &Arc<str>, count, from, to| Tally {
            reason,
            is_shadow: false,
            limit: Some(Arc::clone(limit)),
            count,
            from: WallOffset::default().wall(at(from)),
            to: WallOffset::default().wall(at(to)),
            top: Vec::new(),
        };
        assert_eq!(
            tallies,
            [
                tally(Reason::RateLimited, &one, 3, 10, 40),
                tally(Reason::RateLimited, &other, 1, 30, 30),
                tally(Reason::Timeout, &one, 1, 50, 50),
            ]
        );
        assert_eq!(flood.drain(at(70), &WallOffset::default()), []);
    }

    #[test]
    fn too_many_limits_share_a_counter_and_lose_no_count() {
        let flood = flood(0, 0);
        for name in 0..2 * MAX_SLOTS {
            flood.admit(&event(Some(&name.to_string().into()), None, at(1)), KeyName::default);
        }
        let tallies = flood.drain(at(2), &WallOffset::default());
        assert_eq!(tallies.iter().map(|tally| tally.count).sum::<u64>(), 2 * MAX_SLOTS as u64);
        assert!(tallies.len() <= MAX_SLOTS + 1);
        assert!(tallies.iter().any(|tally| tally.limit.as_deref() == Some(OTHER_LIMITS) && tally.count > 1));
    }

    #[test]
    fn no_count_is_lost_between_threads_and_a_drain() {
        let flood = flood(1_000, 0);
        let limit: Arc<str> = "l".into();
        let (mut records, mut drained) = (0, 0);
        thread::scope(|scope| {
            let workers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        (0..20_000)
                            .filter(|_| {
                                flood.admit(&event(Some(&limit), None, at(5)), KeyName::default) == FloodVerdict::Record
                            })
                            .count()
                    })
                })
                .collect();
            while workers.iter().any(|worker| !worker.is_finished()) {
                drained += flood.drain(at(5), &WallOffset::default()).iter().map(|tally| tally.count).sum::<u64>();
            }
            records = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
        });
        drained += flood.drain(at(5), &WallOffset::default()).iter().map(|tally| tally.count).sum::<u64>();
        assert_eq!(records, 100);
        assert_eq!(drained, 4 * 20_000 - 100);
    }
}
