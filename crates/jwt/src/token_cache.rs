//! The results of one worker: a token that comes again costs a hash of its bytes.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use sluicegate_json::JsonPointer;
use sluicegate_time::{Span, Wall};

use super::key_set::KeySet;
use super::token::ClaimValue;
use super::token_rules::{TokenResult, TokenRules, VerifiedToken};

/// Verified tokens that are kept; the oldest goes.
const MAX_VERIFIED: usize = 4_096;
/// Refused tokens that are kept; the oldest goes. They push no verified one out.
const MAX_REFUSED: usize = 4_096;
/// How long a refusal is kept.
const REFUSED_FOR: Span = Span::from_secs(10);
/// Signatures of a client that may turn out wrong within a second.
const MAX_FAILED: u8 = 20;
/// Counters of those; clients share them by chance.
const COUNTERS: usize = 2_048;

/// SHA-256 of a token.
type TokenDigest = [u8; 32];

/// The results of one worker.
pub struct TokenCache {
    rules: Arc<TokenRules>,
    keys: Option<Arc<KeySet>>,
    version: u64,
    verified: DigestRing<VerifiedToken>,
    /// Until when.
    refused: DigestRing<Wall>,
    failed: FailedChecks,
}

impl TokenCache {
    /// An empty one.
    pub fn new(rules: &Arc<TokenRules>) -> Self {
        Self {
            rules: Arc::clone(rules),
            // Before the keys: newer keys under an older number are read again.
            version: rules.keys.version(),
            keys: rules.keys.keys(),
            verified: DigestRing::new(MAX_VERIFIED),
            refused: DigestRing::new(MAX_REFUSED),
            failed: FailedChecks::default(),
        }
    }

    /// The claim of a token that a client, which this number tells from others, has sent now; `None`: the token is refused, or
    /// the rules know no such claim. The result of a token that was not known is told.
    pub fn claim(
        &mut self,
        rules: &Arc<TokenRules>,
        (token, client): (&[u8], u64),
        claim: &JsonPointer,
        now: Wall,
        told: impl FnOnce(TokenResult),
    ) -> Option<&ClaimValue> {
        self.follow(rules);
        let place = self.rules.claims.iter().position(|own| own == claim)?;
        let hash = digest(&SHA256, token);
        let hash: TokenDigest = hash.as_ref().try_into().ok()?;
        if self.verified.get(&hash).is_none_or(|verified| now >= verified.until) {
            if self.refused.get(&hash).is_some_and(|until| now < *until) {
                return None;
            }
            let result = self.judge(&hash, (token, client), now);
            told(result);
            if result != TokenResult::Valid {
                return None;
            }
        }
        self.verified.get(&hash).and_then(|verified| verified.values.get(place))
    }

    /// How many verified and refused tokens it keeps.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.verified.values.len(), self.refused.values.len())
    }

    /// Goes by these rules, and by the keys that hold now: what came of tokens by others is forgotten.
    fn follow(&mut self, rules: &Arc<TokenRules>) {
        if !Arc::ptr_eq(&self.rules, rules) {
            let is_same = *self.rules == **rules;
            self.rules = Arc::clone(rules);
            if !is_same {
                self.renew();
            }
        }
        if self.rules.keys.version() != self.version {
            self.renew();
        }
    }

    fn renew(&mut self) {
        self.version = self.rules.keys.version();
        self.keys = self.rules.keys.keys();
        self.verified.clear();
        self.refused.clear();
    }

    fn judge(&mut self, hash: &TokenDigest, (token, client): (&[u8], u64), now: Wall) -> TokenResult {
        let Some(keys) = &self.keys else {
            self.rules.keys.want();
            return TokenResult::NoKeys;
        };
        let failed = &mut self.failed;
        let judged = self.rules.judge((token, keys), now, || !failed.are_too_many(client, now));
        let refusal = match judged {
            Ok(verified) => {
                self.verified.put(*hash, verified);
                return TokenResult::Valid;
            }
            Err(refusal) => refusal,
        };
        match refusal {
            TokenResult::Signature => self.failed.add(client),
            TokenResult::UnknownKey => self.rules.keys.want(),
            _ => {}
        }
        // A token that is not valid yet may be in a moment; one that was not looked at may be valid.
        if !matches!(refusal, TokenResult::NotYet | TokenResult::Flooded) {
            self.refused.put(*hash, now + REFUSED_FOR);
        }
        refusal
    }
}

/// Values by the digests of tokens; where it is full the oldest goes.
struct DigestRing<T> {
    places: HashMap<TokenDigest, usize>,
    values: Vec<(TokenDigest, T)>,
    next: usize,
    most: usize,
}

impl<T> DigestRing<T> {
    fn new(most: usize) -> Self {
        Self { places: HashMap::new(), values: Vec::new(), next: 0, most }
    }

    fn get(&self, hash: &TokenDigest) -> Option<&T> {
        self.values.get(*self.places.get(hash)?).map(|(_, value)| value)
    }

    fn put(&mut self, hash: TokenDigest, value: T) {
        if let Some((_, old)) = self.places.get(&hash).and_then(|place| self.values.get_mut(*place)) {
            *old = value;
        } else if self.values.len() < self.most {
            self.places.insert(hash, self.values.len());
            self.values.push((hash, value));
        } else if let Some(oldest) = self.values.get_mut(self.next) {
            self.places.remove(&oldest.0);
            self.places.insert(hash, self.next);
            *oldest = (hash, value);
            self.next = (self.next + 1) % self.most;
        }
    }

    fn clear(&mut self) {
        self.places.clear();
        self.values.clear();
        self.next = 0;
    }
}

/// The wrong signatures of clients within a second. A client has a counter in each of two rows: one that shares a counter with
/// a client that sends wrong ones mostly has another of its own.
struct FailedChecks {
    second: u64,
    rows: [Box<[u8]>; 2],
    hasher: RandomState,
}

impl Default for FailedChecks {
    fn default() -> Self {
        let row = || vec![0; COUNTERS].into();
        Self { second: 0, rows: [row(), row()], hasher: RandomState::new() }
    }
}

impl FailedChecks {
    fn are_too_many(&mut self, client: u64, now: Wall) -> bool {
        if self.second != now.as_secs() {
            self.second = now.as_secs();
            self.rows.iter_mut().for_each(|row| row.fill(0));
        }
        self.counters(client).all(|counter| *counter >= MAX_FAILED)
    }

    fn add(&mut self, client: u64) {
        self.counters(client).for_each(|counter| *counter = counter.saturating_add(1));
    }

    fn counters(&mut self, client: u64) -> impl Iterator<Item = &mut u8> {
        let hash = self.hasher.hash_one(client);
        let places = [hash as u32, (hash >> 32) as u32].map(|half| half as usize % COUNTERS);
        self.rows.iter_mut().zip(places).filter_map(|(row, place)| row.get_mut(place))
    }
}
