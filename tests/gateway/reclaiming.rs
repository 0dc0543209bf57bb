//! Near a bound connections over which no request is under way make room for others.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use crate::connections::connect_from;
use crate::h2::frames::{NO_ERROR, Raw};
use crate::support::{Backend, FRAME, Gateway, eventually};
use crate::wire::{Wire, get};

const ROUTE: &str = "[[route]]\nname = \"all\"\nrespond = { body = \"here\\n\" }\n";

fn wire(source: &str, gateway: &Gateway) -> Wire {
    Wire::noting(connect_from(source, gateway.address()), Arc::default())
}

/// A connection over which a request was answered, if it was.
fn try_served(source: &str, gateway: &Gateway) -> Option<Wire> {
    let mut wire = wire(source, gateway);
    (wire.send(get("/")) && wire.response("GET").is_ok_and(|answer| answer.status() == 200)).then_some(wire)
}

fn served(source: &str, gateway: &Gateway) -> Wire {
    try_served(source, gateway).unwrap_or_else(|| panic!("{source} is not served"))
}

fn reclaimed(gateway: &Gateway, reason: &str, count: usize) {
    let label = format!("reason=\"{reason}\"");
    gateway.wait_metric("sluicegate_client_connections_reclaimed_total", &[&label], count as f64);
}

fn refused(gateway: &Gateway) -> f64 {
    gateway.metric("sluicegate_client_connections_refused_total", &[])
}

fn gateway(most: usize) -> Gateway {
    Gateway::start(&format!("[server]\nworkers = 1\nmax_connections = {most}\n{ROUTE}"))
}

#[test]
fn idle_connections_of_the_client_that_has_most_make_room_longest_idle_first() {
    let gateway = gateway(15);
    let mut held: Vec<_> = (0..15).map(|_| served("127.0.0.2", &gateway)).collect();
    // The first one is the one that is idle shortest.
    assert_eq!(held[0].get("/").status(), 200);
    let mut others: Vec<_> = (3..9).map(|last| served(&format!("127.0.0.{last}"), &gateway)).collect();
    reclaimed(&gateway, "idle", 6);
    for gone in held.drain(1..7) {
        let mut gone = gone;
        gone.assert_ended();
    }
    for kept in held.iter_mut().chain(&mut others) {
        assert_eq!(kept.get("/").status(), 200);
    }
    assert!(refused(&gateway) < 0.5);
    gateway.wait_metric("sluicegate_client_connections", &[], 15.0);
}

#[test]
fn room_is_made_before_the_last_place_is_taken() {
    let gateway = gateway(64);
    let _held: Vec<_> = (0..64).map(|_| served("127.0.0.2", &gateway)).collect();
    // A sixteenth of the places is kept free.
    gateway.wait_metric("sluicegate_client_connections", &[], 60.0);
    reclaimed(&gateway, "idle", 4);
}

#[test]
fn connections_that_say_nothing_or_half_a_head_make_room() {
    for bytes in ["", "GET / HTTP/1.1\r\nHost:"] {
        let gateway = gateway(12);
        let held: Vec<_> = (0..12).map(|_| wire("127.0.0.2", &gateway)).collect();
        gateway.wait_metric("sluicegate_client_connections", &[], 12.0);
        for wire in &held {
            assert!(bytes.is_empty() || wire.send(bytes));
        }
        let _others: Vec<_> = (3..13).map(|last| served(&format!("127.0.0.{last}"), &gateway)).collect();
        reclaimed(&gateway, "silent", 10);
        for mut gone in held.into_iter().take(10) {
            assert!(gone.is_cut(), "{bytes:?}");
        }
        assert!(refused(&gateway) < 0.5, "{bytes:?}");
    }
}

