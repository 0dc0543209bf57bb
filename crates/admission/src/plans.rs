//! The plan of a request, and its terms.

use std::fmt;
use std::num::{NonZeroU8, NonZeroU16};
use std::sync::Arc;

use super::client::AddressForm;
use super::exempt::KeyValueError;
use super::identity::KeyFacts;
use super::key::KeyExpr;
use super::route::LimitUse;
use super::view::RequestView;
use sluicegate_limiter::{Fingerprint, KeyHasher, Policy};
use sluicegate_time::Span;

/// Keys in a cache line: the line holds their fingerprints and plans, so that a lookup mostly waits for memory once.
const PER_LINE: usize = 6;
/// Of a line's places this many tenths are taken at the most, on average: then few lookups need a second line.
const FULL_TENTHS: usize = 8;

/// The plans of one route.
#[derive(Clone, Debug)]
pub struct RoutePlans {
    /// The plan of each key.
    pub keys: Arc<PlanKeys>,
    /// The plan of who has no key, or an unknown one; an index into `terms`.
    pub default: u16,
    /// The terms of each plan, in the order of their numbers in `keys`.
    pub terms: Vec<PlanTerms>,
}

/// The terms of one plan of a route, in place of the route's own.
#[derive(Clone, Debug)]
pub struct PlanTerms {
    /// The plan's name.
    pub name: Arc<str>,
    /// The route's limits, with the plan's numbers.
    pub policy: Arc<Policy>,
    /// How each limit is used, in the order of the policy: as many as the route's, with the same keys.
    pub limits: Vec<LimitUse>,
    /// From arrival to the last byte of the response.
    pub timeout: Option<Span>,
}

/// The plan of each key: fingerprints and small numbers, no key itself. Built once, then only read.
pub struct PlanKeys {
    key: KeyExpr,
    hasher: KeyHasher,
    /// Open addressing by whole lines. There is always an empty place.
    lines: Box<[PlanSlot]>,
    count: usize,
    /// Whether some key has a day on which its months begin.
    has_days: bool,
}

/// The line of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyPlan {
    /// The number of its plan.
    pub plan: u16,
    /// The day on which its months begin, 1 to 31; `None`: on the first.
    pub renews: Option<NonZeroU8>,
}

/// An empty place has the fingerprint 0, which is none.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct PlanSlot {
    prints: [u64; PER_LINE],
    plans: [u16; PER_LINE],
    /// The days on which months begin, of [`DAY_BITS`] each; 0: none is said.
    days: u32,
}

/// Bits of a day.
const DAY_BITS: usize = 5;
const _: () = assert!(DAY_BITS * PER_LINE <= u32::BITS as usize, "the days of a line");

/// A plan of a route, by its place in [`RoutePlans::terms`]. As small as can be: each connection has room for a few.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanPlace(NonZeroU16);

/// A key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DuplicateKey;

