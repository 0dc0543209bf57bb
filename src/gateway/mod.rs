//! The composition root: a [`Model`](crate::config::Model) becomes a running system, and a changed one replaces it.
//!
//! Everything that can refuse is staged first and committed last, by the protocol that `component` has: a refused reload leaves
//! what runs as it is.
//! It decides nothing about traffic. Caller: `cli`.

mod admin_server;
mod blocks;
mod build;
mod component;
mod control;
mod deferring;
mod drain;
mod error;
mod exceptions;
mod explain;
mod family;
mod fleet;
mod fleet_status;
mod follow;
mod gauges;
mod handover;
mod health;
mod limit_status;
mod live;
mod live_state;
mod logs;
mod notices;
mod objects;
mod offline;
mod overload;
mod peers_status;
mod pid_file;
pub mod service;
mod sockets;
mod state_file;
mod terms;
#[cfg(test)]
mod testing;
mod token_keys;
mod upstream_status;
mod watch;
mod weights;
mod worker;
mod writable;

pub use blocks::BlockRow;
pub use control::{Control, Reloaded};
pub use drain::{ProcessEnd, Signals};
pub use error::BuildError;
pub use exceptions::{BlockSeen, ExceptionSeen, NumbersSeen};
pub use explain::{ExplainRequest, Explained, LimitSeen, RateSeen, explain_offline};
pub use follow::load;
pub use handover::{Inheritance, READY_WITHIN as UPGRADE_WITHIN};
pub use limit_status::{KeySeen, TopKeySeen, TopKeysSeen};
pub use logs::{Logging, redactor_offline};
pub use offline::{Offline, OfflineRoute};
pub use pid_file::{PidFile, Prepared};
pub use watch::Watcher;
pub use writable::check_writable;
