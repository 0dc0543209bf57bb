//! Clients whose uploads are refused, and what resets cost.

use super::*;
use sluicegate_time::Span;

/// An upload that is answered early and reset, while what is `behind` it is on its way.
fn refuses(connection: &mut Connection, stream: u32, behind: &dyn Fn(u32) -> Vec<Vec<u8>>) {
    let key = taken(connection, &uploads(stream));
    connection.feed(&data(stream, &[7; 100]));
    respond(connection, key, 413, true);
    connection.release(key, Reason::Internal);
    for bytes in behind(stream) {
        connection.feed(&bytes);
    }
    connection.advance(connection.unwritten().len());
}

/// One every 4 ms: more than twice what the store of resets would bear.
fn refuses_many(count: u32, behind: &dyn Fn(u32) -> Vec<Vec<u8>>) {
    let mut connection = begun();
    for number in 0..count {
        connection.note_time(Tick::ZERO + Span::from_millis(u64::from(number) * 4));
        refuses(&mut connection, 2 * number + 1, behind);
        assert_eq!(connection.failed(), None, "{number}");
    }
}

#[test]
fn a_client_whose_uploads_are_refused_is_borne_for_ever() {
    refuses_many(100_000, &|stream| vec![data(stream, &[7; 100]), padded(stream, b"x", 9), last_data(stream, b"end")]);
}

#[test]
fn what_is_on_the_way_of_a_thousand_uploads_at_once_is_borne() {
    // All that is under way comes a thousand resets later.
    let behind = |stream: u32| {
        let late = stream.saturating_sub(2 * 1_000);
        if late % 2 == 1 { vec![data(late, &[7; 100]), last_data(late, b"")] } else { Vec::new() }
    };
    refuses_many(20_000, &behind);
}

#[test]
fn a_client_that_resets_what_was_refused_already_is_borne_for_ever() {
    // As the client of Go does: both sides reset, and the resets cross.
    refuses_many(100_000, &|stream| vec![data(stream, &[7; 100]), reset(stream, Reason::NoError)]);
}

#[test]
fn a_client_that_resets_what_it_has_read_to_the_end_is_borne_for_ever() {
    let mut connection = begun();
    for number in 0..100_000 {
        let stream = 2 * number + 1;
        let key = taken(&mut connection, &asks(stream));
        respond(&mut connection, key, 200, true);
        connection.feed(&reset(stream, Reason::Cancel));
        connection.release(key, Reason::Internal);
        connection.feed(&reset(stream, Reason::Cancel));
        connection.advance(connection.unwritten().len());
        assert_eq!(connection.failed(), None, "{number}");
    }
}

#[test]
fn resets_of_nothing_are_a_flood_all_the_same() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    answer(&mut connection, key);
    // 1,000, and what the request was worth, which is above the most.
    for number in 0..=1_000 {
        assert_eq!(connection.failed(), None, "{number}");
        connection.feed(&reset(1, Reason::Cancel));
    }
    assert_eq!(
        (failed(&connection), connection.flood().spent()),
        (Some(Reason::EnhanceYourCalm), Some(FloodKind::EmptyFrames))
    );
}

#[test]
fn rapid_resets_end_a_connection() {
    let mut connection = begun();
    let most = (0..2_000).find(|number| {
        connection.feed(&asks(2 * number + 1));
        connection.feed(&reset(2 * number + 1, Reason::Cancel));
        while let Some(key) = connection.next_incoming() {
            connection.release(key, Reason::Internal);
        }
        connection.failed().is_some()
    });
    assert_eq!(most, Some(1_000));
    assert_eq!(
        (failed(&connection), connection.flood().spent()),
        (Some(Reason::EnhanceYourCalm), Some(FloodKind::Resets))
    );
}

#[test]
fn every_way_to_make_us_reset_is_charged_as_a_reset() {
    // CVE-2025-8671.
    let trailers = |flags, name| move |id| frame(kind::HEADERS, flag::END_HEADERS | flags, id, &block(&[(name, "1")]));
    let ends = flag::END_STREAM;
    let on_itself = |kind: u8, flags: u8, rest: Vec<u8>| {
        move |id: u32| frame(kind, flags, id, &[&id.to_be_bytes()[..], &[9], &rest].concat())
    };
    type Way = (&'static str, fn(u32) -> Vec<u8>, Box<dyn Fn(u32) -> Vec<u8>>);
    let ways: Vec<Way> = vec![
        ("window of nothing", asks, Box::new(|id| update(id, 0))),
        ("window too large", asks, Box::new(|id| update(id, 0x7FFF_FFFF))),
        ("priority of a wrong size", asks, Box::new(|id| frame(kind::PRIORITY, 0, id, &[0; 4]))),
        ("priority on itself", asks, Box::new(on_itself(kind::PRIORITY, 0, Vec::new()))),
        ("data behind the end", asks, Box::new(|id| data(id, b"x"))),
        ("headers behind the end", asks, Box::new(trailers(ends, "x-a"))),
        ("trailers without the end", uploads, Box::new(trailers(0, "x-a"))),
        ("trailers that are malformed", uploads, Box::new(trailers(ends, "connection"))),
        ("trailers on itself", uploads, {
            let flags = flag::END_HEADERS | flag::PRIORITY | ends;
            Box::new(on_itself(kind::HEADERS, flags, block(&[("x-a", "1")])))
        }),
        ("more than the length", |id| uploads_of(id, "1"), Box::new(|id| data(id, b"xy"))),
        ("less than the length", |id| uploads_of(id, "3"), Box::new(|id| last_data(id, b"xy"))),
        ("less than the length, by trailers", |id| uploads_of(id, "3"), Box::new(trailers(ends, "x-a"))),
        (
            "more than the window",
            uploads,
            Box::new(|id| {
                (0..17).flat_map(|number| data(id, &vec![0; 16_384][..if number < 16 { 16_384 } else { 1 }])).collect()
            }),
        ),
    ];
    for (what, open, way) in &ways {
        let mut connection = begun();
        let most = (0..2_000).find(|number| {
            let stream = 2 * number + 1;
            let key = taken(&mut connection, &open(stream));
            connection.feed(&way(stream));
            assert!(connection.has_failed(key), "{what}");
            if connection.failed().is_none() {
                let resets = frames(&written(&mut connection));
                assert!(resets.iter().any(|frame| frame.kind == kind::RST_STREAM && frame.stream == stream), "{what}");
            }
            connection.release(key, Reason::Internal);
            connection.failed().is_some()
        });
        assert_eq!(most, Some(1_000), "{what}");
        let spent = connection.flood().spent();
        assert_eq!((failed(&connection), spent), (Some(Reason::EnhanceYourCalm), Some(FloodKind::Resets)), "{what}");
    }
}

#[test]
fn a_window_of_a_byte_at_a_time_is_paid_for_and_one_that_all_goes_through_is_not() {
    // One update has opened the window of the connection.
    for (each, expected) in [(1, Some(1_999)), (127, Some(1_999)), (128, None)] {
        let mut connection = begun_wide();
        connection.feed(&window(0));
        let key = taken(&mut connection, &asks(1));
        respond(&mut connection, key, 200, false);
        connection.send(key, &vec![0; 1_000_000], b"", Sending::End);
        let most = (0..5_000).find(|_| {
            connection.feed(&update(1, each));
            connection.advance(connection.unwritten().len());
            connection.failed().is_some()
        });
        assert_eq!(most, expected, "{each}");
    }
}
