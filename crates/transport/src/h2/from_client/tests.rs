//! Streams of a connection that is fed by hand.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::Poll;

use proptest::prelude::*;

use super::*;
use sluicegate_http2::{Limits, PREFACE};
use sluicegate_time::Tick;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Literals, none of them longer than 126 bytes.
fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

fn get(method: &str, more: &[(&str, &str)]) -> Vec<u8> {
    block(&[&[(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "h")], more].concat())
}

fn data(flags: u8, content: &[u8]) -> Vec<u8> {
    frame(0, flags, 1, content)
}

/// A connection and its one stream, which begins with this head.
struct World {
    connection: Rc<RefCell<Connection>>,
    stream: FromClient,
}

impl World {
    fn new(flags: u8, head: &[u8]) -> Self {
        let mut connection =
            Connection::new(Limits { max_streams: 10, max_header_list: 10_000, is_of_many: false }, Tick::ZERO);
        connection.feed(&[PREFACE, &frame(4, 0, 0, &[]), &frame(1, END_HEADERS | flags, 1, head)].concat());
        connection.advance(connection.unwritten().len());
        let key = connection.next_incoming().unwrap();
        let kind = connection.kind(key);
        let connection = Rc::new(RefCell::new(connection));
        let held = HeldStream { connection: Rc::clone(&connection), key };
        Self { connection, stream: FromClient::new(held, kind) }
    }

    /// One without a body, which is to be answered.
    fn asks(method: &str) -> Self {
        Self::new(END_STREAM, &get(method, &[]))
    }

    fn tunnel(flags: u8) -> Self {
        let head = [
            (":method", "CONNECT"),
            (":protocol", "websocket"),
            (":scheme", "http"),
            (":path", "/"),
            (":authority", "h"),
        ];
        Self::new(flags, &block(&head))
    }

    fn feed(&self, bytes: &[u8]) {
        self.connection.borrow_mut().feed(bytes);
    }

    fn read(&mut self, room: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; room];
        let is_ready = self.stream.poll_read_ready().is_ready();
        match self.stream.poll_read(&mut bytes) {
            Poll::Ready(size) => {
                assert!(is_ready);
                bytes.truncate(size.unwrap());
                Some(bytes)
            }
            Poll::Pending => None,
        }
    }

    fn reads_all(&mut self, room: usize) -> Vec<u8> {
        std::iter::from_fn(|| self.read(room)).flatten().collect()
    }

    fn writes(&mut self, first: &[u8], second: &[u8]) -> usize {
        match self.stream.poll_write(first, second) {
            Poll::Ready(size) => size.unwrap(),
            Poll::Pending => panic!("it is not flushed"),
        }
    }

    /// Frames that go out: type, flags, payload. Data is put together, and its frames' flags.
    fn out(&self) -> Vec<(u8, u8, Vec<u8>)> {
        let mut all: Vec<(u8, u8, Vec<u8>)> = Vec::new();
        let mut connection = self.connection.borrow_mut();
        while !connection.unwritten().is_empty() {
            let mut bytes = connection.unwritten().to_vec();
            connection.advance(bytes.len());
            while !bytes.is_empty() {
                let length = usize::from(bytes[1]) << 8 | usize::from(bytes[2]);
                let rest = bytes.split_off(9 + length);
                let (kind, flags, payload) = (bytes[3], bytes[4], bytes[9..].to_vec());
                bytes = rest;
                match all.last_mut() {
                    Some((0, known, content)) if kind == 0 => {
                        assert_eq!(*known & END_STREAM, 0);
                        *known |= flags;
                        content.extend(payload);
                    }
                    _ => all.push((kind, flags, payload)),
                }
            }
        }
        all
    }
}

fn content_of(chunked: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut body = Body::new(Framing::Chunked, ChunkPart::Content);
    let mut bytes = chunked.to_vec();
    let accepted = body.accept(&mut bytes).unwrap();
    assert!(body.is_complete() && accepted.taken == chunked.len());
    bytes.truncate(accepted.kept);
    (bytes, body.trailer_lines().to_vec())
}

