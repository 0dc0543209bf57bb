//! One generation of the configuration, as `gateway` builds it and workers share it.
//!
//! Nothing in it is of one worker. It is never changed: a reload publishes the next one through the [`Feed`]. Its counters
//! ([`Places`], [`KeyTally`]) are those that outlive it. Callers: `gateway`, which builds it, and most rooms.

mod key_tally;
mod plans;
mod throttle;
mod turned;

pub use key_tally::{CountedKey, KeyTally, KeyTop};
pub use plans::{
    AcceptPlan, BandwidthPlan, ClientBounds, Feed, LimitPlan, ListenerPlan, Places, PlacesPlan, RouteAction,
    RouteEdits, RoutePacing, RoutePlan, Snapshot, UpstreamPlan,
};
pub use turned::ConnectionRejection;

pub(super) use plans::Place;
pub(super) use throttle::Throttle;
pub(super) use turned::headroom;
