//! The look at a request before its body is read, where a limit of its route is about the body: a request that another limit
//! refuses has nothing read of it.

use std::net::IpAddr;
use std::sync::Arc;

use super::admit::{Arrival, Places, Refused, Rules, ask, read_target};
use super::excepted;
use super::host::HostRoom;
use super::identity::{KeyFacts, fingerprint_in_place};
use super::pattern::RoutePattern;
use super::route::{BodyRules, LimitUse, Routed, timeout_at};
use super::terms::Terms;
use super::view::{RequestView, is_preflight};
use sluicegate_limiter::{Ask, MAX_LIMITS, Report};
use sluicegate_time::{Span, Tick};

/// The next step of a request whose body is not read yet.
#[derive(Debug)]
pub enum BeforeBody<R> {
    /// A limit that is not about the body refuses it, and has counted that.
    Refused(R, Arrival, Refused),
    /// These fields of its body are to be read. Nothing is counted.
    Read(Arc<BodyRules>),
}

impl<R: Routed> Rules<R> {
    /// Whether a limit of some route is about the bodies of requests.
    #[inline]
    pub fn reads_bodies(&self) -> bool {
        self.shared.reads_bodies
    }

    /// Looks at a request whose body is not read: `None` where no limit that applies is about it, so that
    /// [`admit`](Self::admit) decides. Limits that are not about it are asked; a request that would wait for one is not refused.
    #[cold]
    pub fn before_body(
        &self,
        view: &dyn RequestView,
        peer: IpAddr,
        now: Tick,
        report: &mut Report,
    ) -> Option<BeforeBody<R>> {
        let identity = self.shared.clients.identify(view, peer);
        let mut room = HostRoom::new();
        let (path, host) = read_target(view, &mut room).ok()?;
        let found = self.shared.table.find(&self.routes, host, &path.matched(), view, now)?;
        let route = found.rules();
        let body = route.body.as_ref()?;
        if RoutePattern::refuses(Some(&route.pattern), &path).is_some() || !route.count_preflight && is_preflight(view)
        {
            return None;
        }
        let mut arrival = Arrival::new(identity);
        let sources = KeyFacts { view, client: &arrival.client, host, path: &path.text, route: &route.name };
        let terms = Terms::of(route, &sources);
        let is_about_body = |rule: &LimitUse| {
            let is_exempt = || rule.exempt.as_deref().is_some_and(|exempt| exempt.has_client(&arrival.client));
            rule.body_fields().next().is_some() && rule.is_active(now) && !is_exempt()
        };
        if !terms.limits.iter().any(is_about_body) || excepted::blocked(&terms, &sources, now).is_some() {
            return None;
        }
        let mut asks = [Ask::default(); MAX_LIMITS];
        for (place, (own, rule)) in asks.iter_mut().zip(terms.limits).enumerate() {
            if rule.body_fields().next().is_some() {
                continue;
            }
            let (mut one, mut invalid) = ([Ask::default(); MAX_LIMITS], Places::default());
            let limits = (std::slice::from_ref(rule), arrival.trusted_peer, terms.renews);
            let Ok(asked) = ask(route, limits, &sources, now, &mut one, &mut invalid) else {
                arrival.key = Some(fingerprint_in_place(&arrival.client, &rule.hasher));
                (arrival.plan, arrival.path) = (terms.plan, route.pattern.changed(path));
                return Some(BeforeBody::Refused(found.clone(), arrival, Refused::MissingKey { limit: place }));
            };
            *own = asked.first().copied().unwrap_or_default();
        }
        let timeout = timeout_at(terms.limits, terms.timeout, now);
        let patience = timeout.into_iter().chain(route.response_timeout).min().unwrap_or(Span::MAX);
        let own = excepted::own_policy(&terms, &sources, &mut asks, now);
        let refusal = own.as_ref().unwrap_or(terms.policy).refuse_early(&asks, patience, now, report);
        let Some(refusal) = refusal else { return Some(BeforeBody::Read(Arc::clone(body))) };
        report.note_keys(asks.iter().map(|ask| ask.key));
        arrival.key = asks.get(refusal.limit).and_then(|ask| ask.key);
        (arrival.plan, arrival.path) = (terms.plan, route.pattern.changed(path));
        Some(BeforeBody::Refused(found.clone(), arrival, Refused::Limit(refusal)))
    }
}
