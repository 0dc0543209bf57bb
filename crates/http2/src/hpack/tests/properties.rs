//! Sequences of random blocks, against the oracle.

use proptest::prelude::*;
use proptest::sample::Index;

use super::super::Decoder;
use super::naive::{Naive, huffman_encode, integer_encode};
use super::{decode, table};

#[derive(Clone, Debug)]
struct Text {
    bytes: Vec<u8>,
    is_huffman: bool,
}

/// One representation. Indexes are of what both tables hold by then.
#[derive(Clone, Debug)]
enum Step {
    Indexed(Index),
    Literal { first: u8, bits: u8, name: Option<Index>, new_name: Text, value: Text },
}

#[derive(Clone, Debug)]
struct Block {
    sizes: Vec<Index>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Mutation {
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, u8),
    Remove(Index),
}

fn text() -> impl Strategy<Value = Text> {
    let byte = prop_oneof![20 => b'a'..=b'z', 3 => 0x20..0x7f_u8, 1 => any::<u8>()];
    let bytes = prop_oneof![
        10 => prop::collection::vec(byte.clone(), 0..20),
        1 => prop::collection::vec(byte, 100..300),
    ];
    (bytes, any::<bool>()).prop_map(|(bytes, is_huffman)| Text { bytes, is_huffman })
}

fn step() -> impl Strategy<Value = Step> {
    let form = prop_oneof![3 => Just((0x40, 6)), 1 => Just((0x00, 4)), 1 => Just((0x10, 4))];
    let literal = (form, prop::option::of(any::<Index>()), text(), text())
        .prop_map(|((first, bits), name, new_name, value)| Step::Literal { first, bits, name, new_name, value });
    prop_oneof![1 => any::<Index>().prop_map(Step::Indexed), 2 => literal]
}

fn block() -> impl Strategy<Value = Block> {
    let sizes = prop_oneof![4 => Just(vec![]), 1 => prop::collection::vec(any::<Index>(), 1..3)];
    (sizes, prop::collection::vec(step(), 0..12)).prop_map(|(sizes, steps)| Block { sizes, steps })
}

fn mutation() -> impl Strategy<Value = Mutation> {
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Flip(at, byte)),
        any::<Index>().prop_map(Mutation::Cut),
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Insert(at, byte)),
        any::<Index>().prop_map(Mutation::Remove),
    ]
}

fn write_text(out: &mut Vec<u8>, text: &Text) {
    let (first, bytes) = if text.is_huffman { (0x80, huffman_encode(&text.bytes)) } else { (0, text.bytes.clone()) };
    integer_encode(out, first, 7, bytes.len());
    out.extend(bytes);
}

/// Half of the indexes are among the latest entries.
fn choose(index: Index, naive: &Naive) -> usize {
    let length = naive.dynamic.len();
    let place = index.index(2 * (61 + length));
    if place < 61 + length || length == 0 { place % (61 + length) + 1 } else { 62 + place % length.min(4) }
}

/// Writes a valid block, and has `naive` read it to know the tables.
fn write(block: &Block, max_table: usize, naive: &mut Naive) -> Vec<u8> {
    let mut all = Vec::new();
    let mut out = Vec::new();
    for size in &block.sizes {
        integer_encode(&mut out, 0x20, 5, size.index(max_table + 1));
    }
    assert_eq!(naive.decode(&out).1, Ok(()));
    all.append(&mut out);
    for step in &block.steps {
        match step {
            Step::Indexed(index) => integer_encode(&mut out, 0x80, 7, choose(*index, naive)),
            Step::Literal { first, bits, name, new_name, value } => {
                let name = name.map(|index| choose(index, naive));
                integer_encode(&mut out, *first, *bits, name.unwrap_or(0));
                if name.is_none() {
                    write_text(&mut out, new_name);
                }
                write_text(&mut out, value);
            }
        }
        assert_eq!(naive.decode(&out).1, Ok(()), "{step:?}");
        all.append(&mut out);
    }
    all
}

fn mutate(block: &mut Vec<u8>, mutation: &Mutation) {
    match mutation {
        Mutation::Insert(at, byte) => block.insert(at.index(block.len() + 1), *byte),
        _ if block.is_empty() => {}
        Mutation::Flip(at, byte) => {
            let at = at.index(block.len());
            block[at] ^= byte;
        }
        Mutation::Cut(at) => block.truncate(at.index(block.len())),
        Mutation::Remove(at) => drop(block.remove(at.index(block.len()))),
    }
}

fn max_table() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), Just(50), Just(100), Just(300), Just(4096), Just(65_536)]
}

proptest! {
    #[test]
    fn agrees_with_the_oracle_on_valid_blocks(
        max_table in max_table(),
        blocks in prop::collection::vec(block(), 1..20),
    ) {
        let (mut writer, mut naive, mut decoder) = (Naive::new(max_table), Naive::new(max_table), Decoder::new(max_table));
        for block in blocks {
            let block = write(&block, max_table, &mut writer);
            let expected = naive.decode(&block);
            prop_assert_eq!(&expected.1, &Ok(()));
            prop_assert_eq!(decode(&mut decoder, &block), expected);
            prop_assert_eq!(&table(&mut decoder), &naive.dynamic);
            prop_assert!(decoder.memory() <= 2 * max_table + max_table.max(128) / 32 * 24 + 2000);
        }
    }

    #[test]
    fn agrees_with_the_oracle_on_mutated_blocks(
        max_table in max_table(),
        blocks in prop::collection::vec((block(), prop::collection::vec(mutation(), 0..3)), 1..6),
    ) {
        let (mut writer, mut naive, mut decoder) = (Naive::new(max_table), Naive::new(max_table), Decoder::new(max_table));
        for (block, mutations) in blocks {
            let mut block = write(&block, max_table, &mut writer);
            for mutation in &mutations {
                mutate(&mut block, mutation);
            }
            let expected = naive.decode(&block);
            prop_assert_eq!(&decode(&mut decoder, &block), &expected);
            if expected.1.is_err() {
                break;
            }
            prop_assert_eq!(&table(&mut decoder), &naive.dynamic);
        }
    }

    #[test]
    fn agrees_with_the_oracle_on_any_bytes(blocks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..60), 1..4)) {
        let (mut naive, mut decoder) = (Naive::new(4096), Decoder::new(4096));
        for block in blocks {
            let expected = naive.decode(&block);
            prop_assert_eq!(&decode(&mut decoder, &block), &expected);
            if expected.1.is_err() {
                break;
            }
        }
    }

    #[test]
    fn no_cut_of_a_valid_block_panics(block in block()) {
        let whole = write(&block, 4096, &mut Naive::new(4096));
        for cut in 0..whole.len() {
            let expected = Naive::new(4096).decode(&whole[..cut]);
            prop_assert_eq!(decode(&mut Decoder::new(4096), &whole[..cut]), expected);
        }
    }
}
