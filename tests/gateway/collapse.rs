//! Equal requests in flight that are sent once.

use std::io::Write as _;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::h2::peer;
use crate::support::{Backend, FRAME, Gateway, eventually, get};
use crate::wire::{Message, Wire};

/// Holds requests to targets other than `/now` until it is told to go on for good.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    fn close(&self) {
        *self.0.0.lock().unwrap() = false;
    }

    fn pass(&self) {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_timeout_while(open, Duration::from_secs(30), |open| !*open).unwrap());
    }
}

/// A server that answers with this head and body once the gate is open; the head has the id of the request.
fn server(gate: &Gate, answer: impl Fn(&Message) -> (String, Vec<u8>) + Send + Sync + 'static) -> Backend {
    let gate = gate.clone();
    Backend::start(move |request, stream| {
        gate.pass();
        let (head, body) = answer(request);
        let id = request.header("x-request-id").unwrap_or_default();
        let head = format!("HTTP/1.1 {head}\r\nX-Request-Id: {id}\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&body).is_ok()
    })
}

fn ok(body: &str, fields: &str) -> (String, Vec<u8>) {
    (format!("200 OK\r\nContent-Length: {}{fields}", body.len()), body.as_bytes().to_vec())
}

fn start(server: &Backend, route: &str, more: &str) -> Gateway {
    Gateway::start_whole(&format!(
        "[server]\nworkers = 2\n[client]\ntrusted_proxies = [\"127.0.0.1\"]\n[[upstream]]\nname = \"app\"\n\
         servers = [\"{}\"]\neject = \"off\"\n[[route]]\nname = \"all\"\nupstream = \"app\"\n{route}\n{more}[dead_letter]\n\
         [log]\naccess = \"json\"\n{FRAME}",
        server.address
    ))
}

fn ask(gateway: &Gateway, fields: &str) -> Wire {
    Wire::with(gateway.address(), format!("GET /page?a=1 HTTP/1.1\r\nHost: x\r\n{fields}\r\n"))
}

/// Requests that wait for another one's answer, or for a connection.
fn waiting(gateway: &Gateway) -> usize {
    let report = gateway.ask_admin("/api/v1/requests?phase=connecting&max=1000").json();
    report["requests"].as_array().unwrap().len()
}

fn collapsed(gateway: &Gateway) -> f64 {
    gateway.metric("sluicegate_route_collapsed_total", &["route=\"all\""])
}

fn assert_collapsed(gateway: &Gateway, count: usize) {
    assert!((collapsed(gateway) - count as f64).abs() < 0.1, "{}", collapsed(gateway));
}

#[test]
fn of_a_thousand_equal_requests_one_is_sent_and_each_counts_and_has_its_own_id() {
    let gate = Gate::default();
    let server = server(&gate, |_| ok("hello", "\r\nCache-Control: max-age=0\r\nVary: Host"));
    let limit = "[[limit]]\nname = \"all\"\nrate = \"1000/h\"\n";
    let gateway = start(&server, "limits = [\"all\"]\ncollapse = true", limit);
    let mut wires: Vec<_> = (0..1_000).map(|own| ask(&gateway, &format!("X-Request-Id: id-{own}\r\n"))).collect();
    assert!(eventually(|| waiting(&gateway) == 999));
    assert_eq!(ask(&gateway, "").answer().status(), 429, "each has counted");
    gate.open();
    for (own, wire) in wires.iter_mut().enumerate() {
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.text().as_str()), (200, "hello"));
        assert_eq!(answer.all("x-request-id"), [format!("id-{own}")]);
        assert_eq!(answer.header("content-length"), Some("5"));
    }
    assert_eq!(server.requests(), 1);
    assert_collapsed(&gateway, 999);
    let answers = gateway.metric("sluicegate_upstream_response_seconds_count", &["upstream=\"app\""]);
    assert!((answers - 1.0).abs() < 0.1, "a copy tells nothing of the server: {answers}");
    let forwarded = gateway.metric("sluicegate_requests_total", &["outcome=\"forwarded\""]);
    assert!((forwarded - 1_000.0).abs() < 0.1, "{forwarded}");
}

