//! WebSocket with bounds, in every mix: how many messages pass, and how both sides are told that no more do.

use std::io::Read;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Response;

use super::peers::{Http, Mix, accept_of, in_every_mix, pour, runtime, serve_tcp};
use super::tunnels::Socket;
use crate::support::{Backend, Gateway, PATIENCE, eventually};
use crate::timing::{assert_in_time, assert_lasted, best_of_three};
use crate::wire::wait_outcome;

in_every_mix! {
    a_message_too_many_closes_between_two_frames
    a_frame_that_the_server_has_begun_is_finished_first
    messages_may_be_held_until_their_time
    a_message_that_is_too_large_closes
    a_frame_that_cannot_be_closes
    bytes_of_a_tunnel_are_paced_both_ways
}

/// The first message of the server, and the one that it sends when it has heard that its client goes.
const WELCOME: &[u8] = b"\x81\x07welcome";
const TRY_AGAIN_LATER: [u8; 4] = [0x88, 2, 0x03, 0xf5];

/// A server of WebSocket that keeps what it hears.
struct Hearing {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<u8>>>,
    _backend: Option<Backend>,
}

/// A connection that the gateway has to a server, from which it hears and to which it says `first` and, after a close
/// frame, `last`.
#[derive(Clone, Copy)]
struct Says {
    first: &'static [u8],
    last: &'static [u8],
}

impl Hearing {
    fn start(http: Http, says: Says) -> Self {
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let log = Arc::clone(&heard);
        let add = move |bytes: &[u8]| {
            let mut log = log.lock().unwrap();
            // Where these bytes begin, and the one before them: all of it each time would take longer than what is measured.
            let from = log.len().saturating_sub(1);
            log.extend_from_slice(bytes);
            // None of these tests says these two bytes otherwise.
            log[from..].windows(2).any(|two| two == [0x88, 0x82])
        };
        if http == Http::One {
            let backend = Backend::scripted(move |wire, _| {
                let request = wire.request().unwrap();
                wire.send(format!(
                    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: chat\r\n\r\n",
                    accept_of(&request)
                ));
                wire.send(says.first);
                let mut room = [0; 16_384];
                while let Ok(size @ 1..) = wire.stream().read(&mut room) {
                    if add(&room[..size]) {
                        wire.send(says.last);
                    }
                }
            });
            return Self { address: backend.address, heard, _backend: Some(backend) };
        }
        let (address, _) = serve_tcp(move |stream, _| {
            let add = add.clone();
            async move {
                let mut builder = h2::server::Builder::new();
                builder.enable_connect_protocol();
                let Ok(mut accepting) = builder.handshake::<_, Bytes>(stream).await else { return };
                while let Some(Ok((request, mut respond))) = accepting.accept().await {
                    let add = add.clone();
                    tokio::spawn(async move {
                        let head = Response::builder().header("sec-websocket-protocol", "chat").body(()).unwrap();
                        let mut send = respond.send_response(head, false).unwrap();
                        pour(&mut send, says.first, false).await.unwrap();
                        let mut recv = request.into_body();
                        while let Some(Ok(data)) = recv.data().await {
                            recv.flow_control().release_capacity(data.len()).unwrap();
                            if add(&data) {
                                drop(pour(&mut send, says.last, false).await);
                            }
                        }
                        drop(send.send_data(Bytes::new(), true));
                    });
                }
            }
        });
        Self { address, heard, _backend: None }
    }

