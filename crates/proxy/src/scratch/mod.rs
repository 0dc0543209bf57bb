//! The things that an exchange works with, kept from one to the next: buffers, heads, bodies, and the timers and paces of
//! its bytes.
//!
//! A connection has a set while it carries a request, and none while it is idle. It knows no exchange. Callers: `worker`, which
//! has the sets, and each room that carries an exchange.

mod capture;
mod held;
mod inbound;
mod leading;
mod outgoing;
mod pacing;
mod pool;
mod request;
mod room;

pub(super) use capture::{Capture, ContentReader, Letter};
pub(super) use inbound::Inbound;
pub(super) use leading::{Leading, Overflow, SharedHead};
pub(super) use outgoing::Outgoing;
pub(super) use pacing::{BandwidthGate, Hold, Pacing};
pub(super) use pool::{BUFFER_BYTES, Pool, PooledScratch, Scratch};
pub(super) use request::{ReadBody, RequestState};
pub(super) use room::RoomCharge;
