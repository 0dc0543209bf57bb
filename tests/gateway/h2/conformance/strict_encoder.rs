//! Field blocks that the server sends (RFC 9113, 4.3.1 and 8.2; RFC 7541, 4.2).

use crate::h2::frames::{HEADERS, WHOLE, request};

use super::generic::huffman;
use super::sends::{get, get_with, head, settings};
use super::{Case, Must, Row, Turn, row, rows, sections};
use Turn::{Acked, Ended, Send};

sections! {
    blocks_of_answers: block_rows,
}

/// The size of a table that nobody has spoken of.
const UNSAID: usize = 4096;
/// The last index of the static table.
const STATIC: usize = 61;
/// That of Transfer-Encoding.
const TRANSFER_ENCODING: usize = 57;

fn block_rows() -> Vec<Row> {
    // The settings that every row begins with have said a table of 0.
    let after = |then: &[(u16, u32)]| {
        vec![
            Send(settings(&[(1, 4096)])),
            Acked(2),
            Send(get(1)),
            Ended(1),
            Send(settings(then)),
            Acked(3),
            Send(get_with(3, &[("x-a", "1")])),
            Ended(3),
        ]
    };
    let of_a_connection = head(WHOLE, 1, &request("GET", "/fields"));
    vec![
        rows(
            "strict 4.3.1 a table of 0 is told and none is used",
            vec![Send(get(1)), Ended(1), Send(get(3))],
            Must::Hold(no_table_is_used),
        ),
        rows(
            "strict 4.3.1 a smaller table is told at the next block's begin",
            after(&[(1, 0)]),
            Must::Hold(block_of_3_tells_a_table_of_0),
        ),
        rows(
            "strict RFC 7541, 4.2 the smallest of two changes is told",
            after(&[(1, 0), (1, 4096)]),
            Must::Hold(block_of_3_tells_a_table_of_0),
        ),
        row(
            "strict 8.2 names are in lower case, none is of a connection",
            of_a_connection,
            Must::Hold(names_are_right),
        ),
    ]
}

/// The fields that came on a stream.
fn block_of(case: &mut Case, stream: u32) -> Result<Vec<u8>, String> {
    case.answer(stream)?;
    let head = case.raw.seen.iter().find(|frame| frame.kind == HEADERS && frame.stream == stream);
    head.map(|frame| frame.payload.clone()).ok_or_else(|| "no HEADERS".to_owned())
}

/// The last size that was told is the decoder's: one that kept a table has to say that it is smaller now.
fn block_of_3_tells_a_table_of_0(case: &mut Case) -> Result<(), String> {
    let [before, block] = [block_of(case, 1)?, block_of(case, 3)?];
    let kept = read_block(&before).sizes.last().copied().unwrap_or(UNSAID);
    let is_told = block[0] == 0x20 || kept == 0 && read_block(&block).indices().all(|index| index <= STATIC);
    if is_told { Ok(()) } else { Err(format!("{before:x?} {block:x?}")) }
}

fn no_table_is_used(case: &mut Case) -> Result<(), String> {
    let [first, second] = [block_of(case, 1)?, block_of(case, 3)?];
    let is_static = |block: &[u8]| block.len() > 1 && read_block(block).indices().all(|index| index <= STATIC);
    let is_so = first[0] == 0x20 && is_static(&first) && is_static(&second);
    if is_so { Ok(()) } else { Err(format!("{first:x?} {second:x?}")) }
}

fn names_are_right(case: &mut Case) -> Result<(), String> {
    let block = block_of(case, 1)?;
    let read = read_block(&block);
    let is = |wanted: &str| {
        let mut names = read.fields.iter().filter_map(|(_, name)| name.as_ref());
        names.any(|name| *name == wanted.as_bytes() || *name == huffman(wanted))
    };
    let forbidden = ["connection", "keep-alive", "transfer-encoding", "hop", "Hop", "Upper-Case", "Connection"];
    let is_so = is("upper-case") && read.indices().all(|index| index != TRANSFER_ENCODING);
    if is_so && !forbidden.iter().any(|name| is(name)) { Ok(()) } else { Err(format!("{block:x?}")) }
}

/// The parts that a block is made of.
#[derive(Default)]
struct Read {
    /// The changes of the table's size.
    sizes: Vec<usize>,
    /// The index of each field or of its name, and its name as it is coded if that is new.
    fields: Vec<(usize, Option<Vec<u8>>)>,
}

impl Read {
    fn indices(&self) -> impl Iterator<Item = usize> {
        self.fields.iter().map(|(index, _)| *index)
    }
}

fn read_block(block: &[u8]) -> Read {
    let mut read = Read::default();
    let mut at = 0;
    while at < block.len() {
        let (most, has_value) = match block[at] {
            0x80.. => (0x7F, false),
            0x40.. => (0x3F, true),
            0x20.. => {
                read.sizes.push(number(block, &mut at, 0x1F));
                continue;
            }
            _ => (0x0F, true),
        };
        let index = number(block, &mut at, most);
        let name = (has_value && index == 0).then(|| string(block, &mut at));
        if has_value {
            string(block, &mut at);
        }
        read.fields.push((index, name));
    }
    read
}

/// RFC 7541, 5.1.
fn number(block: &[u8], at: &mut usize, most: u8) -> usize {
    let mut number = usize::from(block[*at] & most);
    *at += 1;
    let mut shift = 0;
    while number >= usize::from(most) {
        let byte = block[*at];
        number += usize::from(byte & 0x7F) << shift;
        shift += 7;
        *at += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    number
}

/// RFC 7541, 5.2, as it is coded.
fn string(block: &[u8], at: &mut usize) -> Vec<u8> {
    let length = number(block, at, 0x7F);
    *at += length;
    block[*at - length..*at].to_vec()
}
