//! Windows of what comes: nothing of them is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::client::Client;
use super::*;

const CONNECTION_WINDOW: i64 = 4 * 1024 * 1024;
const STREAM_WINDOW: i64 = 256 * 1024;
/// Of each of ten streams.
const SHARE: i64 = 64 * 1024;

/// The next step of either side. Streams are chosen among those that there are.
#[derive(Clone, Debug)]
enum Step {
    Open {
        length: Option<u32>,
    },
    Data {
        of: usize,
        size: usize,
        padding: Option<u8>,
        ends: bool,
        times: u8,
    },
    Trailers {
        of: usize,
    },
    ResetByClient {
        of: usize,
    },
    Wrong {
        of: usize,
    },
    /// So much of what was sent arrives.
    Arrive {
        bytes: usize,
    },
    Read {
        of: usize,
        most: usize,
    },
    Answer {
        of: usize,
    },
    Release {
        of: usize,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = 0..8_usize;
    let size = prop_oneof![Just(0), 0..50_usize, Just(16_384)];
    let sent =
        (of.clone(), size, proptest::option::weighted(0.3, any::<u8>()), proptest::bool::weighted(0.1), 1..12_u8);
    let step = prop_oneof![
        2 => proptest::option::weighted(0.2, 0..60_000_u32).prop_map(|length| Step::Open { length }),
        8 => sent.prop_map(|(of, size, padding, ends, times)| Step::Data { of, size, padding, ends, times }),
        1 => of.clone().prop_map(|of| Step::Trailers { of }),
        1 => of.clone().prop_map(|of| Step::ResetByClient { of }),
        1 => of.clone().prop_map(|of| Step::Wrong { of }),
        6 => prop_oneof![0..40_usize, 0..200_000_usize].prop_map(|bytes| Step::Arrive { bytes }),
        6 => (of.clone(), prop_oneof![0..100_usize, Just(usize::MAX)]).prop_map(|(of, most)| Step::Read { of, most }),
        1 => of.clone().prop_map(|of| Step::Answer { of }),
        1 => of.prop_map(|of| Step::Release { of }),
    ];
    proptest::collection::vec(step, 1..80)
}

struct World {
    connection: Connection,
    client: Client,
    on_the_way: Vec<u8>,
    sent: i64,
    /// The bytes that were sent on each stream that the client has not ended.
    open: BTreeMap<u32, i64>,
    held: Vec<StreamKey>,
    next: u32,
}

impl World {
    fn new() -> Self {
        let mut client = Client::new();
        client.granted = CONNECTION_WINDOW;
        let (on_the_way, open, held) = (Vec::new(), BTreeMap::new(), Vec::new());
        Self { connection: begun(), client, on_the_way, sent: 0, open, held, next: 1 }
    }

    fn stream(&self, of: usize) -> Option<u32> {
        self.open.keys().nth(of % self.open.len().max(1)).copied()
    }

    fn key(&self, of: usize) -> Option<StreamKey> {
        self.held.get(of % self.held.len().max(1)).copied()
    }

    fn sends(&mut self, stream: u32, size: usize, padding: Option<u8>, ends: bool) {
        let content = vec![stream as u8; size.min(16_384 - padding.map_or(0, |padding| usize::from(padding) + 1))];
        let mut bytes = padding.map_or_else(|| data(stream, &content), |padding| padded(stream, &content, padding));
        bytes[4] |= if ends { flag::END_STREAM } else { 0 };
        let length = i64::try_from(bytes.len() - HEAD).unwrap();
        let sent = self.open[&stream] + length;
        // It keeps to its windows, as far as it has heard of them.
        if self.sent + length > self.client.granted
            || sent > SHARE + self.client.streams[&stream].granted
            || (length == 0 && !ends)
        {
            return;
        }
        self.sent += length;
        self.open.insert(stream, sent);
        self.on_the_way.extend_from_slice(&bytes);
        if ends {
            self.open.remove(&stream);
        }
    }

