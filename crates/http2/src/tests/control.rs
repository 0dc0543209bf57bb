//! Frames that carry nothing of a message.

use super::*;

#[test]
fn each_wrong_frame_ends_the_connection_for_its_reason() {
    for (bytes, reason) in [
        (frame(kind::SETTINGS, 0, 1, &[]), Reason::Protocol),
        (frame(kind::SETTINGS, flag::ACK, 0, &[0; 6]), Reason::FrameSize),
        (frame(kind::SETTINGS, 0, 0, &[0; 5]), Reason::FrameSize),
        (window(0x8000_0000), Reason::FlowControl),
        (frame(kind::PING, 0, 0, &[0; 7]), Reason::FrameSize),
        (frame(kind::PING, 0, 0, &[0; 9]), Reason::FrameSize),
        (frame(kind::PING, 0, 1, &[0; 8]), Reason::Protocol),
        (frame(kind::GOAWAY, 0, 1, &[0; 8]), Reason::Protocol),
        (frame(kind::GOAWAY, 0, 0, &[0; 7]), Reason::FrameSize),
        (frame(kind::PRIORITY, 0, 0, &[0; 5]), Reason::Protocol),
        (frame(kind::RST_STREAM, 0, 1, &[0; 3]), Reason::FrameSize),
        (frame(kind::RST_STREAM, 0, 1, &[0; 5]), Reason::FrameSize),
        (frame(kind::RST_STREAM, 0, 0, &[0; 4]), Reason::Protocol),
        (frame(kind::WINDOW_UPDATE, 0, 0, &[0; 3]), Reason::FrameSize),
        (frame(kind::WINDOW_UPDATE, 0, 1, &[0; 5]), Reason::FrameSize),
        (update(0, 0), Reason::Protocol),
        // The reserved bit is no part of it.
        (update(0, 0x8000_0000), Reason::Protocol),
        (update(0, 0x7FFF_FFFF), Reason::FlowControl),
        (frame(kind::PUSH_PROMISE, flag::END_HEADERS, 1, &[0; 4]), Reason::Protocol),
        (frame(kind::HEADERS, flag::END_HEADERS, 0, &get("/")), Reason::Protocol),
        (uploads(2), Reason::Protocol),
        (frame(kind::DATA, 0, 0, b"x"), Reason::Protocol),
        (frame(kind::DATA, flag::PADDED, 1, &[]), Reason::FrameSize),
        (frame(kind::DATA, flag::PADDED, 1, &[1]), Reason::Protocol),
    ] {
        let mut connection = begun();
        connection.feed(&uploads(1));
        connection.feed(&bytes);
        assert_eq!(failed(&connection), Some(reason), "{bytes:?}");
        assert_eq!(connection.unwritten(), goaway(1, reason));
    }
}

#[test]
fn what_is_right_is_answered_or_borne() {
    for (bytes, answer) in [
        (frame(kind::SETTINGS, flag::ACK, 0, &[]), Vec::new()),
        (frame(kind::SETTINGS, 0, 0, &[0xAB, 0xCD, 0, 0, 0, 1]), frame(kind::SETTINGS, flag::ACK, 0, &[])),
        (frame(kind::PING, 0, 0, b"12345678"), frame(kind::PING, flag::ACK, 0, b"12345678")),
        (frame(kind::PING, flag::ACK, 0, b"12345678"), Vec::new()),
        (frame(kind::PING, flag::ACK, 0, b"sluice\x02\x07"), Vec::new()),
        (frame(kind::PRIORITY, 0, 1, &[0, 0, 0, 3, 1]), Vec::new()),
        (frame(kind::PRIORITY, 0, 99, &[0, 0, 0, 3, 1]), Vec::new()),
        (update(0, 0x7FFF_FFFF - 65_535), Vec::new()),
        (update(1, 0x7FFF_FFFF - 65_535), Vec::new()),
        (frame(0xEE, 0xFF, 3, b"what"), Vec::new()),
        (reset(1, Reason::Cancel), Vec::new()),
    ] {
        let mut connection = begun();
        connection.feed(&uploads(1));
        connection.feed(&bytes);
        assert_eq!((failed(&connection), connection.unwritten()), (None, &answer[..]), "{bytes:?}");
        assert!(!connection.is_over());
    }
}

#[test]
fn windows_of_streams_are_their_own_matter() {
    for (by, reason) in [(0, Reason::Protocol), (0x7FFF_FFFF - 65_534, Reason::FlowControl)] {
        let mut connection = begun();
        let key = taken(&mut connection, &asks(1));
        let other = taken(&mut connection, &asks(3));
        connection.feed(&update(1, by));
        assert_eq!(connection.unwritten(), reset(1, reason));
        assert!(connection.has_failed(key) && !connection.has_failed(other));
        // What it says besides is not heard.
        connection.feed(&update(1, 0));
        connection.feed(&data(1, b"x"));
        assert_eq!((connection.unwritten(), connection.failed()), (&reset(1, reason)[..], None));
    }
}

#[test]
fn a_window_of_settings_is_too_large_with_what_was_added_to_it() {
    let mut connection = begun();
    taken(&mut connection, &asks(1));
    connection.feed(&update(1, 1));
    connection.feed(&window(0x7FFF_FFFE));
    assert_eq!(connection.failed(), None);
    connection.feed(&window(0x7FFF_FFFF));
    assert_eq!(failed(&connection), Some(Reason::FlowControl));
}

#[test]
fn streams_that_are_over_have_no_window_that_could_be_too_large() {
    // It was reset by its client, reset by us, or sent to its end, and nobody has let it go yet.
    for end in [0, 1, 2] {
        let mut connection = begun();
        let key = taken(&mut connection, &asks(1));
        connection.feed(&update(1, 1000));
        match end {
            0 => connection.feed(&reset(1, Reason::Cancel)),
            1 => connection.feed(&update(1, 0x7FFF_FFFF)),
            _ => respond(&mut connection, key, 200, true),
        }
        connection.feed(&window(0x7FFF_FFFF));
        assert_eq!(connection.failed(), None, "{end}");
    }
}

#[test]
fn a_header_table_that_is_named_is_answered_with_none() {
    let mut connection = begun();
    connection.feed(&frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0]));
    let keys = [taken(&mut connection, &asks(1)), taken(&mut connection, &asks(3))];
    written(&mut connection);
    answer(&mut connection, keys[0]);
    answer(&mut connection, keys[1]);
    let answers = frames(&written(&mut connection));
    assert_eq!((&answers[0].payload[..], &answers[1].payload[..]), (&[0x20, 0x89][..], &[0x89][..]));
}