#[test]
fn it_is_no_cache_and_requests_that_differ_in_what_counts_are_sent() {
    let gate = Gate::default();
    gate.open();
    let server = server(&gate, |_| ok("x", ""));
    let gateway = start(&server, "collapse = true", "");
    for sent in 1..4 {
        assert_eq!(get(gateway.address(), "/page?a=1").status, 200);
        assert_eq!(server.requests(), sent);
    }
    let gate = Gate::default();
    let server = self::server(&gate, |request| ok(request.header("accept").unwrap_or("none"), "\r\nVary: Accept"));
    let route = "collapse = { headers = [\"accept\"] }\nlimits = [\"own\"]\n\
                 request_headers = { set = { x-page = \"{query}\" } }";
    let limit = "[[limit]]\nname = \"own\"\nrate = \"99/s\"\nkey = \"header:x-api-key\"\n";
    let gateway = start(&server, route, limit);
    let fields = [
        "Accept: a\r\n",
        "Accept: b\r\n",
        "",
        "Accept: a\r\nX-Api-Key: 1\r\n",
        "Accept: a\r\nX-Forwarded-Proto: https\r\n",
    ];
    let mut wires: Vec<_> = fields.iter().chain(&fields).map(|fields| ask(&gateway, fields)).collect();
    for fields in [
        "Cookie: a=b\r\n",
        "Authorization: Basic eDp5\r\n",
        "Range: bytes=0-1\r\n",
        "If-None-Match: \"x\"\r\n",
        "Connection: Upgrade\r\nUpgrade: websocket\r\n",
        "X_Api_Key: 1\r\n",
    ] {
        wires.extend((0..2).map(|_| ask(&gateway, fields)));
    }
    wires.extend((0..2).map(|_| Wire::with(gateway.address(), "GET /page?a=1 HTTP/1.1\r\nHost: other\r\n\r\n")));
    wires.extend(
        (0..2)
            .map(|_| Wire::with(gateway.address(), "POST /page?a=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")),
    );
    assert!(eventually(|| server.requests() == 5 + 6 * 2 + 1 + 2 && waiting(&gateway) == 6));
    gate.open();
    let bodies: Vec<_> = wires.iter_mut().take(10).map(|wire| wire.answer().text()).collect();
    assert_eq!(bodies, ["a", "b", "none", "a", "a", "a", "b", "none", "a", "a"]);
    assert!(wires.iter_mut().skip(10).all(|wire| wire.answer().status() == 200));
    assert_collapsed(&gateway, 6);
}

#[test]
fn an_answer_of_one_client_goes_to_it_alone_and_the_next_ones_do_not_wait() {
    let gate = Gate::default();
    let server = server(&gate, |request| {
        let user = request.header("x-user").unwrap_or_default().to_owned();
        ok(&user, &format!("\r\nSet-Cookie: user={user}"))
    });
    let gateway = start(&server, "collapse = true", "");
    let ask_as = |user: usize| ask(&gateway, &format!("X-User: {user}\r\n"));
    let mut wires: Vec<_> = (0..20).map(ask_as).collect();
    assert!(eventually(|| server.requests() == 1 && waiting(&gateway) == 19));
    gate.open();
    for (user, wire) in wires.iter_mut().enumerate() {
        let answer = wire.answer();
        assert_eq!((answer.text(), answer.header("set-cookie")), (user.to_string(), Some(&*format!("user={user}"))));
    }
    assert_eq!(server.requests(), 20);
    gate.close();
    let mut wires: Vec<_> = (0..3).map(ask_as).collect();
    assert!(eventually(|| server.requests() == 23), "nobody waits for such an answer again");
    gate.open();
    assert!(wires.iter_mut().all(|wire| wire.answer().status() == 200));
    assert_collapsed(&gateway, 0);
}

