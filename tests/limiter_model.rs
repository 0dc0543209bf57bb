//! The limiter against naive models: a log of every admission, searched from end to end.
//!
//! `PROPTEST_CASES` raises how many cases each property runs.

#[path = "limiter_model/algorithms.rs"]
mod algorithms;
#[path = "limiter_model/balances.rs"]
mod balances;
#[path = "limiter_model/changes.rs"]
mod changes;
#[path = "limiter_model/decisions.rs"]
mod decisions;
#[path = "limiter_model/differential.rs"]
mod differential;
#[path = "limiter_model/full_tables.rs"]
mod full_tables;
#[path = "limiter_model/mixes.rs"]
mod mixes;
#[path = "limiter_model/naive.rs"]
mod naive;
#[path = "limiter_model/oracle.rs"]
mod oracle;
#[path = "limiter_model/promises.rs"]
mod promises;
#[path = "limiter_model/reload.rs"]
mod reload;
#[path = "limiter_model/remaining.rs"]
mod remaining;
#[path = "limiter_model/several.rs"]
mod several;
#[path = "limiter_model/workers.rs"]
mod workers;

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate::limiter::{
    Algorithm, Ask, Bound, Counting, Fingerprint, KeyHasher, Limit, LimitSpec, MAX_LIMITS, Mode, OnFull, Policy, Rate,
    TimerWheel,
};
use sluicegate::time::Span;

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// So many cases, or more if the environment says so.
fn runs(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let asked = std::env::var("PROPTEST_CASES").map_or(0, |_| config.cases);
    ProptestConfig { cases: cases.max(asked), ..config }
}

fn key(name: u64) -> Fingerprint {
    let mut key = KeyHasher::fixed().start();
    key.part(0, &name.to_le_bytes());
    key.finish()
}

fn asks(name: u64, cost: u64) -> [Ask; MAX_LIMITS] {
    [Ask { key: Some(key(name)), cost, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS]
}

fn wheel(rates: &[&str], slots: Option<u32>, bound: Bound) -> Algorithm {
    let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().expect("a rate")).collect();
    Algorithm::TimerWheel(TimerWheel::new(&rates, slots, bound).expect("a wheel"))
}

fn spec(rate: &str) -> LimitSpec {
    LimitSpec {
        name: rate.into(),
        algorithm: wheel(&[rate], None, Bound::Sliding),
        mode: Mode::Enforce,
        max_wait: Span::ZERO,
        max_queue: None,
        max_keys: 1_000,
        on_full: OnFull::EvictOldest,
        penalty: None,
        sharing: None,
    }
}

fn policy(limits: &[&Arc<Limit>]) -> Arc<Policy> {
    Policy::new(limits.iter().map(|limit| Arc::clone(limit)).collect()).expect("a policy")
}

fn one(spec: LimitSpec) -> (Arc<Limit>, Arc<Policy>) {
    let limit = Limit::new(spec);
    let policy = policy(&[&limit]);
    (limit, policy)
}

fn bounds() -> impl Strategy<Value = Bound> {
    prop_oneof![Just(Bound::Slot), Just(Bound::Sliding), Just(Bound::Strict)]
}
