//! Blocks that are built by hand: what is refused, and what a table holds after what is not.

use std::collections::BTreeSet;

use super::super::{Decoder, HpackError};
use super::naive::{STATIC, integer_encode};
use super::{decode, field, fields, hex, table};

const ALL: [HpackError; 6] = [
    HpackError::Truncated,
    HpackError::Integer,
    HpackError::Index,
    HpackError::Huffman,
    HpackError::TableSize,
    HpackError::TableSizeLate,
];

fn error(block: &str) -> HpackError {
    let mut decoder = Decoder::new(4096);
    fields(&mut decoder, &hex("4001 6101 62"));
    decode(&mut decoder, &hex(block)).1.unwrap_err()
}

/// A literal that is inserted, with a new name.
fn insertion(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut block = vec![0x40];
    for string in [name, value] {
        integer_encode(&mut block, 0, 7, string.len());
        block.extend_from_slice(string);
    }
    block
}

#[test]
fn every_error_has_its_own_sentence() {
    let sentences: BTreeSet<_> = ALL.iter().map(ToString::to_string).collect();
    assert_eq!(sentences.len(), ALL.len());
    assert!(sentences.iter().all(|sentence| !sentence.ends_with('.') && sentence.starts_with(char::is_lowercase)));
}

#[test]
fn the_static_table_is_that_of_the_appendix() {
    for (index, (name, value)) in STATIC.iter().enumerate() {
        let mut decoder = Decoder::new(4096);
        assert_eq!(fields(&mut decoder, &[0x81 + index as u8]), [field(name, value)]);
        let mut block = Vec::new();
        integer_encode(&mut block, 0x10, 4, index + 1);
        block.extend_from_slice(b"\x01v");
        assert_eq!(fields(&mut decoder, &block), [field(name, "v")]);
    }
}

#[test]
fn an_empty_block_has_no_field() {
    assert_eq!(fields(&mut Decoder::new(4096), b""), []);
}

#[test]
fn refuses_an_index_in_neither_table() {
    for block in ["80", "bf", "ff00", "ff81 8080 01", "7f00 0161", "0f30 0161", "1f30 0161"] {
        assert_eq!(error(block), HpackError::Index, "{block}");
    }
    let mut decoder = Decoder::new(4096);
    assert_eq!(decode(&mut decoder, &[0xbe]), (vec![], Err(HpackError::Index)));
}

#[test]
fn refuses_integers_beyond_28_bits() {
    for block in
        ["ff80 8080 8000", "ff80 8080 8080", "ffff ffff ffff", "3fe1 ffff ff7f", "007f 8080 8080 01", "0fff ffff ff01"]
    {
        assert_eq!(error(block), HpackError::Integer, "{block}");
    }
    // The greatest one that is read, and one with zeros in front.
    assert_eq!(error("ffff ffff 7f"), HpackError::Index);
    assert_eq!(fields(&mut Decoder::new(4096), &hex("0f80 8080 0001 61")), [field("accept-charset", "a")]);
}

#[test]
fn refuses_a_block_that_ends_within_a_field() {
    for block in [
        "ff",
        "ff80",
        "40",
        "4001",
        "4001 61",
        "4001 6101",
        "4001 6102 61",
        "0f",
        "04",
        "0481",
        "1002 61",
        "3f",
        "3f80",
    ] {
        assert_eq!(error(block), HpackError::Truncated, "{block}");
    }
}

#[test]
fn every_cut_of_a_block_is_refused_or_between_fields() {
    let block =
        hex("8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff5f 7f00 6162 6300 0161 8300 ffff 1086 a8eb 1064 9cbf 0378 797a");
    let cuts: Vec<usize> =
        (0..block.len()).filter(|cut| decode(&mut Decoder::new(4096), &block[..*cut]).1.is_ok()).collect();
    assert_eq!(cuts, [0, 1, 2, 3, 17]);
}

#[test]
fn a_size_is_at_the_beginning_of_a_block_only() {
    for block in ["8220", "8282 3fe1 1f", "4001 6101 6220", "2082 20"] {
        assert_eq!(error(block), HpackError::TableSizeLate, "{block}");
    }
}

#[test]
fn a_size_is_at_most_what_was_announced() {
    for (max_table, allowed, beyond) in
        [(0, "20", "21"), (64, "3f21", "3f22"), (4096, "3fe1 1f", "3fe2 1f"), (65_536, "3fe1 ff03", "3fe2 ff03")]
    {
        assert_eq!(decode(&mut Decoder::new(max_table), &hex(allowed)).1, Ok(()));
        assert_eq!(decode(&mut Decoder::new(max_table), &hex(beyond)).1, Err(HpackError::TableSize));
        let both = [hex("20"), hex(allowed), hex("20"), hex(allowed), hex("82")].concat();
        assert_eq!(fields(&mut Decoder::new(max_table), &both), [field(":method", "GET")]);
    }
}