    /// Waits until so much was heard.
    async fn wait(&self, size: usize) -> Vec<u8> {
        let started = Instant::now();
        loop {
            let heard = self.heard.lock().unwrap().clone();
            if heard.len() >= size || started.elapsed() > PATIENCE {
                return heard;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// It heard these frames and then that its client goes, by a close frame with a mask.
    async fn assert_told_after(&self, frames: &[u8]) {
        let heard = self.wait(frames.len() + 8).await;
        let (before, close) = heard.split_at(frames.len().min(heard.len()));
        assert!(before == frames, "{before:?}");
        let [0x88, 0x82, a, b, _, _, high, low] = close else { panic!("{close:?}") };
        assert_eq!(u16::from_be_bytes([high ^ a, low ^ b]), 1001);
    }
}

fn gateway(mix: Mix, server: &Hearing, route: &str) -> Gateway {
    Gateway::start(&mix.rules(server.address, route, "[log]\naccess = \"json\"\n"))
}

/// A frame with a mask, as a client sends it.
fn frame(first: u8, size: usize) -> Vec<u8> {
    let length = match size {
        0..=125 => vec![0x80 | size as u8],
        _ => [&[0x80 | 0x7e][..], &(size as u16).to_be_bytes()].concat(),
    };
    [&[first][..], &length, &[1, 2, 3, 4], &vec![b'x'; size]].concat()
}

fn texts(count: usize) -> Vec<u8> {
    frame(0x81, 5).repeat(count)
}

fn assert_closed(gateway: &Gateway, action: &str) {
    let action = format!("action=\"{action}\"");
    gateway.wait_metric("sluicegate_websocket_over_limit_total", &["route=\"all\"", &action], 1.0);
    gateway.wait_metric("sluicegate_websocket_over_limit_total", &[], 1.0);
    wait_outcome(gateway, "message-limit", 1);
    gateway.wait_metric("sluicegate_tunnels_open", &[], 0.0);
    assert!(eventually(|| gateway.access_log().iter().any(|line| line["outcome"] == "message-limit")));
}

fn a_message_too_many_closes_between_two_frames(mix: Mix) {
    let frames = texts(5);
    let three = 3 * frames.len() / 5;
    // At once, and cut within the head of the one that is too many.
    for cut in [0, three + 1] {
        let server = Hearing::start(mix.server, Says { first: WELCOME, last: b"" });
        let gateway = gateway(mix, &server, "messages = { rate = \"1/h\", burst = 3 }");
        runtime().block_on(async {
            let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
            assert_eq!(socket.take(WELCOME.len()).await, WELCOME);
            if cut > 0 {
                socket.send(&frames[..cut]).await;
                assert_eq!(server.wait(three).await, frames[..three], "what may pass does so at once");
            }
            socket.send(&frames[cut..]).await;
            assert_eq!(socket.take(4).await, TRY_AGAIN_LATER);
            socket.assert_ended().await;
            socket.finish();
            server.assert_told_after(&frames[..three]).await;
        });
        assert_closed(&gateway, "closed");
    }
}

fn a_frame_that_the_server_has_begun_is_finished_first(mix: Mix) {
    let says = Says { first: b"\x82\x0bbegun", last: b" ended\x81\x04more" };
    let server = Hearing::start(mix.server, says);
    let gateway = gateway(mix, &server, "messages = { rate = \"1/h\" }");
    runtime().block_on(async {
        let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
        assert_eq!(socket.take(7).await, b"\x82\x0bbegun");
        socket.send(&texts(2)).await;
        assert_eq!(socket.take(6).await, b" ended");
        assert_eq!(socket.take(4).await, TRY_AGAIN_LATER);
        socket.assert_ended().await;
        socket.finish();
        server.assert_told_after(&texts(1)).await;
    });
    assert_closed(&gateway, "closed");
}

fn messages_may_be_held_until_their_time(mix: Mix) {
    best_of_three(|| {
        let server = Hearing::start(mix.server, Says { first: WELCOME, last: b"" });
        let gateway = gateway(mix, &server, "messages = { rate = \"20/s\", burst = 2, over = \"pace\" }");
        runtime().block_on(async {
            let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
            let started = Instant::now();
            // Pings count as well: they cost the server as much.
            let all = [texts(6), frame(0x89, 3).repeat(6)].concat();
            socket.send(&all).await;
            assert_eq!(server.wait(all.len()).await, all);
            let took = started.elapsed();
            assert_lasted(took, Duration::from_millis(500)..Duration::from_millis(650), "all of them");
            assert_eq!(socket.take(WELCOME.len()).await, WELCOME);
            socket.finish();
            socket.assert_ended().await;
        });
        wait_outcome(&gateway, "upgraded", 1);
        // One that is read when its time has come is not held.
        let held = gateway.metric("sluicegate_websocket_over_limit_total", &["action=\"paced\""]);
        assert!((1.0..10.5).contains(&held), "{held} of ten");
        assert_in_time(held > 9.5, "less than ten were held");
    });
}

fn a_message_that_is_too_large_closes(mix: Mix) {
    let server = Hearing::start(mix.server, Says { first: WELCOME, last: b"" });
    let gateway = gateway(mix, &server, "messages = { max_size = \"1500\" }");
    runtime().block_on(async {
        let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
        assert_eq!(socket.take(WELCOME.len()).await, WELCOME);
        // Whole ones, and one in fragments with a ping in between.
        let fits =
            [frame(0x82, 1500), frame(0x82, 1500), frame(0x02, 700), frame(0x89, 100), frame(0x00, 800)].concat();
        socket.send(&[&fits[..], &frame(0x80, 1)].concat()).await;
        assert_eq!(socket.take(4).await, [0x88, 2, 0x03, 0xf1], "1009, too big");
        socket.assert_ended().await;
        socket.finish();
        server.assert_told_after(&fits).await;
    });
    assert_closed(&gateway, "too-large");
}

fn a_frame_that_cannot_be_closes(mix: Mix) {
    let server = Hearing::start(mix.server, Says { first: WELCOME, last: b"" });
    let gateway = gateway(mix, &server, "messages = { rate = \"1000/s\" }");
    runtime().block_on(async {
        let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
        assert_eq!(socket.take(WELCOME.len()).await, WELCOME);
        socket.send(&[&texts(1)[..], &[0x82, 0xff, 0x80, 0, 0, 0, 0, 0, 0, 1]].concat()).await;
        assert_eq!(socket.take(4).await, [0x88, 2, 0x03, 0xea], "1002, protocol error");
        socket.assert_ended().await;
        socket.finish();
        server.assert_told_after(&texts(1)).await;
    });
    assert_closed(&gateway, "malformed");
}

fn bytes_of_a_tunnel_are_paced_both_ways(mix: Mix) {
    best_of_three(|| {
        const SIZE: usize = 384 << 10;
        static DOWN: [u8; SIZE] = [b'd'; SIZE];
        let server = Hearing::start(mix.server, Says { first: &DOWN, last: b"" });
        let gateway = gateway(mix, &server, "bandwidth = { rate = \"512KiB/s\", burst = \"128KiB\" }");
        runtime().block_on(async {
            let started = Instant::now();
            // 256 KiB of each.
            let range = Duration::from_millis(498)..Duration::from_millis(650);
            let assert_took = |what: &str| assert_lasted(started.elapsed(), range.clone(), what);
            let mut socket = Socket::open(mix, &gateway, "/").await.unwrap();
            let up = vec![b'u'; SIZE];
            if mix.client == Http::One {
                // Both at once, as far as sockets have room.
                socket.send(&up).await;
                assert!(socket.take(SIZE).await == DOWN);
                assert_took("down");
                assert!(server.wait(SIZE).await == up);
                assert_took("up");
            } else {
                assert!(socket.take(SIZE).await == DOWN);
                assert_took("down");
                let started = Instant::now();
                socket.send(&up).await;
                assert!(server.wait(SIZE).await == up);
                assert_lasted(started.elapsed(), range.clone(), "up");
            }
            socket.finish();
            socket.assert_ended().await;
        });
    });
}
