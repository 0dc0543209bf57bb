//! Model -> snapshot. Nothing here touches what runs.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::BuildError;
use super::exceptions::Tables;
use super::live::{KeyLimit, LiveLimits};
use super::live_state::LiveState;
use super::objects::{Maker, Objects};
use super::terms::{self, Limits};
use crate::admission::{Networks, PlanTerms, RouteRules, Rules};
use crate::balance::Strategy;
use crate::config::{Action, LimitRule, Model, Preflight, RouteSpec};
use crate::dead_letter::DeadLetters;
use crate::proxy::Snapshot;
use crate::telemetry::AccessLog;
use crate::time::Schedule;

/// A snapshot that is ready to be published, and what has to be done when it is.
pub struct Built {
    /// To be published.
    pub snapshot: Snapshot,
    /// Live limits from now on.
    pub limits: LiveLimits,
    /// The exceptions of each limit's keys from now on.
    pub tables: Tables,
    /// When limits hold that do not always, from now on.
    pub schedules: HashMap<Arc<str>, Arc<Schedule>>,
    /// The limits that count single keys with numbers of their own, from now on.
    pub of_keys: Vec<KeyLimit>,
}

/// Builds the snapshot of a model upon that of the one before. Limits that stay are taken over, not yet reconfigured.
pub fn build(
    model: &Arc<Model>,
    generation: u64,
    (old, lasting): (Option<&Snapshot>, &LiveState),
    dead_letters: Option<DeadLetters>,
    access_log: Option<AccessLog>,
) -> Result<Built, BuildError> {
    let tables = lasting.exceptions.tables_for(model);
    let of_keys = lasting.exceptions.counted(model, lasting.clock.wall_now());
    let live = terms::live(model, &of_keys, lasting);
    let schedules = schedules(model);
    let limits = Limits::new(model, &live, &schedules, &lasting.hasher, &tables);
    let mut maker = Maker::new(lasting, old);
    maker.make_all(model)?;
    let routes = model.routes.iter().map(|spec| maker.route(spec, route_rules(spec, &limits)?));
    let routes = routes.collect::<Result<_, _>>()?;
    let Objects { upstreams, limits, bandwidths, listeners, accept } = maker.into_objects(model)?;
    let snapshot = Snapshot {
        generation,
        model: Arc::clone(model),
        rules: Rules::new(model.client.rules(), routes, lasting.hasher.clone()),
        deny: Networks::new(model.client.deny.iter().copied()),
        accept,
        limits,
        sends_proxy_headers: model.upstreams.iter().any(|upstream| upstream.proxy_protocol.is_some()),
        upstreams,
        bandwidths,
        listeners,
        replay_guard: dead_letters.as_ref().map(|log| log.replay_guard(&lasting.redactor)),
        dead_letters,
        // Opened last, and put in then.
        deferrals: None,
        access_log,
        hasher: lasting.hasher.clone(),
    };
    Ok(Built { snapshot, limits: live, tables, schedules, of_keys })
}

/// The part of a route that admission needs.
pub(super) fn route_rules(route: &RouteSpec, limits: &Limits<'_>) -> Result<RouteRules, BuildError> {
    let hash_key = match &route.action {
        Action::Forward(upstream) if upstream.balance == Strategy::Hash && upstream.servers.len() > 1 => {
            Some(upstream.hash_key.clone())
        }
        Action::Forward(_) | Action::Respond { .. } | Action::Redirect { .. } => None,
    };
    let terms = limits.terms(route)?;
    let plans = limits.plans(route, &terms)?;
    let PlanTerms { policy, limits, timeout, .. } = terms;
    Ok(RouteRules {
        name: Arc::clone(&route.name),
        pattern: route.pattern.clone().normalised(),
        active: route.active.clone().map(|rules| Arc::new(Schedule::new(rules))),
        policy,
        limits,
        hash_key,
        timeout,
        response_timeout: route.response_timeout,
        count_preflight: route.cors.as_ref().is_none_or(|cors| cors.count_preflight),
        takes_preflights: route.cors.as_ref().is_some_and(|cors| cors.preflight == Preflight::Answer),
        plans,
    })
}

/// When limits hold that do not always: one for all routes that use such a limit.
pub(super) fn schedules(model: &Model) -> HashMap<Arc<str>, Arc<Schedule>> {
    let schedule =
        |rule: &Arc<LimitRule>| Some((Arc::clone(&rule.spec.name), Arc::new(Schedule::new(rule.active.clone()?))));
    model.limits.iter().filter_map(schedule).collect()
}
