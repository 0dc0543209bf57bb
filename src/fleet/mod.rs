//! One limit over many gateways: how a limit's messages reach a store that exists, Redis or Valkey, and its answers come back.
//!
//! The limiter decides ([`crate::limiter::Settle`] says what it wants of the store, [`crate::limiter::Answer`] what it gets);
//! this room carries. It knows nothing of requests, and no request waits in it.
//!
//! - [`SharedLimit`]: a limit in the numbers of its script; [`fits`] says which limits cannot be shared, and what can.
//! - [`Store`]: a connection. [`Store::settle`] carries a batch in one round trip; what goes wrong is a [`StoreError`] that
//!   says how to mend it. [`Store::heartbeat`] says who else lives.
//! - [`Circuit`]: whether the store is asked at all, from what became of the last exchanges. Pure.
//! - [`Fleet`]: the thread that collects from limits, sends, and brings answers back (`runner`).
//! - `scripts`: one script a family. Each is held against [`crate::limiter::Account`] by random operations.
//!
//! Invariants: a script touches the key that it is given, and no other; each key has an expiry, at the instant at which its
//! state means nothing any more; the clock is the store's, and does not go back for a key.
//!
//! # State in the store
//!
//! A key is a hash. `at` is the instant of its last settle in microseconds since 1970. Of rate 0, 1, …:
//!
//! | family | fields |
//! |---|---|
//! | wheel | `0:SLOT` = what is counted in that slot; slot `k` begins at `k` times the length of a slot |
//! | bucket | `0:missing` = the tokens that are missing at `at`, each in as many parts as the window has microseconds |
//! | window | `0:from` = when the window began, `0:count` = what is counted in it |

mod circuit;
mod members;
mod runner;
mod scripts;
mod shared;
mod store;

use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tokio::sync::watch;

use crate::limiter::{Limit, OnFailure, Wanted};
use crate::time::{Clock, Span};
use runner::{Part, Runner};

#[cfg(test)]
mod tests;

pub use circuit::{Change, Circuit, Outcome, Pass, State};
pub use members::{HEARTBEAT, MAX_NAMES, Members, STAYS, member_name, members_key};
pub use shared::{Family, MAX_SHARED, NotShared, SharedLimit, fits};
pub use store::{Address, Endpoint, Order, Product, Server, Store, StoreError};

/// How a gateway takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the store is.
    pub endpoint: Endpoint,
    /// The beginning of every key in it.
    pub prefix: Arc<str>,
    /// The name of this gateway.
    pub node: Arc<str>,
    /// How long an answer may take.
    pub deadline: Span,
    /// The decision of limits without the store, for the log.
    pub on_failure: OnFailure,
}

/// A limit, and where its counts lie in the store.
#[derive(Debug)]
pub struct Binding {
    /// The limit.
    pub limit: Arc<Limit>,
    /// In the numbers of its script.
    pub shared: SharedLimit,
    /// Its keys in the store begin so; the fingerprint in hexadecimal follows.
    pub keys: Box<str>,
    /// How long a grant is held.
    pub hold: Span,
}

/// A gateway's part in a fleet: a thread that lives as long as this.
pub struct Fleet {
    /// `None` once it ends.
    part: Option<watch::Sender<Part>>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts the thread. A store that is away is no error: requests are decided as `on_failure` says.
    pub fn start(settings: Settings, bindings: Vec<Arc<Binding>>, clock: Clock) -> std::io::Result<Self> {
        let (part, parts) = watch::channel((settings.clone(), bindings.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || runtime.block_on(Runner::new(settings, bindings, clock).run(parts));
        let thread = Builder::new().name("fleet".into()).spawn(run)?;
        Ok(Self { part: Some(part), thread: Some(thread) })
    }

    /// From now on it takes part so. Limits that are no longer among the bindings are reported for the last time.
    pub fn configure(&self, settings: Settings, bindings: Vec<Arc<Binding>>) {
        if let Some(part) = &self.part {
            part.send_replace((settings, bindings));
        }
    }
}

impl Drop for Fleet {
    /// Reports what was spent, and says to the others that this gateway is gone. Takes half a second at most.
    fn drop(&mut self) {
        self.part = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Fleet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fleet").finish_non_exhaustive()
    }
}

impl Binding {
    fn order(&self, wanted: &Wanted) -> Order {
        Order {
            key: format!("{}{:016x}", self.keys, wanted.key.bits()),
            family: self.shared.family(),
            arguments: self.shared.arguments(&wanted.settle, self.hold),
        }
    }
}
