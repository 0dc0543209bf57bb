//! The parts that tests of several files begin with.

use std::sync::Arc;

use super::client::{AddressHeader, ClientRules};
use super::cost::Cost;
use super::key::{KeyExpr, OnMissingKey};
use super::pattern::{PathPattern, RoutePattern};
use super::route::{LimitUse, RouteRules};
use sluicegate_limiter::{Counting, KeyHasher, Limit, Policy};

/// A limit that counts each request of such a key as 1, and refuses who lacks it.
pub fn usage(key: &[&str]) -> LimitUse {
    LimitUse {
        key: KeyExpr::parse(key).unwrap(),
        hasher: KeyHasher::fixed(),
        on_missing: OnMissingKey::Refuse,
        cost: Cost::ONE,
        rate_from: None,
        renewal: None,
        counting: Counting::AtOnce,
        shared: false,
        exempt: None,
        exceptions: Arc::default(),
        enforced: true,
        active: None,
        timeout_while_active: None,
    }
}

/// This path alone says what matches.
pub fn pattern(path: PathPattern) -> RoutePattern {
    RoutePattern {
        hosts: Vec::new(),
        path,
        methods: Vec::new(),
        headers: Vec::new(),
        allow_encoded_slash: false,
        path_as_received: false,
    }
}

/// A route with these limits.
pub fn route(name: &str, pattern: RoutePattern, limits: Vec<(Arc<Limit>, LimitUse)>) -> RouteRules {
    let (limits, uses) = limits.into_iter().unzip();
    RouteRules {
        name: name.into(),
        pattern,
        active: None,
        policy: Policy::new(limits).unwrap(),
        limits: uses,
        hash_key: None,
        body: None,
        timeout: None,
        response_timeout: None,
        count_preflight: true,
        takes_preflights: false,
        plans: None,
    }
}

/// Nobody is trusted.
pub fn clients() -> ClientRules {
    ClientRules { trusted_proxies: Vec::new(), address_header: AddressHeader::XForwardedFor, ipv6_prefix: 64 }
}
