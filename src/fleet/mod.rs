//! One limit over many gateways: how a limit's messages reach a store that exists, Redis or Valkey, and its answers come back.
//!
//! The limiter decides ([`crate::limiter::Settle`] says what it wants of the store, [`crate::limiter::Answer`] what it gets);
//! this room carries. It knows nothing of requests, and no request waits in it.
//!
//! - [`SharedLimit`]: a limit in the numbers of its script; [`fits`] says which limits cannot be shared, and what can.
//! - [`Store`]: a connection. [`Store::settle`] carries a batch in one round trip; what goes wrong is a [`StoreError`] that
//!   says how to mend it. [`Store::heartbeat`] says who else lives.
//! - [`Circuit`]: whether the store is asked at all, from what became of the last exchanges. Pure.
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
mod scripts;
mod shared;
mod store;

#[cfg(test)]
mod tests;

pub use circuit::{Change, Circuit, Outcome, Pass, State};
pub use members::{HEARTBEAT, MAX_NAMES, Members, STAYS, member_name, members_key};
pub use shared::{Family, MAX_SHARED, NotShared, SharedLimit, fits};
pub use store::{Address, Endpoint, Order, Product, Server, Store, StoreError};
