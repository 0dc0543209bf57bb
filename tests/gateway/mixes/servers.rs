//! Servers of HTTP/2 that go away, refuse, or allow little, and clients that go away.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use h2::server::SendResponse;
use http::Response;

use super::peers::{
    Ask, Asker, Head, Http, Mix, Origin, Told, all_at_once, fields, header_map, in_every_mix, next_head, open_h2, pour,
    request_of, runtime, serve_tcp, soon,
};
use crate::support::{Backend, Gateway, PATIENCE, eventually};
use crate::timing::{assert_took, best_of_three};
use crate::wire::{Wire, wait_outcome};

in_every_mix! {
    a_server_that_breaks_off_before_its_head_is_a_502
    a_server_that_breaks_off_in_its_body_breaks_the_answer
    a_client_that_goes_away_is_cancelled_at_the_server
    a_client_that_goes_away_in_an_upload_that_nobody_reads_is_noticed
}

const TO_H2: [Mix; 2] = [Mix { client: Http::One, server: Http::Two }, Mix { client: Http::Two, server: Http::Two }];

/// A server of HTTP/2 of which each stream is given to a script, with the numbers of its connection and, from 1, of
/// itself there.
fn scripted<F>(
    script: impl Fn(http::Request<h2::RecvStream>, SendResponse<Bytes>, usize, usize) -> F + Send + Sync + 'static,
) -> (std::net::SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let script = Arc::new(script);
    serve_tcp(move |stream, connection| {
        let script = Arc::clone(&script);
        async move {
            let Ok(mut accepting) = h2::server::handshake(stream).await else { return };
            let mut number = 0;
            while let Some(Ok((request, respond))) = accepting.accept().await {
                number += 1;
                tokio::spawn(script(request, respond, connection, number));
            }
        }
    })
}

fn breaking(mix: Mix) -> (std::net::SocketAddr, Arc<AtomicUsize>, Option<Backend>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    if mix.server == Http::One {
        let backend = Backend::scripted(move |wire, _| {
            while let Ok(request) = wire.request() {
                count.fetch_add(1, Ordering::SeqCst);
                match request.target() {
                    "/before" => return,
                    "/length" => {
                        wire.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun");
                        return;
                    }
                    "/chunked" => {
                        wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n");
                        return;
                    }
                    _ => wire.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
                };
            }
        });
        return (backend.address, asked, Some(backend));
    }
    let (address, _) = scripted(move |request, mut respond, _, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move {
            let mut head = Response::new(());
            match request.uri().path() {
                "/before" => return respond.send_reset(Reason::INTERNAL_ERROR),
                "/length" => drop(head.headers_mut().insert("content-length", 1000.into())),
                "/chunked" => {}
                _ => return drop(respond.send_response(head, true)),
            }
            let mut send = respond.send_response(head, false).unwrap();
            pour(&mut send, b"begun", false).await.unwrap();
            // A reset takes back what is not written yet.
            tokio::time::sleep(Duration::from_millis(100)).await;
            send.send_reset(Reason::INTERNAL_ERROR);
        }
    });
    (address, asked, None)
}

fn a_server_that_breaks_off_before_its_head_is_a_502(mix: Mix) {
    let (address, asked, _backend) = breaking(mix);
    let gateway = mix.gateway(address);
    let mut asker = mix.asker(&gateway);
    for ask in [Ask::post("/before", "body"), Ask::get("/before")] {
        assert_eq!(asker.ask(&ask).status(), 502);
    }
    wait_outcome(&gateway, "upstream-error", 2);
    assert_eq!(asked.load(Ordering::SeqCst), 2, "what fails over a new connection is not repeated");
    assert_eq!(asker.get("/").status(), 200);
    // A connection of HTTP/1 that ends without an answer may have died idle. The reset of a stream is an answer.
    let tries = if mix.server == Http::One { 2 } else { 1 };
    assert_eq!(asker.get("/before").status(), 502);
    assert_eq!(asked.load(Ordering::SeqCst), 3 + tries);
}

fn a_server_that_breaks_off_in_its_body_breaks_the_answer(mix: Mix) {
    let (address, _, _backend) = breaking(mix);
    let gateway = mix.gateway(address);
    for (at, target) in ["/length", "/chunked"].iter().enumerate() {
        let broken = mix.asker(&gateway).attempt(&Ask::get(target)).unwrap_err();
        match mix.client {
            Http::One => assert!(
                broken.contains("closed in the middle of a body") || broken.contains("without its CRLF"),
                "{broken}"
            ),
            Http::Two => assert!(broken.contains("unexpected internal error"), "{broken}"),
        }
        wait_outcome(&gateway, "upstream-error", at + 1);
    }
}

