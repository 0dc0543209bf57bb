//! Frames that come on a stream, by the state that it is in (RFC 9113, 5.1).

use super::*;

/// The reaction to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Ignored,
    Taken,
    Reset(Reason),
    End(Reason),
}

use Then::{End, Ignored, Reset, Taken};

/// How stream 1 gets where it is.
fn put(connection: &mut Connection, state: &str) {
    match state {
        "idle" => {}
        "open" => _ = taken(connection, &uploads(1)),
        "half-closed" => _ = taken(connection, &asks(1)),
        "answered" => {
            let key = taken(connection, &uploads(1));
            respond(connection, key, 200, true);
        }
        "reset by us and held" => {
            taken(connection, &uploads(1));
            connection.feed(&update(1, 0));
        }
        "reset by us" => {
            let key = taken(connection, &uploads(1));
            connection.release(key, Reason::Cancel);
        }
        "answered and reset by us" => {
            let key = taken(connection, &uploads(1));
            answer(connection, key);
        }
        "refused" => {
            for number in 0..MAX_STREAMS {
                taken(connection, &asks(2 * number + 101));
            }
            // A lower number may not come any more: this one is the highest.
            connection.feed(&uploads(201));
        }
        "reset by the client and held" => {
            taken(connection, &uploads(1));
            connection.feed(&reset(1, Reason::Cancel));
        }
        "reset by the client" => {
            let key = taken(connection, &uploads(1));
            connection.feed(&reset(1, Reason::Cancel));
            connection.release(key, Reason::Cancel);
        }
        "ended" | "forgotten" => {
            let key = taken(connection, &asks(1));
            answer(connection, key);
            for number in 0..if state == "forgotten" { 64 } else { 63 } {
                let key = taken(connection, &asks(2 * number + 3));
                answer(connection, key);
            }
        }
        "skipped" => _ = taken(connection, &asks(3)),
        other => panic!("{other}"),
    }
    written(connection);
    assert_eq!(connection.failed(), None);
}

#[test]
fn each_frame_in_each_state() {
    const CLOSED: Reason = Reason::StreamClosed;
    const WRONG: Reason = Reason::Protocol;
    for (state, data_then, trailers_then, reset_then, update_then) in [
        ("idle", End(WRONG), Taken, End(WRONG), End(WRONG)),
        ("open", Taken, Taken, Ignored, Ignored),
        ("answered", Taken, Taken, Ignored, Ignored),
        ("half-closed", Reset(CLOSED), Reset(CLOSED), Ignored, Ignored),
        ("reset by us and held", Ignored, Ignored, Ignored, Ignored),
        ("reset by us", Ignored, Ignored, Ignored, Ignored),
        ("answered and reset by us", Ignored, Ignored, Ignored, Ignored),
        ("refused", Ignored, Ignored, Ignored, Ignored),
        ("reset by the client and held", Reset(CLOSED), Reset(CLOSED), Ignored, Ignored),
        ("reset by the client", Reset(CLOSED), End(CLOSED), Ignored, Ignored),
        ("ended", Reset(CLOSED), End(CLOSED), Ignored, Ignored),
        ("forgotten", Reset(CLOSED), End(WRONG), Ignored, Ignored),
        ("skipped", Reset(CLOSED), End(WRONG), Ignored, Ignored),
    ] {
        let id = if state == "refused" { 201 } else { 1 };
        let ends = flag::END_HEADERS | flag::END_STREAM;
        let trailers = frame(kind::HEADERS, ends, id, &if state == "idle" { get("/") } else { block(&[("x-a", "1")]) });
        for (bytes, then) in [
            (data(id, b"abc"), data_then),
            (padded(id, b"abc", 4), data_then),
            (trailers, trailers_then),
            (reset(id, Reason::Cancel), reset_then),
            (update(id, 9), update_then),
        ] {
            let mut connection = begun();
            put(&mut connection, state);
            connection.feed(&bytes);
            let key = connection.streams.keys().find(|key| key.id == id);
            let is_taken =
                key.is_some_and(|key| matches!(connection.coming(key), Coming::Data(b"abc") | Coming::End(_)));
            let expected = match then {
                Ignored | Taken => Vec::new(),
                Reset(reason) => reset(id, reason),
                End(reason) => goaway(connection.streams.last(), reason),
            };
            assert_eq!(connection.unwritten(), expected, "{state}: {bytes:?}");
            let is_ended = matches!(then, End(_));
            assert_eq!(connection.failed().is_some(), is_ended, "{state}: {bytes:?}");
            assert!(then == Ignored || is_taken == (then == Taken), "{state}: {bytes:?}");
            // Whatever became of it, it counts in the connection's window.
            let size = if bytes[3] == kind::DATA { i64::try_from(bytes.len()).unwrap() - 9 } else { 0 };
            assert!(is_ended || connection.recv_window == 4 * 1024 * 1024 - size, "{state}");
            let unread = if is_taken && size > 0 { 3 } else { 0 };
            assert!(is_ended || i64::from(connection.owed) == size - unread, "{state}");
        }
    }
}

