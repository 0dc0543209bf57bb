//! The keys that penalties block, by name: the limiter knows fingerprints alone.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use sluicegate_dead_letter::KeyName;
use sluicegate_limiter::Fingerprint;
use sluicegate_redact::Clip;
use sluicegate_time::Tick;

/// Blocks that are listed. Where there are more, the one that ends first is left out.
const MAX_BLOCKS: usize = 65_536;
/// Bytes of each part of a key that are kept of it. Its print tells it from others.
const MAX_VALUE: usize = 128;
/// Blocks that are known without a lock: a power of two.
const MARKS: usize = 4_096;

/// The blocks that penalties have begun, shared by all workers. A refusal enters a block that is not listed, so a block that a
/// restart or another process has left is listed at the next request of its key.
///
/// It is no judge: whether a block still holds, and until when, the limit itself says. Nothing is allocated before the first block.
#[derive(Debug, Default)]
pub struct BlockList {
    /// Of blocks that were entered lately, so that a flood of refused requests does not meet at the lock.
    marks: OnceLock<Box<[AtomicU64]>>,
    listed: Mutex<ListedBlocks>,
}

/// A key that is blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedKey {
    /// The limit.
    pub limit: Arc<str>,
    /// As the limit counts it.
    pub print: Fingerprint,
    /// In words, nothing redacted.
    pub name: KeyName,
    /// A connection from the client itself was refused: the kernel sees its address, and not that of a proxy.
    pub is_direct: bool,
}

#[derive(Debug, Default)]
struct ListedBlocks {
    /// The number of the next one.
    next: u64,
    numbers: HashMap<(Arc<str>, Fingerprint), (u64, Tick)>,
    keys: BTreeMap<u64, Arc<BlockedKey>>,
    ends: BTreeSet<(Tick, u64)>,
}

/// A block, as a refused request meets it.
#[derive(Clone, Copy, Debug)]
pub struct MetBlock<'l> {
    /// The limit.
    pub limit: &'l Arc<str>,
    /// The key.
    pub print: Fingerprint,
    /// Its end.
    pub until: Tick,
    /// See [`BlockedKey::is_direct`].
    pub is_direct: bool,
}

impl BlockList {
    /// Enters a block, unless it is listed. `name` is asked where it is not.
    pub fn enter(&self, met: MetBlock<'_>, now: Tick, name: impl FnOnce() -> KeyName) {
        let mark = met.mark();
        let marks = self.marks.get_or_init(|| (0..MARKS).map(|_| AtomicU64::new(0)).collect());
        let Some(known) = marks.get(mark as usize % MARKS) else { return };
        if known.load(Ordering::Relaxed) == mark {
            return;
        }
        self.lock().enter(met, now, name);
        known.store(mark, Ordering::Relaxed);
    }

    /// The blocks from this number on, each with its own, which grows from one to the next.
    pub fn from(&self, number: u64, most: usize) -> Vec<(u64, Arc<BlockedKey>)> {
        self.lock().keys.range(number..).take(most).map(|(number, key)| (*number, Arc::clone(key))).collect()
    }

    fn lock(&self) -> MutexGuard<'_, ListedBlocks> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MetBlock<'_> {
    /// Tells it from other blocks, also of the same key.
    fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.limit, self.print.bits(), self.until.as_nanos(), self.is_direct).hash(&mut hasher);
        hasher.finish()
    }
}

impl ListedBlocks {
    fn enter(&mut self, met: MetBlock<'_>, now: Tick, name: impl FnOnce() -> KeyName) {
        let MetBlock { limit, print, until, is_direct } = met;
        while let Some((end, number)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.remove(end, number);
        }
        let id = (Arc::clone(limit), print);
        if let Some((number, end)) = self.numbers.get(&id).copied() {
            // Plans have blocks of their own: the last one counts.
            if end < until {
                self.ends.remove(&(end, number));
                self.ends.insert((until, number));
                self.numbers.insert(id, (number, until));
            }
            if let Some(key) = self.keys.get_mut(&number).filter(|key| is_direct && !key.is_direct) {
                Arc::make_mut(key).is_direct = true;
            }
            return;
        }
        if self.keys.len() >= MAX_BLOCKS
            && let Some((end, number)) = self.ends.first().copied()
        {
            // The new one, if it is that which ends first.
            if until <= end {
                return;
            }
            self.remove(end, number);
        }
        let mut name = name();
        for (_, value) in name.parts.iter_mut().filter(|(_, value)| value.text.len() > MAX_VALUE) {
            *value = Clip::of(value.text.as_bytes(), MAX_VALUE);
        }
        let number = self.next;
        self.next += 1;
        self.keys.insert(number, Arc::new(BlockedKey { limit: Arc::clone(limit), print, name, is_direct }));
        self.ends.insert((until, number));
        self.numbers.insert(id, (number, until));
    }

