//! Frames that cost their sender nothing. Each attack meets a bound, is told so, is counted, and leaves the gateway as
//! it was: it answers others, and its memory is no larger.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_below, assert_took, best_of_three};
use crate::wire::{Wire, front, ok, rules, settle, telling};

use super::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, ENHANCE_YOUR_CALM, Ending, FLOW_CONTROL_ERROR, Fields, HEADERS,
    NO_ERROR, PADDED, PING, PRIORITY, PROTOCOL_ERROR, REFUSED_STREAM, RESET, Raw, SETTINGS, WHOLE, WINDOW, block,
    frame, integer, request, request_with,
};

/// The memory that an attack may leave behind, in bytes.
const MOST: u64 = 24 << 20;

/// The most that an attack may make the gateway work.
const MOST_WORK: Duration = Duration::from_secs(15);

/// Takes requests and says nothing; counts the heads that came.
pub fn silent() -> (Backend, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heads);
    let backend = Backend::scripted(move |wire, _| {
        if wire.head().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
            drop(wire.rest());
        }
    });
    (backend, heads)
}

/// Sends frames, many at once, until the other side takes no more.
fn pour(raw: &mut Raw, count: usize, mut next: impl FnMut(usize) -> Vec<u8>) {
    let mut sent = 0;
    while sent < count {
        let size = 200.min(count - sent);
        let bytes: Vec<u8> = (sent..sent + size).flat_map(&mut next).collect();
        if !raw.send_bytes(&bytes) {
            return;
        }
        sent += size;
    }
}

struct Before {
    resident: u64,
    worked: Duration,
}

fn before(gateway: &Gateway) -> Before {
    settle(gateway);
    drop(Raw::open(gateway.address()).ask("/local"));
    Before { resident: gateway.resident(), worked: gateway.worked() }
}

/// Others are answered at once, nothing is left of the attack.
fn assert_unharmed(gateway: &Gateway, before: &Before, what: &str) {
    best_of_three(|| {
        let asked = Instant::now();
        assert_eq!(Wire::open(gateway.address()).get("/local").text(), "local\n");
        assert_eq!(Raw::open(gateway.address()).ask("/local").0, 200);
        assert_below(asked.elapsed(), Duration::from_secs(2), what);
    });
    let grown = gateway.resident().saturating_sub(before.resident);
    assert!(grown < MOST, "{what}: grew by {grown} bytes");
    // On the processor, since the machine may be busy with others.
    let worked = gateway.worked().saturating_sub(before.worked);
    assert!(worked < MOST_WORK, "{what}: {worked:?} of work");
}

/// An attack that the counters of frames end.
fn assert_flood(what: &str, kind: &str, count: usize, next: impl FnMut(usize) -> Vec<u8>) {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    pour(&mut raw, count, next);
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM), "{what}");
    gateway.wait_metric("sluicegate_http2_floods_total", &[&format!("\"{kind}\"")], 1.0);
    gateway.wait_metric("sluicegate_http2_floods_total", &[], 1.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_unharmed(&gateway, &before, what);
    assert_eq!(heads.load(Ordering::SeqCst), 0, "{what}");
}

#[test]
fn pings() {
    assert_flood("pings", "pings", 20_000, |number| frame(PING, 0, 0, &(number as u64).to_be_bytes()));
}

#[test]
fn settings() {
    assert_flood("empty settings", "settings", 20_000, |_| frame(SETTINGS, 0, 0, &[]));
}

#[test]
fn settings_with_many_entries() {
    // 2,700 entries a frame. Each frame counts once, and fills a frame's room.
    let entry = [0, 4, 0, 0, 0xFF, 0xFF];
    let payload = entry.repeat(2700);
    assert_flood("settings with many entries", "settings", 3000, |_| frame(SETTINGS, 0, 0, &payload));
}

