//! Tests of the room as its caller sees it.

mod blocks;
mod examples;
mod naive;
mod properties;
mod strings;
mod written;

use super::{Decoder, HpackError};

use naive::Field;

/// The fields before an error, and the error.
fn decode(decoder: &mut Decoder, block: &[u8]) -> (Vec<Field>, Result<(), HpackError>) {
    let mut fields = Vec::new();
    let result = decoder.decode(block, |name, value| fields.push((name.to_vec(), value.to_vec())));
    (fields, result)
}

/// The fields of a block that is valid.
fn fields(decoder: &mut Decoder, block: &[u8]) -> Vec<Field> {
    let (fields, result) = decode(decoder, block);
    assert_eq!(result, Ok(()), "{block:02x?}");
    fields
}

fn field(name: &str, value: &str) -> Field {
    (name.as_bytes().to_vec(), value.as_bytes().to_vec())
}

/// The entries of the dynamic table, newest first.
fn table(decoder: &mut Decoder) -> Vec<Field> {
    let mut entries = Vec::new();
    for index in 62.. {
        let mut block = Vec::new();
        naive::integer_encode(&mut block, 0x80, 7, index);
        match decode(decoder, &block) {
            (mut fields, Ok(())) => entries.append(&mut fields),
            (_, error) => {
                assert_eq!(error, Err(HpackError::Index));
                break;
            }
        }
    }
    entries
}

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