#[test]
fn a_thousand_and_twenty_four_resets_are_remembered() {
    let mut connection = begun();
    for number in 0..=1_024 {
        let key = taken(&mut connection, &uploads(2 * number + 1));
        connection.release(key, Reason::Cancel);
        written(&mut connection);
    }
    connection.feed(&data(3, b"x"));
    assert_eq!(connection.unwritten(), b"");
    connection.feed(&data(1, b"x"));
    assert_eq!(connection.unwritten(), reset(1, Reason::StreamClosed));
    // And now it is known again.
    connection.feed(&data(1, b"x"));
    assert_eq!(written(&mut connection), reset(1, Reason::StreamClosed));
}

#[test]
fn numbers_rise_and_are_odd() {
    let mut connection = begun();
    taken(&mut connection, &asks(5));
    connection.feed(&asks(3));
    assert_eq!(failed(&connection), Some(Reason::Protocol));
    for stream in [2, 4, 0x7FFF_FFFE] {
        for bytes in [asks(stream), data(stream, b"x"), reset(stream, Reason::Cancel), update(stream, 1)] {
            let mut connection = begun();
            taken(&mut connection, &asks(5));
            connection.feed(&bytes);
            assert_eq!(failed(&connection), Some(Reason::Protocol), "{bytes:?}");
        }
    }
    let mut connection = begun();
    let key = taken(&mut connection, &asks(0x7FFF_FFFF));
    answer(&mut connection, key);
    assert_eq!(connection.failed(), None);
}

#[test]
fn a_reset_in_the_middle_of_a_frame_takes_the_rest_of_it_along() {
    for by_us in [false, true] {
        let mut connection = begun();
        let key = taken(&mut connection, &uploads(1));
        let mut bytes = padded(1, &[1; 100], 20);
        bytes[4] |= flag::END_STREAM;
        connection.feed(&data(1, b"unread"));
        connection.feed(&bytes[..60]);
        if by_us {
            connection.release(key, Reason::Cancel);
            // Its slot is used by another one.
            assert_eq!(connection.next_incoming(), None);
            connection.feed(&bytes[60..]);
            taken(&mut connection, &uploads(3));
            assert_eq!(written(&mut connection), reset(1, Reason::Cancel));
        } else {
            connection.feed(&bytes[60..]);
            connection.feed(&reset(1, Reason::Cancel));
            connection.release(key, Reason::Cancel);
            assert_eq!(connection.unwritten(), b"");
        }
        assert_eq!((connection.recv_window, connection.owed), (4 * 1024 * 1024 - 127, 127));
    }
}

