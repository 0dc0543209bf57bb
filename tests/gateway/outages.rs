//! Servers that fail: they are taken out of service, only their keys move, and all come back.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;

use crate::mixes::peers::{runtime, serve_tcp};
use crate::support::{Backend, Client, FRAME, Gateway, eventually, unused_address, write_ok};
use crate::wire::Wire;

/// How a server behaves.
#[derive(Clone, Copy)]
enum Mode {
    Works,
    /// It answers with 503, checks of its health too.
    Refuses,
    /// Its checks fail, and nothing else.
    SaysSick,
    /// It closes the connection in place of an answer.
    Closes,
    /// It answers with what is no HTTP.
    Babbles,
}

/// A server that tells its name, and behaves as it is told.
struct Faulty {
    address: SocketAddr,
    mode: Arc<AtomicU8>,
    backend: Backend,
}

impl Faulty {
    fn start(name: &'static str) -> Self {
        let mode = Arc::new(AtomicU8::new(Mode::Works as u8));
        let own = Arc::clone(&mode);
        let backend = Backend::start(move |request, stream| {
            let (mode, is_check) = (own.load(Ordering::SeqCst), request.target() == "/healthz");
            let unavailable = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
            match mode {
                _ if mode == Mode::Refuses as u8 || mode == Mode::SaysSick as u8 && is_check => {
                    stream.write_all(unavailable).is_ok()
                }
                _ if mode == Mode::Closes as u8 => false,
                _ if request.header("upgrade").is_some() => {
                    let switch =
                        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n";
                    stream.write_all(switch).is_ok()
                }
                _ if mode == Mode::Babbles as u8 => {
                    let _ = stream.write_all(b"220 smtp.example ESMTP\r\n\r\n");
                    false
                }
                _ => write_ok(stream, name.as_bytes()),
            }
        });
        Self { address: backend.address, mode, backend }
    }

    fn set(&self, mode: Mode) {
        self.mode.store(mode as u8, Ordering::SeqCst);
    }

    /// Requests that it got, but for checks of its health.
    fn requests(&self) -> usize {
        self.backend.seen.lock().unwrap().iter().filter(|request| request.target() != "/healthz").count()
    }
}

/// A gateway of one worker, whose keys are the users.
fn rules(servers: &[String], more: &str) -> String {
    format!(
        "[server]\nworkers = 1\n[[upstream]]\nname = \"app\"\nservers = [{}]\nhash_key = \"header:x-user\"\n{more}\n\
         [[route]]\nname = \"all\"\nupstream = \"app\"\n",
        servers.join(", ")
    )
}

fn start(servers: &[SocketAddr], more: &str) -> Gateway {
    let servers: Vec<_> = servers.iter().map(|address| format!("\"{address}\"")).collect();
    Gateway::start_whole(&format!("{}{FRAME}", rules(&servers, more)))
}

/// The answers to some keys.
fn answers(gateway: &Gateway, keys: usize) -> BTreeMap<usize, (u16, String)> {
    let mut client = Client::connect(gateway.address());
    let mut ask = |key: usize| {
        let answer = client.request("GET", "/", &[("X-User", &format!("user-{key}"))], b"");
        if answer.header("connection") == Some("close") {
            client = Client::connect(gateway.address());
        }
        (answer.status, answer.text())
    };
    (0..keys).map(|key| (key, ask(key))).collect()
}

fn server(gateway: &Gateway, address: SocketAddr) -> Value {
    let all = gateway.ask_admin("/api/v1/upstreams").json();
    let servers = all["upstreams"][0]["servers"].as_array().unwrap();
    servers.iter().find(|server| server["server"] == address.to_string()).unwrap().clone()
}

fn state(gateway: &Gateway, address: SocketAddr) -> String {
    server(gateway, address)["state"].as_str().unwrap().to_owned()
}

fn of<'m>(map: &'m BTreeMap<usize, (u16, String)>, name: &'m str) -> impl Iterator<Item = usize> + 'm {
    map.iter().filter(move |(_, (_, server))| server == name).map(|(key, _)| *key)
}

/// The keys of a server moved, and no others.
fn only_its_keys_moved(before: &BTreeMap<usize, (u16, String)>, after: &BTreeMap<usize, (u16, String)>, name: &str) {
    for (key, (_, was)) in before {
        let (status, is) = &after[key];
        assert_eq!(*status, 200, "key {key}");
        assert_eq!(is == was, was != name, "key {key} was at {was} and is at {is}");
    }
}

