//! Huffman-coded strings against a decoder that goes bit by bit.

use proptest::prelude::*;

use super::super::{HpackError, huffman};
use super::naive::{CODES, Naive, huffman_encode};

/// Decodes `coded` with `before` and `after` around it in the block, behind a byte that is in the way.
fn decode(coded: &[u8], before: usize, after: usize) -> Result<Vec<u8>, HpackError> {
    let block = [vec![0x12; before], coded.to_vec(), vec![0x34; after]].concat();
    let mut out = vec![b'?'];
    let end = huffman::decode(&block[before..], coded.len(), &mut out, 1).ok_or(HpackError::Huffman)?;
    assert_eq!(out[0], b'?');
    Ok(out[1..end].to_vec())
}

/// The same at all places that make a difference: at the end of a block, and before it.
fn check(naive: &Naive, coded: &[u8]) {
    let expected = naive.huffman(coded).ok_or(HpackError::Huffman);
    for before in [0, 1, 8] {
        for after in [0, 1, 3, 7, 8, 20] {
            assert_eq!(decode(coded, before, after), expected, "{coded:02x?} {before} {after}");
        }
    }
}

#[test]
fn the_list_of_codes_is_complete() {
    let sum: u64 = CODES.iter().map(|(_, length)| 1_u64 << (30 - length)).sum();
    assert_eq!(sum, 1 << 30);
}

#[test]
fn reads_each_byte_alone_and_next_to_each_other() {
    let naive = Naive::new(0);
    assert_eq!(decode(b"", 1, 1), Ok(vec![]));
    for byte in 0..=255 {
        assert_eq!(decode(&huffman_encode(&[byte]), 0, 0), Ok(vec![byte]));
        check(&naive, &huffman_encode(&[byte]));
        for other in 0..=255 {
            let both = [byte, other, byte];
            assert_eq!(decode(&huffman_encode(&both), 0, 9), Ok(both.to_vec()));
        }
    }
}

#[test]
fn reads_a_long_code_behind_any_number_of_short_ones() {
    let naive = Naive::new(0);
    for short in [b'0', b' ', b'A', b'X'] {
        for count in 0..20 {
            for long in [b'!', b'?', b'+', b'{', 0, 1, b'\n', 0xc3, 0xff] {
                let mut text = vec![short; count];
                text.push(long);
                text.extend(vec![short; count % 5]);
                assert_eq!(decode(&huffman_encode(&text), 0, 0), Ok(text.clone()));
                check(&naive, &huffman_encode(&text));
            }
        }
    }
}

#[test]
fn refuses_every_padding_but_up_to_seven_ones() {
    let naive = Naive::new(0);
    // `0` is 00000, `&` is 11111000 and `a` is 00011.
    assert_eq!(decode(&[0b0000_0111], 0, 0), Ok(b"0".to_vec()));
    assert_eq!(decode(&[0b1111_1000], 0, 0), Ok(b"&".to_vec()));
    for wrong in [
        &[0b0000_0110][..],
        &[0b0000_0000],
        &[0b0000_0101],
        &[0b0000_0111, 0xff],
        &[0b1111_1000, 0xff],
        &[0xff],
        &[0xfe],
        &[0xff, 0xff, 0xff, 0xff],
        &[0xff, 0xff, 0xff, 0xfc],
        &[0xff, 0xff, 0xff, 0xff, 0xff],
        &[0b0001_1111, 0xff, 0xff, 0xff, 0xe7],
    ] {
        assert_eq!(decode(wrong, 0, 0), Err(HpackError::Huffman), "{wrong:02x?}");
        check(&naive, wrong);
    }
}

#[test]
fn agrees_on_all_strings_of_two_bytes() {
    let naive = Naive::new(0);
    for coded in 0..=u16::MAX {
        let coded = coded.to_be_bytes();
        assert_eq!(decode(&coded, 0, 0).ok(), naive.huffman(&coded), "{coded:02x?}");
        assert_eq!(decode(&coded, 3, 8).ok(), naive.huffman(&coded), "{coded:02x?}");
    }
}

proptest! {
    #[test]
    fn agrees_bit_by_bit_on_anything(coded in prop::collection::vec(any::<u8>(), 0..24)) {
        check(&Naive::new(0), &coded);
    }

    #[test]
    fn agrees_bit_by_bit_on_what_is_nearly_right(
        text in prop::collection::vec(prop_oneof![8 => 0x20..0x7f_u8, 1 => any::<u8>()], 0..40),
        bit in any::<prop::sample::Index>(),
        ones in 0..3_usize,
    ) {
        let mut coded = huffman_encode(&text);
        prop_assert_eq!(decode(&coded, 0, 0), Ok(text));
        coded.extend(vec![0xff; ones]);
        if !coded.is_empty() {
            let bit = bit.index(coded.len() * 8);
            coded[bit / 8] ^= 1 << (bit % 8);
        }
        check(&Naive::new(0), &coded);
    }
}
