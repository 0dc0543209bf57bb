//! Descriptors that a rate limit service is asked about: a number of hits, along the route that is for them.

use std::net::IpAddr;

use super::admit::{Admission, Arrival, Places, Rules, ask, read_target};
use super::descriptor::Descriptor;
use super::excepted;
use super::host::HostRoom;
use super::identity::KeyFacts;
use super::route::Routed;
use super::terms::Terms;
use super::view::RequestView;
use sluicegate_limiter::{Ask, Counting, MAX_LIMITS, Report};
use sluicegate_time::Tick;

impl<R: Routed> Rules<R> {
    /// The route that is for a descriptor.
    pub fn route_of_descriptor(&self, descriptor: &Descriptor<'_>, now: Tick) -> Option<&R> {
        self.shared.table.find_descriptor(&self.routes, descriptor, now)
    }

    /// Decides about so many hits of a descriptor, which takes this route: as [`admit`](Self::admit) does about a request with
    /// that cost. `view` is the [request](Descriptor::target) that the descriptor is here, `client` its
    /// [client](Descriptor::client). No hits ask whether one would pass, and are not counted.
    pub fn admit_hits(
        &self,
        route: &R,
        hits: u64,
        (view, client): (&dyn RequestView, IpAddr),
        now: Tick,
        report: &mut Report,
    ) -> Admission<R> {
        report.clear();
        let arrival = Arrival::new(self.shared.clients.identify(view, client));
        let mut room = HostRoom::new();
        match read_target(view, &mut room) {
            Ok((path, host)) => {
                let adapt = |asks: &mut [Ask]| adapt(asks, hits, client);
                self.ask_limits(route, view, (host, path), arrival, now, report, adapt)
            }
            Err(malformed) => Admission::Malformed(malformed),
        }
    }

    /// Counts hits that were spent already, where there is no room too: then the next ones wait for it, but for no more than a
    /// window.
    pub fn count_hits(&self, route: &R, hits: u64, (view, client): (&dyn RequestView, IpAddr), now: Tick) {
        let arrival = Arrival::new(self.shared.clients.identify(view, client));
        let (mut room, rules) = (HostRoom::new(), route.rules());
        let Ok((path, host)) = read_target(view, &mut room) else { return };
        let sources = KeyFacts { view, client: &arrival.client, host, path: &path.text, route: &rules.name };
        let terms = Terms::of(rules, &sources);
        let mut asks = [Ask::default(); MAX_LIMITS];
        let limits = (terms.limits, false, terms.renews);
        let Ok(asks) = ask(rules, limits, &sources, now, &mut asks, &mut Places::default()) else { return };
        adapt(asks, hits, client);
        let own = if excepted::are_any(&terms) { excepted::own_policy(&terms, &sources, asks, now) } else { None };
        let policy = own.as_ref().unwrap_or(terms.policy);
        for (limit, ask) in policy.limits().iter().zip(asks) {
            if let Some(key) = ask.key {
                limit.count(key, ask.client, hits, now);
            }
        }
    }
}

/// Makes the asks of the limits those for so many hits.
fn adapt(asks: &mut [Ask], hits: u64, client: IpAddr) {
    for ask in asks {
        ask.cost = hits.max(1);
        if hits == 0 {
            (ask.counting, ask.renews) = (Counting::Later, None);
        }
        // Where the client is not known, each key has its own share of the places for new keys in a store.
        if client.is_unspecified() {
            ask.client = ask.key.map_or(0, |key| key.bits() as u32);
        }
    }
}
