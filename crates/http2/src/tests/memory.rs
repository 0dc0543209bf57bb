//! The memory that a connection holds when its client means ill.

use super::*;

const MIB: usize = 1024 * 1024;

/// Serves as the task that is out of luck does: takes every request and gives it up.
fn gives_up(connection: &mut Connection) {
    while let Some(key) = connection.next_incoming() {
        connection.serve();
        connection.release(key, Reason::Cancel);
    }
}

#[test]
fn requests_and_resets_leave_nothing() {
    let mut connection = begun();
    for number in 0..10_000 {
        connection.feed(&uploads(2 * number + 1));
        connection.feed(&data(2 * number + 1, &[0; 1000]));
        gives_up(&mut connection);
        connection.feed(&reset(2 * number + 1, Reason::Cancel));
        connection.advance(connection.unwritten().len());
        connection.flood.note_answered();
        connection.flood.note_answered();
    }
    assert_eq!(connection.failed(), None);
    assert!(connection.memory() < 64 * 1024, "{}", connection.memory());
}

#[test]
fn streams_that_wait_in_vain_leave_nothing_in_the_queue() {
    // The client opens no window, gives up every response, and pays for it with others that have no body.
    let mut connection = begun();
    let first = taken(&mut connection, &asks(1));
    respond(&mut connection, first, 200, false);
    connection.send(first, &vec![0; 65_535], b"", Sending::End);
    connection.release(first, Reason::Internal);
    for number in 1..10_000 {
        let stream = 6 * number + 1;
        let key = taken(&mut connection, &asks(stream));
        respond(&mut connection, key, 200, false);
        connection.send(key, b"x", b"", Sending::End);
        connection.feed(&reset(stream, Reason::Cancel));
        connection.release(key, Reason::Internal);
        for stream in [stream + 2, stream + 4] {
            let key = taken(&mut connection, &asks(stream));
            answer(&mut connection, key);
        }
        written(&mut connection);
        assert_eq!(connection.failed(), None);
    }
    assert_eq!(connection.queue.len(), 0);
    assert!(connection.memory() < 64 * 1024, "{}", connection.memory());
}

#[test]
fn header_blocks_up_to_the_limit_are_kept_once_and_let_go() {
    let mut connection = begun();
    let value = "v".repeat(3_500);
    for number in 0..1_000 {
        let stream = 2 * number + 1;
        let head = [&get("/")[..], &block(&[("cookie", &value), ("x-a", "1")])].concat();
        connection.feed(&frame(kind::HEADERS, 0, stream, &head[..100]));
        connection.feed(&frame(kind::CONTINUATION, 0, stream, &head[100..2000]));
        connection.feed(&frame(kind::CONTINUATION, flag::END_HEADERS, stream, &head[2000..]));
        connection.feed(&frame(
            kind::HEADERS,
            flag::END_HEADERS | flag::END_STREAM,
            stream,
            &block(&[("x-a", &value)]),
        ));
        if number % 8 == 7 {
            assert!(connection.memory() < 256 * 1024, "{}", connection.memory());
            while let Some(key) = connection.next_incoming() {
                assert!(connection.fault(key).is_none());
                connection.serve();
                answer(&mut connection, key);
            }
            written(&mut connection);
        }
        assert_eq!(connection.failed(), None);
    }
    assert!(connection.memory() < 64 * 1024, "{}", connection.memory());
    // Nor is what was put together of it kept for the next.
    assert!(connection.reader.memory() <= 4_096, "{}", connection.reader.memory());
    // One that never ends.
    let mut endless = begun();
    endless.feed(&frame(kind::HEADERS, 0, 1, &[0; 4_000]));
    while endless.failed().is_none() {
        endless.feed(&frame(kind::CONTINUATION, 0, 1, &[0; 50]));
        assert!(endless.memory() < 64 * 1024);
    }
}

#[test]
fn data_that_nobody_reads_is_bounded_by_the_windows() {
    let mut connection = begun_with(Limits { max_streams: 100, max_header_list: 4096, is_of_many: false });
    for number in 0..100 {
        connection.feed(&uploads(2 * number + 1));
    }
    // In bytes one by one, round and round, and then as much as the window takes.
    for number in 0..200_000_u32 {
        connection.feed(&data(2 * (number % 100) + 1, b"x"));
    }
    let mut stream = 0;
    while connection.recv_window >= 16_384 {
        connection.feed(&data(2 * (stream % 100) + 1, &vec![0; 16_384]));
        stream += 1;
    }
    assert_eq!(connection.failed(), None);
    assert!(connection.memory() < 9 * MIB, "{}", connection.memory());
    gives_up(&mut connection);
    written(&mut connection);
    assert!(connection.memory() < 64 * 1024, "{}", connection.memory());
    assert_eq!(connection.recv_window + i64::from(connection.owed), 4 * 1024 * 1024);
}

