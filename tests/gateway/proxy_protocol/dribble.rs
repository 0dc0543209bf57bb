//! Headers that come as slowly, or as crowded, as they may: they end by `handshake_timeout`, whatever drips, hold no more
//! than their own few bytes, and nobody else waits for them.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{AUTHORITY, UNIQUE_ID, binary, line};
use crate::support::{Gateway, PATIENCE};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, get};

/// The longest header that is read.
const MAX_HEADER: usize = 2048;
/// A vector that means nothing (2.2.4).
const NOOP: u8 = 4;

fn start(server: &str) -> Gateway {
    Gateway::start_whole(&format!(
        "[[listener]]\naddress = \"127.0.0.1:0\"\nproxy_protocol = \"required\"\n\
         proxy_protocol_from = [\"127.0.0.1\"]\n[admin]\naddress = \"127.0.0.1:0\"\n[server]\nworkers = 1\n{server}\n\
         [[route]]\nname = \"all\"\nrespond = {{ status = 200, body = \"here\" }}\n"
    ))
}

/// The longest header, made of nothing but the smallest vectors.
fn crowded() -> Vec<u8> {
    let bare = binary("198.51.100.7:5000", &[]).len();
    let header = binary("198.51.100.7:5000", &vec![(NOOP, &b""[..]); (MAX_HEADER - bare) / 3]);
    assert!(header.len() > MAX_HEADER - 3, "{}", header.len());
    header
}

fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A request whose header is known.
fn serve(gateway: &Gateway, header: &[u8]) {
    let mut wire = Wire::with(gateway.address(), [header, get("/").as_bytes()].concat());
    assert_eq!(wire.answer().text(), "here");
}

fn closed_by_the_timeout(gateway: &Gateway, count: usize) {
    gateway.wait_metric("sluicegate_proxy_protocol_headers_total", &["result=\"timeout\""], count as f64);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert!(gateway.metric("sluicegate_requests_total", &[]) < 0.5, "none was taken for a request");
}

#[test]
fn bytes_that_keep_coming_do_not_put_the_timeout_off() {
    best_of_three(|| {
        let gateway = start("handshake_timeout = \"400ms\"");
        let headers = [crowded(), binary("198.51.100.7:1", &[(AUTHORITY, &[b'a'; 200])]), line("198.51.100.7:1")];
        for header in &headers {
            let mut stream = open(gateway.address());
            stream.set_read_timeout(Some(Duration::from_millis(15))).unwrap();
            let started = Instant::now();
            // Never the last one.
            let mut bytes = header[..header.len() - 1].iter();
            let ended = loop {
                if let Some(byte) = bytes.next() {
                    let _ = stream.write_all(&[*byte]);
                }
                match stream.read(&mut [0; 1]) {
                    Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                    ended => break ended,
                }
            };
            assert!(!matches!(ended, Ok(1..)), "it was answered");
            assert_took(started, 400..1500);
        }
        closed_by_the_timeout(&gateway, headers.len());
    });
}

#[test]
fn a_thousand_half_headers_hold_little_and_keep_nobody_waiting() {
    const HELD: usize = 1000;
    let gateway = start("handshake_timeout = \"3s\"\nmax_handshakes = 4000");
    let header = crowded();
    serve(&gateway, &header);
    let before = gateway.resident();
    let held: Vec<_> = (0..HELD)
        .map(|_| {
            let mut stream = open(gateway.address());
            stream.write_all(&header[..header.len() - 1]).unwrap();
            stream
        })
        .collect();
    // More than anybody drips, and read as it comes.
    serve(&gateway, &header);
    let each = gateway.resident().saturating_sub(before) / HELD as u64;
    assert!(each <= 6 * 1024, "{each} bytes each");
    for mut stream in held {
        let ended = stream.read(&mut [0; 1]);
        assert!(
            ended.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
                || ended.is_ok_and(|size| size == 0)
        );
    }
    gateway.wait_metric("sluicegate_proxy_protocol_headers_total", &["result=\"timeout\""], HELD as f64);
}

/// The work for a header is that of its bytes: 670 vectors cost no more than one of their size.
#[test]
fn a_header_full_of_vectors_costs_no_more_than_its_bytes() {
    const COUNT: u32 = 2000;
    let gateway = start("");
    let work = |header: &[u8]| {
        let before = gateway.worked();
        for _ in 0..COUNT {
            serve(&gateway, header);
        }
        gateway.worked().saturating_sub(before)
    };
    let long = binary("198.51.100.7:5000", &[(NOOP, &[0; 1900]), (UNIQUE_ID, b"one")]);
    let (plain, crowded) = (work(&long), work(&crowded()));
    eprintln!("{COUNT} headers: {plain:?} with one vector, {crowded:?} with 670");
    // Compared within one run; the kernel counts work in hundredths of a second.
    let most = 3 * plain + Duration::from_millis(100);
    assert!(crowded < most);
}
