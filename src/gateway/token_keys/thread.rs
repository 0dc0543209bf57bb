//! The thread that asks for keys.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;

use super::fetch::KeyFetcher;
use super::pace::FetchPace;
use crate::config::RulesAddress;
use crate::jwt::KeyStore;
use crate::time::Clock;

/// A thread that asks for keys. Dropped, it ends when it has done what it is at.
pub(super) struct Fetching {
    store: Arc<KeyStore>,
    is_over: Arc<AtomicBool>,
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.store.wake();
    }
}

impl Fetching {
    /// Starts one; `None`: there is no thread to be had, which is in the log.
    pub(super) fn start(address: &RulesAddress, store: &Arc<KeyStore>, clock: &Clock) -> Option<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let fetcher = FetcherThread {
            address: address.clone(),
            store: Arc::clone(store),
            is_over: Arc::clone(&is_over),
            clock: clock.clone(),
            pace: FetchPace::default(),
        };
        let started = Builder::new().name("jwks".into()).spawn(move || fetcher.run());
        if let Err(error) = started {
            tracing::error!(%error, "the keys of [jwt] are not asked for: a thread cannot be started");
            return None;
        }
        Some(Self { store: Arc::clone(store), is_over })
    }
}

struct FetcherThread {
    address: RulesAddress,
    store: Arc<KeyStore>,
    is_over: Arc<AtomicBool>,
    clock: Clock,
    pace: FetchPace,
}

impl FetcherThread {
    fn run(mut self) {
        let fetcher = match KeyFetcher::new(self.address.uri()) {
            Ok(fetcher) => fetcher,
            Err(cause) => {
                tracing::error!(cause, "the keys of [jwt] are not asked for");
                return;
            }
        };
        while !self.is_over.load(Ordering::Acquire) {
            let wait = self.pace.wait(self.clock.now());
            if !wait.is_zero() {
                if self.store.wait(wait.into()) {
                    self.pace.want();
                }
                continue;
            }
            self.ask(&fetcher);
            self.store.answered();
        }
    }

    fn ask(&mut self, fetcher: &KeyFetcher) {
        let fetched = fetcher.fetch();
        let (url, now) = (self.address.to_string(), self.clock.now());
        match fetched {
            Ok((keys, fresh)) => {
                if self.pace.answered(now, fresh) {
                    tracing::info!(url, "the keys of [jwt] can be had again");
                }
                let (used, unused) = (keys.len(), keys.unused());
                if self.store.set(keys) {
                    tracing::info!(url, used, unused, "the keys of [jwt] are others");
                }
            }
            Err(cause) if self.pace.away(now) => {
                let kept = self.store.keys().map_or(0, |keys| keys.len());
                tracing::warn!(url, cause, kept, "the keys of [jwt] cannot be had; those that are kept go on");
            }
            Err(_) => {}
        }
    }
}
