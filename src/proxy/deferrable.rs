//! Which requests may be kept for later, and the paths by which their clients ask for them: what both `policy` and those who
//! keep and tell have to know.

use super::exchange::Exchange;
use crate::admission::Arrival;
use crate::config::OnLimit;
use crate::http1::Request;
use crate::limiter::{Refusal, Why};

/// What the paths begin with by which deferred requests are asked for.
pub const PREFIX: &str = "/.sluicegate/deferred/";
/// The field that tells the gateway itself when a limit has room: in milliseconds. Clients never see it.
pub const ROOM_IN: &[u8] = b"x-sluicegate-room-in-ms";

/// A request that a limit has refused, and that may be kept.
pub struct Deferred {
    /// What admission found out about it.
    pub arrival: Arrival,
    /// Why it is refused.
    pub refusal: Refusal,
}

/// Whether a request that is refused so may be kept.
pub fn may_be_kept(exchange: &Exchange, why: Why) -> bool {
    let is_asked = exchange.story.route.as_ref().is_some_and(|route| route.plan.on_limit == OnLimit::Defer);
    is_asked
        && matches!(why, Why::Rate | Why::QueueFull | Why::WaitTimeout)
        && exchange.view.snapshot.deferrals.is_some()
        && exchange.scratch.replayed.is_none()
        && !exchange.scratch.request.wants_upgrade()
        && exchange.request().method() != "CONNECT"
        // Nobody could show it again in the client's place.
        && exchange.connection.facts.certificate.is_none()
}

/// Whether a request asks how a deferred one fares.
#[inline]
pub fn asks_for_one(request: &Request<'_>) -> bool {
    request.path_bytes().starts_with(PREFIX.as_bytes())
}
