//! The settings of each side (RFC 9113, 6.5).

use super::frame::{MAX_WINDOW, Reason, kind, put_head};

/// Parameters of SETTINGS.
const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
/// RFC 8441, 3.
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// Bytes of one parameter with its value.
const ENTRY: usize = 6;
/// The smallest and largest `SETTINGS_MAX_FRAME_SIZE`.
const FRAME_SIZES: std::ops::RangeInclusive<u32> = 16_384..=16_777_215;

/// The settings of a client that change what we send. Its frame size does not: we never send more than the least that
/// anybody must take. Nor does its header table: our encoder has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SettingsChange {
    /// The window of each stream, in bytes.
    pub(super) window: Option<i64>,
    /// It has named a size of the header table.
    pub(super) table: bool,
}

/// Reads the payload of a client's SETTINGS. Of a parameter that is there more than once, the last one counts.
pub(super) fn read(payload: &[u8]) -> Result<SettingsChange, (Reason, &'static str)> {
    let (entries, rest) = payload.as_chunks::<ENTRY>();
    if !rest.is_empty() {
        return Err((Reason::FrameSize, "settings of a length that is not a multiple of six"));
    }
    let mut change = SettingsChange::default();
    for [a, b, w, x, y, z] in entries {
        let value = u32::from_be_bytes([*w, *x, *y, *z]);
        match u16::from_be_bytes([*a, *b]) {
            HEADER_TABLE_SIZE => change.table = true,
            ENABLE_PUSH if value > 1 => return Err((Reason::Protocol, "ENABLE_PUSH is neither 0 nor 1")),
            INITIAL_WINDOW_SIZE if i64::from(value) > MAX_WINDOW => {
                return Err((Reason::FlowControl, "an initial window above 2^31 - 1"));
            }
            INITIAL_WINDOW_SIZE => change.window = Some(i64::from(value)),
            MAX_FRAME_SIZE if !FRAME_SIZES.contains(&value) => {
                return Err((Reason::Protocol, "MAX_FRAME_SIZE is out of its range"));
            }
            ENABLE_CONNECT_PROTOCOL if value > 1 => {
                return Err((Reason::Protocol, "ENABLE_CONNECT_PROTOCOL is neither 0 nor 1"));
            }
            // What is not known is ignored (RFC 9113, 6.5.2).
            _ => {}
        }
    }
    Ok(change)
}

/// Writes ours.
pub(super) fn put(out: &mut Vec<u8>, max_streams: u32, window: u32, max_header_list: u32) {
    put_head(out, ENTRY * 4, kind::SETTINGS, 0, 0);
    for (parameter, value) in [
        (MAX_CONCURRENT_STREAMS, max_streams),
        (INITIAL_WINDOW_SIZE, window),
        (MAX_HEADER_LIST_SIZE, max_header_list),
        (ENABLE_CONNECT_PROTOCOL, 1),
    ] {
        out.extend_from_slice(&parameter.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(parameter: u16, value: u32) -> Vec<u8> {
        [&parameter.to_be_bytes()[..], &value.to_be_bytes()].concat()
    }

    #[test]
    fn each_parameter_has_its_range() {
        let none = SettingsChange::default();
        for (parameter, value, expected) in [
            (1, 0, Ok(SettingsChange { table: true, ..none })),
            (1, u32::MAX, Ok(SettingsChange { table: true, ..none })),
            (2, 0, Ok(none)),
            (2, 1, Ok(none)),
            (2, 2, Err(Reason::Protocol)),
            (3, 0, Ok(none)),
            (4, 0, Ok(SettingsChange { window: Some(0), ..none })),
            (4, 0x7FFF_FFFF, Ok(SettingsChange { window: Some(0x7FFF_FFFF), ..none })),
            (4, 0x8000_0000, Err(Reason::FlowControl)),
            (5, 16_383, Err(Reason::Protocol)),
            (5, 16_384, Ok(none)),
            (5, 16_777_215, Ok(none)),
            (5, 16_777_216, Err(Reason::Protocol)),
            (6, 0, Ok(none)),
            (8, 1, Ok(none)),
            (8, 2, Err(Reason::Protocol)),
            (9, 7, Ok(none)),
            (0xFFFF, u32::MAX, Ok(none)),
        ] {
            let change = read(&entry(parameter, value)).map_err(|(reason, _)| reason);
            assert_eq!(change, expected, "{parameter} = {value}");
        }
    }

    #[test]
    fn the_last_of_several_counts_and_a_cut_one_is_of_no_size() {
        let two = [entry(4, 1), entry(4, 2)].concat();
        assert_eq!(read(&two).unwrap().window, Some(2));
        for length in 0..two.len() {
            let reason = read(&two[..length]).map_err(|(reason, _)| reason);
            assert_eq!(reason.is_err(), length % 6 != 0);
            assert!(reason.is_ok() || reason == Err(Reason::FrameSize));
        }
    }

    #[test]
    fn ours_are_four() {
        let mut out = Vec::new();
        put(&mut out, 100, 65_536, 9000);
        let expected = [vec![0, 0, 24, 4, 0, 0, 0, 0, 0], entry(3, 100), entry(4, 65_536), entry(6, 9000), entry(8, 1)];
        assert_eq!(out, expected.concat());
    }
}
