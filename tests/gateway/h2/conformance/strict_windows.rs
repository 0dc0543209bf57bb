//! Windows beyond the public suite (RFC 9113, 5.2 and 6.9).

use crate::h2::frames::{END_HEADERS, END_STREAM, FLOW_CONTROL_ERROR, PROTOCOL_ERROR, WHOLE, WINDOW, pairs, request};

use super::sends::{data, get, get_large, get_with, head, held, padded, post, settings, window};
use super::states::{MOST, said};
use super::{Case, LARGE, Must, Row, Turn, row, rows, sections};
use Turn::{Acked, Came, Send};

sections! {
    windows_of_what_is_sent_to_the_client: sending_rows,
    windows_beyond_their_most: overflow_rows,
    windows_of_what_the_client_sends: receiving_rows,
}

/// A window that nobody has changed.
const FIRST: usize = 65_535;
/// The most that a window may be.
const FULL: u32 = 0x7FFF_FFFF;

fn sending_rows() -> Vec<Row> {
    let wide = || settings(&[(4, 1 << 20)]);
    vec![
        row(
            "strict 5.2 a stream's window bounds its answer",
            [window(0, 1 << 20), get_large(1)].concat(),
            Must::Bytes(1, FIRST),
        ),
        row("strict 6.9.2 SETTINGS do not open the connection", [wide(), get_large(1)].concat(), Must::Bytes(1, FIRST)),
        rows(
            "strict 6.9 the connection's window is shared",
            vec![Send([wide(), get_large(1)].concat()), Came(1, FIRST), Send([get(3), window(0, 2)].concat())],
            Must::Hold(two_bytes_more),
        ),
        rows(
            "strict 6.9.1 each byte of a window is used",
            vec![
                Send([window(0, 1 << 20), get_large(1)].concat()),
                Came(1, FIRST),
                Send([window(1, 1), window(1, 100_000)].concat()),
            ],
            Must::Bytes(1, FIRST + 100_001),
        ),
        rows(
            "strict 6.9.2 a window that is negative stays so until it was opened as far",
            vec![
                Send(settings(&[(4, 10)])),
                Acked(2),
                Send(get_with(1, &[("x-a", "much longer than that")])),
                Came(1, 10),
                Send(settings(&[(4, 0)])),
                Acked(3),
                Send([settings(&[(4, 5)]), window(1, 5), window(1, 1)].concat()),
            ],
            Must::Bytes(1, 11),
        ),
        rows(
            "strict 6.9.2 a smaller first size closes a window that was not used",
            vec![
                Send([settings(&[(4, 9)]), post(1), settings(&[(4, 0)])].concat()),
                Acked(3),
                // There is no answer before this end.
                Send([window(1, 1), data(END_STREAM, 1, b"data")].concat()),
            ],
            Must::Bytes(1, 1),
        ),
        rows(
            "strict 6.9 no window is needed for an end without data",
            vec![Send(settings(&[(4, 0)])), Acked(2), Send(head(WHOLE, 1, &request("HEAD", "/echo")))],
            Must::Answer(1, ""),
        ),
        row(
            "strict 4.2 frames are no larger than the client takes",
            [wide(), window(0, 1 << 20), get_large(1)].concat(),
            Must::Hold(frames_of_16_384_at_most),
        ),
        row(
            "strict 4.2 nor are they when it takes larger ones",
            [settings(&[(5, 20_000), (4, 1 << 20)]), window(0, 1 << 20), get_large(1)].concat(),
            Must::Hold(frames_of_20_000_at_most),
        ),
    ]
}

/// Of two streams that wait for the connection's window.
fn two_bytes_more(case: &mut Case) -> Result<(), String> {
    let all = |case: &Case| case.came(1) + case.came(3);
    case.until(|case| (all(case) >= FIRST + 2).then_some(()))?;
    case.goes_on(None)?;
    if all(case) == FIRST + 2 { Ok(()) } else { Err(format!("{} bytes", all(case))) }
}

fn no_frame_above(case: &mut Case, most: usize) -> Result<(), String> {
    let answer = case.answer(1)?;
    let largest = case.raw.seen.iter().map(|frame| frame.payload.len()).max().unwrap_or_default();
    if answer.1.len() == LARGE && largest <= most { Ok(()) } else { Err(format!("{largest} bytes in a frame")) }
}

fn frames_of_16_384_at_most(case: &mut Case) -> Result<(), String> {
    no_frame_above(case, MOST)
}

fn frames_of_20_000_at_most(case: &mut Case) -> Result<(), String> {
    no_frame_above(case, 20_000)
}

