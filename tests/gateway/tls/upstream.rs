//! Servers that are spoken to over TLS.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use rcgen::{BasicConstraints, IsCa, date_time_ymd};

use super::peer::{Authority, Backend, Made, Served, params, self_signed, serving};
use crate::support::{Gateway, get};
use crate::wire::Wire;

/// Rules that send everything to one server over TLS with these settings.
pub fn app(backend: &Backend, tls: &str) -> String {
    rules(&backend.address.to_string(), tls, "")
}

fn rules(server: &str, tls: &str, more: &str) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{server}\"]\ntls = {{ {tls} }}\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n"
    )
}

/// A plain gateway, on one worker, whose `ca.pem` is `ca`.
fn before(ca: &str, rules: &str) -> Gateway {
    super::peer::gateway(
        |directory| fs::write(directory.join("ca.pem"), ca).unwrap(),
        &format!("[[listener]]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 1\n{rules}"),
    )
}

/// The status that a request gets, and all that the log says.
fn told(ca: &str, rules: &str) -> (u16, String) {
    let gateway = before(ca, rules);
    let status = get(gateway.address(), "/").status;
    assert!(status == 200 || crate::support::eventually(|| gateway.log().contains("upstream error")));
    (status, gateway.log())
}

fn assert_serves(made: &Made, ca: &str, tls: &str) {
    let backend = Backend::telling(made);
    let (status, log) = told(ca, &app(&backend, tls));
    assert_eq!(status, 200, "{tls}: {log}");
}

fn assert_fails(made: &Made, ca: &str, tls: &str, words: &[&str]) {
    let backend = Backend::telling(made);
    let (status, log) = told(ca, &app(&backend, tls));
    assert_eq!(status, 502, "{tls}: {log}");
    for word in words {
        assert!(log.contains(word), "{tls}: {word:?} is not in {log}");
    }
}

#[test]
fn a_server_is_who_its_certificate_says_or_it_is_not_spoken_to() {
    let (authority, other) = (Authority::new("ca"), Authority::new("other"));
    let made = authority.server(&["app.internal", "app.example"]);
    let by_address = authority.server(&["127.0.0.1"]);
    let ca = &authority.pem;
    let named = "ca = \"ca.pem\", server_name = \"app.internal\"";
    assert_serves(&made, ca, named);
    assert_serves(&by_address, ca, "ca = \"ca.pem\"");
    assert_serves(&made, ca, "verify = false");
    // A file may have several authorities.
    assert_serves(&made, &[&*other.pem, ca].concat(), named);
    assert_fails(&made, &other.pem, named, &["no authority that is trusted here has signed", "`ca`"]);
    assert_fails(&made, ca, "ca = \"ca.pem\"", &["is not for 127.0.0.1", "app.internal, app.example", "server_name"]);
    assert_fails(&made, ca, "ca = \"ca.pem\", server_name = \"x.internal\"", &["is not for x.internal"]);
    let mut old = params(&["app.internal"]);
    old.not_before = date_time_ymd(2020, 1, 1);
    old.not_after = date_time_ymd(2021, 1, 1);
    assert_fails(&authority.sign(&old), ca, named, &["expired on 2021-01-01 00:00:00 UTC"]);
    old.not_before = date_time_ymd(2080, 1, 1);
    old.not_after = date_time_ymd(2081, 1, 1);
    assert_fails(&authority.sign(&old), ca, named, &["is not valid before 2080-01-01 00:00:00 UTC"]);
}

#[test]
fn the_host_is_asked_for_by_its_name_and_an_address_by_none() {
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost", "127.0.0.1", "app.internal"]);
    let backend = Backend::telling(&made);
    let port = backend.address.port();
    for (server, tls, asked) in [
        (format!("127.0.0.1:{port}"), "ca = \"ca.pem\"", None),
        (format!("localhost:{port}"), "ca = \"ca.pem\"", Some("localhost")),
        (format!("127.0.0.1:{port}"), "ca = \"ca.pem\", server_name = \"app.internal\"", Some("app.internal")),
    ] {
        let gateway = before(&authority.pem, &rules(&server, tls, ""));
        assert_eq!(get(gateway.address(), "/").status, 200, "{}", gateway.log());
        assert_eq!(backend.asked.lock().unwrap().pop().unwrap().as_deref(), asked, "{server} {tls}");
    }
}