#[test]
fn the_exchange_goes_on_when_the_first_client_leaves_as_long_as_somebody_waits() {
    let gate = Gate::default();
    let server = server(&gate, |_| ok("hello", ""));
    let gateway = start(&server, "collapse = true", "");
    let first = ask(&gateway, "");
    assert!(eventually(|| server.requests() == 1));
    let mut second = ask(&gateway, "");
    assert!(eventually(|| waiting(&gateway) == 1));
    first.reset();
    std::thread::sleep(Duration::from_millis(700));
    gate.open();
    assert_eq!(second.answer().text(), "hello");
    assert_eq!(server.requests(), 1);
    assert!(eventually(|| gateway.metric("sluicegate_requests_total", &["outcome=\"client-gone\""]) > 0.9));
    // Where nobody waits any more it ends, and the next one is sent.
    let gate = Gate::default();
    let server = self::server(&gate, |_| ok("hello", ""));
    let gateway = start(&server, "collapse = true", "");
    let first = ask(&gateway, "");
    assert!(eventually(|| server.requests() == 1));
    let second = ask(&gateway, "");
    assert!(eventually(|| waiting(&gateway) == 1));
    first.reset();
    second.reset();
    assert!(eventually(|| gateway.metric("sluicegate_requests_total", &["outcome=\"client-gone\""]) > 1.9));
    let mut third = ask(&gateway, "");
    assert!(eventually(|| server.requests() == 2));
    gate.open();
    assert_eq!(third.answer().text(), "hello");
}

