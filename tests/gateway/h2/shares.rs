//! Bounds on one client over HTTP/2, whatever the number of its connections.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{Backend, Gateway, eventually};
use crate::wire::{front, rules, telling};

use super::flood::{front_with_served, silent};
use super::frames::{
    CANCEL, DATA, END_HEADERS, ENHANCE_YOUR_CALM, Ending, HEADERS, REFUSED_STREAM, RESET, Raw, WHOLE, block, frame,
    integer, request, request_with,
};

const REFUSED: &str = "sluicegate_http2_streams_refused_total";
const FLOODS: &str = "sluicegate_http2_floods_total";
/// Bytes of the field that heads reference.
const FIELD: usize = 3_900;
const REFERENCES: usize = 15;
/// Requests of one connection whose heads are of 58 KB, until 1,280 KiB are held.
const OF_CONNECTION: usize = 23;

/// All requests but one to anything but `/local` wait until that one is answered, which it never is.
fn waits(backend: &Backend) -> Gateway {
    let limit = "[[limit]]\nname = \"one\"\nkey = \"global\"\nalgorithm = \"concurrency\"\nmax_in_flight = 1\n\
                 max_wait = \"1h\"\nmax_queue = 100000\n";
    Gateway::start(&rules(backend, "", &format!("limits = [\"one\"]\n{limit}")))
}

/// A connection from an address that asks so often with a head of 58 KB, which is 40 bytes on the wire.
fn asks_at_length(gateway: &Gateway, source: &str, path: &str, count: usize) -> (Raw, Vec<u32>) {
    let mut raw = Raw::open_from(source, gateway.address());
    let mut bytes = Vec::new();
    let ids: Vec<u32> = (0..count).map(|_| raw.stream_id()).collect();
    for (number, id) in ids.iter().enumerate() {
        let mut head = block(&request("GET", path));
        if number == 0 {
            head.push(0x40);
            integer(&mut head, 0, 127, 1);
            head.push(b'a');
            integer(&mut head, 0, 127, FIELD);
            head.extend_from_slice(&[b'v'; FIELD]);
        }
        head.extend_from_slice(&[0xBE; REFERENCES][usize::from(number == 0)..]);
        bytes.extend_from_slice(&frame(HEADERS, WHOLE, *id, &head));
    }
    raw.send_bytes(&bytes);
    (raw, ids)
}

/// How much of a worker's bytes of heads clients come to hold, one after the other, each as much as it can.
struct Shares {
    head: usize,
    held: usize,
}

impl Shares {
    /// Requests of the next client, and the bound that it meets with one more.
    fn take(&mut self) -> (usize, &'static str) {
        let worker = 32 << 20;
        for count in 1.. {
            let (own, all) = (count * self.head, self.held + self.head);
            let bound = if own > 8 << 20 {
                "client-heads"
            } else if all > worker {
                "worker-heads"
            } else if count > 1 && own as u128 * worker as u128 > ((worker - all) as u128).pow(2) {
                "share-of-heads"
            } else {
                self.held = all;
                continue;
            };
            return (count - 1, bound);
        }
        unreachable!()
    }
}

fn refused(gateway: &Gateway, bound: &str) -> f64 {
    gateway.metric(REFUSED, &[&format!("\"{bound}\"")])
}

