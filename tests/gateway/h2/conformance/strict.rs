//! Frames and states beyond the public suite, by RFC 9113's sections.

use crate::h2::frames::{
    CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, FRAME_SIZE_ERROR, GOAWAY, HEADERS, NO_ERROR, PADDED, PING,
    PREFACE, PRIORITY, PROTOCOL_ERROR, PUSH, RESET, SETTINGS, STREAM_CLOSED, WHOLE, WINDOW, block, frame, pairs,
    request, request_with,
};

use super::sends::{
    WITH_PRIORITY, continuation, data, dependency, get, get_with, goaway, head, held, held_post, padded, post,
    priority, reset, settings, trailers, window,
};
use super::states::{MOST, open_block, unknown};
use super::{Case, Must, Row, Turn, first, row, rows, sections};
use Turn::{Acked, Ended, Send};

sections! {
    prefaces: preface_rows,
    bits_that_mean_nothing: ignored_rows,
    sizes_of_frames: size_rows,
    field_blocks: block_rows,
    states_of_streams: state_rows,
    frames_that_cross_a_reset: crossing_rows,
    numbers_of_streams: number_rows,
    settings_and_pings: settings_rows,
    push_and_goaway: goaway_rows,
    trailers_and_messages: message_rows,
}

const ENDS: Must = Must::End(&[PROTOCOL_ERROR]);
const ENDS_FOR_SIZE: Must = Must::End(&[FRAME_SIZE_ERROR]);
const MALFORMED: Must = Must::Reset(1, &[PROTOCOL_ERROR]);

fn preface_rows() -> Vec<Row> {
    let empty = || settings(&[]);
    vec![
        first("strict 3.4 a request in one write with the preface", [PREFACE, &empty(), &get(1)].concat(), echo()),
        first(
            "strict 3.4 PING in place of the first SETTINGS",
            [PREFACE, &frame(PING, 0, 0, &[0; 8])].concat(),
            Must::Refuse,
        ),
        first(
            "strict 3.4 a request in place of the first SETTINGS",
            [PREFACE, &get(1)].concat(),
            Must::Hold(is_refused),
        ),
        first(
            "strict 3.4 a preface that is wrong at its end",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!".to_vec(),
            Must::Refuse,
        ),
    ]
}

fn echo() -> Must {
    Must::Answer(1, "0;")
}

/// The connection ends, and nothing was answered.
fn is_refused(case: &mut Case) -> Result<(), String> {
    case.until(|case| case.is_over.then_some(()))?;
    if case.raw.seen.iter().any(|frame| frame.kind == HEADERS) { Err(case.story()) } else { Ok(()) }
}

/// With each flag set that its type does not define, and the reserved bit.
fn noisy(mut frame: Vec<u8>) -> Vec<u8> {
    let known = match frame[3] {
        DATA => END_STREAM | PADDED,
        HEADERS => END_STREAM | END_HEADERS | PADDED | WITH_PRIORITY,
        CONTINUATION => END_HEADERS,
        SETTINGS | PING => 1,
        _ => 0,
    };
    frame[4] |= !known;
    frame[5] |= 0x80;
    frame
}

fn ignored_rows() -> Vec<Row> {
    let fields = block(&request("POST", "/echo"));
    let all = [
        noisy(settings(&[])),
        noisy(window(0, 1)),
        noisy(frame(HEADERS, 0, 1, &fields[..5])),
        noisy(frame(CONTINUATION, END_HEADERS, 1, &fields[5..])),
        noisy(priority(1, 0, 15)),
        noisy(window(1, 1)),
        noisy(data(0, 1, b"some")),
        noisy(padded(END_STREAM, 1, b"more", 3)),
    ];
    vec![
        row("strict 4.1 flags and bits that mean nothing, in a request", all.concat(), Must::Answer(1, "8;")),
        row("strict 4.1 the same in RST_STREAM", [held(1), noisy(reset(1, CANCEL))].concat(), Must::GoOn),
        row("strict 4.1 the same in GOAWAY", [get(1), noisy(goaway(0, NO_ERROR, b""))].concat(), echo()),
        row(
            "strict 6.10 END_STREAM in CONTINUATION ends nothing",
            [
                frame(HEADERS, 0, 1, &fields),
                frame(CONTINUATION, END_HEADERS | END_STREAM, 1, b""),
                data(END_STREAM, 1, b"data"),
            ]
            .concat(),
            Must::Answer(1, "4;"),
        ),
        row(
            "strict 6.9 the reserved bit of an increment",
            [settings(&[(4, 0)]), get(1), window(1, 1 << 31 | 1)].concat(),
            Must::Bytes(1, 1),
        ),
        row("strict 6.9 nothing but the reserved bit of an increment", window(0, 1 << 31), ENDS),
        row(
            "strict 5.5 unknown frames on streams in each state, and on none",
            [unknown(1), held(1), unknown(1), unknown(2), unknown(0x7FFF_FFFF), post(3), unknown(3), unknown(0)]
                .concat(),
            Must::GoOn,
        ),
        row("strict 5.5 an unknown frame of 16,384 bytes", frame(0xFE, 0xFF, 0, &[0; MOST]), Must::GoOn),
        row(
            "strict 5.3 priorities that make no sense",
            [priority(1, 99, 0), priority(99, 1, 0), priority(2, 4, 0), priority(7, 0xFFFF_FFFF, 255), get(1)].concat(),
            echo(),
        ),
    ]
}