#[test]
fn settings_that_change_the_window_of_many_streams() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    for _ in 0..100 {
        raw.get("/slow");
    }
    assert!(eventually(|| heads.load(Ordering::SeqCst) == 100));
    pour(&mut raw, 20_000, |number| {
        frame(SETTINGS, 0, 0, &[&[0, 4][..], &u32::try_from(number + 1).unwrap().to_be_bytes()].concat())
    });
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric("sluicegate_http2_floods_total", &["\"settings\""], 1.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    for _ in 0..100 {
        backend.wait_closed();
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_unharmed(&gateway, &before, "settings of many streams");
}

#[test]
fn priorities() {
    assert_flood("priorities", "priorities", 20_000, |number| {
        let stream = u32::try_from(number % 1000).unwrap() * 2 + 1;
        frame(PRIORITY, 0, stream, &[0, 0, 0, 0, 16])
    });
}

#[test]
fn frames_of_unknown_types() {
    assert_flood("unknown frames", "unknown-frames", 20_000, |number| {
        frame(0xF0, 0, u32::try_from(number % 7).unwrap(), b"x")
    });
}

#[test]
fn window_updates_of_one() {
    assert_flood("window updates", "window-updates", 20_000, |_| frame(WINDOW, 0, 0, &1_u32.to_be_bytes()));
}

/// A flood that needs a stream which is open.
fn assert_flood_of_a_stream(kind: &str, code: u32, count: usize, next: impl Fn(u32) -> Vec<u8>) {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &request("POST", "/up"));
    assert!(eventually(|| heads.load(Ordering::SeqCst) == 1));
    pour(&mut raw, count, |_| next(id));
    assert_eq!(raw.goaway(), Some(code), "{kind}");
    let is_counted = || {
        let floods = gateway.metric("sluicegate_http2_floods_total", &[&format!("\"{kind}\"")]);
        floods + gateway.metric("sluicegate_http2_connection_errors_total", &["\"enhance-your-calm\""]) > 0.5
    };
    assert!(eventually(is_counted), "{kind}");
    // What it had asked for is given up with it.
    backend.wait_closed();
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_unharmed(&gateway, &before, kind);
}

#[test]
fn empty_data() {
    assert_flood_of_a_stream("empty-frames", ENHANCE_YOUR_CALM, 20_000, |id| frame(DATA, 0, id, b""));
}

#[test]
fn data_of_nothing_but_padding() {
    assert_flood_of_a_stream("empty-frames", ENHANCE_YOUR_CALM, 20_000, |id| frame(DATA, PADDED, id, &[0]));
    assert_flood_of_a_stream("empty-frames", ENHANCE_YOUR_CALM, 20_000, |id| {
        frame(DATA, PADDED, id, &[&[8][..], &[0; 8]].concat())
    });
}

#[test]
fn data_of_one_byte_that_nobody_reads_takes_no_more_room_than_its_bytes() {
    let (backend, heads) = silent_and_deaf();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    let ids: Vec<u32> = (0..100).map(|_| raw.headers(END_HEADERS, &request("POST", "/up"))).collect();
    assert!(eventually(|| heads.load(Ordering::SeqCst) == 100));
    // A frame for each byte. They fit into the windows, so they are no fault; what they carry is two megabytes.
    pour(&mut raw, 2_000_000, |number| frame(DATA, 0, ids[number % 100], b"x"));
    assert_unharmed(&gateway, &before, "data of one byte");
    assert!(raw.is_open(ids[7]));
    raw.close();
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    assert_unharmed(&gateway, &before, "data of one byte, and its end");
}

/// Takes heads and then reads nothing.
fn silent_and_deaf() -> (Backend, Arc<AtomicUsize>) {
    let heads = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&heads);
    let backend = Backend::scripted(move |wire, _| {
        socket2::SockRef::from(wire.stream()).set_recv_buffer_size(4096).unwrap();
        if wire.head().is_ok() {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_secs(30));
        }
    });
    (backend, heads)
}

