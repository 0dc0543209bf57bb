//! The keys that hold now.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::key_set::KeySet;

/// The keys that hold now, for all workers. One thread brings them.
#[derive(Debug, Default)]
pub struct KeyStore {
    keys: Mutex<Option<Arc<KeySet>>>,
    /// How often the keys became others.
    version: AtomicU64,
    is_wanted: AtomicBool,
    wish: Mutex<bool>,
    told: Condvar,
}

impl KeyStore {
    /// These keys hold from now on; whether they are others than before.
    pub fn set(&self, keys: KeySet) -> bool {
        let mut own = locked(&self.keys);
        if own.as_deref() == Some(&keys) {
            return false;
        }
        *own = Some(Arc::new(keys));
        self.version.fetch_add(1, Ordering::Release);
        true
    }

    /// The keys; `None`: there are none yet.
    pub fn keys(&self) -> Option<Arc<KeySet>> {
        locked(&self.keys).clone()
    }

    /// A number that changes with the keys.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// A token names a key that is not there: the keys may have been changed at their source.
    pub(super) fn want(&self) {
        if !self.is_wanted.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Ends a [wait](Self::wait).
    pub fn wake(&self) {
        *locked(&self.wish) = true;
        self.told.notify_all();
    }

    /// Waits until the keys are wanted, or for so long; whether they are.
    pub fn wait(&self, at_most: Duration) -> bool {
        let wish = locked(&self.wish);
        let waited = self.told.wait_timeout_while(wish, at_most, |wish| !*wish);
        let (mut wish, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *wish)
    }

    /// The wish has been answered: the next one is a new one.
    pub fn answered(&self) {
        self.is_wanted.store(false, Ordering::Release);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
