//! HPACK beyond the public suite (RFC 7541): what a table holds is seen by the server behind.

use crate::h2::frames::{
    CANCEL, COMPRESSION_ERROR, END_HEADERS, HEADERS, PROTOCOL_ERROR, REFUSED_STREAM, WHOLE, block, frame, integer,
    request,
};

use super::generic::{huffman, string};
use super::sends::{data, get_and, get_behind, held_post, post, reset};
use super::states::said;
use super::{Case, Must, Row, row, rows, sections};

sections! {
    decoding_errors: error_rows,
    the_dynamic_table: table_rows,
    the_table_outlives_errors_of_streams: survivor_rows,
    strings_and_integers: literal_rows,
}

const ENDS: Must = Must::End(&[COMPRESSION_ERROR]);

/// The index of the dynamic table's first entry, 62.
const NEWEST: u8 = 0xBE;

/// `x-a` with this value, into the table.
fn enter(value: &str) -> Vec<u8> {
    [&[0x40][..], &string("x-a", false), &string(value, false)].concat()
}

/// A table of this many bytes.
fn size(bytes: usize) -> Vec<u8> {
    let mut update = Vec::new();
    integer(&mut update, 0x20, 31, bytes);
    update
}

fn error_rows() -> Vec<Row> {
    let cut = |whole: Vec<u8>| get_and(1, &whole[..whole.len() - 1]);
    let trailing = |fields: &[u8]| [post(1), data(0, 1, b"x"), frame(HEADERS, WHOLE, 1, fields)].concat();
    let coded = |code: &[u8]| {
        let length = 0x80 | u8::try_from(code.len()).unwrap();
        get_and(1, &[&[0][..], &string("x-a", false), &[length], code].concat())
    };
    vec![
        row("strict RFC 7541, 2.3.3 the dynamic table's first index when it is empty", get_and(1, &[NEWEST]), ENDS),
        row("strict RFC 7541, 2.3.3 a name's index in an empty dynamic table", get_and(1, &[0x7E, 1, b'v']), ENDS),
        row("strict RFC 7541, 2.3.3 the same without indexing", get_and(1, &[0x0F, 47, 1, b'v']), ENDS),
        row("strict RFC 7541, 2.3.3 the same never indexed", get_and(1, &[0x1F, 47, 1, b'v']), ENDS),
        row("strict RFC 7541, 5.1 an integer that does not end", get_and(1, &[0xFF, 0x80]), ENDS),
        row(
            "strict RFC 7541, 5.1 an integer of 64 bits",
            get_and(1, &[0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1]),
            ENDS,
        ),
        row("strict RFC 7541, 5.1 an integer of forty bytes", get_and(1, &[&[0xFF; 40][..], &[1]].concat()), ENDS),
        row("strict RFC 7541, 5.1 an integer whose sum wraps", get_and(1, &[0xFF, 0xBB, 0xFF, 0xFF, 0xFF, 0x0F]), ENDS),
        row("strict RFC 7541, 5.2 a name that is longer than the block", get_and(1, &[0, 9, b'x']), ENDS),
        row("strict RFC 7541, 5.2 a value that is cut", cut(enter("value")), ENDS),
        row(
            "strict RFC 7541, 5.2 a coded value that is cut",
            cut([&[0x40][..], &string("x-a", true), &string("value", true)].concat()),
            ENDS,
        ),
        row("strict RFC 7541, 5.2 a length of 2^31", get_and(1, &[0, 0x7F, 0x81, 0xFF, 0xFF, 0xFF, 0x07, b'x']), ENDS),
        row("strict RFC 7541, 5.2 padding of eight ones", coded(&[huffman("x-a-"), vec![0xFF]].concat()), ENDS),
        row("strict RFC 7541, 5.2 padding alone", coded(&[0xFF]), ENDS),
        row("strict RFC 7541, 5.2 a code that is cut", coded(&[0b1111_1110]), ENDS),
        row(
            "strict RFC 7541, 4.2 a change of the size behind the first field",
            frame(HEADERS, WHOLE, 1, &[&[0x82][..], &size(0), &[0x86, 0x84, 0x41, 1, b'h']].concat()),
            ENDS,
        ),
        row("strict RFC 7541, 6.3 a table of 2^32", get_behind(1, &size(1 << 32)), ENDS),
        row(
            "strict RFC 7541, 6.3 a second change that is too large",
            get_behind(1, &[size(0), size(4097)].concat()),
            ENDS,
        ),
        row("strict 4.3 a decoding error in trailers", trailing(&[NEWEST]), ENDS),
        row("strict 4.3 a change of the size at the end of trailers", trailing(&[enter("1"), size(0)].concat()), ENDS),
    ]
}