/// A server that never answers, and tells how each request ended.
fn silent(mix: Mix, answers: bool) -> (std::net::SocketAddr, mpsc::Receiver<String>, Option<Backend>) {
    let (tell, told) = mpsc::sync_channel(1000);
    if mix.server == Http::One {
        let backend = Backend::scripted(move |wire, _| {
            drop(wire.head());
            tell.send("asked".to_owned()).unwrap();
            if answers {
                wire.send("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nbegun");
            }
            let cut = wire.is_cut();
            tell.send(if cut { "CANCEL".to_owned() } else { "nothing".to_owned() }).unwrap();
        });
        return (backend.address, told, Some(backend));
    }
    let (address, _) = scripted(move |request, mut respond, _, _| {
        let tell = tell.clone();
        async move {
            // Held, so that no window opens and nothing is said by dropping it.
            let _request = request;
            tell.send("asked".to_owned()).unwrap();
            let reason = if answers {
                let mut send = respond.send_response(Response::new(()), false).unwrap();
                pour(&mut send, b"begun", false).await.unwrap();
                soon(std::future::poll_fn(|cx| send.poll_reset(cx))).await
            } else {
                soon(std::future::poll_fn(|cx| respond.poll_reset(cx))).await
            };
            tell.send(reason.map_or_else(|error| error.to_string(), |reason| format!("{reason:?}"))).unwrap();
        }
    });
    (address, told, None)
}

fn a_client_that_goes_away_is_cancelled_at_the_server(mix: Mix) {
    best_of_three(|| {
        for (answers, ask) in [(false, Ask::get("/")), (false, Ask::post("/", "body")), (true, Ask::get("/"))] {
            let (address, told, _backend) = silent(mix, answers);
            let gateway = mix.gateway(address);
            go_away(mix, &gateway, &ask, &told);
            let started = Instant::now();
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "CANCEL", "{ask:?}");
            assert_took(started, 0..5000);
            wait_outcome(&gateway, "client-gone", 1);
        }
    });
}

fn a_client_that_goes_away_in_an_upload_that_nobody_reads_is_noticed(mix: Mix) {
    for has_no_length in [false, true] {
        let (address, told, _backend) = silent(mix, false);
        let gateway = mix.gateway(address);
        // More than all buffers on the way hold, those of the kernel too.
        let ask = Ask { has_no_length, ..Ask::post("/", vec![b'b'; 24 << 20]) };
        go_away(mix, &gateway, &ask, &told);
        assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "CANCEL", "{has_no_length}");
        wait_outcome(&gateway, "client-gone", 1);
    }
}

