//! Places at the servers of an upstream, the line before them, and its breaker.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Backend, Client, FRAME, Gateway, eventually, get, get_with, write_ok};
use crate::timing::{assert_lasted, best_of_three};
use crate::wire::{Message, Wire};

/// A server that holds its answers to `/slow` until it is told to let one go, and fails while it is told so.
struct Holding {
    backend: Backend,
    free: Arc<(Mutex<usize>, Condvar)>,
    is_failing: Arc<AtomicBool>,
}

impl Holding {
    fn start(name: &'static str) -> Self {
        let (free, is_failing) = <(Arc<(Mutex<usize>, Condvar)>, Arc<AtomicBool>)>::default();
        let (own, fails) = (Arc::clone(&free), Arc::clone(&is_failing));
        let backend = Backend::start(move |request, stream| {
            if request.target() == "/slow" {
                let (count, changed) = &*own;
                let patience = Duration::from_secs(30);
                let (mut count, _) =
                    changed.wait_timeout_while(count.lock().unwrap(), patience, |count| *count == 0).unwrap();
                *count = count.saturating_sub(1);
            }
            if fails.load(Ordering::SeqCst) {
                let unavailable = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
                return std::io::Write::write_all(stream, unavailable).is_ok();
            }
            write_ok(stream, name.as_bytes())
        });
        Self { backend, free, is_failing }
    }

    fn let_go(&self, count: usize) {
        *self.free.0.lock().unwrap() += count;
        self.free.1.notify_all();
    }

    fn requests(&self) -> usize {
        self.backend.requests()
    }
}

fn rules(servers: &[SocketAddr], more: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    format!(
        "[server]\nworkers = 2\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n[[upstream]]\nname = \"app\"\n\
         servers = [{}]\n{more}\n[[route]]\nname = \"all\"\nupstream = \"app\"\n[dead_letter]\n[log]\naccess = \"json\"\n",
        servers.join(", ")
    )
}

fn start(servers: &[SocketAddr], more: &str) -> Gateway {
    Gateway::start_whole(&format!("{}{FRAME}", rules(servers, more)))
}

/// A request of this client, sent.
fn ask(gateway: &Gateway, client: u8, target: &str) -> Wire {
    Wire::with(
        gateway.address(),
        format!("GET {target} HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.{client}\r\n\r\n"),
    )
}

fn pending(gateway: &Gateway) -> u64 {
    gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["pending"].as_u64().unwrap()
}

fn reasons(gateway: &Gateway) -> Vec<String> {
    gateway.dead_letters().iter().map(|letter| letter["reason"].as_str().unwrap().to_owned()).collect()
}

fn is_refused(answer: &Message) -> bool {
    answer.status() == 503 && answer.header("retry-after") == Some("1")
}

#[test]
fn requests_above_max_in_flight_wait_in_order_and_are_sent_when_a_place_is_free() {
    let server = Holding::start("a");
    let more = "max_in_flight = 2\nmax_pending = 2\npending_timeout = \"20s\"";
    let gateway = start(&[server.backend.address], more);
    let mut at_server: Vec<_> = [1, 2].map(|client| ask(&gateway, client, "/slow")).into();
    assert!(eventually(|| server.requests() == 2));
    let mut waiting = Vec::new();
    for client in [3, 4] {
        waiting.push(ask(&gateway, client, "/slow"));
        assert!(eventually(|| pending(&gateway) == waiting.len() as u64));
    }
    assert!(is_refused(&ask(&gateway, 5, "/").answer()), "the line is full");
    assert_eq!(server.requests(), 2);
    server.let_go(1);
    assert!(eventually(|| server.requests() == 3 && pending(&gateway) == 1));
    server.let_go(3);
    for mut wire in at_server.drain(..).chain(waiting) {
        assert_eq!(wire.answer().status(), 200);
    }
    assert!(eventually(|| gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["in_flight"] == 0));
    assert!(eventually(|| reasons(&gateway) == ["queue-full"]));
    let letter = &gateway.dead_letters()[0];
    assert_eq!((&letter["status"], &letter["upstream"]), (&503.into(), &"app".into()));
    assert!((gateway.metric("sluicegate_requests_total", &["outcome=\"queue-full\""]) - 1.0).abs() < 0.1);
    assert_eq!(get(gateway.address(), "/").status, 200);
}

