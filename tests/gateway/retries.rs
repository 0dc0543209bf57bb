//! Requests that are sent a second time, because the connection that was kept for them turned out to be dead: what the
//! server gets then is the whole request, and nothing but the request.

use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::wire::{Wire, front, get, ok, rules, tell, telling};

/// Requests in front that the gateway answers itself, in the same turn of its worker: the reset comes meanwhile.
const AHEAD: usize = 110;

/// The next connection that the gateway opens.
fn accepted(listener: &TcpListener) -> Wire {
    let mut stream = None;
    assert!(eventually(|| {
        stream = listener.accept().ok();
        stream.is_some()
    }));
    Wire::noting(stream.unwrap().0, Arc::new(Mutex::new(Vec::new())))
}

fn pause(time: Duration) {
    let started = Instant::now();
    while started.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn the_neighbour_of_a_server_that_is_down_is_asked_over_its_kept_connection() {
    let backend = telling();
    let both = format!("servers = [\"127.0.0.1:1\", \"{}\"]\nbalance = \"round-robin\"", backend.address);
    let one = format!("servers = [\"{}\"]", backend.address);
    let gateway = Gateway::start(&rules(&backend, "", "").replace(&one, &both));
    let mut wire = Wire::open(gateway.address());
    for number in 0..10 {
        assert_eq!(wire.get(&format!("/{number}")).text(), format!("1 /{number}"), "over the first connection");
    }
    assert!(gateway.metric("sluicegate_upstream_retries_total", &["cause=\"unreachable\""]) >= 4.0);
}

#[test]
fn a_request_whose_kept_connection_is_reset_under_it_is_sent_again_whole() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let unused = Backend::fixed("unused");
    let rules = rules(&unused, "", "timeout = \"2s\"").replace(&unused.address.to_string(), &address.to_string());
    let gateway = Gateway::start(&rules);
    let mut client = Wire::with(gateway.address(), get("/first"));
    let mut kept = accepted(&listener);
    kept.request().unwrap();
    kept.send(ok("first"));
    assert_eq!(client.answer().text(), "first");
    // Larger than what is copied behind its head, and by itself like a request.
    let body = get("/smuggled").replace("Host", &format!("X-Pad: {}\r\nHost", "p".repeat(3000)));
    let put = format!("PUT /again HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    for attempt in 0..200_u64 {
        let (request, line, body) = match attempt % 2 {
            0 => (get("/again"), "GET /again HTTP/1.1", ""),
            _ => (put.clone(), "PUT /again HTTP/1.1", body.as_str()),
        };
        client.send(format!("{}{request}", get("/local").repeat(AHEAD)));
        // It has to die between the look at it and the write to it: many moments are tried.
        pause(Duration::from_micros(attempt / 2 % 25 * 20));
        kept.reset();
        kept = accepted(&listener);
        let came = kept.request().unwrap_or_else(|error| panic!("attempt {attempt}, {line}: {error}"));
        assert_eq!((came.line.as_str(), came.text().as_str()), (line, body), "attempt {attempt}");
        assert_eq!(came.header("host"), Some("h"));
        kept.send(ok("again"));
        for _ in 0..AHEAD {
            assert_eq!(client.answer().text(), "local\n");
        }
        assert_eq!(client.answer().text(), "again", "attempt {attempt}");
    }
    let retries = gateway.metric("sluicegate_upstream_retries_total", &["cause=\"stale-connection\""]);
    assert!(retries > 0.5, "no reset came in time to be met by a write");
}

#[test]
fn a_request_with_trailers_is_sent_again_exactly_as_it_was() {
    let large = "b".repeat(3000);
    for content in ["hello", large.as_str()] {
        let backend = Backend::scripted(|wire, number| {
            if number > 1 {
                return tell(wire, number);
            }
            if wire.request().is_ok() && wire.send(ok("first")) {
                drop(wire.request());
            }
        });
        let gateway = front(&backend);
        let mut wire = Wire::open(gateway.address());
        assert_eq!(wire.get("/").text(), "first");
        wire.send(format!(
            "PUT /again HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
             {:x}\r\n{content}\r\n0\r\nX-T: GET /smuggled HTTP/1.1\r\n\r\n",
            content.len()
        ));
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "2 /again"), "{answer:?}");
        gateway.wait_metric("sluicegate_upstream_retries_total", &["cause=\"stale-connection\""], 1.0);
        let seen = backend.seen.lock().unwrap();
        assert_eq!(seen.len(), 3);
        let (one, two) = (&seen[1], &seen[2]);
        assert_eq!((&one.line, &one.headers, &one.body), (&two.line, &two.headers, &two.body));
        assert_eq!(two.text(), content);
        for one in [one, two] {
            assert_eq!(one.trailers, [("x-t".to_owned(), "GET /smuggled HTTP/1.1".to_owned())]);
        }
    }
}

#[test]
fn a_client_whose_requests_all_fail_leaves_retries_for_others() {
    // A request fails at the first server that gets it, or behind `/bad` at each.
    let known = Arc::new(Mutex::new(Vec::new()));
    let servers = [(); 2].map(|()| {
        let known = Arc::clone(&known);
        Backend::scripted(move |wire, _| {
            while let Ok(request) = wire.request() {
                let target = request.target().to_owned();
                let mut known = known.lock().unwrap();
                let is_good = target != "/bad" && known.contains(&target);
                known.push(target);
                let status = if is_good { "200 OK" } else { "503 Unavailable" };
                wire.send(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n"));
            }
        })
    });
    let both = format!("\"{}\", \"{}\"", servers[0].address, servers[1].address);
    let more = "balance = \"round-robin\"\neject = \"off\"\nretry = { attempts = 2 }";
    let rules =
        rules(&servers[0], "", "").replace(&format!("\"{}\"]", servers[0].address), &format!("{both}]\n{more}"));
    let gateway = Gateway::start(&format!("{rules}[client]\ntrusted_proxies = [\"127.0.0.1/32\"]\n"));
    let mut balancer = Wire::open(gateway.address());
    let mut ask = |client: usize, target: &str| {
        balancer.send(format!("GET {target} HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.{client}\r\n\r\n"));
        balancer.answer().status()
    };
    assert_eq!(ask(2, "/first"), 200);
    assert!((0..80).all(|_| ask(1, "/bad") == 503));
    // 30 retries and a tenth of 82 requests: half of them were left.
    let saved = (0..30).filter(|number| ask(2, &format!("/{number}")) == 200).count();
    assert!(saved >= 9, "{saved} of 30");
}