#[test]
fn a_frame_is_not_kept_beyond_its_end_nor_data_at_all() {
    let mut connection = begun();
    connection.feed(&uploads(1));
    for byte in data(1, &[0; 10]) {
        connection.feed(&[byte]);
    }
    let frame = frame(kind::PING, flag::ACK, 0, &[0; 8]);
    for byte in &frame {
        connection.feed(&[*byte]);
    }
    assert!(connection.memory() < 16 * 1024, "{}", connection.memory());
    let mut unknown = super::frame(0xEE, 0, 0, &vec![0; 16_384]);
    unknown.pop();
    for byte in &unknown {
        connection.feed(&[*byte]);
    }
    assert!(connection.memory() < 64 * 1024, "{}", connection.memory());
    connection.feed(&[0]);
    assert!(connection.memory() < 16 * 1024, "{}", connection.memory());
}

#[test]
fn whoever_waits_for_room_is_woken_when_there_is_some() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    let count = Arc::new(Count::default());
    connection.set_waker(key, Waker::from(Arc::clone(&count)));
    let head = format!("HTTP/1.1 103 Early Hints\r\nlink: {}\r\n\r\n", "l".repeat(1000));
    let head = ResponseHead::read(head.as_bytes()).unwrap();
    let mut sent = 0;
    while !connection.is_clogged() {
        connection.respond(key, 103, &head, false);
        sent += 1;
    }
    assert_eq!(sent, 129);
    connection.want_room();
    connection.advance(1);
    assert_eq!((connection.is_clogged(), count.0.load(Ordering::Relaxed)), (true, 0));
    connection.advance(5_000);
    assert_eq!((connection.is_clogged(), count.0.load(Ordering::Relaxed)), (false, 1));
    connection.advance(5_000);
    assert_eq!(count.0.load(Ordering::Relaxed), 1, "once");
    assert!(connection.memory() < 3 * 128 * 1024, "{}", connection.memory());
}

#[test]
fn heads_of_one_connection_are_bounded_together_however_short_they_came() {
    let mut connection = begun_with(Limits { max_streams: 200, max_header_list: 128 * 1024, is_of_many: false });
    // An entry of 4,000 bytes into the table, and fifteen references to it in each request.
    let mut first = get("/");
    first.extend([&[0x40, 1, b'a', 0x7F, 0xA1, 0x1E][..], &vec![b'v'; 4_000], &[0xBE; 14]].concat());
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &first));
    let mut next = get("/");
    next.extend([0xBE; 15]);
    for number in 1..100 {
        connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 2 * number + 1, &next));
    }
    let taken: Vec<_> = std::iter::from_fn(|| connection.next_incoming()).collect();
    // Each is 60,100 bytes long, and 1,280 KiB are reached with the 22nd.
    assert_eq!((taken.len(), connection.take_refused()), (22, RefusedUnread { by_streams: 0, by_heads: 78 }));
    let refused = frames(&written(&mut connection)).into_iter().filter(|frame| frame.kind == kind::RST_STREAM).count();
    assert_eq!(refused, 78);
    // The task that serves one lets go of it, and one that is over makes room.
    for key in &taken {
        assert!(connection.head(*key).len() > 60_000);
        connection.drop_head(*key);
    }
    assert!(connection.memory() < MIB, "{}", connection.memory());
    assert_eq!(connection.held(taken[1]), 60_100);
    for (key, stream) in taken.into_iter().zip([201, 203]) {
        connection.release(key, Reason::Cancel);
        connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, stream, &next));
        assert!(connection.next_incoming().is_some());
    }
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 205, &next));
    assert!(connection.next_incoming().is_none());
}

#[test]
fn a_hundred_and_twenty_eight_requests_with_cookies_of_eight_kibibytes_are_taken() {
    let mut connection = begun_with(Limits { max_streams: 128, max_header_list: 128 * 1024, is_of_many: false });
    let head = [&get("/"), &block(&[("cookie", &"c".repeat(8_192)), ("user-agent", &"u".repeat(1_500))])[..]].concat();
    for number in 0..128 {
        connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * number + 1, &head));
    }
    assert_eq!(std::iter::from_fn(|| connection.next_incoming()).count(), 128);
    assert_eq!(connection.take_refused(), RefusedUnread::default());
}

