//! The frames one by one, codes of errors, and messages (the suite's group "http2", 6 to 8).

use crate::h2::frames::{
    CANCEL, DATA, END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR, FRAME_SIZE_ERROR, Fields, GOAWAY, HEADERS, PADDED, PING,
    PRIORITY, PROTOCOL_ERROR, PUSH, RESET, SETTINGS, STREAM_CLOSED, WHOLE, WINDOW, block, frame, pairs, request,
    request_with,
};

use super::sends::{
    continuation, data, get, get_with, goaway, head, held, held_post, post, priority, reset, settings, trailers, window,
};
use super::states::open_block;
use super::{Must, Row, Turn, row, rows, sections};
use Turn::{Acked, Came, Send};

sections! {
    data_and_headers: data_and_headers_rows,
    priority_and_rst_stream: priority_and_reset_rows,
    settings_frames: settings_rows,
    settings_are_acknowledged: acknowledgement_rows,
    ping_and_goaway: ping_and_goaway_rows,
    window_updates: window_rows,
    the_first_size_of_windows: first_window_rows,
    continuations: continuation_rows,
    codes_and_push: code_rows,
    fields: field_rows,
    pseudo_header_fields_of_requests: pseudo_rows,
    lengths: length_rows,
}

const ENDS: Must = Must::End(&[PROTOCOL_ERROR]);
const MALFORMED: Must = Must::Reset(1, &[PROTOCOL_ERROR]);

fn data_and_headers_rows() -> Vec<Row> {
    let fields = block(&request("GET", "/echo"));
    let beyond = u8::try_from(fields.len() + 1).unwrap();
    let posting = head(END_HEADERS, 1, &request_with("POST", "/echo", &[("content-length", "4")]));
    vec![
        row("http2 6.1/1 DATA on no stream", data(END_STREAM, 0, b"data"), ENDS),
        row(
            "http2 6.1/2 DATA on a stream that the client has ended",
            [held(1), data(END_STREAM, 1, b"data")].concat(),
            Must::Fail(1, &[STREAM_CLOSED]),
        ),
        row(
            "http2 6.1/3 DATA with more padding than it has bytes",
            [posting, frame(DATA, END_STREAM | PADDED, 1, b"\x06data")].concat(),
            ENDS,
        ),
        row(
            "http2 6.2/1 HEADERS that do not end and PRIORITY",
            [open_block(0, 1), priority(1, 0, 255), continuation(END_HEADERS, 1, &[("x-a", "1")])].concat(),
            ENDS,
        ),
        row(
            "http2 6.2/2 HEADERS that do not end and HEADERS of another stream",
            [open_block(0, 1), get(3), continuation(END_HEADERS, 1, &[("x-a", "1")])].concat(),
            ENDS,
        ),
        row("http2 6.2/3 HEADERS on no stream", get(0), ENDS),
        row(
            "http2 6.2/4 HEADERS with more padding than they have bytes",
            frame(HEADERS, WHOLE | PADDED, 1, &[&[beyond][..], &fields].concat()),
            ENDS,
        ),
    ]
}

fn priority_and_reset_rows() -> Vec<Row> {
    vec![
        row("http2 6.3/1 PRIORITY on no stream", priority(0, 0, 255), ENDS),
        row(
            "http2 6.3/2 PRIORITY of 4 bytes",
            [held(1), frame(PRIORITY, 0, 1, &[0x80, 0, 0, 1])].concat(),
            Must::Reset(1, &[FRAME_SIZE_ERROR]),
        ),
        row("http2 6.4/1 RST_STREAM on no stream", reset(0, CANCEL), ENDS),
        row("http2 6.4/2 RST_STREAM on an idle stream", reset(1, CANCEL), ENDS),
        row(
            "http2 6.4/3 RST_STREAM of 3 bytes",
            [held(1), frame(RESET, 0, 1, &[0; 3])].concat(),
            Must::End(&[FRAME_SIZE_ERROR]),
        ),
    ]
}

fn settings_rows() -> Vec<Row> {
    let on_a_stream = frame(SETTINGS, 0, 1, &settings(&[(3, 100)])[9..]);
    vec![
        row(
            "http2 6.5/1 an acknowledgement with a payload",
            frame(SETTINGS, 1, 0, &[0]),
            Must::End(&[FRAME_SIZE_ERROR]),
        ),
        row("http2 6.5/2 SETTINGS on a stream", on_a_stream, ENDS),
        row("http2 6.5/3 SETTINGS of 3 bytes", frame(SETTINGS, 0, 0, &[0, 3, 0]), Must::End(&[FRAME_SIZE_ERROR])),
        row("http2 6.5.2/1 ENABLE_PUSH of 2", settings(&[(2, 2)]), ENDS),
        row("http2 6.5.2/2 INITIAL_WINDOW_SIZE of 2^31", settings(&[(4, 1 << 31)]), Must::End(&[FLOW_CONTROL_ERROR])),
        row("http2 6.5.2/3 MAX_FRAME_SIZE of 2^14 - 1", settings(&[(5, 16_383)]), ENDS),
        row("http2 6.5.2/4 MAX_FRAME_SIZE of 2^24", settings(&[(5, 1 << 24)]), ENDS),
        rows("http2 6.5.2/5 an unknown setting", vec![Send(settings(&[(0xFF, 1)])), Acked(2)], Must::GoOn),
    ]
}