#[test]
fn window_updates_of_one_that_each_fetch_a_byte() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() && wire.send(ok(&"x".repeat(200_000))) {});
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::with_settings(gateway.address(), &[(4, 0)]);
    raw.credits = false;
    let id = raw.get("/large");
    raw.wait(|frame| frame.kind == HEADERS);
    // Each is waited for, so that each costs a frame of data; there are more of them than the store holds.
    let started = Instant::now();
    let mut came = 0;
    for _ in 0..30_000 {
        if !raw.window(id, 1) {
            break;
        }
        match raw.read() {
            Some(frame) if frame.kind == DATA => came += frame.payload.len(),
            _ => break,
        }
    }
    let allowed = 2500 + 100 * usize::try_from(started.elapsed().as_secs()).unwrap();
    assert!(came < allowed, "{came} bytes, each in a frame of its own");
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric("sluicegate_http2_floods_total", &["\"window-updates\""], 1.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert_unharmed(&gateway, &before, "window updates that fetch");
}

#[test]
fn windows_that_follow_what_is_read_are_no_flood() {
    let backend = Backend::scripted(|wire, _| {
        while wire.request().is_ok() {
            wire.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n");
            for _ in 0..6000 {
                if !wire.send("1\r\nx\r\n") {
                    return;
                }
            }
            wire.send("0\r\n\r\n");
        }
    });
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    // This client says two updates for each frame, as small as the frame was.
    let (status, body) = raw.ask("/small-frames");
    assert_eq!((status, body.len()), (200, 6000));
    gateway.wait_metric("sluicegate_http2_floods_total", &[], 0.0);
}

#[test]
fn continuations_without_end() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    for piece in
        [&b""[..], &[0, 1, b'a', 1, b'b'].repeat(100), &[0x82].repeat(16_000), &[0, 1, b'a', 1, b'b'].repeat(3000)]
    {
        let before = before(&gateway);
        let mut raw = Raw::open(gateway.address());
        raw.send(HEADERS, END_STREAM, 1, &block(&request("GET", "/")));
        pour(&mut raw, 50_000, |_| frame(CONTINUATION, 0, 1, piece));
        let code = raw.goaway();
        assert!(matches!(code, Some(ENHANCE_YOUR_CALM | PROTOCOL_ERROR)), "{} bytes: {code:?}", piece.len());
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        assert_unharmed(&gateway, &before, "continuations");
    }
    let floods = gateway.metric("sluicegate_http2_floods_total", &[]);
    let errors = gateway.metric("sluicegate_http2_connection_errors_total", &[]);
    assert!(floods + errors > 3.5, "{floods} floods, {errors} errors");
    assert_eq!(heads.load(Ordering::SeqCst), 0);
}

#[test]
fn a_rapid_reset_is_stopped_after_a_bounded_number_of_requests() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    let fields = block(&request("GET", "/"));
    pour(&mut raw, 10_000, |number| {
        let id = u32::try_from(number).unwrap() * 2 + 1;
        [frame(HEADERS, WHOLE, id, &fields), frame(RESET, 0, id, &8_u32.to_be_bytes())].concat()
    });
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    let floods = gateway.metric("sluicegate_http2_floods_total", &["\"resets\""]);
    let errors = gateway.metric("sluicegate_http2_connection_errors_total", &["\"enhance-your-calm\""]);
    assert!(floods + errors > 0.5, "{floods} floods, {errors} errors");
    // 1,000, and 100 a second.
    assert!(heads.load(Ordering::SeqCst) <= 2_000, "{} requests", heads.load(Ordering::SeqCst));
    assert_unharmed(&gateway, &before, "rapid reset");
}

#[test]
fn a_slower_reset_of_requests_that_are_under_way_is_stopped_too() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    for number in 0..10_000 {
        let id = raw.get("/");
        // Each has got as far as the server.
        if number < 1_200 && !eventually(|| heads.load(Ordering::SeqCst) > number || gateway_is_done(&gateway, number))
        {
            break;
        }
        if !raw.reset(id, 8) || gateway_is_done(&gateway, number) {
            break;
        }
    }
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric("sluicegate_http2_floods_total", &["\"resets\""], 1.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    let taken = heads.load(Ordering::SeqCst);
    assert!((900..=2_000).contains(&taken), "{taken} requests");
    assert_unharmed(&gateway, &before, "slow reset");
}