#[test]
fn places_that_are_found_are_held_to_the_head_of_an_answer() {
    let server = Backend::start(|request, stream| {
        if request.target() == "/body" {
            let head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na";
            return std::io::Write::write_all(stream, head).is_ok() && {
                std::thread::sleep(Duration::from_secs(30));
                false
            };
        }
        if request.target() == "/slow" {
            std::thread::sleep(Duration::from_secs(30));
        }
        write_ok(stream, b"a")
    });
    let more = "max_in_flight = { auto = true, min = 2, max = 2 }\nmax_pending = 1\npending_timeout = \"200ms\"";
    let gateway = start(&[server.address], more);
    let bodies: Vec<_> = [1, 2, 3].map(|client| ask(&gateway, client, "/body")).into();
    assert!(eventually(|| server.requests() == 3), "a body that is still to come holds no place");
    let report = || gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0].clone();
    assert!(eventually(|| report()["in_flight"] == 0));
    assert_eq!(report()["max_in_flight"], 2);
    assert!((gateway.metric("sluicegate_upstream_max_in_flight", &["upstream=\"app\""]) - 2.0).abs() < 0.1);
    let heads: Vec<_> = [1, 2].map(|client| ask(&gateway, client, "/slow")).into();
    assert!(eventually(|| server.requests() == 5));
    assert!(is_refused(&ask(&gateway, 3, "/").answer()));
    drop((bodies, heads));
    assert!(eventually(|| report()["in_flight"] == 0));
    assert_eq!(get(gateway.address(), "/").status, 200);
    // A number in its place counts what is there from then on.
    assert_eq!(gateway.reload(&rules(&[server.address], "max_in_flight = 7")).status, 200);
    assert_eq!(report()["max_in_flight"], 7);
}

#[test]
fn a_wait_ends_with_pending_timeout_the_requests_own_time_or_its_client() {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], "max_in_flight = 1\npending_timeout = \"300ms\"");
    let mut first = ask(&gateway, 1, "/slow");
    assert!(eventually(|| server.requests() == 1));
    assert!(is_refused(&ask(&gateway, 2, "/").answer()));
    let longer = rules(&[server.backend.address], "max_in_flight = 1\npending_timeout = \"20s\"");
    assert_eq!(gateway.reload(&longer).status, 200);
    let gone = ask(&gateway, 3, "/gone");
    assert!(eventually(|| pending(&gateway) == 1));
    gone.reset();
    assert!(eventually(|| pending(&gateway) == 0));
    let hurried = longer.replacen("[server]\n", "[server]\ntimeout = \"300ms\"\n", 1);
    assert_eq!(gateway.reload(&hurried).status, 200);
    assert_eq!(ask(&gateway, 4, "/").answer().status(), 504);
    server.let_go(1);
    assert_eq!((first.answer().status(), server.requests()), (200, 1));
    let log = gateway.access_log();
    let waited = log.iter().find(|line| line["outcome"] == "queue-full").unwrap()["wait_ms"].as_f64().unwrap();
    assert!((299.0..5_000.0).contains(&waited), "{waited}");
}