    fn act(&mut self, step: &Step) {
        match *step {
            Step::Open { length } if self.open.len() < 8 => {
                let stream = self.next;
                self.next += 2;
                self.client.opens(stream);
                self.open.insert(stream, 0);
                let head = length.map_or_else(|| uploads(stream), |length| uploads_of(stream, &length.to_string()));
                self.on_the_way.extend_from_slice(&head);
            }
            Step::Open { .. } => {}
            Step::Data { of, size, padding, ends, times } => {
                for _ in 0..times {
                    let Some(stream) = self.stream(of).filter(|stream| self.open.contains_key(stream)) else { return };
                    self.sends(stream, size, padding, ends);
                }
            }
            Step::Trailers { of } => {
                let Some(stream) = self.stream(of) else { return };
                self.open.remove(&stream);
                let head = block(&[("x-a", "1")]);
                self.on_the_way.extend(frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &head));
            }
            Step::ResetByClient { of } => {
                let Some(stream) = self.stream(of) else { return };
                self.open.remove(&stream);
                self.on_the_way.extend(reset(stream, Reason::Cancel));
            }
            Step::Wrong { of } => {
                let Some(stream) = self.stream(of) else { return };
                self.on_the_way.extend(update(stream, 0));
            }
            Step::Arrive { bytes } => {
                let rest = self.on_the_way.split_off(bytes.min(self.on_the_way.len()));
                self.connection.feed(&std::mem::replace(&mut self.on_the_way, rest));
                while let Some(key) = self.connection.next_incoming() {
                    self.connection.serve();
                    self.held.push(key);
                }
            }
            Step::Read { of, most } => {
                let Some(key) = self.key(of) else { return };
                if let Coming::Data(content) = self.connection.coming(key) {
                    assert!(content.iter().all(|byte| *byte == key.id as u8));
                    let count = content.len().min(most);
                    self.connection.consume(key, count);
                }
            }
            Step::Answer { of } => {
                let Some(key) = self.key(of).filter(|key| !self.connection.has_ended(*key)) else { return };
                respond(&mut self.connection, key, 200, true);
            }
            Step::Release { of } => {
                let Some(key) = self.key(of) else { return };
                self.held.retain(|held| *held != key);
                self.connection.release(key, Reason::Cancel);
            }
        }
    }

    fn check(&mut self) {
        self.client.reads_all(&mut self.connection);
        let connection = &self.connection;
        assert_eq!(connection.failed(), None);
        let unread = |key| connection.streams.get(key).map_or(0, |stream| stream.unread().len());
        let all: usize = connection.streams.keys().map(unread).sum();
        let left = i64::try_from(connection.left_of_data() + all).unwrap();
        assert_eq!(connection.recv_window + i64::from(connection.owed) + left, CONNECTION_WINDOW);
        assert!(connection.owed < CONNECTION_WINDOW as u32 / 2);
        let (mut may_come, mut extra) = (0, 0);
        for key in connection.streams.keys() {
            let stream = connection.streams.get(key).unwrap();
            extra += stream.extra;
            if stream.failure.is_some() || stream.has_ended {
                continue;
            }
            assert!((0..=STREAM_WINDOW).contains(&stream.recv_window), "{}", stream.recv_window);
            let unread = i64::try_from(stream.unread().len()).unwrap();
            assert!(stream.recv_window + unread <= STREAM_WINDOW);
            may_come += stream.recv_window;
        }
        assert_eq!(connection.extra, extra);
        // No stream has to wait for the connection's window.
        assert!(may_come <= connection.recv_window + i64::from(connection.owed), "{may_come}");
        assert!(connection.owed == 0 || i64::from(connection.owed) < connection.recv_window);
        if self.on_the_way.is_empty() {
            assert_eq!(self.client.granted - self.sent, connection.recv_window);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 2_000, ..ProptestConfig::default() })]

    #[test]
    fn what_came_is_in_the_window_or_owed_or_unread_or_on_its_way(steps in steps()) {
        let mut world = World::new();
        for step in &steps {
            world.act(step);
            world.check();
            // What this is not about.
            world.connection.flood = Flood::new(false);
        }
        // Once all is read, the client may send again: half of each window, or more.
        world.act(&Step::Arrive { bytes: usize::MAX });
        world.check();
        let keys = world.held.clone();
        for (of, key) in keys.into_iter().enumerate() {
            world.act(&Step::Read { of, most: usize::MAX });
            let stream = world.connection.streams.get(key).unwrap();
            let has_enough = stream.length_left.is_some_and(|left| i64::try_from(left).unwrap() <= stream.recv_window);
            let is_over = stream.failure.is_some() || stream.has_ended;
            prop_assert!(is_over || has_enough || stream.recv_window > SHARE / 2);
        }
        while !world.held.is_empty() {
            world.act(&Step::Release { of: 0 });
        }
        world.check();
        prop_assert!(world.client.granted - world.sent > CONNECTION_WINDOW / 2);
        prop_assert_eq!(world.connection.recv_window + i64::from(world.connection.owed), CONNECTION_WINDOW);
        // And more than a whole window goes through a new stream.
        world.open.clear();
        world.act(&Step::Open { length: None });
        for _ in 0..600 {
            world.act(&Step::Data { of: 0, size: 16_000, padding: Some(200), ends: false, times: 1 });
            world.act(&Step::Arrive { bytes: usize::MAX });
            world.act(&Step::Read { of: 0, most: usize::MAX });
            world.client.reads_all(&mut world.connection);
        }
        let stream = world.next - 2;
        prop_assert_eq!(world.open[&stream], 600 * 16_201);
    }
}