fn acknowledgement_rows() -> Vec<Row> {
    vec![
        rows(
            "http2 6.5.3/1 a window's size twice: the last is meant",
            vec![Send(settings(&[(4, 100), (4, 1)])), Acked(2), Send(get(1))],
            Must::Bytes(1, 1),
        ),
        rows("http2 6.5.3/2 SETTINGS are acknowledged", vec![Send(settings(&[(2, 0)])), Acked(2)], Must::GoOn),
    ]
}

fn ping_and_goaway_rows() -> Vec<Row> {
    vec![
        row("http2 6.7/1 PING is answered with its bytes", frame(PING, 0, 0, b"its own."), Must::Pongs(&[b"its own."])),
        row(
            "http2 6.7/2 PING that is an answer is not answered",
            [frame(PING, 1, 0, b"answer.."), frame(PING, 0, 0, b"question")].concat(),
            Must::Pongs(&[b"question"]),
        ),
        row("http2 6.7/3 PING on a stream", frame(PING, 0, 1, &[0; 8]), ENDS),
        row("http2 6.7/4 PING of 6 bytes", frame(PING, 0, 0, &[0; 6]), Must::End(&[FRAME_SIZE_ERROR])),
        row("http2 6.8/1 GOAWAY on a stream", frame(GOAWAY, 0, 1, &[0; 8]), ENDS),
    ]
}

fn window_rows() -> Vec<Row> {
    const MORE: u32 = 0x7FFF_FFFF;
    vec![
        row("http2 6.9/1 a window of the connection by 0", window(0, 0), ENDS),
        row("http2 6.9/2 a window of a stream by 0", [held_post(1), window(1, 0)].concat(), MALFORMED),
        row("http2 6.9/3 WINDOW_UPDATE of 3 bytes", frame(WINDOW, 0, 0, &[0, 0, 1]), Must::End(&[FRAME_SIZE_ERROR])),
        rows(
            "http2 6.9.1/1 a window of one byte",
            vec![Send(settings(&[(4, 1)])), Acked(2), Send(get(1))],
            Must::Bytes(1, 1),
        ),
        row(
            "http2 6.9.1/2 a window of the connection beyond 2^31 - 1",
            [window(0, MORE), window(0, MORE)].concat(),
            Must::End(&[FLOW_CONTROL_ERROR]),
        ),
        row(
            "http2 6.9.1/3 a window of a stream beyond 2^31 - 1",
            [held_post(1), window(1, MORE), window(1, MORE)].concat(),
            Must::Reset(1, &[FLOW_CONTROL_ERROR]),
        ),
    ]
}

fn first_window_rows() -> Vec<Row> {
    vec![
        rows(
            "http2 6.9.2/1 a change of the first size opens a stream that is there",
            vec![Send(settings(&[(4, 0)])), Acked(2), Send([get(1), settings(&[(4, 1)])].concat())],
            Must::Bytes(1, 1),
        ),
        rows(
            "http2 6.9.2/2 a window may become negative",
            vec![
                Send(settings(&[(4, 3)])),
                Acked(2),
                Send(get_with(1, &[("x-a", "a long answer")])),
                Came(1, 3),
                Send(settings(&[(4, 2)])),
                Acked(3),
                Send(window(1, 2)),
            ],
            Must::Bytes(1, 4),
        ),
        row("http2 6.9.2/3 a first size of 2^31", settings(&[(4, 1 << 31)]), Must::End(&[FLOW_CONTROL_ERROR])),
    ]
}

