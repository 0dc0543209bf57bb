//! Streams that wait for a window that they share.

use std::collections::VecDeque;

use super::client::Client;
use super::*;

/// A connection on which so many streams have something to send, of which nothing could go.
fn waiting(count: u32, each: usize) -> (Connection, Client, Vec<StreamKey>) {
    let mut connection = begun_with(Limits { max_streams: 200, max_header_list: 4096, is_of_many: false });
    let mut client = Client::new();
    client.opens(1);
    let first = taken(&mut connection, &asks(1));
    respond(&mut connection, first, 200, false);
    connection.send(first, &vec![0; 65_535], b"", Sending::End);
    client.reads_all(&mut connection);
    connection.release(first, Reason::Internal);
    assert_eq!((client.window, client.streams[&1].ends), (0, 1));
    client.order.clear();
    client.lasts.clear();
    let keys = (1..=count)
        .map(|number| {
            client.opens(2 * number + 1);
            let key = taken(&mut connection, &asks(2 * number + 1));
            respond(&mut connection, key, 200, false);
            connection.send(key, &vec![number as u8; each], b"", Sending::End);
            assert!(!connection.is_flushed(key));
            key
        })
        .collect();
    client.reads_all(&mut connection);
    assert!(client.order.is_empty());
    (connection, client, keys)
}

fn opens(connection: &mut Connection, client: &mut Client, by: u32) {
    client.window += i64::from(by);
    connection.feed(&update(0, by));
    client.reads_all(connection);
    assert_eq!(connection.failed(), None);
}

#[test]
fn a_byte_at_a_time_goes_to_each_in_turn() {
    let (mut connection, mut client, _) = waiting(100, 5);
    (0..500).for_each(|_| opens(&mut connection, &mut client, 1));
    let round: Vec<u32> = (1..=100).map(|number| 2 * number + 1).collect();
    assert_eq!(client.order, round.repeat(5));
    assert!(client.streams.values().all(|seen| seen.ends == 1));
}

#[test]
fn a_window_of_four_frames_goes_to_four_streams_and_the_next_to_the_next() {
    let (mut connection, mut client, _) = waiting(100, 40_000);
    for _ in 0..100 {
        opens(&mut connection, &mut client, 65_535);
    }
    // A client that has sent a frame waits behind all others.
    let mut turns: VecDeque<u32> = (1..=100).map(|number| 2 * number + 1).collect();
    for (stream, is_last) in client.order.iter().zip(&client.lasts) {
        assert_eq!(turns.pop_front(), Some(*stream));
        if !is_last {
            turns.push_back(*stream);
        }
    }
    assert!(client.streams.values().all(|seen| seen.ends == 1));
}

#[test]
fn one_whose_own_window_is_shut_holds_nobody_up() {
    let (mut connection, mut client, keys) = waiting(3, 10);
    connection.feed(&window(65_535 - 4));
    client.names(65_535 - 4);
    connection.feed(&window(4));
    client.names(4);
    client.reads_all(&mut connection);
    for by in [4, 4, 4, 100] {
        opens(&mut connection, &mut client, by);
    }
    assert_eq!(client.order, [3, 5, 7]);
    // The one whose window opens sends, the others wait for theirs.
    client.streams.get_mut(&5).unwrap().window += 6;
    connection.feed(&update(5, 6));
    client.reads_all(&mut connection);
    assert_eq!((&client.order[3..], client.streams[&5].ends), (&[5][..], 1));
    assert!(connection.has_ended(keys[1]) && !connection.is_flushed(keys[0]));
}

#[test]
fn one_that_is_reset_or_given_up_while_it_waits_takes_no_turn() {
    let (mut connection, mut client, keys) = waiting(4, 3);
    connection.feed(&reset(5, Reason::Cancel));
    connection.release(keys[2], Reason::Cancel);
    (0..6).for_each(|_| opens(&mut connection, &mut client, 1));
    assert_eq!(client.order, [3, 9, 3, 9, 3, 9]);
    assert_eq!((client.streams[&7].resets.len(), client.streams[&7].content.len()), (1, 0));
}

#[test]
fn those_who_come_behind_wait_behind() {
    let (mut connection, mut client, keys) = waiting(2, 1);
    opens(&mut connection, &mut client, 1);
    // Nothing of the window is left: what it is given now waits behind the other one.
    let key = taken(&mut connection, &asks(101));
    client.opens(101);
    respond(&mut connection, key, 200, false);
    connection.send(key, b"ab", b"", Sending::More);
    opens(&mut connection, &mut client, 2);
    assert_eq!(client.order, [3, 5, 101]);
    assert!(connection.has_ended(keys[0]) && connection.has_ended(keys[1]) && !connection.is_flushed(key));
    opens(&mut connection, &mut client, 100);
    assert!(connection.is_flushed(key));
    connection.send(key, b"c", b"", Sending::End);
    client.reads_all(&mut connection);
    assert_eq!(client.streams[&101].content, b"abc");
}

#[test]
fn no_more_data_waits_to_be_written_than_64_kib_and_a_head() {
    let mut connection = begun_wide();
    let keys = [taken(&mut connection, &asks(1)), taken(&mut connection, &asks(3))];
    for key in keys {
        respond(&mut connection, key, 200, false);
        connection.send(key, &vec![1; 200_000], &vec![2; 100_000], Sending::End);
    }
    let mut client = Client::new();
    (client.window, client.streams) = (i64::MAX, [(1, client::Seen::default()), (3, client::Seen::default())].into());
    client.streams.values_mut().for_each(|seen| seen.window = i64::MAX);
    assert!(!connection.is_clogged(), "a client that downloads is heard");
    while !connection.unwritten().is_empty() {
        assert!(connection.unwritten().len() <= 65_536 + 100, "{}", connection.unwritten().len());
        let some = connection.unwritten().len().min(10_007);
        client.reads(&connection.unwritten()[..some]);
        connection.advance(some);
    }
    let expected = [vec![1; 200_000], vec![2; 100_000]].concat();
    for seen in client.streams.values() {
        assert!(seen.content == expected && seen.ends == 1);
    }
    assert_eq!(keys.map(|key| connection.sent(key)), [300_000; 2]);
}