fn overflow_rows() -> Vec<Row> {
    let up_to_full = FULL - 65_535;
    vec![
        row("strict 6.9.1 a window of the connection of just 2^31 - 1", window(0, up_to_full), Must::GoOn),
        row(
            "strict 6.9.1 a window of the connection of one more",
            window(0, up_to_full + 1),
            Must::End(&[FLOW_CONTROL_ERROR]),
        ),
        row(
            "strict 6.9.1 a window of a stream of just 2^31 - 1",
            [held(1), window(1, up_to_full)].concat(),
            Must::GoOn,
        ),
        row(
            "strict 6.9.1 a window of a stream of one more",
            [held(1), window(1, up_to_full + 1)].concat(),
            Must::Reset(1, &[FLOW_CONTROL_ERROR]),
        ),
        row(
            "strict 6.9.2 a first size that makes a stream's window too large",
            [held(1), window(1, up_to_full), settings(&[(4, 65_536)])].concat(),
            Must::End(&[FLOW_CONTROL_ERROR]),
        ),
        row(
            "strict 6.9.2 a first size of just 2^31 - 1 with a stream",
            [held(1), settings(&[(4, FULL)])].concat(),
            Must::GoOn,
        ),
        row(
            "strict 6.9 a window of a half-closed stream by 0",
            [held(1), window(1, 0)].concat(),
            Must::Reset(1, &[PROTOCOL_ERROR]),
        ),
    ]
}

fn receiving_rows() -> Vec<Row> {
    vec![
        rows(
            "strict 6.9.1 an upload larger than all windows, within them",
            Vec::new(),
            Must::Hold(uploads_within_windows),
        ),
        rows("strict 6.9.1 padding is given back as data are", Vec::new(), Must::Hold(uploads_padding)),
        rows(
            "strict 5.1 data of a stream that the server has reset are given back to the connection",
            Vec::new(),
            Must::Hold(uploads_to_streams_that_are_reset),
        ),
    ]
}

/// The bytes that the client may still send on a stream and over the connection, by what it was told.
fn left(case: &Case, stream: u32, sent: usize, sent_in_all: usize) -> usize {
    let opened = |of: u32| -> usize {
        let updates = case.raw.seen.iter().filter(|frame| frame.kind == WINDOW && frame.stream == of);
        updates.map(|frame| u32::from_be_bytes(frame.payload[..].try_into().unwrap()) as usize).sum()
    };
    let first = said(case, 4).map_or(FIRST, |size| size as usize);
    (first + opened(stream) - sent).min(FIRST + opened(0) - sent_in_all)
}

/// Sends this frame again and again as the windows allow, and the last one with `END_STREAM`; the answer tells the size.
fn upload(case: &mut Case, content: usize, padding: u8, times: usize) -> Result<(), String> {
    let one = |flags: u8| {
        if padding == 0 {
            data(flags, 1, &vec![b'x'; content])
        } else {
            padded(flags, 1, &vec![b'x'; content], padding)
        }
    };
    let weight = one(0).len() - 9;
    case.raw.send_bytes(&post(1));
    for number in 0..times {
        let sent = number * weight;
        case.until(|case| (left(case, 1, sent, sent) >= weight).then_some(()))?;
        case.raw.send_bytes(&one(if number + 1 == times { END_STREAM } else { 0 }));
    }
    let answer = case.answer(1)?;
    let wanted = format!("{};", content * times);
    if answer == (200, wanted) { case.goes_on(None) } else { Err(format!("{answer:?}")) }
}

fn uploads_within_windows(case: &mut Case) -> Result<(), String> {
    upload(case, MOST, 0, 640)
}

fn uploads_padding(case: &mut Case) -> Result<(), String> {
    // Of each frame are 256 bytes padding: twice the windows of a stream that is as wide as those of gateways are.
    upload(case, 1000, 255, 4096)
}

/// Bodies of requests that are malformed: the server drops them, six megabytes in all.
fn uploads_to_streams_that_are_reset(case: &mut Case) -> Result<(), String> {
    const PIECES: usize = 15;
    let malformed = [request("POST", "/echo"), pairs(&[("connection", "close")])].concat();
    let mut sent = 0;
    for number in 0..26 {
        let stream = number * 2 + 1;
        case.raw.send_bytes(&head(END_HEADERS, stream, &malformed));
        for _ in 0..PIECES {
            case.until(|case| (left(case, stream, 0, sent) >= MOST).then_some(()))?;
            case.raw.send_bytes(&data(0, stream, &[b'x'; MOST]));
            sent += MOST;
        }
        let code = case.until(|case| case.raw.resets(stream).first().copied())?;
        if code != PROTOCOL_ERROR {
            return Err(format!("RST_STREAM {code}"));
        }
    }
    case.raw.send_bytes(&get(101));
    let answer = case.answer(101)?;
    if answer == (200, "0;".to_owned()) { Ok(()) } else { Err(format!("{answer:?}")) }
}
