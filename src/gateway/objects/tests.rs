//! The state that goes on over a reload, the state that begins anew, and that an object which is dropped leaves no trace.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, KeyPair};

use super::*;
use crate::gateway::build::{self, Logs};
use crate::gateway::component::Component as _;
use crate::gateway::testing::{live_state as state, model_at as parsed};
use crate::limiter::Fingerprint;
use crate::time::{Span, Tick};

const FRAME: &str = "[[listener]]\naddress = \"127.0.0.1:1\"\n";

/// A model of a text, in the frame that all have.
fn model(text: &str) -> Arc<Model> {
    parsed(Path::new("/gateway.toml"), &format!("{FRAME}{text}"))
}

/// The snapshot of a model upon another one; its numbers do not hold yet.
fn staged(model: &Arc<Model>, old: Option<&Snapshot>, state: &LiveState) -> Snapshot {
    let nothing = build::nothing(model, state);
    let live = state.stage(model, ()).unwrap();
    let logs = Logs { dead_letters: None, access_log: None };
    let built = build::build(model, 1, (old.unwrap_or(&nothing), state), &live, logs);
    built.unwrap_or_else(|error| panic!("{error}"))
}

fn upstream_of(text: &str) -> Arc<Model> {
    model(&format!("[[upstream]]\nname = \"app\"\n{text}\n[[route]]\nname = \"all\"\nupstream = \"app\"\n"))
}

fn key(number: u64) -> Fingerprint {
    Fingerprint::known(number).unwrap()
}

/// Whether a request gets a place at the first server; it keeps it.
fn takes_place(upstream: &Upstream) -> bool {
    let places = upstream.places.as_ref().unwrap();
    places.bulkhead.take(&places.servers[0], key(1), &mut None).map(std::mem::forget).is_ok()
}

#[test]
fn an_upstream_keeps_its_servers_places_and_breaker() {
    let state = state();
    let one =
        upstream_of("servers = [\"127.0.0.1:1\", \"127.0.0.1:2\"]\nmax_in_flight = 1\nbreaker = { at_least = 5 }");
    let old = staged(&one, None, &state);
    assert!(takes_place(&old.upstreams[0]) && !takes_place(&old.upstreams[0]), "there is one place");

    let two =
        upstream_of("servers = [\"127.0.0.1:2\", \"127.0.0.1:3\"]\nmax_in_flight = 2\nbreaker = { at_least = 9 }");
    let new = staged(&two, Some(&old), &state);
    let (was, is) = (&old.upstreams[0], &new.upstreams[0]);
    assert!(
        Arc::ptr_eq(&was.servers[1].1, &is.servers[0].1),
        "what is in flight at the server that stays is counted on"
    );
    assert!(!Arc::ptr_eq(&was.servers[0].1, &is.servers[1].1), "the new server has nothing in flight");
    assert!(Arc::ptr_eq(was.circuit.as_ref().unwrap(), is.circuit.as_ref().unwrap()));
    let (places, own) = (was.places.as_ref().unwrap(), is.places.as_ref().unwrap());
    assert!(Arc::ptr_eq(&places.bulkhead, &own.bulkhead) && Arc::ptr_eq(&places.servers[1], &own.servers[0]));

    drop(staged(&upstream_of("servers = [\"127.0.0.1:1\"]\nmax_in_flight = 9"), Some(&old), &state));
    assert!(!takes_place(was), "one that is dropped leaves no trace");
    renumber(&new);
    assert!(takes_place(is) && !takes_place(is), "the place that is taken counts among the two");
}

#[test]
fn an_upstream_has_the_weight_that_an_operator_gave() {
    let mut state = state();
    let one = upstream_of("servers = [\"127.0.0.1:1\", \"127.0.0.1:2\"]");
    state.weights.set(&one, "app", "127.0.0.1:2", 7);
    assert_eq!(staged(&one, None, &state).upstreams[0].weights, [1, 7]);
    let two = upstream_of("servers = [\"127.0.0.1:1\", { address = \"127.0.0.1:2\", weight = 3 }]");
    assert_eq!(staged(&two, None, &state).upstreams[0].weights, [1, 3], "the file has spoken");
}

