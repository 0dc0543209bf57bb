use std::sync::{Arc, Mutex};

use super::{AUTHORITY, SIGNATURE, UNIQUE_ID, binary, crc32c, line};
use crate::h2::peer as h2;
use crate::support::{Backend, Gateway, eventually};
use crate::wire::{Wire, get, ok, rules};

/// A server that takes a header of either version before it serves, and notes it.
fn server() -> (Backend, Arc<Mutex<Vec<Vec<u8>>>>) {
    let headers = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&headers);
    let backend = Backend::scripted(move |wire, number| {
        let Ok(header) = take_header(wire) else { return };
        log.lock().unwrap().push(header);
        while let Ok(request) = wire.request() {
            wire.send(ok(&format!("{number} {}", request.target())));
        }
    });
    (backend, headers)
}

fn take_header(wire: &mut Wire) -> std::io::Result<Vec<u8>> {
    let mut header = wire.take(13)?;
    if header.starts_with(SIGNATURE) {
        header.extend(wire.take(3)?);
        let length = usize::from(header[14]) << 8 | usize::from(header[15]);
        header.extend(wire.take(length)?);
    } else {
        while !header.ends_with(b"\r\n") {
            header.extend(wire.take(1)?);
        }
    }
    Ok(header)
}

fn with_header(backend: &Backend, version: &str, more: &str) -> String {
    rules(backend, "", more).replace("servers =", &format!("proxy_protocol = \"{version}\"\nservers ="))
}

fn port(wire: &Wire) -> u16 {
    wire.stream().local_addr().unwrap().port()
}

fn text(header: &[u8]) -> String {
    String::from_utf8(header.to_vec()).unwrap()
}

#[test]
fn a_server_is_told_for_whom_a_connection_is_which_is_for_nobody_else() {
    let (backend, headers) = server();
    let gateway = Gateway::start(&with_header(&backend, "v1", ""));
    let (mut one, mut two) = (Wire::open(gateway.address()), Wire::open(gateway.address()));
    assert_eq!(one.get("/a").text(), "1 /a");
    assert_eq!(two.get("/b").text(), "2 /b", "another client has another connection, although the first is idle");
    assert_eq!(one.get("/c").text(), "1 /c");
    assert_eq!(two.get("/d").text(), "2 /d");
    let to = gateway.address().port();
    let lines = [&one, &two].map(|wire| format!("PROXY TCP4 127.0.0.1 127.0.0.1 {} {to}\r\n", port(wire)));
    assert_eq!(headers.lock().unwrap().iter().map(|header| text(header)).collect::<Vec<_>>(), lines);
    // And over HTTP/2, of which the streams of one connection are of one client.
    h2::run(async {
        let (three, four) = (h2::connect(gateway.address()).await, h2::connect(gateway.address()).await);
        for (sender, told) in [(&three, "3 /e"), (&four, "4 /e"), (&three, "3 /e")] {
            assert_eq!(h2::ask(sender, h2::request("GET", "/e", &[])).await.unwrap().text(), told);
        }
    });
}

#[test]
fn a_connection_to_a_server_ends_with_that_of_its_client() {
    let (backend, headers) = server();
    let gateway = Gateway::start(&with_header(&backend, "v1", ""));
    for number in 1..=70 {
        let mut wire = Wire::open(gateway.address());
        assert_eq!(wire.get("/").text(), format!("{number} /"));
        // Which of the two comes from the same port next is all the same to the server.
        drop(wire);
        assert_eq!(backend.wait_closed(), number);
    }
    h2::run(async {
        let sender = h2::connect(gateway.address()).await;
        assert_eq!(h2::ask(&sender, h2::request("GET", "/", &[])).await.unwrap().text(), "71 /");
    });
    assert_eq!(backend.wait_closed(), 71, "of HTTP/2 too");
    assert_eq!(headers.lock().unwrap().len(), 71);
}

#[test]
fn connections_that_clients_share_make_room_for_others() {
    let (backend, headers) = server();
    let rules = with_header(&backend, "v1", "");
    let gateway = Gateway::start(&format!("[client]\ntrusted_proxies = [\"127.0.0.1\"]\n{rules}"));
    let mut wire = Wire::open(gateway.address());
    let mut ask = |client: usize| {
        let address = format!("192.0.{}.{}", client / 250, client % 250);
        wire.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {address}\r\n\r\n"));
        wire.answer().text()
    };
    for client in 1..=513 {
        assert_eq!(ask(client), format!("{client} /"));
    }
    assert_eq!(backend.wait_closed(), 1, "the oldest went, at 512");
    assert_eq!(ask(513), "513 /");
    assert_eq!(ask(2), "2 /");
    assert_eq!(headers.lock().unwrap().len(), 513);
}

