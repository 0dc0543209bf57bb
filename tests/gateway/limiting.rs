use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Gateway, get, get_with};
use crate::timing::{assert_below, best_of_three};

fn limited(limit: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n[[limit]]\nname = \"l\"\n{limit}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"l\"]\n"
    )
}

#[test]
fn real_requests_pass_and_are_refused() {
    let gateway = Gateway::start(&limited("key = \"client-ip\"\nrate = \"5/1h\""));
    let mut client = Client::connect(gateway.address());
    let statuses: Vec<u16> = (0..8).map(|_| client.get("/").status).collect();
    assert_eq!(statuses, [200, 200, 200, 200, 200, 429, 429, 429]);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"forwarded\""], 5.0);
    gateway.wait_metric("sluicegate_requests_total", &["outcome=\"refused\""], 3.0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"admitted\""], 5.0);
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"refused\""], 3.0);
    assert!((gateway.metric("sluicegate_limit_keys", &["limit=\"l\""]) - 1.0).abs() < 0.1);
}

#[test]
fn a_limit_of_a_path_regex_holds_beside_a_catch_all() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"logins\"\nkey = \"client-ip\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"login\"\npath_regex = '/login(;.*)?'\nlimits = [\"logins\"]\nupstream = \"app\"\n\
         [[route]]\nname = \"rest\"\nupstream = \"app\"\n",
    );
    let statuses =
        ["/login", "/login", "/login;x=1", "/other", "/login/x"].map(|path| get(gateway.address(), path).status);
    assert_eq!(statuses, [200, 429, 429, 200, 200]);
}

#[test]
fn a_cookie_in_another_spelling_has_no_count_of_its_own() {
    for on_missing in ["client-ip", "skip"] {
        let limit = format!("key = \"cookie:sid\"\nrate = \"3/1h\"\non_missing_key = \"{on_missing}\"");
        let gateway = Gateway::start(&limited(&limit));
        let ask = |cookie: &str| get_with(gateway.address(), "/", &[("Cookie", cookie)]).status;
        assert_eq!(["sid=session", "sid=\"session\"", "sid= session"].map(ask), [200; 3]);
        assert_eq!(["sid=\"session\"", "sid=session"].map(ask), [429; 2]);
        // All others are one client by its address, and never skipped.
        let others = ["sid=\"\\163ession\"", "sid=\"s\\145ssion\"", "sid=\"a b\"", "sid=\"sess\"ion", "sid=\"session"];
        assert_eq!(others.map(ask), [200, 200, 200, 429, 429], "{on_missing}");
    }
}

#[test]
fn users_whose_other_cookies_name_the_key_have_a_count_of_their_own() {
    let gateway = Gateway::start(&limited("key = \"cookie:id\"\nrate = \"1/1h\""));
    let ask = |cookie: &str| get_with(gateway.address(), "/", &[("Cookie", cookie)]).status;
    let users = ["prefs=a=1,id=2; id=u7", "prefs=a=1,id=2; id=u8", "id=u9; prefs=\"a b\" id=2", "note=a id=2; id=u10"];
    assert_eq!(users.map(ask), [200; 4]);
    assert_eq!(["id=u7", "id=u8", "id=u9", "id=u10"].map(ask), [429; 4]);
}

#[test]
fn a_cookie_with_the_name_again_and_again_is_read_in_one_pass() {
    best_of_three(|| {
        let gateway = Gateway::start(&limited("key = \"cookie:sid\"\nrate = \"1000/1h\""));
        let work = |cookie: &str| {
            let before = gateway.worked();
            for _ in 0..20 {
                assert_eq!(get_with(gateway.address(), "/", &[("Cookie", cookie)]).status, 200);
            }
            gateway.worked().saturating_sub(before)
        };
        let plain = work(&format!("x={}", "y".repeat(60_000)));
        let blanks = " ".repeat(30_000);
        let names = ["sid".repeat(10_000), "sid=".repeat(7_500), " sid=1".repeat(5_000)];
        for cookie in names.map(|names| format!("x={blanks}{names}")) {
            // A look back over the blanks at each name would be 10,000 times 30,000 bytes: seconds of work.
            assert_below(work(&cookie), plain * 10 + Duration::from_millis(200), "work for a cookie");
        }
    });
}