fn size_rows() -> Vec<Row> {
    let fields = block(&request("GET", "/echo"));
    let stream_fails = || Must::Fail(1, &[FRAME_SIZE_ERROR]);
    vec![
        row("strict 4.2 an unknown frame of 16,385 bytes", frame(0xFE, 0, 0, &[0; MOST + 1]), ENDS_FOR_SIZE),
        row("strict 4.2 SETTINGS of 16,386 bytes", frame(SETTINGS, 0, 0, &[0; MOST + 2]), ENDS_FOR_SIZE),
        row(
            "strict 4.2 CONTINUATION of 16,385 bytes",
            [open_block(END_STREAM, 1), frame(CONTINUATION, END_HEADERS, 1, &[0; MOST + 1])].concat(),
            ENDS_FOR_SIZE,
        ),
        row("strict 4.2 HEADERS without their padding's length", frame(HEADERS, WHOLE | PADDED, 1, b""), ENDS_FOR_SIZE),
        row(
            "strict 4.2 HEADERS with half a priority",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[0, 0, 0, 0]),
            ENDS_FOR_SIZE,
        ),
        row(
            "strict 4.2 HEADERS with padding and half a priority",
            frame(HEADERS, WHOLE | WITH_PRIORITY | PADDED, 1, &[0, 0, 0, 0, 0]),
            ENDS_FOR_SIZE,
        ),
        row(
            "strict 4.2 DATA without their padding's length",
            [held_post(1), frame(DATA, PADDED, 1, b"")].concat(),
            stream_fails(),
        ),
        row(
            "strict 6.2 padding that leaves no room for the priority",
            frame(HEADERS, WHOLE | WITH_PRIORITY | PADDED, 1, &[&[1][..], &dependency(0, 15)].concat()),
            ENDS,
        ),
        row(
            "strict 6.2 padding up to the priority, the fields in CONTINUATION",
            [
                frame(HEADERS, END_STREAM | WITH_PRIORITY | PADDED, 1, &[&[1][..], &dependency(0, 15), &[0]].concat()),
                frame(CONTINUATION, END_HEADERS, 1, &fields),
            ]
            .concat(),
            echo(),
        ),
        row(
            "strict 6.1 padding as long as the payload",
            [held_post(1), frame(DATA, PADDED, 1, b"\x05data")].concat(),
            ENDS,
        ),
        row("strict 6.1 nothing but padding", [post(1), padded(END_STREAM, 1, b"", 255)].concat(), echo()),
        row(
            "strict 6.3 PRIORITY of 6 bytes",
            [held(1), frame(PRIORITY, 0, 1, &[0; 6])].concat(),
            Must::Reset(1, &[FRAME_SIZE_ERROR]),
        ),
        row("strict 6.4 RST_STREAM of 5 bytes", [held(1), frame(RESET, 0, 1, &[0; 5])].concat(), ENDS_FOR_SIZE),
        row("strict 6.5 an acknowledgement with a setting", frame(SETTINGS, 1, 0, &[0; 6]), ENDS_FOR_SIZE),
        row("strict 6.5 SETTINGS of 7 bytes", frame(SETTINGS, 0, 0, &[0; 7]), ENDS_FOR_SIZE),
        row("strict 6.5 an acknowledgement on a stream", frame(SETTINGS, 1, 1, b""), ENDS),
        row("strict 6.7 PING of no byte", frame(PING, 0, 0, b""), ENDS_FOR_SIZE),
        row("strict 6.7 PING of 9 bytes", frame(PING, 0, 0, &[0; 9]), ENDS_FOR_SIZE),
        row("strict 6.7 an answer to PING of 7 bytes", frame(PING, 1, 0, &[0; 7]), ENDS_FOR_SIZE),
        row("strict 6.8 GOAWAY of 7 bytes", frame(GOAWAY, 0, 0, &[0; 7]), ENDS_FOR_SIZE),
        row("strict 6.9 WINDOW_UPDATE of 5 bytes", frame(WINDOW, 0, 0, &[0, 0, 0, 1, 0]), ENDS_FOR_SIZE),
        row(
            "strict 6.9 WINDOW_UPDATE of 3 bytes on a stream",
            [held(1), frame(WINDOW, 0, 1, &[0, 0, 1])].concat(),
            ENDS_FOR_SIZE,
        ),
    ]
}

