//! The end of a connection: ours in two steps, and the client's.

use std::task::Context;

use super::*;
use sluicegate_time::Span;

const LAST_PING: &[u8; 8] = b"sluice\x02\x07";

fn warned() -> Vec<u8> {
    [goaway(0x7FFF_FFFF, Reason::NoError), frame(kind::PING, 0, 0, LAST_PING)].concat()
}

fn ack() -> Vec<u8> {
    frame(kind::PING, flag::ACK, 0, LAST_PING)
}

#[test]
fn what_was_sent_before_the_client_knew_is_served() {
    let mut connection = begun();
    let first = taken(&mut connection, &asks(1));
    connection.go_away();
    connection.go_away();
    assert_eq!(written(&mut connection), warned());
    assert!(!connection.is_over());
    let second = taken(&mut connection, &uploads(3));
    answer(&mut connection, first);
    written(&mut connection);
    connection.feed(&ack());
    connection.feed(&ack());
    assert_eq!(written(&mut connection), goaway(3, Reason::NoError));
    connection.go_away();
    assert_eq!(written(&mut connection), b"");
    // The one that goes on does so in both directions.
    assert!(!connection.is_over());
    connection.feed(&last_data(3, b"abc"));
    assert_eq!(connection.coming(second), Coming::Data(b"abc"));
    connection.consume(second, 3);
    assert_eq!(connection.coming(second), Coming::End(b""));
    respond(&mut connection, second, 200, false);
    connection.send(second, b"xyz", b"", Sending::End);
    assert!(!connection.is_over());
    connection.release(second, Reason::Internal);
    assert!(connection.is_over());
    assert_eq!(connection.failed(), None);
}

#[test]
fn without_the_answer_to_its_ping_it_goes_on() {
    let mut connection = begun();
    connection.go_away();
    written(&mut connection);
    connection.feed(&frame(kind::PING, flag::ACK, 0, b"12345678"));
    connection.feed(&frame(kind::PING, 0, 0, LAST_PING));
    assert_eq!(written(&mut connection), frame(kind::PING, flag::ACK, 0, LAST_PING));
    let key = taken(&mut connection, &asks(1));
    answer(&mut connection, key);
    assert!(!connection.is_over());
    connection.feed(&ack());
    assert!(connection.is_over());
}

#[test]
fn an_idle_one_is_over_as_soon_as_its_client_knows() {
    let mut connection = begun();
    connection.go_away();
    assert!(!connection.is_over());
    connection.feed(&ack());
    assert_eq!(written(&mut connection), [warned(), goaway(0, Reason::NoError)].concat());
    assert!(connection.is_over());
}

#[test]
fn what_comes_too_late_is_passed_over_with_all_that_belongs_to_it() {
    // RFC 9113, 6.8: its fields change the table, its data counts in the window, and nothing is an error.
    let indexed = [&get("/")[..], &[0x40, 3, b'x', b'-', b'a', 1, b'1']].concat();
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.go_away();
    connection.feed(&ack());
    written(&mut connection);
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS, 3, &indexed));
    assert_eq!(connection.next_incoming(), None);
    for bytes in [
        data(3, b"abc"),
        padded(3, b"abc", 5),
        update(3, 100),
        frame(kind::PRIORITY, 0, 3, &[0, 0, 0, 1, 1]),
        frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 3, &block(&[("x-b", "1")])),
        reset(3, Reason::Cancel),
    ] {
        connection.feed(&bytes);
        assert_eq!((connection.failed(), written(&mut connection)), (None, Vec::new()), "{bytes:?}");
    }
    assert_eq!((connection.recv_window, connection.owed), (4 * 1024 * 1024 - 12, 12));
    // The one that goes on sends trailers with what the late one has put into the table.
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0xBE]));
    assert_eq!(connection.coming(key), Coming::End(b"x-a: 1\r\n"));
    // Above the late one, streams are idle still; and what it was told was the last one stays so.
    connection.feed(&data(5, b"x"));
    assert_eq!(written(&mut connection), goaway(1, Reason::Protocol));
}

#[test]
fn a_client_that_goes_away_is_waited_for() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    connection.feed(&goaway(0, Reason::NoError));
    assert!(!connection.is_over());
    connection.feed(&asks(3));
    answer(&mut connection, key);
    assert!(!connection.is_over(), "one is here that nobody has taken");
    let key = connection.next_incoming().unwrap();
    assert!(!connection.is_over());
    answer(&mut connection, key);
    assert!(connection.is_over());
    assert_eq!(connection.failed(), None);
    let mut idle = begun();
    idle.feed(&goaway(0, Reason::EnhanceYourCalm));
    assert!(idle.is_over());
}

