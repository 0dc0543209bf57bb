//! Recipes about changing what goes on, while it goes on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

use crate::support::{Backend, eventually, write_ok};

use super::caller::{BOTH, Caller, INSIDE, OUTSIDE, Over, violated};
use super::page::{Recipe, replace_once};

/// A server that says its name; `/slow` only when it may.
fn release(name: &'static str, may_end: &Arc<AtomicBool>) -> Backend {
    let may_end = Arc::clone(may_end);
    Backend::start(move |request, stream| {
        while request.line.contains("/slow") && !may_end.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        write_ok(stream, name.as_bytes())
    })
}

/// Asks on one connection until told to stop; what answered, in order.
fn ask_on(over: Over, from: &str, to: SocketAddr, stop: &AtomicBool, asked: &AtomicUsize) -> Vec<String> {
    let mut caller = Caller::open(over, from, to);
    let mut answers = Vec::new();
    // A pace below the recipe's own limit.
    while !stop.load(Ordering::SeqCst) && answers.len() < 590 {
        let answer = caller.get("/", &[]);
        assert_eq!(answer.status, 200, "{over:?} {answer:?}");
        assert_eq!(answer.header("x-release"), Some(answer.text().as_str()));
        answers.push(answer.text());
        asked.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(2));
    }
    answers
}

#[test]
fn blue_green() {
    let recipe = Recipe::of("Blue-green");
    recipe.says(
        "requests under way end on blue, all that come later go to green, no connection is closed and no count is lost",
    );
    let may_end = Arc::<AtomicBool>::default();
    let servers = ["blue", "blue", "green", "green"].map(|name| release(name, &may_end));
    let named = ["127.0.0.1:9001", "127.0.0.1:9002", "127.0.0.1:9003", "127.0.0.1:9004"];
    let addresses: Vec<_> = named.into_iter().zip(servers.iter().map(|server| server.address)).collect();
    let gateway = recipe.start(&addresses);
    let to = gateway.address();
    for over in BOTH {
        let previewed = Caller::open(over, INSIDE, to).get("/", &[("x-preview", "green")]);
        assert_eq!((previewed.status, previewed.text().as_str()), (200, "green"), "{over:?}");
        assert_eq!(Caller::open(over, INSIDE, to).get("/", &[("x-preview", "blue")]).text(), "blue");
    }
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let wait_for = |count| assert!(eventually(|| asked.load(Ordering::SeqCst) >= count));
    let sources = ["127.0.0.3", "127.0.0.4", "127.0.0.5", "127.0.0.6"];
    thread::scope(|scope| {
        let slow = BOTH.map(|over| scope.spawn(move || Caller::open(over, OUTSIDE, to).get("/slow", &[])));
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 2.0);
        let asking: Vec<_> = sources
            .into_iter()
            .zip([Over::Http1, Over::Http2, Over::Http1, Over::Http2])
            .map(|(from, over)| {
                scope.spawn({
                    let (stop, asked) = (&stop, &asked);
                    move || ask_on(over, from, to, stop, asked)
                })
            })
            .collect();
        wait_for(100);
        recipe.run(&gateway, "sed -i");
        let at_the_switch = asked.load(Ordering::SeqCst);
        wait_for(at_the_switch + 100);
        stop.store(true, Ordering::SeqCst);
        for asking in asking {
            let answers = asking.join().unwrap();
            let blue = answers.iter().take_while(|name| *name == "blue").count();
            assert!(blue > 0 && blue < answers.len(), "{answers:?}");
            assert!(answers[blue..].iter().all(|name| name == "green"), "once green, always green: {answers:?}");
        }
        // What was under way before the switch is blue's to the end.
        may_end.store(true, Ordering::SeqCst);
        for slow in slow {
            let answer = slow.join().unwrap();
            assert_eq!((answer.status, answer.text().as_str()), (200, "blue"));
        }
    });
    assert!(gateway.log().contains("route live: changed"), "{}", gateway.log());
    gateway.wait_metric("sluicegate_client_connections_total", &[], 4.0 + 2.0 + 4.0);
    gateway.wait_metric("sluicegate_responses_total", &["class=\"5xx\""], 0.0);
    // Four from inside were counted before it, and count on.
    let after = Caller::open(Over::Http1, INSIDE, to).get("/", &[]);
    assert!(after.header("ratelimit").unwrap().starts_with("\"per-client\";r=595;"), "{after:?}");
}

#[test]
fn a_maintenance_page() {
    let recipe = Recipe::of("A maintenance page");
    recipe.says("everybody but inside gets 503 with the page and `Retry-After: 3600`");
    for over in BOTH {
        let server = Backend::fixed("site");
        let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
        let (mut inside, mut outside) =
            (Caller::open(over, INSIDE, gateway.address()), Caller::open(over, OUTSIDE, gateway.address()));
        for accept in ["text/html,*/*;q=0.8", "*/*"] {
            let page = outside.get("/any?thing", &[("accept", accept)]);
            assert_eq!((page.status, page.header("retry-after")), (503, Some("3600")), "{over:?}");
            assert_eq!(page.text(), recipe.files["maintenance.html"]);
            assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        }
        let json = outside.ask("POST", "/api", &[("accept", "application/json")], b"{}");
        assert_eq!((json.status, json.header("retry-after")), (503, Some("3600")));
        assert_eq!(violated(&json), ["maintenance"]);
        assert_eq!(server.requests(), 0);
        assert_eq!(inside.get("/", &[]).text(), "site");
        assert_eq!(outside.get("/", &[("x-tester", "me")]).text(), "site");
        recipe.run(&gateway, "sed -i");
        let open = outside.get("/", &[]);
        assert_eq!((open.status, open.header("ratelimit-policy")), (200, Some("\"per-client\";q=600;w=60")));
    }
}

#[test]
fn a_maintenance_page_for_an_hour_that_is_known_before() {
    let recipe = Recipe::of("A maintenance page");
    recipe.says("For an hour that is known before, say so in the limit, and it opens by itself");
    let line = recipe.commands.iter().find(|block| block.starts_with("active = ")).expect("the line that says so");
    let server = Backend::fixed("site");
    let hours = |from: i64| {
        let zone = TimeZone::get("Europe/Berlin").unwrap();
        let at =
            |hour: i64| (Timestamp::now() + hour.hours()).to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M").to_string();
        let line = replace_once(line, "2026-12-24T02:00", &at(from));
        replace_once(&line, "2026-12-24T03:00", &at(from + 3))
    };
    for (from, status) in [(-1, 503), (2, 200), (-5, 200)] {
        let switch = "mode = \"enforce\"  ";
        let gateway = recipe.start_with(
            &[("127.0.0.1:9001", server.address)],
            |_| {},
            |configuration| replace_once(&configuration, switch, &format!("{}{switch}", hours(from))),
        );
        for over in BOTH {
            assert_eq!(Caller::open(over, OUTSIDE, gateway.address()).get("/", &[]).status, status, "{from} {over:?}");
        }
    }
}