fn block_rows() -> Vec<Row> {
    let within = |frame: Vec<u8>| [open_block(END_STREAM, 1), frame].concat();
    let fields = block(&request("GET", "/echo"));
    let mut pieces = frame(HEADERS, END_STREAM, 1, b"");
    // A server may count them: so they are few.
    let (most, last) = fields.split_at(fields.len() - 1);
    pieces.extend(most.chunks(16).flat_map(|piece| frame(CONTINUATION, 0, 1, piece)));
    pieces.extend(frame(CONTINUATION, END_HEADERS, 1, last));
    vec![
        row("strict 4.3 a field block in pieces of sixteen bytes", pieces, echo()),
        row("strict 4.3 PING within a field block", within(frame(PING, 0, 0, &[0; 8])), ENDS),
        row("strict 4.3 SETTINGS within a field block", within(settings(&[])), ENDS),
        row("strict 4.3 WINDOW_UPDATE within a field block", within(window(0, 1)), ENDS),
        row("strict 4.3 RST_STREAM of the stream within its field block", within(reset(1, CANCEL)), ENDS),
        row("strict 4.3 GOAWAY within a field block", within(goaway(0, NO_ERROR, b"")), ENDS),
        row("strict 4.3 HEADERS of the stream within its field block", within(get(1)), ENDS),
        row(
            "strict 6.10 CONTINUATION of another stream within a field block",
            within(continuation(END_HEADERS, 3, &[("x-a", "1")])),
            ENDS,
        ),
        row(
            "strict 4.3 a frame within the block of trailers",
            [post(1), trailers(END_STREAM, 1, &[("x-a", "1")]), data(0, 1, b"x")].concat(),
            ENDS,
        ),
    ]
}

