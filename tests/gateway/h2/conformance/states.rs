//! Beginning a connection, the format of frames, and the states of streams (the suite's group "http2", 3 to 5).

use crate::h2::frames::{
    CANCEL, COMPRESSION_ERROR, CONTINUATION, END_HEADERS, END_STREAM, FRAME_SIZE_ERROR, GOAWAY, HEADERS, PING, PREFACE,
    PROTOCOL_ERROR, REFUSED_STREAM, SETTINGS, STREAM_CLOSED, WHOLE, block, frame, request, request_with,
};

use super::generic::begins_with_settings;
use super::sends::{
    WITH_PRIORITY, continuation, data, dependency, get, head, held, held_post, post, priority, reset, settings, window,
};
use super::{Case, Must, Row, Turn, first, row, rows, sections};
use Turn::{Ended, Send};

sections! {
    prefaces: preface_rows,
    the_format_and_size_of_frames: format_rows,
    field_blocks: block_rows,
    frames_on_streams_that_are_idle: idle_rows,
    frames_on_streams_that_the_client_has_ended: ended_rows,
    frames_on_streams_that_are_closed: closed_rows,
    numbers_of_streams: number_rows,
    dependencies_errors_and_extensions: other_rows,
}

/// The largest frame that a server takes which does not say more (4.2).
pub const MOST: usize = 16_384;

/// A frame of a type that nobody has defined.
pub fn unknown(stream: u32) -> Vec<u8> {
    frame(0x16, 0, stream, b"8 bytes.")
}

fn preface_rows() -> Vec<Row> {
    vec![
        first("http2 3.5/1 a preface", [PREFACE, &settings(&[(4, 65_535)])].concat(), Must::Hold(begins_with_settings)),
        first("http2 3.5/2 what is no preface", b"NO PREFACE OF ANYTHING\r\n\r\n".to_vec(), Must::Refuse),
    ]
}

fn format_rows() -> Vec<Row> {
    let mut reserved = frame(PING, 0, 0, b"reserved");
    reserved[5] |= 0x80;
    let long = "v".repeat(MOST);
    vec![
        row("http2 4.1/1 a frame of an unknown type", unknown(0), Must::GoOn),
        row("http2 4.1/2 PING with unknown flags", frame(PING, 0x16, 0, b"flagged."), Must::Pongs(&[b"flagged."])),
        row("http2 4.1/3 PING with the reserved bit", reserved, Must::Pongs(&[b"reserved"])),
        row(
            "http2 4.2/1 DATA of 16,384 bytes",
            [post(1), data(END_STREAM, 1, &[b'x'; MOST])].concat(),
            Must::Answer(1, "16384;"),
        ),
        row(
            "http2 4.2/2 DATA of 16,385 bytes",
            [post(1), data(END_STREAM, 1, &[b'x'; MOST + 1])].concat(),
            Must::Fail(1, &[FRAME_SIZE_ERROR]),
        ),
        row(
            "http2 4.2/3 HEADERS of more than 16,384 bytes",
            head(WHOLE, 1, &request_with("GET", "/echo", &[("x-b", &long)])),
            Must::End(&[FRAME_SIZE_ERROR]),
        ),
    ]
}

/// HEADERS of a request that does not end its fields.
pub fn open_block(flags: u8, stream: u32) -> Vec<u8> {
    head(flags & !END_HEADERS, stream, &request("GET", "/echo"))
}

fn block_rows() -> Vec<Row> {
    let rest = || continuation(END_HEADERS, 1, &[("x-a", "1")]);
    vec![
        row(
            "http2 4.3/1 a field block that is cut",
            frame(HEADERS, WHOLE, 1, &[0x40]),
            Must::End(&[COMPRESSION_ERROR]),
        ),
        row(
            "http2 4.3/2 PRIORITY within a field block",
            [open_block(0, 1), priority(1, 0, 255), rest()].concat(),
            Must::End(&[PROTOCOL_ERROR]),
        ),
        row(
            "http2 4.3/3 HEADERS of another stream within a field block",
            [open_block(0, 1), get(3), rest()].concat(),
            Must::End(&[PROTOCOL_ERROR]),
        ),
    ]
}

fn idle_rows() -> Vec<Row> {
    let end = || Must::End(&[PROTOCOL_ERROR]);
    vec![
        row("http2 5.1/1 DATA on an idle stream", data(END_STREAM, 1, b"data"), end()),
        row("http2 5.1/2 RST_STREAM on an idle stream", reset(1, CANCEL), end()),
        row("http2 5.1/3 WINDOW_UPDATE on an idle stream", window(1, 100), end()),
        row(
            "http2 5.1/4 CONTINUATION on an idle stream",
            frame(CONTINUATION, END_HEADERS, 1, &block(&request("GET", "/echo"))),
            end(),
        ),
    ]
}