#[test]
fn decoded_heads_are_bounded_by_connection_client_and_worker_and_given_back() {
    let (backend, _) = silent();
    let gateway = waits(&backend);
    let head = |path: &str| {
        let authority = request("GET", path).iter().find(|(name, _)| name == b":authority").unwrap().1.len();
        format!("GET {path} HTTP/1.1\r\nhost: \r\n").len() + authority + REFERENCES * (FIELD + 5)
    };
    let of_client = (8 << 20) / head("/wait");
    let mut shares = Shares { head: head("/wait"), held: 0 };
    // One connection.
    let (mut one, ids) = asks_at_length(&gateway, "127.0.0.9", "/wait", OF_CONNECTION + 3);
    for id in &ids[OF_CONNECTION..] {
        assert_eq!(one.ending(*id), Ending::Reset(REFUSED_STREAM));
    }
    gateway.wait_metric(REFUSED, &["\"connection-heads\""], 3.0);
    gateway.wait_metric(REFUSED, &[], 3.0);
    one.close();
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    // Each client: one request more than it can have, at least.
    let fill = |source: &str, count: usize| -> Vec<Raw> {
        let connections = count / OF_CONNECTION + 1;
        (0..connections).map(|_| asks_at_length(&gateway, source, "/wait", OF_CONNECTION).0).collect()
    };
    let beyond = |count: usize| OF_CONNECTION - count % OF_CONNECTION;
    let mut refusals = HashMap::from([("client-heads", 0), ("share-of-heads", 0), ("worker-heads", 0)]);
    let (mut held, mut counts) = (Vec::new(), Vec::new());
    let mut again = None;
    for last in 2.. {
        let source = format!("127.0.0.{last}");
        let (count, bound) = shares.take();
        held.extend(fill(&source, count));
        *refusals.get_mut(bound).unwrap() += beyond(count);
        for (bound, refusals) in &refusals {
            gateway.wait_metric(REFUSED, &[&format!("\"{bound}\"")], *refusals as f64);
        }
        counts.push(count);
        if last == 2 {
            let (mut raw, ids) = asks_at_length(&gateway, &source, "/local", 1);
            assert_eq!(raw.ending(ids[0]), Ending::Reset(REFUSED_STREAM));
            *refusals.get_mut("client-heads").unwrap() += 1;
            again = Some(raw);
        }
        if bound == "worker-heads" {
            break;
        }
        // It is nobody else's loss.
        let (mut other, ids) = asks_at_length(&gateway, "127.0.0.200", "/local", 1);
        assert!(matches!(other.ending(ids[0]), Ending::Answered(200, _)), "beside {last}");
        other.close();
    }
    // Two have all that a client can have at all; to those that follow more than half is left of what they find, and after
    // dozens of them each can have one.
    assert_eq!(counts[..2], [of_client; 2]);
    assert!(counts[2] < of_client && counts[4] > 30 && counts.len() > 50, "{counts:?}");
    // Once they have gone.
    let most = gateway.most_resident();
    for raw in held {
        raw.close();
    }
    drop(again);
    gateway.wait_metric("sluicegate_client_connections", &[], 0.0);
    for source in ["127.0.0.2", "127.0.0.6"] {
        let (mut raw, ids) = asks_at_length(&gateway, source, "/local", 1);
        assert!(matches!(raw.ending(ids[0]), Ending::Answered(200, _)), "{source}");
    }
    gateway.wait_metric(REFUSED, &["\"worker-heads\""], refusals["worker-heads"] as f64);
    // Heads in the form that they came in and in the one that they are served in, and the buffers of 573 requests.
    assert!(most < 160 << 20, "{most} bytes at the most");
}

#[test]
fn all_requests_that_a_connection_may_have_fit_with_cookies_of_8_kib() {
    let (backend, heads) = silent();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let cookie = format!("session={}", "c".repeat(8_184));
    for _ in 0..128 {
        raw.headers(WHOLE, &request_with("GET", "/waits", &[("cookie", &cookie), ("user-agent", "Mozilla/5.0")]));
    }
    assert_eq!(raw.goaway_or_quiet(), None);
    assert!(!raw.seen.iter().any(|frame| frame.kind == RESET), "{:?}", raw.seen);
    assert!(eventually(|| heads.load(Ordering::SeqCst) == 128));
    assert!(refused(&gateway, "connection-heads") < 0.5);
}

#[test]
fn data_on_streams_that_were_answered_ends_the_connection() {
    let gateway = front(&telling());
    let mut raw = Raw::open(gateway.address());
    let id = raw.headers(END_HEADERS, &request("POST", "/local"));
    assert!(matches!(raw.ending(id), Ending::Answered(200, _)));
    while raw.send_bytes(&frame(DATA, 0, id, b"x").repeat(1_000)) && gateway.metric(FLOODS, &[]) < 0.5 {}
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric(FLOODS, &["\"late-frames\""], 1.0);
}

#[test]
fn an_upload_that_is_answered_early_may_go_on_for_a_window() {
    let gateway = front(&telling());
    let mut raw = Raw::open(gateway.address());
    for _ in 0..50 {
        let id = raw.headers(END_HEADERS, &request("POST", "/local"));
        // All that its window holds.
        while let size @ 1.. = raw.may_send(id).min(16_000) {
            raw.upload(0, id, &vec![b'x'; size as usize]);
        }
        assert!(matches!(raw.ending(id), Ending::Answered(200, _)));
    }
    assert_eq!(raw.ask("/local").0, 200);
    gateway.wait_metric(FLOODS, &[], 0.0);
}

#[test]
fn requests_beyond_max_streams_without_end_end_the_connection() {
    let (backend, _) = silent();
    let gateway = front(&backend);
    let mut raw = Raw::open(gateway.address());
    let fields = block(&request("GET", "/"));
    let bytes: Vec<u8> = (0..2_000).flat_map(|number| frame(HEADERS, WHOLE, 2 * number + 1, &fields)).collect();
    raw.send_bytes(&bytes);
    assert_eq!(raw.goaway(), Some(ENHANCE_YOUR_CALM));
    gateway.wait_metric(FLOODS, &["\"refused-streams\""], 1.0);
    // A thousand less the frames that begin a connection, two for each of the 128 that are served, and 100 a second.
    let refused = refused(&gateway, "connection-streams");
    assert!((990.0..1_500.0).contains(&refused), "{refused}");
}

