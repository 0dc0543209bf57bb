//! Model -> snapshot. Nothing here touches what runs; servers inside this process (`echo:`) are started.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::BuildError;
use super::live_state::{LiveState, NewLiveState};
use super::objects::{Maker, Objects};
use super::terms::ModelTerms;
use crate::admission::{BodyRules, KeyedLimit, Networks, PlanTerms, RouteRules, Rules};
use crate::balance::Strategy;
use crate::config::{Action, Decides, LimitRule, Model, Preflight, RouteSpec};
use crate::dead_letter::DeadLetters;
use crate::proxy::{AcceptPlan, OverloadState, Snapshot};
use crate::telemetry::AccessLog;
use crate::time::Schedule;

/// The logs of a generation.
pub struct Logs {
    /// The dead-letter log, if there is one.
    pub dead_letters: Option<DeadLetters>,
    /// The access log, if it is on.
    pub access_log: Option<AccessLog>,
}

/// Builds the snapshot of a model upon that of the one before. Limits that stay are taken over, not yet reconfigured.
pub fn build(
    model: &Arc<Model>,
    generation: u64,
    (old, lasting): (&Snapshot, &LiveState),
    new: &NewLiveState,
    logs: Logs,
) -> Result<Snapshot, BuildError> {
    let schedules = schedules(model);
    let limits = ModelTerms::new(model, &new.limits, &schedules, &lasting.hasher, &new.tables);
    let keyed = keyed(model, &limits);
    let mut maker = Maker::new(lasting, old, model.overload.as_ref());
    maker.make_all(model)?;
    let routes = model.routes.iter().map(|spec| maker.route(model, spec, route_rules(spec, &limits)?));
    let routes = routes.collect::<Result<_, _>>()?;
    let Objects { upstreams, limits, bandwidths, listeners, accept } = maker.into_objects(model)?;
    let Logs { dead_letters, access_log } = logs;
    Ok(Snapshot {
        generation,
        model: Arc::clone(model),
        rules: Rules::new(model.client.rules(), routes, lasting.hasher.clone()),
        deny: Networks::new(model.client.deny.iter().copied()),
        accept,
        limits,
        keyed,
        schedules,
        sends_proxy_headers: model.upstreams.iter().any(|upstream| upstream.proxy_protocol.is_some()),
        upstreams,
        bandwidths,
        listeners,
        replay_guard: dead_letters.as_ref().map(|log| log.replay_guard(&new.redactor)),
        dead_letters,
        // Opened last, and put in then.
        deferrals: None,
        access_log,
        hasher: lasting.hasher.clone(),
        blocks: Arc::clone(&lasting.blocks),
        overload: model
            .overload
            .as_ref()
            .map(|_| old.overload.clone().unwrap_or_else(|| Arc::new(OverloadState::new(lasting.workers)))),
        tokens: new.token_keys.rules.clone(),
    })
}

/// The snapshot of a gateway that is to run a model, before anything of it is built.
pub fn nothing(model: &Arc<Model>, lasting: &LiveState) -> Snapshot {
    Snapshot {
        generation: 0,
        model: Arc::clone(model),
        rules: Rules::new(model.client.rules(), Vec::new(), lasting.hasher.clone()),
        deny: Networks::default(),
        accept: AcceptPlan::default(),
        limits: Vec::new(),
        keyed: HashMap::new(),
        schedules: HashMap::new(),
        sends_proxy_headers: false,
        upstreams: Vec::new(),
        bandwidths: Vec::new(),
        listeners: HashMap::new(),
        replay_guard: None,
        dead_letters: None,
        deferrals: None,
        access_log: None,
        hasher: lasting.hasher.clone(),
        blocks: Arc::clone(&lasting.blocks),
        overload: None,
        tokens: None,
    }
}

/// The part of a route that admission needs.
pub(super) fn route_rules(route: &RouteSpec, limits: &ModelTerms<'_>) -> Result<RouteRules, BuildError> {
    let hash_key = match &route.action {
        Action::Forward(upstream) if upstream.balance == Strategy::Hash && upstream.servers.len() > 1 => {
            Some(upstream.hash_key.clone())
        }
        Action::Forward(_) | Action::Respond { .. } | Action::Redirect { .. } => None,
    };
    let terms = limits.terms(route)?;
    let plans = limits.plans(route, &terms)?;
    let PlanTerms { policy, limits, timeout, .. } = terms;
    let of_plans = plans.iter().flat_map(|plans| plans.terms.iter().flat_map(|terms| &terms.limits));
    let body = BodyRules::of(limits.iter().chain(of_plans), route.key_body);
    Ok(RouteRules {
        name: Arc::clone(&route.name),
        pattern: route.pattern.clone().normalised(),
        active: route.active.clone().map(|rules| Arc::new(Schedule::new(rules))),
        policy,
        limits,
        hash_key,
        body,
        timeout,
        response_timeout: route.response_timeout,
        count_preflight: route.cors.as_ref().is_none_or(|cors| cors.count_preflight),
        takes_preflights: route.cors.as_ref().is_some_and(|cors| cors.preflight == Preflight::Answer),
        plans,
    })
}

/// Limits that are asked about keys, by their names: none where no listener is asked so.
fn keyed(model: &Model, limits: &ModelTerms<'_>) -> HashMap<Arc<str>, Arc<KeyedLimit>> {
    if !model.listeners.iter().any(|listener| listener.decides == Some(Decides::Json)) {
        return HashMap::new();
    }
    let rules = model.limits.iter().filter(|rule| rule.why_not_by_key().is_none());
    let form = model.client.address_form();
    rules.filter_map(|rule| Some((Arc::clone(&rule.spec.name), Arc::new(limits.keyed(rule, form)?)))).collect()
}

/// When limits hold that do not always: one for all routes that use such a limit.
pub(super) fn schedules(model: &Model) -> HashMap<Arc<str>, Arc<Schedule>> {
    let schedule =
        |rule: &Arc<LimitRule>| Some((Arc::clone(&rule.spec.name), Arc::new(Schedule::new(rule.active.clone()?))));
    model.limits.iter().filter_map(schedule).collect()
}
