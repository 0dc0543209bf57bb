//! A request that a limit refuses, and whether it may be kept: both `policy` and those who keep it have to know.

use std::rc::Rc;

use crate::answer::Wants;
use crate::exchange::Exchange;
use crate::view::{LimitView, RouteView};
use sluicegate_config::OnLimit;
use sluicegate_limiter::{Fingerprint, Refusal, RefusalReason};

/// A request that a limit of its route refuses.
pub struct RefusedRequest {
    /// Its route.
    pub route: Rc<RouteView>,
    /// The limit.
    pub limit: Rc<LimitView>,
    /// The key that the limit counts it under.
    pub key: Option<Fingerprint>,
    /// Why it is refused.
    pub refusal: Refusal,
}

/// Whether a request that is refused so may be kept.
pub fn may_be_kept(exchange: &Exchange, route: &RouteView, why: RefusalReason) -> bool {
    route.spec.on_limit == OnLimit::Defer
        && matches!(why, RefusalReason::Rate | RefusalReason::QueueFull | RefusalReason::WaitTimeout)
        && exchange.view.snapshot.deferrals.is_some()
        && exchange.scratch.state.replayed.is_none()
        && !exchange.scratch.request.wants_upgrade()
        && !matches!(exchange.request().method(), "CONNECT" | "OPTIONS" | "TRACE")
        // Its client would not understand a 202.
        && !Wants::of(&exchange.request(), exchange.connection.facts.is_h2).is_grpc
        // Nobody could show it again in the client's place.
        && exchange.connection.facts.certificate.is_none()
}
