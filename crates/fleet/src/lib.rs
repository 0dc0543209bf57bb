//! One limit over many gateways: how a limit's messages reach a store that exists, Redis or Valkey, and its answers come back; or how
//! gateways without a store tell each other what they admit.
//!
//! The limiter decides ([`sluicegate_limiter::Settle`] says what it wants of the store, [`sluicegate_limiter::Answer`] what it gets);
//! this room carries. It knows nothing of requests, and no request waits in it.
//!
//! - [`SharedLimit`]: a limit in the numbers of its script; [`fits`] says which limits cannot be shared, and what can.
//! - [`Deployment`]: the servers that make up a store: one, the one that Sentinels name, or the masters of a cluster. Each has a
//!   connection, a circuit and a clock of its own (`runner/link`); `runner/finding` says which of them has a key (`slots`).
//! - [`Store`]: a connection. [`Store::settle`] carries a batch in one round trip; what goes wrong is a [`StoreError`] that
//!   says how to mend it. [`Store::heartbeat`] says who else lives.
//! - [`Circuit`]: whether the store is asked at all, from what became of the last exchanges. Pure.
//! - [`Bound`]: by how much all gateways together can be above a limit, and how much of it they give at least.
//! - [`Status`]: how a gateway sees its fleet, for its operator.
//! - `notices`: what gateways tell each other beside counts, such as that a key is blocked.
//! - [`PeerFleet`]: all of a fleet without a store (`peering`). The rest of this page is about one with a store.
//! - [`Fleet`]: the thread that collects from limits, sends, and brings answers back (`runner`).
//! - `scripts`: one script a family. Each is held against [`sluicegate_limiter::Account`] by random operations.
//!
//! A settle names the last instant at which it may be done, by the store's clock: one that lay in a store that had stopped is
//! not done when it goes on. It would grant what nobody takes, and charge what its gateway will report again.
//!
//! The store knows no zones. So a settle of windows of a calendar names them too: those in which its gateway thinks the store's
//! clock to be. If it is in others, nothing is done either, and the gateway asks again by the clock that the reply says.
//!
//! Invariants: a script touches the key that it is given, and no other; each key of counts has an expiry, at the instant at which its
//! state means nothing any more; the clock is the store's, and does not go back for a key.
//!
//! # State in the store
//!
//! The hash `PREFIX:exceptions` has the notices, and no expiry. All else is counts: a key is a hash, but for a log. `at` is the instant of its last settle in microseconds since 1970,
//! `out` that at which the last grant that is out has come back. Of rate 0, 1, …:
//!
//! | family | fields |
//! |---|---|
//! | wheel (timer wheels, and sliding windows, whose slots are their sub-windows) | `0:SLOT` = what is counted in that slot; slot `k` begins at `k` times the length of a slot |
//! | bucket | `0:missing` = the tokens that are missing at `at`, each in as many parts as the window has microseconds; `0:low` = the least that was missing since `0:from`, `0:before` = in the half second before that |
//! | window | `0:from` = when the window began, `0:count` = what is counted in it |
//! | calendar | `0:from` and `0:until` = when the window began and ends, `0:count` = what is counted in it |
//! | counter | `0:from` = when the window began, `0:count` = what is counted in it, `0:before` = what was in the one before |
//! | log | a sorted set: a member for each unit of cost, at the microsecond at which it was charged, for all rates; `-` is the newest for which there was no place |

#[macro_use]
extern crate sluicegate_words;

mod bound;
mod circuit;
mod members;
mod notices;
mod peering;
mod runner;
mod scripts;
mod shared;
mod slots;
mod status;
mod store;
mod store_clock;

use std::fmt;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use tokio::sync::watch;

use notices::Notices;
use runner::{Participation, Runner};
use slots::KeySlots;
use sluicegate_limiter::{Limit, OnFailure, Wanted};
use sluicegate_telemetry::Histogram;
use sluicegate_time::{Clock, Span};
use status::Board;

#[cfg(test)]
mod tests;

pub use bound::{Bound, Least, WITHOUT_PLACE, Within};
pub use circuit::{Circuit, CircuitChange, CircuitState, ExchangeOutcome, Pass};
pub use members::{HEARTBEAT, MAX_NAMES, Members, STAYS, member_name, members_key};
pub use notices::{Heard, Hears, MAX_NOTICE, MAX_NOTICES, Notice, notices_key};
pub use peering::{
    DropReason, PeerAddress, PeerBinding, PeerFleet, PeerRow, PeerSettings, PeerStatus, PeerTraffic, PeerWatch,
    USUAL_WAY, told_rates,
};
pub use shared::{Family, MAX_SHARED, NotShared, ScriptReply, SharedLimit, fits};
pub use status::{Exchanges, Latency, Mode, NodeStatus, Status};
pub use store::{Address, Deployment, Order, Product, Store, StoreEndpoint, StoreError, StoreServer};