#[test]
fn a_client_with_many_requests_in_line_makes_room_for_one_with_few_and_turns_go_round() {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], "max_in_flight = 1\nmax_pending = 4\npending_timeout = \"20s\"");
    let mut first = ask(&gateway, 1, "/slow");
    assert!(eventually(|| server.requests() == 1));
    let mut flood: Vec<_> = (0..4)
        .map(|place| {
            let wire = ask(&gateway, 2, &format!("/flood-{place}"));
            assert!(eventually(|| pending(&gateway) == place + 1));
            wire
        })
        .collect();
    assert!(is_refused(&ask(&gateway, 2, "/flood-4").answer()), "it holds all of the line");
    let mut other = ask(&gateway, 3, "/other");
    assert!(is_refused(&flood.pop().unwrap().answer()), "its newest one makes room");
    server.let_go(1);
    assert_eq!((first.answer().status(), other.answer().status()), (200, 200));
    assert!(flood.iter_mut().all(|wire| wire.answer().status() == 200));
    let seen = server.backend.seen.lock().unwrap();
    let order: Vec<_> = seen.iter().map(Message::target).collect();
    assert_eq!(order, ["/slow", "/flood-0", "/other", "/flood-1", "/flood-2"]);
}

#[test]
fn clients_behind_one_address_have_turns_of_their_own_by_fair_key() {
    let server = Holding::start("a");
    let line = "max_in_flight = 8\nmax_pending = 600\npending_timeout = \"20s\"\nfair_key = \"header:x-api-key\"";
    let gateway = start(&[server.backend.address], line);
    let ask = |key: &str, target: &str| {
        let head = format!("GET {target} HTTP/1.1\r\nHost: x\r\nX-Api-Key: {key}\r\n\r\n");
        Wire::with(gateway.address(), head)
    };
    let mut wires: Vec<_> = (0..8).map(|_| ask("flood", "/slow")).collect();
    assert!(eventually(|| server.requests() == 8));
    wires.extend((0..500).map(|_| ask("flood", "/flood")));
    assert!(eventually(|| pending(&gateway) == 500));
    wires.extend((0..50).map(|own| ask(&format!("other-{own}"), "/other")));
    assert!(eventually(|| pending(&gateway) == 550));
    server.let_go(8);
    assert!(wires.iter_mut().all(|wire| wire.answer().status() == 200));
    let seen = server.backend.seen.lock().unwrap();
    let last = seen.iter().rposition(|request| request.target() == "/other").unwrap();
    // In turn they are among the first 108, by one key all behind the 500. A thread of the server may be late with one of them.
    assert!(last < 300, "{last} of {}", seen.len());
}

#[test]
fn a_client_that_holds_its_share_of_the_places_gets_no_other_one_while_others_wait() {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], "max_in_flight = 4\npending_timeout = \"20s\"");
    let mut wires: Vec<_> = (0..4).map(|_| ask(&gateway, 1, "/slow")).collect();
    assert!(eventually(|| server.requests() == 4), "it is alone, and may hold all");
    for (client, target, waiting) in [(1, "/own", 1), (2, "/other-0", 2), (2, "/other-1", 3)] {
        wires.push(ask(&gateway, client, target));
        assert!(eventually(|| pending(&gateway) == waiting));
    }
    server.let_go(1);
    assert!(eventually(|| server.requests() == 7));
    server.let_go(3);
    assert!(wires.iter_mut().all(|wire| wire.answer().status() == 200));
    let seen = server.backend.seen.lock().unwrap();
    let order: Vec<_> = seen.iter().skip(4).map(Message::target).collect();
    assert_eq!(order, ["/other-0", "/other-1", "/own"]);
}

#[test]
fn slow_uploads_above_a_clients_share_give_their_places_to_clients_that_wait() {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], "max_in_flight = 4\npending_timeout = \"20s\"");
    let upload = "POST /up HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nContent-Length: 9\r\n\r\nabc";
    let mut uploads: Vec<_> = (0..4).map(|_| Wire::with(gateway.address(), upload)).collect();
    let in_flight = || gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["in_flight"] == 4;
    assert!(eventually(in_flight));
    let began = Instant::now();
    assert_eq!(ask(&gateway, 2, "/").answer().status(), 200);
    assert!(began.elapsed() > Duration::from_secs(4), "each may hold its place for a while");
    // One place was asked for, and one was given up.
    let mut statuses: Vec<_> = uploads
        .iter_mut()
        .map(|upload| {
            upload.send("defghi");
            upload.answer().status()
        })
        .collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 200, 408]);
    assert!(eventually(|| reasons(&gateway) == ["timeout"]));
}

