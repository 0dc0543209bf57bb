//! Handshakes: who gets which certificate, which version and protocol, and what becomes of those who do not shake hands.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, ClientConfig, HandshakeKind, ProtocolVersion};

use super::peer::{Asking, Authority, ECHO, LOCAL, Tls, front, gateway, https, wait_handshakes};
use crate::connections::connect_from;
use crate::support::{Gateway, PATIENCE, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::Wire;

/// The alert by which the other side has ended a handshake, or what came in its place.
fn alert(error: &std::io::Error) -> Result<AlertDescription, String> {
    match error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()) {
        Some(rustls::Error::AlertReceived(alert)) => Ok(*alert),
        other => Err(format!("{error}: {other:?}")),
    }
}

fn refused(address: std::net::SocketAddr, config: &Arc<ClientConfig>, name: &str) -> AlertDescription {
    let tried = Tls::try_open(address, config, name).and_then(|mut tls| tls.try_get("/"));
    alert(&tried.map(|answer| answer.status).unwrap_err()).unwrap()
}

#[test]
fn the_name_chooses_the_certificate() {
    let authority = Authority::new("ca");
    let first = authority.server(&["first.example", "10.1.2.3"]);
    let exact = authority.server(&["b.wild.example"]);
    let wildcard = authority.server(&["*.wild.example"]);
    let rules = |reject: &str| {
        let one = |name: &str| format!("{{ cert = \"{name}.pem\", key = \"{name}-key.pem\" }}");
        format!(
            "[[listener]]\naddress = \"127.0.0.1:0\"\nprotocol = \"https\"\n{reject}\n\
             tls = {{ certificates = [{}, {}, {}] }}\n{LOCAL}",
            one("first"),
            one("exact"),
            one("wild")
        )
    };
    let start = |reject| {
        gateway(
            |directory| {
                first.write(directory, "first");
                exact.write(directory, "exact");
                wildcard.write(directory, "wild");
            },
            &rules(reject),
        )
    };
    let open = start("");
    let strict = start("reject_unknown_sni = true");
    // Whoever shows what is verified elsewhere: the names need not fit here.
    for version in [&TLS12, &TLS13] {
        let versions = [version];
        let config = Asking::of(&authority).versions(&versions).forgetful();
        for (name, made) in [
            ("first.example", &first),
            ("FIRST.example", &first),
            ("b.wild.example", &exact),
            ("a.wild.example", &wildcard),
        ] {
            for gateway in [&open, &strict] {
                let mut tls = Tls::try_open(gateway.address(), &config, name).unwrap();
                assert_eq!(tls.shown(), made.der, "{name} {version:?}");
                assert_eq!(tls.get("/").text(), "local\n");
            }
        }
        for name in ["wild.example", "a.b.wild.example", "other.example", "10.1.2.3"] {
            let tried = Tls::try_open(open.address(), &config, name);
            if name == "10.1.2.3" {
                assert_eq!(tried.unwrap().shown(), first.der, "an address is no name: the first");
            } else {
                let error = tried.map(drop).unwrap_err().to_string();
                assert!(error.contains("first.example"), "{name} gets the first: {error}");
            }
            assert_eq!(refused(strict.address(), &config, name), AlertDescription::AccessDenied, "{name}");
        }
    }
    wait_handshakes(&strict, "failed", 8);
}

#[test]
fn the_oldest_version_is_as_configured() {
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost"]);
    let start = |more: &str| gateway(|directory| made.write(directory, "cert"), &format!("{}{LOCAL}", https(more)));
    let (both, new) = (start(""), start(", min_version = \"1.3\""));
    let (old_client, new_client) =
        (Asking::of(&authority).versions(&[&TLS12]).build(), Asking::of(&authority).versions(&[&TLS13]).build());
    for (gateway, config, version) in [
        (&both, &old_client, Some(ProtocolVersion::TLSv1_2)),
        (&both, &new_client, Some(ProtocolVersion::TLSv1_3)),
        (&new, &new_client, Some(ProtocolVersion::TLSv1_3)),
    ] {
        let mut tls = Tls::open(gateway.address(), config);
        assert_eq!(tls.session().protocol_version(), version);
        assert_eq!(tls.get("/").text(), "local\n");
    }
    assert_eq!(refused(new.address(), &old_client, "localhost"), AlertDescription::ProtocolVersion);
    wait_handshakes(&new, "failed", 1);
    wait_handshakes(&new, "full", 1);
}

