//! Descriptors that a rate limit service is asked about: a number of hits, along the route that is for them.

use std::net::IpAddr;

use super::admit::{Admission, Arrival, Places, Rules, ask, read_target};
use super::client::address_of;
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
    /// window. The limits that count them.
    pub fn count_hits(&self, route: &R, hits: u64, (view, client): (&dyn RequestView, IpAddr), now: Tick) -> Places {
        let mut counted = Places::default();
        let arrival = Arrival::new(self.shared.clients.identify(view, client));
        let (mut room, rules) = (HostRoom::new(), route.rules());
        let Ok((path, host)) = read_target(view, &mut room) else { return counted };
        let sources = KeyFacts { view, client: &arrival.client, host, path: &path.text, route: &rules.name };
        let terms = Terms::of(rules, &sources);
        let mut asks = [Ask::default(); MAX_LIMITS];
        let limits = (terms.limits, false, terms.renews);
        let Ok(asks) = ask(rules, limits, &sources, now, &mut asks, &mut Places::default()) else { return counted };
        adapt(asks, hits, client);
        let mut own = None;
        if excepted::are_any(&terms) {
            excepted::act(&terms, &sources, asks, now);
            own = excepted::own_policy(&terms, &sources, asks, now);
        }
        let policy = own.as_ref().unwrap_or(terms.policy);
        for (place, (limit, ask)) in policy.limits().iter().zip(asks).enumerate() {
            if let Some(key) = ask.key {
                limit.count(key, ask.client, hits, now);
                counted.add(place);
            }
        }
        counted
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
        if address_of(client).is_unspecified() {
            ask.client = ask.key.map_or(0, |key| key.bits() as u32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::client::AddressForm;
    use crate::testing::{clients, pattern, route, usage};
    use crate::{
        DescriptorPattern, EntryValue, Exempt, ExemptRules, KeyExpr, KeyedAnswer, KeyedLimit, LimitUse, PathPattern,
        PlainRequest, Refused, RouteRules,
    };
    use sluicegate_limiter::{Algorithm, Bound, KeyHasher, Limit, LimitSpec, Mode, TimerWheel};
    use sluicegate_time::Span;

    fn limit(mode: Mode) -> Arc<Limit> {
        let wheel = TimerWheel::new(&["3/1h".parse().unwrap()], None, Bound::Sliding).unwrap();
        Limit::new(LimitSpec { mode, ..LimitSpec::new("limit", Algorithm::TimerWheel(wheel)) })
    }

    /// A route for descriptors with these entries.
    fn rules(limit: &Arc<Limit>, usage: LimitUse, entries: &[&str]) -> Rules<Arc<RouteRules>> {
        let entries = entries.iter().map(|name| ((*name).to_owned(), EntryValue::Any)).collect();
        let pattern = pattern(PathPattern::Descriptor(DescriptorPattern::new("edge".to_owned(), entries)));
        let route = route("route", pattern, vec![(Arc::clone(limit), usage)]);
        Rules::new(clients(), vec![Arc::new(route)], KeyHasher::fixed())
    }

    fn descriptor<'q>(entries: &[(&'q str, &'q [u8])]) -> Descriptor<'q> {
        Descriptor::new("edge", entries.iter().copied()).unwrap()
    }

    /// Whether it is admitted, and how much the limit says is left.
    fn ask(rules: &Rules<Arc<RouteRules>>, entries: &[(&str, &[u8])], hits: u64) -> (bool, Option<u64>) {
        let descriptor = descriptor(entries);
        let route = rules.route_of_descriptor(&descriptor, Tick::ZERO).unwrap();
        let request = PlainRequest::new("DESCRIPTOR", &descriptor.target());
        let mut report = Report::default();
        let admission = rules.admit_hits(route, hits, (&request, descriptor.client()), Tick::ZERO, &mut report);
        let is_admitted = match admission {
            Admission::Admitted(_) => true,
            Admission::Refused(_, _, Refused::Limit(_)) => false,
            other => panic!("{other:?}"),
        };
        (is_admitted, report.lines().first().map(|line| line.remaining))
    }

    fn count(rules: &Rules<Arc<RouteRules>>, entries: &[(&str, &[u8])], hits: u64) -> usize {
        let descriptor = descriptor(entries);
        let route = rules.route_of_descriptor(&descriptor, Tick::ZERO).unwrap();
        let request = PlainRequest::new("DESCRIPTOR", &descriptor.target());
        rules.count_hits(route, hits, (&request, descriptor.client()), Tick::ZERO).iter().count()
    }

    #[test]
    fn hits_are_counted_if_they_fit_and_none_are_looked_at() {
        let rules = rules(&limit(Mode::Enforce), usage(&["descriptor:a"]), &["a"]);
        let a = |hits| ask(&rules, &[("a", b"x")], hits);
        assert_eq!(
            [a(0), a(2), a(0), a(2), a(1), a(0)],
            [(true, Some(3)), (true, Some(1)), (true, Some(1)), (false, Some(1)), (true, Some(0)), (false, Some(0))]
        );
        assert_eq!(ask(&rules, &[("a", b"")], 3), (true, Some(0)), "an empty value is a value");
        assert!(!ask(&rules, &[("a", b"")], 1).0);
    }

    #[test]
    fn hits_that_were_spent_are_counted_without_room_too() {
        let rules = rules(&limit(Mode::Enforce), usage(&["descriptor:a"]), &["a"]);
        let entries: &[(&str, &[u8])] = &[("a", b"x")];
        assert_eq!((count(&rules, entries, 2), ask(&rules, entries, 0)), (1, (true, Some(1))));
        assert_eq!((count(&rules, entries, 9), ask(&rules, entries, 0)), (1, (false, Some(0))));
        assert_eq!(ask(&rules, &[("a", b"y")], 0), (true, Some(3)));
    }

    #[test]
    fn shadow_mode_and_exemptions_hold_and_nobody_is_exempt_for_want_of_an_address() {
        let entries = ["a", "remote_address"];
        let shadow = rules(&limit(Mode::Shadow), LimitUse { enforced: false, ..usage(&["global"]) }, &entries);
        let here: &[(&str, &[u8])] = &[("a", b"x"), ("remote_address", b"192.0.2.7")];
        assert!((0..9).all(|_| ask(&shadow, here, 1).0));
        let key = KeyExpr::parse(&["descriptor:a"]).unwrap();
        let all = ExemptRules {
            networks: vec!["192.0.2.0/24".parse().unwrap(), "0.0.0.0/8".parse().unwrap()],
            keys: vec!["vip".into()],
        };
        let exempt = Exempt::new(&all, &key, AddressForm::default(), &KeyHasher::fixed());
        let exempting = |entries: &[&str]| {
            rules(&limit(Mode::Enforce), LimitUse { exempt: exempt.clone(), ..usage(&["descriptor:a"]) }, entries)
        };
        let (with, without) = (exempting(&entries), exempting(&["a"]));
        assert!((0..9).all(|_| ask(&with, here, 1) == (true, None)));
        assert!((0..9).all(|_| ask(&without, &[("a", b"vip")], 1) == (true, None)));
        assert_eq!(ask(&without, &[("a", b"x")], 4), (false, Some(3)));
    }

    #[test]
    fn a_client_is_counted_by_its_network_however_it_is_written() {
        let rules = rules(&limit(Mode::Enforce), usage(&["descriptor:remote_address"]), &["remote_address"]);
        let ask = |client: &str| ask(&rules, &[("remote_address", client.as_bytes())], 1).1;
        assert_eq!(["2001:db8::1", "2001:DB8::ffff:0:1", "2001:db8:0:0:1::"].map(ask), [Some(2), Some(1), Some(0)]);
        assert_eq!(["192.0.2.7", "::ffff:192.0.2.7"].map(ask), [Some(2), Some(1)]);
        assert_eq!(["0.0.0.0", "::", "unknown", "0.0.0.0"].map(ask), [Some(2), Some(2), Some(2), Some(1)]);
    }

    proptest! {
        #[test]
        fn a_key_by_its_values_is_that_of_the_descriptor(
            text in prop::string::string_regex("(?s).{0,200}").unwrap(), address in any::<std::net::IpAddr>(),
        ) {
            let (limit, key) = (limit(Mode::Enforce), ["descriptor:a", "descriptor:remote_address"]);
            let address = address.to_string();
            let rules = rules(&limit, usage(&key), &["a", "remote_address"]);
            let keyed = KeyedLimit::new(Arc::clone(&limit), usage(&key), AddressForm { ipv6_prefix: 64 });
            prop_assert_eq!(ask(&rules, &[("a", text.as_bytes()), ("remote_address", address.as_bytes())], 2), (true, Some(1)));
            let mut report = Report::default();
            let values = [text, address];
            let answer = keyed.check(&values, 1, Tick::ZERO + Span::from_millis(1), &mut report).unwrap();
            prop_assert!(matches!(answer, KeyedAnswer::Admitted(_)));
            prop_assert_eq!(report.lines()[0].remaining, 0);
        }
    }
}