#[test]
fn requests_under_way_are_not_given_up() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 1\nmax_connections = 3\n[[upstream]]\nname = \"app\"\nservers = [\"{}\"]\n\
         [[route]]\nname = \"slow\"\npath = \"/slow\"\nupstream = \"app\"\n{ROUTE}",
        backend.address
    ));
    let busy: Vec<_> = (0..3)
        .map(|_| {
            let wire = wire("127.0.0.2", &gateway);
            assert!(wire.send(get("/slow")));
            wire
        })
        .collect();
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 3.0);
    for beyond in 1..=3 {
        assert!(try_served("127.0.0.3", &gateway).is_none());
        let label = "reason=\"worker\"";
        gateway.wait_metric("sluicegate_client_connections_refused_total", &[label], f64::from(beyond));
    }
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 3.0);
    reclaimed(&gateway, "idle", 0);
    drop(busy);
    assert!(eventually(|| try_served("127.0.0.3", &gateway).is_some()));
}

#[test]
fn the_last_places_are_for_clients_that_have_few_where_all_are_busy() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let bounds = [("workers = 1\nmax_connections = 64", ""), ("workers = 1", "max_connections = 64\n")];
    for (server, listener) in bounds {
        let gateway = Gateway::start_whole(&format!(
            "[server]\n{server}\n[[listener]]\naddress = \"127.0.0.1:0\"\n{listener}[admin]\naddress = \"127.0.0.1:0\"\n[[upstream]]\nname = \"app\"\n\
             servers = [\"{}\"]\n[[route]]\nname = \"slow\"\npath = \"/slow\"\nupstream = \"app\"\n{ROUTE}",
            backend.address
        ));
        let busy = |source: &str| {
            let wire = wire(source, &gateway);
            (wire.send(get("/slow"))).then_some(wire)
        };
        let shares = || gateway.metric("sluicegate_client_connections_refused_total", &["reason=\"share\""]);
        // Four places are the last ones: with 61 connections there would be three.
        let held: Vec<_> = (0..60).map(|_| busy("127.0.0.2").unwrap()).collect();
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 60.0);
        for beyond in 1..=3 {
            let _turned_away = busy("127.0.0.2");
            gateway.wait_metric(
                "sluicegate_client_connections_refused_total",
                &["reason=\"share\""],
                f64::from(beyond),
            );
        }
        // Another one has two of them, a third has one, and the last one is for whoever has none.
        let mut others: Vec<_> = ["127.0.0.3"; 2].iter().map(|source| busy(source).unwrap()).collect();
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 62.0);
        let _turned_away = busy("127.0.0.3");
        gateway.wait_metric("sluicegate_client_connections_refused_total", &["reason=\"share\""], 4.0);
        for (source, in_flight) in [("127.0.0.4", 63.0), ("127.0.0.5", 64.0)] {
            others.extend(busy(source));
            gateway.wait_metric("sluicegate_requests_in_flight", &[], in_flight);
        }
        assert!(try_served("127.0.0.6", &gateway).is_none(), "all are taken");
        assert_eq!((shares(), refused(&gateway)), (4.0, 5.0));
        drop((held, others));
    }
}

#[test]
fn a_request_that_is_on_its_way_is_answered() {
    let gateway = gateway(4);
    for _ in 0..10 {
        let mut held: Vec<_> = (0..4).map(|_| served("127.0.0.2", &gateway)).collect();
        gateway.wait_metric("sluicegate_client_connections", &[], 4.0);
        gateway.pause();
        // The connections that make room and those that ask for it arrive together.
        let newcomers: Vec<_> = (3..7).map(|last| wire(&format!("127.0.0.{last}"), &gateway)).collect();
        for wire in &held {
            assert!(wire.send(get("/")));
        }
        gateway.resume();
        for wire in &mut held {
            assert_eq!(wire.answer().status(), 200);
        }
        drop((held, newcomers));
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    }
}

#[test]
fn an_idle_connection_of_http2_is_told_to_go() {
    let gateway = gateway(1);
    let mut used = Raw::open(gateway.address());
    assert_eq!(used.ask("/"), (200, "here\n".to_owned()));
    let mut other = served("127.0.0.2", &gateway);
    assert_eq!(used.goaway(), Some(NO_ERROR));
    reclaimed(&gateway, "idle", 1);
    assert_eq!(other.get("/").status(), 200);
}

