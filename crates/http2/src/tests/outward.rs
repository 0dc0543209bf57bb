//! Windows of what goes: never more than the client allows, all of it, in order, and then the end.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::client::Client;
use super::*;

#[derive(Clone, Debug)]
enum Last {
    More,
    End,
    Trailers,
}

#[derive(Clone, Debug)]
enum Step {
    Open,
    Settings {
        window: u32,
    },
    Update {
        of: Option<usize>,
        by: u32,
    },
    Send {
        of: usize,
        first: usize,
        second: usize,
        last: Last,
    },
    Finish {
        of: usize,
    },
    ResetByClient {
        of: usize,
    },
    Release {
        of: usize,
    },
    /// So much of what waits is written.
    Write {
        bytes: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = 0..6_usize;
    let size = || prop_oneof![2 => 0..40_usize, 1 => 0..40_000_usize, 1 => 60_000..140_000_usize];
    let last = prop_oneof![4 => Just(Last::More), 1 => Just(Last::End), 1 => Just(Last::Trailers)];
    let window = prop_oneof![0..50_u32, Just(65_535), 0..200_000_u32];
    let step = prop_oneof![
        3 => Just(Step::Open),
        2 => window.prop_map(|window| Step::Settings { window }),
        4 => (proptest::option::of(of.clone()), prop_oneof![1..40_u32, 1..100_000_u32]).prop_map(|(of, by)| Step::Update { of, by }),
        8 => (of.clone(), size(), size(), last).prop_map(|(of, first, second, last)| Step::Send { of, first, second, last }),
        1 => of.clone().prop_map(|of| Step::Finish { of }),
        1 => of.clone().prop_map(|of| Step::ResetByClient { of }),
        1 => of.prop_map(|of| Step::Release { of }),
        6 => prop_oneof![0..60_usize, 0..80_000_usize, Just(usize::MAX)].prop_map(|bytes| Step::Write { bytes }),
    ];
    proptest::collection::vec(step, 1..80)
}

/// The content that is to arrive of one stream.
#[derive(Debug, Default)]
struct Expected {
    content: Vec<u8>,
    ends: bool,
    trailers: bool,
    /// Somebody has given it up.
    is_lost: bool,
}

struct World {
    connection: Connection,
    client: Client,
    held: Vec<StreamKey>,
    expected: BTreeMap<u32, Expected>,
    next: u32,
}

impl World {
    fn key(&self, of: usize) -> Option<StreamKey> {
        self.held.get(of % self.held.len().max(1)).copied()
    }

    fn act(&mut self, step: &Step) {
        match step {
            Step::Open if self.held.len() < 6 => {
                let stream = self.next;
                self.next += 2;
                // It names a window before it opens one, so it counts with the one that was known.
                self.write(usize::MAX);
                self.client.opens(stream);
                let key = taken(&mut self.connection, &asks(stream));
                respond(&mut self.connection, key, 200, false);
                self.held.push(key);
                self.expected.insert(stream, Expected::default());
            }
            Step::Open => {}
            Step::Settings { window: value } => {
                self.client.names(i64::from(*value));
                self.connection.feed(&window(*value));
            }
            Step::Update { of: None, by } => {
                self.client.window += i64::from(*by);
                self.connection.feed(&update(0, *by));
            }
            Step::Update { of: Some(of), by } => {
                let Some(key) = self.key(*of) else { return };
                self.client.streams.get_mut(&key.id).unwrap().window += i64::from(*by);
                self.connection.feed(&update(key.id, *by));
            }
            Step::Send { of, first, second, last } => self.send(*of, *first, *second, last),
            Step::Finish { of } => {
                let Some(key) = self.key(*of) else { return };
                self.connection.finish(key);
                self.expected.get_mut(&key.id).unwrap().ends = true;
            }
            Step::ResetByClient { of } => {
                let Some(key) = self.key(*of) else { return };
                self.connection.feed(&reset(key.id, Reason::Cancel));
                self.expected.get_mut(&key.id).unwrap().is_lost |= !self.connection.has_ended(key);
            }
            Step::Release { of } => {
                let Some(key) = self.key(*of) else { return };
                self.expected.get_mut(&key.id).unwrap().is_lost |= !self.connection.has_ended(key);
                self.connection.release(key, Reason::Cancel);
                self.held.retain(|held| *held != key);
            }
            Step::Write { bytes } => self.write(*bytes),
        }
    }

