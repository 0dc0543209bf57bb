//! The terms of a route, and those of each of its plans: policies over live limits, and how they are used.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::BuildError;
use super::exceptions::Tables;
use super::fleet;
use super::live::{CountingScope, KeyLimit, LiveLimits, counted};
use crate::admission::{
    AddressForm, Cost, Exempt, KeyExceptions, KeyedLimit, LimitUse, PlanTerms, RateFrom, Renewal, RoutePlans,
};
use crate::config::{LimitId, LimitRule, Model, PlanLimit, RouteSpec};
use crate::limiter::{Algorithm, Carry, Counting, KeyHasher, Limit, LimitSpec, Mode, Policy};
use crate::time::{Schedule, Span};

/// The terms of one model, as far as routes share them.
pub(super) struct ModelTerms<'m> {
    live: &'m LiveLimits,
    /// Makes the fingerprints of their keys.
    hasher: &'m KeyHasher,
    /// Makes those of keys that are shared.
    fleet_hasher: Option<KeyHasher>,
    /// The exemptions, by the limit's name, for all routes that use it.
    exempt: HashMap<&'m str, Arc<Exempt>>,
    /// When those hold that do not always, by their names.
    schedules: &'m HashMap<Arc<str>, Arc<Schedule>>,
    /// The overrides of plans, by the limit's name and the plan's.
    overrides: HashMap<(&'m str, &'m str), &'m PlanLimit>,
    /// The exceptions of single keys.
    exceptions: &'m Tables,
}

/// The live limits of a model: those that stay are taken over, not yet reconfigured.
pub(super) fn live(model: &Model, of_keys: &[KeyLimit], running: &LiveLimits) -> LiveLimits {
    let live = |id: &LimitId, spec: &LimitSpec, place: &CountingScope| match running.get(id) {
        Some((limit, own)) if keeps_counts(limit, own, spec, place) => Arc::clone(limit),
        _ => Limit::new(spec.clone()),
    };
    let live = counted(model, of_keys).map(|(id, spec, key)| {
        let place = CountingScope { key: key.clone(), keys: fleet::keys_of(model, &id, spec, key) };
        let limit = live(&id, spec, &place);
        (id, (limit, place))
    });
    live.collect()
}

/// The limit that counts a single key from now on, among those that live: it is taken over and gets its numbers, or it is new.
pub(super) fn live_of_key(model: &Model, of_key: &KeyLimit, limits: &mut LiveLimits) {
    let KeyLimit { id, spec, key } = of_key;
    let place = CountingScope { key: key.clone(), keys: fleet::keys_of(model, id, spec, key) };
    if let Some((limit, own)) = limits.get(id) {
        if keeps_counts(limit, own, spec, &place) {
            limit.reconfigure(spec.clone());
            return;
        }
        limit.close();
    }
    limits.insert(id.clone(), (Limit::new(spec.clone()), place));
}

/// Whether a live limit's counts still mean the same: the algorithm, the key and the place in a store are what they were.
fn keeps_counts(limit: &Limit, own: &CountingScope, spec: &LimitSpec, place: &CountingScope) -> bool {
    spec.algorithm.carries(&limit.spec().algorithm) != Carry::Nothing && own == place
}

