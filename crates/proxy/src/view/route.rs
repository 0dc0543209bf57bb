//! A route as one worker sees it: found once for a request, and kept with it.

use std::rc::Rc;
use std::sync::Arc;

use super::upstream::UpstreamView;
use crate::meters::{BandwidthMeters, LimitMeters, MessageMeters, Meters, RouteMeters};
use crate::snapshot::{BandwidthPlan, LimitPlan, RouteAction, RoutePlan, Snapshot};
use sluicegate_admission::{PlanPlace, PlanTerms, RouteRules};

/// A route with all that a request asks of it. A worker makes one of each route with each generation of the configuration,
/// and an exchange clones the [`Rc`], which is not atomic.
pub struct RouteView {
    /// Its place among [`Rules::routes`](sluicegate_admission::Rules::routes), by which admission knows it.
    pub place: usize,
    /// The treatment of its requests.
    pub plan: Arc<RoutePlan>,
    /// Its limits, in the order of its policy.
    pub limits: Vec<LimitView>,
    /// The bandwidths that pace its bytes.
    pub bandwidths: Vec<BandwidthView>,
    /// The upstream that it forwards to, if it does.
    pub upstream: Option<Rc<UpstreamView>>,
    /// The figures of the route.
    pub meters: Rc<RouteMeters>,
    /// Those of its messages; `None`: it does not bound them.
    pub messages: Option<Rc<MessageMeters>>,
    snapshot: Arc<Snapshot>,
}

/// A limit of a route.
pub struct LimitView {
    /// The form of its refusals, and the costs that it reads.
    pub plan: Arc<LimitPlan>,
    /// Its figures.
    pub meters: Rc<LimitMeters>,
}

/// A bandwidth of a route.
pub struct BandwidthView {
    /// Its key and its limits.
    pub plan: Arc<BandwidthPlan>,
    /// Its figures.
    pub meters: Rc<BandwidthMeters>,
}

impl RouteView {
    /// All routes of a snapshot, in the order of its rules.
    pub fn all(snapshot: &Arc<Snapshot>, meters: &Meters, upstreams: &[Rc<UpstreamView>]) -> Vec<Rc<Self>> {
        let mut messages = 0..;
        let view = |(place, plan): (usize, &Arc<RoutePlan>)| {
            let messages = plan.bounds_messages().then(|| messages.next()).flatten();
            let upstream = match plan.action {
                RouteAction::Forward(upstream) => Some(Rc::clone(upstreams.get(upstream)?)),
                _ => None,
            };
            let messages = messages.and_then(|place| meters.messages(place));
            Self::new(snapshot, meters, (place, plan), upstream, messages)
        };
        snapshot.routes.iter().enumerate().filter_map(view).collect()
    }

    /// `None` never: the snapshot and its meters are made of one model.
    fn new(
        snapshot: &Arc<Snapshot>,
        meters: &Meters,
        (place, plan): (usize, &Arc<RoutePlan>),
        upstream: Option<Rc<UpstreamView>>,
        messages: Option<Rc<MessageMeters>>,
    ) -> Option<Rc<Self>> {
        let limit = |limit: &usize| {
            Some(LimitView { plan: Arc::clone(snapshot.limits.get(*limit)?), meters: meters.limit(*limit)? })
        };
        let bandwidth = |bandwidth: &usize| {
            let plan = Arc::clone(snapshot.bandwidths.get(*bandwidth)?);
            Some(BandwidthView { plan, meters: meters.bandwidth(*bandwidth)? })
        };
        let pacing = plan.pacing.iter().flat_map(|pacing| &pacing.bandwidths);
        Some(Rc::new(Self {
            place,
            limits: plan.limits.iter().map(limit).collect::<Option<_>>()?,
            bandwidths: pacing.map(bandwidth).collect::<Option<_>>()?,
            upstream,
            meters: meters.route(place)?,
            messages,
            plan: Arc::clone(plan),
            snapshot: Arc::clone(snapshot),
        }))
    }

    /// The limit at this place of the route.
    #[inline]
    pub fn limit(&self, place: usize) -> Option<&LimitView> {
        self.limits.get(place)
    }

    /// The part of it that admission goes by.
    pub fn rules(&self) -> Option<&RouteRules> {
        self.snapshot.rules.routes().get(self.place)
    }

    /// The terms of a plan of it.
    pub fn terms_of(&self, plan: PlanPlace) -> Option<&PlanTerms> {
        self.rules()?.plans.as_ref()?.terms_of(plan)
    }

    /// The body of its own answer; empty if it has none.
    pub fn body(&self) -> &[u8] {
        match &self.plan.action {
            RouteAction::Respond { body, .. } => &body.bytes,
            _ => b"",
        }
    }
}