#[test]
fn a_leader_that_leaves_before_it_is_sent_leaves_the_lead_to_the_next() {
    let gate = Gate::default();
    let server = server(&gate, |_| ok("hello", ""));
    let rules = format!(
        "[server]\nworkers = 2\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\nmax_in_flight = 1\npending_timeout = \"20s\"\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\ncollapse = true\n{FRAME}",
        server.address
    );
    let gateway = Gateway::start_whole(&rules);
    let mut busy = Wire::with(gateway.address(), "GET /busy HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(eventually(|| server.requests() == 1));
    let first = ask(&gateway, "");
    assert!(eventually(|| waiting(&gateway) == 1));
    let mut others: Vec<_> = (0..2).map(|_| ask(&gateway, "")).collect();
    assert!(eventually(|| waiting(&gateway) == 3));
    first.reset();
    assert!(eventually(|| waiting(&gateway) == 2));
    gate.open();
    assert_eq!(busy.answer().status(), 200);
    assert!(others.iter_mut().all(|wire| wire.answer().text() == "hello"));
    assert_eq!(server.requests(), 2);
}

#[test]
fn a_slow_first_client_delays_nobody_and_what_it_has_not_read_is_bounded() {
    let gate = Gate::default();
    let body = "b".repeat(4 << 20);
    let sent = body.clone();
    let server = server(&gate, move |_| ok(&sent, ""));
    let gateway = start(&server, "collapse = { max_body = \"4MiB\" }", "");
    let mut slow = ask(&gateway, "");
    assert!(eventually(|| server.requests() == 1));
    let mut others: Vec<_> = (0..3).map(|_| ask(&gateway, "")).collect();
    assert!(eventually(|| waiting(&gateway) == 3));
    gate.open();
    let mut slow_too = others.pop().unwrap();
    for wire in &mut others {
        assert_eq!(wire.answer().text().len(), body.len());
    }
    assert_eq!(slow_too.answer().text(), body);
    assert_eq!(slow.answer().text(), body);
    assert_eq!(server.requests(), 1);
    assert_collapsed(&gateway, 3);
}

#[test]
fn streams_that_are_not_read_hold_what_there_is_room_for_and_all_get_their_answers() {
    let gate = Gate::default();
    let body = "b".repeat(3 << 20);
    let sent = body.clone();
    let server = server(&gate, move |_| ok(&sent, ""));
    let gateway = start(&server, "collapse = { max_body = \"4MiB\" }", "");
    peer::run(async {
        let until = async |holds: &dyn Fn() -> bool| {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let sender = peer::connect(gateway.address()).await;
        let mut slow = Vec::new();
        for page in 0..8 {
            gate.close();
            let before = server.requests();
            slow.push(peer::open(&sender, peer::request("GET", &format!("/{page}"), &[]), true).await.0);
            until(&|| server.requests() > before).await;
            let mut other = Wire::with(gateway.address(), format!("GET /{page} HTTP/1.1\r\nHost: h\r\n\r\n"));
            until(&|| waiting(&gateway) == 1).await;
            gate.open();
            let read = tokio::task::spawn_blocking(move || other.answer().text()).await.unwrap();
            assert!(read == body);
        }
        // A client has 8 MiB of a worker; an answer takes 3 MiB while it is collected, and most of as much while it is not read.
        let copies = collapsed(&gateway);
        assert!((1.0..4.0).contains(&copies), "{copies}");
        for answer in slow {
            assert!(peer::whole(answer).await.unwrap().text() == body);
        }
    });
}

#[test]
fn who_follows_a_body_above_the_bound_or_a_stream_is_sent_alone() {
    let gate = Gate::default();
    let server = server(&gate, |request| {
        let (is_stream, length) = (request.header("x-stream").is_some(), 3_000);
        if !is_stream {
            let chunk = format!("{length:x}\r\n{}\r\n0\r\n\r\n", "b".repeat(length));
            return ("200 OK\r\nTransfer-Encoding: chunked".to_owned(), chunk.into_bytes());
        }
        // Its first bytes, and the others never.
        ("200 OK\r\nContent-Length: 900".to_owned(), b"first".to_vec())
    });
    let gateway = start(&server, "collapse = { headers = [\"x-stream\"], max_body = \"2KiB\" }", "");
    let mut wires: Vec<_> = (0..4).map(|_| ask(&gateway, "")).collect();
    let mut streams: Vec<_> = (0..3).map(|_| ask(&gateway, "X-Stream: 1\r\n")).collect();
    assert!(eventually(|| server.requests() == 2 && waiting(&gateway) == 5));
    gate.open();
    assert!(wires.iter_mut().all(|wire| wire.answer().text().len() == 3_000));
    assert!(streams.iter_mut().all(|wire| wire.head().unwrap().status() == 200));
    assert_eq!(server.requests(), 7);
    assert_collapsed(&gateway, 0);
}

#[test]
fn a_server_that_fails_fails_the_first_and_the_others_try_themselves() {
    let gate = Gate::default();
    let (own, count) = (gate.clone(), Arc::new(Mutex::new(0)));
    let server = Backend::start(move |_, stream| {
        own.pass();
        let mut count = count.lock().unwrap();
        *count += 1;
        *count > 1 && stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_ok()
    });
    let gateway = start(&server, "collapse = true", "");
    let mut first = ask(&gateway, "");
    assert!(eventually(|| server.requests() == 1));
    let mut others: Vec<_> = (0..3).map(|_| ask(&gateway, "")).collect();
    assert!(eventually(|| waiting(&gateway) == 3));
    gate.open();
    assert_eq!(first.answer().status(), 502);
    assert!(others.iter_mut().all(|wire| wire.answer().status() == 200));
    assert_eq!(server.requests(), 4);
    assert!(eventually(|| gateway.dead_letters().len() == 1));
}

#[test]
fn who_follows_keeps_its_own_timeout_and_edits_and_methods_are_told_apart() {
    let gate = Gate::default();
    let server = server(&gate, |_| ok("hello", ""));
    let route = "collapse = true\ntimeout = \"2s\"\nresponse_headers = { set = { x-client = \"{client_ip}\" } }";
    let gateway = start(&server, route, "");
    let mut wires: Vec<_> = (1..4).map(|own| ask(&gateway, &format!("X-Forwarded-For: 192.0.2.{own}\r\n"))).collect();
    let mut head = Wire::with(gateway.address(), "HEAD /page?a=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(eventually(|| server.requests() == 2 && waiting(&gateway) == 2));
    assert!(wires.iter_mut().all(|wire| wire.answer().status() == 504));
    assert_eq!(head.answer_to("HEAD").status(), 504);
    assert!(eventually(|| gateway.dead_letters().iter().filter(|letter| letter["reason"] == "timeout").count() == 4));
    let before = server.requests();
    let ask_head = || Wire::with(gateway.address(), "HEAD /page?b HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut heads = [ask_head(), ask_head()];
    let mut wires: Vec<_> = (1..4)
        .map(|own| {
            let version = usize::from(own != 3);
            let head = format!("GET /page?b HTTP/1.{version}\r\nHost: x\r\nX-Forwarded-For: 192.0.2.{own}\r\n\r\n");
            Wire::with(gateway.address(), head)
        })
        .collect();
    assert!(eventually(|| server.requests() == before + 2 && waiting(&gateway) == 3));
    gate.open();
    for (own, wire) in wires.iter_mut().enumerate() {
        let answer = wire.answer();
        assert_eq!(
            (answer.text().as_str(), answer.header("x-client")),
            ("hello", Some(&*format!("192.0.2.{}", own + 1)))
        );
    }
    for head in &mut heads {
        assert_eq!(head.answer_to("HEAD").header("content-length"), Some("5"));
    }
    assert_collapsed(&gateway, 3);
}

/// Users ask at once for what is theirs, or everybody's, and the server says which by any of the ways that there are.
#[test]
fn nobody_gets_the_private_answer_of_another() {
    const WAYS: [&str; 7] = [
        "Set-Cookie: a=b",
        "Cache-Control: private",
        "cache-control: max-age=9, Private",
        "Cache-Control: no-store",
        "CDN-Cache-Control: private",
        "Vary: X-User",
        "Vary: accept, *",
    ];
    const SENT: [&str; 4] = ["cookie", "authorization", "x-api-key", "x-user"];
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let mut random = seed;
    let mut next = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    // The target says how the answer is marked; what is marked by nothing has nothing of its user, unless a field says it that
    // is never collapsed, or by which the route counts.
    let server = Backend::start(|request, stream| {
        std::thread::sleep(Duration::from_millis(3));
        let way: usize = request.target().trim_start_matches('/').parse().unwrap();
        let user = |name: &&str| request.header(name).map(str::to_owned);
        let (mark, body) = match WAYS.get(way) {
            Some(mark) => (*mark, SENT.iter().find_map(user)),
            None => ("Server: x", SENT[..3].iter().find_map(user)),
        };
        let body = body.unwrap_or_else(|| "everybody".to_owned());
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{mark}\r\n\r\n{body}", body.len());
        stream.write_all(answer.as_bytes()).is_ok()
    });
    let limit = "[[limit]]\nname = \"own\"\nrate = \"100000/s\"\nkey = \"header:x-api-key\"\n";
    let gateway = start(&server, "limits = [\"own\"]\ncollapse = true", limit);
    for _ in 0..60 {
        let asked: Vec<_> = (0..24)
            .map(|user| {
                let (way, name) = (next(9), SENT[next(8).min(3) as usize]);
                let fields = format!("{name}: user-{user}");
                let wire = Wire::with(gateway.address(), format!("GET /{way} HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n"));
                let is_own = (way as usize) < WAYS.len() || name != "x-user";
                (wire, if is_own { format!("user-{user}") } else { "everybody".to_owned() }, (way, fields))
            })
            .collect();
        for (mut wire, expected, asked) in asked {
            assert_eq!(wire.answer().text(), expected, "{asked:?}, seed {seed}");
        }
    }
    assert!(collapsed(&gateway) > 5.0, "{}", collapsed(&gateway));
}

#[test]
fn streams_of_http2_lead_and_follow_and_leave() {
    let gate = Gate::default();
    let server = server(&gate, |_| ok("hello", ""));
    let gateway = start(&server, "collapse = true", "");
    peer::run(async {
        let until = async |holds: &dyn Fn() -> bool| {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let sender = peer::connect(gateway.address()).await;
        let ask = || peer::open(&sender, peer::request("GET", "/page?a=1", &[]), true);
        let (first, mut stream) = ask().await;
        until(&|| server.requests() == 1).await;
        let others = [ask().await.0, ask().await.0];
        let mut wire = Wire::with(gateway.address(), "GET /page?a=1 HTTP/1.1\r\nHost: h\r\n\r\n");
        until(&|| waiting(&gateway) == 3).await;
        stream.send_reset(h2::Reason::CANCEL);
        drop((first, stream));
        tokio::time::sleep(Duration::from_millis(300)).await;
        gate.open();
        for other in others {
            let answer = peer::whole(other).await.unwrap();
            assert_eq!((answer.text().as_str(), answer.header("content-length")), ("hello", Some("5")));
        }
        assert_eq!(wire.answer().text(), "hello");
    });
    assert_eq!(server.requests(), 1);
    assert_collapsed(&gateway, 3);
}
