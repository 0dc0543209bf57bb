//! One generation of the configuration, as `gateway` builds it and workers share it.
//!
//! Nothing in it is of one worker. It is never changed: a reload publishes the next one through the [`Feed`]. Its counters
//! ([`Places`], [`KeyTally`], [`BlockList`]) are those that outlive it. Callers: `gateway`, which builds it, and most rooms.

mod block_list;
mod key_tally;
mod objects;
mod overload;
mod throttle;
mod turned;

pub use block_list::{BlockList, BlockedKey, MetBlock};
pub use key_tally::{CountedKey, KeyTally, KeyTop};
pub use objects::{
    AcceptPlan, Bandwidth, ClientBounds, Feed, Listener, Places, PlacesPlan, QuestionRules, Route, RouteCollapse,
    RouteLimit, Snapshot, Upstream,
};
pub use overload::{OverloadState, ResponseSamples, SAMPLE_WINDOW};
pub use turned::ConnectionRejection;

pub(super) use objects::ConnectionSlot;
pub(super) use throttle::{Seldom, Throttle};
pub(super) use turned::headroom;
