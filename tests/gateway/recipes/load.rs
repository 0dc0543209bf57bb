//! Recipes about what stays for long: tunnels, streams, downloads.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::SendStream;

use crate::connections::connect_from;
use crate::h2::peer;
use crate::mixes::peers::{Http, Origin, Told, accept_of};
use crate::support::{Answer, Backend, Gateway, eventually, write_ok};
use crate::timing::{assert_took, best_of_three};
use crate::wire::Wire;

use super::caller::{BOTH, Caller, INSIDE, OUTSIDE, Over, retry_after, violated};
use super::page::Recipe;

const UPGRADE: &str = "GET /chat HTTP/1.1\r\nHost: test.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// Says 101, and nothing more until the tunnel ends; how many are open.
fn chat_server(open: &Arc<AtomicUsize>) -> Backend {
    let open = Arc::clone(open);
    Backend::scripted(move |wire: &mut Wire, _| {
        if let Ok(request) = wire.request()
            && wire.send(format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Accept: {}\r\n\r\n",
                accept_of(&request)
            ))
        {
            open.fetch_add(1, Ordering::SeqCst);
            let _ = wire.rest();
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
}

/// One address that opens tunnels, each on a connection of HTTP/1.1 or all on one of HTTP/2.
enum Chatter {
    Http1(SocketAddr),
    Http2(tokio::runtime::Runtime, peer::Sender),
}

/// The handle of a tunnel; to drop it ends it.
enum Tunnel {
    Http1(#[allow(dead_code, reason = "held")] Wire),
    Http2(SendStream<Bytes>),
}

impl Chatter {
    fn new(over: Over, gateway: &Gateway) -> Self {
        match over {
            Over::Http1 => Self::Http1(gateway.address()),
            Over::Http2 => {
                let runtime = crate::mixes::peers::runtime();
                let sender = runtime.block_on(peer::connect(gateway.address()));
                Self::Http2(runtime, sender)
            }
        }
    }

    fn open(&self) -> Result<Tunnel, Answer> {
        match self {
            Self::Http1(address) => {
                let (mut wire, mut answered) = (None, None);
                // More of them a second than the recipe takes are turned away, and may try again.
                assert!(eventually(|| {
                    let asking = wire.insert(Wire::with(*address, UPGRADE));
                    answered = asking.response("GET").ok();
                    answered.is_some()
                }));
                match (wire, answered) {
                    (Some(wire), Some(answer)) if answer.status() == 101 => Ok(Tunnel::Http1(wire)),
                    (_, answer) => {
                        let answer = answer.expect("an answer");
                        Err(Answer { status: answer.status(), headers: answer.headers, body: answer.body })
                    }
                }
            }
            Self::Http2(runtime, sender) => runtime.block_on(async {
                let mut request = peer::request("CONNECT", "/chat", &[("sec-websocket-version", "13")]);
                request.extensions_mut().insert(h2::ext::Protocol::from("websocket"));
                let (response, send) = peer::open(sender, request, false).await;
                let answer = crate::mixes::peers::soon(response).await.unwrap();
                let headers = answer.headers().iter();
                let headers =
                    headers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned())).collect();
                let status = answer.status().as_u16();
                if status == 200 {
                    return Ok(Tunnel::Http2(send));
                }
                let (mut recv, mut body) = (answer.into_body(), Vec::new());
                while let Some(piece) = peer::next(&mut recv).await {
                    body.extend_from_slice(&piece.unwrap());
                }
                Err(Answer { status, headers, body })
            }),
        }
    }

    /// The place of a tunnel that has ended may come free a moment later.
    fn open_in_time(&self) -> Tunnel {
        let mut opened = None;
        let is_open = eventually(|| match self.open() {
            Ok(tunnel) => opened.replace(tunnel).is_none(),
            Err(refused) => {
                assert_eq!(violated(&refused), ["open"], "{refused:?}");
                false
            }
        });
        assert!(is_open);
        opened.expect("it is open")
    }

    fn end(&self, tunnels: Vec<Tunnel>, gateway: &Gateway) {
        for mut tunnel in tunnels {
            if let Tunnel::Http2(send) = &mut tunnel {
                send.send_reset(h2::Reason::CANCEL);
            }
        }
        if let Self::Http2(runtime, _) = self {
            runtime.block_on(crate::mixes::peers::soon(async {
                while gateway.metric("sluicegate_tunnels_open", &[]) > 0.5 {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }));
        }
    }
}

#[test]
fn websocket_chat() {
    let recipe = Recipe::of("WebSocket chat");
    recipe.says("One address may hold 10 tunnels open and open 30 a minute");
    for over in BOTH {
        let open = [Arc::<AtomicUsize>::default(), Arc::default()];
        let servers = [chat_server(&open[0]), chat_server(&open[1])];
        let gateway = recipe.start(&[("127.0.0.1:9001", servers[0].address), ("127.0.0.1:9002", servers[1].address)]);
        let wait_open = |each: usize| {
            gateway.wait_metric("sluicegate_tunnels_open", &[], 2.0 * each as f64);
            assert!(eventually(|| open.iter().map(|open| open.load(Ordering::SeqCst)).sum::<usize>() == 2 * each));
        };
        let chatter = Chatter::new(over, &gateway);
        for round in 0..3 {
            let tunnels: Vec<_> = (0..10).map(|_| chatter.open_in_time()).collect();
            wait_open(5);
            if round == 0 {
                assert!(open.iter().all(|open| open.load(Ordering::SeqCst) == 5), "{open:?} {over:?}");
            }
            let refused = chatter.open().err().expect("an eleventh");
            assert_eq!(refused.status, 429, "{over:?}");
            if round < 2 {
                assert_eq!(violated(&refused), ["open"], "{over:?}");
            }
            chatter.end(tunnels, &gateway);
            wait_open(0);
        }
        // Refusals have counted in none, so it is the thirty that are used up.
        let refused = chatter.open().err().expect("a thirty-first");
        assert_eq!((refused.status, violated(&refused)), (429, vec!["handshakes".to_owned()]), "{over:?}");
        assert!((1..=60 + 30).contains(&retry_after(&refused)), "{refused:?}");
    }
}

#[test]
fn websocket_chat_bounds_the_connections_of_an_address() {
    let recipe = Recipe::of("WebSocket chat");
    recipe.says("A tunnel in which nobody says a word for 2 minutes is closed");
    let servers = [Backend::fixed("page"), Backend::fixed("page")];
    let gateway = recipe.start(&[("127.0.0.1:9001", servers[0].address), ("127.0.0.1:9002", servers[1].address)]);
    let turned_away = |reason: &str| gateway.metric("sluicegate_client_connections_refused_total", &[reason]);
    let mut held = Vec::new();
    assert!(eventually(|| {
        let mut wire = Wire::noting(connect_from(OUTSIDE, gateway.address()), Arc::default());
        if wire.send(crate::wire::get("/")) && wire.response("GET").is_ok() {
            held.push(wire);
        }
        turned_away("reason=\"client\"") > 0.5
    }));
    assert_eq!(held.len(), 40);
    let mut other = Caller::open(Over::Http1, INSIDE, gateway.address());
    assert_eq!(other.get("/", &[]).header("ratelimit-policy"), Some("\"pages\";q=300;w=60"));
    let model = recipe.model();
    assert_eq!(model.server.tunnel_timeout.unwrap().to_string(), "2m");
    assert_eq!(model.client.connection_rate.unwrap().to_string(), "20/s");
    assert_eq!(model.listeners[0].max_connections.unwrap().to_string(), "20000");
}

const GRPC: [(&str, &str); 2] = [("content-type", "application/grpc"), ("te", "trailers")];
const EMPTY: &[u8] = &[0; 5];

/// The status of a call that the gateway has answered itself.
#[test]
fn websocket_chat_ends_for_who_says_too_much() {
    let recipe = Recipe::of("WebSocket chat");
    recipe.says("A client may send 50 messages at once and 10 a second from then on, of up to 64 KiB each");
    recipe.says("closed with 1013 (try again later), a larger one with 1009");
    let open = Arc::<AtomicUsize>::default();
    let servers = [chat_server(&open), chat_server(&open)];
    let gateway = recipe.start(&[("127.0.0.1:9001", servers[0].address), ("127.0.0.1:9002", servers[1].address)]);
    let masked = |size: u32| {
        let head = match size {
            ..126 => vec![0x81, 0x80 | size as u8],
            _ => [&[0x81, 0x80 | 127, 0, 0, 0, 0][..], &size.to_be_bytes()].concat(),
        };
        [head, vec![0; 4 + size as usize]].concat()
    };
    // All at once: what the rate has given back meanwhile is less than ten.
    for (frames, code) in [(masked(1).repeat(60), 1013_u16), (masked(65_537), 1009)] {
        let mut wire = Wire::with(gateway.address(), UPGRADE);
        assert_eq!(wire.response("GET").unwrap().status(), 101);
        wire.send(masked(65_536));
        // It may be closed before all of them are sent.
        wire.send(frames);
        assert_eq!(wire.take(4).unwrap(), [&[0x88, 2][..], &code.to_be_bytes()].concat());
    }
    let closed = |action: &str| {
        gateway.wait_metric("sluicegate_websocket_over_limit_total", &[&format!("action=\"{action}\"")], 1.0);
    };
    closed("closed");
    closed("too-large");
}

fn code(answer: &Answer) -> u32 {
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.header("grpc-status").unwrap_or_else(|| panic!("no status: {answer:?}")).parse().unwrap()
}

#[test]
fn grpc() {
    let recipe = Recipe::of("gRPC");
    recipe.says("every address has 600 calls a minute of the service, of which 10 may create orders");
    recipe.says("A call over its limit ends with `RESOURCE_EXHAUSTED` (8) and `grpc-retry-pushback-ms`");
    recipe.says("a service that is not named here is `UNIMPLEMENTED` (12), a call that takes longer than 10 s is `DEADLINE_EXCEEDED` (4)");
    recipe.says("`Watch` is a stream that stays: it has no such time, but has to say something every 5 minutes");
    let told = || {
        Origin::start(Http::Two, |_| Told::new(200, &[("content-type", "application/grpc"), ("grpc-status", "0")], ""))
    };
    let servers = [told(), told()];
    let gateway = recipe.start(&[("127.0.0.1:50051", servers[0].address), ("127.0.0.1:50052", servers[1].address)]);
    let mut caller = Caller::open(Over::Http2, INSIDE, gateway.address());
    let mut call = |method: &str| caller.ask("POST", method, &GRPC, EMPTY);
    for _ in 0..10 {
        assert_eq!(code(&call("/shop.Shop/CreateOrder")), 0);
    }
    let refused = call("/shop.Shop/CreateOrder");
    let pushback: u64 = refused.header("grpc-retry-pushback-ms").unwrap().parse().unwrap();
    assert!(code(&refused) == 8 && (1000..=60_000).contains(&pushback), "{refused:?}");
    assert!(refused.header("grpc-message").unwrap().contains("\"orders\""), "{refused:?}");
    assert_eq!((0..595).filter(|_| code(&call("/shop.Shop/ListOrders")) == 0).count(), 590, "ten were orders");
    assert_eq!(code(&call("/shop.Other/Any")), 12);
    assert_eq!(code(&call("/shop.ShopX/Any")), 12);
    assert_eq!(servers.iter().map(|server| server.seen.lock().unwrap().len()).sum::<usize>(), 600);
    let model = recipe.model();
    let timeouts = model.routes.iter().map(|route| route.timeout.map(|timeout| timeout.to_string()));
    assert_eq!(timeouts.collect::<Vec<_>>(), [Some("10s".into()), Some("10s".into()), None]);
    assert_eq!(model.server.body_timeout.to_string(), "5m");
}

#[test]
fn grpc_holds_five_streams_open() {
    let recipe = Recipe::of("gRPC");
    let servers = [0; 2].map(|_| Origin::start(Http::Two, |_| Told::new(200, &GRPC[..1], "")));
    let gateway = recipe.start(&[("127.0.0.1:50051", servers[0].address), ("127.0.0.1:50052", servers[1].address)]);
    peer::run(async {
        let sender = peer::connect(gateway.address()).await;
        let watch = || peer::request("POST", "/shop.Shop/Watch", &GRPC);
        let mut streams = Vec::new();
        for _ in 0..5 {
            streams.push(peer::open(&sender, watch(), false).await);
        }
        // Until its client has said all, this server says nothing.
        while gateway.metric("sluicegate_requests_in_flight", &[]) < 4.5 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let refused = peer::ask(&sender, watch()).await.unwrap();
        assert_eq!((refused.status, refused.header("grpc-status")), (200, Some("8")), "{refused:?}");
        assert!(refused.header("grpc-message").unwrap().contains("\"watching\""), "{refused:?}");
    });
}

/// Sends the first half of each answer, and the second when it may.
fn file_server(begun: &Arc<AtomicUsize>, may_end: &Arc<AtomicBool>) -> Backend {
    let (begun, may_end) = (Arc::clone(begun), Arc::clone(may_end));
    Backend::start(move |_, stream| {
        let head = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\na");
        begun.fetch_add(1, Ordering::SeqCst);
        while !may_end.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        head.and_then(|()| stream.write_all(b"b")).is_ok()
    })
}

#[test]
fn downloads() {
    let recipe = Recipe::of("Downloads");
    recipe.says(
        "Each address has 2 downloads at once, counted to their last byte; 4 more wait their turn for up to 20 s",
    );
    recipe.says("A client that takes no byte for 30 s is cut");
    recipe.says("A download lasts at most 6 hours.");
    for over in BOTH {
        let (begun, may_end) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let server = file_server(&begun, &may_end);
        let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
        let to = gateway.address();
        let wait_begun = |count| assert!(eventually(|| begun.load(Ordering::SeqCst) == count), "{begun:?} {over:?}");
        thread::scope(|scope| {
            let download = |from| scope.spawn(move || Caller::open(over, from, to).get("/files/large.iso", &[]));
            let mut downloads = vec![download(OUTSIDE), download(OUTSIDE)];
            wait_begun(2);
            downloads.extend((0..4).map(|_| download(OUTSIDE)));
            gateway.wait_metric("sluicegate_limit_waiting", &["limit=\"downloads\""], 4.0);
            let refused = Caller::open(over, OUTSIDE, to).get("/files/large.iso", &[]);
            assert_eq!((refused.status, refused.header("retry-after")), (429, Some("1")), "{over:?}");
            assert_eq!(begun.load(Ordering::SeqCst), 2, "two of six");
            // Another address has its own two.
            downloads.push(download(INSIDE));
            wait_begun(3);
            may_end.store(true, Ordering::SeqCst);
            for download in downloads {
                let answer = download.join().unwrap();
                assert_eq!((answer.status, answer.text().as_str()), (200, "ab"));
            }
        });
        assert_eq!(server.requests(), 7);
        let page = Caller::open(over, OUTSIDE, to).get("/", &[]);
        assert_eq!(page.header("ratelimit-policy"), Some("\"site\";q=300;w=60"));
    }
    let model = recipe.model();
    assert_eq!(model.routes[0].timeout.unwrap().to_string(), "6h");
    assert_eq!(model.server.body_timeout.to_string(), "30s");
    assert_eq!(model.limits[0].spec.max_wait.to_string(), "20s");
}

#[test]
fn downloads_share_so_much_a_second() {
    best_of_three(|| {
        let recipe = Recipe::of("Downloads");
        recipe.says("goes at 20 MiB a second, but for the first 5 MiB, which need not wait");
        for over in BOTH {
            let server = Backend::start(|_, stream| write_ok(stream, &vec![b'x'; 8 << 20]));
            let gateway = recipe.start(&[("127.0.0.1:9001", server.address)]);
            let mut caller = Caller::open(over, OUTSIDE, gateway.address());
            let started = Instant::now();
            let sizes = [(); 2].map(|()| caller.get("/files/large.iso", &[]).body.len());
            assert_eq!(sizes, [8 << 20; 2]);
            // 11 of 16 MiB.
            assert_took(started, 540..10_000);
            // Others have their own, and what is no download is not counted.
            let started = Instant::now();
            assert_eq!(caller.get("/", &[]).body.len(), 8 << 20);
            assert_took(started, 0..5_000);
            gateway.wait_metric("sluicegate_bandwidth_bytes_total", &["direction=\"down\""], f64::from(16 << 20));
            // Both are known while both go on; one that has all of its burst again is soon forgotten.
            thread::scope(|scope| {
                scope.spawn(|| gateway.wait_metric("sluicegate_bandwidth_keys", &["direction=\"down\""], 2.0));
                let other =
                    scope.spawn(|| Caller::open(over, INSIDE, gateway.address()).get("/files/a", &[]).body.len());
                assert_eq!(caller.get("/files/large.iso", &[]).body.len(), 8 << 20);
                assert_eq!(other.join().unwrap(), 8 << 20);
            });
        }
    });
}