#[test]
fn a_listener_makes_room_among_its_own() {
    let gateway = Gateway::start_whole(&format!(
        "[server]\nworkers = 1\n[[listener]]\naddress = \"127.0.0.1:0\"\nmax_connections = 3\n\
         [[listener]]\naddress = \"127.0.0.2:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n{ROUTE}"
    ));
    let mut elsewhere: Vec<_> = (0..9)
        .map(|_| {
            let stream = TcpStream::connect(gateway.addresses[1]).unwrap();
            let mut wire = Wire::noting(stream, Arc::default());
            assert_eq!(wire.get("/").status(), 200);
            wire
        })
        .collect();
    let mut held: Vec<_> = (0..3).map(|_| served("127.0.0.3", &gateway)).collect();
    let _others: Vec<_> = (4..6).map(|last| served(&format!("127.0.0.{last}"), &gateway)).collect();
    reclaimed(&gateway, "idle", 2);
    for gone in &mut held[..2] {
        gone.assert_ended();
    }
    for kept in &mut elsewhere {
        assert_eq!(kept.get("/").status(), 200);
    }
}

#[test]
fn connections_that_wait_for_their_header_make_room() {
    let gateway = Gateway::start_whole(&format!(
        "[server]\nworkers = 1\nmax_connections = 3\n{}{ROUTE}",
        FRAME.replacen("[admin]", "proxy_protocol = \"required\"\nproxy_protocol_from = [\"127.0.0.1\"]\n[admin]", 1)
    ));
    let _silent: Vec<_> = (0..3).map(|_| TcpStream::connect(gateway.address()).unwrap()).collect();
    gateway.wait_metric("sluicegate_client_connections", &[], 3.0);
    let mut proxied = TcpStream::connect(gateway.address()).unwrap();
    let request = format!("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n{}", get("/"));
    proxied.write_all(request.as_bytes()).unwrap();
    let mut begin = [0; 12];
    proxied.read_exact(&mut begin).unwrap();
    assert_eq!(&begin, b"HTTP/1.1 200");
    reclaimed(&gateway, "silent", 1);
}

#[test]
fn an_answer_that_is_not_read_yet_outlasts_half_of_a_next_head() {
    let gateway = Gateway::start(
        "[server]\nworkers = 1\nmax_connections = 1\n[[upstream]]\nname = \"app\"\nservers = [\"echo:a\"]\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n",
    );
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&"127.0.0.2:0".parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
    // Of the answer most stays in the gateway's kernel, until it is read.
    socket.set_recv_buffer_size(4096).unwrap();
    socket.connect(&gateway.address().into()).unwrap();
    let mut slow = Wire::noting(socket.into(), Arc::default());
    assert!(slow.send(get("/?bytes=200000")));
    gateway.wait_metric("sluicegate_requests_total", &[], 1.0);
    assert!(slow.send("GET / HTTP/1.1\r\nHost:"));
    assert!(eventually(|| try_served("127.0.0.3", &gateway).is_some()));
    gateway.wait_metric("sluicegate_client_connections_reclaimed_total", &[], 1.0);
    let answer = slow.answer();
    assert_eq!((answer.status(), answer.body.len()), (200, 200_000));
    slow.assert_ended();
}

#[test]
fn a_header_that_has_begun_to_come_is_waited_for() {
    let gateway = Gateway::start_whole(&format!(
        "[server]\nworkers = 1\nmax_connections = 4\n{}{ROUTE}",
        FRAME.replacen("[admin]", "proxy_protocol = \"required\"\nproxy_protocol_from = [\"127.0.0.1\"]\n[admin]", 1)
    ));
    for _ in 0..10 {
        let held: Vec<_> = (0..4).map(|_| wire("127.0.0.1", &gateway)).collect();
        gateway.wait_metric("sluicegate_client_connections", &[], 4.0);
        gateway.pause();
        // The one that makes room and the one that asks for it arrive together.
        let newcomers: Vec<_> = (0..4).map(|_| wire("127.0.0.1", &gateway)).collect();
        for wire in &held {
            assert!(wire.send("PROXY TCP4 192.0.2.1 "));
        }
        gateway.resume();
        // Each newcomer was turned away.
        for mut newcomer in newcomers {
            assert!(newcomer.is_cut());
        }
        for mut wire in held {
            assert!(wire.send(format!("192.0.2.2 1 2\r\n{}", get("/"))));
            assert_eq!(wire.answer().status(), 200);
        }
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    }
}