#[test]
fn a_server_that_refuses_connections_is_tried_so_often_and_no_more() {
    let (a, b, gone) = (Faulty::start("a"), Faulty::start("b"), unused_address());
    let gateway = start(&[a.address, b.address, gone], "eject = { failures = 3, for = \"60s\" }");
    let map = answers(&gateway, 60);
    assert!(map.values().all(|(status, _)| *status == 200), "another server is tried: {map:?}");
    assert_eq!(state(&gateway, gone), "ejected");
    assert_eq!(server(&gateway, gone)["failed"], 3, "of the twenty or so keys that are its own");
    assert!(gateway.log().contains("\"message\":\"server out of service\""), "{}", gateway.log());
    assert!(server(&gateway, gone)["reason"].as_str().unwrap().contains("refused"), "{}", server(&gateway, gone));
}

#[test]
fn whatever_a_failure_is_its_server_is_ejected_tried_and_back() {
    for mode in [Mode::Refuses, Mode::Closes, Mode::Babbles] {
        let servers = ["a", "b", "c"].map(Faulty::start);
        let addresses = [0, 1, 2].map(|place: usize| servers[place].address);
        let gateway = start(&addresses, "eject = { failures = 4, for = \"200ms\", max_for = \"200ms\" }");
        let before = answers(&gateway, 60);
        servers[2].set(mode);
        let failed = answers(&gateway, 60).into_iter().filter(|(_, (status, _))| *status >= 500).count();
        assert!(failed >= 4, "{failed} were answered by the server");
        assert_eq!(state(&gateway, addresses[2]), "ejected");
        // At most one request tries it when its time is over, and is the last one for as long again.
        let at_first = servers[2].requests();
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(500) {
            answers(&gateway, 20);
        }
        let tries = servers[2].requests() - at_first;
        assert!(tries as u128 <= began.elapsed().as_millis() / 200 + 1, "{tries} tries in {:?}", began.elapsed());
        servers[2].set(Mode::Works);
        assert!(eventually(|| {
            answers(&gateway, 60);
            state(&gateway, addresses[2]) == "up"
        }));
        assert_eq!(answers(&gateway, 60), before, "all keys are back");
    }
}

#[test]
fn an_upgrade_is_an_answer_and_the_next_one_need_not_wait_for_its_end() {
    let servers = ["a", "b", "c"].map(Faulty::start);
    let addresses = [0, 1, 2].map(|place: usize| servers[place].address);
    let gateway = start(&addresses, "eject = { failures = 2, for = \"100ms\" }");
    let key = of(&answers(&gateway, 60), "c").next().unwrap();
    servers[2].set(Mode::Refuses);
    answers(&gateway, 60);
    assert_eq!(state(&gateway, addresses[2]), "ejected");
    servers[2].set(Mode::Works);
    let mut open = Vec::new();
    assert!(eventually(|| {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: x\r\nX-User: user-{key}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        );
        let mut wire = Wire::with(gateway.address(), request);
        assert_eq!(wire.head().unwrap().status(), 101);
        open.push(wire);
        state(&gateway, addresses[2]) == "up"
    }));
}

#[test]
fn at_most_so_many_are_ejected() {
    let servers = ["a", "b", "c"].map(Faulty::start);
    let addresses = [0, 1, 2].map(|place: usize| servers[place].address);
    let gateway = start(&addresses, "eject = { failures = 2, for = \"60s\" }");
    for server in &servers {
        server.set(Mode::Refuses);
    }
    answers(&gateway, 60);
    let states = addresses.map(|address| state(&gateway, address));
    assert_eq!(states.iter().filter(|state| *state == "ejected").count(), 1, "half of three, rounded down: {states:?}");
}

#[test]
fn a_single_server_and_an_upstream_without_ejection_keep_theirs() {
    let server = Faulty::start("a");
    server.set(Mode::Refuses);
    for (servers, more) in [(vec![server.address], ""), (vec![server.address, unused_address()], "eject = \"off\"")] {
        let gateway = start(&servers, more);
        answers(&gateway, 40);
        assert_eq!(state(&gateway, server.address), "up");
    }
}

#[test]
fn a_server_whose_checks_fail_is_down_and_its_keys_come_back_with_it() {
    let servers = ["a", "b", "c"].map(Faulty::start);
    let addresses = [0, 1, 2].map(|place: usize| servers[place].address);
    let gateway = start(&addresses, "health = { path = \"/healthz\", interval = \"100ms\", rise = 2, fall = 2 }");
    let before = answers(&gateway, 60);
    assert!(["a", "b", "c"].iter().all(|name| of(&before, name).count() > 5), "{before:?}");
    servers[1].set(Mode::SaysSick);
    assert!(eventually(|| state(&gateway, addresses[1]) == "down"));
    assert!(server(&gateway, addresses[1])["reason"].as_str().unwrap().contains("status 503"));
    only_its_keys_moved(&before, &answers(&gateway, 60), "b");
    assert!(gateway.metric("sluicegate_upstream_server_up", &["server=\"", &addresses[1].to_string()]) < 0.5);
    servers[1].set(Mode::Works);
    assert!(eventually(|| state(&gateway, addresses[1]) == "up"));
    assert_eq!(answers(&gateway, 60), before);
}

