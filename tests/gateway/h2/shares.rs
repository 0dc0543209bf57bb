//! Bounds on one client over HTTP/2, whatever the number of its connections.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::support::{Backend, Gateway, eventually};
use crate::timing::{assert_below, best_of_three};
use crate::wire::{front, rules, telling};

use super::flood::silent;
use super::frames::{
    CANCEL, DATA, END_HEADERS, ENHANCE_YOUR_CALM, Ending, HEADERS, REFUSED_STREAM, RESET, Raw, WHOLE, block, frame,
    integer, request,
};

const REFUSED: &str = "sluicegate_http2_streams_refused_total";
const FLOODS: &str = "sluicegate_http2_floods_total";
/// Bytes of the field that heads reference.
const FIELD: usize = 3_900;
const REFERENCES: usize = 15;
/// Requests of one connection whose heads are of 58 KB, until 768 KiB are held.
const OF_CONNECTION: usize = 14;

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
        for _ in 0..16 {
            assert!(raw.send(DATA, 0, id, &[b'x'; 16_000]));
        }
        assert!(matches!(raw.ending(id), Ending::Answered(200, _)));
        raw.seen.clear();
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
    // 2,000 at once and 100 a second: the sixth connection is over, unless a second has passed meanwhile.
    let ended = (1..200).find(|_| {
        reset_many(&gateway);
        gateway.metric(FLOODS, &[]) > 0.5
    });
    assert!(ended.is_some_and(|connections| connections >= 6), "{ended:?}");
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
    best_of_three(|| {
        let (backend, _) = silent();
        let gateway = front(&backend);
        let mut neighbour = Raw::open_from("127.0.0.2", gateway.address());
        let kept = neighbour.get("/slow");
        // As many as a connection may reset that goes on. They take a second to pay.
        let resets: Vec<u32> = (0..100).map(|_| neighbour.get("/slow")).collect();
        // Its own answers pay for what this one resets.
        let mut answered = Raw::open_from("127.0.0.2", gateway.address());
        (0..2).for_each(|_| assert_eq!(answered.ask("/local").0, 200));
        let reset_by_answered = answered.get("/slow");
        let ended = || gateway.metric(FLOODS, &["\"resets-of-client\""]);
        let mut storm_began = Instant::now();
        assert!((0..200).any(|_| {
            storm_began = Instant::now();
            reset_many(&gateway);
            ended() > 0.5
        }));
        let refused_before = refused(&gateway, "client-resets");
        assert!(resets.iter().all(|id| neighbour.reset(*id, CANCEL)));
        neighbour.goaway_or_quiet();
        let id = neighbour.get("/local");
        let ending = neighbour.ending(id);
        // Some moment after it began the address was over; with the second that its resets take it still is.
        assert_below(storm_began.elapsed(), Duration::from_secs(1), "all since the storm");
        assert_eq!(ending, Ending::Reset(REFUSED_STREAM));
        assert!(refused(&gateway, "client-resets") > refused_before);
        answered.reset(reset_by_answered, CANCEL);
        let refused_of_neighbour = refused(&gateway, "client-resets");
        assert_eq!(answered.ask("/local").0, 200);
        assert!((refused(&gateway, "client-resets") - refused_of_neighbour).abs() < 0.5);
        assert!(neighbour.is_open(kept));
    });
}

#[test]
fn connections_that_are_closed_with_their_requests_are_charged_for_these() {
    let (backend, _) = silent();
    let gateway = front(&backend);
    let over = (1..400).find(|_| {
        let mut raw = Raw::open_from("127.0.0.2", gateway.address());
        (0..100).for_each(|_| {
            raw.get("/slow");
        });
        // All of them have come, or none is read.
        let is_over = raw.goaway_or_quiet() == Some(ENHANCE_YOUR_CALM);
        raw.close();
        is_over
    });
    assert!(over.is_some_and(|connections| connections > 20), "{over:?}");
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
