//! The limiter against naive models: a log of every admission, searched from end to end.
//!
//! `PROPTEST_CASES` raises how many cases each property runs.

mod algorithms;
mod balances;
mod changes;
mod decisions;
mod full_tables;
mod mixes;
mod naive;
mod oracle;
mod promises;
mod reload;
mod remaining;
mod several;
mod workers;

use std::sync::Arc;

use proptest::prelude::*;
use sluicegate_limiter::{
    Algorithm, Ask, Bound, Counting, Fingerprint, KeyHasher, Limit, LimitSpec, MAX_LIMITS, Policy, Rate, TimerWheel,
};

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// So many cases, or more if the environment says so.
fn runs(cases: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    let asked = std::env::var("PROPTEST_CASES").map_or(0, |_| config.cases);
    ProptestConfig { cases: cases.max(asked), ..config }
}

fn key(name: u64) -> Fingerprint {
    KeyHasher::fixed().of(&name.to_le_bytes())
}

fn asks(name: u64, cost: u64) -> [Ask; MAX_LIMITS] {
    [Ask { key: Some(key(name)), cost, counting: Counting::AtOnce, ..Ask::default() }; MAX_LIMITS]
}

fn wheel(rates: &[&str], slots: Option<u32>, bound: Bound) -> Algorithm {
    let rates: Vec<Rate> = rates.iter().map(|rate| rate.parse().expect("a rate")).collect();
    Algorithm::TimerWheel(TimerWheel::new(&rates, slots, bound).expect("a wheel"))
}

fn spec(rate: &str) -> LimitSpec {
    LimitSpec { max_keys: 1_000, ..LimitSpec::new(rate, wheel(&[rate], None, Bound::Sliding)) }
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