#[test]
fn version_2_has_a_checksum_and_passes_on_what_a_balancer_said() {
    let (backend, headers) = server();
    let frame = "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"required\"\n\
                 proxy_protocol_from = [\"127.0.0.1\"]\n[admin]\naddress = \"127.0.0.1:0\"\n";
    let gateway = Gateway::start_whole(&format!("{frame}{}", with_header(&backend, "v2", "")));
    let vectors: [(u8, &[u8]); 2] = [(AUTHORITY, b"example.org"), (UNIQUE_ID, b"\0\xff")];
    let header = binary("198.51.100.7:5000", &vectors);
    let mut wire = Wire::with(gateway.address(), [&header, get("/").as_bytes()].concat());
    assert_eq!(wire.answer().text(), "1 /");
    assert_eq!(headers.lock().unwrap()[0], header, "to the byte: the same addresses, vectors and sum");
    // Another of its connections, and the same client without those vectors, are introduced otherwise.
    let mut plain = Wire::with(gateway.address(), [line("198.51.100.7:5000"), get("/").into()].concat());
    assert_eq!(plain.answer().text(), "2 /");
    let mut told = headers.lock().unwrap()[1].clone();
    assert_eq!(told, binary("198.51.100.7:5000", &[]));
    let sum = told[31..35].to_vec();
    told[31..35].fill(0);
    assert_eq!(crc32c(&told).to_be_bytes(), sum[..]);
    let mut of_balancer = Wire::with(gateway.address(), ["PROXY UNKNOWN\r\n", &get("/")].concat());
    assert_eq!(of_balancer.answer().text(), "3 /");
    let own = headers.lock().unwrap()[2].clone();
    assert_eq!(
        own[16..26],
        [[127, 0, 0, 1], [127, 0, 0, 1]]
            .concat()
            .into_iter()
            .chain(port(&of_balancer).to_be_bytes())
            .collect::<Vec<_>>()[..]
    );
}

#[test]
fn a_client_that_a_field_tells_of_has_no_port() {
    let (backend, headers) = server();
    let rules = with_header(&backend, "v1", "");
    let gateway = Gateway::start(&format!("[client]\ntrusted_proxies = [\"127.0.0.1\"]\n{rules}"));
    let mut wire = Wire::open(gateway.address());
    for (client, told) in [("192.0.2.7", "1 /"), ("192.0.2.8", "2 /"), ("192.0.2.7", "1 /")] {
        wire.send(format!("GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: {client}\r\n\r\n"));
        assert_eq!(wire.answer().text(), told, "{client}");
    }
    let to = gateway.address().port();
    assert_eq!(text(&headers.lock().unwrap()[0]), format!("PROXY TCP4 192.0.2.7 127.0.0.1 0 {to}\r\n"));
    wire.send("GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 2001:db8::7\r\n\r\n");
    assert_eq!(wire.answer().status(), 200);
    assert_eq!(text(&headers.lock().unwrap()[2]), format!("PROXY TCP6 2001:db8::7 ::ffff:7f00:1 0 {to}\r\n"));
}

#[test]
fn a_header_comes_before_the_handshake_with_a_server() {
    let backend = Backend::scripted(|wire, _| {
        if take_header(wire).is_ok() {
            let record = wire.take(1).unwrap()[0];
            assert_eq!(record, 22, "a record of a handshake");
        }
    });
    let upstream = "tls = { verify = false }\nservers =";
    let rules = with_header(&backend, "v2", "").replace("servers =", upstream);
    let gateway = Gateway::start(&rules);
    assert_eq!(Wire::open(gateway.address()).get("/").status(), 502, "it ends there");
    assert_eq!(backend.connections.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_reload_changes_what_servers_are_told() {
    let (backend, headers) = server();
    let gateway = Gateway::start(&with_header(&backend, "v1", ""));
    let mut wire = Wire::open(gateway.address());
    assert_eq!(wire.get("/").text(), "1 /");
    assert_eq!(gateway.reload(&with_header(&backend, "v2", "")).status, 200);
    // Who reloads first says so: this request, or the watcher.
    assert!(eventually(|| gateway.log().contains("proxy_protocol v1 -> v2")), "{}", gateway.log());
    assert_eq!(wire.get("/").text(), "2 /");
    let told = headers.lock().unwrap();
    assert_eq!((told[0].starts_with(b"PROXY TCP4"), told[1].starts_with(SIGNATURE)), (true, true));
    drop(told);
    // Whoever was there before servers were told is told of like others.
    assert_eq!(gateway.reload(&with_header(&backend, "off", "")).status, 200);
    let mut before = Wire::open(gateway.address());
    let before_h2 = h2::run(async {
        let sender = h2::connect(gateway.address()).await;
        assert_eq!(before.get("/local").status(), 200);
        assert_eq!(h2::ask(&sender, h2::request("GET", "/local", &[])).await.unwrap().status, 200);
        assert_eq!(gateway.reload(&with_header(&backend, "v1", "")).status, 200);
        assert_eq!(before.get("/").status(), 200);
        assert_eq!(h2::ask(&sender, h2::request("GET", "/", &[])).await.unwrap().status, 200);
        headers.lock().unwrap().len()
    });
    assert_eq!(before_h2, 4);
    let to = gateway.address().port();
    for told in &headers.lock().unwrap()[2..] {
        let line = text(told);
        assert!(line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 ") && line.ends_with(&format!(" {to}\r\n")), "{line}");
    }
}