#[test]
fn interim_responses_wait_for_a_client_that_does_not_read() {
    let backend = Backend::scripted(|wire, _| {
        if wire.request().is_ok() {
            let interim = format!("HTTP/1.1 103 Early Hints\r\nx-a: {}\r\n\r\n", "v".repeat(1000)).repeat(100);
            while wire.send(&interim) {}
        }
    });
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    for _ in 0..4 {
        raw.get("/hints");
    }
    // As much as it could have sent in that time, were it let.
    std::thread::sleep(Duration::from_secs(1));
    assert_unharmed(&gateway, &before, "interim responses");
    // And they go on where they are read.
    let mut heads = 0;
    while heads < 20_000 {
        heads += usize::from(raw.read().unwrap().kind == HEADERS);
        raw.seen.clear();
    }
    raw.close();
    backend.wait_closed();
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
}

#[test]
fn uploads_that_nobody_read_leave_no_room_behind() {
    let backend = Backend::scripted(|wire, _| while wire.request().is_ok() && wire.send(ok("taken")) {});
    let gateway = Gateway::start(&rules(&backend, "", "max_body_size = \"1MiB\""));
    let before = before(&gateway);
    let mut raws: Vec<Raw> = (0..3).map(|_| Raw::open(gateway.address())).collect();
    for raw in &mut raws {
        let ids: Vec<u32> = (0..100).map(|_| raw.headers(END_HEADERS, &request("POST", "/up"))).collect();
        for id in &ids {
            for _ in 0..15 {
                raw.send(DATA, 0, *id, &[b'x'; 16_000]);
            }
            raw.send(DATA, END_STREAM, *id, b"");
        }
        for id in ids {
            assert!(matches!(raw.ending(id), Ending::Answered(200, _)));
        }
    }
    assert_unharmed(&gateway, &before, "uploads");
    assert!(raws.iter_mut().all(|raw| raw.ask("/local").0 == 200));
}

/// In front of a server that says nothing, and of one that answers `/served`.
pub fn front_with_served(backend: &Backend, client: &str) -> Gateway {
    let served = "[[upstream]]\nname = \"served\"\nservers = [\"echo:a\"]\n\
                  [[route]]\nname = \"served\"\npath = \"/served\"\nupstream = \"served\"\n";
    Gateway::start(&format!("{}{served}{client}", rules(backend, "", "")))
}

#[test]
fn who_gives_up_one_request_in_three_is_no_flood() {
    let (backend, _) = silent();
    let gateway = front_with_served(&backend, "");
    let mut raw = Raw::open(gateway.address());
    for _ in 0..1_500 {
        let given_up = raw.get("/slow");
        assert_eq!(raw.ask("/served").0, 200);
        assert_eq!(raw.ask("/served").0, 200);
        raw.reset(given_up, 8);
        raw.seen.clear();
    }
    assert_eq!(raw.ask("/local").0, 200);
    gateway.wait_metric("sluicegate_http2_floods_total", &[], 0.0);
}

/// So many requests, each with two before it that are answered, and reset at once.
fn cancel_beside_answers(raw: &mut Raw, count: usize, answered: &str) -> bool {
    let (asked, slow) = (block(&request("GET", answered)), block(&request("GET", "/slow")));
    let mut bytes = Vec::new();
    for _ in 0..count {
        for _ in 0..2 {
            bytes.extend(frame(HEADERS, WHOLE, raw.stream_id(), &asked));
        }
        let id = raw.stream_id();
        bytes.extend([frame(HEADERS, WHOLE, id, &slow), frame(RESET, 0, id, &8_u32.to_be_bytes())].concat());
    }
    raw.send_bytes(&bytes);
    let is_over = raw.goaway_or_quiet() == Some(ENHANCE_YOUR_CALM);
    raw.seen.clear();
    is_over
}