fn table_rows() -> Vec<Row> {
    let asks = |blocks: &[Vec<u8>]| -> Vec<u8> {
        blocks
            .iter()
            .enumerate()
            .flat_map(|(number, block)| get_and(u32::try_from(number * 2 + 1).unwrap(), block))
            .collect()
    };
    // Each of these entries counts 3 + 5 + 32 bytes: three of them fill a table of 120.
    let [one, two, three, four] = ["one..", "two..", "three", "four."].map(enter);
    let small = [get_behind(1, &size(120)), get_and(3, &[one.clone(), two.clone(), three.clone()].concat())].concat();
    vec![
        row(
            "strict RFC 7541, 2.3.2 an entry is there for the next request",
            asks(&[enter("kept"), vec![NEWEST]]),
            Must::Answer(3, "0;kept"),
        ),
        row(
            "strict RFC 7541, 2.3.3 the newest entry is the first",
            asks(&[[one.clone(), two.clone()].concat(), vec![NEWEST, NEWEST + 1]]),
            Must::Answer(3, "0;two..,one.."),
        ),
        row(
            "strict RFC 7541, 3.2 an entry is there within its block",
            get_and(1, &[one.clone(), vec![NEWEST]].concat()),
            Must::Answer(1, "0;one..,one.."),
        ),
        row(
            "strict RFC 7541, 6.2.1 a name of the dynamic table",
            asks(&[one.clone(), vec![0x7E, 3, b'n', b'e', b'w'], vec![NEWEST, NEWEST + 1]]),
            Must::Answer(5, "0;new,one.."),
        ),
        row(
            "strict RFC 7541, 6.2.2 what is not indexed does not enter the table",
            asks(&[one.clone(), [&[0][..], &string("x-a", false), &string("two", false)].concat(), vec![NEWEST]]),
            Must::Answer(5, "0;one.."),
        ),
        row(
            "strict RFC 7541, 6.2.3 nor does what is never indexed",
            asks(&[one.clone(), [&[0x10][..], &string("x-a", false), &string("two", false)].concat(), vec![NEWEST]]),
            Must::Answer(5, "0;one.."),
        ),
        row(
            "strict RFC 7541, 4.4 a table that is full keeps all",
            [small.clone(), get_and(5, &[NEWEST, NEWEST + 1, NEWEST + 2])].concat(),
            Must::Answer(5, "0;three,two..,one.."),
        ),
        row(
            "strict RFC 7541, 4.4 the oldest entry goes",
            [small.clone(), get_and(5, &four), get_and(7, &[NEWEST, NEWEST + 1, NEWEST + 2])].concat(),
            Must::Answer(7, "0;four.,three,two.."),
        ),
        row(
            "strict RFC 7541, 4.4 and is no longer there",
            [small.clone(), get_and(5, &four), get_and(7, &[NEWEST + 3])].concat(),
            ENDS,
        ),
        row(
            "strict RFC 7541, 4.4 an entry may take its name from one that it pushes out",
            [small.clone(), get_and(5, &[0x7F, 1, 5, b'f', b'r', b'e', b's', b'h']), get_and(7, &[NEWEST, NEWEST + 1])]
                .concat(),
            Must::Answer(7, "0;fresh,three"),
        ),
        row(
            "strict RFC 7541, 4.4 an entry larger than the table is read",
            [small.clone(), get_and(5, &enter(&"v".repeat(100)))].concat(),
            Must::Hold(v_100_times),
        ),
        row(
            "strict RFC 7541, 4.4 and empties the table",
            [small.clone(), get_and(5, &enter(&"v".repeat(100))), get_and(7, &[NEWEST])].concat(),
            ENDS,
        ),
        row(
            "strict RFC 7541, 4.3 a smaller table keeps the newest",
            [small.clone(), get_behind(5, &size(80)), get_and(7, &[NEWEST, NEWEST + 1])].concat(),
            Must::Answer(7, "0;three,two.."),
        ),
        row(
            "strict RFC 7541, 4.3 and loses the others",
            [small.clone(), get_behind(5, &size(80)), get_and(7, &[NEWEST + 2])].concat(),
            ENDS,
        ),
        row(
            "strict RFC 7541, 4.3 a table of 0 and then of 4,096 is empty",
            [small, get_behind(5, &[size(0), size(4096)].concat()), get_and(7, &[NEWEST])].concat(),
            ENDS,
        ),
        row(
            "strict RFC 7541, 4.4 nothing enters a table of 0",
            [get_behind(1, &size(0)), get_and(3, &one), get_and(5, &[NEWEST])].concat(),
            ENDS,
        ),
        row(
            "strict 4.3 trailers share the table",
            [post(1), frame(HEADERS, WHOLE, 1, &two), get_and(3, &[NEWEST])].concat(),
            Must::Answer(3, "0;two.."),
        ),
    ]
}

fn v_100_times(case: &mut Case) -> Result<(), String> {
    let answer = case.answer(5)?;
    if answer == (200, format!("0;{}", "v".repeat(100))) { Ok(()) } else { Err(format!("{answer:?}")) }
}