/// Asks, and goes away without having read an answer: over HTTP/2 it resets the stream alone.
fn go_away(mix: Mix, gateway: &Gateway, ask: &Ask, told: &mpsc::Receiver<String>) {
    let body = ask.body.clone().unwrap_or_default();
    match mix.client {
        Http::One => {
            let wire = Wire::open(gateway.address());
            let framing = match (&ask.body, ask.has_no_length) {
                (None, _) => String::new(),
                (Some(body), false) => format!("Content-Length: {}\r\n", body.len()),
                (Some(body), true) => format!("Transfer-Encoding: chunked\r\n\r\n{:x}", body.len()),
            };
            wire.send(format!("{} / HTTP/1.1\r\nHost: h\r\n{framing}\r\n", ask.method));
            wire.stream().set_write_timeout(Some(Duration::from_secs(1))).unwrap();
            wire.send(&body);
            assert_eq!(told.recv_timeout(PATIENCE).unwrap(), "asked");
            wire.reset();
        }
        Http::Two => runtime().block_on(async {
            let request = open_h2(gateway.address()).await;
            let mut request = request.ready().await.unwrap();
            let (response, mut send) = request.send_request(request_of(ask), ask.body.is_none()).unwrap();
            drop(tokio::time::timeout(Duration::from_secs(1), pour(&mut send, &body, false)).await);
            soon(async {
                while told.try_recv().is_err() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            send.send_reset(Reason::CANCEL);
            drop((send, response));
            // The connection stays, and is of use.
            let (response, _) = request.send_request(request_of(&Ask::get("/local")), true).unwrap();
            assert_eq!(soon(response).await.unwrap().status(), 200);
        }),
    }
}

#[test]
fn what_a_server_refuses_unseen_is_sent_again_once() {
    for mix in TO_H2 {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let (address, connections) = scripted(move |request, mut respond, connection, number| {
            count.fetch_add(1, Ordering::SeqCst);
            async move {
                let path = request.uri().path();
                if path == "/always"
                    || path == "/once" && connection == 1
                    || path == "/first" && number == 1 && connection < 3
                {
                    return respond.send_reset(Reason::REFUSED_STREAM);
                }
                drop(respond.send_response(Response::new(()), true));
            }
        });
        let gateway = mix.gateway(address);
        let mut asker = mix.asker(&gateway);
        let mut expected = 0;
        // Over a connection that is new and over one that is not.
        for (ask, status, tries) in [
            (Ask::post("/once", "body"), 200, 2),
            (Ask::get("/"), 200, 1),
            (Ask::post("/always", "body"), 502, 2),
            (Ask::get("/always"), 502, 2),
            (Ask::post("/", "body"), 200, 1),
        ] {
            assert_eq!(asker.ask(&ask).status(), status, "{ask:?}");
            expected += tries;
            assert_eq!(asked.load(Ordering::SeqCst), expected, "{ask:?}");
        }
        assert!(connections.load(Ordering::SeqCst) <= 4);
    }
}

#[test]
fn a_connection_whose_server_has_gone_mute_gets_no_more_requests() {
    for mix in TO_H2 {
        let (address, connections) = scripted(|_, mut respond, connection, number| async move {
            if connection == 1 && number > 1 {
                std::future::pending::<()>().await;
            }
            drop(respond.send_response(Response::new(()), true));
        });
        let gateway = Gateway::start(&mix.rules(address, "timeout = \"300ms\"\n", ""));
        let mut asker = mix.asker(&gateway);
        for status in [200, 504, 200, 200] {
            assert_eq!(asker.ask(&Ask::get("/")).status(), status);
        }
        assert_eq!(connections.load(Ordering::SeqCst), 2);
    }
}

/// The frames that a client of HTTP/2 sends, and those that are written to it.
struct Frames<'w>(&'w mut Wire);

impl Frames<'_> {
    /// Past the preface; our settings are sent.
    fn begin(wire: &mut Wire) -> Frames<'_> {
        Self::begin_with(wire, &[])
    }

    fn begin_with<'w>(wire: &'w mut Wire, settings: &[u8]) -> Frames<'w> {
        assert_eq!(wire.take(24).unwrap(), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        let frames = Frames(wire);
        frames.send(4, 0, 0, settings);
        frames
    }

    fn send(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> bool {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        self.0.send([&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat())
    }

    /// The next stream that is opened.
    fn next_stream(&mut self) -> Option<u32> {
        loop {
            let head = self.0.take(9).ok()?;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            self.0.take(length as usize).ok()?;
            match head[3] {
                1 => return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]])),
                4 if head[4] == 0 => drop(self.send(4, 1, 0, &[])),
                6 => drop(self.send(6, 1, 0, &[0; 8])),
                _ => {}
            }
        }
    }

    /// `:status: 200` and nothing else.
    fn answer(&self, stream: u32) {
        self.send(1, 5, stream, &[0x88]);
    }

    fn go_away(&self, last: u32, reason: u32) {
        self.send(7, 0, 0, &[last.to_be_bytes(), reason.to_be_bytes()].concat());
    }
}

#[test]
fn what_a_server_that_goes_away_has_not_seen_is_sent_again_once() {
    for mix in TO_H2 {
        for (method, answered) in [("POST", 0), ("POST", 1), ("GET", 1)] {
            // The first connection answers so many, says that it goes away before the next, and closes.
            let backend = Backend::scripted(move |wire, number| {
                let mut frames = Frames::begin(wire);
                let mut streams = 0;
                while let Some(stream) = frames.next_stream() {
                    streams += 1;
                    if number == 1 && streams > answered {
                        frames.go_away(stream.saturating_sub(2), 0);
                        // What it has sent is read: unread bytes would make the kernel reset the connection, and what
                        // was said last would be lost.
                        wire.finish();
                        assert!(wire.is_cut());
                        return;
                    }
                    frames.answer(stream);
                }
            });
            let gateway = mix.gateway(backend.address);
            let mut asker = mix.asker(&gateway);
            for _ in 0..answered {
                assert_eq!(asker.get("/").status(), 200);
            }
            let ask = Ask { method, body: (method == "POST").then(|| b"body".to_vec()), ..Ask::get("/again") };
            assert_eq!(asker.ask(&ask).status(), 200, "{mix:?} {method} {answered}, {:?}", backend.connections);
            assert_eq!(backend.connections.load(Ordering::SeqCst), 2);
        }
    }
}