#[test]
fn answers_of_the_gateway_itself_pay_for_no_request_that_is_given_up() {
    let (backend, heads) = silent();
    let gateway = front_with_served(&backend, "");
    let mut raw = Raw::open(gateway.address());
    assert!((0..400).any(|_| cancel_beside_answers(&mut raw, 30, "/local")));
    gateway.wait_metric("sluicegate_http2_floods_total", &["\"resets\""], 1.0);
    // 1,000, and 100 a second.
    assert!(heads.load(Ordering::SeqCst) <= 4_000, "{} requests", heads.load(Ordering::SeqCst));
}

#[test]
fn a_load_balancer_may_give_up_more_than_one_client() {
    let (backend, _) = silent();
    let gateway = front_with_served(&backend, "[client]\ntrusted_proxies = [\"127.0.0.1\"]\n");
    let mut raw = Raw::open(gateway.address());
    for _ in 0..100 {
        assert!(!cancel_beside_answers(&mut raw, 30, "/local"), "3,000 of many clients");
    }
    assert_eq!(raw.ask("/served").0, 200);
}

fn gateway_is_done(gateway: &Gateway, number: usize) -> bool {
    number > 900 && gateway.metric("sluicegate_http2_floods_total", &[]) > 0.5
}

type Attack = (&'static str, fn(u32) -> Vec<u8>);

/// Frames that make the gateway reset a stream itself: CVE-2025-8671.
#[test]
fn resets_that_the_gateway_is_made_to_send_are_bounded() {
    let illegal: [Attack; 5] = [
        ("a window update of nothing", |id| frame(WINDOW, 0, id, &0_u32.to_be_bytes())),
        ("a window that is too large", |id| frame(WINDOW, 0, id, &0x7FFF_FFFF_u32.to_be_bytes()).repeat(2)),
        ("data behind the end", |id| frame(DATA, END_STREAM, id, b"more")),
        ("fields behind the end", |id| frame(HEADERS, WHOLE, id, &block(&request("GET", "/")))),
        ("a priority that depends on itself", |id| frame(PRIORITY, 0, id, &[&id.to_be_bytes()[..], &[16]].concat())),
    ];
    for (what, illegal) in illegal {
        let (backend, heads) = silent();
        let gateway = front(&backend);
        let before = before(&gateway);
        let mut raw = Raw::open(gateway.address());
        let fields = block(&request("GET", "/"));
        pour(&mut raw, 10_000, |number| {
            let id = u32::try_from(number).unwrap() * 2 + 1;
            [frame(HEADERS, WHOLE, id, &fields), illegal(id)].concat()
        });
        let code = raw.goaway();
        assert!(code.is_some_and(|code| code != NO_ERROR), "{what}: {code:?}");
        gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
        let floods = gateway.metric("sluicegate_http2_floods_total", &[]);
        let errors = gateway.metric("sluicegate_http2_connection_errors_total", &[]);
        assert!(floods + errors > 0.5, "{what}");
        assert!(heads.load(Ordering::SeqCst) <= 2_000, "{what}: {} requests", heads.load(Ordering::SeqCst));
        assert_unharmed(&gateway, &before, what);
    }
}

#[test]
fn a_bomb_of_references_to_a_large_entry_costs_no_more_than_it_weighs() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    // An entry of 3,900 bytes into the table, then 15,000 references to it: 58 MB of fields in each request.
    let mut first = block(&request("GET", "/bomb"));
    first.push(0x40);
    integer(&mut first, 0, 127, 1);
    first.push(b'a');
    integer(&mut first, 0, 127, 3900);
    first.extend_from_slice(&[b'b'; 3900]);
    first.extend_from_slice(&[0xBE; 10_000]);
    let mut again = block(&request("GET", "/bomb"));
    again.extend_from_slice(&[0xBE; 15_000]);
    pour(&mut raw, 2000, |number| {
        let id = u32::try_from(number).unwrap() * 2 + 1;
        frame(HEADERS, WHOLE, id, if number == 0 { &first } else { &again })
    });
    // Either each is refused or the connection ends, which who still sends may learn by a reset alone.
    let code = raw.goaway_or_quiet();
    let refused = raw.seen.iter().filter(|frame| frame.kind == HEADERS || frame.kind == RESET).count();
    let ends = || gateway.metric("sluicegate_http2_floods_total", &[]) > 0.5;
    let is_over = code.is_some_and(|code| code != NO_ERROR) || code.is_none() && eventually(ends);
    assert!(refused >= 2000 || is_over, "{code:?}, {refused} refused");
    assert_eq!(heads.load(Ordering::SeqCst), 0);
    assert_unharmed(&gateway, &before, "a bomb");
}

