//! The keys that a limit admits and refuses most often, in bounded memory.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use sluicegate_dead_letter::KeyName;
use sluicegate_limiter::Fingerprint;
use sluicegate_telemetry::TopKeys;
use sluicegate_time::{Span, Tick};

/// How long a window is. Two are kept: the one that goes on, and the one before.
const WINDOW: Span = Span::from_secs(300);
/// Sets of eight keys that a worker counts, of those that are admitted and of those that are refused. They are made when there
/// is something to count: there may be ten thousand limits.
const SETS: usize = 8;
/// Keys that are told.
const TOLD: usize = 20;

/// Counts of one limit, those of each worker for itself: its lock is held by that worker, and by a thread that reads.
#[derive(Debug)]
pub struct KeyTally {
    workers: Box<[Mutex<Slot>]>,
}

#[derive(Debug, Default)]
struct Slot {
    admitted: Windows,
    refused: Windows,
}

#[derive(Debug, Default)]
struct Windows {
    /// The number of the one that goes on, counted from tick 0.
    number: u64,
    now: Option<TopKeys<Box<KeyName>>>,
    before: Option<TopKeys<Box<KeyName>>>,
}

/// The first keys.
#[derive(Clone, Debug)]
pub struct KeyTop {
    /// Since when they are counted.
    pub since: Tick,
    /// Those that were admitted most often, the first one first.
    pub admitted: Vec<CountedKey>,
    /// Those that were refused most often; of a limit in shadow mode, that it would have refused.
    pub refused: Vec<CountedKey>,
}

/// How often a key came.
#[derive(Clone, Debug)]
pub struct CountedKey {
    /// As its limit counts it.
    pub print: Fingerprint,
    /// In words, nothing redacted.
    pub name: KeyName,
    /// How often, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub excess: u64,
}

impl KeyTally {
    /// For so many workers.
    pub fn new(workers: usize) -> Self {
        Self { workers: (0..workers).map(|_| Mutex::default()).collect() }
    }

    /// Counts a request of a key that was admitted or refused. `name` is asked where the key may be one of the first.
    #[inline]
    pub fn count(
        &self,
        worker: usize,
        (key, is_admitted): (Fingerprint, bool),
        now: Tick,
        name: impl FnOnce() -> KeyName,
    ) {
        let Some(slot) = self.workers.get(worker) else { return };
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        let windows = if is_admitted { &mut slot.admitted } else { &mut slot.refused };
        // A request that has waited may be of a window that is over.
        let number = number_at(now).max(windows.number);
        if windows.number != number || windows.now.is_none() {
            windows.turn(number);
        }
        if let Some(keys) = &mut windows.now {
            keys.add(key.bits(), || Box::new(name()));
        }
    }

    /// The first keys in the window that goes on and the one before, of all workers.
    pub fn top(&self, now: Tick) -> KeyTop {
        let number = number_at(now);
        let since = Tick::from_nanos(number.saturating_sub(1).saturating_mul(WINDOW.as_nanos()));
        KeyTop {
            since,
            admitted: self.first(number, TOLD, |slot| &slot.admitted),
            refused: self.first(number, TOLD, |slot| &slot.refused),
        }
    }

    /// All keys of both windows that have a name. A key that was admitted and refused is there twice.
    pub fn known(&self, now: Tick) -> impl Iterator<Item = CountedKey> {
        let known = |of: fn(&Slot) -> &Windows| self.first(number_at(now), usize::MAX, of);
        known(|slot| &slot.refused).into_iter().chain(known(|slot| &slot.admitted))
    }

    fn first(&self, number: u64, most: usize, of: impl Fn(&Slot) -> &Windows) -> Vec<CountedKey> {
        let mut sums: HashMap<u64, CountedKey> = HashMap::new();
        for slot in &self.workers {
            let slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            for keys in of(&slot).at(number) {
                for top in keys.top(usize::MAX) {
                    let Some(print) = Fingerprint::known(top.key) else { continue };
                    let sum = sums.entry(top.key).or_insert_with(|| CountedKey {
                        print,
                        name: (**top.name).clone(),
                        count: 0,
                        excess: 0,
                    });
                    sum.count += top.count;
                    sum.excess += top.excess;
                }
            }
        }
        let mut first: Vec<_> = sums.into_iter().collect();
        first.sort_by_key(|(key, own)| (std::cmp::Reverse(own.count - own.excess), *key));
        first.into_iter().map(|(_, own)| own).take(most).collect()
    }
}

