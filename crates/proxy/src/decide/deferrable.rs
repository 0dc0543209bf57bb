//! The requests that may be kept for later: both `policy` and those who keep them have to know.

use crate::answer::Wants;
use crate::exchange::Exchange;
use sluicegate_admission::Arrival;
use sluicegate_config::OnLimit;
use sluicegate_limiter::{Refusal, RefusalReason};

/// A request that a limit has refused, and that may be kept.
pub struct Deferred {
    /// The findings of admission.
    pub arrival: Arrival,
    /// Why it is refused.
    pub refusal: Refusal,
}

/// Whether a request that is refused so may be kept.
pub fn may_be_kept(exchange: &Exchange, why: RefusalReason) -> bool {
    let is_asked = exchange.story.route.as_ref().is_some_and(|route| route.plan.on_limit == OnLimit::Defer);
    is_asked
        && matches!(why, RefusalReason::Rate | RefusalReason::QueueFull | RefusalReason::WaitTimeout)
        && exchange.view.snapshot.deferrals.is_some()
        && exchange.scratch.replayed.is_none()
        && !exchange.scratch.request.wants_upgrade()
        && !matches!(exchange.request().method(), "CONNECT" | "OPTIONS" | "TRACE")
        // Its client would not understand a 202.
        && !Wants::of(&exchange.request(), exchange.connection.facts.is_h2).is_grpc
        // Nobody could show it again in the client's place.
        && exchange.connection.facts.certificate.is_none()
}
