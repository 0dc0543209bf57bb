//! The bounds of connections: of a worker, a listener, a client; how often they come, and how much they carry.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::thread;

use socket2::{Domain, Socket, Type};

use crate::h2::peer;
use crate::mixes::peers::{runtime, soon};
use crate::support::{Backend, Client, Gateway, PATIENCE, eventually};
use crate::wire::{Wire, wait_outcome};

const ROUTE: &str = "[[route]]\nname = \"all\"\nrespond = { body = \"here\\n\" }\n";

/// A connection from an address of this machine. The first read tells what the other side does to it: on a busy machine
/// a reset may come so early that a `connect` that waits would fail.
pub fn connect_from(source: &str, to: SocketAddr) -> TcpStream {
    const IN_PROGRESS: i32 = 115;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&format!("{source}:0").parse::<SocketAddr>().unwrap().into()).unwrap();
    socket.set_nonblocking(true).unwrap();
    let begun = socket.connect(&to.into());
    assert!(begun.as_ref().err().is_none_or(|error| error.raw_os_error() == Some(IN_PROGRESS)), "{begun:?}");
    let stream: TcpStream = socket.into();
    let stream = runtime().block_on(async {
        let stream = tokio::net::TcpStream::from_std(stream).unwrap();
        soon(stream.writable()).await.unwrap();
        stream.into_std().unwrap()
    });
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection over which a request was answered.
fn served(source: &str, gateway: &Gateway) -> Wire {
    let mut wire = Wire::noting(connect_from(source, gateway.address()), std::sync::Arc::default());
    assert_eq!(wire.get("/").status(), 200, "{source}");
    wire
}

/// A connection that was closed at once, without a byte of an answer.
fn turned_away(source: &str, gateway: &Gateway) {
    let ended = connect_from(source, gateway.address()).read(&mut [0; 1]);
    assert!(ended.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset), "{ended:?}");
}

/// A server that never answers, and the rules that send `/slow` to it.
fn slow() -> (Backend, String) {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() {});
    let rules = format!(
        "[[upstream]]\nname = \"slow\"\nservers = [\"{}\"]\n\
         [[route]]\nname = \"slow\"\npath = \"/slow\"\nupstream = \"slow\"\n{ROUTE}",
        backend.address
    );
    (backend, rules)
}

/// Connections with a request under way, which make no room for others.
fn busy<const COUNT: usize>(sources: [&str; COUNT], gateway: &Gateway) -> Vec<Wire> {
    let held = sources.map(|source| {
        let wire = Wire::noting(connect_from(source, gateway.address()), std::sync::Arc::default());
        assert!(wire.send(crate::wire::get("/slow")));
        wire
    });
    gateway.wait_metric("sluicegate_requests_in_flight", &[], COUNT as f64);
    held.into()
}

fn counted(gateway: &Gateway, reason: &str, count: f64) {
    let label = format!("reason=\"{reason}\"");
    gateway.wait_metric("sluicegate_client_connections_refused_total", &[&label], count);
}

fn open(gateway: &Gateway, count: f64) {
    gateway.wait_metric("sluicegate_client_connections", &[], count);
}

#[test]
fn a_client_has_so_many_connections_over_all_workers() {
    let gateway = Gateway::start(&format!(
        "[server]\nworkers = 2\n[client]\nmax_connections = 2\ntrusted_proxies = [\"127.0.0.9\"]\n{ROUTE}"
    ));
    let mut held = vec![served("127.0.0.2", &gateway), served("127.0.0.2", &gateway)];
    for _ in 0..3 {
        turned_away("127.0.0.2", &gateway);
    }
    counted(&gateway, "client", 3.0);
    // Others have their own, and a proxy stands for many.
    let _others = [served("127.0.0.3", &gateway), served("127.0.0.3", &gateway)];
    let _proxy: Vec<_> = (0..5).map(|_| served("127.0.0.9", &gateway)).collect();
    // One that is in use goes on; one that ends makes room.
    assert_eq!(held[1].get("/").status(), 200);
    drop(held.pop());
    open(&gateway, 8.0);
    held.push(served("127.0.0.2", &gateway));
    turned_away("127.0.0.2", &gateway);
    counted(&gateway, "client", 4.0);
}

#[test]
fn one_connection_of_http2_is_one() {
    let gateway = Gateway::start(&format!("[client]\nmax_connections = 1\n{ROUTE}"));
    peer::run(async {
        let sender = peer::connect(gateway.address()).await;
        for _ in 0..3 {
            assert_eq!(peer::ask(&sender, peer::request("GET", "/", &[])).await.unwrap().status, 200);
        }
        // Each connects by a runtime of its own. A thread runs one at a time, so this is another thread.
        let others = || {
            turned_away("127.0.0.1", &gateway);
            served("127.0.0.2", &gateway);
        };
        thread::scope(|scope| scope.spawn(others).join().unwrap());
    });
    counted(&gateway, "client", 1.0);
}

#[test]
fn a_client_comes_so_often() {
    let gateway = Gateway::start(&format!("[client]\nconnection_rate = \"3/1h\"\n{ROUTE}"));
    for _ in 0..3 {
        drop(served("127.0.0.2", &gateway));
    }
    for _ in 0..2 {
        turned_away("127.0.0.2", &gateway);
    }
    counted(&gateway, "client-rate", 2.0);
    drop(served("127.0.0.3", &gateway));
    // Counts outlive a reload, and new numbers hold at once.
    let rules = format!("[client]\nconnection_rate = \"4/1h\"\nmax_connections = 5\n{ROUTE}");
    assert_eq!(gateway.reload(&rules).status, 200);
    drop(served("127.0.0.2", &gateway));
    turned_away("127.0.0.2", &gateway);
    counted(&gateway, "client-rate", 3.0);
    assert_eq!(gateway.reload(ROUTE).status, 200);
    drop(served("127.0.0.2", &gateway));
}