#[test]
fn alpn_chooses_the_protocol() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", LOCAL);
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some("h2")),
        (&["http/1.1", "h2"], Some("h2")),
        (&["h2"], Some("h2")),
        (&["http/1.1"], Some("http/1.1")),
        (&["spdy/3", "http/1.1"], Some("http/1.1")),
        (&["http/1.0"], Some("http/1.0")),
        (&[], None),
    ] {
        let config = Asking::of(&authority).alpn(offered).build();
        let mut tls = Tls::open(gateway.address(), &config);
        let agreed = tls.session().alpn_protocol().map(|name| String::from_utf8_lossy(name).into_owned());
        assert_eq!(agreed.as_deref(), chosen, "{offered:?}");
        if chosen == Some("h2") {
            tls.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
            let mut head = [0; 9];
            tls.reader.read_exact(&mut head).unwrap();
            assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]), "its SETTINGS");
        } else {
            assert_eq!(tls.get("/").text(), "local\n");
        }
    }
    let config = Asking::of(&authority).alpn(&["smtp"]).build();
    assert_eq!(refused(gateway.address(), &config, "localhost"), AlertDescription::NoApplicationProtocol);
}

/// How a handshake of this client came about.
fn kind(gateway: &Gateway, config: &Arc<ClientConfig>) -> HandshakeKind {
    let mut tls = Tls::open(gateway.address(), config);
    assert_eq!(tls.get("/").text(), "local\n");
    tls.session().handshake_kind().unwrap()
}

#[test]
fn sessions_resume_at_any_worker_and_after_a_reload() {
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost"]);
    let rules = |body: &str| format!("{}[server]\nworkers = 2\n{}", https(""), LOCAL.replace("200", body));
    let gateway = gateway(|directory| made.write(directory, "cert"), &rules("200"));
    let (mut full, mut resumed) = (0, 0);
    for version in [&TLS12, &TLS13] {
        let config = Asking::of(&authority).versions(&[version]).build();
        assert_eq!(kind(&gateway, &config), HandshakeKind::Full, "{version:?}");
        full += 1;
        // The kernel spreads connections: after so many, each worker has had some.
        for _ in 0..30 {
            assert_eq!(kind(&gateway, &config), HandshakeKind::Resumed, "{version:?}");
            resumed += 1;
        }
        wait_handshakes(&gateway, "full", full);
        wait_handshakes(&gateway, "resumed", resumed);
        // Another certificate, and a configuration that has to be built anew.
        authority.server(&["localhost"]).write(gateway.directory.path(), "cert");
        assert_eq!(gateway.ask_reload().status, 200);
        let fresh = Asking::of(&authority).forgetful();
        let before = Tls::open(gateway.address(), &fresh).shown();
        assert_ne!(before, made.der, "the new certificate is served");
        full += 1;
        for _ in 0..10 {
            assert_eq!(kind(&gateway, &config), HandshakeKind::Resumed, "after a reload, {version:?}");
            resumed += 1;
        }
    }
    wait_handshakes(&gateway, "full", full);
    wait_handshakes(&gateway, "resumed", resumed);
}

/// The `ClientHello` that rustls would send.
fn hello(authority: &Authority) -> Vec<u8> {
    let name = "localhost".try_into().unwrap();
    let mut client = rustls::ClientConnection::new(Asking::of(authority).build(), name).unwrap();
    let mut bytes = Vec::new();
    client.write_tls(&mut bytes).unwrap();
    bytes
}

