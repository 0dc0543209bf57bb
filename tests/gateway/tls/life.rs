//! The life of a connection over TLS: messages of every cut, bodies, ends.

use std::io::{BufRead, ErrorKind, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use rustls::version::{TLS12, TLS13};

use super::peer::{Asking, Authority, Backend, ECHO, LOCAL, Tls, front, gateway, https, serving};
use crate::support::Gateway;

const MIB: usize = 1 << 20;

/// Rules that send everything to a server over plain HTTP.
fn to(backend: &crate::support::Backend) -> String {
    format!(
        "[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n[[route]]\nname = \"all\"\nupstream = \"app\"\n",
        backend.address
    )
}

#[test]
fn a_head_may_come_in_any_records() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "max_head_size = \"256KiB\"", ECHO);
    for version in [&TLS12, &TLS13] {
        let versions = [version];
        let config = Asking::of(&authority).versions(&versions).build();
        let mut tls = Tls::open(gateway.address(), &config);
        // More than six whole records.
        let value = "v".repeat(100 << 10);
        tls.send(format!("GET /large HTTP/1.1\r\nHost: h\r\nX-Large: {value}\r\n\r\n")).unwrap();
        assert_eq!(tls.answer().unwrap().echoed("x-large"), Some(value), "{version:?}");
        // A record for each byte, twice, with a body.
        for _ in 0..2 {
            for byte in b"POST /bytes HTTP/1.1\r\nHost: h\r\nX-Small: v\r\nContent-Length: 4\r\n\r\nbody" {
                tls.send([*byte]).unwrap();
            }
            let answer = tls.answer().unwrap();
            assert_eq!((answer.status, answer.echoed("x-small").as_deref()), (200, Some("v")));
        }
        assert_eq!(tls.get("/after").status, 200);
    }
    wait_idle(&gateway);
}

fn wait_idle(gateway: &Gateway) {
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
}

#[test]
fn large_bodies_pass_both_ways() {
    const SIZE: usize = 64 * MIB;
    let authority = Authority::new("ca");
    let made = authority.server(&["localhost"]);
    // TLS on both sides; what is uploaded is compared there, what is downloaded here.
    let block: Arc<Vec<u8>> = Arc::new((0..251 * 1024).map(|at| (at % 251) as u8).collect());
    let theirs = Arc::clone(&block);
    let backend = Backend::start(serving(&made, &[]), move |served, _| {
        let (_, _) = crate::support::read_head(&mut served.reader).unwrap();
        assert!(is_pattern(&mut served.reader, &theirs, SIZE));
        served.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        for part in parts(SIZE, theirs.len()) {
            served.send(format!("{part:x}\r\n")).unwrap();
            served.send(&theirs[..part]).unwrap();
            served.send("\r\n").unwrap();
        }
        served.send("0\r\n\r\n").unwrap();
        drop(served.rest());
    });
    let rules = super::upstream::app(&backend, "ca = \"ca.pem\", server_name = \"localhost\"");
    let gateway = gateway(
        |directory| {
            made.write(directory, "cert");
            std::fs::write(directory.join("ca.pem"), &authority.pem).unwrap();
        },
        &format!("{}[server]\nworkers = 1\n{rules}", https("")),
    );
    let mut tls = Tls::open(gateway.address(), &Asking::of(&authority).build());
    tls.send(format!("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {SIZE}\r\n\r\n")).unwrap();
    let before = gateway.resident();
    for part in parts(SIZE, block.len()) {
        tls.send(&block[..part]).unwrap();
    }
    let answer = tls.answer().unwrap();
    assert_eq!(answer.body.len(), SIZE);
    assert!(answer.body.chunks(block.len()).all(|part| part == &block[..part.len()]), "every byte in its place");
    let grown = gateway.resident().saturating_sub(before);
    assert!(grown < 8 << 20, "grew by {grown} bytes");
}

fn parts(size: usize, block: usize) -> impl Iterator<Item = usize> {
    (0..size).step_by(block).map(move |at| block.min(size - at))
}

fn is_pattern(reader: &mut impl Read, block: &[u8], size: usize) -> bool {
    let mut room = vec![0; block.len()];
    parts(size, block.len()).all(|part| {
        reader.read_exact(&mut room[..part]).unwrap();
        room[..part] == block[..part]
    })
}

#[test]
fn a_thousand_requests_may_be_sent_at_once() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", ECHO);
    let mut tls = Tls::open(gateway.address(), &Asking::of(&authority).build());
    for _ in 0..3 {
        assert_eq!(tls.get("/kept").status, 200);
    }
    let all: Vec<_> = (0..1_000).map(|number| crate::wire::get(&format!("/{number}"))).collect();
    tls.send(all.concat()).unwrap();
    for number in 0..1_000 {
        let answer = tls.answer().unwrap();
        assert_eq!(answer.json()["path"], format!("/{number}"), "{answer:?}");
    }
    gateway.wait_metric("sluicegate_client_connections_total", &[], 1.0);
}