#[test]
fn a_body_without_a_length_is_read_in_chunks_in_any_room() {
    let content: Vec<u8> = (0..700_u32).map(|number| number as u8).collect();
    for room in (LEAST_ROOM..300).chain([4_096]) {
        let mut world = World::new(0, &get("POST", &[]));
        assert!(world.stream.has_body());
        assert_eq!(world.read(room), None);
        world.feed(&data(0, &content[..300]));
        let mut read = world.reads_all(room);
        world.feed(
            &[data(0, &content[300..]), frame(1, END_HEADERS | END_STREAM, 1, &block(&[("x-sum", "abc")]))].concat(),
        );
        read.extend(world.reads_all(room));
        let (found, trailers) = content_of(&read);
        assert_eq!((found, trailers.starts_with(b"x-sum: abc\r\n")), (content.clone(), true), "{room}");
        assert!(!world.stream.has_body());
        assert!(world.stream.poll_read_ready().is_pending());
    }
}

#[test]
fn a_room_without_place_for_a_chunk_reads_nothing_and_loses_nothing() {
    for room in 0..LEAST_ROOM {
        let mut world = World::new(0, &get("POST", &[]));
        world.feed(&data(END_STREAM, b"abc"));
        let mut small = vec![0; room];
        assert!(world.stream.poll_read(&mut small).is_pending());
        assert_eq!(world.reads_all(100), b"3\r\nabc\r\n0\r\n\r\n");
    }
    // One byte fits into the least.
    let mut world = World::new(0, &get("POST", &[]));
    world.feed(&data(END_STREAM, b"abc"));
    assert_eq!(world.reads_all(LEAST_ROOM), b"1\r\na\r\n1\r\nb\r\n1\r\nc\r\n0\r\n\r\n");
}

#[test]
fn the_end_of_chunks_is_read_in_rooms_of_every_size() {
    for (trailers, expected) in [
        (data(END_STREAM, b""), &b"0\r\n\r\n"[..]),
        (frame(1, END_HEADERS | END_STREAM, 1, &block(&[("x-a", "1"), ("x-b", "")])), b"0\r\nx-a: 1\r\nx-b: \r\n\r\n"),
    ] {
        for room in 1..40 {
            let mut world = World::new(0, &get("POST", &[]));
            world.feed(&trailers);
            let mut pieces = Vec::new();
            while let Some(piece) = world.read(room) {
                assert!(!piece.is_empty());
                pieces.push(piece);
            }
            assert_eq!(pieces.concat(), expected, "{room}");
            assert_eq!(pieces.len(), expected.len().div_ceil(room));
            assert!(!world.stream.has_body());
        }
    }
}

#[test]
fn a_body_with_a_length_is_read_as_it_is() {
    for room in 1..20 {
        let mut world = World::new(0, &get("POST", &[("content-length", "10")]));
        world.feed(&data(0, b"01234"));
        let mut read = world.reads_all(room);
        world.feed(&data(END_STREAM, b"56789"));
        read.extend(world.reads_all(room));
        assert_eq!((read.as_slice(), world.stream.has_body()), (&b"0123456789"[..], false));
    }
    let mut none = World::asks("GET");
    assert!(!none.stream.has_body());
    assert_eq!(none.read(10), None);
    none.feed(&frame(3, 0, 1, &[0, 0, 0, 8]));
    assert!(none.stream.poll_read_ready().is_ready() && none.stream.was_reset());
    assert!(matches!(none.stream.poll_read(&mut [0; 10]), Poll::Ready(Err(_))));
    assert!(matches!(none.stream.poll_flush(), Poll::Ready(Err(_))));
    assert!(matches!(none.stream.poll_write(b"HTTP/1.1 200 OK\r\n\r\n", b""), Poll::Ready(Err(_))));
}