fn number_at(now: Tick) -> u64 {
    now.as_nanos() / WINDOW.as_nanos()
}

impl Windows {
    /// Begins the window of this number.
    #[cold]
    fn turn(&mut self, number: u64) {
        if self.number != number {
            let last = self.now.take();
            self.before = last.filter(|_| self.number + 1 == number);
            self.number = number;
        }
        self.now.get_or_insert_with(|| TopKeys::new(SETS));
    }

    /// The counts that are of the window of this number, and of the one before.
    fn at(&self, number: u64) -> impl Iterator<Item = &TopKeys<Box<KeyName>>> {
        let (now, before) = match number.checked_sub(self.number) {
            Some(0) => (self.now.as_ref(), self.before.as_ref()),
            Some(1) => (self.now.as_ref(), None),
            _ => (None, None),
        };
        now.into_iter().chain(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bits: u64) -> Fingerprint {
        Fingerprint::known(bits.wrapping_mul(0x9e37_79b9_7f4a_7c15)).unwrap()
    }

    fn name(text: &str) -> KeyName {
        KeyName { parts: vec![("client-ip".to_owned(), text.into())], is_secret: None }
    }

    fn counts(keys: &[CountedKey]) -> Vec<(String, u64)> {
        keys.iter().map(|own| (own.name.parts[0].1.text.clone(), own.count)).collect()
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO + Span::from_secs(seconds)
    }

    #[test]
    fn workers_are_summed_and_the_last_two_windows_count() {
        let tally = KeyTally::new(2);
        let count = |worker, bits: u64, seconds| {
            tally.count(worker, (key(bits), true), at(seconds), || name(&bits.to_string()));
        };
        for (worker, bits, times, seconds) in [(0, 1, 5, 10), (1, 1, 4, 20), (0, 2, 7, 20), (1, 2, 3, 310)] {
            (0..times).for_each(|_| count(worker, bits, seconds));
        }
        tally.count(0, (key(9), false), at(20), || name("9"));
        let top = tally.top(at(320));
        assert_eq!(counts(&top.admitted), [("2".to_owned(), 10), ("1".to_owned(), 9)]);
        assert_eq!((counts(&top.refused), top.since), (vec![("9".to_owned(), 1)], at(0)));
        // A worker that has met nobody since has still the window before.
        assert_eq!(counts(&tally.top(at(600)).admitted), [("2".to_owned(), 3)]);
        assert!(tally.top(at(900)).admitted.is_empty());
        // Nothing of long ago comes back with a new window.
        count(0, 3, 900);
        assert_eq!(counts(&tally.top(at(900)).admitted), [("3".to_owned(), 1)]);
        assert_eq!(tally.top(at(900)).since, at(600));
    }

    #[test]
    fn one_that_came_in_the_window_before_and_was_let_in_now_takes_nothing_away() {
        let tally = KeyTally::new(1);
        for seconds in [10, 310, 290, 311] {
            tally.count(0, (key(1), true), at(seconds), || name("1"));
        }
        assert_eq!(counts(&tally.top(at(311)).admitted), [("1".to_owned(), 4)]);
    }

    #[test]
    fn a_flood_of_keys_holds_no_more_than_the_sets() {
        let tally = KeyTally::new(1);
        for bits in 1..100_000 {
            tally.count(0, (key(bits), false), at(1), || name("x"));
            if bits % 10 == 0 {
                tally.count(0, (key(u64::MAX), false), at(1), || name("noisy"));
            }
        }
        let top = tally.top(at(1)).refused;
        assert_eq!(counts(&top)[0].0, "noisy");
        assert!(top.len() <= TOLD && top[0].count - top[0].excess <= 9_999, "{:?}", top[0]);
        // A worker that there is not.
        tally.count(1, (key(1), true), at(1), || name("x"));
    }
}
