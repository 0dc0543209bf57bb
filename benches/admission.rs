//! The cost of admission per request: plain, limited by 10,000 keys, by a million with plans and without, among 1,000
//! routes; and the spelling of paths.
//!
//! `cargo bench --bench admission`

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use criterion::{Criterion, criterion_group, criterion_main};
use sluicegate::admission::{
    AddressHeader, Admission, ClientRules, Cost, HostPattern, KeyExpr, LimitUse, OnMissingKey, PathPattern,
    PlainRequest, PlanKeys, PlanTerms, RoutePattern, RoutePlans, RouteRules, Rules,
};
use sluicegate::limiter::{Algorithm, Bound, Counting, KeyHasher, Limit, LimitSpec, Policy, Report, TimerWheel};
use sluicegate::time::{Span, Tick};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

fn route(hosts: &[&str], path: PathPattern, key: Option<&str>) -> RouteRules {
    let rates = ["1000000000/s".parse().expect("a rate")];
    let limit = || {
        Limit::new(LimitSpec {
            max_keys: 1_000_000,
            ..LimitSpec::new(
                "limit",
                Algorithm::TimerWheel(TimerWheel::new(&rates, None, Bound::Sliding).expect("a wheel")),
            )
        })
    };
    let usage = |key| LimitUse {
        key: KeyExpr::parse(&[key]).expect("a key"),
        hasher: KeyHasher::fixed(),
        on_missing: OnMissingKey::ClientIp,
        cost: Cost::ONE,
        rate_from: None,
        renewal: None,
        counting: Counting::AtOnce,
        exempt: None,
        exceptions: Arc::default(),
        enforced: true,
        shared: false,
        active: None,
        timeout_while_active: None,
    };
    RouteRules {
        name: "route".into(),
        pattern: RoutePattern {
            hosts: hosts.iter().map(|host| HostPattern::parse(host).expect("a host")).collect(),
            path,
            methods: Vec::new(),
            headers: Vec::new(),
            allow_encoded_slash: false,
            path_as_received: false,
        },
        active: None,
        policy: Policy::new(key.iter().map(|_| limit()).collect()).expect("a policy"),
        limits: key.map(usage).into_iter().collect(),
        hash_key: None,
        body: None,
        timeout: None,
        response_timeout: Some(Span::from_secs(60)),
        count_preflight: true,
        takes_preflights: false,
        plans: None,
    }
}

fn prefix(text: &str) -> PathPattern {
    PathPattern::prefix(text).expect("a path")
}

fn rules(routes: Vec<RouteRules>) -> Rules<Arc<RouteRules>> {
    let clients = ClientRules {
        trusted_proxies: vec!["10.0.0.0/8".parse().expect("a network")],
        address_header: AddressHeader::XForwardedFor,
        ipv6_prefix: 64,
    };
    Rules::new(clients, routes.into_iter().map(Arc::new).collect(), KeyHasher::fixed())
}

fn request(target: &str) -> PlainRequest {
    PlainRequest::new("GET", target)
        .host("api.example.com")
        .with("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0")
        .with("accept", "*/*")
        .with("accept-encoding", "gzip, br")
}

fn admits(c: &mut Criterion, name: &str, rules: &Rules<Arc<RouteRules>>, requests: &[PlainRequest]) {
    let mut turn = 0;
    let mut now = Tick::ZERO;
    let mut report = Report::default();
    c.bench_function(name, |bencher| {
        bencher.iter(|| {
            turn = if turn + 1 < requests.len() { turn + 1 } else { 0 };
            now = now + Span::from_nanos(1_000);
            let admission = rules.admit(black_box(&requests[turn]), PEER, now, &mut report);
            assert!(matches!(admission, Admission::Admitted(_)), "nothing refuses here");
        });
    });
}