/// Opens a connection from 127.0.0.2 that begins 400 requests and gives each up at once.
fn reset_many(gateway: &Gateway) {
    let mut raw = Raw::open_from("127.0.0.2", gateway.address());
    let fields = block(&request("GET", "/"));
    let requests = (0..400_u32).flat_map(|number| {
        let id = 2 * number + 1;
        [frame(HEADERS, WHOLE, id, &fields), frame(RESET, 0, id, &CANCEL.to_be_bytes())].concat()
    });
    raw.send_bytes(&requests.collect::<Vec<u8>>());
    // An answer, behind all of them, or the end, which may come without a word to who still sends.
    raw.goaway_or_quiet();
    raw.close();
}

#[test]
fn a_rapid_reset_is_stopped_although_each_connection_stays_below_its_own_bound() {
    let (backend, _) = silent();
    let gateway = front(&backend);
    // 10,000 at once and 500 a second: the 26th connection is over, or a later one where a second has passed meanwhile.
    let ended = (1..1_000).find(|_| {
        reset_many(&gateway);
        gateway.metric(FLOODS, &[]) > 0.5
    });
    assert!(ended.is_some_and(|connections| connections >= 26), "{ended:?}");
    // The next connection may be over before the end of the first one is counted.
    assert!(gateway.metric(FLOODS, &["\"resets-of-client\""]) >= 1.0);
    for other in ["resets", "late-frames", "refused-streams"] {
        assert!(gateway.metric(FLOODS, &[&format!("\"{other}\"")]) < 0.5, "{other}");
    }
    // It is nobody else's loss.
    assert_eq!(Raw::open_from("127.0.0.3", gateway.address()).ask("/local").0, 200);
}

#[test]
fn a_neighbour_of_who_resets_too_many_keeps_its_connection() {
    let (backend, _) = silent();
    let gateway = front_with_served(&backend, "");
    let fields = block(&request("GET", "/slow"));
    let begin = || Raw::open_from("127.0.0.2", gateway.address());
    let cancel = |raw: &mut Raw, count: usize| {
        let ids: Vec<u32> = (0..count).map(|_| raw.stream_id()).collect();
        let pairs = ids
            .iter()
            .flat_map(|id| [frame(HEADERS, WHOLE, *id, &fields), frame(RESET, 0, *id, &CANCEL.to_be_bytes())].concat());
        raw.send_bytes(&pairs.collect::<Vec<u8>>());
    };
    // As many as a connection may reset that goes on.
    let mut neighbour = begin();
    let kept = neighbour.get("/slow");
    cancel(&mut neighbour, 100);
    // The answers of its server pay for what this one resets.
    let mut answered = begin();
    (0..2).for_each(|_| assert_eq!(answered.ask("/served").0, 200));
    cancel(&mut answered, 1);
    assert!((0..1_000).any(|_| {
        reset_many(&gateway);
        assert_eq!(answered.ask("/local").0, 200);
        let id = neighbour.get("/local");
        neighbour.ending(id) == Ending::Reset(REFUSED_STREAM)
    }));
    assert!(refused(&gateway, "client-resets") >= 1.0);
    assert!(neighbour.is_open(kept));
}

#[test]
fn connections_that_are_closed_with_their_requests_are_charged_for_these() {
    let (backend, _) = silent();
    let gateway = front(&backend);
    let fields = block(&request("GET", "/slow"));
    let asks = (0..120_u32).flat_map(|number| frame(HEADERS, WHOLE, 2 * number + 1, &fields)).collect::<Vec<u8>>();
    let over = (1..2_000).find(|_| {
        let mut raw = Raw::open_from("127.0.0.2", gateway.address());
        raw.send_bytes(&asks);
        // All of them have come, or none is read.
        let is_over = raw.goaway_or_quiet() == Some(ENHANCE_YOUR_CALM);
        raw.close();
        is_over
    });
    assert!(over.is_some_and(|connections| connections > 83), "{over:?}");
    // The client is told before it is counted.
    assert!(eventually(|| gateway.metric(FLOODS, &["\"resets-of-client\""]) >= 1.0));
    assert_eq!(Raw::open_from("127.0.0.3", gateway.address()).ask("/local").0, 200);
    // Time pays for it.
    let paid = eventually(|| {
        std::thread::sleep(Duration::from_millis(100));
        let mut raw = Raw::open_from("127.0.0.2", gateway.address());
        let id = raw.get("/local");
        matches!(raw.ending(id), Ending::Answered(200, _))
    });
    assert!(paid);
}