/// Whether the other side has ended the connection, by an end or a reset.
fn is_ended(mut tcp: &TcpStream) -> bool {
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    match tcp.read(&mut [0; 64]) {
        Ok(size) => size == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn half_a_hello_is_waited_for_and_not_for_ever() {
    best_of_three(|| {
        let authority = Authority::new("ca");
        let gateway = front(&authority, "handshake_timeout = \"1s\"", LOCAL);
        let hello = hello(&authority);
        // Silence is the same as half a hello; and half a hello in two parts gets no more time than in one.
        for parts in [&[][..], &[&hello[..hello.len() / 2]], &[&hello[..5], &hello[5..20]]] {
            let started = Instant::now();
            let mut tcp = TcpStream::connect(gateway.address()).unwrap();
            for part in parts {
                tcp.write_all(part).unwrap();
                std::thread::sleep(Duration::from_millis(200));
            }
            assert!(is_ended(&tcp));
            assert_took(started, 900..2_500);
        }
        wait_handshakes(&gateway, "timeout", 3);
        let mut tls = Tls::open(gateway.address(), &Asking::of(&authority).build());
        assert_eq!(tls.get("/").text(), "local\n");
    });
}

#[test]
fn handshakes_at_once_are_bounded() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "max_handshakes = 1", LOCAL);
    let config = Asking::of(&authority).build();
    // A connection that has shaken hands takes no place.
    let mut early = Tls::open(gateway.address(), &config);
    assert_eq!(early.get("/").text(), "local\n");
    // Nor does one that says nothing.
    let silent: Vec<_> = (0..3).map(|_| TcpStream::connect(gateway.address()).unwrap()).collect();
    gateway.wait_metric("sluicegate_client_connections", &[], 4.0);
    assert_eq!(Tls::open(gateway.address(), &config).get("/").text(), "local\n");
    drop(silent);
    wait_handshakes(&gateway, "client-gone", 3);
    gateway.wait_metric("sluicegate_client_connections", &[], 1.0);
    let mut slow = TcpStream::connect(gateway.address()).unwrap();
    let hello = hello(&authority);
    slow.write_all(&hello[..10]).unwrap();
    gateway.wait_metric("sluicegate_client_connections", &[], 2.0);
    for beyond in 1..=3 {
        assert!(Tls::try_open(gateway.address(), &config, "localhost").is_err());
        wait_handshakes(&gateway, "too-many", beyond);
    }
    assert_eq!(early.get("/").text(), "local\n");
    drop(slow);
    wait_handshakes(&gateway, "client-gone", 4);
    assert_eq!(Tls::open(gateway.address(), &config).get("/").text(), "local\n");
}

/// A connection that has sent a part of a hello.
fn half(source: &str, gateway: &Gateway, hello: &[u8]) -> TcpStream {
    let mut tcp = connect_from(source, gateway.address());
    tcp.write_all(&hello[..10]).unwrap();
    tcp
}

/// Whether a client of this address can shake hands.
fn is_taken(source: &str, gateway: &Gateway, config: &Arc<ClientConfig>) -> bool {
    let tcp = connect_from(source, gateway.address());
    Tls::over(tcp, config, "localhost").and_then(|mut tls| tls.try_get("/")).is_ok_and(|answer| answer.status == 200)
}

fn wait_open(gateway: &Gateway, count: usize) {
    gateway.wait_metric("sluicegate_client_connections", &[], count as f64);
}

#[test]
fn one_client_has_half_of_the_handshakes_and_a_trusted_proxy_has_all() {
    let authority = Authority::new("ca");
    let rules = format!("[client]\ntrusted_proxies = [\"127.0.0.9\"]\n{LOCAL}");
    let gateway = front(&authority, "max_handshakes = 6", &rules);
    let (config, hello) = (Asking::of(&authority).build(), hello(&authority));
    let mut held: Vec<_> = (0..3).map(|_| half("127.0.0.2", &gateway, &hello)).collect();
    wait_open(&gateway, 3);
    assert!(!is_taken("127.0.0.2", &gateway, &config));
    wait_handshakes(&gateway, "too-many", 1);
    assert!(is_taken("127.0.0.3", &gateway, &config), "the other half is for others");
    drop(held.pop());
    wait_handshakes(&gateway, "client-gone", 1);
    assert!(is_taken("127.0.0.2", &gateway, &config));
    drop(held);
    wait_handshakes(&gateway, "client-gone", 3);
    let _proxy: Vec<_> = (0..5).map(|_| half("127.0.0.9", &gateway, &hello)).collect();
    wait_open(&gateway, 5);
    assert!(is_taken("127.0.0.9", &gateway, &config), "it speaks for many");
    wait_handshakes(&gateway, "too-many", 1);
}

