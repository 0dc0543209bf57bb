//! Decoding errors of field blocks (the suite's group "hpack"): each is a connection error of `COMPRESSION_ERROR`.

use crate::h2::frames::COMPRESSION_ERROR;

use super::generic::string;
use super::sends::{get_and, get_behind};
use super::{Must, Row, row, sections};

sections! {
    decoding_errors: error_rows,
}

fn error_rows() -> Vec<Row> {
    let end = || Must::End(&[COMPRESSION_ERROR]);
    // A field whose name is right and whose value is this in Huffman's code.
    let coded = |value: &[u8]| {
        let length = 0x80 | u8::try_from(value.len()).unwrap();
        get_and(1, &[&[0][..], &string("x-a", true), &[length], value].concat())
    };
    // "as" is 00011 01000, "asst" leaves four bits, and the symbol of the end is 30 ones.
    vec![
        row("hpack 2.3.3/1 an index beyond both tables", get_and(1, &[0xC6]), end()),
        row("hpack 2.3.3/2 a name's index beyond both tables", get_and(1, &[0x7F, 70 - 63, 0]), end()),
        row("hpack 4.2/1 a change of the table's size at a block's end", get_and(1, &[0x21]), end()),
        row("hpack 5.2/1 padding of more than seven bits", coded(&[0b0001_1010, 0b0011_1111, 0xFF]), end()),
        row("hpack 5.2/2 padding by zeros", coded(&[0b0001_1010, 0b0001_0000, 0b1001_0000]), end()),
        row(
            "hpack 5.2/3 the symbol of the end in a string",
            coded(&[0xFF, 0xFF, 0xFF, 0b1111_1100, 0b0110_1000]),
            end(),
        ),
        row("hpack 6.1/1 the index 0", get_and(1, &[0x80]), end()),
        // 4,097 is one more than the table's size that nobody has changed.
        row("hpack 6.3/1 a table that is larger than was said", get_behind(1, &[0x3F, 0xE2, 0x1F]), end()),
    ]
}
