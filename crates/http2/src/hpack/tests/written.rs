//! The output of the encoder.

use proptest::prelude::*;

use super::super::{Decoder, Encoder, static_table};
use super::naive::{Naive, STATIC};
use super::{field, fields, hex, table};

fn encoded(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut out = b"before".to_vec();
    Encoder::field(name, value, &mut out);
    assert_eq!(&out[..6], b"before");
    out.split_off(6)
}

#[test]
fn fields_are_literals_with_the_index_of_their_name() {
    assert_eq!(encoded(b"Content-Type", b"a/b"), hex("0f10 0361 2f62"));
    assert_eq!(encoded(b"accept-charset", b""), hex("0f00 00"));
    assert_eq!(encoded(b"X-Ab", b"Cd"), hex("0004 782d 6162 0243 64"));
    assert_eq!(encoded(b"www-authenticate", &[b'v'; 126])[..3], hex("0f2e 7e"));
    assert_eq!(encoded(b"www-authenticate", &[b'v'; 127])[..4], hex("0f2e 7f00"));
    assert_eq!(encoded(b"via", &[b'v'; 400])[..5], hex("0f2d 7f91 02"));
    assert_eq!(encoded(&[b'N'; 127], b"v")[..4], hex("007f 006e"));
}

#[test]
fn secrets_are_never_indexed() {
    for (name, start) in [
        ("Set-Cookie", "1f28 0161"),
        ("cookie", "1f11 0161"),
        ("Authorization", "1f08 0161"),
        ("proxy-authorization", "1f22 0161"),
    ] {
        assert_eq!(encoded(name.as_bytes(), b"a"), hex(start));
    }
    let count = STATIC.iter().filter(|(name, _)| encoded(name.as_bytes(), b"a")[0] & 0xf0 == 0x10).count();
    assert_eq!(count, 4);
}

#[test]
fn every_status_is_written() {
    for status in 100..1000 {
        let mut out = Vec::new();
        Encoder::status(status, &mut out);
        assert_eq!(fields(&mut Decoder::new(4096), &out), [field(":status", &status.to_string())]);
        let is_indexed = [200, 204, 206, 304, 400, 404, 500].contains(&status);
        assert_eq!(out.len(), if is_indexed { 1 } else { 5 });
    }
}

#[test]
fn another_table_size_is_answered_once() {
    let mut encoder = Encoder::new();
    let mut out = Vec::new();
    encoder.begin(&mut out);
    assert_eq!(out, b"");
    encoder.table_size_changed();
    encoder.table_size_changed();
    encoder.begin(&mut out);
    assert_eq!(out, [0x20]);
    encoder.begin(&mut out);
    assert_eq!(out, [0x20]);
}

#[test]
fn a_static_name_is_found_in_any_case_and_only_whole() {
    for (index, (name, _)) in STATIC.iter().enumerate().skip(14) {
        let index = Some(index as u8 + 1);
        let mixed: String =
            name.chars().enumerate().map(|(at, c)| if at % 2 == 0 { c.to_ascii_uppercase() } else { c }).collect();
        for spelling in [(*name).to_owned(), name.to_uppercase(), mixed] {
            assert_eq!(static_table::name_index(spelling.as_bytes()), index, "{spelling}");
        }
        for other in [format!("{name}s"), format!("x{name}"), name[1..].to_owned(), name[..name.len() - 1].to_owned()] {
            let expected = STATIC.iter().position(|(name, _)| *name == other).map(|index| index as u8 + 1);
            assert_eq!(static_table::name_index(other.as_bytes()), expected, "{other}");
        }
    }
    for (name, _) in &STATIC[..14] {
        assert_eq!(static_table::name_index(name.as_bytes()), None);
    }
    assert_eq!(static_table::name_index(b""), None);
}

#[test]
fn no_other_byte_passes_for_the_right_one() {
    for (name, _) in &STATIC[14..] {
        for at in 0..name.len() {
            for byte in 0..=255 {
                let mut bytes = name.as_bytes().to_vec();
                bytes[at] = byte;
                let is_same = bytes.eq_ignore_ascii_case(name.as_bytes());
                assert_eq!(static_table::name_index(&bytes).is_some(), is_same, "{bytes:?}");
            }
        }
    }
}

#[test]
fn every_byte_of_a_new_name_is_written_in_lower_case() {
    for length in 1..20 {
        for at in 0..length {
            for byte in 0..=255 {
                let mut name = vec![b'@'; length];
                name[at] = byte;
                let out = encoded(&name, b"");
                assert_eq!(out[2..2 + length], name.to_ascii_lowercase());
            }
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(
        status in 100..1000_u16,
        is_resized in any::<bool>(),
        list in prop::collection::vec(
            (
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..40),
                    "[A-Za-z-]{1,200}".prop_map(String::into_bytes),
                    (14..61_usize).prop_map(|index| STATIC[index].0.to_uppercase().into_bytes()),
                ],
                prop::collection::vec(any::<u8>(), 0..300),
            ),
            0..20,
        ),
    ) {
        let mut encoder = Encoder::new();
        if is_resized {
            encoder.table_size_changed();
        }
        let mut out = Vec::new();
        encoder.begin(&mut out);
        Encoder::status(status, &mut out);
        let mut expected = vec![field(":status", &status.to_string())];
        for (name, value) in list {
            Encoder::field(&name, &value, &mut out);
            expected.push((name.to_ascii_lowercase(), value));
        }
        let mut decoder = Decoder::new(4096);
        prop_assert_eq!(&fields(&mut decoder, &out), &expected);
        prop_assert_eq!(table(&mut decoder), []);
        prop_assert_eq!(Naive::new(4096).decode(&out), (expected, Ok(())));
    }
}