#[test]
fn the_client_that_has_most_handshakes_gives_its_oldest() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "max_handshakes = 4", LOCAL);
    let (config, hello) = (Asking::of(&authority).forgetful(), hello(&authority));
    let mut held = Vec::new();
    for source in ["127.0.0.2", "127.0.0.3", "127.0.0.3", "127.0.0.2"] {
        held.push(half(source, &gateway, &hello));
        wait_open(&gateway, held.len());
    }
    // Each of two has two: whoever has none yet takes one of theirs.
    for done in 1..=3 {
        assert!(is_taken(&format!("127.0.0.{}", 3 + done), &gateway, &config));
        wait_handshakes(&gateway, "full", done);
        if done == 1 {
            wait_handshakes(&gateway, "displaced", 1);
        }
    }
    // The three that are left leave a place free, so only the first one had to be given.
    wait_handshakes(&gateway, "displaced", 1);
    wait_handshakes(&gateway, "too-many", 0);
    let ended = held.iter().position(|tcp| {
        tcp.set_nonblocking(true).unwrap();
        let mut reader: &TcpStream = tcp;
        reader.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    });
    assert!(matches!(ended, Some(0 | 1)), "the oldest of one of them, by a reset: {ended:?}");
}

#[test]
fn where_each_has_one_handshake_only_the_one_that_stands_still_longest_is_given() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "max_handshakes = 40", LOCAL);
    let (config, hello) = (Asking::of(&authority).build(), hello(&authority));
    let mut held = Vec::new();
    for last in 2..42 {
        held.push(half(&format!("127.0.0.{last}"), &gateway, &hello));
        wait_open(&gateway, held.len());
    }
    // Two that come later: for either the one that has stood still longest goes.
    for newcomer in 0..2 {
        if newcomer == 1 {
            // The place that the first one has left.
            held.push(half("127.0.0.42", &gateway, &hello));
            wait_open(&gateway, 40);
        }
        assert!(eventually(|| is_taken(&format!("127.0.0.{}", 50 + newcomer), &gateway, &config)));
        wait_handshakes(&gateway, "displaced", newcomer + 1);
        wait_open(&gateway, 39);
    }
    let is_reset = |mut tcp: &TcpStream| {
        tcp.set_nonblocking(true).unwrap();
        tcp.read(&mut [0]).is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset)
    };
    let gone: Vec<_> = (0..held.len()).filter(|number| is_reset(&held[*number])).collect();
    assert_eq!(gone, [0, 1]);
}

#[test]
fn connections_that_never_say_hello_make_room() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "max_connections = 3", LOCAL);
    let config = Asking::of(&authority).build();
    let silent: Vec<_> = (0..3).map(|_| connect_from("127.0.0.2", gateway.address())).collect();
    wait_open(&gateway, 3);
    assert!(is_taken("127.0.0.3", &gateway, &config));
    gateway.wait_metric("sluicegate_client_connections_reclaimed_total", &["reason=\"silent\""], 1.0);
    assert!(is_ended(&silent[0]));
}

#[test]
fn plain_http_gets_an_answer_that_it_can_read() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", LOCAL);
    let mut count = 0;
    for request in [
        "GET / HTTP/1.1\r\nHost: h\r\n\r\n".to_owned(),
        "G".to_owned(),
        format!("POST /x HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n{}", "x".repeat(200_000)),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
    ] {
        let mut wire = Wire::with(gateway.address(), &request);
        if request.len() < 5 {
            // Less than a TLS record's head: it may yet become anything.
            wire.send("ET / HTTP/1.1\r\n\r\n");
        }
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.closes()), (400, true), "{request:.20}");
        assert!(answer.text().contains("use https://"), "{}", answer.text());
        wire.assert_ended();
        count += 1;
        wait_handshakes(&gateway, "plain-http", count);
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_eq!(Tls::open(gateway.address(), &Asking::of(&authority).build()).get("/").text(), "local\n");
}