/// As `openssl req -x509` makes it: an authority by its extensions, and the server's own certificate.
fn of_openssl(year: i32) -> Made {
    let mut params = params(&["app.internal"]);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(year, 1, 1);
    self_signed(&params)
}

#[test]
fn a_certificate_that_is_named_as_ca_is_trusted_for_itself() {
    let (made, twin) = (of_openssl(2080), of_openssl(2080));
    let named = "ca = \"ca.pem\", server_name = \"app.internal\"";
    assert_serves(&made, &made.pem, named);
    assert_serves(&made, &[&*twin.pem, &made.pem].concat(), named);
    // One that is signed by itself and no authority was accepted all along.
    let plain = self_signed(&params(&["app.internal"]));
    assert_serves(&plain, &plain.pem, named);
    assert_fails(&twin, &made.pem, named, &["TLS handshake failed"]);
    assert_fails(&made, &made.pem, "ca = \"ca.pem\"", &["is not for 127.0.0.1", "app.internal"]);
    let old = of_openssl(2021);
    assert_fails(&old, &old.pem, named, &["expired on 2021-01-01 00:00:00 UTC"]);
    // The certificate without its key: whoever copies the file is not the server.
    let mut thief = of_openssl(2080);
    thief.der = made.der.clone();
    assert_fails(&thief, &made.pem, named, &["TLS handshake failed"]);
    assert_fails(&thief, "", "verify = false", &["TLS handshake failed"]);
    // Another certificate for the same name in the file does not stand for one that is not there.
    assert_fails(&made, &twin.pem, named, &["`ca`"]);
}

#[test]
fn what_is_no_tls_is_told() {
    for answer in ["HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", "220 mail.example ESMTP\r\n"] {
        let backend = crate::support::Backend::scripted(move |wire, _| {
            wire.send(answer);
            drop(wire.rest());
        });
        let (status, log) = told("", &rules(&backend.address.to_string(), "verify = false", ""));
        assert_eq!(status, 502);
        assert!(log.contains("the server does not speak TLS on this port"), "{log}");
    }
    let backend = crate::support::Backend::scripted(|wire, _| drop(wire.take(10)));
    let (status, log) = told("", &rules(&backend.address.to_string(), "verify = false", ""));
    assert_eq!(status, 502);
    assert!(log.contains("TLS handshake failed: the server closed the connection"), "{log}");
}

#[test]
fn a_server_without_http2_is_told() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    for alpn in [&[][..], &["http/1.1"]] {
        let backend = Backend::start(serving(&made, alpn), Served::tell);
        let rules = rules(&backend.address.to_string(), "ca = \"ca.pem\"", "protocol = \"h2\"");
        let (status, log) = told(&authority.pem, &rules);
        assert_eq!(status, 502, "{alpn:?}");
        assert!(log.contains("does not speak HTTP/2 over TLS (ALPN h2)"), "{alpn:?}: {log}");
    }
}

#[test]
fn a_response_is_whole_by_its_length_or_by_close_notify() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    let backend = Backend::start(serving(&made, &[]), |served, _| {
        let Ok(request) = served.request() else { return };
        let head = match request.target() {
            "/length" => "Content-Length: 4\r\n",
            "/more" => "Content-Length: 40\r\n",
            "/chunked" => "Transfer-Encoding: chunked\r\n",
            _ => "",
        };
        let body = if head.starts_with('T') { "4\r\nbody\r\n" } else { "body" };
        served.send(format!("HTTP/1.1 200 OK\r\n{head}\r\n{body}")).unwrap();
        if request.target() == "/said" {
            served.finish();
        }
        served.cut();
    });
    let gateway = before(&authority.pem, &app(&backend, "ca = \"ca.pem\""));
    let ask = |target: &str| {
        let mut wire = Wire::with(gateway.address(), crate::wire::get(target));
        wire.response("GET").map(|answer| answer.text()).map_err(|error| error.kind())
    };
    for _ in 0..3 {
        assert_eq!(ask("/length").as_deref(), Ok("body"));
        assert_eq!(ask("/said").as_deref(), Ok("body"));
        for target in ["/unsaid", "/more", "/chunked"] {
            assert!(ask(target).is_err(), "{target} is not whole");
        }
    }
}

