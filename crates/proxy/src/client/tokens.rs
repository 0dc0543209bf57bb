//! The claims of tokens, as a worker looks them up.

use std::cell::RefCell;
use std::sync::Arc;

use sluicegate_admission::{JwtClaim, Missing};
use sluicegate_jwt::{ClaimValue, TokenCache, TokenResult, TokenRules, unverified_claim};
use sluicegate_telemetry::{Counter, Family, MetricKind, Registry};
use sluicegate_time::{Tick, WallOffset};

/// A token whose result is kept is not counted again. [jwt.md](jwt.md#refused-tokens) has the results.
static VERIFICATIONS: Family = Family {
    name: "sluicegate_jwt_verifications_total",
    help: "Tokens that were judged, by the result: valid, malformed, algorithm, unknown-key, no-keys, expired, not-yet, \
           foreign (issuer or audience), signature (it is wrong), flooded (not looked at, since too many signatures of its \
           client were wrong).",
    kind: MetricKind::Counter,
    labels: &["result"],
};

/// The tokens that a worker has judged. It has memory once a key asks for a claim.
#[derive(Default)]
pub struct TokenDesk {
    cache: RefCell<Option<Box<TokenCache>>>,
    /// `None`: they are not counted.
    results: Option<[Counter; TokenResult::ALL.len()]>,
}

impl TokenDesk {
    /// That of a worker.
    pub fn new(registry: &Registry) -> Self {
        let results = TokenResult::ALL.map(|result| registry.counter(&VERIFICATIONS, &[result.word()]));
        Self { cache: RefCell::default(), results: Some(results) }
    }

    fn count(&self, result: TokenResult) {
        if let Some(results) = &self.results {
            results[result as usize].inc();
        }
    }
}

/// The means to verify tokens at a moment.
#[derive(Clone, Copy)]
pub struct TokenMeans<'a> {
    /// The results of the worker.
    pub desk: &'a TokenDesk,
    /// The rules that tokens have to keep.
    pub rules: &'a Arc<TokenRules>,
    /// The moment, and how to tell the time of day at it.
    pub now: (Tick, &'a WallOffset),
}

/// Visits a claim of a token that a client has sent. Without `means` none is verified.
pub(super) fn visit_claim(
    means: Option<TokenMeans<'_>>,
    (token, client): (&[u8], u64),
    claim: &JwtClaim,
    visit: &mut dyn FnMut(&str),
) -> Result<(), Missing> {
    let mut found = |value: &ClaimValue| match value {
        ClaimValue::Text(text) => {
            visit(text);
            Ok(())
        }
        ClaimValue::Absent => Err(Missing::Absent),
        ClaimValue::Unfit => Err(Missing::Unusable),
    };
    if !claim.is_verified() {
        return found(&unverified_claim(token, claim.pointer()));
    }
    let Some(TokenMeans { desk, rules, now: (now, offset) }) = means else { return Err(Missing::Unusable) };
    let mut cache = desk.cache.borrow_mut();
    let cache = cache.get_or_insert_with(|| Box::new(TokenCache::new(rules)));
    let asked = (token, client);
    let value = cache.claim(rules, asked, claim.pointer(), offset.wall(now), |result| desk.count(result));
    value.map_or(Err(Missing::Unusable), &mut found)
}