#[test]
fn a_stream_begins_with_its_share_has_more_once_it_sends_and_half_a_window_back_at_once() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.feed(&data(1, &vec![0; 16_384]));
    assert_eq!(connection.unwritten(), b"", "most of its share is left");
    connection.feed(&data(1, &vec![0; 16_384]));
    assert_eq!(written(&mut connection), update(1, u32::try_from(STREAM_WINDOW - SHARE).unwrap()));
    (2..16).for_each(|_| connection.feed(&data(1, &vec![0; 16_384])));
    connection.consume(key, 131_071);
    assert_eq!(connection.unwritten(), b"");
    connection.consume(key, 1);
    assert_eq!(written(&mut connection), update(1, 131_072));
    for _ in 1..16 {
        (0..8).for_each(|_| connection.feed(&data(1, &vec![0; 16_384])));
        connection.consume(key, 131_072);
    }
    let out = frames(&written(&mut connection));
    let expected = [vec![update(1, 131_072); 14].concat(), update(0, 15 * 131_072), update(1, 131_072)].concat();
    assert_eq!(out, frames(&expected));
}

#[test]
fn streams_that_nobody_reads_have_less_the_more_they_are_and_each_its_share() {
    const STREAMS: u32 = 128;
    let limits = Limits { max_streams: STREAMS, max_header_list: 4096, is_of_many: false };
    let share = CONNECTION_WINDOW / 2 / i64::from(STREAMS);
    let mut connection = begun_with(limits);
    connection.feed(&frame(kind::SETTINGS, flag::ACK, 0, &[]));
    let mut rooms = Vec::new();
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        let key = taken(&mut connection, &uploads(stream));
        assert!(connection.recv_window >= share, "stream {stream}");
        // As much as it may.
        let mut room = 0;
        while let may @ 1.. = connection.streams.get(key).unwrap().recv_window {
            let size = may.min(16_384);
            connection.feed(&data(stream, &vec![0; usize::try_from(size).unwrap()]));
            room += size;
        }
        rooms.push(room);
    }
    assert_eq!((connection.failed(), rooms[0]), (None, STREAM_WINDOW));
    assert!(rooms.is_sorted_by(|one, next| one >= next) && rooms.iter().all(|room| *room >= share), "{rooms:?}");
    assert!(rooms.iter().sum::<i64>() <= CONNECTION_WINDOW);
    // What one lets go another may have.
    for number in 0..8 {
        connection.feed(&reset(2 * number + 1, Reason::Cancel));
    }
    let last = connection.streams.keys().last().unwrap();
    written(&mut connection);
    connection.consume(last, usize::MAX);
    assert!(connection.streams.get(last).unwrap().recv_window > STREAM_WINDOW / 2);
}

#[test]
fn a_stream_whose_request_has_ended_is_given_no_window() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    (0..15).for_each(|_| connection.feed(&data(1, &[0; 16_384])));
    connection.feed(&last_data(1, &[0; 16_384]));
    written(&mut connection);
    connection.consume(key, 262_144);
    assert_eq!((connection.unwritten(), connection.owed), (&b""[..], 262_144));
    assert_eq!(connection.coming(key), Coming::End(b""));
}

#[test]
fn padding_is_given_back_when_its_length_is_known() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    let bytes = padded(1, b"abc", 200);
    connection.feed(&bytes[..HEAD]);
    assert_eq!((connection.recv_window, connection.owed), (CONNECTION_WINDOW - 204, 0));
    connection.feed(&bytes[HEAD..=HEAD]);
    assert_eq!((connection.recv_window, connection.owed), (CONNECTION_WINDOW - 204, 201));
    connection.feed(&bytes[HEAD + 1..]);
    assert_eq!(connection.coming(key), Coming::Data(b"abc"));
    connection.consume(key, 3);
    assert_eq!(connection.owed, 204);
}

#[test]
fn reading_more_than_there_is_gives_back_what_there_is() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.feed(&data(1, b"abc"));
    connection.consume(key, 100);
    assert_eq!((connection.owed, connection.coming(key)), (3, Coming::Nothing));
}

#[test]
fn nobody_may_send_more_than_the_windows() {
    let limits = Limits { max_streams: 100, max_header_list: 4096, is_of_many: false };
    let mut connection = begun_with(limits);
    connection.feed(&frame(kind::SETTINGS, flag::ACK, 0, &[]));
    connection.feed(&uploads(1));
    (0..16).for_each(|_| connection.feed(&data(1, &vec![0; 16_384])));
    written(&mut connection);
    connection.feed(&data(1, b"x"));
    assert_eq!(written(&mut connection), reset(1, Reason::FlowControl));
    // A client that does not know our settings yet goes by the first window of the protocol.
    let mut connection = begun_with(limits);
    for number in 0..100 {
        let stream = 2 * number + 1;
        connection.feed(&uploads(stream));
        for size in [16_384, 16_384, 16_384, 16_383] {
            if connection.recv_window >= size {
                connection.feed(&data(stream, &vec![0; usize::try_from(size).unwrap()]));
            }
        }
        assert_eq!(connection.failed(), None, "{stream}");
    }
    let left = connection.recv_window;
    assert!(left < 16_383);
    connection.feed(&data(199, &vec![0; usize::try_from(left).unwrap() + 1]));
    assert_eq!(failed(&connection), Some(Reason::FlowControl));
}