#[test]
fn more_fields_than_a_head_may_have_are_431() {
    let backend = telling();
    let gateway = Gateway::start(&rules(&backend, "max_head_size = \"4KiB\"", ""));
    let mut raw = Raw::open(gateway.address());
    for size in [4100, 5000, 8000, 12_000, 15_000] {
        let large = "v".repeat(size);
        let id = raw.headers(WHOLE, &request_with("GET", "/large", &[("x-a", &large)]));
        let ending = raw.ending(id);
        assert!(matches!(ending, Ending::Answered(431, _)), "{size}: {ending:?}");
        assert_eq!(raw.ask("/small").1, "1 /small");
    }
    let many: Fields =
        [request("GET", "/many"), (0..130).map(|n| (format!("x-{n}").into_bytes(), b"1".to_vec())).collect()].concat();
    let id = raw.headers(WHOLE, &many);
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(431, _)), "{ending:?}");
    assert_eq!(raw.ask("/small").1, "1 /small");
    // With a body on its way.
    let large = "v".repeat(8000);
    let id = raw.headers(END_HEADERS, &request_with("POST", "/large", &[("x-a", &large)]));
    raw.send(DATA, 0, id, b"a body");
    let ending = raw.ending(id);
    assert!(matches!(ending, Ending::Answered(431, _)), "{ending:?}");
    assert_eq!(raw.ask("/small").1, "1 /small");
    assert!(backend.seen.lock().unwrap().iter().all(|seen| seen.target() == "/small"));
}

#[test]
fn streams_above_the_number_that_was_said_are_refused() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let settings = raw.wait(|frame| frame.kind == SETTINGS);
    let said = settings.payload.chunks(6).find(|entry| entry[..2] == [0, 3]).expect("it says how many streams");
    let most = u32::from_be_bytes(said[2..6].try_into().unwrap());
    let ids: Vec<u32> = (0..most + 5).map(|_| raw.get("/")).collect();
    for id in &ids[most as usize..] {
        assert_eq!(raw.ending(*id), Ending::Reset(REFUSED_STREAM));
    }
    assert!(eventually(|| heads.load(Ordering::SeqCst) == most as usize));
    assert!(raw.is_open(ids[0]));
    gateway.wait_metric("sluicegate_http2_streams_refused_total", &[], 5.0);
    // One that ends makes room for one.
    raw.reset(ids[0], 8);
    backend.wait_closed();
    raw.get("/");
    assert!(eventually(|| heads.load(Ordering::SeqCst) == most as usize + 1));
}

#[test]
fn data_beyond_the_window_ends_the_connection_or_the_stream() {
    let (backend, heads) = silent_and_deaf();
    let gateway = front(&backend);
    let before = before(&gateway);
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &request("POST", "/up"));
    assert!(eventually(|| heads.load(Ordering::SeqCst) == 1));
    let piece = [b'x'; 16_384];
    pour(&mut raw, 20_000, |_| frame(DATA, 0, id, &piece));
    match raw.ending(id) {
        Ending::Reset(code) | Ending::GoneAway(code) => assert_eq!(code, FLOW_CONTROL_ERROR),
        other => panic!("{other:?}"),
    }
    raw.close();
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    gateway.wait_metric("sluicegate_requests_in_flight", &[], 0.0);
    assert_unharmed(&gateway, &before, "data beyond the window");
}