#[test]
fn when_all_are_down_requests_go_to_all_as_if_none_were() {
    let servers = ["a", "b"].map(Faulty::start);
    let addresses = [0, 1].map(|place: usize| servers[place].address);
    let gateway = start(&addresses, "health = { path = \"/healthz\", interval = \"100ms\", rise = 1, fall = 1 }");
    let before = answers(&gateway, 40);
    for server in &servers {
        server.set(Mode::SaysSick);
    }
    assert!(eventually(|| addresses.iter().all(|address| state(&gateway, *address) == "down")));
    assert_eq!(answers(&gateway, 40), before);
    assert!(gateway.metric("sluicegate_upstream_panic", &[]) > 0.5);
    assert_eq!(gateway.ask_admin("/api/v1/upstreams").json()["upstreams"][0]["panic"], true);
}

#[test]
fn a_backup_gets_requests_only_while_the_others_are_out() {
    let servers = ["a", "b"].map(Faulty::start);
    let list =
        [format!("\"{}\"", servers[0].address), format!("{{ address = \"{}\", backup = true }}", servers[1].address)];
    let health = "health = { path = \"/healthz\", interval = \"100ms\", rise = 1, fall = 1 }";
    let gateway = Gateway::start_whole(&format!("{}{FRAME}", rules(&list, health)));
    let all_at = |name: &str| answers(&gateway, 20).values().all(|(_, server)| server == name);
    assert!(all_at("a"));
    servers[0].set(Mode::SaysSick);
    assert!(eventually(|| state(&gateway, servers[0].address) == "down") && all_at("b"));
    servers[0].set(Mode::Works);
    assert!(eventually(|| state(&gateway, servers[0].address) == "up") && all_at("a"));
}

#[test]
fn the_operator_takes_a_server_out_and_back_by_admin_and_by_the_file() {
    let servers = ["a", "b", "c"].map(Faulty::start);
    let addresses = [0, 1, 2].map(|place: usize| servers[place].address);
    let gateway = start(&addresses, "");
    let before = answers(&gateway, 60);
    let set = |address: SocketAddr, state: &str| {
        gateway.post_admin(&format!("/api/v1/upstreams/app/servers/{address}?state={state}"))
    };
    for (word, shown) in [("drain", "draining"), ("off", "off")] {
        let answer = set(addresses[0], word);
        assert_eq!((answer.status, state(&gateway, addresses[0])), (200, shown.to_owned()));
        only_its_keys_moved(&before, &answers(&gateway, 60), "a");
    }
    assert_eq!(set(unused_address(), "off").status, 404);
    assert_eq!(gateway.post_admin("/api/v1/upstreams/none/servers/a:1?state=off").status, 404);
    // A reload that says nothing new of it leaves it so.
    let list = |word: &str| {
        let of_b = format!("{{ address = \"{}\", state = \"{word}\" }}", addresses[1]);
        rules(&[format!("\"{}\"", addresses[0]), of_b, format!("\"{}\"", addresses[2])], "connect_timeout = \"3s\"")
    };
    assert_eq!(gateway.reload(&list("drain")).status, 200);
    assert_eq!([0, 1, 2].map(|place: usize| state(&gateway, addresses[place])), ["off", "draining", "up"]);
    assert!(answers(&gateway, 60).values().all(|(status, server)| (*status, &**server) == (200, "c")));
    assert_eq!(gateway.reload(&list("up")).status, 200);
    assert_eq!(set(addresses[0], "up").status, 200);
    assert_eq!(answers(&gateway, 60), before);
    // With all of them out nobody is asked.
    for (address, force) in addresses.into_iter().zip(["", "", "&force=true"]) {
        assert_eq!(set(address, &format!("off{force}")).status, 200);
    }
    assert!(answers(&gateway, 5).values().all(|(status, _)| *status == 503));
}

/// A server that the kernel does not answer for: its queue of connections is full.
fn black_hole() -> (TcpListener, SocketAddr, Vec<TcpStream>) {
    let runtime = runtime();
    let _inside = runtime.enter();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap().into_std().unwrap();
    let address = listener.local_addr().unwrap();
    let mut held = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(200)) {
        held.push(stream);
    }
    (listener, address, held)
}

#[test]
fn clients_of_a_black_hole_wait_so_often_and_no_more() {
    let (a, b, hole) = (Faulty::start("a"), Faulty::start("b"), black_hole());
    let eject = "connect_timeout = \"300ms\"\neject = { failures = 3, for = \"60s\" }";
    let gateway = start(&[a.address, b.address, hole.1], eject);
    let map = answers(&gateway, 60);
    assert!(map.values().all(|(status, _)| *status == 200), "{map:?}");
    assert_eq!((state(&gateway, hole.1), server(&gateway, hole.1)["failed"].clone()), ("ejected".to_owned(), 3.into()));
    assert!(gateway.log().contains("no answer to connect within connect_timeout"), "{}", gateway.log());
}

