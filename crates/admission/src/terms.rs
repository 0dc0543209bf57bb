//! The terms of one request: its route's limits, or those of its plan.

use std::num::NonZeroU8;
use std::sync::Arc;

use super::identity::KeyFacts;
use super::plans::{PlanPlace, PlanTerms};
use super::route::{LimitUse, RouteRules};
use super::view::RequestView;
use sluicegate_limiter::Policy;
use sluicegate_time::Span;

/// The terms of one request.
pub(super) struct Terms<'r> {
    pub(super) policy: &'r Arc<Policy>,
    pub(super) limits: &'r [LimitUse],
    pub(super) timeout: Option<Span>,
    pub(super) plan: Option<PlanPlace>,
    /// The day on which the months of the key begin, as its line says it; `None`: no line says one.
    pub(super) renews: Option<NonZeroU8>,
}

impl<'r> Terms<'r> {
    #[inline]
    pub(super) fn of<V: RequestView + ?Sized>(route: &'r RouteRules, sources: &KeyFacts<'_, V>) -> Self {
        if let Some(plans) = route.plans.as_deref() {
            let (plan, renews) = plans.plan_of(sources);
            if let Some(PlanTerms { policy, limits, timeout, .. }) = plan.and_then(|plan| plans.terms_of(plan)) {
                return Self { policy, limits, timeout: *timeout, plan, renews };
            }
        }
        Self { policy: &route.policy, limits: &route.limits, timeout: route.timeout, plan: None, renews: None }
    }
}
