//! Beginnings, heads of frames, header blocks, requests.

use super::*;

#[test]
fn we_begin_with_settings_and_a_window() {
    let connection =
        Connection::new(Limits { max_streams: 100, max_header_list: 9_000, is_of_many: false }, Tick::ZERO);
    let expected: &[&[u8]] = &[
        &[0, 0, 24, 4, 0, 0, 0, 0, 0],
        &[0, 3, 0, 0, 0, 100],
        // A hundredth of 2 MiB.
        &[0, 4, 0, 0, 0x51, 0xEB],
        &[0, 6, 0, 0, 0x23, 0x28],
        &[0, 8, 0, 0, 0, 1],
        // 4 MiB - 65,535.
        &[0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0x3F, 0, 1],
    ];
    assert_eq!(connection.unwritten(), expected.concat());
    assert!(!connection.has_begun() && !connection.is_over() && !connection.is_clogged());
}

#[test]
fn a_request_is_given_out_and_its_answer_goes_out() {
    let mut connection = begun();
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &get("/a")));
    let key = connection.next_incoming().unwrap();
    assert_eq!(connection.next_incoming(), None);
    assert_eq!(connection.head(key), b"GET /a HTTP/1.1\r\nhost: h\r\n");
    assert_eq!(
        (connection.kind(key), connection.is_chunked(key), connection.fault(key)),
        (RequestKind::Other, false, None)
    );
    assert_eq!(connection.coming(key), Coming::End(&[]));
    answer(&mut connection, key);
    assert_eq!(connection.unwritten(), frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0x89]));
    assert_eq!((connection.coming(key), connection.has_failed(key)), (Coming::Failed, true));
}

#[test]
fn a_preface_is_what_it_is_in_any_pieces() {
    for cut in 1..=PREFACE.len() {
        let mut connection = Connection::new(limits(), Tick::ZERO);
        PREFACE.chunks(cut).for_each(|piece| connection.feed(piece));
        assert!(connection.has_begun() && connection.failed().is_none(), "{cut}");
        for at in 0..PREFACE.len() {
            let mut other = PREFACE.to_vec();
            other[at] ^= 0x20;
            let mut connection = Connection::new(limits(), Tick::ZERO);
            other.chunks(cut).for_each(|piece| connection.feed(piece));
            assert_eq!(failed(&connection), Some(Reason::Protocol), "{cut} {at}");
            assert!(connection.is_over());
        }
    }
}

#[test]
fn the_first_frame_is_settings() {
    for (bytes, is_refused) in [
        (frame(kind::SETTINGS, 0, 0, &[]), false),
        (window(5), false),
        (frame(kind::SETTINGS, flag::ACK, 0, &[]), true),
        (frame(kind::PING, 0, 0, b"12345678"), true),
        (asks(1), true),
        (data(1, b"x"), true),
        (frame(0xEE, 0, 0, &[]), true),
    ] {
        let mut connection = Connection::new(limits(), Tick::ZERO);
        connection.feed(PREFACE);
        connection.feed(&bytes);
        assert_eq!(failed(&connection), is_refused.then_some(Reason::Protocol), "{bytes:?}");
    }
}

#[test]
fn a_frame_above_the_size_is_refused_by_its_head() {
    for kind in 0..=0x10 {
        let mut connection = begun();
        // 16,385.
        connection.feed(&[0, 0x40, 1, kind, 0, 0, 0, 0, 1]);
        assert_eq!(failed(&connection), Some(Reason::FrameSize), "{kind}");
    }
    let mut connection = begun();
    connection.feed(&frame(0xEE, 0, 1, &vec![0; 16_384]));
    assert_eq!(connection.failed(), None);
}

#[test]
fn what_we_end_a_connection_for_is_said_in_goaway_with_its_last_stream() {
    let mut connection = begun();
    let keys = [taken(&mut connection, &asks(1)), taken(&mut connection, &uploads(7))];
    connection.feed(&frame(kind::PUSH_PROMISE, 0, 1, &[0; 4]));
    assert_eq!(connection.unwritten(), goaway(7, Reason::Protocol));
    assert!(connection.is_over());
    for key in keys {
        assert_eq!((connection.coming(key), connection.has_failed(key)), (Coming::Failed, true));
        respond(&mut connection, key, 200, false);
        connection.send(key, b"x", b"", Sending::End);
        connection.finish(key);
        connection.release(key, Reason::Internal);
    }
    // Nothing is read and nothing said behind it.
    connection.feed(&asks(9));
    connection.go_away();
    connection.fail(Reason::Internal, "once more");
    assert_eq!(connection.unwritten(), goaway(7, Reason::Protocol));
    assert_eq!((connection.next_incoming(), failed(&connection)), (None, Some(Reason::Protocol)));
}

