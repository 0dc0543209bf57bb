//! A route as one worker sees it: found once for a request, and kept with it.

use std::rc::Rc;
use std::sync::Arc;

use super::upstream::{UpstreamView, UpstreamViews};
use crate::meters::{BandwidthMeters, LimitMeters, MessageMeters, Meters, RouteMeters};
use crate::snapshot::{Bandwidth, KeyTally, Route, RouteCollapse, RouteLimit};
use sluicegate_admission::{KeyedLimit, PlanPlace, PlanTerms, ResponseCost, RouteRules};
use sluicegate_config::{Action, LimitRule, RouteSpec};

/// A route with all that a request asks of it. A worker makes one of each route with each generation of the configuration,
/// and an exchange clones the [`Rc`], which is not atomic.
pub struct RouteView {
    /// The section of the file that it comes from.
    pub spec: Arc<RouteSpec>,
    /// Forward or answer.
    pub action: Action<Rc<UpstreamView>>,
    /// Its limits, in the order of its policy.
    pub limits: Vec<Rc<LimitView>>,
    /// The bandwidths that pace its bytes.
    pub bandwidths: Vec<BandwidthView>,
    /// Equal requests in flight are sent once; `None`: each is sent.
    pub collapse: Option<Arc<RouteCollapse>>,
    /// The figures of the route.
    pub meters: Rc<RouteMeters>,
    /// Those of its messages; `None`: it does not bound them.
    pub messages: Option<Rc<MessageMeters>>,
    /// The parts of its servers' answers that its limits read their costs from, beside heads.
    pub reads: AnswerParts,
    route: Arc<Route>,
}

/// Parts of an answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnswerParts {
    /// Its body.
    pub body: bool,
    /// Its trailers.
    pub trailers: bool,
}

impl AnswerParts {
    fn read_by(limits: &[Arc<LimitRule>]) -> Self {
        let costs = || limits.iter().filter_map(|limit| limit.cost_from_response.as_ref());
        Self { body: costs().any(ResponseCost::is_in_body), trailers: costs().any(ResponseCost::is_in_trailers) }
    }
}

/// A limit of a route.
pub struct LimitView {
    /// Its place in the policy of the route, by which the limiter and admission know it.
    pub place: usize,
    /// The section of the file that it comes from.
    pub spec: Arc<LimitRule>,
    /// The keys that it admits and refuses most often.
    pub keys: Arc<KeyTally>,
    /// Its figures.
    pub meters: Rc<LimitMeters>,
}

impl LimitView {
    /// A limit at this place.
    pub(super) fn new(place: usize, limit: &RouteLimit, meters: &mut Meters) -> Self {
        let meters = meters.limit(&limit.spec.spec.name);
        Self { place, spec: Arc::clone(&limit.spec), keys: Arc::clone(&limit.keys), meters }
    }

    /// Its name.
    pub fn name(&self) -> &Arc<str> {
        &self.spec.spec.name
    }
}

/// A limit that is asked about keys.
pub struct KeyedView {
    /// Its figures.
    pub limit: LimitView,
    /// How it is asked.
    pub rules: Arc<KeyedLimit>,
}

/// A bandwidth of a route.
pub struct BandwidthView {
    /// Its key and its limits.
    pub shared: Arc<Bandwidth>,
    /// Its figures.
    pub meters: Rc<BandwidthMeters>,
}

impl RouteView {
    pub(super) fn new(route: &Arc<Route>, meters: &mut Meters, upstreams: &mut UpstreamViews<'_>) -> Self {
        let spec = &route.spec;
        let action = route.action.map(|upstream| upstreams.of(upstream, meters));
        let limits = route.limits.iter().enumerate();
        let limits = limits.map(|(place, limit)| Rc::new(LimitView::new(place, limit, meters)));
        Self {
            limits: limits.collect(),
            bandwidths: (route.bandwidths.iter())
                .map(|own| BandwidthView { shared: Arc::clone(own), meters: meters.bandwidth(&own.spec.name) })
                .collect(),
            action,
            collapse: route.collapse.clone(),
            meters: meters.route(&spec.name),
            messages: spec.messages.is_some().then(|| meters.messages(&spec.name)),
            reads: AnswerParts::read_by(&spec.limits),
            spec: Arc::clone(spec),
            route: Arc::clone(route),
        }
    }

    /// The limit at this place of its policy.
    #[inline]
    pub fn limit(&self, place: usize) -> Option<&Rc<LimitView>> {
        self.limits.get(place)
    }

    /// Whether its requests can be decided for others.
    pub fn is_decidable(&self) -> bool {
        self.route.is_decidable
    }

    /// The part of it that admission goes by.
    pub fn rules(&self) -> &RouteRules {
        &self.route.rules
    }

    /// The terms of a plan of it.
    pub fn terms_of(&self, plan: PlanPlace) -> Option<&PlanTerms> {
        self.rules().plans.as_ref()?.terms_of(plan)
    }

    /// The body of its own answer; empty if it has none.
    pub fn body(&self) -> &[u8] {
        match &self.action {
            Action::Respond { body, .. } => &body.bytes,
            _ => b"",
        }
    }
}

impl AsRef<RouteRules> for RouteView {
    #[inline]
    fn as_ref(&self) -> &RouteRules {
        &self.route.rules
    }
}
