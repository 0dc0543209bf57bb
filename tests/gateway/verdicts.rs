//! One client judges no server for the others: its failures count alone where no other client was answered. The size of a
//! request, and bounds of the gateway on an answer, blame none. A server that is dead is found as soon as ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Backend, Gateway, write_ok};
use crate::wire::{Message, Wire};

const FAILURES: usize = 5;

/// A server that answers with 503 behind `/bad`, and to all while it is `broken`.
fn server(broken: &Arc<AtomicBool>) -> Backend {
    let broken = Arc::clone(broken);
    Backend::start(move |request, stream| {
        use std::io::Write;
        let mut say = |bytes: String| stream.write_all(bytes.as_bytes()).is_ok();
        let cookies = || "Set-Cookie: c=1\r\n".repeat(400);
        match request.target() {
            _ if broken.load(Ordering::SeqCst) => say("HTTP/1.1 503 Gone\r\nContent-Length: 0\r\n\r\n".into()),
            "/bad" => say("HTTP/1.1 503 Bad\r\nContent-Length: 0\r\n\r\n".into()),
            "/cookies" => say(format!("HTTP/1.1 200 OK\r\n{}Content-Length: 0\r\n\r\n", cookies())),
            target if target.starts_with("/reflect") => say(format!(
                "HTTP/1.1 302 F\r\nLocation: /login?to={target}&from={target}\r\nContent-Length: 0\r\n\r\n"
            )),
            "/taken" => write_ok(stream, b"fine"),
            // It does not answer what is too large for it.
            _ if request.headers.iter().any(|(_, value)| value.len() > 8192) => false,
            _ => write_ok(stream, b"fine"),
        }
    })
}

fn rules(servers: &[&Backend], more: &str, client: &str) -> String {
    let servers: Vec<_> = servers.iter().map(|server| format!("\"{}\"", server.address)).collect();
    format!(
        "[server]\nworkers = 1\nmax_head_size = \"64KiB\"\n[[upstream]]\nname = \"app\"\nservers = [{}]\n\
         balance = \"round-robin\"\n{more}\n[[route]]\nname = \"all\"\nupstream = \"app\"\n{client}",
        servers.join(", ")
    )
}

const TRUSTING: &str = "[client]\ntrusted_proxies = [\"127.0.0.1/32\"]\n";

/// A balancer that asks for clients.
struct Balancer(Wire);

impl Balancer {
    fn ask(&mut self, client: usize, target: &str, fields: &str) -> Message {
        self.0.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.{client}\r\n{fields}\r\n"));
        self.0.answer()
    }
}

fn states(gateway: &Gateway) -> Vec<String> {
    let all = gateway.ask_admin("/api/v1/upstreams").json();
    let servers = all["upstreams"][0]["servers"].as_array().unwrap();
    servers.iter().map(|server| server["state"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn what_one_client_asks_for_ejects_no_server_and_opens_no_breaker_for_others() {
    let servers = [(); 2].map(|()| server(&Arc::default()));
    let more = "breaker = { at_least = 10 }";
    let gateway = Gateway::start(&rules(&[&servers[0], &servers[1]], more, TRUSTING));
    let mut balancer = Balancer(Wire::open(gateway.address()));
    assert!((0..4).all(|_| balancer.ask(2, "/", "").status() == 200));
    assert!((0..40).all(|_| balancer.ask(1, "/bad", "").status() == 503));
    assert_eq!(states(&gateway), ["up", "up"]);
    assert!((0..4).all(|_| balancer.ask(2, "/", "").status() == 200));
}

#[test]
fn bounds_of_the_gateway_and_the_size_of_a_request_blame_no_server() {
    let servers = [(); 2].map(|()| server(&Arc::default()));
    let more = "breaker = { at_least = 10 }";
    let gateway = Gateway::start(&rules(&[&servers[0], &servers[1]], more, ""));
    let reflect = format!("/reflect?{}", "q".repeat(54_000));
    let large = format!("Cookie: {}\r\n", "c".repeat(9_000));
    for (target, fields) in [(reflect.as_str(), ""), ("/cookies", ""), ("/", large.as_str())] {
        for _ in 0..24 {
            let status = Balancer(Wire::open(gateway.address())).ask(1, target, fields).status();
            assert_eq!(status, 502, "{target:.20}");
        }
        assert_eq!(states(&gateway), ["up", "up"], "{target:.20}");
    }
    assert_eq!(Balancer(Wire::open(gateway.address())).ask(1, "/", "").status(), 200, "the breaker is closed");
}

#[test]
fn a_server_that_fails_for_all_is_ejected_at_the_same_failure_whoever_asks() {
    // One client, or those behind a NAT, or those of a balancer that is not trusted; two, as with a check of health; several.
    // With large cookies too, such as sessions: the server's errors are its own.
    let large = format!("Cookie: {}\r\n", "c".repeat(9_000));
    let of_all = [(1, ""), (3, ""), (1, TRUSTING), (2, TRUSTING), (3, TRUSTING), (9, TRUSTING)];
    for (clients, client, fields) in
        of_all.into_iter().map(|(clients, client)| (clients, client, "")).chain([(1, "", large.as_str())])
    {
        let broken = Arc::new(AtomicBool::new(false));
        let (good, bad) = (server(&Arc::default()), server(&broken));
        let gateway = Gateway::start(&rules(&[&good, &bad], "", client));
        let mut balancer = Balancer(Wire::open(gateway.address()));
        for turn in 0..4 * clients {
            assert_eq!(balancer.ask(turn / 2 % clients, "/taken", fields).status(), 200);
        }
        broken.store(true, Ordering::SeqCst);
        let answers = (0..4 * FAILURES).map(|turn| balancer.ask(turn / 2 % clients, "/taken", fields).status());
        let failed = answers.filter(|status| *status == 503).count();
        assert_eq!((failed, states(&gateway)), (FAILURES, vec!["up".into(), "ejected".into()]), "{clients} {client}");
    }
}

#[test]
fn what_one_server_closes_its_connection_at_another_one_may_take() {
    let strict = server(&Arc::default());
    let lax = Backend::start(|_, stream| write_ok(stream, b"fine"));
    let gateway = Gateway::start(&rules(&[&strict, &lax], "retry = { attempts = 2 }", ""));
    let large = format!("Cookie: {}\r\n", "c".repeat(9_000));
    let mut balancer = Balancer(Wire::open(gateway.address()));
    assert!((0..20).all(|_| balancer.ask(1, "/", &large).status() == 200));
    assert_eq!(states(&gateway), ["up", "up"]);
}

#[test]
fn a_breaker_opens_for_what_fails_for_all() {
    for clients in [1, 2, 5] {
        let broken = Arc::new(AtomicBool::new(false));
        let servers = [(); 2].map(|()| server(&broken));
        let more = "eject = \"off\"\nbreaker = { at_least = 20 }";
        let gateway = Gateway::start(&rules(&[&servers[0], &servers[1]], more, TRUSTING));
        let mut balancer = Balancer(Wire::open(gateway.address()));
        assert!((0..10).all(|turn| balancer.ask(turn % clients, "/", "").status() == 200));
        broken.store(true, Ordering::SeqCst);
        (0..10).for_each(|turn| assert_eq!(balancer.ask(turn % clients, "/", "").status(), 503));
        let seen = servers.iter().map(Backend::requests).sum::<usize>();
        assert_eq!(balancer.ask(0, "/", "").header("retry-after"), Some("5"), "{clients}");
        assert_eq!((servers.iter().map(Backend::requests).sum::<usize>(), seen), (20, 20));
    }
}