#[test]
fn escaped_delims_make_no_second_path() {
    let gateway = Gateway::start(&limited("key = \"path\"\nrate = \"2/1h\""));
    let ask = |path: &str| get(gateway.address(), path).status;
    assert_eq!(["/a!", "/a%21", "/a!", "/%61%21"].map(ask), [200, 200, 429, 429]);
    let delims = ["/$&'()*+,;=:@", "/%24%26%27%28%29%2a%2B%2c%3B%3d%3A%40", "/$&'()*+,;%3D:@"];
    assert_eq!(delims.map(ask), [200, 200, 429]);
    assert_eq!(["/a%2521", "/a%25", "/a%20", "/a%22"].map(ask), [200; 4]);
}

#[test]
fn a_long_path_meets_the_limit_of_its_regex() {
    for regex in ["/login(;[a-z]{1,6000})?", "/login(;.*b.{10})?"] {
        let gateway = Gateway::start(&format!(
            "[[limit]]\nname = \"logins\"\nrate = \"1/1h\"\n\
             [[route]]\nname = \"login\"\npath_regex = '{regex}'\nlimits = [\"logins\"]\nrespond = {{}}\n\
             [[route]]\nname = \"rest\"\nrespond = {{ status = 204 }}\n"
        ));
        let ask = |letters: usize| get(gateway.address(), &format!("/login;{}", "b".repeat(letters))).status;
        assert_eq!([ask(20), ask(20), ask(5000), ask(6000)], [200, 429, 429, 429], "{regex}");
        assert_eq!(get(gateway.address(), "/other").status, 204);
    }
}

#[test]
fn groups_are_found_in_long_paths() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"moved\"\npath_regex = '/m/(.*)/([a-z]+\\.?)+'\nredirect = { to = \"/new/{1}\" }\n\
         [[route]]\nname = \"rest\"\nupstream = \"app\"\nrewrite = { regex = '/(r+)/(.*)/[a-z]+', to = \"/{2}\" }\n",
    );
    for length in [100, 5_000, 60_000] {
        let middle = "b/".repeat(length / 2);
        let location = format!("/new/{middle}c");
        let moved = get(gateway.address(), &format!("/m/{middle}c/a"));
        assert_eq!((moved.status, moved.header("location")), (307, Some(location.as_str())));
        assert_eq!(get(gateway.address(), &format!("/rr/{middle}c/a")).json()["path"], format!("/{middle}c"));
    }
}

#[test]
fn each_key_has_its_own_count() {
    let gateway = Gateway::start(&limited("key = \"header:x-api-key\"\nrate = \"1/1h\""));
    for key in ["a", "b", "c"] {
        assert_eq!(get_with(gateway.address(), "/", &[("X-Api-Key", key)]).status, 200);
        assert_eq!(get_with(gateway.address(), "/", &[("X-Api-Key", key)]).status, 429);
    }
    // Without the key it is the client's address that counts.
    assert_eq!(get(gateway.address(), "/").status, 200);
    assert_eq!(get(gateway.address(), "/").status, 429);
}

#[test]
fn a_missing_key_can_be_skipped_or_refused() {
    let skipping = Gateway::start(&limited("key = \"cookie:id\"\nrate = \"1/1h\"\non_missing_key = \"skip\""));
    for _ in 0..3 {
        assert_eq!(get(skipping.address(), "/").status, 200);
    }
    assert_eq!(get_with(skipping.address(), "/", &[("Cookie", "a=b; id=7")]).status, 200);
    assert_eq!(get_with(skipping.address(), "/", &[("Cookie", "id=7; x=y")]).status, 429);
    let refusing =
        Gateway::start(&limited("key = \"query:token\"\nrate = \"1/1h\"\non_missing_key = \"refuse\"\nstatus = 403"));
    assert_eq!(get(refusing.address(), "/").status, 403);
    assert_eq!(get(refusing.address(), "/?token=1").status, 200);
    assert_eq!(get(refusing.address(), "/?token=1").status, 403);
}

