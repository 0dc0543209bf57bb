//! Frames that any server takes (the suite's group "generic").

use crate::h2::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, HEADERS, NO_ERROR, PADDED, PING, PREFACE, SETTINGS, WHOLE,
    block, frame, request,
};

use super::sends::{
    WITH_PRIORITY, data, dependency, get, get_and, get_behind, goaway, head, held, held_post, padded, post, priority,
    reset, settings, trailers, window,
};
use super::{Case, Must, Row, Turn, first, row, rows, sections};
use Turn::{Acked, Ended, Send};

sections! {
    starting: starting_rows,
    frames_that_are_allowed_in_a_state: state_rows,
    data_frames: data_rows,
    headers_frames: headers_rows,
    priority_frames: priority_rows,
    other_frames: other_rows,
    messages: message_rows,
    representations_of_fields: hpack_rows,
}

/// The first frame that came is SETTINGS and no acknowledgement.
pub fn begins_with_settings(case: &mut Case) -> Result<(), String> {
    let begun = case.until(|case| case.raw.seen.first().cloned())?;
    let is_so = begun.kind == SETTINGS && begun.flags & 1 == 0 && begun.stream == 0 && begun.payload.len() % 6 == 0;
    if is_so { Ok(()) } else { Err(format!("{begun:?} came first")) }
}

fn starting_rows() -> Vec<Row> {
    vec![first(
        "generic 1/1 a preface with a window's size",
        [PREFACE, &settings(&[(4, 65_535)])].concat(),
        Must::Hold(begins_with_settings),
    )]
}

fn state_rows() -> Vec<Row> {
    let closed_windows = || settings(&[(4, 0)]);
    vec![
        row("generic 2/1 PRIORITY of a stream that is idle", priority(1, 0, 255), Must::GoOn),
        row(
            "generic 2/2 WINDOW_UPDATE of a stream that the client has ended",
            [closed_windows(), get(1), window(1, 1)].concat(),
            Must::Bytes(1, 1),
        ),
        row(
            "generic 2/3 PRIORITY of a stream that the client has ended",
            [closed_windows(), get(1), priority(1, 0, 255), window(1, 1)].concat(),
            Must::Bytes(1, 1),
        ),
        row(
            "generic 2/4 RST_STREAM of a stream that the client has ended",
            [held(1), reset(1, CANCEL)].concat(),
            Must::GoOn,
        ),
        rows(
            "generic 2/5 PRIORITY of a stream that is closed",
            vec![Send(get(1)), Ended(1), Send(priority(1, 0, 255))],
            Must::GoOn,
        ),
    ]
}

fn data_rows() -> Vec<Row> {
    vec![
        row("generic 3.1/1 DATA", [post(1), data(END_STREAM, 1, b"data")].concat(), Must::Answer(1, "4;")),
        row(
            "generic 3.1/2 two DATA",
            [post(1), data(0, 1, b"some"), data(END_STREAM, 1, b"more")].concat(),
            Must::Answer(1, "8;"),
        ),
        row(
            "generic 3.1/3 DATA with padding",
            [post(1), padded(END_STREAM, 1, b"data", 6)].concat(),
            Must::Answer(1, "4;"),
        ),
    ]
}

fn headers_rows() -> Vec<Row> {
    let fields = || block(&request("GET", "/echo"));
    vec![
        row("generic 3.2/1 HEADERS", get(1), Must::Answer(1, "0;")),
        row(
            "generic 3.2/2 HEADERS with padding",
            frame(HEADERS, WHOLE | PADDED, 1, &[&[8][..], &fields(), &[0; 8]].concat()),
            Must::Answer(1, "0;"),
        ),
        row(
            "generic 3.2/3 HEADERS with a priority",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[dependency(0, 255), fields()].concat()),
            Must::Answer(1, "0;"),
        ),
    ]
}

fn priority_rows() -> Vec<Row> {
    let rows = [
        ("generic 3.3/1 PRIORITY of weight 1 and a request", priority(1, 0, 0)),
        ("generic 3.3/2 PRIORITY of weight 256 and a request", priority(1, 0, 255)),
        ("generic 3.3/3 PRIORITY that depends on a stream and a request on that", priority(3, 1, 0)),
        ("generic 3.3/4 PRIORITY that is exclusive and a request", priority(1, 1 << 31, 0)),
        ("generic 3.3/5 PRIORITY of an idle stream and a request on a lower one", priority(3, 0, 255)),
    ];
    rows.into_iter().map(|(name, sent)| row(name, [sent, get(1)].concat(), Must::Answer(1, "0;"))).collect()
}

fn other_rows() -> Vec<Row> {
    let fields = block(&request("GET", "/echo"));
    let continued = |cuts: &[usize]| {
        let mut sent = frame(HEADERS, END_STREAM, 1, &fields[..cuts[0]]);
        for (number, cut) in cuts.iter().enumerate() {
            let end = cuts.get(number + 1).copied().unwrap_or(fields.len());
            let flags = if end == fields.len() { END_HEADERS } else { 0 };
            sent.extend(frame(CONTINUATION, flags, 1, &fields[*cut..end]));
        }
        sent
    };
    vec![
        row("generic 3.4/1 RST_STREAM", [held_post(1), reset(1, CANCEL)].concat(), Must::GoOn),
        rows(
            "generic 3.5/1 SETTINGS of all six that RFC 7540 has",
            vec![Send(settings(&[(1, 4096), (2, 1), (3, 100), (4, 65_535), (5, 16_384), (6, 100)])), Acked(2)],
            Must::GoOn,
        ),
        row("generic 3.7/1 PING", frame(PING, 0, 0, b"8 bytes."), Must::Pongs(&[b"8 bytes."])),
        row("generic 3.8/1 GOAWAY", goaway(0, NO_ERROR, b"no more"), Must::GoOnOrEnd),
        row("generic 3.9/1 WINDOW_UPDATE of the connection", window(0, 1), Must::GoOn),
        row("generic 3.9/2 WINDOW_UPDATE of a stream", [get(1), window(1, 1)].concat(), Must::Answer(1, "0;")),
        row("generic 3.10/1 a CONTINUATION", continued(&[5]), Must::Answer(1, "0;")),
        row("generic 3.10/2 two CONTINUATION", continued(&[5, 10]), Must::Answer(1, "0;")),
    ]
}