/// A head that is read only to be refused is decoded all the same (4.3).
fn survivor_rows() -> Vec<Row> {
    let malformed =
        |stream: u32, entry: &[u8]| get_and(stream, &[entry, &string_field("connection", "close")].concat());
    let entry = || enter("kept");
    let known = || get_and(3, &[NEWEST]);
    vec![
        row(
            "strict 4.3 fields of a malformed head enter the table",
            [malformed(1, &entry()), known()].concat(),
            Must::Answer(3, "0;kept"),
        ),
        row(
            "strict 4.3 so do those behind the fault",
            [get_and(1, &[string_field("X-A", "1"), entry()].concat()), known()].concat(),
            Must::Answer(3, "0;kept"),
        ),
        row(
            "strict 4.3 so do those of trailers that cross a reset",
            [
                frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    &[block(&request("POST", "/echo")), string_field("connection", "close")].concat(),
                ),
                frame(HEADERS, WHOLE, 1, &entry()),
                known(),
            ]
            .concat(),
            Must::Answer(3, "0;kept"),
        ),
        row(
            "strict 4.3 so do those of malformed trailers",
            [post(1), frame(HEADERS, WHOLE, 1, &[string_field("connection", "close"), entry()].concat()), known()]
                .concat(),
            Must::Answer(3, "0;kept"),
        ),
        rows("strict 4.3 so do those of a stream that is refused", Vec::new(), Must::Hold(fields_of_a_refused_stream)),
        row(
            "strict 8.1.1 a malformed head is no error of the connection",
            malformed(1, &entry()),
            Must::Reset(1, &[PROTOCOL_ERROR]),
        ),
    ]
}

/// A field that does not enter the table.
fn string_field(name: &str, value: &str) -> Vec<u8> {
    [&[0][..], &string(name, false), &string(value, false)].concat()
}

fn fields_of_a_refused_stream(case: &mut Case) -> Result<(), String> {
    let Some(most) = said(case, 3) else { return Err("it does not say how many streams it takes".to_owned()) };
    let all: Vec<u8> = (0..most).flat_map(|number| held_post(number * 2 + 1)).collect();
    case.raw.send_bytes(&[all, get_and(most * 2 + 1, &enter("kept"))].concat());
    let code = case.until(|case| case.raw.resets(most * 2 + 1).first().copied())?;
    // Two make room for sure.
    case.raw.send_bytes(&[reset(1, CANCEL), reset(3, CANCEL), get_and(most * 2 + 3, &[NEWEST])].concat());
    let answer = case.answer(most * 2 + 3)?;
    let is_so = code == REFUSED_STREAM && answer == (200, "0;kept".to_owned());
    if is_so { Ok(()) } else { Err(format!("{code}, {answer:?}")) }
}

fn literal_rows() -> Vec<Row> {
    let symbols = "0123456789 %-./=_:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWY";
    vec![
        row(
            "strict RFC 7541, 5.2 all symbols of short codes",
            get_and(1, &[&[0][..], &string("x-a", true), &string(symbols, true)].concat()),
            Must::Answer(1, "0;0123456789 %-./=_:abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWY"),
        ),
        row(
            "strict RFC 7541, 5.2 symbols of longer codes",
            // '!' of 10 bits, '{' of 15 and '\\' of 19, and padding of 4.
            get_and(1, &[&[0][..], &string("x-a", false), &[0x86], &[0xFE, 0x3F, 0xFF, 0x7F, 0xFF, 0x0F]].concat()),
            Must::Answer(1, "0;!{\\"),
        ),
        row(
            "strict RFC 7541, 5.2 a coded string of no byte",
            get_and(1, &[&[0][..], &string("x-a", false), &[0x80]].concat()),
            Must::Answer(1, "0;"),
        ),
        row(
            "strict RFC 7541, 5.2 padding of seven ones",
            get_and(1, &[&[0][..], &string("x-a", true), &string("abd", true)].concat()),
            Must::Answer(1, "0;abd"),
        ),
        row("strict RFC 7541, 6.1 the last index of the static table", get_and(1, &[0xBD]), Must::Answer(1, "0;")),
        row(
            "strict RFC 7541, 6.1 a request of indices alone",
            frame(HEADERS, WHOLE, 1, &[0x82, 0x86, 0x84, 0x41, 1, b'h']),
            Must::Answer(1, "0;"),
        ),
        row(
            "strict RFC 7541, 5.1 a length in more bytes than it needs",
            get_and(1, &[&[0][..], &string("x-a", false), &[0x7F, 0x81, 0x00], &[b'v'; 128]].concat()),
            Must::Hold(v_128_times),
        ),
    ]
}

fn v_128_times(case: &mut Case) -> Result<(), String> {
    let answer = case.answer(1)?;
    if answer == (200, format!("0;{}", "v".repeat(128))) { Ok(()) } else { Err(format!("{answer:?}")) }
}
