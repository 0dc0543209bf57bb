//! The connection as a whole.

use proptest::prelude::*;

use super::frame::{flag, kind, put_head};
use super::hpack::Encoder;
use super::*;

fn limits() -> Limits {
    Limits { max_streams: 10, max_header_list: 4096 }
}

/// A frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_head(&mut out, payload.len(), kind, flags, stream);
    out.extend_from_slice(payload);
    out
}

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        Encoder::field(name.as_bytes(), value.as_bytes(), &mut out);
    }
    out
}

fn get(path: &str) -> Vec<u8> {
    block(&[(":method", "GET"), (":scheme", "http"), (":path", path), (":authority", "h")])
}

fn begun() -> Connection {
    let mut connection = Connection::new(limits());
    connection.feed(PREFACE);
    connection.feed(&frame(kind::SETTINGS, 0, 0, &[]));
    connection.advance(connection.unwritten().len());
    connection
}

#[test]
fn a_request_is_given_out_and_its_answer_goes_out() {
    let mut connection = begun();
    connection.feed(&frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &get("/a")));
    let key = connection.next_incoming().unwrap();
    assert_eq!(connection.head(key), b"GET /a HTTP/1.1\r\nhost: h\r\n");
    assert_eq!(connection.coming(key), Coming::End(&[]));
    let head = ResponseHead::read(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    connection.respond(key, 204, &head, true);
    connection.release(key, Reason::Internal);
    assert_eq!(connection.unwritten(), frame(kind::HEADERS, flag::END_HEADERS | flag::END_STREAM, 1, &[0x89]));
}

proptest! {
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