    fn send(&mut self, of: usize, first: usize, second: usize, last: &Last) {
        let Some(key) = self.key(of) else { return };
        let expected = self.expected.get_mut(&key.id).unwrap();
        if expected.ends || !self.connection.is_flushed(key) {
            return;
        }
        let from = expected.content.len();
        let content: Vec<u8> =
            (from..from + first + second).map(|at| (at * 7 + at / 251 + key.id as usize) as u8).collect();
        let end = match last {
            Last::More => Sending::More,
            Last::End => Sending::End,
            Last::Trailers => Sending::Trailers(b"x-a: 1\r\n\r\n"),
        };
        expected.ends = !matches!(last, Last::More);
        expected.trailers = matches!(last, Last::Trailers);
        self.connection.send(key, &content[..first], &content[first..], end);
        if !self.connection.has_failed(key) {
            expected.content.extend_from_slice(&content);
        }
    }

    fn write(&mut self, most: usize) {
        let mut left = most;
        while left > 0 && !self.connection.unwritten().is_empty() {
            let size = self.connection.unwritten().len().min(left);
            self.client.reads(&self.connection.unwritten()[..size]);
            self.connection.advance(size);
            left -= size;
        }
    }

    /// Checks that what has arrived is what was sent, as far as it goes.
    fn check(&self) {
        assert_eq!(self.connection.failed(), None);
        for (stream, expected) in &self.expected {
            let seen = &self.client.streams[stream];
            assert!(expected.content.starts_with(&seen.content), "{stream}");
            let is_all = seen.content.len() == expected.content.len();
            assert!(seen.ends == 0 || (is_all && expected.ends && seen.trailers.is_some() == expected.trailers));
            assert!(seen.ends + usize::from(expected.is_lost) <= 1);
        }
    }

    /// Nothing waits without a reason.
    fn check_is_idle(&self) {
        for key in &self.held {
            let seen = &self.client.streams[&key.id];
            let waits = !self.connection.is_flushed(*key);
            assert!(!waits || seen.window <= 0 || self.client.window <= 0, "{key:?} waits for nothing");
            let sent = i64::try_from(self.expected[&key.id].content.len() - seen.content.len()).unwrap();
            assert!(self.connection.has_failed(*key) || waits || sent == 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn all_arrives_once_in_order_and_within_the_windows(steps in steps()) {
        let (connection, client) = (begun(), Client::new());
        let mut world = World { connection, client, held: Vec::new(), expected: BTreeMap::new(), next: 1 };
        for step in &steps {
            world.act(step);
            world.check();
            world.connection.flood = Flood::new(false);
        }
        world.write(usize::MAX);
        world.check();
        world.check_is_idle();
        // Small windows first, one after the other, and then wide ones.
        for by in [1, 1, 100, 20_000_000] {
            world.act(&Step::Update { of: None, by });
            (0..world.held.len()).for_each(|of| world.act(&Step::Update { of: Some(of), by }));
            world.write(usize::MAX);
            world.check();
            world.check_is_idle();
        }
        (0..world.held.len()).for_each(|of| world.act(&Step::Finish { of }));
        world.write(usize::MAX);
        for (stream, expected) in &world.expected {
            let seen = &world.client.streams[stream];
            prop_assert!(expected.is_lost || (seen.content == expected.content && seen.ends == 1), "{stream}");
        }
        prop_assert_eq!(world.connection.send_window, world.client.window);
    }
}

#[test]
fn a_body_is_cut_by_frames_and_windows_exactly() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    respond(&mut connection, key, 200, false);
    connection.send(key, &vec![1; 20_000], &vec![2; 50_000], Sending::End);
    assert_eq!((connection.is_flushed(key), connection.has_ended(key), connection.sent(key)), (false, false, 65_526));
    let sizes = |bytes: &[u8]| -> Vec<(usize, u8)> {
        frames(bytes)
            .iter()
            .filter(|frame| frame.kind == kind::DATA)
            .map(|frame| (frame.payload.len(), frame.flags))
            .collect()
    };
    // 64 KiB with what lay there already, and a rest that had no room.
    let out = written(&mut connection);
    assert_eq!(sizes(&out), [(16_384, 0), (16_384, 0), (16_384, 0), (16_374, 0), (9, 0)]);
    let content: Vec<u8> = frames(&out)[1..].iter().flat_map(|frame| frame.payload.clone()).collect();
    assert_eq!(content, [vec![1; 20_000], vec![2; 45_535]].concat());
    assert_eq!(connection.sent(key), 65_535);
    connection.feed(&update(0, 1_000_000));
    assert_eq!(connection.unwritten(), b"");
    connection.feed(&update(1, 4_464));
    assert_eq!(sizes(&written(&mut connection)), [(4_464, 0)]);
    connection.feed(&update(1, 1));
    assert_eq!(frames(&written(&mut connection)), frames(&last_data(1, &[2])));
    assert_eq!((connection.is_flushed(key), connection.has_ended(key), connection.sent(key)), (true, true, 70_000));
}

#[test]
fn a_window_may_become_negative_and_has_to_be_made_up() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    respond(&mut connection, key, 200, false);
    connection.send(key, &[1; 1_000], b"", Sending::More);
    connection.feed(&window(400));
    written(&mut connection);
    connection.send(key, &[1; 10], b"", Sending::Trailers(b"x-a: 1\r\n\r\n"));
    connection.feed(&update(1, 600));
    assert_eq!(connection.unwritten(), b"");
    connection.feed(&update(1, 10));
    let trailers = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[("x-a", "1")]));
    assert_eq!(written(&mut connection), [data(1, &[1; 10]), trailers].concat());
}

