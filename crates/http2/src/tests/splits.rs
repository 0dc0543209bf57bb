//! Whatever pieces it comes in, a conversation means the same.

use proptest::prelude::*;

use super::*;

/// A long conversation: in parts, between which its requests are served.
fn conversation() -> Vec<Vec<u8>> {
    let head = [&get("/long")[..], &block(&[("x-long", &"v".repeat(1_000)), ("cookie", "a=1")])].concat();
    let priority = [&[4, 0x80, 0, 0, 1, 9][..], &get("/p"), &[0; 4]].concat();
    let trailers = block(&[("x-sum", "abc")]);
    let ends = flag::END_STREAM;
    let last = flag::END_HEADERS;
    let mut padded_last = padded(7, b"tail", 3);
    padded_last[4] |= ends;
    vec![
        [PREFACE, &frame(kind::SETTINGS, 0, 0, &[0, 1, 0, 0, 0, 0, 0, 4, 0, 0, 0, 20])].concat(),
        [
            asks(1),
            uploads(3),
            data(3, b"some content"),
            frame(kind::SETTINGS, flag::ACK, 0, &[]),
            padded(3, b"more", 200),
        ]
        .concat(),
        [
            frame(kind::HEADERS, ends, 5, &head[..10]),
            frame(kind::CONTINUATION, 0, 5, &head[10..500]),
            frame(kind::CONTINUATION, 0, 5, &[]),
            frame(kind::CONTINUATION, last, 5, &head[500..]),
            frame(kind::PING, 0, 0, b"abcdefgh"),
            update(1, 10),
            update(0, 70_000),
        ]
        .concat(),
        [
            frame(kind::HEADERS, last | flag::PADDED | flag::PRIORITY, 7, &priority),
            data(3, &vec![7; 16_384]),
            frame(kind::HEADERS, last | ends, 3, &trailers),
            padded(7, b"", 0),
            padded_last,
            window(100_000),
        ]
        .concat(),
        [
            uploads_of(9, "5"),
            data(9, b"123"),
            reset(9, Reason::Cancel),
            data(9, b"45"),
            uploads(11),
            data(11, b"x"),
            asks(13),
        ]
        .concat(),
        [
            data(11, b"refused by now"),
            padded(11, b"and", 9),
            frame(kind::HEADERS, last | ends, 11, &trailers),
            update(13, 0),
        ]
        .concat(),
        [
            frame(0xEE, 7, 9, b"unknown"),
            frame(kind::PRIORITY, 0, 15, &[0, 0, 0, 1, 1]),
            frame(kind::PING, flag::ACK, 0, b"sluice\x02\x07"),
        ]
        .concat(),
        [asks(15), data(15, b"late"), goaway(0, Reason::NoError), uploads_of(17, "x"), last_data(17, b"")].concat(),
    ]
}

/// The results, so that they can be compared.
#[derive(Debug, Default, PartialEq)]
struct Heard {
    out: Vec<u8>,
    heads: Vec<(Vec<u8>, bool, bool)>,
    coming: Vec<String>,
    failed: Option<Failed>,
    is_over: bool,
    windows: (i64, u32),
}

fn hears(parts: &[Vec<u8>], mut pieces: impl Iterator<Item = usize>) -> Heard {
    let mut connection = Connection::new(limits(), Tick::ZERO);
    let mut heard = Heard::default();
    let mut keys = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(pieces.next().unwrap_or(1).min(rest.len()));
            connection.feed(piece);
            rest = more;
        }
        while let Some(key) = connection.next_incoming() {
            heard.heads.push((
                connection.head(key).to_vec(),
                connection.is_chunked(key),
                connection.fault(key).is_some(),
            ));
            keys.push(key);
        }
        for key in &keys {
            let coming = match connection.coming(*key) {
                Coming::Data(data) => format!("{}: {data:?}", key.id),
                other => format!("{}: {other:?}", key.id),
            };
            heard.coming.push(coming);
        }
        match number {
            1 => {
                respond(&mut connection, keys[0], 200, false);
                connection.send(keys[0], &[1; 30], b"second", Sending::End);
            }
            2 => {
                connection.consume(keys[1], 5);
                respond(&mut connection, keys[2], 200, false);
                connection.send(keys[2], &[5; 90], b"", Sending::Trailers(b"x-t: 1\r\n\r\n"));
            }
            4 => {
                if let Some(key) = keys.iter().find(|key| key.id == 11) {
                    respond(&mut connection, *key, 413, true);
                    connection.release(*key, Reason::Internal);
                }
            }
            5 => connection.go_away(),
            _ => {}
        }
        heard.out.extend(written(&mut connection));
    }
    heard.failed = connection.failed();
    heard.is_over = connection.is_over();
    heard.windows = (connection.recv_window, connection.owed);
    heard
}