fn message_rows() -> Vec<Row> {
    vec![
        row("generic 4/1 GET", get(1), Must::Answer(1, "0;")),
        row("generic 4/2 HEAD", head(WHOLE, 1, &request("HEAD", "/echo")), Must::Answer(1, "")),
        row("generic 4/3 POST", [post(1), frame(DATA, END_STREAM, 1, b"body")].concat(), Must::Answer(1, "4;")),
        row(
            "generic 4/4 POST with trailers",
            [post(1), data(0, 1, b"body"), trailers(WHOLE, 1, &[("x-a", "last")])].concat(),
            Must::Answer(1, "4;last"),
        ),
    ]
}

/// A string, plain or in Huffman's code, behind its length (RFC 7541, 5.2).
pub fn string(text: &str, is_coded: bool) -> Vec<u8> {
    let bytes = if is_coded { huffman(text) } else { text.as_bytes().to_vec() };
    let coded = if is_coded { 0x80 } else { 0 };
    [&[coded | u8::try_from(bytes.len()).unwrap()][..], &bytes].concat()
}

/// Huffman's code of RFC 7541, appendix B, where it is at most seven bits: those codes follow each other.
pub fn huffman(text: &str) -> Vec<u8> {
    const FIVE: &str = "012aceiost";
    const SIX: &str = " %-./3456789=A_bdfghlmnpru";
    const SEVEN: &str = ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz";
    let mut bits = Vec::new();
    for symbol in text.chars() {
        let code = [(FIVE, 5, 0), (SIX, 6, 0b01_0100), (SEVEN, 7, 0b101_1100)]
            .iter()
            .find_map(|(symbols, width, least)| symbols.find(symbol).map(|at| (at + least, *width)));
        let (code, width): (usize, usize) = code.expect("a symbol of a short code");
        bits.extend((0..width).rev().map(|bit| code >> bit & 1 == 1));
    }
    bits.chunks(8).map(|byte| (0..8).fold(0, |sum, bit| sum << 1 | u8::from(*byte.get(bit).unwrap_or(&true)))).collect()
}

fn hpack_rows() -> Vec<Row> {
    // The name's index in the static table is 58: user-agent.
    let literal = |first: &[u8], name: Option<&str>, is_coded: bool| {
        let name = name.map_or(Vec::new(), |name| string(name, is_coded));
        get_and(1, &[first, &name, &string("a value", is_coded)].concat())
    };
    let value = || Must::Answer(1, "0;a value");
    let name = Some("x-a");
    vec![
        row("generic 5/1 an index", get_and(1, &[0xBA]), Must::Answer(1, "0;")),
        row("generic 5/2 a literal that enters the table, name by index", literal(&[0x7A], None, false), value()),
        row("generic 5/3 the same in Huffman's code", literal(&[0x7A], None, true), value()),
        row("generic 5/4 a literal that enters the table, name new", literal(&[0x40], name, false), value()),
        row("generic 5/5 the same in Huffman's code", literal(&[0x40], name, true), value()),
        row("generic 5/6 a literal without indexing, name by index", literal(&[0x0F, 43], None, false), value()),
        row("generic 5/7 the same in Huffman's code", literal(&[0x0F, 43], None, true), value()),
        row("generic 5/8 a literal without indexing, name new", literal(&[0], name, false), value()),
        row("generic 5/9 the same in Huffman's code", literal(&[0], name, true), value()),
        row("generic 5/10 a literal that is never indexed, name by index", literal(&[0x1F, 43], None, false), value()),
        row("generic 5/11 the same in Huffman's code", literal(&[0x1F, 43], None, true), value()),
        row("generic 5/12 a literal that is never indexed, name new", literal(&[0x10], name, false), value()),
        row("generic 5/13 the same in Huffman's code", literal(&[0x10], name, true), value()),
        row("generic 5/14 a table of 128 bytes", get_behind(1, &[0x3F, 97]), Must::Answer(1, "0;")),
        row(
            "generic 5/15 a table of 128 bytes and then of 4,096",
            get_behind(1, &[0x3F, 97, 0x3F, 0xE1, 0x1F]),
            Must::Answer(1, "0;"),
        ),
    ]
}

#[test]
fn huffmans_code_is_that_of_the_rfc() {
    // RFC 7541, C.4.
    let known: [(&str, &[u8]); 3] = [
        ("www.example.com", &[0xF1, 0xE3, 0xC2, 0xE5, 0xF2, 0x3A, 0x6B, 0xA0, 0xAB, 0x90, 0xF4, 0xFF]),
        ("no-cache", &[0xA8, 0xEB, 0x10, 0x64, 0x9C, 0xBF]),
        ("custom-value", &[0x25, 0xA8, 0x49, 0xE9, 0x5B, 0xB8, 0xE8, 0xB4, 0xBF]),
    ];
    for (text, code) in known {
        assert_eq!(huffman(text), code, "{text}");
    }
}