#[test]
fn what_a_server_that_goes_away_may_have_seen_is_not_sent_again() {
    for mix in TO_H2 {
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        let backend = Backend::scripted(move |wire, _| {
            let mut frames = Frames::begin(wire);
            while let Some(stream) = frames.next_stream() {
                if count.fetch_add(1, Ordering::SeqCst) > 0 {
                    frames.go_away(stream, 0);
                    return;
                }
                frames.answer(stream);
            }
        });
        let gateway = mix.gateway(backend.address);
        let mut asker = mix.asker(&gateway);
        assert_eq!(asker.get("/").status(), 200);
        assert_eq!(asker.ask(&Ask::post("/", "body")).status(), 502);
        assert_eq!(asked.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_connection_that_was_told_to_go_away_finishes_and_gets_no_more() {
    for mix in TO_H2 {
        let (go_on, held) = mpsc::sync_channel::<()>(1);
        let held = std::sync::Mutex::new(held);
        let (tell, told) = mpsc::sync_channel::<()>(1);
        let backend = Backend::scripted(move |wire, number| {
            let mut frames = Frames::begin(wire);
            while let Some(stream) = frames.next_stream() {
                if number == 1 {
                    frames.go_away(stream, 0);
                    tell.send(()).unwrap();
                    held.lock().unwrap().recv_timeout(PATIENCE).unwrap();
                }
                frames.answer(stream);
            }
        });
        let gateway = mix.gateway(backend.address);
        std::thread::scope(|scope| {
            let slow = scope.spawn(|| mix.asker(&gateway).get("/slow").status());
            told.recv_timeout(PATIENCE).unwrap();
            for _ in 0..3 {
                assert_eq!(mix.asker(&gateway).get("/next").status(), 200);
            }
            go_on.send(()).unwrap();
            assert_eq!(slow.join().unwrap(), 200);
        });
        assert_eq!(backend.wait_closed(), 1, "it is closed once its last answer has come");
        assert_eq!(backend.connections.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_server_that_takes_few_at_once_gets_more_connections() {
    for max_streams in [1, 2] {
        let most = Arc::new(AtomicUsize::new(0));
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&most));
        let origin = Origin::narrow(max_streams, move |request| {
            peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(2));
            now.fetch_sub(1, Ordering::SeqCst);
            Told::ok(request.target())
        });
        let gateway = TO_H2[1].gateway(origin.address);
        // Fewer than there may be connections.
        let answers = all_at_once(gateway.address(), 40, |at| Ask::post(&format!("/{at}"), "body"));
        for (at, answer) in answers.iter().enumerate() {
            assert_eq!((answer.status(), answer.text()), (200, format!("/{at}")));
        }
        let accepted = origin.accepted();
        assert!((2..=40).contains(&accepted), "{accepted}");
        assert_eq!(origin.seen.lock().unwrap().len(), 40, "none was refused");
    }
}

#[test]
fn a_server_that_never_says_its_settings_is_unreachable() {
    let backend = Backend::scripted(|wire, _| assert!(wire.is_cut()));
    for mix in TO_H2 {
        let rules = mix
            .rules(backend.address, "", "")
            .replace("protocol = \"h2\"", "protocol = \"h2\"\nconnect_timeout = \"300ms\"");
        let gateway = Gateway::start(&rules);
        assert_eq!(mix.asker(&gateway).ask(&Ask::post("/", "body")).status(), 502);
    }
}

#[test]
fn a_turn_to_connect_is_no_part_of_connect_timeout() {
    for mix in TO_H2 {
        // Each connection carries one request at once, until three are here. A turn comes every half second.
        let asked = AtomicUsize::new(0);
        let backend = Backend::scripted(move |wire, _| {
            let mut frames = Frames::begin_with(wire, &[0, 3, 0, 0, 0, 1]);
            while let Some(stream) = frames.next_stream() {
                asked.fetch_add(1, Ordering::SeqCst);
                assert!(eventually(|| asked.load(Ordering::SeqCst) >= 3));
                frames.answer(stream);
            }
        });
        let rules = mix
            .rules(backend.address, "", "")
            .replace("protocol = \"h2\"", "protocol = \"h2\"\nconnect_timeout = \"400ms\"\nconnect_rate = \"2/s\"");
        let gateway = Gateway::start(&rules);
        let answers = all_at_once(gateway.address(), 5, |_| Ask::post("/", "body"));
        assert!(answers.iter().all(|answer| answer.status() == 200), "{mix:?}");
        // Two have waited for a turn and two for a request to end, not only whoever was to connect.
        gateway.wait_metric("sluicegate_upstream_connect_waits_total", &[], 4.0);
    }
}

#[test]
fn the_end_of_a_stream_makes_room_for_who_waits_for_a_turn() {
    for mix in TO_H2 {
        let backend = Backend::scripted(|wire, _| {
            let mut frames = Frames::begin_with(wire, &[0, 3, 0, 0, 0, 1]);
            while let Some(stream) = frames.next_stream() {
                frames.answer(stream);
            }
        });
        let rules = mix
            .rules(backend.address, "timeout = \"15s\"", "")
            .replace("protocol = \"h2\"", "protocol = \"h2\"\nconnect_rate = \"1/m\"");
        let gateway = Gateway::start(&rules);
        let answers = all_at_once(gateway.address(), 20, |_| Ask::post("/", "body"));
        assert!(answers.iter().all(|answer| answer.status() == 200));
        assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn a_server_of_http_1_is_a_502() {
    let backend =
        Backend::scripted(|wire, _| assert!(wire.send("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")));
    for mix in TO_H2 {
        assert_eq!(mix.asker(&mix.gateway(backend.address)).get("/").status(), 502);
    }
}

#[test]
fn a_long_life_of_resets_pings_and_small_answers_is_no_flood() {
    const EACH: usize = 1500;
    let backend = Backend::scripted(|wire, _| {
        let mut frames = Frames::begin(wire);
        while let Some(stream) = frames.next_stream() {
            for _ in 0..5 {
                frames.send(6, 0, 0, &[7; 8]);
            }
            frames.send(8, 0, 0, &1_u32.to_be_bytes());
            // RST_STREAM with INTERNAL_ERROR.
            frames.send(3, 0, stream, &2_u32.to_be_bytes());
        }
    });
    let gateway = TO_H2[0].gateway(backend.address);
    let mut asker = Asker::open(Http::One, gateway.address());
    for _ in 0..EACH {
        assert_eq!(asker.ask(&Ask::post("/", "body")).status(), 502);
    }
    assert_eq!(backend.connections.load(Ordering::SeqCst), 1);
}

/// A server that answers by its target: `/empty` or a body of four bytes, with trailers beside its length, of which
/// `/announced` and `/grpc` speak before.
fn with_length_and_trailers() -> std::net::SocketAddr {
    let (address, _) = scripted(|request, mut respond, _, _| async move {
        let body: &[u8] = if request.uri().path() == "/empty" { b"" } else { b"body" };
        let head = Response::builder().header("content-length", body.len());
        let head = match request.uri().path() {
            "/announced" => head.header("trailer", "x-sum"),
            "/grpc" => head.header("content-type", "application/grpc+proto"),
            _ => head,
        };
        let mut send = respond.send_response(head.body(()).unwrap(), false).unwrap();
        pour(&mut send, body, false).await.unwrap();
        if request.uri().path() == "/none" {
            send.send_data(Bytes::new(), true).unwrap();
        } else {
            send.send_trailers(header_map(&fields(&[("x-sum", "7")]))).unwrap();
        }
    });
    address
}

#[test]
fn trailers_beside_a_length_pass_with_it_between_two_sides_of_http_2() {
    let mix = Mix { client: Http::Two, server: Http::Two };
    let gateway = mix.gateway(with_length_and_trailers());
    let mut asker = mix.asker(&gateway);
    for target in ["/", "/empty", "/announced", "/grpc", "/none"] {
        let answer = asker.get(target);
        let body = if target == "/empty" { "" } else { "body" };
        let trailers = if target == "/none" { vec![] } else { fields(&[("x-sum", "7")]) };
        assert_eq!((answer.text().as_str(), &answer.trailers), (body, &trailers), "{target}: {answer:?}");
        assert_eq!(answer.all("content-length"), [body.len().to_string()], "{target}: {answer:?}");
    }
}

#[test]
fn a_client_of_http_1_gets_trailers_in_place_of_a_length_if_it_wants_them_and_some_are_to_come() {
    let mix = Mix { client: Http::One, server: Http::Two };
    let gateway = mix.gateway(with_length_and_trailers());
    let mut asker = mix.asker(&gateway);
    for (target, te, has_trailers) in [
        ("/announced", "gzip;q=0.5, Trailers", true),
        ("/grpc", "trailers", true),
        ("/", "trailers", false),
        ("/empty", "trailers", false),
        ("/announced", "gzip", false),
        ("/grpc", "", false),
    ] {
        let answer = asker.ask(&Ask::get(target).with(&[("te", te), ("connection", "te")]));
        let body = if target == "/empty" { "" } else { "body" };
        assert_eq!((answer.text().as_str(), answer.trailers.len()), (body, usize::from(has_trailers)), "{answer:?}");
        let length = if has_trailers { vec![] } else { vec![body.len().to_string()] };
        assert_eq!(answer.all("content-length"), length, "{target} {te:?}: {answer:?}");
    }
    let mut old = Wire::open(gateway.address());
    old.send("GET /announced HTTP/1.0\r\nHost: h\r\nTE: trailers\r\n\r\n");
    let answer = old.response("GET").unwrap();
    assert_eq!((answer.text().as_str(), answer.all("content-length"), answer.is_chunked()), ("body", vec!["4"], false));
}

#[test]
fn a_length_beside_which_trailers_may_come_is_seen_by_limits_and_not_believed_in() {
    let (address, _) = scripted(|request, mut respond, _, _| async move {
        let head = Response::builder().header("content-length", 9).body(()).unwrap();
        let mut send = respond.send_response(head, false).unwrap();
        let body: &[u8] = if request.uri().path() == "/short" { b"short" } else { b"nine byte" };
        pour(&mut send, body, false).await.unwrap();
        drop(send.send_trailers(header_map(&fields(&[("x-sum", "7")]))));
    });
    let mix = Mix { client: Http::Two, server: Http::Two };
    let limit = "limits = [\"bytes\"]";
    let more = "[[limit]]\nname = \"bytes\"\nkey = \"client-ip\"\nrate = \"10/h\"\n\
                cost_from_response = \"header:content-length\"\n";
    let gateway = Gateway::start(&mix.rules(address, limit, more));
    let mut asker = mix.asker(&gateway);
    assert_eq!(asker.get("/").text(), "nine byte");
    assert!(asker.attempt(&Ask::get("/short")).is_err(), "less than its length says");
    assert_eq!(asker.get("/").status(), 429, "eighteen of ten");
}

#[test]
fn streams_of_one_connection_do_not_wait_for_each_other() {
    // More than the windows of 20 streams hold.
    const LARGE: usize = 4 << 20;
    const SLOW: usize = 20;
    for mix in TO_H2 {
        let origin = Origin::start(Http::Two, |request| match request.target() {
            "/large" => Told::ok(vec![b'x'; LARGE]),
            target => Told::ok(target),
        });
        let gateway = mix.gateway(origin.address);
        runtime().block_on(async {
            // Each of a client that reads the head and then nothing: as one connection would, they must not fill the one
            // to the server.
            let mut held = Vec::new();
            for _ in 0..SLOW {
                let request = open_h2(gateway.address()).await;
                let mut request = request.ready().await.unwrap();
                let (mut response, _) = request.send_request(request_of(&Ask::get("/large")), true).unwrap();
                let Head::Final(head, recv) = soon(next_head(&mut response)).await.unwrap() else { panic!("interim") };
                assert_eq!(head.status(), 200);
                held.push((request, recv));
            }
            // What can come has come.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let address = gateway.address();
            let quick = std::thread::spawn(move || Asker::open(mix.client, address).get("/quick").text());
            while !quick.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(quick.join().unwrap(), "/quick");
            let first = held[0].0.clone().ready().await.unwrap().send_request(request_of(&Ask::get("/quick")), true);
            assert_eq!(soon(first.unwrap().0).await.unwrap().status(), 200, "over the client's own connection too");
        });
        assert_eq!(origin.accepted(), 1);
    }
}