#[test]
fn the_client_is_read_from_trusted_proxies_only() {
    let rules = limited("key = \"client-ip\"\nrate = \"1/1h\"");
    let trusting = Gateway::start(&format!("[client]\ntrusted_proxies = [\"127.0.0.0/8\"]\n{rules}"));
    let from = |gateway: &Gateway, hops: &str| get_with(gateway.address(), "/", &[("X-Forwarded-For", hops)]).status;
    assert_eq!(from(&trusting, "198.51.100.1"), 200);
    assert_eq!(from(&trusting, "198.51.100.2"), 200);
    assert_eq!(from(&trusting, "6.6.6.6, 198.51.100.1"), 429, "read from the right");
    let wary = Gateway::start(&rules);
    assert_eq!(from(&wary, "198.51.100.1"), 200);
    assert_eq!(from(&wary, "198.51.100.2"), 429, "an untrusted peer cannot choose who it is");
}

#[test]
fn several_limits_are_all_or_nothing() {
    let gateway = Gateway::start(
        "[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[limit]]\nname = \"wide\"\nkey = \"global\"\nrate = \"3/1h\"\n\
         [[limit]]\nname = \"narrow\"\nkey = \"header:k\"\nrate = \"1/1h\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\nlimits = [\"wide\", \"narrow\"]\n",
    );
    let ask = |key: &str| get_with(gateway.address(), "/", &[("k", key)]);
    assert_eq!(ask("a").status, 200);
    for _ in 0..5 {
        let refused = ask("a");
        assert_eq!(refused.status, 429);
        assert_eq!(refused.json()["violated-policies"], serde_json::json!(["narrow"]));
    }
    assert_eq!(ask("b").status, 200);
    assert_eq!(ask("c").status, 200, "refusals by the narrow limit took nothing from the wide one");
    assert_eq!(ask("d").json()["violated-policies"], serde_json::json!(["wide"]));
}

#[test]
fn a_shadow_limit_counts_and_never_refuses() {
    let gateway = Gateway::start(&limited("key = \"global\"\nrate = \"2/1h\"\nmode = \"shadow\""));
    for _ in 0..5 {
        assert_eq!(get(gateway.address(), "/").status, 200);
    }
    gateway.wait_metric("sluicegate_limit_decisions_total", &["decision=\"shadow-refused\""], 3.0);
}

#[test]
fn the_same_limit_holds_over_all_workers_and_connections() {
    let gateway = Gateway::start(&limited("key = \"global\"\nrate = \"500/1h\""));
    let admitted = Arc::new(AtomicUsize::new(0));
    let threads: Vec<_> = (0..8)
        .map(|_| {
            let (address, admitted) = (gateway.address(), Arc::clone(&admitted));
            thread::spawn(move || {
                let mut client = Client::connect(address);
                for _ in 0..125 {
                    if client.get("/").status == 200 {
                        admitted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(admitted.load(Ordering::SeqCst), 500);
}

#[test]
fn retry_after_is_when_it_says() {
    let gateway = Gateway::start(&limited("key = \"global\"\nrate = \"2/2s\"\nslots = 2"));
    let mut client = Client::connect(gateway.address());
    let started = Instant::now();
    let refused = loop {
        let answer = client.get("/");
        if answer.status == 429 {
            break answer;
        }
    };
    let secs: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=2).contains(&secs), "{secs}");
    thread::sleep(Duration::from_secs(secs));
    assert_eq!(client.get("/").status, 200);
    assert!(started.elapsed() >= Duration::from_secs(1));
}