/// How a gateway takes part in a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// How each server of the store is asked. Its address is the only server's, or the first of those that name others.
    pub endpoint: StoreEndpoint,
    /// How the servers make up the store, and where they are found.
    pub deployment: Deployment,
    /// The beginning of every key in it.
    pub prefix: Arc<str>,
    /// The name of this gateway.
    pub node: Arc<str>,
    /// How long an answer may take.
    pub deadline: Span,
    /// The decision of limits without the store, for the log.
    pub on_failure: OnFailure,
}

impl Settings {
    /// Whether the counts lie in the same store. It may be found through other Sentinels, or other nodes.
    fn is_same_store(&self, other: &Self) -> bool {
        let is_same = match (&self.deployment, &other.deployment) {
            (Deployment::Sentinel { name, .. }, Deployment::Sentinel { name: own, .. }) => name == own,
            (Deployment::Cluster { .. }, Deployment::Cluster { .. }) => true,
            (own, other_own) => own == other_own && self.endpoint.address == other.endpoint.address,
        };
        let address = other.endpoint.address.clone();
        is_same && self.prefix == other.prefix && StoreEndpoint { address, ..self.endpoint.clone() } == other.endpoint
    }

    /// Where the store is, in words.
    pub fn place(&self) -> String {
        self.deployment.place(&self.endpoint.address)
    }
}

/// A limit, and where its counts lie in the store.
#[derive(Debug)]
pub struct Binding {
    limit: Arc<Limit>,
    /// In the numbers of its script.
    shared: SharedLimit,
    /// Its keys in the store begin so; the fingerprint in hexadecimal follows.
    keys: Box<str>,
    slots: KeySlots,
    /// How long a grant is held.
    hold: Span,
}

/// A gateway's part in a fleet: a thread that lives as long as this.
pub struct Fleet {
    /// `None` once it ends.
    part: Option<watch::Sender<Participation>>,
    thread: Option<JoinHandle<()>>,
    board: Arc<Board>,
    notices: Arc<Notices>,
}

impl Fleet {
    /// Starts the thread. A store that is away is no error: requests are decided as `on_failure` says. `took` counts how long
    /// the exchanges with the store take. `hears` is given what others tell beside counts.
    pub fn start(
        settings: Settings,
        bindings: Vec<Arc<Binding>>,
        clock: Clock,
        took: Histogram,
        hears: Hears,
    ) -> std::io::Result<Self> {
        let (part, parts) = watch::channel((settings.clone(), bindings.clone()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let notices = Arc::new(Notices::default());
        let runner = Runner::new(settings, bindings, clock, took, (Arc::clone(&notices), hears));
        let board = Arc::clone(runner.board());
        let run = move || runtime.block_on(runner.run(parts));
        let thread = Builder::new().name("fleet".into()).spawn(run)?;
        Ok(Self { part: Some(part), thread: Some(thread), board, notices })
    }

    /// For those who ask how it stands.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.board))
    }

    /// Has something told to the others, at once or when the store answers again.
    pub fn tell(&self, notice: Notice) {
        self.notices.tell(notice);
    }

    /// Adds what others may not have been told yet to what was heard.
    pub fn overlay(&self, heard: &mut Heard) {
        self.notices.overlay(&mut heard.fields);
    }

    /// All that others may not have been told yet.
    pub fn untold(&self) -> Notice {
        self.notices.untold()
    }

    /// Whether the store answers, and yet takes or gives no notices: the log says why.
    pub fn is_deaf(&self) -> bool {
        self.notices.is_deaf()
    }

    /// From now on it takes part so. Limits that are no longer among the bindings are reported for the last time.
    pub fn configure(&self, settings: Settings, bindings: Vec<Arc<Binding>>) {
        if let Some(part) = &self.part {
            part.send_replace((settings, bindings));
        }
    }
}

/// Looks at a fleet, as long as one likes.
#[derive(Clone, Debug)]
pub struct Watch(Arc<Board>);

impl Watch {
    /// How the fleet stands.
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// How long the last exchanges with the store took.
    pub fn latency(&self) -> Latency {
        self.0.latency()
    }

    /// How many exchanges have ended since the start.
    pub fn exchanges(&self) -> Exchanges {
        self.0.exchanges()
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
    /// A limit whose keys in the store begin with `keys`, and whose grants are held for `hold`.
    pub fn new(limit: Arc<Limit>, shared: SharedLimit, keys: Box<str>, hold: Span) -> Self {
        let slots = KeySlots::new(&keys);
        Self { limit, shared, keys, slots, hold }
    }

    /// The limit.
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// The settle for the store, to be done until `latest` by its clock, which is thought to be at `clock`.
    fn order(&self, wanted: &Wanted, latest: Option<u64>, clock: u64) -> Order {
        Order {
            key: format!("{}{:016x}", self.keys, wanted.key.bits()),
            family: self.shared.family(),
            arguments: self.shared.arguments(&wanted.settle, self.hold, latest, clock),
        }
    }
}