impl<'m> ModelTerms<'m> {
    pub(super) fn new(
        model: &'m Model,
        live: &'m LiveLimits,
        schedules: &'m HashMap<Arc<str>, Arc<Schedule>>,
        hasher: &'m KeyHasher,
        exceptions: &'m Tables,
    ) -> Self {
        let fleet_hasher = fleet::hasher(model);
        let exempt = |rule: &'m Arc<LimitRule>| {
            let hasher = hasher_of(&rule.spec, hasher, fleet_hasher.as_ref());
            let exempt = Exempt::new(&rule.exempt, &rule.key, model.client.address_form(), hasher);
            Some((&*rule.spec.name, exempt?))
        };
        let exempt = model.limits.iter().filter_map(exempt).collect();
        let overrides = model.plan_limits.iter().map(|own| ((&*own.spec.name, &*own.plan), own));
        Self { live, hasher, fleet_hasher, exempt, schedules, overrides: overrides.collect(), exceptions }
    }

    /// The terms on a route for requests of no plan.
    pub(super) fn terms(&self, route: &RouteSpec) -> Result<PlanTerms, BuildError> {
        self.terms_of(route, &route.name, None)
    }

    /// The route's plans.
    pub(super) fn plans(&self, route: &RouteSpec, own: &PlanTerms) -> Result<Option<Box<RoutePlans>>, BuildError> {
        let Some(book) = &route.plans else { return Ok(None) };
        let overrides =
            |plan: &str| route.limits.iter().any(|limit| self.overrides.contains_key(&(&*limit.spec.name, plan)));
        let terms = book.names().iter().map(|plan| {
            if overrides(plan) {
                self.terms_of(route, plan, Some(plan))
            } else {
                Ok(PlanTerms { name: Arc::clone(plan), ..own.clone() })
            }
        });
        let terms = terms.collect::<Result<_, _>>()?;
        Ok(Some(Box::new(RoutePlans { keys: Arc::clone(book.keys()), default: book.default(), terms })))
    }

    fn terms_of(&self, route: &RouteSpec, name: &Arc<str>, plan: Option<&str>) -> Result<PlanTerms, BuildError> {
        let used: Vec<Used<'_>> = route.limits.iter().filter_map(|rule| self.used(rule, plan)).collect();
        let policy = Policy::new(used.iter().map(|used| Arc::clone(used.live)).collect())
            .map_err(|source| BuildError::Limits { route: Arc::clone(&route.name), source })?;
        Ok(PlanTerms {
            name: Arc::clone(name),
            policy,
            limits: used.iter().map(|used| used.on(&route.cost)).collect(),
            timeout: used
                .iter()
                .filter(|used| used.active.is_none())
                .filter_map(Used::timeout)
                .chain(route.timeout)
                .min(),
        })
    }

    /// A limit as it is asked about keys; `None`: it does not live.
    pub(super) fn keyed(&self, rule: &LimitRule, form: AddressForm) -> Option<KeyedLimit> {
        let used = self.used(rule, None)?;
        Some(KeyedLimit::new(Arc::clone(used.live), used.on(&Cost::ONE), form))
    }

    /// A limit as it is in a plan.
    fn used<'u>(&'u self, rule: &'u LimitRule, plan: Option<&str>) -> Option<Used<'u>> {
        let own = plan.and_then(|plan| self.overrides.get(&(&*rule.spec.name, plan)));
        let plan = own.map(|own| Arc::clone(&own.plan));
        let id = LimitId { limit: Arc::clone(&rule.spec.name), plan, key: None };
        let (live, _) = self.live.get(&id)?;
        let spec = own.map_or(&rule.spec, |own| &own.spec);
        let mode = spec.mode;
        let active = self.schedules.get(&rule.spec.name);
        let hasher = hasher_of(&rule.spec, self.hasher, self.fleet_hasher.as_ref());
        let exceptions = self.exceptions.get(&rule.spec.name).cloned().unwrap_or_default();
        let exempt = self.exempt.get(&*rule.spec.name);
        Some(Used { rule, spec, mode, live, hasher, exempt, exceptions, active })
    }
}

/// The one under whose secret a limit's keys are counted.
pub(super) fn hasher_of<'h>(spec: &LimitSpec, own: &'h KeyHasher, of_fleet: Option<&'h KeyHasher>) -> &'h KeyHasher {
    of_fleet.filter(|_| spec.sharing.is_some()).unwrap_or(own)
}

/// A limit of a route.
struct Used<'m> {
    rule: &'m LimitRule,
    /// That of the plan.
    spec: &'m LimitSpec,
    /// The same.
    mode: Mode,
    live: &'m Arc<Limit>,
    hasher: &'m KeyHasher,
    exempt: Option<&'m Arc<Exempt>>,
    exceptions: Arc<KeyExceptions>,
    active: Option<&'m Arc<Schedule>>,
}

impl Used<'_> {
    /// One that is off concerns nobody and looks at nothing.
    fn on(&self, of_route: &Cost) -> LimitUse {
        LimitUse {
            key: self.rule.key.clone(),
            hasher: self.hasher.clone(),
            on_missing: self.rule.on_missing_key,
            // The limit's cost wins.
            cost: match self.mode {
                Mode::Off => Cost::ONE,
                Mode::Enforce | Mode::Shadow => self.rule.cost.as_ref().unwrap_or(of_route).clone(),
            },
            rate_from: (self.rule.rate_from.as_ref().filter(|_| self.mode != Mode::Off))
                .and_then(|field| RateFrom::new(Arc::clone(field), &self.spec.algorithm)),
            renewal: matches!(&self.spec.algorithm, Algorithm::FixedWindow(window) if window.has_months())
                .then(|| Renewal { field: self.rule.renews.clone() }),
            // What counts only with certain answers is not reserved before.
            counting: match self.rule.count_when {
                Some(_) => Counting::Later,
                None if self.rule.gives_back() => Counting::Corrected,
                None => Counting::AtOnce,
            },
            shared: self.rule.spec.sharing.is_some(),
            exempt: self.exempt.filter(|_| self.mode != Mode::Off).cloned(),
            exceptions: Arc::clone(&self.exceptions),
            enforced: self.mode == Mode::Enforce,
            active: self.active.cloned(),
            timeout_while_active: self.timeout().filter(|_| self.active.is_some()),
        }
    }

    /// The limit's timeout, if it is enforced.
    fn timeout(&self) -> Option<Span> {
        self.rule.timeout.filter(|_| self.mode == Mode::Enforce)
    }
}