#[test]
fn a_full_server_is_passed_over_and_with_all_full_a_request_waits() {
    let servers = ["a", "b"].map(Holding::start);
    let addresses = [0, 1].map(|place: usize| servers[place].backend.address);
    let gateway = start(&addresses, "server_max_in_flight = 1\nhash_balance = \"off\"\npending_timeout = \"20s\"");
    let count = || servers[0].requests() + servers[1].requests();
    let mut wires = Vec::new();
    for expected in [1, 2] {
        wires.push(ask(&gateway, 1, "/slow"));
        assert!(eventually(|| count() == expected));
    }
    assert_eq!([0, 1].map(|place: usize| servers[place].requests()), [1, 1], "of one sticky client");
    wires.push(ask(&gateway, 1, "/slow"));
    assert!(eventually(|| pending(&gateway) == 1));
    servers[1].let_go(1);
    assert!(eventually(|| servers[1].requests() == 2));
    servers[1].let_go(1);
    servers[0].let_go(1);
    assert!(wires.iter_mut().all(|wire| wire.answer().status() == 200));
}

#[test]
fn a_place_is_free_for_whoever_has_read_the_answer_and_a_lost_exchange_frees_its_own() {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], "max_in_flight = 1\nmax_pending = 0");
    let mut client = Client::connect(gateway.address());
    for _ in 0..200 {
        assert_eq!(client.get("/").status, 200);
    }
    let held = ask(&gateway, 1, "/slow");
    assert!(eventually(|| server.requests() == 201));
    assert_eq!(client.get("/").status, 503);
    held.reset();
    assert!(eventually(|| client.get("/").status == 200));
}

#[test]
fn an_upstream_that_hangs_is_nobody_elses_and_its_places_outlive_a_reload() {
    let (hangs, works) = (Holding::start("a"), Holding::start("b"));
    let both = |most: u32| {
        format!(
            "{}[[upstream]]\nname = \"other\"\nservers = [\"{}\"]\nmax_in_flight = 2\n\
             [[route]]\nname = \"other\"\npath = \"/other\"\nupstream = \"other\"\n",
            rules(&[hangs.backend.address], &format!("max_in_flight = {most}\nmax_pending = 0")),
            works.backend.address
        )
    };
    let gateway = Gateway::start_whole(&format!("{}{FRAME}", both(2)));
    let held: Vec<_> = [1, 2].map(|client| ask(&gateway, client, "/slow")).into();
    assert!(eventually(|| hangs.requests() == 2));
    assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/other").status), (503, 200));
    assert_eq!(gateway.reload(&both(3)).status, 200);
    let third = ask(&gateway, 3, "/slow");
    assert!(eventually(|| hangs.requests() == 3));
    assert_eq!((get(gateway.address(), "/").status, get(gateway.address(), "/other").status), (503, 200));
    hangs.let_go(3);
    drop((held, third));
}

/// An upstream whose one server answered once, and then failed until its breaker opened.
fn opened(open: &str) -> (Holding, Gateway) {
    let server = Holding::start("a");
    let gateway = start(&[server.backend.address], &breaker(open));
    assert_eq!((get(gateway.address(), "/").status, breaker_state(&gateway)), (200, "closed".into()));
    server.is_failing.store(true, Ordering::SeqCst);
    for _ in 0..9 {
        assert_eq!(get(gateway.address(), "/").header("retry-after"), None, "the server's own");
    }
    (server, gateway)
}

fn breaker(open: &str) -> String {
    format!("breaker = {{ errors = \"50%\", at_least = 10, open = \"{open}\", probes = 1 }}")
}

fn breaker_state(gateway: &Gateway) -> serde_json::Value {
    gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["breaker"].clone()
}

