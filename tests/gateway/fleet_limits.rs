//! Limits of several gateways and one store, in the company of the rest of the file: other limits, costs that are known
//! later, plans, reloads.

use std::fs;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Answer, Backend, Client, FRAME, Gateway, Store, eventually, get_with};
use crate::timing::{assert_took, best_of_three, was_late};

fn one(store: &Store, rules: &str, files: &[(&str, &str)]) -> Gateway {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("fleet.key", "0123456789abcdef".repeat(4).as_str())].iter().chain(files) {
        fs::write(directory.path().join(name), text).unwrap();
    }
    Gateway::start_in(directory, &format!("{FRAME}{}", whole(store, rules)))
}

/// Two gateways on these rules, which know each other.
fn two(store: &Store, rules: &str, files: &[(&str, &str)]) -> [Gateway; 2] {
    let gateways = [(); 2].map(|()| one(store, rules, files));
    for gateway in &gateways {
        assert!(eventually(|| gateway.ask_admin("/api/v1/fleet").json()["gateways"] == 2));
    }
    gateways
}

/// A busy machine is not a store that fails, so the deadline is long.
fn whole(store: &Store, rules: &str) -> String {
    let address = store.address();
    format!(
        "[fleet]\nstore = \"redis://{address}\"\nsecret_file = \"fleet.key\"\ndeadline = \"1s\"\non_failure = \"closed\"\n{rules}"
    )
}

fn ask(gateway: &Gateway, fields: &[(&str, &str)]) -> Answer {
    get_with(gateway.address(), "/", fields)
}

/// How many of so many requests pass, asked in turn of both.
fn pass(gateways: &[Gateway; 2], requests: usize, fields: &[(&str, &str)]) -> usize {
    gateways.iter().cycle().take(requests).filter(|gateway| ask(gateway, fields).status == 200).count()
}

#[test]
fn two_shared_limits_take_all_or_nothing() {
    let limit = |name: &str, rate: &str, shared: &str| {
        format!(
            "[[limit]]\nname = \"{name}\"\nkey = \"header:x-{name}\"\nrate = \"{rate}\"\nshared = \"{shared}\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\n"
        )
    };
    for shared in ["strict", "lease"] {
        let store = Store::start();
        let rules = format!(
            "{}{}[[route]]\nname = \"all\"\nlimits = [\"wide\", \"narrow\"]\nrespond = {{ status = 200, body = \"ok\" }}\n",
            limit("wide", "12/1h", shared),
            limit("narrow", "3/1h", "strict"),
        );
        let gateways = two(&store, &rules, &[]);
        let mut passed = 0;
        for narrow in ["a", "b", "c"] {
            assert_eq!(pass(&gateways, 10, &[("X-Wide", "w"), ("X-Narrow", narrow)]), 3, "{shared}");
            passed += 3;
        }
        // 21 were refused by the other one: what was taken for them comes back.
        let mut next = 0;
        assert!(eventually(|| {
            next += 1;
            let narrow = format!("d{next}");
            passed += usize::from(ask(&gateways[next % 2], &[("X-Wide", "w"), ("X-Narrow", &narrow)]).status == 200);
            passed >= 12
        }));
        let more = pass(&gateways, 20, &[("X-Wide", "w"), ("X-Narrow", "e")]);
        // floor(0.25 x 12 / 2) = 1 of each.
        let most = if shared == "lease" { 2 } else { 0 };
        assert!(more <= most, "{shared}: {more} above 12");
    }
}

#[test]
fn requests_wait_for_room_that_the_store_has_later() {
    let rules = "[[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nalgorithm = \"token-bucket\"\nrate = \"10/s\"\nburst = 10\n\
        shared = \"strict\"\nmax_wait = \"20s\"\n\
        [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = { status = 200, body = \"ok\" }\n";
    best_of_three(|| {
        let store = Store::start();
        let gateways = two(&store, rules, &[]);
        let begun = Instant::now();
        let statuses: Vec<u16> = thread::scope(|scope| {
            let ask = |gateway| scope.spawn(move || ask(gateway, &[("X-Key", "a")]).status);
            let asking: Vec<_> = gateways.iter().cycle().take(30).map(ask).collect();
            asking.into_iter().map(|asked| asked.join().unwrap()).collect()
        });
        if statuses.contains(&503) {
            was_late("the store was later than its deadline of a second");
        }
        assert_eq!(statuses, [200; 30]);
        assert_took(begun, 1_900..6_000);
    });
}