impl PlanPlace {
    /// `None` if there cannot be so many.
    pub const fn new(place: u16) -> Option<Self> {
        match NonZeroU16::MIN.checked_add(place) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The index into [`RoutePlans::terms`].
    pub const fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl RoutePlans {
    /// The terms of a plan.
    #[inline]
    pub fn terms_of(&self, plan: PlanPlace) -> Option<&PlanTerms> {
        self.terms.get(plan.index())
    }

    /// The request's plan, and the day on which the months of its key begin. Where the file has days, those of a key without one
    /// begin on the first.
    #[inline]
    pub(super) fn plan_of<V: RequestView + ?Sized>(
        &self,
        facts: &KeyFacts<'_, V>,
    ) -> (Option<PlanPlace>, Option<NonZeroU8>) {
        let print = self.keys.key.fingerprint(facts, &self.keys.hasher);
        let found = print.ok().and_then(|print| self.keys.find(print));
        let plan = PlanPlace::new(found.map_or(self.default, |found| found.plan));
        if !self.keys.has_days {
            return (plan, None);
        }
        (plan, found.and_then(|found| found.renews).or(Some(NonZeroU8::MIN)))
    }
}

impl PlanKeys {
    /// An empty table with room for `count` values of `key`. `hasher` makes their fingerprints, and those of requests.
    pub fn with_room(count: usize, key: KeyExpr, hasher: KeyHasher) -> Self {
        let lines = count.saturating_mul(10).div_ceil(PER_LINE * FULL_TENTHS).max(1);
        Self { key, hasher, lines: vec![PlanSlot::default(); lines].into_boxed_slice(), count: 0, has_days: false }
    }

    /// Notes who has a plan. The caller gives no more keys than it asked room for.
    pub fn insert(&mut self, print: Fingerprint, plan: impl Into<KeyPlan>) -> Result<(), DuplicateKey> {
        let KeyPlan { plan, renews } = plan.into();
        let (print, lines) = (print.bits(), self.lines.len());
        let mut at = home(print, lines);
        for _ in 0..lines {
            let Some(line) = self.lines.get_mut(at) else { break };
            for (place, (own, own_plan)) in line.prints.iter_mut().zip(&mut line.plans).enumerate() {
                if *own == print {
                    return Err(DuplicateKey);
                }
                if *own == 0 {
                    (*own, *own_plan) = (print, plan);
                    line.days |= u32::from(renews.map_or(0, NonZeroU8::get) & 31) << (place * DAY_BITS);
                    self.has_days |= renews.is_some();
                    self.count += 1;
                    return Ok(());
                }
            }
            at = next(at, lines);
        }
        // More keys than there is room for: they have no plan, and no lookup is without end.
        Ok(())
    }

    /// The plan of a key.
    pub fn plan_of(&self, print: Fingerprint) -> Option<u16> {
        self.find(print).map(|found| found.plan)
    }

    /// The line of a key.
    #[inline]
    pub fn find(&self, print: Fingerprint) -> Option<KeyPlan> {
        let (print, lines) = (print.bits(), self.lines.len());
        let mut at = home(print, lines);
        for _ in 0..lines {
            let line = self.lines.get(at)?;
            if let Some(place) = line.prints.iter().position(|own| *own == print) {
                return line.entry(place);
            }
            // Places are taken in their order.
            if line.prints.last() == Some(&0) {
                return None;
            }
            at = next(at, lines);
        }
        None
    }

    /// The key that it knows clients by.
    pub fn key(&self) -> &KeyExpr {
        &self.key
    }

    /// The hasher that makes its fingerprints.
    pub fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether some key has a day on which its months begin.
    pub fn has_days(&self) -> bool {
        self.has_days
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many keys have another plan in `new` or another day, how many are only there, and how many only here. Both have to be made
    /// with the same hasher; plans are compared by `same`, which is given a number of this table and one of `new`.
    pub fn compare(&self, new: &Self, same: impl Fn(u16, u16) -> bool) -> KeyChanges {
        let mut changes = KeyChanges::default();
        let mut met = 0;
        for (print, own) in self.entries() {
            if let Some(other) = new.find(print) {
                met += 1;
                changes.moved += usize::from(!same(own.plan, other.plan));
                changes.renewed += usize::from(own.renews != other.renews);
            }
        }
        changes.removed = self.count.saturating_sub(met);
        changes.added = new.count.saturating_sub(met);
        changes
    }

    fn entries(&self) -> impl Iterator<Item = (Fingerprint, KeyPlan)> {
        let places = self.lines.iter().flat_map(|line| line.prints.iter().enumerate().map(move |of| (line, of)));
        places.filter_map(|(line, (place, print))| Some((Fingerprint::known(*print)?, line.entry(place)?)))
    }
}

impl PlanSlot {
    #[inline]
    fn entry(&self, place: usize) -> Option<KeyPlan> {
        let renews = (self.days >> (place * DAY_BITS)) & 31;
        Some(KeyPlan { plan: *self.plans.get(place)?, renews: u8::try_from(renews).ok().and_then(NonZeroU8::new) })
    }
}

impl From<u16> for KeyPlan {
    /// Without a day.
    fn from(plan: u16) -> Self {
        Self { plan, renews: None }
    }
}

/// The changes of the keys of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    /// New keys.
    pub added: usize,
    /// Keys that are gone.
    pub removed: usize,
    /// Keys with another plan.
    pub moved: usize,
    /// Keys whose months begin on another day.
    pub renewed: usize,
}

impl KeyExpr {
    /// The fingerprint that a request with this value of the key has. `text` is as [`check_value`](Self::check_value)
    /// takes it, and an address where the key is `client-ip` alone.
    pub fn fingerprint_of_value(
        &self,
        text: &str,
        form: AddressForm,
        hasher: &KeyHasher,
    ) -> Result<Fingerprint, KeyValueError> {
        let mut print = hasher.start();
        self.read_any_value(text, form, &mut print)?;
        Ok(print.finish())
    }
}

impl fmt::Debug for PlanKeys {
    /// Without the fingerprints: there may be a million.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlanKeys").field("key", &self.key).field("count", &self.count).finish_non_exhaustive()
    }
}

/// The line in which a key is looked for first: fingerprints are spread evenly, so a share of them is a share of lines.
#[inline]
fn home(print: u64, lines: usize) -> usize {
    ((u128::from(print) * lines as u128) >> 64) as usize
}

#[inline]
fn next(at: usize, lines: usize) -> usize {
    if at + 1 < lines { at + 1 } else { 0 }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;
    use crate::testing;
    use crate::{AddressHeader, ClientRules, OnMissingKey, PathPattern, PlainRequest, Refused, RouteRules};
    use sluicegate_limiter::{Algorithm, Bound, Limit, LimitSpec, Report, TimerWheel};
    use sluicegate_time::Tick;

    type Admission = crate::Admission<Arc<RouteRules>>;
    type Rules = crate::Rules<Arc<RouteRules>>;

    fn table(room: usize) -> PlanKeys {
        PlanKeys::with_room(room, KeyExpr::parse(&["header:k"]).unwrap(), KeyHasher::fixed())
    }

    fn print(bits: u64) -> Fingerprint {
        Fingerprint::known(bits).unwrap()
    }

    #[test]
    fn a_million_keys_take_less_than_fourteen_megabytes() {
        assert_eq!(size_of::<PlanSlot>(), 64);
        let lines = table(1_000_000).lines.len();
        assert!(lines * PER_LINE * FULL_TENTHS >= 10_000_000, "{lines} lines");
        assert!(lines * 64 < 14_000_000, "{lines} lines");
    }

    #[test]
    fn a_place_takes_two_bytes_and_none_costs_nothing() {
        assert_eq!(size_of::<Option<PlanPlace>>(), 2);
        for place in [0, 1, u16::MAX - 1] {
            assert_eq!(PlanPlace::new(place).map(PlanPlace::index), Some(usize::from(place)));
        }
        assert_eq!(PlanPlace::new(u16::MAX), None);
    }

    #[test]
    fn an_empty_table_knows_nobody() {
        let keys = table(0);
        assert!(keys.is_empty());
        assert_eq!(keys.plan_of(print(1)), None);
        assert_eq!(keys.plan_of(print(u64::MAX)), None);
    }

    #[test]
    fn a_crowded_end_goes_on_at_the_start() {
        let mut keys = table(20);
        let lines = keys.lines.len() as u64;
        assert!(lines > 2);
        // All of them belong to the last line.
        let crowd: Vec<u64> = (0..20).map(|at| u64::MAX - at).collect();
        for (plan, bits) in crowd.iter().enumerate() {
            assert_eq!(keys.insert(print(*bits), plan as u16), Ok(()));
        }
        for (plan, bits) in crowd.iter().enumerate() {
            assert_eq!(keys.plan_of(print(*bits)), Some(plan as u16), "{plan}");
        }
        assert_eq!((keys.plan_of(print(u64::MAX - 20)), keys.len()), (None, 20));
        assert_eq!(keys.insert(print(u64::MAX - 19), 7), Err(DuplicateKey));
    }

    #[test]
    fn more_keys_than_there_is_room_for_end_all_the_same() {
        let mut keys = table(1);
        for bits in 1..100 {
            let _ = keys.insert(print(bits), 1);
        }
        assert_eq!(keys.len(), PER_LINE);
        assert_eq!(keys.plan_of(print(99)), None);
    }

    const PEER: &str = "192.0.2.1";

    /// So many a second, by this header.
    fn terms(name: &str, rate: &str, timeout: Option<Span>) -> PlanTerms {
        let limit = Limit::new(LimitSpec {
            max_keys: 1_000,
            ..LimitSpec::new(
                "limit",
                Algorithm::TimerWheel(TimerWheel::new(&[rate.parse().unwrap()], None, Bound::Sliding).unwrap()),
            )
        });
        let usage = LimitUse {
            hasher: KeyHasher::random(),
            on_missing: OnMissingKey::ClientIp,
            ..testing::usage(&["client-ip"])
        };
        PlanTerms { name: name.into(), policy: Policy::new(vec![limit]).unwrap(), limits: vec![usage], timeout }
    }

    /// A route by three plans: one, two and three a second. The first is the default.
    fn rules(key: &[&str], values: &[(&str, u16)]) -> Rules {
        let key = KeyExpr::parse(key).unwrap();
        let mut keys = PlanKeys::with_room(values.len(), key.clone(), KeyHasher::random());
        for (value, plan) in values {
            let print = key.fingerprint_of_value(value, AddressForm::default(), keys.hasher()).unwrap();
            keys.insert(print, *plan).unwrap();
        }
        let PlanTerms { policy, limits, timeout, .. } = terms("none", "9/s", None);
        let second = Some(Span::from_secs(1));
        let plans = RoutePlans {
            keys: Arc::new(keys),
            default: 0,
            terms: vec![terms("one", "1/s", None), terms("two", "2/s", second), terms("three", "3/s", None)],
        };
        let pattern = testing::pattern(PathPattern::Prefix("/".to_owned()));
        let route = RouteRules {
            policy,
            limits,
            timeout,
            plans: Some(Box::new(plans)),
            ..testing::route("route", pattern, Vec::new())
        };
        Rules::new(testing::clients(), vec![Arc::new(route)], KeyHasher::random())
    }

    fn admit(rules: &Rules, view: &PlainRequest, peer: &str) -> Admission {
        rules.admit(view, peer.parse().unwrap(), Tick::ZERO, &mut Report::default())
    }

    fn plan_of(rules: &Rules, view: &PlainRequest, peer: &str) -> Option<usize> {
        match admit(rules, view, peer) {
            Admission::Admitted(admitted) => admitted.arrival().plan.map(PlanPlace::index),
            Admission::Refused(_, arrival, _) => arrival.plan.map(PlanPlace::index),
            _ => panic!("there is a route, and nobody waits"),
        }
    }

    fn get() -> PlainRequest {
        PlainRequest::new("GET", "/")
    }

    #[test]
    fn a_request_is_held_to_the_numbers_of_its_plan() {
        let rules = rules(&["header:k"], &[("a", 1), ("b", 2), ("c", 0), ("d", 2)]);
        let count = |view: &PlainRequest| {
            (0..5).filter(|_| matches!(admit(&rules, view, PEER), Admission::Admitted(_))).count()
        };
        // The limits count by address: each plan's by itself.
        assert_eq!((count(&get().with("k", "a")), count(&get().with("k", "b"))), (2, 3));
        assert_eq!((count(&get().with("k", "d")), count(&get().with("k", "c"))), (0, 1));
        assert_eq!((count(&get().with("k", "x")), count(&get())), (0, 0), "they are of the default plan, as c is");
    }

    #[test]
    fn the_plan_is_told_with_its_deadline_and_the_refusal_with_its_quota() {
        let rules = rules(&["header:k"], &[("a", 1), ("b", 2)]);
        for (view, plan, deadline) in [
            (get().with("k", "a"), 1, Some(Tick::ZERO + Span::from_secs(1))),
            (get().with("k", " b "), 2, None),
            (get(), 0, None),
        ] {
            let Admission::Admitted(admitted) = admit(&rules, &view, PEER) else { panic!("the first of its plan") };
            assert_eq!((admitted.arrival().plan, admitted.deadline()), (PlanPlace::new(plan), deadline));
        }
        assert!(matches!(admit(&rules, &get().with("k", "a"), PEER), Admission::Admitted(_)));
        let Admission::Refused(_, arrival, Refused::Limit(refusal)) = admit(&rules, &get().with("k", "a"), PEER) else {
            panic!("two a second")
        };
        assert_eq!((arrival.plan, refusal.quota), (PlanPlace::new(1), 2));
    }

    #[test]
    fn values_are_known_in_whatever_spelling_requests_have_them() {
        let view = get().host("API.example.com.");
        for (key, value, view, peer) in [
            (&["header:k"][..], "gold", get().with("K", "  gold "), PEER),
            (&["header:authorization"], "bearer x", get().with("authorization", "Bearer   x"), PEER),
            (&["cookie:k"], "a b", get().with("cookie", "x=1; k=a%20b"), PEER),
            (&["query:k"], "a b", PlainRequest::new("GET", "/?k=a+b"), PEER),
            (&["host"], "api.EXAMPLE.com", view.clone(), PEER),
            (&["client-ip"], "192.0.2.1", get(), PEER),
            (&["client-ip"], "::ffff:192.0.2.1", get(), PEER),
            (&["client-ip"], "2001:db8::1", get(), "2001:db8::ffff"),
            (&["client-ip", "header:k"], "192.0.2.1 + x", get().with("k", "x"), PEER),
            (&["path"], "/", get(), PEER),
        ] {
            assert_eq!(plan_of(&rules(key, &[(value, 2)]), &view, peer), Some(2), "{key:?} {value}");
        }
        let twice = get().with("k", "gold").with("k", "lead");
        assert_eq!(plan_of(&rules(&["header:k"], &[("gold", 2), ("lead", 1)]), &twice, PEER), Some(0), "two are none");
        assert_eq!(plan_of(&rules(&["client-ip"], &[("2001:db8::1", 2)]), &get(), "2001:db8:1::1"), Some(0));
    }

    fn key_plan((plan, day): (u16, u8)) -> KeyPlan {
        KeyPlan { plan, renews: NonZeroU8::new(day) }
    }

    #[test]
    fn a_key_without_a_day_begins_its_months_on_the_first_where_others_have_one() {
        let days = |entries: &[(&str, u8)]| {
            let expression = KeyExpr::parse(&["header:k"]).unwrap();
            let hasher = KeyHasher::fixed();
            let mut keys = PlanKeys::with_room(entries.len(), expression, hasher.clone());
            for (key, day) in entries {
                let print = keys.key().fingerprint_of_value(key, AddressForm::default(), &hasher).unwrap();
                keys.insert(print, key_plan((0, *day))).unwrap();
            }
            let plans = RoutePlans { keys: Arc::new(keys), default: 0, terms: Vec::new() };
            ["a", "b", "x"].map(|key| {
                let view = get().with("k", key);
                let rules = ClientRules {
                    trusted_proxies: Vec::new(),
                    address_header: AddressHeader::XForwardedFor,
                    ipv6_prefix: 64,
                };
                let client = crate::Clients::new(rules).identify(&view, PEER.parse().unwrap()).client;
                let facts = KeyFacts { view: &view, client: &client, host: None, path: "/", route: "r" };
                plans.plan_of(&facts).1.map(NonZeroU8::get)
            })
        };
        assert_eq!(days(&[("a", 15), ("b", 0)]), [Some(15), Some(1), Some(1)]);
        assert_eq!(days(&[("a", 0), ("b", 0)]), [None; 3], "nothing is said");
    }

    proptest! {
        #[test]
        fn finds_what_a_map_finds(
            entries in prop::collection::vec(
                (prop_oneof![1..64_u64, any::<u64>().prop_map(|bits| bits.max(1))], (0..9_u16, 0..32_u8).prop_map(key_plan)),
                0..200,
            ),
            asked in prop::collection::vec(1..64_u64, 50),
        ) {
            let mut keys = table(entries.len());
            let mut map = HashMap::new();
            for (bits, plan) in &entries {
                let is_new = !map.contains_key(bits);
                prop_assert_eq!(keys.insert(print(*bits), *plan).is_ok(), is_new);
                map.entry(*bits).or_insert(*plan);
            }
            prop_assert_eq!(keys.len(), map.len());
            for bits in entries.iter().map(|(bits, _)| *bits).chain(asked) {
                prop_assert_eq!(keys.find(print(bits)), map.get(&bits).copied());
            }
            prop_assert_eq!(keys.has_days(), map.values().any(|own| own.renews.is_some()));
            let seen: HashMap<u64, KeyPlan> = keys.entries().map(|(print, plan)| (print.bits(), plan)).collect();
            prop_assert_eq!(seen, map);
        }

        #[test]
        fn counts_what_has_changed_as_two_maps_do(
            old in prop::collection::hash_map(1..40_u64, (0..3_u16, 0..3_u8).prop_map(key_plan), 0..30),
            new in prop::collection::hash_map(1..40_u64, (0..3_u16, 0..3_u8).prop_map(key_plan), 0..30),
        ) {
            let fill = |map: &HashMap<u64, KeyPlan>| {
                let mut keys = table(map.len());
                for (bits, plan) in map {
                    keys.insert(print(*bits), *plan).unwrap();
                }
                keys
            };
            let expected = KeyChanges {
                added: new.keys().filter(|key| !old.contains_key(key)).count(),
                removed: old.keys().filter(|key| !new.contains_key(key)).count(),
                moved: old.iter().filter(|(key, own)| new.get(key).is_some_and(|other| other.plan != own.plan)).count(),
                renewed: old.iter().filter(|(key, own)| new.get(key).is_some_and(|other| other.renews != own.renews)).count(),
            };
            prop_assert_eq!(fill(&old).compare(&fill(&new), |one, other| one == other), expected);
        }
    }
}