fn state_rows() -> Vec<Row> {
    let answered = |frame: Vec<u8>| vec![Send(get(1)), Ended(1), Send(frame)];
    vec![
        row("strict 5.1 WINDOW_UPDATE on an idle stream of the server", window(2, 1), ENDS),
        row("strict 5.1 RST_STREAM on an idle stream of the server", reset(2, CANCEL), ENDS),
        row("strict 5.1 DATA on an idle stream of the server", data(0, 2, b"x"), ENDS),
        row("strict 5.1 DATA on a stream above the last", [held(1), data(0, 3, b"x")].concat(), ENDS),
        row(
            "strict 5.1.1 DATA on a stream that was passed over",
            [held(5), data(0, 3, b"x")].concat(),
            Must::Fail(3, &[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        rows("strict 5.1 WINDOW_UPDATE on a closed stream", answered(window(1, 1)), Must::GoOn),
        rows("strict 5.1 RST_STREAM on a closed stream", answered(reset(1, CANCEL)), Must::GoOn),
        row(
            "strict 5.4.2 RST_STREAM is not answered by RST_STREAM",
            [held(1), reset(1, CANCEL), reset(1, PROTOCOL_ERROR)].concat(),
            Must::GoOn,
        ),
        row(
            "strict 5.1 DATA behind trailers",
            [held_post(1), trailers(WHOLE, 1, &[("x-a", "1")]), data(END_STREAM, 1, b"x")].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        row(
            "strict 5.1 HEADERS behind trailers",
            [held_post(1), trailers(WHOLE, 1, &[("x-a", "1")]), trailers(WHOLE, 1, &[("x-a", "1")])].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        row(
            "strict 5.1 DATA behind the last DATA",
            [held_post(1), data(END_STREAM, 1, b"x"), data(END_STREAM, 1, b"x")].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        rows(
            "strict 6.8 the GOAWAY of an error names the last stream",
            vec![Send(get(7)), Ended(7), Send([held(9), frame(PING, 0, 1, &[0; 8])].concat())],
            Must::Hold(goaway_names_9),
        ),
    ]
}

fn goaway_names_9(case: &mut Case) -> Result<(), String> {
    let told = case.until(|case| case.raw.seen.iter().find(|frame| frame.kind == GOAWAY).cloned())?;
    if told.payload[..4] == 9_u32.to_be_bytes() { Ok(()) } else { Err(format!("{told:?}")) }
}

/// Frames that a client had under way when the server reset its stream are dropped, and are no error (5.1, "closed").
fn crossing_rows() -> Vec<Row> {
    let refused = |rest: Vec<u8>| {
        let malformed = head(END_HEADERS, 1, &[request("POST", "/echo"), pairs(&[("connection", "close")])].concat());
        [malformed, rest].concat()
    };
    vec![
        row("strict 5.1 DATA that crosses a reset", refused(data(END_STREAM, 1, b"data")), MALFORMED),
        row("strict 5.1 trailers that cross a reset", refused(trailers(WHOLE, 1, &[("x-a", "1")])), MALFORMED),
        row("strict 5.1 WINDOW_UPDATE that crosses a reset", refused(window(1, 100)), MALFORMED),
        row("strict 5.1 a reset that crosses a reset", refused(reset(1, CANCEL)), Must::GoOnOrEnd),
    ]
}

fn number_rows() -> Vec<Row> {
    vec![
        row("strict 5.1.1 the largest number", get(0x7FFF_FFFF), Must::Answer(0x7FFF_FFFF, "0;")),
        row("strict 5.1.1 numbers may be passed over", [get(3), get(101)].concat(), Must::Answer(101, "0;")),
        row("strict 5.1.1 an even number behind odd ones", [held(1), get(4)].concat(), ENDS),
        row("strict 5.1.1 a number that a reset has used up", [held(5), reset(5, CANCEL), get(3)].concat(), ENDS),
    ]
}

fn settings_rows() -> Vec<Row> {
    let taken = |name, entries: &[(u16, u32)]| rows(name, vec![Send(settings(entries)), Acked(2)], Must::GoOn);
    vec![
        taken("strict 6.5 SETTINGS of nothing", &[]),
        taken("strict 6.5.2 settings of unknown numbers", &[(0, 7), (7, u32::MAX), (0xFFFF, u32::MAX), (0x0A0A, 0)]),
        taken("strict 6.5.2 the largest values", &[(1, u32::MAX), (3, u32::MAX), (4, (1 << 31) - 1), (6, u32::MAX)]),
        taken("strict 6.5.2 the largest and the smallest frame", &[(5, (1 << 24) - 1), (5, 16_384)]),
        taken("strict 6.5.2 a client that takes no streams", &[(3, 0), (2, 1)]),
        taken("strict RFC 8441, 3 a client's ENABLE_CONNECT_PROTOCOL", &[(8, 1)]),
        taken("strict RFC 9218, 2.1 NO_RFC7540_PRIORITIES of 1", &[(9, 1)]),
        taken("strict RFC 9218, 2.1 NO_RFC7540_PRIORITIES of 0", &[(9, 0)]),
        row("strict 6.5.2 ENABLE_PUSH of 2^32 - 1", settings(&[(2, u32::MAX)]), ENDS),
        row("strict 6.5.3 a wrong value behind right ones", settings(&[(2, 0), (4, 100), (2, 3)]), ENDS),
        row("strict 6.5.3 a right value behind a wrong one", settings(&[(5, 1), (5, 16_384)]), ENDS),
        rows(
            "strict 6.5.3 each SETTINGS has its acknowledgement",
            vec![Send([settings(&[(4, 1)]), settings(&[(4, 2)]), settings(&[(4, 3)])].concat()), Acked(4)],
            Must::GoOn,
        ),
        row(
            "strict 6.7 PING are answered with their own bytes, in their order",
            [frame(PING, 0, 0, &[0; 8]), frame(PING, 0, 0, &[0xFF; 8]), frame(PING, 0, 0, b"12345678")].concat(),
            Must::Pongs(&[&[0; 8], &[0xFF; 8], b"12345678"]),
        ),
        row("strict RFC 9218, 7.1 PRIORITY_UPDATE", frame(0x10, 0, 0, b"\0\0\0\x01u=0"), Must::GoOn),
    ]
}

fn goaway_rows() -> Vec<Row> {
    let promise = [&4_u32.to_be_bytes()[..], &block(&request("GET", "/echo"))].concat();
    vec![
        row(
            "strict 8.4 PUSH_PROMISE on an open stream",
            [held_post(1), frame(PUSH, END_HEADERS, 1, &promise)].concat(),
            ENDS,
        ),
        row("strict 6.6 PUSH_PROMISE on no stream", frame(PUSH, END_HEADERS, 0, &promise), ENDS),
        row("strict 6.8 a request before GOAWAY is answered", [get(1), goaway(0, NO_ERROR, b"bye")].concat(), echo()),
        row(
            "strict 6.8 a request that ends behind GOAWAY is answered",
            [post(1), goaway(0, NO_ERROR, b""), data(END_STREAM, 1, b"data")].concat(),
            Must::Answer(1, "4;"),
        ),
        row(
            "strict 6.8 a request before GOAWAY of an unknown code is answered",
            [get(1), goaway(0x7FFF_FFFF, 0xFF, b"")].concat(),
            echo(),
        ),
        row(
            "strict 6.8 GOAWAY twice",
            [get(1), goaway(0x7FFF_FFFF, NO_ERROR, b""), goaway(0, NO_ERROR, b"")].concat(),
            echo(),
        ),
    ]
}

fn message_rows() -> Vec<Row> {
    let trailing =
        |flags: u8, fields: &[(&str, &str)]| [post(1), data(0, 1, b"data"), trailers(flags, 1, fields)].concat();
    vec![
        row(
            "strict 8.1 a pseudo-header field in trailers that end the stream",
            trailing(WHOLE, &[(":path", "/")]),
            MALFORMED,
        ),
        row(
            "strict 8.1 an answer's pseudo-header field in trailers",
            trailing(WHOLE, &[(":status", "200")]),
            MALFORMED,
        ),
        row("strict 8.1 an unknown pseudo-header field in trailers", trailing(WHOLE, &[(":x", "1")]), MALFORMED),
        row("strict 8.1 a second head", [post(1), post(1)].concat(), MALFORMED),
        row("strict 8.1 a second head that ends the stream", [post(1), get(1)].concat(), MALFORMED),
        row("strict 8.2 upper case in trailers", trailing(WHOLE, &[("X-A", "1")]), MALFORMED),
        row("strict 8.2.2 a field of the connection in trailers", trailing(WHOLE, &[("connection", "x-a")]), MALFORMED),
        row(
            "strict 8.1 trailers behind no data",
            [post(1), trailers(WHOLE, 1, &[("x-a", "1")])].concat(),
            Must::Answer(1, "0;1"),
        ),
        row("strict 8.1 trailers of nothing", trailing(WHOLE, &[]), Must::Answer(1, "4;")),
        row("strict 8.2.2 TE of trailers", get_with(1, &[("te", "trailers")]), echo()),
        row("strict 8.3.1 two paths that differ", get_with(1, &[(":path", "/held")]), MALFORMED),
        row("strict 8.3 an empty head", frame(HEADERS, WHOLE, 1, b""), MALFORMED),
        row("strict 8.1.1 a length and no body", get_with(1, &[("content-length", "4")]), MALFORMED),
        row(
            "strict 8.1.1 a body that is shorter than its length",
            [
                head(END_HEADERS, 1, &request_with("POST", "/echo", &[("content-length", "5")])),
                data(END_STREAM, 1, b"body"),
            ]
            .concat(),
            MALFORMED,
        ),
        row(
            "strict 8.1.1 padding is no part of a length",
            [
                head(END_HEADERS, 1, &request_with("POST", "/echo", &[("content-length", "4")])),
                padded(END_STREAM, 1, b"body", 9),
            ]
            .concat(),
            Must::Answer(1, "4;"),
        ),
    ]
}
