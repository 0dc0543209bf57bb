//! Reservations: requests are counted by their estimated cost until their real one is known.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use super::Shard;
use crate::MAX_RATES;
use crate::algorithm::CommitFacts;
use crate::key::Fingerprint;
use crate::lease::BudgetSource;
use crate::queue::{FingerprintHasher, Wakers};
use crate::sync::AtomicU64;
use sluicegate_time::Tick;

/// The reservation of one request; its permit holds it. It is to be handed in once: to [`Shard::correct`], or to
/// [`Shard::let_stand`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// When it was counted.
    at: Tick,
    /// The first words of each rate just after.
    words: [[u64; 2]; MAX_RATES],
    account: u64,
    /// The sum that the account had been given back by then.
    given: u128,
    /// It was taken while the store of a shared limit was away, and of such cost the store may never have been told: nothing
    /// of it is given back, or what others have spent would be.
    stays: bool,
    /// The client of a request of a shared limit.
    client: u32,
}

/// An account for each key of a shard of which somebody has reserved something: as many as there are requests in flight
/// at most. It goes when the last of them is settled, or when the key's counts are forgotten or rebuilt: then nothing is
/// given back, because nobody knows what of it is still there.
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger {
    accounts: HashMap<Fingerprint, Account, BuildHasherDefault<FingerprintHasher>>,
    opened: u64,
}

#[derive(Clone, Debug)]
struct Account {
    /// Tells it from those that the key had before.
    number: u64,
    /// Reservations that are not settled.
    open: u64,
    /// The sum that was given back to the key since it was opened, in cost.
    given: u128,
}

/// Room for so many accounts is kept when there are none.
const KEPT: usize = 64;

impl Shard {
    /// Remembers what was just committed to the record `at`.
    pub(crate) fn reserve(&mut self, key: Fingerprint, at: usize) -> Reserved {
        let (account, given) = self.ledger.open(key);
        let words = self.params.rule.first_words(self.table.state(at));
        Reserved { at: self.latest, words, account, given, stays: false, client: 0 }
    }

    /// The same of a shared limit: the excess goes back to the store, which knows when it was charged.
    pub(crate) fn reserve_leased(&self, source: BudgetSource, client: u32) -> Reserved {
        let stays = matches!(source, BudgetSource::Local { .. } | BudgetSource::Alone { .. } | BudgetSource::Unbounded);
        Reserved { at: self.latest, words: [[0; 2]; MAX_RATES], account: 0, given: 0, stays, client }
    }

    /// A request that was counted as `estimate` has cost `real`. A shortfall is [counted](Self::count), whether there
    /// is room or not; an excess is given back, as far as it is still held against the key.
    pub(crate) fn correct(
        &mut self,
        key: Fingerprint,
        reserved: &Reserved,
        (estimate, real): (u64, u64),
        now: Tick,
        keys: &AtomicU64,
    ) -> Wakers {
        let back = estimate.saturating_sub(real);
        if self.is_shared() {
            self.latest = self.latest.max(now);
            if real > estimate {
                return self.count((key, reserved.client), real - estimate, now, keys);
            }
            if back > 0 && !reserved.stays {
                self.give_back_shared(key, back, reserved.at);
            }
            return Wakers::default();
        }
        let given = self.ledger.settle(key, reserved, back);
        if real > estimate {
            return self.count((key, 0), real - estimate, now, keys);
        }
        let (Some(given), Some(at), 1..) = (given, self.table.find(key), back) else { return Wakers::default() };
        self.latest = self.latest.max(now);
        let (rule, state) = (&self.params.rule, self.table.state_mut(at));
        rule.advance(state, self.latest);
        let taken =
            reserved.words.iter().map(|words| CommitFacts { at: reserved.at, words: *words, given, is_about: false });
        rule.give_back(state, back, taken, self.latest);
        self.queues.wake_head(key)
    }

    /// Leaves the reservation of a request counted.
    pub(crate) fn let_stand(&mut self, key: Fingerprint, reserved: &Reserved) {
        let _ = self.ledger.settle(key, reserved, 0);
    }
}

impl Ledger {
    /// The number of the key's account, with one more reservation in it, and what it has been given back.
    fn open(&mut self, key: Fingerprint) -> (u64, u128) {
        let Self { accounts, opened } = self;
        let account = accounts.entry(key).or_insert_with(|| {
            *opened = opened.wrapping_add(1);
            Account { number: *opened, open: 0, given: 0 }
        });
        account.open += 1;
        (account.number, account.given)
    }

    /// Ends a reservation, of which `back` is given back; answers what others of the key have been given back since it was
    /// made. `None` if its account is gone.
    fn settle(&mut self, key: Fingerprint, reserved: &Reserved, back: u64) -> Option<u64> {
        let account = self.accounts.get_mut(&key).filter(|account| account.number == reserved.account)?;
        let given = account.given.saturating_sub(reserved.given);
        account.given = account.given.saturating_add(u128::from(back));
        account.open = account.open.saturating_sub(1);
        if account.open == 0 {
            self.accounts.remove(&key);
            self.shrink();
        }
        Some(u64::try_from(given).unwrap_or(u64::MAX))
    }

    /// The key's counts are forgotten.
    pub(super) fn forget(&mut self, key: Option<Fingerprint>) {
        if let (false, Some(key)) = (self.accounts.is_empty(), key) {
            self.accounts.remove(&key);
        }
    }

    /// The counts of all keys are forgotten or rebuilt.
    pub(super) fn clear(&mut self) {
        self.accounts.clear();
        self.shrink();
    }

    fn shrink(&mut self) {
        if self.accounts.is_empty() && self.accounts.capacity() > KEPT {
            self.accounts = HashMap::default();
        }
    }
}

#[cfg(test)]
impl Shard {
    pub(crate) fn holds_no_accounts(&self) -> bool {
        self.ledger.accounts.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_accounts_leave_their_room_for_the_next_and_many_give_it_back() {
        for (keys, kept) in [(KEPT as u64 / 2, true), (KEPT as u64 * 4, false)] {
            let mut ledger = Ledger::default();
            let open = |ledger: &mut Ledger, bits| {
                let (account, given) = ledger.open(Fingerprint::from_bits(bits));
                Reserved { at: Tick::ZERO, words: [[0; 2]; MAX_RATES], account, given, stays: false, client: 0 }
            };
            let reserved: Vec<_> = (1..=keys).map(|bits| (bits, open(&mut ledger, bits))).collect();
            for (bits, reserved) in &reserved {
                assert_eq!(ledger.settle(Fingerprint::from_bits(*bits), reserved, 1), Some(0));
            }
            assert!(ledger.accounts.is_empty());
            assert_eq!(ledger.accounts.capacity() > 0, kept, "{keys}");
        }
    }

    #[test]
    fn is_told_what_others_had_back_since_it_was_made() {
        let (mut ledger, key) = (Ledger::default(), Fingerprint::from_bits(1));
        let open = |ledger: &mut Ledger| {
            let (account, given) = ledger.open(key);
            Reserved { at: Tick::ZERO, words: [[0; 2]; MAX_RATES], account, given, stays: false, client: 0 }
        };
        let (first, second) = (open(&mut ledger), open(&mut ledger));
        assert_eq!(ledger.settle(key, &first, 5), Some(0));
        let third = open(&mut ledger);
        assert_eq!(ledger.settle(key, &second, 2), Some(5));
        assert_eq!(ledger.settle(key, &third, 0), Some(2));
        assert!(ledger.accounts.is_empty());
        assert_eq!(ledger.settle(key, &third, 0), None);
    }
}
