//! Frames that come for streams that were reset or answered, and requests beyond those that are served.

use super::*;

/// How many of the frames it takes until the connection ends, and for too much of what.
fn ends_after(connection: &mut Connection, mut next: impl FnMut(u32) -> Vec<u8>) -> (u32, Option<FloodKind>) {
    let count = (0..400_000).find(|number| {
        connection.feed(&next(*number));
        connection.unwritten().len().checked_sub(32 * 1024).into_iter().for_each(|_| drop(written(connection)));
        connection.failed().is_some()
    });
    assert_eq!(failed(connection), Some(Reason::EnhanceYourCalm));
    (count.unwrap(), connection.flood().spent())
}

/// A connection whose first request was answered before all of it had come.
fn answered_early() -> Connection {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    answer(&mut connection, key);
    connection
}

#[test]
fn data_on_a_stream_that_was_answered_is_counted_frame_by_frame() {
    let mut connection = answered_early();
    assert_eq!(ends_after(&mut connection, |_| data(1, b"x")), (8_192, Some(FloodKind::LateFrames)));
    // Padding is nobody's data, and a frame is one whatever it has of it.
    let mut connection = answered_early();
    assert_eq!(ends_after(&mut connection, |_| padded(1, b"x", 9)), (8_192, Some(FloodKind::LateFrames)));
}

#[test]
fn data_on_a_stream_that_we_have_reset_is_counted_while_somebody_holds_it_and_later() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads_of(1, "3"));
    connection.feed(&data(1, b"more"));
    assert!(connection.has_failed(key) && connection.failed().is_none());
    (0..8_000).for_each(|_| connection.feed(&data(1, b"x")));
    assert_eq!(connection.failed(), None);
    connection.release(key, Reason::Internal);
    assert_eq!(ends_after(&mut connection, |_| data(1, b"x")), (192, Some(FloodKind::LateFrames)));
}

#[test]
fn header_blocks_on_such_a_stream_are_counted_too() {
    let trailers = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &block(&[("x-a", "1")]));
    let mut connection = answered_early();
    assert_eq!(ends_after(&mut connection, |_| trailers.clone()), (8_192, Some(FloodKind::LateFrames)));
    let mut connection = begun();
    let key = taken(&mut connection, &uploads_of(1, "3"));
    connection.feed(&data(1, b"more"));
    assert_eq!(ends_after(&mut connection, |_| trailers.clone()), (8_192, Some(FloodKind::LateFrames)));
    connection.release(key, Reason::Internal);
}

#[test]
fn requests_behind_the_last_one_are_counted() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    connection.go_away();
    connection.take_no_more();
    assert_eq!(ends_after(&mut connection, |number| asks(2 * number + 3)), (8_192, Some(FloodKind::LateFrames)));
    connection.release(key, Reason::Internal);
}

#[test]
fn requests_beyond_those_that_are_served_are_counted() {
    let mut connection = begun();
    for number in 0..MAX_STREAMS {
        taken(&mut connection, &asks(2 * number + 1));
    }
    let next = 2 * MAX_STREAMS + 1;
    assert_eq!(ends_after(&mut connection, |number| asks(2 * number + next)), (1_000, Some(FloodKind::RefusedStreams)));
    assert_eq!(connection.take_refused(), RefusedUnread { by_streams: 1_001, by_heads: 0 });
}

#[test]
fn requests_that_are_refused_for_what_their_client_holds_are_counted_and_earn_nothing() {
    let mut connection = answered_early();
    let refused = (0..10_000).find(|number| {
        connection.feed(&asks(2 * number + 3));
        let key = connection.next_incoming().unwrap();
        connection.refuse(key);
        written(&mut connection);
        connection.failed().is_some()
    });
    assert_eq!((refused, connection.flood().spent()), (Some(1_000), Some(FloodKind::RefusedStreams)));
    // Refused for what all hold, they cost nothing, and earn no late frames either.
    let mut connection = answered_early();
    let late = (0..10_000).find(|number| {
        let stream = 2 * number + 3;
        connection.feed(&uploads(stream));
        let key = connection.next_incoming().unwrap();
        connection.release(key, Reason::RefusedStream);
        connection.feed(&data(stream, b"x"));
        written(&mut connection);
        connection.failed().is_some()
    });
    assert_eq!((late, connection.flood().spent()), (Some(8_192), Some(FloodKind::LateFrames)));
}

#[test]
fn uploads_that_are_refused_early_may_send_what_they_had_a_window_for() {
    let mut connection = begun();
    let piece = vec![0; 16_384];
    for number in 0..10_000 {
        let stream = 2 * number + 1;
        let key = taken(&mut connection, &uploads(stream));
        answer(&mut connection, key);
        (0..16).for_each(|_| connection.feed(&data(stream, &piece)));
        connection.feed(&last_data(stream, b""));
        written(&mut connection);
    }
    assert_eq!(connection.failed(), None);
}

#[test]
fn what_a_client_makes_us_do_is_counted_in_frames_and_decoded_bytes() {
    let mut connection = begun();
    connection.take_work();
    let head = "GET / HTTP/1.1\r\nhost: h\r\nx-a: \r\n".len() + 3_000;
    let fields = [&get("/")[..], &block(&[("x-a", &"v".repeat(3_000))])].concat();
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &fields));
    assert_eq!(connection.take_work(), Work { frames: 1, decoded: head });
    (0..7).for_each(|_| connection.feed(&data(1, b"x")));
    connection.feed(&frame(kind::PING, 0, 0, &[0; 8]));
    // One that has only begun is none yet.
    connection.feed(&frame(kind::PING, 0, 0, &[0; 8])[..10]);
    assert_eq!(connection.take_work(), Work { frames: 8, decoded: 0 });
    connection.feed(&frame(kind::PING, 0, 0, &[0; 8])[10..]);
    assert_eq!(connection.take_work(), Work { frames: 1, decoded: 0 });
    // A block that is skipped is work as well: each field with what it counts beside its bytes.
    let key = connection.next_incoming().unwrap();
    answer(&mut connection, key);
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &[0x82; 1_000]));
    assert_eq!(connection.take_work(), Work { frames: 1, decoded: 1_000 * (":method".len() + "GET".len() + 32) });
}