#[test]
fn a_head_that_is_refused_for_what_it_is_counts_no_more() {
    let mut connection = begun_with(Limits { max_streams: 200, max_header_list: 8_192, is_of_many: false });
    let value = "v".repeat(4_000);
    let too_large = [&get("/"), &block(&[("x-a", &value), ("x-b", &value), ("x-c", &value)])[..]].concat();
    let malformed = [&get("/"), &block(&[("x-a", &value), ("x b", "")])[..]].concat();
    for (number, head) in [&too_large, &malformed].into_iter().cycle().take(150).enumerate() {
        connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 2 * u32::try_from(number).unwrap() + 1, head));
    }
    let taken: Vec<_> = std::iter::from_fn(|| connection.next_incoming()).collect();
    assert_eq!(taken.len(), 150);
    assert!(taken.iter().all(|key| connection.fault(*key).is_some() && connection.held(*key) == 0));
    assert!(connection.memory() < MIB / 2, "{}", connection.memory());
    // And one that is let go before it was read, as it is longer than its reader takes.
    let mut connection = begun();
    let key = taken_of(&mut connection, &value[..3_000]);
    assert_eq!(connection.held(key), 3_032);
    connection.forget_head(key);
    assert_eq!((connection.held(key), connection.head(key), connection.heads), (0, &b""[..], 0));
    connection.release(key, Reason::Cancel);
    assert_eq!(connection.heads, 0);
}

fn taken_of(connection: &mut Connection, value: &str) -> StreamKey {
    let head = [&get("/"), &block(&[("x-a", value)])[..]].concat();
    taken(connection, &frame(kind::HEADERS, flag::END_HEADERS, 1, &head))
}

#[test]
fn trailers_count_as_heads_do_and_beyond_the_bound_their_stream_is_reset() {
    let mut connection = begun_with(Limits { max_streams: 200, max_header_list: 128 * 1024, is_of_many: false });
    // The first brings an entry of 4,000 bytes; two references to it are trailers of 8,010 bytes.
    let mut first = get("/");
    first.extend([&[0x40, 1, b'a', 0x7F, 0xA1, 0x1E][..], &vec![b'v'; 4_000]].concat());
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &first));
    let head = connection.heads;
    for number in 1..180 {
        connection.feed(&uploads(2 * number + 1));
    }
    let keys: Vec<_> = std::iter::from_fn(|| connection.next_incoming()).collect();
    let heads = connection.heads;
    assert_eq!((keys.len(), head, heads), (180, 4_030, 4_030 + 179 * 25));
    for number in 0..180 {
        let trailers = frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 2 * number + 1, &[0xBE; 2]);
        connection.feed(&trailers);
    }
    assert_eq!(connection.failed(), None);
    let resets: Vec<_> =
        frames(&written(&mut connection)).into_iter().filter(|frame| frame.kind == kind::RST_STREAM).collect();
    // 1,280 KiB are reached with the 163rd: (1,310,720 - 8,505) / 8,010 = 162.6.
    assert_eq!(resets.len(), 180 - 163);
    assert!(resets.iter().all(|frame| frame.payload == (Reason::EnhanceYourCalm as u32).to_be_bytes()));
    assert_eq!(connection.heads, heads + 163 * 8_010);
    for key in keys {
        connection.release(key, Reason::Cancel);
    }
    assert_eq!(connection.heads, 0);
}

#[test]
fn trailers_above_8_kib_are_malformed_and_not_kept() {
    let mut connection = begun_with(Limits { max_streams: 200, max_header_list: 128 * 1024, is_of_many: false });
    let mut first = get("/");
    first.extend([&[0x40, 1, b'a', 0x7F, 0xA1, 0x1E][..], &vec![b'v'; 4_000]].concat());
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 1, &first));
    let heads = connection.heads;
    // Each counts as 1 + 4,000 + 32 bytes: three are 12,099.
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0xBE; 3]));
    assert_eq!((connection.failed(), connection.heads), (None, heads));
    let resets = frames(&written(&mut connection)).into_iter().filter(|frame| frame.kind == kind::RST_STREAM);
    assert_eq!(resets.count(), 1);
}