fn ended_rows() -> Vec<Row> {
    vec![
        row(
            "http2 5.1/5 DATA behind the end of the request",
            [held(1), data(END_STREAM, 1, b"data")].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        row(
            "http2 5.1/6 HEADERS behind the end of the request",
            [held(1), held(1)].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        // 6.10 has another code for it than 5.1.
        row(
            "http2 5.1/7 CONTINUATION behind the end of the request",
            [held(1), continuation(END_HEADERS, 1, &[("x-a", "1")])].concat(),
            Must::Fail(1, &[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
    ]
}

fn closed_rows() -> Vec<Row> {
    let given_up = |frame: Vec<u8>| [held_post(1), reset(1, CANCEL), frame].concat();
    let answered = |frame: Vec<u8>| vec![Send(get(1)), Ended(1), Send(frame)];
    let fields = || continuation(END_HEADERS, 1, &[("x-a", "1")]);
    // HEADERS of a number that was used is STREAM_CLOSED by 5.1, and PROTOCOL_ERROR by 5.1.1.
    vec![
        row(
            "http2 5.1/8 DATA behind an RST_STREAM",
            given_up(data(END_STREAM, 1, b"data")),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        row(
            "http2 5.1/9 HEADERS behind an RST_STREAM",
            given_up(get(1)),
            Must::Fail(1, &[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        row(
            "http2 5.1/10 CONTINUATION behind an RST_STREAM",
            given_up(fields()),
            Must::Fail(1, &[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        rows(
            "http2 5.1/11 DATA on a stream that both have ended",
            answered(data(END_STREAM, 1, b"data")),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        rows(
            "http2 5.1/12 HEADERS on a stream that both have ended",
            answered(get(1)),
            Must::End(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
        rows(
            "http2 5.1/13 CONTINUATION on a stream that both have ended",
            answered(fields()),
            Must::End(&[STREAM_CLOSED, PROTOCOL_ERROR]),
        ),
    ]
}

/// The value of one setting in the server's SETTINGS.
pub fn said(case: &Case, id: u16) -> Option<u32> {
    let settings = case.raw.seen.iter().find(|frame| frame.kind == SETTINGS)?;
    let entry = settings.payload.chunks(6).find(|entry| entry[..2] == id.to_be_bytes())?;
    Some(u32::from_be_bytes(entry[2..].try_into().unwrap()))
}

fn one_stream_more_than_the_server_takes(case: &mut Case) -> Result<(), String> {
    let Some(most) = said(case, 3) else { return Err("it does not say how many streams it takes".to_owned()) };
    let beyond = most * 2 + 1;
    let all: Vec<u8> = (0..=most).flat_map(|number| held(number * 2 + 1)).collect();
    case.raw.send_bytes(&all);
    let code = case.until(|case| case.raw.resets(beyond).first().copied())?;
    if [PROTOCOL_ERROR, REFUSED_STREAM].contains(&code) { Ok(()) } else { Err(format!("RST_STREAM {code}")) }
}

fn number_rows() -> Vec<Row> {
    vec![
        row("http2 5.1.1/1 an even number", get(2), Must::End(&[PROTOCOL_ERROR])),
        row("http2 5.1.1/2 a number below the last", [held(5), get(3)].concat(), Must::End(&[PROTOCOL_ERROR])),
        rows(
            "http2 5.1.2/1 a stream more than the server takes",
            Vec::new(),
            Must::Hold(one_stream_more_than_the_server_takes),
        ),
    ]
}

fn other_rows() -> Vec<Row> {
    let fields = block(&request("GET", "/echo"));
    let stray_ping = || frame(PING, 0, 3, b"8 bytes.");
    vec![
        row(
            "http2 5.3.1/1 HEADERS that depend on themselves",
            frame(HEADERS, WHOLE | WITH_PRIORITY, 1, &[dependency(1, 255), fields].concat()),
            Must::Fail(1, &[PROTOCOL_ERROR]),
        ),
        row("http2 5.3.1/2 PRIORITY that depends on itself", priority(1, 1, 255), Must::Fail(1, &[PROTOCOL_ERROR])),
        row("http2 5.4.1/1 PING on a stream, for the end", stray_ping(), Must::End(&[PROTOCOL_ERROR])),
        row("http2 5.4.1/2 PING on a stream, for the GOAWAY", stray_ping(), Must::Hold(the_error_is_told)),
        row("http2 5.5/1 an unknown frame", unknown(0), Must::GoOn),
        row(
            "http2 5.5/2 an unknown frame within a field block",
            [open_block(END_STREAM, 1), unknown(0)].concat(),
            Must::End(&[PROTOCOL_ERROR]),
        ),
    ]
}

fn the_error_is_told(case: &mut Case) -> Result<(), String> {
    let told = case.until(|case| case.raw.seen.iter().find(|frame| frame.kind == GOAWAY).cloned())?;
    let is_so = told.code() == PROTOCOL_ERROR && told.stream == 0 && told.payload[..4] == [0; 4];
    if is_so { Ok(()) } else { Err(format!("{told:?}")) }
}