#[test]
fn what_a_response_says_is_counted_for_all() {
    let store = Store::start();
    let backend = Backend::start(|request, stream| {
        let cost = request.header("x-says").unwrap_or("1");
        stream.write_all(format!("HTTP/1.1 200 OK\r\nX-Cost: {cost}\r\nContent-Length: 0\r\n\r\n").as_bytes()).is_ok()
    });
    let rules = format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"12/1h\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\n\
         shared = \"strict\"\ncost = 2\ncost_from_response = \"header:X-Cost\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
        backend.address
    );
    let gateways = two(&store, &rules, &[]);
    // 10 for an estimate of 2: more than the estimate.
    assert_eq!(ask(&gateways[0], &[("X-Key", "a"), ("X-Says", "10")]).status, 200);
    assert!(eventually(|| counted(&store) == 10), "{}", counted(&store));
    assert_eq!(ask(&gateways[1], &[("X-Key", "a"), ("X-Says", "2")]).status, 200);
    assert_eq!(ask(&gateways[1], &[("X-Key", "a"), ("X-Says", "2")]).status, 429);
    // Nothing for an estimate of 2: forty of them pass where six would.
    for _ in 0..20 {
        for gateway in &gateways {
            let fields = [("X-Key", "b"), ("X-Says", "0")];
            assert!(eventually(|| ask(gateway, &fields).status == 200), "what was not spent comes back");
        }
    }
}

#[test]
fn answers_that_do_not_count_are_given_back() {
    let store = Store::start();
    let rules = "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
        [[limit]]\nname = \"failures\"\nkey = \"header:x-key\"\nrate = \"4/10000h\"\nalgorithm = \"fixed-window\"\n\
        shared = \"strict\"\ncount_when = { status = [\"401\"] }\n\
        [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"failures\"]\n";
    let gateways = two(&store, rules, &[]);
    for _ in 0..10 {
        for gateway in &gateways {
            assert!(eventually(|| ask(gateway, &[("X-Key", "a")]).status == 200), "a success is free");
        }
    }
    let fail = |gateway: &Gateway| get_with(gateway.address(), "/?status=401", &[("X-Key", "a")]).status;
    let mut failed = 0;
    assert!(eventually(|| {
        failed += usize::from(fail(&gateways[failed % 2]) == 401);
        failed == 4
    }));
    assert_eq!([fail(&gateways[0]), fail(&gateways[1])], [429; 2]);
    assert!(eventually(|| counted(&store) == 4), "what was only held is given back: {}", counted(&store));
}

#[test]
fn a_plan_has_counts_of_its_own_in_the_store() {
    let store = Store::start();
    let rules = "[[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"2/1h\"\nshared = \"strict\"\n\
        [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = { status = 200, body = \"ok\" }\n\
        plans = { file = \"plans.toml\", key = \"header:x-key\" }\n";
    let plans = "default = \"free\"\n[plan.free]\n[plan.pro]\nl = { rate = \"5/1h\" }\n[keys]\ngold = \"pro\"\n";
    let gateways = two(&store, rules, &[("plans.toml", plans)]);
    assert_eq!(pass(&gateways, 10, &[("X-Key", "gold")]), 5);
    assert_eq!(pass(&gateways, 10, &[("X-Key", "other")]), 2);
    let keys = store.ask(&["keys", "sluicegate:l*"]);
    assert_eq!(keys.lines().filter(|key| key.starts_with("sluicegate:l/pro:")).count(), 1, "{keys}");
    assert_eq!(keys.lines().filter(|key| key.starts_with("sluicegate:l:")).count(), 1, "{keys}");
}