#[test]
fn tickets_that_come_on_an_idle_connection_do_not_spoil_it() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    let mut config = Arc::unwrap_or_clone(serving(&made, &[]));
    config.ticketer = rustls::crypto::aws_lc_rs::Ticketer::new().unwrap();
    config.send_tls13_tickets = 4;
    let (ask, asked) = mpsc::channel();
    let (sent, is_sent) = mpsc::channel();
    let asked = Mutex::new(asked);
    let backend = Backend::start(Arc::new(config), move |served, number| {
        while let Ok(request) = served.request() {
            served.send(crate::wire::ok(&format!("{number} {}", request.target()))).unwrap();
            // Once the client has its answer the connection lies idle; then new keys come over it, as tickets would.
            asked.lock().unwrap().recv().unwrap();
            served.session().refresh_traffic_keys().unwrap();
            served.send("").unwrap();
            sent.send(()).unwrap();
        }
    });
    let gateway = before(&authority.pem, &app(&backend, "ca = \"ca.pem\""));
    for number in 0..20 {
        assert_eq!(get(gateway.address(), &format!("/{number}")).text(), format!("1 /{number}"));
        ask.send(()).unwrap();
        is_sent.recv().unwrap();
    }
    assert_eq!(backend.accepted(), 1);
}

#[test]
fn what_a_server_sends_unasked_is_nobodys_answer() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    const HEAD: usize = 57;
    // Answers of any size, among them those that fill a buffer to its end, so that what follows is left behind in what
    // was deciphered with them.
    let backend = Backend::start(serving(&made, &[]), |served, number| {
        while let Ok(request) = served.request() {
            let size: usize = request.target().trim_start_matches('/').parse().unwrap();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {:06}\r\nX-From: {number:04}\r\n\r\n", size - HEAD);
            assert_eq!(head.len(), HEAD);
            served.send_at_once(&[&format!("{head}{}", "x".repeat(size - head.len())), &crate::wire::ok("poison")]);
        }
    });
    let gateway = before(&authority.pem, &app(&backend, "ca = \"ca.pem\""));
    let sizes = [100, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 48 << 10];
    for (place, size) in sizes.into_iter().enumerate() {
        let answer = get(gateway.address(), &format!("/{size}"));
        assert_eq!(answer.header("x-from"), Some(&*format!("{:04}", place + 1)), "after {size}: {answer:?}");
        assert_eq!(answer.body.len(), size - HEAD);
    }
}

/// `close_notify` alone, while the socket stays open: what is sent from then on would have no reader.
#[test]
fn a_server_that_said_goodbye_is_not_asked_again() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    let backend = Backend::start(serving(&made, &[]), |served, number| {
        drop(served.request());
        let session = served.session();
        session.writer().write_all(crate::wire::ok(&number.to_string()).as_bytes()).unwrap();
        session.send_close_notify();
        served.send_at_once(&[]);
        // Until the gateway closes.
        drop(served.tcp().read(&mut [0; 100]));
    });
    let gateway = before(&authority.pem, &app(&backend, "ca = \"ca.pem\""));
    for number in 1..=5 {
        // A request that may not be sent twice.
        let mut wire = Wire::with(gateway.address(), "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\nx");
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.text()), (200, number.to_string()));
    }
}

#[test]
fn a_connection_that_died_idle_is_replaced() {
    let authority = Authority::new("ca");
    let made = authority.server(&["127.0.0.1"]);
    for (says_so, at_next) in [(true, false), (false, false), (false, true), (true, true)] {
        let ended = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ended);
        let backend = Backend::start(serving(&made, &[]), move |served, number| {
            let request = served.request().unwrap();
            served.send(crate::wire::ok(&format!("{number} {}", request.target()))).unwrap();
            if at_next {
                // It has taken the next request by then.
                drop(served.request());
            }
            if says_so {
                served.finish();
            }
            served.cut();
            count.fetch_add(1, Ordering::SeqCst);
        });
        let gateway = before(&authority.pem, &app(&backend, "ca = \"ca.pem\""));
        for number in 1..=5 {
            let answer = get(gateway.address(), &format!("/{number}"));
            assert_eq!(answer.text(), format!("{number} /{number}"), "says {says_so}, at the next {at_next}");
            if !at_next {
                assert!(crate::support::eventually(|| ended.load(Ordering::SeqCst) == number));
            }
        }
    }
}

#[test]
fn a_server_that_does_not_shake_hands_is_not_waited_for_for_ever() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (status, log) = told("", &rules(&address, "verify = false", "connect_timeout = \"300ms\""));
    assert_eq!(status, 502);
    assert!(log.contains("connect_timeout"), "{log}");
}