#[test]
fn answers_without_a_body_end_with_their_head() {
    for (method, head, payload) in [
        ("HEAD", "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", &b"\x88"[..]),
        ("HEAD", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"\x88"),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", b"\x89"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", b"\x8b"),
        ("GET", "HTTP/1.1 304 Not Modified\r\ntransfer-encoding: chunked\r\n\r\n", b"\x8b"),
        ("GET", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", b"\x88"),
        ("GET", "HTTP/1.1 200 OK\r\n\r\n", b"\x88"),
        ("GET", "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", b"\x88"),
    ] {
        let mut world = World::asks(method);
        assert_eq!(world.writes(head.as_bytes(), b""), head.len());
        let out = world.out();
        assert_eq!((out.len(), out[0].0, out[0].1), (1, 1, END_HEADERS | END_STREAM), "{method} {head}");
        assert!(out[0].2.starts_with(payload), "{method} {head}");
        // What comes behind it is nothing.
        assert_eq!(world.writes(b"stray", b""), 5);
        assert_eq!(world.out(), []);
        world.stream.end(false);
        assert!(world.connection.borrow().unwritten().is_empty());
    }
}

#[test]
fn interim_answers_go_before_the_final_one_each_in_its_write() {
    let mut world = World::asks("GET");
    let both = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n";
    assert_eq!(world.writes(both, b"rest"), 25);
    assert_eq!(world.writes(&both[25..], b""), both.len() - 25);
    assert_eq!(world.writes(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab", b""), 40);
    let out = world.out();
    let kinds: Vec<_> = out.iter().map(|(kind, flags, _)| (*kind, *flags)).collect();
    assert_eq!(kinds, [(1, END_HEADERS), (1, END_HEADERS), (1, END_HEADERS), (0, END_STREAM)]);
    assert_eq!((out[3].2.as_slice(), world.stream.progress()), (&b"ab"[..], 2));
}

#[test]
fn a_tunnel_is_opened_by_a_101_and_by_nothing_else() {
    let mut world = World::tunnel(0);
    assert!(world.stream.has_body());
    world.feed(&data(0, b"early"));
    let head = b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nsec-websocket-accept: x\r\n\r\nab";
    assert_eq!(world.writes(head, b"cd"), head.len() + 2);
    assert_eq!(world.out(), [(1, END_HEADERS, vec![0x88]), (0, 0, b"abcd".to_vec())]);
    assert_eq!(world.read(3).unwrap(), b"ear");
    assert_eq!(world.read(9).unwrap(), b"ly");
    assert_eq!(world.read(9), None);
    world.feed(&data(END_STREAM, b"last"));
    assert_eq!(world.read(9).unwrap(), b"last");
    // Its end is read as one, and as often as anybody asks.
    assert_eq!((world.read(9), world.read(9)), (Some(Vec::new()), Some(Vec::new())));
    assert_eq!(world.writes(b"", b"more"), 4);
    assert!(world.stream.poll_shutdown().is_ready());
    assert_eq!(world.out(), [(0, END_STREAM, b"more".to_vec())]);
    world.stream.end(false);
    assert!(world.connection.borrow().unwritten().is_empty());
    // Any other success would be taken for one.
    for (status, payload) in
        [("200 OK", &b"\x08\x03502"[..]), ("204 No Content", b"\x08\x03502"), ("404 Not Found", b"\x8d")]
    {
        let mut world = World::tunnel(END_STREAM);
        world.writes(format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\n\r\nab").as_bytes(), b"");
        let out = world.out();
        assert!(out[0].2.starts_with(payload), "{status} {:?}", out[0].2);
    }
}

#[test]
fn what_has_no_window_is_waited_for() {
    let mut world = World::asks("GET");
    world.feed(&frame(4, 0, 0, &[0, 4, 0, 0, 0, 3]));
    world.out();
    world.writes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabcd", b"e");
    assert!(world.stream.poll_flush().is_pending() && world.stream.poll_write(b"fghi", b"").is_pending());
    assert_eq!((world.out()[1].2.as_slice(), world.stream.progress()), (&b"abc"[..], 3));
    world.feed(&frame(8, 0, 1, &[0, 0, 0, 9]));
    assert!(world.stream.poll_flush().is_ready());
    // What is beyond the length is dropped.
    assert_eq!(world.writes(b"fghi", b"beyond"), 10);
    assert_eq!(world.out(), [(0, END_STREAM, b"defghi".to_vec())]);
}

#[test]
fn one_that_is_given_up_is_reset_for_what_became_of_it() {
    let reason = |world: &World| world.out().iter().find(|(kind, ..)| *kind == 3).map(|(_, _, payload)| payload[3]);
    let unanswered = World::asks("GET");
    let World { connection, stream } = unanswered;
    stream.end(false);
    assert_eq!(connection.borrow().unwritten()[9..], [0, 0, 0, 8]);
    let mut cut = World::asks("GET");
    cut.writes(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabcd", b"");
    assert_eq!(reason(&cut), None);
    let World { connection, stream } = cut;
    stream.end(false);
    assert_eq!(connection.borrow().unwritten()[9..], [0, 0, 0, 2]);
    // Dropped, as by a task that has panicked.
    let World { connection, stream } = World::asks("GET");
    drop(stream);
    assert_eq!(connection.borrow().unwritten()[9..], [0, 0, 0, 2]);
}

/// A response of HTTP/1.1 by its framing.
fn response(framing: u8, content: &[u8], chunk: usize, trailers: bool) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\nx-a: 1\r\n".to_vec();
    if framing == 0 {
        bytes.extend(format!("content-length: {}\r\n\r\n", content.len()).as_bytes());
        return [bytes, content.to_vec()].concat();
    }
    bytes.extend(b"transfer-encoding: chunked\r\n\r\n");
    for piece in content.chunks(chunk) {
        bytes.extend([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
    }
    bytes.extend(if trailers { &b"0\r\nx-t: 1\r\n\r\n"[..] } else { b"0\r\n\r\n" });
    bytes
}

proptest! {
    #[test]
    fn a_response_arrives_whole_however_it_was_written(
        framing in 0..2_u8,
        content in proptest::collection::vec(any::<u8>(), 0..200),
        chunk in 1..60_usize,
        trailers: bool,
        window in prop_oneof![0..30_u8, Just(255)],
        cuts in proptest::collection::vec((0..80_usize, 0..80_usize), 1..30),
    ) {
        let bytes = response(framing, &content, chunk, trailers);
        let trailers = trailers && framing == 1;
        let mut world = World::asks("GET");
        world.feed(&frame(4, 0, 0, &[0, 4, 0, 0, 0, window]));
        world.out();
        let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let mut frames = Vec::new();
        let mut rest = &bytes[..];
        for (number, (first, second)) in cuts.iter().cycle().enumerate() {
            if rest.is_empty() {
                break;
            }
            // The head comes in one piece.
            let first = if number == 0 { head + first } else { *first }.min(rest.len());
            let second = (first + second).min(rest.len());
            match world.stream.poll_write(&rest[..first], &rest[first..second]) {
                Poll::Ready(size) => {
                    prop_assert_eq!(size.unwrap(), second);
                    rest = &rest[second..];
                }
                Poll::Pending => world.feed(&frame(8, 0, 1, &[0, 0, 0, 1])),
            }
            frames.extend(world.out());
        }
        for _ in 0..2 * content.len() + 10 {
            if world.stream.poll_flush().is_ready() {
                break;
            }
            world.feed(&frame(8, 0, 1, &[0, 0, 0, 1]));
            frames.extend(world.out());
        }
        prop_assert!(world.stream.poll_flush().is_ready());
        let found: Vec<u8> = frames.iter().filter(|(kind, ..)| *kind == 0).flat_map(|(_, _, payload)| payload.clone()).collect();
        prop_assert_eq!(found, content);
        let ends = frames.iter().filter(|(_, flags, _)| flags & END_STREAM != 0).count();
        prop_assert_eq!((ends, frames.last().unwrap().1 & END_STREAM), (1, END_STREAM));
        let heads = frames.iter().filter(|(kind, ..)| *kind == 1).count();
        prop_assert_eq!(heads, 1 + usize::from(trailers));
        world.stream.end(false);
        prop_assert!(world.connection.borrow().unwritten().is_empty());
    }
}