#[test]
fn the_length_of_content_has_to_be_what_was_said() {
    for (length, pieces, reason) in [
        ("5", vec![data(1, b"123"), last_data(1, b"45")], None),
        ("5", vec![data(1, b"12345"), last_data(1, b"")], None),
        ("5", vec![data(1, b"12345"), frame(kind::HEADERS, 5, 1, &block(&[("x-a", "1")]))], None),
        ("0", vec![last_data(1, b"")], None),
        ("0", vec![data(1, b"1")], Some(Reason::Protocol)),
        ("5", vec![data(1, b"123456")], Some(Reason::Protocol)),
        ("5", vec![last_data(1, b"1234")], Some(Reason::Protocol)),
        ("5", vec![frame(kind::HEADERS, 5, 1, &block(&[("x-a", "1")]))], Some(Reason::Protocol)),
        ("18446744073709551615", vec![data(1, b"1"), last_data(1, b"")], Some(Reason::Protocol)),
    ] {
        let mut connection = begun();
        let key = taken(&mut connection, &uploads_of(1, length));
        assert!(!connection.is_chunked(key));
        for piece in &pieces {
            connection.feed(piece);
        }
        assert_eq!(connection.unwritten(), reason.map(|reason| reset(1, reason)).unwrap_or_default(), "{length}");
        assert_eq!(connection.has_failed(key), reason.is_some());
    }
}

#[test]
fn trailers_are_given_out_as_lines_and_bounded() {
    let ends = flag::END_HEADERS | flag::END_STREAM;
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.feed(&data(1, b"abc"));
    connection.feed(&frame(kind::HEADERS, ends, 1, &block(&[("x-a", "1"), ("x-b", "")])));
    assert_eq!(connection.coming(key), Coming::Data(b"abc"));
    connection.consume(key, 2);
    assert_eq!(connection.coming(key), Coming::Data(b"c"));
    connection.consume(key, 1);
    assert_eq!(connection.coming(key), Coming::End(b"x-a: 1\r\nx-b: \r\n"));
    for (size, is_refused) in [(4096 - 32 - 3, false), (4096 - 32 - 2, true)] {
        let mut connection = begun();
        let key = taken(&mut connection, &uploads(1));
        connection.feed(&frame(kind::HEADERS, ends, 1, &block(&[("x-a", &"v".repeat(size))])));
        assert_eq!(connection.has_failed(key), is_refused, "{size}");
    }
}

#[test]
fn whoever_serves_a_stream_is_woken_by_what_comes_and_by_its_end() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::{Wake, Waker};

    #[derive(Default)]
    struct Woken(AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let woken = Arc::new(Woken::default());
    let mut connection = begun();
    connection.feed(&window(2));
    let key = taken(&mut connection, &uploads(1));
    connection.set_waker(key, Waker::from(Arc::clone(&woken)));
    respond(&mut connection, key, 200, false);
    let is_woken = |connection: &mut Connection, bytes: &[u8]| {
        woken.0.store(false, Ordering::Relaxed);
        connection.feed(bytes);
        woken.0.load(Ordering::Relaxed)
    };
    assert!(is_woken(&mut connection, &data(1, b"x")));
    assert!(!is_woken(&mut connection, &frame(kind::PING, 0, 0, &[0; 8])));
    connection.send(key, b"1234", b"", Sending::More);
    assert!(!is_woken(&mut connection, &update(1, 1)));
    assert!(is_woken(&mut connection, &update(1, 1)), "all has gone, so there may be more");
    assert!(is_woken(&mut connection, &last_data(1, b"")));
    assert!(is_woken(&mut connection, &reset(1, Reason::Cancel)));
    let other = taken(&mut connection, &uploads(3));
    connection.set_waker(other, Waker::from(Arc::clone(&woken)));
    assert!(is_woken(&mut connection, &update(3, 0)));
    let third = taken(&mut connection, &uploads(5));
    connection.set_waker(third, Waker::from(Arc::clone(&woken)));
    assert!(is_woken(&mut connection, &update(0, 0)));
}