#[test]
fn a_limit_changes_under_load_and_holds_afterwards() {
    let (first, second) = (Store::start(), Store::start());
    let limit = |rate: &str, shared: &str| {
        format!(
            "[[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"{rate}\"\nalgorithm = \"fixed-window\"\nalign = \"first\"\nshared = \"{shared}\"\n\
             [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = {{ status = 200, body = \"ok\" }}\n"
        )
    };
    let gateways = two(&first, &limit("12/1h", "lease"), &[]);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for gateway in &gateways {
            let ends = &ends;
            scope.spawn(move || {
                let mut number = 0;
                while !ends.load(Ordering::Relaxed) {
                    number += 1;
                    for key in ["loaded", &format!("new-{number}")] {
                        let status = ask(gateway, &[("X-Key", key)]).status;
                        // 503: a store that is being connected has not answered, and the file says closed.
                        assert!([200, 429, 503].contains(&status), "{status}");
                    }
                }
            });
        }
        for (store, rate, shared) in [
            (&first, "9/1h", "lease"),
            (&first, "9/1h", "strict"),
            (&second, "9/1h", "strict"),
            (&second, "20/1h", "off"),
            (&second, "20/1h", "lease"),
            (&first, "12/1h", "strict"),
        ] {
            for gateway in &gateways {
                let answer = gateway.reload(&whole(store, &limit(rate, shared)));
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            for gateway in &gateways {
                assert!(eventually(|| gateway.ask_admin("/api/v1/fleet").json()["mode"] == "shared"));
                assert!(eventually(|| ask(gateway, &[("X-Key", "loaded")]).status != 503));
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    // "loaded" may be known to be full, and is then answered without the store. A key of its own is not.
    for (gateway, key) in gateways.iter().zip(["probe-1", "probe-2"]) {
        assert!(eventually(|| ask(gateway, &[("X-Key", key)]).status == 200));
    }
    assert_eq!(pass(&gateways, 30, &[("X-Key", "afterwards")]), 12);
}

/// One gateway, and clients that ask at once over a connection each until each has been refused for a second: a refusal that
/// a moment later would be none costs no client anything.
fn pass_all(gateway: &Gateway, connections: usize, key: &str) -> usize {
    let passed = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..connections {
            scope.spawn(|| {
                let mut client = Client::connect(gateway.address());
                let mut refused = None;
                while refused.is_none_or(|since: Instant| since.elapsed() < Duration::from_secs(1)) {
                    match client.request("GET", "/", &[("X-Key", key)], b"").status {
                        200 => {
                            passed.fetch_add(1, Ordering::Relaxed);
                            refused = None;
                        }
                        429 => {
                            refused.get_or_insert_with(Instant::now);
                        }
                        status => panic!("{status}"),
                    }
                }
            });
        }
    });
    passed.into_inner()
}

#[test]
fn a_burst_over_eight_connections_gets_all_that_the_limit_promises() {
    let store = Store::start();
    // With so little overshoot nothing is spent before it is granted: so it is exact.
    for shared in ["shared = \"lease\"\novershoot = 0.005", "shared = \"strict\""] {
        let rules = format!(
            "[[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"100/h\"\n{shared}\n\
             [[route]]\nname = \"all\"\nlimits = [\"l\"]\nrespond = {{ status = 200, body = \"ok\" }}\n"
        );
        let gateway = one(&store, &rules, &[]);
        for key in ["a", "b", "c", "d", "e", "f"] {
            let key = format!("{}-{key}", shared.len());
            assert_eq!(pass_all(&gateway, 8, &key), 100, "{shared}, {key}");
        }
        gateway.wait_metric("sluicegate_fleet_refused_early_total", &["limit=\"l\""], 0.0);
    }
}

#[test]
fn a_key_that_costs_have_filled_for_a_moment_is_asked_again_within_a_second() {
    let store = Store::start();
    let (arrived, released) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let backend = {
        let (arrived, released) = (Arc::clone(&arrived), Arc::clone(&released));
        Backend::start(move |_, stream| {
            arrived.fetch_add(1, Ordering::Relaxed);
            assert!(eventually(|| released.load(Ordering::Relaxed)));
            stream.write_all(b"HTTP/1.1 200 OK\r\nX-Cost: 1\r\nContent-Length: 0\r\n\r\n").is_ok()
        })
    };
    let rules = format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[limit]]\nname = \"l\"\nkey = \"header:x-key\"\nrate = \"1000/h\"\nshared = \"lease\"\novershoot = 0.005\n\
         cost = 100\ncost_from_response = \"header:X-Cost\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n",
        backend.address
    );
    // The second one is told that the key is full, too, and hears nothing of what the first one gives back.
    let gateways = two(&store, &rules, &[]);
    thread::scope(|scope| {
        let asking: Vec<_> = (0..10).map(|_| scope.spawn(|| ask(&gateways[0], &[("X-Key", "a")]).status)).collect();
        assert!(eventually(|| arrived.load(Ordering::Relaxed) == 10), "{arrived:?}");
        for gateway in &gateways {
            let refused = ask(gateway, &[("X-Key", "a")]);
            assert_eq!(refused.status, 429);
        }
        released.store(true, Ordering::Relaxed);
        assert!(asking.into_iter().all(|asked| asked.join().unwrap() == 200));
    });
    for gateway in &gateways {
        assert!(eventually(|| ask(gateway, &[("X-Key", "a")]).status == 200), "990 of 1000 are left");
    }
}

/// The largest count of a key in the store.
fn counted(store: &Store) -> u64 {
    let keys = store.ask(&["keys", "sluicegate:*:*:*"]);
    let counts = keys.lines().map(|key| store.ask(&["hget", key, "0:count"]).trim().parse::<u64>().unwrap_or(0));
    counts.max().unwrap_or(0)
}