#[test]
fn a_header_block_may_be_cut_anywhere_and_nothing_comes_between() {
    let head = get("/a");
    for cut in 0..=head.len() {
        let mut connection = begun();
        connection.feed(&frame(kind::HEADERS, flag::END_STREAM, 1, &head[..cut]));
        assert_eq!(connection.next_incoming(), None);
        connection.feed(&frame(kind::CONTINUATION, 0, 1, &[]));
        connection.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, &head[cut..]));
        let key = connection.next_incoming().unwrap();
        assert_eq!(connection.head(key), b"GET /a HTTP/1.1\r\nhost: h\r\n");
        assert_eq!(connection.coming(key), Coming::End(&[]));
    }
    for between in [
        asks(1),
        data(1, b"x"),
        frame(kind::PING, 0, 0, b"12345678"),
        frame(0xEE, 0, 1, &[]),
        frame(kind::CONTINUATION, flag::END_HEADERS, 3, &head),
        frame(kind::CONTINUATION, flag::END_HEADERS, 0, &head),
    ] {
        let mut connection = begun();
        connection.feed(&frame(kind::HEADERS, 0, 1, &head));
        connection.feed(&between);
        assert_eq!(failed(&connection), Some(Reason::Protocol), "{between:?}");
    }
    let mut connection = begun();
    connection.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, 1, &head));
    assert_eq!(failed(&connection), Some(Reason::Protocol));
}

#[test]
fn a_header_block_ends_at_its_bound() {
    let most = limits().max_header_list as usize;
    for (length, is_refused) in [(most, false), (most + 1, true)] {
        let mut connection = begun();
        connection.feed(&frame(kind::HEADERS, 0, 1, &[0; 1000]));
        connection.feed(&frame(kind::CONTINUATION, 0, 1, &vec![0; length - 1000]));
        assert_eq!(failed(&connection), is_refused.then_some(Reason::EnhanceYourCalm), "{length}");
    }
}

#[test]
fn padding_and_priority_of_headers_are_skipped_and_have_to_be_there() {
    const BOTH: u8 = flag::PADDED | flag::PRIORITY;
    let head = get("/a");
    let ends = flag::END_HEADERS | flag::END_STREAM;
    for (flags, before, after) in [
        (flag::PADDED, &[3][..], 3),
        (flag::PADDED, &[0], 0),
        (flag::PRIORITY, &[0x80, 0, 0, 3, 9], 0),
        (BOTH, &[2, 0, 0, 0, 0, 1], 2),
    ] {
        let mut connection = begun();
        let payload = [before, &head, &vec![0; after]].concat();
        let key = taken(&mut connection, &frame(kind::HEADERS, ends | flags, 1, &payload));
        assert_eq!(connection.head(key), b"GET /a HTTP/1.1\r\nhost: h\r\n", "{flags:#x}");
    }
    for (flags, payload, reason) in [
        (flag::PADDED, &[][..], Reason::FrameSize),
        (flag::PADDED, &[1], Reason::Protocol),
        (flag::PADDED, &[3, 0x82, 0x82], Reason::Protocol),
        (flag::PRIORITY, &[0, 0, 0, 0], Reason::FrameSize),
        (BOTH, &[0, 0, 0, 0, 0], Reason::FrameSize),
        (BOTH, &[1, 0, 0, 0, 0, 0], Reason::Protocol),
    ] {
        let mut connection = begun();
        connection.feed(&frame(kind::HEADERS, ends | flags, 1, payload));
        assert_eq!(failed(&connection), Some(reason), "{flags:#x} {payload:?}");
    }
}

#[test]
fn a_block_that_cannot_be_decoded_ends_the_connection_whatever_its_stream() {
    let bad = |stream| frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, stream, &[0x80]);
    let mut fresh = begun();
    fresh.feed(&bad(1));
    assert_eq!((failed(&fresh), fresh.next_incoming()), (Some(Reason::Compression), None));
    let mut open = begun();
    open.feed(&uploads(1));
    open.feed(&bad(1));
    assert_eq!(failed(&open), Some(Reason::Compression));
    let mut full = begun();
    (0..MAX_STREAMS).for_each(|number| full.feed(&asks(2 * number + 1)));
    full.feed(&bad(99));
    assert_eq!(failed(&full), Some(Reason::Compression));
    let mut was_reset = begun();
    let key = taken(&mut was_reset, &uploads(1));
    was_reset.release(key, Reason::Internal);
    was_reset.feed(&bad(1));
    assert_eq!(failed(&was_reset), Some(Reason::Compression));
}

