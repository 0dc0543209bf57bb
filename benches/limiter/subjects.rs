//! The measured limiters: limits of this crate, `governor`'s keyed limiter, and what one writes in an afternoon.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::nanos::Nanos;
use governor::state::keyed::DashMapStateStore;
use governor::{Quota, RateLimiter};
use sluicegate::limiter::{
    Algorithm, Ask, Bound, Counting, Fingerprint, Gcra, KeyHasher, Limit, LimitSpec, OnFull, Policy, Rate, Report,
    TimerWheel, TokenBucket, Verdict,
};
use sluicegate::time::{Span, Tick};

/// A limiter with keys of its own form. Time goes from [`START`].
pub trait Subject: Sync + Sized {
    type Key: Copy + Sync;

    /// One for so many keys.
    fn new(quotas: Quotas, keys: u64) -> Self;

    /// The key of this name, in the limiter's own form.
    fn key(&self, name: Name) -> Self::Key;

    /// Whether one more request of a key passes at `now`. `report` is kept from check to check, as a worker does.
    fn check(&self, key: Self::Key, now: Tick, report: &mut Report) -> bool;
}

/// How much passes per key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quotas {
    /// 100 in a second, all at once if need be.
    Hundred,
    /// One in an hour.
    One,
}

/// A key as another program has it: a short token.
pub type Name = [u8; 12];

pub const START: Tick = Tick::from_nanos(1_800_000_000_000_000_000);

/// The `index`-th name; neighbours are far apart.
pub fn name(index: u64) -> Name {
    let mut bits = index.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mut name = *b"key:00000000";
    name[4..].copy_from_slice(&(bits ^ (bits >> 31)).to_le_bytes());
    name
}

impl Quotas {
    fn rate(self) -> Rate {
        match self {
            Self::Hundred => "100/s".parse().expect("a rate"),
            Self::One => "1/h".parse().expect("a rate"),
        }
    }
}

/// A limit of this crate.
pub struct Ours {
    pub limit: Arc<Limit>,
    policy: Arc<Policy>,
    hasher: KeyHasher,
}

impl Ours {
    pub fn new(algorithm: Algorithm, max_keys: u64, on_full: OnFull) -> Self {
        let limit = Limit::new(LimitSpec { max_keys, on_full, ..LimitSpec::new("bench", algorithm) });
        let policy = Policy::new(vec![Arc::clone(&limit)]).expect("a policy");
        Self { limit, policy, hasher: KeyHasher::fixed() }
    }

    pub fn fingerprint(&self, name: Name) -> Fingerprint {
        let mut key = self.hasher.start();
        key.part(0, &name);
        key.finish()
    }

    #[inline]
    pub fn ask(&self, key: Fingerprint, now: Tick, report: &mut Report) -> bool {
        let ask = [Ask { key: Some(key), cost: 1, counting: Counting::AtOnce, ..Ask::default() }];
        matches!(self.policy.check(&ask, Span::MAX, now, report), Verdict::Admitted(_))
    }
}

/// A limit of this crate, asked by fingerprints that were made before.
macro_rules! ours {
    ($name:ident, $quotas:ident, $keys:ident => $algorithm:expr) => {
        pub struct $name(pub Ours);

        impl Subject for $name {
            type Key = Fingerprint;

            fn new($quotas: Quotas, $keys: u64) -> Self {
                Self(Ours::new($algorithm, ($keys * 2).max(1_000_000), OnFull::EvictOldest))
            }

            fn key(&self, name: Name) -> Fingerprint {
                self.0.fingerprint(name)
            }

            #[inline]
            fn check(&self, key: Fingerprint, now: Tick, report: &mut Report) -> bool {
                self.0.ask(key, now, report)
            }
        }
    };
}

ours!(Wheel, quotas, keys => {
    Algorithm::TimerWheel(TimerWheel::new(&[quotas.rate()], Some(10), Bound::Sliding).expect("a wheel"))
});
ours!(Cells, quotas, keys => Algorithm::Gcra(Gcra::new(&[quotas.rate()], Some(quotas.rate().limit())).expect("a rate")));
ours!(Tokens, quotas, keys => {
    Algorithm::TokenBucket(TokenBucket::new(&[quotas.rate()], None, sluicegate::limiter::Refill::Greedy).expect("a rate"))
});

/// [`Cells`], asked by names: their hash is counted too, as it is for the limiters that are not ours.
pub struct HashedCells(Cells);

impl Subject for HashedCells {
    type Key = Name;

    fn new(quotas: Quotas, keys: u64) -> Self {
        Self(Cells::new(quotas, keys))
    }

    fn key(&self, name: Name) -> Name {
        name
    }

    #[inline]
    fn check(&self, key: Name, now: Tick, report: &mut Report) -> bool {
        self.0.check(self.0.key(key), now, report)
    }
}

/// A clock that costs next to nothing to set and to read, so that none is measured.
#[derive(Clone, Default)]
pub struct Hands(Arc<AtomicU64>);

impl Clock for Hands {
    type Instant = Nanos;

    #[inline]
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }
}

/// `governor`, keyed, over its sharded map.
pub struct Governor {
    limiter: RateLimiter<Name, DashMapStateStore<Name>, Hands, NoOpMiddleware<Nanos>>,
    hands: Hands,
}

impl Subject for Governor {
    type Key = Name;

    fn new(quotas: Quotas, _: u64) -> Self {
        let quota = match quotas {
            Quotas::Hundred => Quota::per_second(NonZeroU32::new(100).expect("not 0")),
            Quotas::One => Quota::per_hour(NonZeroU32::MIN),
        };
        let hands = Hands::default();
        Self { limiter: RateLimiter::new(quota, DashMapStateStore::default(), hands.clone()), hands }
    }

    fn key(&self, name: Name) -> Name {
        name
    }

    #[inline]
    fn check(&self, key: Name, now: Tick, _: &mut Report) -> bool {
        self.hands.0.store(now.since(START).as_nanos(), Ordering::Relaxed);
        self.limiter.check_key(&key).is_ok()
    }
}

/// One lock around one map, a fixed window per key.
pub struct Naive {
    map: Mutex<HashMap<Name, (Tick, u64)>>,
    rate: Rate,
}

impl Subject for Naive {
    type Key = Name;

    fn new(quotas: Quotas, _: u64) -> Self {
        Self { map: Mutex::default(), rate: quotas.rate() }
    }

    fn key(&self, name: Name) -> Name {
        name
    }

    #[inline]
    fn check(&self, key: Name, now: Tick, _: &mut Report) -> bool {
        let mut map = self.map.lock().expect("nobody panics");
        let (began, count) = map.entry(key).or_insert((now, 0));
        if now.since(*began) >= self.rate.window() {
            (*began, *count) = (now, 0);
        }
        let admitted = *count < self.rate.limit();
        *count += u64::from(admitted);
        admitted
    }
}