#[test]
fn an_end_by_close_notify_is_answered_by_one() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", ECHO);
    for version in [&TLS12, &TLS13] {
        let versions = [version];
        let config = Asking::of(&authority).versions(&versions).build();
        // After a request whose answer takes a while: it is sent all the same.
        let mut tls = Tls::open(gateway.address(), &config);
        tls.send("GET /?delay=300ms HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        tls.finish();
        assert_eq!(tls.answer().unwrap().status, 200, "{version:?}");
        assert_eq!(tls.rest().unwrap(), b"", "{version:?}");
        // On an idle connection.
        let mut tls = Tls::open(gateway.address(), &config);
        assert_eq!(tls.get("/").status, 200);
        tls.finish();
        assert_eq!(tls.rest().unwrap(), b"", "idle, {version:?}");
        // On one that has not said anything.
        let mut tls = Tls::open(gateway.address(), &config);
        tls.finish();
        assert_eq!(tls.rest().unwrap(), b"", "new, {version:?}");
        // After an answer that closes.
        let mut tls = Tls::open(gateway.address(), &config);
        tls.send("GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").unwrap();
        assert_eq!(tls.answer().unwrap().status, 200);
        assert_eq!(tls.rest().unwrap(), b"", "closed, {version:?}");
        // After one to something that is no request, with bytes behind it.
        let mut tls = Tls::open(gateway.address(), &config);
        tls.send("GET / HTTP/1.1\r\nHost : h\r\n\r\nmore").unwrap();
        assert_eq!(tls.answer().unwrap().status, 400);
        assert_eq!(tls.rest().unwrap(), b"", "refused, {version:?}");
    }
    wait_idle(&gateway);
}

/// HTTP/1.0 without a length: whether all has come is told by `close_notify` alone.
#[test]
fn a_body_that_its_end_delimits_ends_by_close_notify_only_if_it_is_whole() {
    const SIZE: usize = 3 * MIB;
    let authority = Authority::new("ca");
    let backend = crate::support::Backend::start(|request, stream| {
        let head: &[u8] = match request.target() {
            "/whole" => b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
            _ => b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n400000\r\n",
        };
        drop(stream.write_all(head).and_then(|()| stream.write_all(&vec![b'x'; SIZE])));
        false
    });
    let gateway = front(&authority, "", &to(&backend));
    for target in ["/whole", "/cut"] {
        for slow in [false, true] {
            let mut tls = Tls::open(gateway.address(), &Asking::of(&authority).build());
            tls.send(format!("GET {target} HTTP/1.0\r\nHost: h\r\n\r\n")).unwrap();
            let (_, headers) = crate::support::read_head(&mut tls.reader).unwrap();
            assert!(!headers.iter().any(|(name, _)| name == "content-length"), "{headers:?}");
            if slow {
                std::thread::sleep(Duration::from_millis(300));
            }
            let mut body = Vec::new();
            let end = tls.reader.read_to_end(&mut body).map_err(|error| error.kind());
            if target == "/whole" {
                assert_eq!((end, body.len()), (Ok(SIZE), SIZE), "slow: {slow}");
            } else {
                assert_eq!(end, Err(ErrorKind::UnexpectedEof), "slow: {slow}");
            }
        }
    }
}

#[test]
fn a_client_that_resets_in_an_answer_is_gone() {
    let authority = Authority::new("ca");
    let backend = crate::support::Backend::start(|_, stream| {
        drop(stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n"));
        while stream.write_all(&[0; 8_192]).is_ok() {}
        false
    });
    let gateway = front(&authority, "", &to(&backend));
    let config = Asking::of(&authority).build();
    for (count, resets) in [true, false].into_iter().enumerate() {
        let mut tls = Tls::open(gateway.address(), &config);
        tls.send("GET / HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
        assert!(!tls.reader.fill_buf().unwrap().is_empty());
        if resets {
            tls.reset();
        } else {
            tls.cut();
        }
        crate::wire::wait_outcome(&gateway, "client-gone", count + 1);
        backend.wait_closed();
    }
    wait_idle(&gateway);
}

#[test]
fn an_idle_connection_is_told_of_the_end() {
    let authority = Authority::new("ca");
    let mut gateway = front(&authority, "shutdown_grace = \"5s\"", ECHO);
    let config = Asking::of(&authority).build();
    let (mut fresh, mut kept) = (Tls::open(gateway.address(), &config), Tls::open(gateway.address(), &config));
    assert_eq!(kept.get("/").status, 200);
    let mut busy = Tls::open(gateway.address(), &config);
    busy.send("GET /?delay=700ms HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 1.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 3.0);
    gateway.signal("TERM");
    assert_eq!(kept.rest().unwrap(), b"");
    assert_eq!(fresh.rest().unwrap(), b"");
    let answer = busy.answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(busy.rest().unwrap(), b"");
    assert!(gateway.wait_exit().success());
}

/// The cost of a connection while it is idle, at most, in bytes of resident memory.
const MOST: u64 = 40 << 10;

#[test]
fn an_idle_connection_is_small() {
    let authority = Authority::new("ca");
    let gateway = front(&authority, "", LOCAL);
    let config = Asking::of(&authority).build();
    let open = |count: usize| -> Vec<Tls> {
        let each = || {
            let mut tls = Tls::open(gateway.address(), &config);
            assert_eq!(tls.get("/").status, 200);
            tls
        };
        (0..count).map(|_| each()).collect()
    };
    let mut first = open(100);
    let before = gateway.resident();
    let others = open(1_000);
    let each = gateway.resident().saturating_sub(before) / 1_000;
    println!("an idle TLS connection: {each} bytes");
    assert!(each <= MOST, "{each} bytes each");
    assert!(first.iter_mut().all(|tls| tls.get("/").status == 200), "and they still work");
    drop(others);
}