#[test]
fn what_nobody_looks_at_still_changes_the_table() {
    // A literal that is indexed: `x-a: 1`.
    let indexed = [0x40, 3, b'x', b'-', b'a', 1, b'1'];
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.release(key, Reason::Internal);
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &indexed));
    let head = [&get("/a")[..], &[0xBE]].concat();
    let key = taken(&mut connection, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &head));
    assert_eq!(connection.head(key), b"GET /a HTTP/1.1\r\nhost: h\r\nx-a: 1\r\n");
}

#[test]
fn more_requests_than_allowed_are_refused_and_a_place_that_is_free_again_is_taken() {
    let mut connection = begun();
    let keys: Vec<_> = (0..MAX_STREAMS).map(|number| taken(&mut connection, &asks(2 * number + 1))).collect();
    connection.feed(&asks(21));
    assert_eq!(written(&mut connection), reset(21, Reason::RefusedStream));
    assert_eq!(connection.next_incoming(), None);
    answer(&mut connection, keys[4]);
    taken(&mut connection, &asks(23));
    connection.feed(&asks(25));
    assert!(written(&mut connection).ends_with(&reset(25, Reason::RefusedStream)));
    assert_eq!(connection.failed(), None);
}

#[test]
fn a_stream_that_is_over_for_the_client_takes_no_place() {
    // What it has been sent to the end is closed (RFC 9113, 5.1), though its server has not let it go yet.
    let mut connection = begun_with(Limits { max_streams: 1, ..limits() });
    let key = taken(&mut connection, &asks(1));
    respond(&mut connection, key, 200, true);
    written(&mut connection);
    assert!(connection.has_ended(key));
    connection.feed(&asks(3));
    assert_eq!(written(&mut connection), b"");
    let next = connection.next_incoming().expect("it was refused");
    // One whose request goes on is half-closed, and counts.
    connection.release(key, Reason::Internal);
    answer(&mut connection, next);
    let upload = taken(&mut connection, &uploads(5));
    respond(&mut connection, upload, 200, true);
    written(&mut connection);
    connection.feed(&asks(7));
    assert_eq!(written(&mut connection), reset(7, Reason::RefusedStream));
}

#[test]
fn giving_up_requests_makes_room_for_twice_as_many_and_no_more() {
    let mut connection = begun();
    let mut opened = 0;
    for number in 0..100 {
        let stream = 2 * number + 1;
        connection.feed(&asks(stream));
        opened += usize::from(connection.next_incoming().is_some());
        connection.feed(&reset(stream, Reason::Cancel));
    }
    assert_eq!(opened, 2 * MAX_STREAMS as usize);
}

#[test]
fn a_malformed_request_is_answered_and_reset_behind_that() {
    let mut connection = begun();
    let head = block(&[(":method", "GET"), (":scheme", "http"), (":authority", "h")]);
    let key = taken(&mut connection, &frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &head));
    assert!(connection.fault(key).is_some());
    respond(&mut connection, key, 400, true);
    connection.release(key, Reason::Internal);
    let answer = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0x8C]);
    assert_eq!(written(&mut connection), [answer, reset(1, Reason::Protocol)].concat());
}

#[test]
fn a_tunnel_has_no_trailers() {
    let fields =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http"), (":path", "/"), (":authority", "h")];
    let mut connection = begun();
    let key = taken(&mut connection, &frame(kind::HEADERS, flag::END_HEADERS, 1, &block(&fields)));
    assert_eq!((connection.kind(key), connection.is_chunked(key)), (RequestKind::Connect, false));
    connection.feed(&data(1, b"abc"));
    assert_eq!(connection.coming(key), Coming::Data(b"abc"));
    // RFC 9113, 8.5.
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[("x-a", "1")])));
    assert_eq!(written(&mut connection), reset(1, Reason::Protocol));
    assert_eq!(connection.coming(key), Coming::Failed);
}

#[test]
fn what_a_tunnel_says_of_a_length_is_not_counted() {
    let mut fields = vec![(":method", "CONNECT"), (":protocol", "websocket"), (":scheme", "http")];
    fields.extend([(":path", "/"), (":authority", "h"), ("content-length", "2")]);
    let mut connection = begun();
    let key = taken(&mut connection, &frame(kind::HEADERS, flag::END_HEADERS, 1, &block(&fields)));
    connection.feed(&data(1, b"abc"));
    assert_eq!(connection.coming(key), Coming::Data(b"abc"));
}