#[test]
fn routes_share_the_objects_that_they_name() {
    let text = "[[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:1\"]\n\
                [[limit]]\nname = \"l\"\nrate = \"9/s\"\n[[bandwidth]]\nname = \"b\"\nrate = \"1MiB/s\"\n\
                [[route]]\nname = \"one\"\npath = \"/1\"\nupstream = \"app\"\nlimits = [\"l\"]\nbandwidth = [\"b\"]\n\
                [[route]]\nname = \"two\"\npath = \"/2\"\nupstream = \"app\"\nlimits = [\"l\"]\nbandwidth = [\"b\"]\n";
    let snapshot = staged(&model(text), None, &state());
    let [one, two] = snapshot.rules.routes() else { panic!("two routes") };
    let upstream = |route: &Route| match &route.action {
        Action::Forward(upstream) => Arc::clone(upstream),
        _ => panic!("it forwards"),
    };
    assert!(Arc::ptr_eq(&upstream(one), &upstream(two)) && Arc::ptr_eq(&upstream(one), &snapshot.upstreams[0]));
    assert!(Arc::ptr_eq(&one.limits[0].keys, &two.limits[0].keys));
    assert!(Arc::ptr_eq(&one.limits[0].keys, &snapshot.limits[0].keys));
    assert!(Arc::ptr_eq(&one.bandwidths[0], &two.bandwidths[0]) && one.limits.len() == one.rules.limits.len());
}

#[test]
fn the_busiest_keys_of_a_limit_are_counted_on_until_its_key_is_another() {
    let state = state();
    let of = |key: &str, rate: &str| {
        model(&format!(
            "[[limit]]\nname = \"l\"\nrate = \"{rate}\"\nkey = \"{key}\"\n\
             [[route]]\nname = \"all\"\nrespond = {{}}\nlimits = [\"l\"]\n"
        ))
    };
    let old = staged(&of("client-ip", "9/s"), None, &state);
    let faster = staged(&of("client-ip", "10/s"), Some(&old), &state);
    assert!(Arc::ptr_eq(&old.limits[0].keys, &faster.limits[0].keys));
    let other = staged(&of("header:x-key", "9/s"), Some(&old), &state);
    assert!(!Arc::ptr_eq(&old.limits[0].keys, &other.limits[0].keys));
}

#[test]
fn bytes_that_a_bandwidth_has_counted_count_under_its_new_numbers() {
    let state = state();
    let of = |rate: &str, more: &str| {
        model(&format!(
            "[[bandwidth]]\nname = \"b\"\nrate = \"{rate}\"\nburst = \"1MiB\"\n{more}\
             [[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:1\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\nbandwidth = [\"b\"]\n"
        ))
    };
    let old = staged(&of("1MiB/s", ""), None, &state);
    let down = |snapshot: &Snapshot| Arc::clone(snapshot.bandwidths[0].down.as_ref().unwrap());
    let start = Tick::ZERO + Span::from_secs(10);
    // Two more megabytes than the burst: two seconds of the rate.
    assert_eq!(down(&old).charge(key(1), 3 << 20, start), start + Span::from_secs(2));

    let new = staged(&of("2MiB/s", "direction = \"down\"\n"), Some(&old), &state);
    assert!(Arc::ptr_eq(&down(&old), &down(&new)) && new.bandwidths[0].up.is_none());
    assert_eq!(down(&new).charge(key(2), 3 << 20, start), start + Span::from_secs(2), "its numbers do not hold yet");
    renumber(&new);
    assert_eq!(down(&new).charge(key(3), 3 << 20, start), start + Span::from_secs(1));
    let other = staged(&of("1MiB/s", "key = \"host\"\n"), Some(&new), &state);
    assert!(!Arc::ptr_eq(&down(&new), &down(&other)), "another key counts others");
}

#[test]
fn connections_of_a_client_are_counted_on_under_new_bounds() {
    let state = state();
    let of = |client: &str| model(&format!("[client]\n{client}\n[[route]]\nname = \"all\"\nrespond = {{}}\n"));
    let old = staged(&of("max_connections = 2\nconnection_rate = \"9/s\""), None, &state);
    let limits = |snapshot: &Snapshot| snapshot.accept.clients.as_ref().unwrap().policy.limits().to_vec();
    let new = staged(&of("max_connections = 5\nconnection_rate = \"9/s\""), Some(&old), &state);
    assert!(limits(&old).iter().zip(&limits(&new)).all(|(was, is)| Arc::ptr_eq(was, is)));
    let before = limits(&new)[0].spec();
    renumber(&new);
    assert_ne!(limits(&new)[0].spec(), before, "the new bound holds from then on");
    assert!(staged(&of("ipv6_prefix = 48"), Some(&new), &state).accept.clients.is_none());
    // The rate alone is still that of before.
    let alone = staged(&of("connection_rate = \"9/s\""), Some(&new), &state);
    assert!(Arc::ptr_eq(&limits(&alone)[0], &limits(&new)[1]));
}

