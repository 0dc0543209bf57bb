//! Clients: their connections, and how much each holds of a worker.
//!
//! [`ClientLedger`] has an account of each client; [`Holdings`] finds the client that holds most of something, and
//! [`Reclaimable`] the connections that make room for others. It decides about connections alone, and knows neither
//! routes nor limits of requests. Callers: most rooms.

mod connection;
mod context;
mod given_up;
mod h2_share;
mod holdings;
mod ledger;
mod private_server;
mod reclaim;
pub(super) mod replayed;
mod room;
mod socket;
mod tokens;

pub(super) use connection::{Connection, Listening, PeerFacts};
pub(super) use context::{Origin, RequestContext};
pub(super) use given_up::pays_for;
pub(super) use h2_share::{H2Room, H2Totals, StreamBound};
pub(super) use holdings::{HoldingId, Holdings};
pub(super) use ledger::{BodyRoom, ClientAccount, ClientLedger, Entered};
pub(super) use replayed::Vouched;
pub(super) use room::Room;
pub(super) use socket::{Client, Gone, LINGER, PROBE, fault_in};
pub(super) use tokens::{TokenDesk, TokenMeans};