    fn remove(&mut self, end: Tick, number: u64) {
        self.ends.remove(&(end, number));
        if let Some(key) = self.keys.remove(&number) {
            self.numbers.remove(&(Arc::clone(&key.limit), key.print));
        }
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_time::Span;

    use super::*;

    fn at(secs: u64) -> Tick {
        Tick::ZERO + Span::from_secs(secs)
    }

    struct Case {
        list: BlockList,
        limit: Arc<str>,
    }

    impl Case {
        fn new() -> Self {
            Self { list: BlockList::default(), limit: "a".into() }
        }

        /// Whether the name was asked for.
        fn enter(&self, print: u64, until: u64, is_direct: bool, now: u64) -> bool {
            let mut asked = false;
            let print = Fingerprint::known(print).unwrap();
            let met = MetBlock { limit: &self.limit, print, until: at(until), is_direct };
            self.list.enter(met, at(now), || {
                asked = true;
                let value = Clip::of(b"192.0.2.7", 64);
                KeyName { parts: vec![("client-ip".to_owned(), value)], is_secret: None }
            });
            asked
        }

        fn listed(&self) -> Vec<(u64, u64, bool)> {
            let all = self.list.from(0, usize::MAX);
            all.iter().map(|(number, key)| (*number, key.print.bits(), key.is_direct)).collect()
        }
    }

    #[test]
    fn a_block_is_entered_once_and_again_after_its_end() {
        let case = Case::new();
        assert!(case.enter(7, 100, false, 1));
        assert!(!case.enter(7, 100, false, 2));
        assert!(case.enter(8, 50, false, 3));
        assert_eq!(case.listed(), [(0, 7, false), (1, 8, false)]);
        assert!(case.enter(9, 90, false, 50));
        assert_eq!(case.listed(), [(0, 7, false), (2, 9, false)]);
        assert!(case.enter(8, 200, false, 60));
        assert_eq!(case.listed(), [(0, 7, false), (2, 9, false), (3, 8, false)]);
        assert!(!case.enter(7, 300, false, 70), "a longer one of the same key");
        assert!(case.enter(5, 300, false, 150));
        assert_eq!(case.listed(), [(0, 7, false), (3, 8, false), (4, 5, false)]);
        assert_eq!(case.list.from(1, 1).iter().map(|(number, _)| *number).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn long_values_are_kept_by_their_beginnings() {
        let case = Case::new();
        let met =
            MetBlock { limit: &case.limit, print: Fingerprint::known(7).unwrap(), until: at(9), is_direct: false };
        let value = |length| ("header:x".to_owned(), Clip::of("x".repeat(length).as_bytes(), 512));
        case.list.enter(met, at(1), || KeyName { parts: vec![value(400), value(128)], is_secret: None });
        let listed = case.list.from(0, 1).remove(0).1;
        let lengths: Vec<_> = listed.name.parts.iter().map(|(_, value)| value.text.len()).collect();
        assert!(lengths[0] <= 140 && lengths[1] == 128, "{lengths:?}");
    }

    #[test]
    fn of_two_blocks_of_a_key_the_later_end_counts() {
        let case = Case::new();
        assert!(case.enter(7, 200, false, 1) && !case.enter(7, 100, false, 2));
        assert!(case.enter(8, 300, false, 150));
        assert_eq!(case.listed(), [(0, 7, false), (1, 8, false)]);
    }

    #[test]
    fn a_client_that_was_seen_by_itself_once_stays_so() {
        let case = Case::new();
        for is_direct in [false, true, false] {
            case.enter(7, 100, is_direct, 1);
        }
        assert_eq!(case.listed(), [(0, 7, true)]);
    }

    #[test]
    fn a_full_list_leaves_out_the_one_that_ends_first() {
        let case = Case::new();
        let most = MAX_BLOCKS as u64;
        for print in 1..=most {
            assert!(case.enter(print, 1_000 + print, false, 1));
        }
        assert!(!case.enter(most + 1, 1_001, false, 2));
        assert!(case.enter(most + 2, 1_002, false, 2));
        let listed = case.listed();
        assert_eq!((listed.len(), listed[0].1, listed[MAX_BLOCKS - 1].1), (MAX_BLOCKS, 2, most + 2));
        assert!(case.enter(1, 99_999_999, false, 99_999_998));
        assert_eq!(case.listed().len(), 1, "all others have ended");
    }
}