#[test]
fn a_breaker_opens_and_nothing_is_sent() {
    let (server, gateway) = opened("1h");
    let refused: Vec<_> = (0..30).map(|_| get(gateway.address(), "/")).collect();
    assert_eq!((server.requests(), breaker_state(&gateway)), (10, "open".into()));
    for answer in &refused {
        let secs: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(answer.status == 503 && (3_500..=3_600).contains(&secs), "{secs}");
    }
    let is_told = |log: &str| {
        log.contains("\"message\":\"breaker opened\"") && log.contains("9 of 10 requests failed within 10s")
    };
    assert!(eventually(|| is_told(&gateway.log())), "{}", gateway.log());
    assert!(eventually(|| reasons(&gateway).contains(&"breaker".to_owned())));
    assert!((gateway.metric("sluicegate_upstream_breaker_state", &[]) - 1.0).abs() < 0.1);
    // A reload that changes other things changes nothing of it.
    let changed = format!("{}\nconnect_timeout = \"3s\"", breaker("1h"));
    assert_eq!(gateway.reload(&rules(&[server.backend.address], &changed)).status, 200);
    assert_eq!(breaker_state(&gateway), "open");
    assert_eq!((get(gateway.address(), "/").status, server.requests()), (503, 10));
}

#[test]
fn a_breaker_lets_probes_try_and_closes() {
    best_of_three(|| {
        let (server, gateway) = opened("1s");
        let opened = Instant::now();
        let failed = || gateway.log().matches("a probe failed; open for 1s").count();
        // It fails again at each probe, and stays open for as long each time.
        assert!(eventually(|| get(gateway.address(), "/").status == 503 && failed() > 1));
        assert_lasted(opened.elapsed(), Duration::from_millis(1_900)..Duration::from_secs(6), "it was open");
        assert!(eventually(|| server.requests() == 10 + failed()), "{} requests\n{}", server.requests(), gateway.log());
        server.is_failing.store(false, Ordering::SeqCst);
        let before = server.requests();
        assert!(eventually(|| get(gateway.address(), "/").status == 200));
        assert_eq!((server.requests(), breaker_state(&gateway)), (before + 1, "closed".into()));
        assert!(eventually(|| gateway.log().contains("\"message\":\"breaker closed\"")));
    });
}

#[test]
fn servers_that_cannot_be_reached_open_the_breaker_and_clients_that_leave_do_not() {
    let server = Holding::start("a");
    let breaker = "breaker = { at_least = 3, open = \"60s\" }\neject = \"off\"";
    let gateway = start(&[server.backend.address], breaker);
    let left = AtomicUsize::new(0);
    for client in 0..6 {
        ask(&gateway, client, "/slow").reset();
        left.fetch_add(1, Ordering::SeqCst);
    }
    // A body that its client withholds.
    for _ in 0..6 {
        let wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab");
        wire.reset();
    }
    server.let_go(6);
    assert_eq!(get(gateway.address(), "/").status, 200);
    let gone = crate::support::unused_address();
    assert_eq!(gateway.reload(&rules(&[gone], breaker)).status, 200);
    let statuses: Vec<_> = (0..6).map(|_| get_with(gateway.address(), "/", &[]).status).collect();
    assert_eq!(statuses, [502, 502, 503, 503, 503, 503], "two of three results");
}

#[test]
fn an_upstream_that_hangs_opens_its_breaker_also_where_its_requests_have_waited_for_places() {
    let server = Holding::start("a");
    let more =
        "max_in_flight = 1\nmax_pending = 50\npending_timeout = \"300ms\"\nbreaker = { at_least = 4, open = \"60s\" }";
    let hurried =
        rules(&[server.backend.address], more).replacen("[server]\n", "[server]\nresponse_timeout = \"900ms\"\n", 1);
    let gateway = Gateway::start_whole(&format!("{hurried}{FRAME}"));
    let state = || gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["breaker"].clone();
    let mut wires = Vec::new();
    // One after the other: each but the first has waited for its place.
    assert!(eventually(|| {
        wires.push(ask(&gateway, 1, "/slow"));
        std::thread::sleep(Duration::from_millis(50));
        state() == "open"
    }));
    server.let_go(wires.len());
}