fn admission(c: &mut Criterion) {
    let plain = rules(vec![route(&[], prefix("/"), None)]);
    admits(c, "admit/plain route", &plain, &[request("/api/v1/users/4711")]);

    let by_client = rules(vec![route(&[], prefix("/"), Some("client-ip"))]);
    admits(c, "admit/limit by client-ip", &by_client, &[request("/api/v1/users/4711")]);

    let by_header = rules(vec![route(&[], prefix("/"), Some("header:x-api-key"))]);
    let keys: Vec<_> =
        (0..10_000).map(|key| request("/api/v1/users").with("x-api-key", format!("key-{key:08}"))).collect();
    admits(c, "admit/limit by header, 10k keys", &by_header, &keys);

    let mut many: Vec<_> = (0..600).map(|at| route(&[], prefix(&format!("/service-{at}/v{}", at % 7)), None)).collect();
    many.extend((0..200).map(|at| route(&[], PathPattern::exact(&format!("/exact/{at}")).expect("a path"), None)));
    many.extend((0..100).map(|at| route(&[&format!("h{at}.example.com")], prefix("/"), None)));
    many.extend((0..100).map(|at| route(&[&format!("*.w{at}.example.com")], prefix("/"), None)));
    let many = rules(many);
    admits(c, "admit/1000 routes, prefix", &many, &[request("/service-599/v4/users/4711")]);
    admits(c, "admit/1000 routes, exact", &many, &[request("/exact/199")]);
    admits(c, "admit/1000 routes, wildcard host", &many, &[request("/x").host("a.b.w99.example.com")]);
}

/// A million keys that a limit knows, each with a plan or without plans: of the keys every tenth is asked for, each
/// elsewhere in memory than the one before.
fn plans(c: &mut Criterion) {
    const KEYS: usize = 1_000_000;
    const ASKED: usize = 100_000;
    let name = |at: usize| format!("key-{at:08}");
    let by_key = |at: usize| request("/api/v1/users").with("x-api-key", name(at));
    let without = route(&[], prefix("/"), Some("header:x-api-key"));
    let own = |name: &str| {
        let RouteRules { policy, limits, timeout, .. } = route(&[], prefix("/"), Some("header:x-api-key"));
        PlanTerms { name: name.into(), policy, limits, timeout }
    };
    let key = KeyExpr::parse(&["header:x-api-key"]).expect("a key");
    let mut keys = PlanKeys::with_room(KEYS, key.clone(), KeyHasher::random());
    for at in 0..KEYS {
        let print = key
            .fingerprint_of_value(&name(at), sluicegate::admission::AddressForm::default(), keys.hasher())
            .expect("a value");
        keys.insert(print, (at % 3) as u16).expect("each once");
    }
    let plans = RoutePlans { keys: Arc::new(keys), default: 0, terms: vec![own("free"), own("pro"), own("team")] };
    let with = RouteRules { plans: Some(Box::new(plans)), ..without.clone() };
    let asked: Vec<_> = (0..ASKED).map(|at| by_key(at * (KEYS / ASKED))).collect();
    for (what, route) in [("admit/limit by header, 1M keys", without), ("admit/the same with plans, 1M keys", with)] {
        let rules = rules(vec![route]);
        let mut report = Report::default();
        for at in 0..KEYS {
            drop(black_box(rules.admit(&by_key(at), PEER, Tick::ZERO, &mut report)));
        }
        admits(c, what, &rules, &asked);
    }
}

/// By way of a whole admission, since the spelling is no business of other rooms: subtract the plain route.
fn spelling(c: &mut Criterion) {
    let plain = rules(vec![route(&[], prefix("/"), None)]);
    for (name, target) in [
        ("path/clean, 2 bytes", "/x"),
        ("path/clean, 64 bytes", "/api/v1/organisations/4711/departments/12/people/0815/photos/1.j"),
        ("path/clean with escapes", "/dateien/%C3%9Cbersicht%202024/M%C3%BCnchen/bericht.pdf"),
        ("path/dirty", "/api//v1/./organisations/%34711/../%7euser/people/0815/photos"),
    ] {
        admits(c, name, &plain, &[request(target)]);
    }
}

criterion_group!(benches, admission, plans, spelling);
criterion_main!(benches);
