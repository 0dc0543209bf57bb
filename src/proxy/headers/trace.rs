//! W3C Trace Context.

/// Whether a value is a `traceparent` that we pass on (W3C Trace Context, version 00 and later).
pub fn is_traceparent(value: &[u8]) -> bool {
    let hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let some = |bytes: &[u8]| bytes.iter().any(|byte| *byte != b'0');
    value.len() >= 55
        && hex(&value[..2])
        && &value[..2] != b"ff"
        && value[2] == b'-'
        && hex(&value[3..35])
        && some(&value[3..35])
        && value[35] == b'-'
        && hex(&value[36..52])
        && some(&value[36..52])
        && value[52] == b'-'
        && hex(&value[53..55])
        && (value.len() == 55 || (&value[..2] != b"00" && value[55] == b'-'))
}