#[test]
fn a_long_conversation_is_understood() {
    let heard = hears(&conversation(), std::iter::repeat(usize::MAX));
    assert_eq!(heard.failed, None);
    let paths: Vec<_> = heard.heads.iter().map(|(head, ..)| head.split(|byte| *byte == b' ').nth(1).unwrap()).collect();
    assert_eq!(paths, [&b"/"[..], b"/", b"/long", b"/p", b"/", b"/", b"/"]);
    let resets: Vec<_> = frames(&heard.out)
        .iter()
        .filter(|frame| frame.kind == kind::RST_STREAM)
        .map(|frame| (frame.stream, frame.payload[3]))
        .collect();
    assert_eq!(resets, [(9, 5), (11, 0), (13, 1)]);
    let ends: Vec<_> = frames(&heard.out)
        .iter()
        .filter(|frame| matches!(frame.kind, kind::DATA | kind::HEADERS) && frame.flags & flag::END_STREAM != 0)
        .map(|frame| frame.stream)
        .collect();
    assert_eq!(ends, [1, 5, 11]);
}

#[test]
fn byte_by_byte_it_means_the_same() {
    let whole = hears(&conversation(), std::iter::repeat(usize::MAX));
    for size in [1, 2, 3, 5, 7, 8, 9, 10, 11, 13, 17, 100, 1000] {
        assert_eq!(hears(&conversation(), std::iter::repeat(size)), whole, "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_split_changes_what_is_understood(pieces in proptest::collection::vec(1..60_usize, 1..40)) {
        let whole = hears(&conversation(), std::iter::repeat(usize::MAX));
        prop_assert_eq!(hears(&conversation(), pieces.iter().copied().cycle()), whole);
    }

    #[test]
    fn what_is_changed_never_panics_and_fails_alike_however_cut(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..4_u8, any::<u8>()), 1..6),
        pieces in proptest::collection::vec(1..60_usize, 1..20),
    ) {
        let mut parts = conversation();
        for (part, at, how, byte) in changes {
            let part = part.index(parts.len());
            let at = at.index(parts[part].len());
            match how {
                0 => parts[part][at] = byte,
                1 => parts[part][at] ^= 1 << (byte % 8),
                2 => {
                    let end = (at + usize::from(byte % 16)).min(parts[part].len());
                    parts[part].drain(at..end);
                }
                _ => parts[part].insert(at, byte),
            }
            if parts[part].is_empty() {
                parts[part].push(byte);
            }
        }
        let whole = hears_any(&parts, &[usize::MAX]);
        prop_assert_eq!(&hears_any(&parts, &pieces), &whole);
        prop_assert_eq!(hears_any(&parts, &[1]), whole);
    }

    #[test]
    fn no_bytes_panic_and_no_split_changes_what_they_mean(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        cut in 1_usize..100,
    ) {
        let mut whole = begun();
        whole.feed(&bytes);
        let mut pieces = begun();
        bytes.chunks(cut).for_each(|piece| pieces.feed(piece));
        prop_assert_eq!(whole.unwritten(), pieces.unwritten());
        prop_assert_eq!(whole.failed(), pieces.failed());
    }
}

/// The output and the reason of the end, when every request is answered between the parts.
fn hears_any(parts: &[Vec<u8>], pieces: &[usize]) -> (Vec<u8>, Option<Failed>, Vec<Vec<u8>>) {
    let mut connection = Connection::new(limits(), Tick::ZERO);
    let (mut out, mut heads) = (Vec::new(), Vec::new());
    let mut keys = Vec::new();
    let mut sizes = pieces.iter().copied().cycle();
    for part in parts {
        let mut rest = &part[..];
        while !rest.is_empty() {
            let (piece, more) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
            connection.feed(piece);
            rest = more;
        }
        while let Some(key) = connection.next_incoming() {
            heads.push(connection.head(key).to_vec());
            respond(&mut connection, key, 200, false);
            connection.send(key, &[1; 40], b"", Sending::End);
            keys.push(key);
        }
        if keys.len() > 2 {
            let key = keys.remove(0);
            connection.release(key, Reason::Cancel);
        }
        out.extend(written(&mut connection));
    }
    frames(&out);
    (out, connection.failed(), heads)
}