#[test]
fn one_that_is_cut_is_over_and_its_streams_have_failed() {
    let mut connection = begun();
    let key = taken(&mut connection, &uploads(1));
    connection.feed(&data(1, b"abc"));
    connection.cut();
    assert!(connection.is_over());
    assert_eq!((connection.coming(key), connection.failed()), (Coming::Failed, None));
    connection.send(key, b"x", b"", Sending::End);
    connection.release(key, Reason::Internal);
    assert_eq!(connection.unwritten(), b"");
}

#[test]
fn whoever_writes_is_woken_when_there_is_something_to_write_and_when_it_may_be_over() {
    let count = Arc::new(Count::default());
    let waker = Waker::from(Arc::clone(&count));
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    let upload = taken(&mut connection, &uploads(3));
    let woken = |connection: &mut Connection, act: &dyn Fn(&mut Connection)| {
        connection.wakes(&Context::from_waker(&waker));
        let before = count.0.load(Ordering::Relaxed);
        act(connection);
        act(connection);
        count.0.load(Ordering::Relaxed) - before
    };
    // Once, however much there is.
    assert_eq!(woken(&mut connection, &|connection| connection.feed(&frame(kind::PING, 0, 0, &[0; 8]))), 1);
    assert_eq!(woken(&mut connection, &|connection| connection.feed(&frame(kind::PING, flag::ACK, 0, &[0; 8]))), 0);
    assert_eq!(woken(&mut connection, &|connection| respond(connection, key, 200, false)), 1);
    assert_eq!(woken(&mut connection, &|connection| connection.send(key, b"x", b"", Sending::More)), 1);
    assert_eq!(woken(&mut connection, &|connection| connection.finish(key)), 1);
    assert_eq!(woken(&mut connection, &|connection| connection.release(upload, Reason::Cancel)), 1);
    assert_eq!(woken(&mut connection, &|connection| connection.release(key, Reason::Cancel)), 1);
    assert_eq!(woken(&mut connection, &Connection::go_away), 1);
}

#[test]
fn requests_that_end_with_their_connection_are_given_up_once() {
    let fail = |connection: &mut Connection| connection.fail(Reason::Protocol, "a mistake of the client");
    let ends: [fn(&mut Connection); 3] = [Connection::cut, fail, Connection::calm_down];
    // The last one is ours.
    for (end, abandoned) in ends.into_iter().zip([2, 2, 0]) {
        let mut connection = begun();
        let keys: Vec<_> = [1, 3, 5, 7].map(|id| taken(&mut connection, &asks(id))).into();
        answer(&mut connection, keys[0]);
        connection.feed(&reset(3, Reason::Cancel));
        end(&mut connection);
        connection.cut();
        assert_eq!(connection.take_outcomes(), Outcomes { resets: 1, abandoned, answers: 1 });
        // Those who serve them let them go later.
        keys[1..].iter().for_each(|key| connection.release(*key, Reason::Cancel));
        assert_eq!(connection.take_outcomes(), Outcomes::default());
    }
}

#[test]
fn what_its_client_cancels_late_or_behind_the_head_of_its_answer_costs_nothing() {
    let at = |millis| Tick::ZERO + Span::from_millis(millis);
    let early = |answers: bool, from: u64, until: u64, cancel: fn(&mut Connection)| {
        let mut connection = begun();
        connection.note_time(at(from));
        let key = taken(&mut connection, &asks(1));
        if answers {
            respond(&mut connection, key, 200, false);
        }
        connection.note_time(at(until));
        cancel(&mut connection);
        let Outcomes { resets, abandoned, .. } = connection.take_outcomes();
        resets + abandoned
    };
    for cancel in [|connection: &mut Connection| connection.feed(&reset(1, Reason::Cancel)), Connection::cut] {
        assert_eq!(early(false, 5_000, 5_999, cancel), 1);
        assert_eq!(early(false, 5_000, 6_000, cancel), 0);
        assert_eq!(early(true, 5_000, 5_000, cancel), 0);
    }
}

#[test]
fn an_interim_response_is_no_answer() {
    let mut connection = begun();
    let key = taken(&mut connection, &asks(1));
    respond(&mut connection, key, 103, false);
    connection.feed(&reset(1, Reason::Cancel));
    assert_eq!(connection.take_outcomes().resets, 1);
}

#[test]
fn a_map_whose_tiles_are_cancelled_is_no_flood() {
    // As Chromium scrolls over one: 121 requests a second, 61 of 100 of them cancelled, for an hour.
    let mut connection = begun();
    for number in 0..121 * 3_600 {
        connection.note_time(at_tile(number));
        let key = taken(&mut connection, &asks(2 * number + 1));
        if number % 100 < 61 {
            connection.feed(&reset(2 * number + 1, Reason::Cancel));
            connection.release(key, Reason::Cancel);
        } else {
            answer(&mut connection, key);
        }
        connection.advance(connection.unwritten().len());
    }
    assert_eq!(connection.failed(), None);
}

fn at_tile(number: u32) -> Tick {
    Tick::ZERO + Span::from_millis(u64::from(number) * 1_000 / 121)
}