#[test]
fn a_black_hole_is_noticed_where_requests_have_less_time_than_a_connect() {
    let (a, b, hole) = (Faulty::start("a"), Faulty::start("b"), black_hole());
    let list = [a.address, b.address, hole.1].map(|address| format!("\"{address}\""));
    let rules = rules(&list, "eject = { failures = 3, for = \"60s\" }");
    let hurried = rules.replacen("[server]\n", "[server]\ntimeout = \"300ms\"\n", 1);
    let gateway = Gateway::start_whole(&format!("{hurried}{FRAME}"));
    let map = answers(&gateway, 60);
    assert_eq!(map.values().filter(|(status, _)| *status == 504).count(), 3, "{map:?}");
    assert_eq!(state(&gateway, hole.1), "ejected");
}

#[test]
fn a_body_that_is_withheld_is_no_failure_of_the_server_that_closes() {
    let servers = [(); 2].map(|()| Backend::scripted(|wire, _| drop(wire.head())));
    let gateway = start(&[servers[0].address, servers[1].address], "eject = { failures = 3, for = \"60s\" }");
    let failed = || servers.iter().map(|own| server(&gateway, own.address)["failed"].as_u64().unwrap()).sum::<u64>();
    for _ in 0..6 {
        let request = "POST / HTTP/1.1\r\nHost: x\r\nX-User: u\r\nContent-Length: 100\r\n\r\nx";
        let mut wire = Wire::with(gateway.address(), request);
        assert_eq!(wire.answer().status(), 502);
    }
    assert_eq!(failed(), 0);
    for _ in 0..3 {
        let mut wire = Wire::with(gateway.address(), "GET / HTTP/1.1\r\nHost: x\r\nX-User: u\r\n\r\n");
        assert_eq!(wire.answer().status(), 502);
    }
    assert_eq!(failed(), 3, "of whole requests it is");
    assert!(servers.iter().any(|own| state(&gateway, own.address) == "ejected"));
    assert!((gateway.metric("sluicegate_upstream_servers_out", &[]) - 1.0).abs() < 0.5);
}

/// A server of gRPC that answers for its health with this message.
fn health_service(message: Arc<AtomicU8>) -> SocketAddr {
    let attend = move |stream, _| {
        let message = Arc::clone(&message);
        async move {
            let service = service_fn(|request: http::Request<hyper::body::Incoming>| {
                let state = message.load(Ordering::SeqCst);
                async move {
                    assert_eq!(request.uri().path(), "/grpc.health.v1.Health/Check");
                    let asked = request.into_body().collect().await.unwrap().to_bytes();
                    assert_eq!(&*asked, [0; 5]);
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
                    let message = Frame::data(Bytes::copy_from_slice(&[0, 0, 0, 0, 2, 8, state]));
                    let body =
                        StreamBody::new(stream::iter([Ok::<_, Infallible>(message), Ok(Frame::trailers(trailers))]));
                    let answer = http::Response::builder().header("content-type", "application/grpc");
                    Ok::<_, Infallible>(answer.body(body).unwrap())
                }
            });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            drop(server.serve_connection(TokioIo::new(stream), service).await);
        }
    };
    serve_tcp(attend).0
}

#[test]
fn health_is_asked_by_grpc() {
    let (serving, not_serving) = (1, 2);
    let messages = [Arc::new(AtomicU8::new(serving)), Arc::new(AtomicU8::new(serving))];
    let addresses = [0, 1].map(|place: usize| health_service(Arc::clone(&messages[place])));
    let health = "protocol = \"h2\"\nhealth = { protocol = \"grpc\", interval = \"100ms\", rise = 1, fall = 1 }";
    let gateway = start(&addresses, health);
    messages[1].store(not_serving, Ordering::SeqCst);
    assert!(eventually(|| state(&gateway, addresses[1]) == "down"));
    assert_eq!(state(&gateway, addresses[0]), "up");
    messages[1].store(serving, Ordering::SeqCst);
    assert!(eventually(|| state(&gateway, addresses[1]) == "up"));
}

#[test]
fn health_by_tcp_is_a_connect() {
    let (works, gone) = (Faulty::start("a"), unused_address());
    let gateway = start(&[works.address, gone], "health = { protocol = \"tcp\", interval = \"100ms\", fall = 1 }");
    assert!(eventually(|| state(&gateway, gone) == "down"));
    assert_eq!((state(&gateway, works.address), works.backend.requests()), ("up".to_owned(), 0));
}
