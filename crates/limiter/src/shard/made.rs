//! The keys that a shard has made in the store of a fleet: as many a window as the table takes, so that made-up keys do not fill
//! the store.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;

use super::{Fingerprint, Span, Tick};
use crate::queue::FingerprintHasher;

/// The keys of this window and of the one before.
#[derive(Clone, Debug, Default)]
pub(super) struct Made {
    window: u64,
    now: KeySet,
    before: KeySet,
}

#[derive(Clone, Debug, Default)]
struct KeySet {
    all: HashSet<Fingerprint, BuildHasherDefault<FingerprintHasher>>,
    /// How many each client has made.
    by_client: HashMap<u32, u64>,
}

impl Made {
    /// Whether a key without a record may be one of the store: it was made there, or there are places, and this client has no
    /// more of them than are left.
    pub(super) fn takes(&mut self, key: Fingerprint, client: u32, most: u64, at: (Tick, Span)) -> bool {
        self.turn(at);
        let windows = [&self.now, &self.before];
        let left = most.saturating_sub(windows.iter().map(|keys| keys.all.len() as u64).sum());
        let own: u64 = windows.iter().filter_map(|keys| keys.by_client.get(&client)).sum();
        left > 0 && own <= left || windows.iter().any(|keys| keys.all.contains(&key))
    }

    /// A key is made in the store.
    pub(super) fn note(&mut self, key: Fingerprint, client: u32, at: (Tick, Span)) {
        self.turn(at);
        if !self.before.all.contains(&key) && self.now.all.insert(key) {
            *self.now.by_client.entry(client).or_default() += 1;
        }
    }

    /// Begins the window of now.
    fn turn(&mut self, (now, window): (Tick, Span)) {
        let window = now.as_nanos() / window.as_nanos().max(1);
        if window > self.window {
            let last = std::mem::take(&mut self.now);
            self.before = if window == self.window + 1 { last } else { KeySet::default() };
            self.window = window;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_leaves_as_many_places_as_it_has_and_all_have_them_anew_after_two_windows() {
        let (mut made, window) = (Made::default(), Span::from_secs(1));
        let at = |second| (Tick::ZERO + Span::from_secs(second), window);
        let mut key = 0;
        let mut make = |made: &mut Made, client, second| {
            key += 1;
            let key = Fingerprint::from_bits(key);
            let takes = made.takes(key, client, 100, at(second));
            if takes {
                made.note(key, client, at(second));
            }
            takes
        };
        assert_eq!((0..1_000).filter(|_| make(&mut made, 1, 5)).count(), 51);
        assert!(make(&mut made, 2, 5) && make(&mut made, 2, 6) && !make(&mut made, 1, 6));
        let many = (3..1_000).filter(|client| make(&mut made, *client, 6)).count();
        assert_eq!(many, 47, "100 in all");
        assert!(made.takes(Fingerprint::from_bits(1), 9, 100, at(6)), "it is there");
        assert!(!make(&mut made, 4, 6) && make(&mut made, 1, 7));
    }
}
