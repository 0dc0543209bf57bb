//! The things that one worker thread owns: its view of the configuration, its connections, and the places on it.
//!
//! Nothing in it is shared with another thread but the feed, the registry and the gauges. It serves nobody: `accept` and `serve`
//! do, and ask it for a place first. Callers: all rooms of an exchange, and `gateway`, which starts one for each core.

mod counts;
mod handshakes;
mod open;
pub(super) mod panics;
mod places;
mod state;

pub use state::{Worker, WorkerGauges};

pub(super) use open::Open;
pub(super) use places::ConnectionGuard;