#[test]
fn an_end_without_data_needs_no_window() {
    for (end, expected) in [
        (Sending::End, last_data(1, b"")),
        (Sending::Trailers(b"\r\n"), frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, b"")),
    ] {
        let mut connection = begun();
        let key = taken(&mut connection, &asks(1));
        respond(&mut connection, key, 200, false);
        connection.send(key, &vec![1; 65_535], b"", Sending::More);
        written(&mut connection);
        assert!(connection.is_flushed(key));
        connection.send(key, b"", b"", end);
        assert_eq!(written(&mut connection), expected);
        // Once.
        connection.finish(key);
        connection.send(key, b"", b"", Sending::End);
        assert_eq!(connection.unwritten(), b"");
    }
}

#[test]
fn an_end_never_overtakes_what_waits() {
    // The task that writes waits until all has gone; one that does not still ends behind it.
    for end in [Sending::End, Sending::Trailers(b"x-a: 1\r\n\r\n")] {
        let mut connection = begun();
        connection.feed(&window(0));
        let key = taken(&mut connection, &asks(1));
        respond(&mut connection, key, 200, false);
        connection.send(key, b"ab", b"", Sending::More);
        connection.send(key, b"", b"", end);
        written(&mut connection);
        connection.feed(&update(1, 100));
        let out = frames(&written(&mut connection));
        assert_eq!((out[0].payload.as_slice(), connection.has_ended(key)), (&b"ab"[..], true));
        assert_ne!(out.last().unwrap().flags & flag::END_STREAM, 0);
    }
}

#[test]
fn what_is_given_up_is_reset_and_for_what() {
    for (responds, ends, request, reason) in [
        (false, false, asks(1), Some(Reason::RefusedStream)),
        (true, false, asks(1), Some(Reason::RefusedStream)),
        (true, true, asks(1), None),
        (true, true, uploads(1), Some(Reason::NoError)),
        (true, false, uploads(1), Some(Reason::RefusedStream)),
    ] {
        let mut connection = begun();
        let key = taken(&mut connection, &request);
        if responds {
            respond(&mut connection, key, 200, ends);
        }
        written(&mut connection);
        connection.release(key, Reason::RefusedStream);
        connection.release(key, Reason::RefusedStream);
        assert_eq!(written(&mut connection), reason.map(|reason| reset(1, reason)).unwrap_or_default());
    }
    // Data that waits is not sent any more.
    let mut connection = begun();
    connection.feed(&window(0));
    let key = taken(&mut connection, &asks(1));
    respond(&mut connection, key, 200, false);
    connection.send(key, b"abc", b"", Sending::End);
    written(&mut connection);
    connection.release(key, Reason::Internal);
    assert_eq!(written(&mut connection), reset(1, Reason::Internal));
}