fn continuation_rows() -> Vec<Row> {
    let more = |flags: u8, stream: u32| continuation(flags, stream, &[("x-a", "1")]);
    let posting = || frame(HEADERS, 0, 1, &block(&request("POST", "/echo")));
    let asking = || open_block(END_STREAM, 1);
    vec![
        row(
            "http2 6.10/1 CONTINUATION twice behind HEADERS",
            [asking(), more(0, 1), more(END_HEADERS, 1)].concat(),
            Must::Answer(1, "0;1,1"),
        ),
        row(
            "http2 6.10/2 DATA behind CONTINUATION that does not end",
            [posting(), more(0, 1), data(END_STREAM, 1, b"data")].concat(),
            ENDS,
        ),
        row("http2 6.10/3 CONTINUATION on no stream", [asking(), more(END_HEADERS, 0)].concat(), ENDS),
        row("http2 6.10/4 CONTINUATION behind HEADERS that end", [held(1), more(END_HEADERS, 1)].concat(), ENDS),
        row(
            "http2 6.10/5 CONTINUATION behind CONTINUATION that ends",
            [
                frame(HEADERS, END_STREAM, 1, &block(&request("GET", "/held"))),
                more(END_HEADERS, 1),
                more(END_HEADERS, 1),
            ]
            .concat(),
            ENDS,
        ),
        row(
            "http2 6.10/6 CONTINUATION behind DATA",
            [posting(), data(END_STREAM, 1, b"data"), more(0, 1), more(END_HEADERS, 0)].concat(),
            ENDS,
        ),
    ]
}

fn code_rows() -> Vec<Row> {
    let promise = [&3_u32.to_be_bytes()[..], &block(&request("GET", "/echo"))].concat();
    vec![
        row("http2 7/1 GOAWAY of an unknown code", goaway(0, 0xFF, b""), Must::GoOnOrEnd),
        row("http2 7/2 RST_STREAM of an unknown code", [held_post(1), reset(1, 0xFF)].concat(), Must::GoOn),
        row("http2 8.2/1 PUSH_PROMISE", frame(PUSH, END_HEADERS, 1, &promise), ENDS),
    ]
}

fn field_rows() -> Vec<Row> {
    let trailing =
        |flags: u8, fields: &[(&str, &str)]| [post(1), data(0, 1, b"data"), trailers(flags, 1, fields)].concat();
    let late = [pairs(&[("x-a", "1")]), request("GET", "/echo")].concat();
    vec![
        row("http2 8.1/1 trailers that do not end the stream", trailing(END_HEADERS, &[("x-a", "1")]), MALFORMED),
        row("http2 8.1.2/1 a name in upper case", get_with(1, &[("X-A", "1")]), MALFORMED),
        row("http2 8.1.2.1/1 an unknown pseudo-header field", get_with(1, &[(":unknown", "1")]), MALFORMED),
        row("http2 8.1.2.1/2 a pseudo-header field of answers", get_with(1, &[(":status", "200")]), MALFORMED),
        row(
            "http2 8.1.2.1/3 a pseudo-header field in trailers",
            trailing(END_HEADERS, &[(":method", "POST")]),
            MALFORMED,
        ),
        row("http2 8.1.2.1/4 pseudo-header fields behind a field", head(WHOLE, 1, &late), MALFORMED),
        row("http2 8.1.2.2/1 a field of the connection", get_with(1, &[("connection", "keep-alive")]), MALFORMED),
        row("http2 8.1.2.2/2 TE of more than trailers", get_with(1, &[("te", "trailers, deflate")]), MALFORMED),
    ]
}

fn pseudo_rows() -> Vec<Row> {
    let without = |name: &str| {
        let mut fields: Fields = request("GET", "/echo");
        fields.retain(|(known, _)| known != name.as_bytes());
        head(WHOLE, 1, &fields)
    };
    vec![
        row("http2 8.1.2.3/1 an empty path", head(WHOLE, 1, &request("GET", "")), MALFORMED),
        row("http2 8.1.2.3/2 no method", without(":method"), MALFORMED),
        row("http2 8.1.2.3/3 no scheme", without(":scheme"), MALFORMED),
        row("http2 8.1.2.3/4 no path", without(":path"), MALFORMED),
        row("http2 8.1.2.3/5 the method twice", get_with(1, &[(":method", "GET")]), MALFORMED),
        row("http2 8.1.2.3/6 the scheme twice", get_with(1, &[(":scheme", "http")]), MALFORMED),
        row("http2 8.1.2.3/7 the path twice", get_with(1, &[(":path", "/echo")]), MALFORMED),
    ]
}

fn length_rows() -> Vec<Row> {
    let posting = || head(END_HEADERS, 1, &request_with("POST", "/echo", &[("content-length", "1")]));
    vec![
        row(
            "http2 8.1.2.6/1 a body that is longer than its length",
            [posting(), data(END_STREAM, 1, b"body")].concat(),
            MALFORMED,
        ),
        row(
            "http2 8.1.2.6/2 a body in two parts that is longer than its length",
            [posting(), data(0, 1, b"body"), data(END_STREAM, 1, b"more")].concat(),
            MALFORMED,
        ),
    ]
}