#[test]
fn garbage_does_no_harm() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "handshake_timeout = \"500ms\"", LOCAL);
    let hello = hello(&authority);
    let mut flipped = hello.clone();
    for at in (6..flipped.len()).step_by(7) {
        flipped[at] ^= 0x55;
    }
    let oversized = [&[22, 3, 1, 0xff, 0xff][..], &vec![0; 70_000]].concat();
    let alert = [21, 3, 3, 0, 2, 2, 40];
    let application = [23, 3, 3, 0, 5, 1, 2, 3, 4, 5];
    let empty_records = [22, 3, 3, 0, 0].repeat(100);
    let ssl2 = [0x80, 0x2e, 1, 0, 2, 0, 0x15, 0, 0, 0, 0x10];
    for (what, bytes) in [
        ("nothing", &[][..]),
        ("zeros", &[0; 1000]),
        ("0xff", &[0xff; 1000]),
        ("lower case", b"get / http/1.1\r\n\r\n"),
        ("a flipped hello", &flipped),
        ("a record that is too large", &oversized),
        ("an alert", &alert),
        ("application data", &application),
        ("empty records", &empty_records),
        ("SSL 2", &ssl2),
        ("a hello twice", &[&hello[..], &hello].concat()),
    ] {
        let mut tcp = TcpStream::connect(gateway.address()).unwrap();
        drop(tcp.write_all(bytes));
        drop(tcp.shutdown(std::net::Shutdown::Write));
        let mut answer = Vec::new();
        drop(tcp.read_to_end(&mut answer));
        assert!(!answer.starts_with(b"HTTP"), "{what}");
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_eq!(Tls::open(gateway.address(), &Asking::of(&authority).build()).get("/").text(), "local\n");
    assert!(!gateway.log().contains("panic"), "{}", gateway.log());
}

#[test]
fn a_client_that_resets_in_the_handshake_is_counted_as_gone() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", LOCAL);
    let hello = hello(&authority);
    for (count, part) in [&hello[..1], &hello[..hello.len() / 2]].iter().enumerate() {
        let wire = Wire::with(gateway.address(), part);
        gateway.wait_metric("sluicegate_client_connections", &[], 1.0);
        wire.reset();
        wait_handshakes(&gateway, "client-gone", count + 1);
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
}

/// Requests as a server behind it sees them, and as the logs tell them.
#[test]
fn requests_over_tls_are_told_and_logged_as_such() {
    let authority = Authority::new("ca");
    let rules = format!(
        "{ECHO}limits = [\"one\"]\n[[limit]]\nname = \"one\"\nkey = \"client-ip\"\nrate = \"1/1h\"\n\
         [log]\naccess = \"json\"\n[dead_letter]\ndirectory = \"dead-letters\"\n"
    );
    let gateway = front(&authority, "", &rules);
    let mut tls = Tls::open(gateway.address(), &Asking::of(&authority).build());
    tls.send("GET /a?b=c HTTP/1.1\r\nHost: shop.example\r\nX-Forwarded-Proto: http\r\nForwarded: proto=http\r\n\r\n")
        .unwrap();
    let answer = tls.answer().unwrap();
    assert_eq!(answer.status, 200);
    assert_eq!(answer.echoed("x-forwarded-proto").as_deref(), Some("https"));
    let all = answer.text();
    assert!(!all.contains("proto=http\"") && !all.contains("\"http\""), "{all}");
    assert_eq!(tls.get("/refused").status, 429);
    assert!(eventually(|| gateway.access_log().len() == 2 && gateway.dead_letters().len() == 1));
    let lines = gateway.access_log();
    let seen: BTreeSet<_> = lines.iter().map(|line| line["status"].as_u64().unwrap()).collect();
    assert_eq!(seen, BTreeSet::from([200, 429]), "{lines:?}");
    assert_eq!(lines[0]["target"], "/a?b=c", "{lines:?}");
    let letter = &gateway.dead_letters()[0];
    assert_eq!(letter["reason"], "rate-limited", "{letter}");
    assert!(letter.to_string().contains("/refused"), "{letter}");
}