#[test]
fn frames_that_nobody_may_send_end_the_connection_with_their_reason() {
    let backend = telling();
    let gateway = front(&backend);
    let rows: [(&str, Vec<u8>, &[u32]); 13] = [
        ("a preface of another protocol", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec(), &[]),
        ("data on a stream that is idle", frame(DATA, 0, 1, b"x"), &[PROTOCOL_ERROR]),
        ("data on no stream", frame(DATA, 0, 0, b"x"), &[PROTOCOL_ERROR]),
        ("fields on no stream", frame(HEADERS, WHOLE, 0, b"\x82"), &[PROTOCOL_ERROR]),
        ("an even stream", frame(HEADERS, WHOLE, 2, &block(&request("GET", "/"))), &[PROTOCOL_ERROR]),
        ("a continuation of nothing", frame(CONTINUATION, END_HEADERS, 1, b""), &[PROTOCOL_ERROR]),
        ("a reset of an idle stream", frame(RESET, 0, 1, &[0; 4]), &[PROTOCOL_ERROR]),
        ("a ping of 7 bytes", frame(PING, 0, 0, &[0; 7]), &[6]),
        ("settings of 5 bytes", frame(SETTINGS, 0, 0, &[0; 5]), &[6]),
        ("a window that is too large", frame(WINDOW, 0, 0, &0x7FFF_FFFF_u32.to_be_bytes()), &[FLOW_CONTROL_ERROR]),
        ("a frame that is too large", frame(DATA, 0, 1, &vec![0; 16_385]), &[6]),
        ("a reference to no entry", frame(HEADERS, WHOLE, 1, &[0xFE]), &[9]),
        ("fields that cannot be decoded", frame(HEADERS, WHOLE, 1, &[0xFF; 8]), &[9]),
    ];
    for (what, bytes, codes) in rows {
        let mut raw = if codes.is_empty() { Raw::silent(gateway.address()) } else { Raw::open(gateway.address()) };
        raw.send_bytes(&bytes);
        let code = raw.goaway();
        if codes.is_empty() {
            assert!(code.is_none_or(|code| code == PROTOCOL_ERROR), "{what}: {code:?}");
        } else {
            assert!(code.is_some_and(|code| codes.contains(&code)), "{what}: {code:?}");
        }
    }
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    assert!(gateway.metric("sluicegate_http2_connection_errors_total", &["\"protocol-error\""]) > 5.5);
    assert_eq!(backend.requests(), 0);
}

#[test]
fn many_connections_that_say_nothing_more_than_the_preface_are_closed_in_time() {
    best_of_three(|| {
        let backend = telling();
        let gateway = Gateway::start(&rules(&backend, "keep_alive_timeout = \"300ms\"\nhead_timeout = \"300ms\"", ""));
        let address: SocketAddr = gateway.address();
        let open = |bytes: &[u8]| {
            let mut raw = Raw::silent(address);
            raw.send_bytes(bytes);
            raw
        };
        let half = frame(HEADERS, END_STREAM, 1, &block(&request("GET", "/")));
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let mut all = vec![
            open(b"PRI * HTTP/2.0\r\n\r\n"),
            open(b"PRI * HTTP/2.0\r\n\r\nSM\r\n"),
            open(preface),
            open(&[&preface[..], &frame(SETTINGS, 0, 0, &[])].concat()),
            open(&[&preface[..], &frame(SETTINGS, 0, 0, &[]), &half].concat()),
            open(&[&preface[..], &frame(SETTINGS, 0, 0, &[]), &half[..12]].concat()),
        ];
        for raw in &mut all {
            let started = Instant::now();
            raw.goaway();
            assert_took(started, 0..6000);
        }
        gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    });
}