#[test]
fn a_size_of_0_empties_the_table_and_another_one_makes_room_again() {
    let mut decoder = Decoder::new(4096);
    fields(&mut decoder, &insertion(b"a", b"1"));
    fields(&mut decoder, &hex("203f e11f"));
    assert_eq!(table(&mut decoder), []);
    fields(&mut decoder, &hex("20"));
    fields(&mut decoder, &insertion(b"b", b"2"));
    assert_eq!(table(&mut decoder), []);
    fields(&mut decoder, &[hex("3fe1 1f"), insertion(b"c", b"3")].concat());
    assert_eq!(table(&mut decoder), [field("c", "3")]);
}

#[test]
fn a_smaller_size_evicts_the_oldest() {
    let mut decoder = Decoder::new(4096);
    for name in [b"a", b"b", b"c"] {
        fields(&mut decoder, &insertion(name, b"1"));
    }
    fields(&mut decoder, &hex("3f25"));
    assert_eq!(table(&mut decoder), [field("c", "1"), field("b", "1")]);
    fields(&mut decoder, &hex("3f24"));
    assert_eq!(table(&mut decoder), [field("c", "1")]);
}

#[test]
fn a_table_has_4096_bytes_until_another_size_is_chosen() {
    let long = |byte: u8| insertion(&[byte], &[b'v'; 2015]);
    for (max_table, size, kept) in
        [(4096, "", 2), (65_536, "", 2), (65_536, "3fe1 ff03", 3), (2048, "", 1), (2047, "", 0)]
    {
        let mut decoder = Decoder::new(max_table);
        fields(&mut decoder, &[hex(size), long(b'a'), long(b'b'), long(b'c')].concat());
        assert_eq!(table(&mut decoder).len(), kept, "{max_table} {size}");
    }
}

#[test]
fn an_entry_that_is_as_large_as_the_table_evicts_all_others_and_a_larger_one_itself_too() {
    let mut decoder = Decoder::new(4096);
    fields(&mut decoder, &insertion(b"a", b"1"));
    fields(&mut decoder, &insertion(&[b'n'; 64], &[b'v'; 4000]));
    assert_eq!(table(&mut decoder), [(vec![b'n'; 64], vec![b'v'; 4000])]);
    let block = insertion(&[b'n'; 64], &[b'v'; 4001]);
    assert_eq!(fields(&mut decoder, &block), [(vec![b'n'; 64], vec![b'v'; 4001])]);
    assert_eq!(table(&mut decoder), []);
}

#[test]
fn a_name_is_right_when_its_entry_is_evicted_for_it() {
    let mut decoder = Decoder::new(100);
    let first = insertion(b"name", &[b'1'; 60]);
    fields(&mut decoder, &first);
    for byte in b'2'..=b'9' {
        // The name of the newest entry, with a value of 60 bytes.
        let block = [vec![0x7e, 60], vec![byte; 60]].concat();
        let expected = [(b"name".to_vec(), vec![byte; 60])];
        assert_eq!(fields(&mut decoder, &block), expected);
        assert_eq!(table(&mut decoder), expected);
    }
    // Its value is Huffman-coded, and larger than the table.
    let block = [vec![0x7e, 0x80 | 0x64], vec![0; 100]].concat();
    assert_eq!(fields(&mut decoder, &block), [(b"name".to_vec(), vec![b'0'; 160])]);
    assert_eq!(table(&mut decoder), []);
}

#[test]
fn a_field_that_is_referred_to_over_and_over_takes_no_memory() {
    let mut decoder = Decoder::new(4096);
    let (name, value) = (b"bomb".to_vec(), vec![b'x'; 3996]);
    fields(&mut decoder, &insertion(&name, &value));
    let before = decoder.memory();
    let mut count = 0;
    let block = [0xbe; 10_000];
    let result = decoder.decode(&block, |n, v| count += usize::from(n == name && v == value));
    assert_eq!((result, count), (Ok(()), 10_000));
    assert_eq!(decoder.memory(), before);
}

#[test]
fn memory_is_about_twice_the_table_whatever_is_inserted() {
    for max_table in [0_usize, 40, 100, 300, 1000, 3000, 4096] {
        let entries = (max_table / 32).next_power_of_two().max(4);
        for length in [0, 1, 7, 31, 32, 60, 100, 130, 460, 470, 1000, 1500, 2017, 2100, 4063, 4064, 5000] {
            let mut decoder = Decoder::new(max_table);
            for round in 0..300 {
                let value = vec![b'v'; if round % 3 == 0 { length / 2 } else { length }];
                fields(&mut decoder, &insertion(b"", &value));
                let memory = decoder.memory();
                assert!(memory <= 2 * max_table + entries * 12, "{max_table} {length}: {memory}");
            }
        }
    }
}

#[test]
fn room_for_long_strings_is_given_back() {
    let mut decoder = Decoder::new(4096);
    let mut block = vec![0x00, 0x01, b'a'];
    integer_encode(&mut block, 0x80, 7, 1_000_000);
    block.resize(block.len() + 1_000_000, 0);
    assert_eq!(fields(&mut decoder, &block)[0].1.len(), 1_600_000);
    assert!(decoder.memory() < 100);
    fields(&mut decoder, &hex("0001 6186 a8eb 1064 9cbf"));
    let warm = decoder.memory();
    assert!(warm > 0);
    fields(&mut decoder, &hex("0001 6186 a8eb 1064 9cbf"));
    assert_eq!(decoder.memory(), warm);
}