fn write_pair(directory: &Path, name: &str) {
    let key = KeyPair::generate().unwrap();
    let cert = CertificateParams::new(vec!["a.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    std::fs::write(directory.join(format!("{name}.pem")), cert.pem()).unwrap();
    std::fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
}

#[test]
fn tls_is_built_anew_only_where_its_settings_have_changed() {
    let directory = tempfile::tempdir().unwrap();
    for name in ["one", "two", "ca"] {
        write_pair(directory.path(), name);
    }
    let model = |more: &str| {
        let tls = |name: &str| format!("{{ certificates = [{{ cert = \"{name}.pem\", key = \"{name}.key\" }}] }}");
        let listener = |port, name| {
            format!("[[listener]]\naddress = \"127.0.0.1:{port}\"\nprotocol = \"https\"\ntls = {}\n", tls(name))
        };
        let text = format!(
            "{}{}[[listener]]\naddress = \"127.0.0.1:80\"\n[admin]\naddress = \"127.0.0.1:9\"\ntls = {}\n\
             [[upstream]]\nname = \"app\"\nservers = [\"127.0.0.1:1\"]\ntls = {{ ca = \"ca.pem\" }}\n{more}\
             [[upstream]]\nname = \"plain\"\nservers = [\"127.0.0.1:1\"]\n\
             [[route]]\nname = \"all\"\nupstream = \"app\"\n[[route]]\nname = \"plain\"\npath = \"/p\"\nupstream = \"plain\"\n",
            listener(441, "one"),
            listener(442, "two"),
            tls("two"),
        );
        parsed(&directory.path().join("gateway.toml"), &text)
    };
    let state = state();
    let listener = |snapshot: &Snapshot, port: u16| {
        snapshot.listeners[&ListenAddress::Tcp(([127, 0, 0, 1], port).into())].tls.clone()
    };
    let first = staged(&model(""), None, &state);
    let same = |next: &Snapshot, port| Arc::ptr_eq(&listener(&first, port).unwrap(), &listener(next, port).unwrap());
    let upstream = |snapshot: &Snapshot, name| snapshot.upstream(name).unwrap().link.tls.clone();
    let same_upstream =
        |next: &Snapshot| Arc::ptr_eq(&upstream(&first, "app").unwrap(), &upstream(next, "app").unwrap());
    let admin = listener::AdminTls::default().renewed(&model(""), &state.tickets).unwrap();
    let same_admin = |model: &Model| {
        let next = admin.renewed(model, &state.tickets).unwrap();
        Arc::ptr_eq(&admin.get().unwrap(), &next.get().unwrap())
    };
    assert!(listener(&first, 80).is_none() && upstream(&first, "plain").is_none());

    let next = staged(&model("connect_timeout = \"1s\"\n"), Some(&first), &state);
    assert!(same(&next, 441) && same(&next, 442) && same_upstream(&next) && same_admin(&next.model));
    write_pair(directory.path(), "two");
    let next = staged(&model(""), Some(&first), &state);
    assert!(same(&next, 441) && !same(&next, 442) && same_upstream(&next) && !same_admin(&next.model));
    write_pair(directory.path(), "ca");
    assert!(!same_upstream(&staged(&model(""), Some(&first), &state)));
    let next = staged(&model("protocol = \"h2\"\n"), Some(&first), &state);
    assert!(!same_upstream(&next), "other protocols are asked for");
}

#[test]
fn connections_of_a_listener_keep_their_places() {
    let state = state();
    let of = |bound: &str| {
        parsed(Path::new("/gateway.toml"), &format!("{FRAME}{bound}\n[[route]]\nname = \"all\"\nrespond = {{}}\n"))
    };
    let places = |snapshot: &Snapshot| snapshot.listeners.values().next().unwrap().places.clone();
    let old = staged(&of("max_connections = 2"), None, &state);
    let held = [places(&old).unwrap().take(), places(&old).unwrap().take()];
    assert!(held.iter().all(Option::is_some) && places(&old).unwrap().take().is_none());
    let new = staged(&of("max_connections = 3"), Some(&old), &state);
    let one_more = places(&new).unwrap().take();
    assert!(one_more.is_some() && places(&new).unwrap().take().is_none(), "two of the three are taken");
    assert!(places(&staged(&of(""), Some(&new), &state)).is_none());
}