#[test]
fn a_listener_has_so_many_connections_over_all_workers() {
    let (_backend, rules) = slow();
    let gateway = Gateway::start_whole(&format!(
        "[server]\nworkers = 2\n[[listener]]\naddress = \"127.0.0.1:0\"\nmax_connections = 3\n\
         [[listener]]\naddress = \"127.0.0.2:0\"\n[admin]\naddress = \"127.0.0.1:0\"\n{rules}"
    ));
    let mut held = busy(["127.0.0.1", "127.0.0.2", "127.0.0.3"], &gateway);
    turned_away("127.0.0.5", &gateway);
    counted(&gateway, "listener", 1.0);
    assert_eq!(
        Client::connect(gateway.addresses[1]).get("/").status,
        200,
        "the other has its own bound, which is none"
    );
    drop(held.pop());
    assert!(eventually(|| {
        let mut stream = connect_from("127.0.0.5", gateway.address());
        std::io::Write::write_all(&mut stream, crate::wire::get("/").as_bytes()).is_ok()
            && stream.read(&mut [0; 12]).is_ok_and(|size| size == 12)
    }));
}

#[test]
fn a_worker_has_so_many_connections() {
    let (_backend, routes) = slow();
    let rules = |most: &str| format!("[server]\nworkers = 1\nmax_connections = {most}\n{routes}");
    let gateway = Gateway::start(&rules("2"));
    let _held = busy(["127.0.0.2", "127.0.0.3"], &gateway);
    turned_away("127.0.0.4", &gateway);
    counted(&gateway, "worker", 1.0);
    let answer = gateway.reload(&rules("3"));
    assert!(answer.text().contains("max_connections 2 -> 3"), "{}", answer.text());
    drop(served("127.0.0.4", &gateway));
}

#[test]
fn who_is_not_allowed_is_cut_off_as_who_is_denied() {
    let rules = |client: &str| format!("[client]\n{client}\n{ROUTE}");
    let gateway = Gateway::start(&rules("allow = [\"127.0.0.1\", \"127.0.0.4/30\"]\ndeny = [\"127.0.0.5\"]"));
    let mut kept = served("127.0.0.1", &gateway);
    drop(served("127.0.0.7", &gateway));
    for source in ["127.0.0.2", "127.0.0.5", "127.0.0.8"] {
        turned_away(source, &gateway);
    }
    gateway.wait_metric("sluicegate_client_connections_denied_total", &[], 3.0);
    let answer = gateway.reload(&rules("allow = [\"127.0.0.2\"]"));
    assert!(answer.text().contains("allow"), "{}", answer.text());
    drop(served("127.0.0.2", &gateway));
    assert!(kept.send(crate::wire::get("/")) && kept.is_cut(), "a connection of before ends at its next request");
    gateway.wait_metric("sluicegate_client_connections_denied_total", &[], 4.0);
}

#[test]
fn an_address_that_holds_most_of_a_worker_is_told_of_once_unless_it_is_trusted() {
    const HINT: &str =
        "one address holds much of a worker's connections; if it is a load balancer, name it in `trusted_proxies`";
    let gateway =
        |client: &str| Gateway::start(&format!("[server]\nworkers = 1\nmax_connections = 40\n{client}\n{ROUTE}"));
    let hints = |gateway: &Gateway| gateway.log().matches(HINT).count();
    let untrusted = gateway("");
    let mut held: Vec<_> = (0..20).map(|_| served("127.0.0.2", &untrusted)).collect();
    held.extend((0..4).map(|_| served("127.0.0.3", &untrusted)));
    assert_eq!(hints(&untrusted), 0, "half is no more than half");
    held.extend((0..4).map(|_| served("127.0.0.2", &untrusted)));
    assert!(eventually(|| hints(&untrusted) == 1));
    assert!(untrusted.log().contains(r#""peer":"127.0.0.2""#), "{}", untrusted.log());
    let trusted = gateway("[client]\ntrusted_proxies = [\"127.0.0.2\"]");
    let held_by_trusted: Vec<_> = (0..24).map(|_| served("127.0.0.2", &trusted)).collect();
    assert_eq!((hints(&trusted), hints(&untrusted)), (0, 1));
    drop((held, held_by_trusted));
}

#[test]
fn a_connection_carries_so_many_requests_and_says_which_is_the_last() {
    let gateway = Gateway::start(&format!("[server]\nmax_requests = 3\n{ROUTE}"));
    let used_up = |count: f64| gateway.wait_metric("sluicegate_client_connections_max_requests_total", &[], count);
    let mut wire = Wire::open(gateway.address());
    assert!(wire.send(crate::wire::get("/").repeat(5)), "all at once");
    for last in [false, false, true] {
        let answer = wire.answer();
        assert_eq!((answer.status(), answer.closes()), (200, last));
    }
    wire.assert_ended();
    used_up(1.0);
    peer::run(async {
        let sender = peer::connect(gateway.address()).await;
        for _ in 0..3 {
            assert_eq!(peer::ask(&sender, peer::request("GET", "/", &[])).await.unwrap().status, 200);
        }
        let mut has_ended = false;
        for _ in 0..1000 {
            has_ended = sender.clone().ready().await.is_err();
            if has_ended {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        assert!(has_ended, "it is told that there are no more");
    });
    used_up(2.0);
    assert_eq!(gateway.reload(&format!("[server]\nmax_requests = \"none\"\n{ROUTE}")).status, 200);
    let mut wire = Wire::open(gateway.address());
    for _ in 0..5 {
        assert!(!wire.get("/").closes());
    }
    wait_outcome(&gateway, "responded", 11);
}
