//! The objects of a generation: upstreams, limits, bandwidths, routes, listeners, the bounds of clients. Each is made of its
//! spec upon the object of the same name in the generation before, which gives it what it remembers: nothing that runs is
//! changed by that; servers inside this process (`echo:`) are started. [`renumber`] then lets the new numbers hold.

pub(super) mod bandwidth;
mod clients;
mod collapse;
pub(super) mod listener;
#[cfg(test)]
mod tests;
mod upstream;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use super::error::BuildError;
use super::live_state::LiveState;
use crate::admission::RouteRules;
use crate::config::{Action, BandwidthSpec, LimitRule, ListenAddress, Model, Overload, RouteSpec, UpstreamSpec};
use crate::proxy::{AcceptPlan, Bandwidth, KeyTally, Listener, Route, RouteLimit, Snapshot, Upstream};

/// Objects by their names, in the order in which they were made: each is made once, by whatever needs it first.
struct Named<T> {
    all: Vec<T>,
    places: HashMap<Arc<str>, usize>,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { all: Vec::new(), places: HashMap::new() }
    }
}

impl<T: Clone> Named<T> {
    fn of<E>(&mut self, name: &Arc<str>, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        if let Some(made) = self.places.get(name).and_then(|place| self.all.get(*place)) {
            return Ok(made.clone());
        }
        let made = make()?;
        self.places.insert(Arc::clone(name), self.all.len());
        self.all.push(made.clone());
        Ok(made)
    }
}

/// The objects of a generation while they are made.
pub(super) struct Maker<'m> {
    lasting: &'m LiveState,
    old: &'m Snapshot,
    overload: Option<&'m Overload>,
    /// Those of the generation before, by name: there may be ten thousand of each.
    old_limits: HashMap<&'m str, &'m RouteLimit>,
    old_upstreams: HashMap<&'m str, &'m Arc<Upstream>>,
    old_bandwidths: HashMap<&'m str, &'m Arc<Bandwidth>>,
    upstreams: Named<Arc<Upstream>>,
    limits: Named<RouteLimit>,
    bandwidths: Named<Arc<Bandwidth>>,
}

/// All objects of a generation but its routes.
pub(super) struct Objects {
    pub(super) upstreams: Vec<Arc<Upstream>>,
    pub(super) limits: Vec<RouteLimit>,
    pub(super) bandwidths: Vec<Arc<Bandwidth>>,
    pub(super) listeners: HashMap<ListenAddress, Arc<Listener>>,
    pub(super) accept: AcceptPlan,
}

impl<'m> Maker<'m> {
    /// Nothing is made yet; `old` is what runs.
    pub(super) fn new(lasting: &'m LiveState, old: &'m Snapshot, overload: Option<&'m Overload>) -> Self {
        let old_limits = old.limits.iter().map(|limit| (&*limit.spec.spec.name, limit)).collect();
        let old_upstreams = old.upstreams.iter().map(|upstream| (&*upstream.spec.name, upstream)).collect();
        let old_bandwidths = old.bandwidths.iter().map(|bandwidth| (&*bandwidth.spec.name, bandwidth)).collect();
        let (upstreams, limits, bandwidths) = <_>::default();
        Self { lasting, old, overload, old_limits, old_upstreams, old_bandwidths, upstreams, limits, bandwidths }
    }

    /// A route, and what it needs of the others.
    pub(super) fn route(
        &mut self,
        model: &Model,
        spec: &Arc<RouteSpec>,
        rules: RouteRules,
    ) -> Result<Arc<Route>, BuildError> {
        let action = match &spec.action {
            Action::Forward(upstream) => Action::Forward(self.upstream(upstream)?),
            Action::Respond { status, body } => Action::Respond { status: *status, body: body.clone() },
            Action::Redirect { status, target } => Action::Redirect { status: *status, target: target.clone() },
        };
        Ok(Arc::new(Route {
            limits: spec.limits.iter().map(|limit| self.limit(limit)).collect(),
            bandwidths: spec.bandwidth.iter().map(|bandwidth| self.bandwidth(bandwidth)).collect(),
            collapse: collapse::make(spec),
            is_decidable: model.decides() && spec.why_undecidable(&model.plan_limits).is_none(),
            spec: Arc::clone(spec),
            rules,
            action,
        }))
    }

    /// All of them, in the file's order, whether a route has them or not.
    pub(super) fn make_all(&mut self, model: &Model) -> Result<(), BuildError> {
        for upstream in &model.upstreams {
            self.upstream(upstream)?;
        }
        for limit in &model.limits {
            self.limit(limit);
        }
        for bandwidth in &model.bandwidths {
            self.bandwidth(bandwidth);
        }
        Ok(())
    }

    /// Those that were made, with listeners and the bounds of clients.
    pub(super) fn into_objects(self, model: &Model) -> Result<Objects, BuildError> {
        let Self { lasting, old, upstreams, limits, bandwidths, .. } = self;
        let listeners = model.listeners.iter().map(|spec| {
            let old = old.listeners.get(&spec.address);
            Ok((spec.address.clone(), listener::make(spec, old, &lasting.tickets)?))
        });
        Ok(Objects {
            listeners: listeners.collect::<Result<_, BuildError>>()?,
            accept: clients::make(&model.client, &old.accept)?,
            upstreams: upstreams.all,
            limits: limits.all,
            bandwidths: bandwidths.all,
        })
    }

    fn upstream(&mut self, spec: &Arc<UpstreamSpec>) -> Result<Arc<Upstream>, BuildError> {
        let Self { lasting, overload, old_upstreams, upstreams, .. } = self;
        let make = || upstream::make(spec, old_upstreams.get(&*spec.name).copied(), *overload, lasting);
        upstreams.of(&spec.name, make)
    }

    fn limit(&mut self, spec: &Arc<LimitRule>) -> RouteLimit {
        let Self { lasting, old_limits, limits, .. } = self;
        let make = || {
            // Another key has other counts.
            let old = old_limits.get(&*spec.spec.name).filter(|old| old.spec.key == spec.key);
            let keys = old.map_or_else(|| Arc::new(KeyTally::new(lasting.workers)), |old| Arc::clone(&old.keys));
            Ok::<_, Infallible>(RouteLimit { spec: Arc::clone(spec), keys })
        };
        let Ok(limit) = limits.of(&spec.spec.name, make);
        limit
    }

    fn bandwidth(&mut self, spec: &Arc<BandwidthSpec>) -> Arc<Bandwidth> {
        let Self { old_bandwidths, bandwidths, .. } = self;
        let make = || Ok::<_, Infallible>(bandwidth::make(spec, old_bandwidths.get(&*spec.name).copied()));
        let Ok(bandwidth) = bandwidths.of(&spec.name, make);
        bandwidth
    }
}

/// Lets the numbers of a generation hold, for what is on its way too.
pub(super) fn renumber(snapshot: &Snapshot) {
    clients::renumber(&snapshot.model.client, &snapshot.accept);
    snapshot.bandwidths.iter().for_each(|own| bandwidth::renumber(own));
    snapshot.upstreams.iter().for_each(|own| upstream::renumber(own));
}
