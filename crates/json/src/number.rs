//! A number of a JSON text, as it stands there.

/// The most bytes of a number that are kept.
const KEPT_BYTES: usize = 31;

/// A number as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JsonNumber {
    text: [u8; KEPT_BYTES],
    /// Bytes that it has; more than are kept are told by one more.
    length: u8,
    /// Whether it has neither a fraction nor an exponent.
    is_plain: bool,
}

impl JsonNumber {
    pub(super) fn new() -> Self {
        Self { text: [0; KEPT_BYTES], length: 0, is_plain: true }
    }

    pub(super) fn push(&mut self, byte: u8) {
        if let Some(place) = self.text.get_mut(usize::from(self.length)) {
            *place = byte;
        }
        self.length = self.length.saturating_add(1).min(KEPT_BYTES as u8 + 1);
        self.is_plain &= byte.is_ascii_digit() || byte == b'-';
    }

    /// It as it was written; `None`: it is too long to be kept.
    pub fn text(&self) -> Option<&str> {
        str::from_utf8(self.text.get(..usize::from(self.length))?).ok()
    }

    /// It as it was written, if it has neither a fraction nor an exponent: each such number has one spelling.
    pub fn plain(&self) -> Option<&str> {
        self.text().filter(|text| self.is_plain && *text != "-0")
    }

    /// The least whole number that is not below it; the largest one where it is larger than all; `None` where it is below 0,
    /// or a fraction too long to be kept.
    pub fn whole(&self) -> Option<u64> {
        match (self.text(), self.is_plain) {
            (None, true) if self.text[0] != b'-' => Some(u64::MAX),
            (None, _) => None,
            (Some(text), true) if !text.starts_with('-') => Some(text.parse().unwrap_or(u64::MAX)),
            (Some(text), _) => {
                let number: f64 = text.parse().ok()?;
                // A cast takes what is too large for the largest.
                (number >= 0.0).then(|| number.ceil() as u64)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_unit_is_a_whole_one_and_what_is_too_large_is_the_largest() {
        let long = "9".repeat(40);
        for (text, whole, plain) in [
            ("0", Some(0), Some("0")),
            ("137", Some(137), Some("137")),
            ("18446744073709551615", Some(u64::MAX), Some("18446744073709551615")),
            ("18446744073709551616", Some(u64::MAX), Some("18446744073709551616")),
            (&long, Some(u64::MAX), None),
            ("12.0", Some(12), None),
            ("12.001", Some(13), None),
            ("1e3", Some(1000), None),
            ("1e400", Some(u64::MAX), None),
            ("2.5e-1", Some(1), None),
            ("-0", Some(0), None),
            ("-0.0", Some(0), None),
            ("-1", None, Some("-1")),
            ("-1e400", None, None),
            ("-9999999999999999999999999999999999", None, None),
            ("0.0000000000000000000000000000001", None, None),
        ] {
            let mut number = JsonNumber::new();
            text.bytes().for_each(|byte| number.push(byte));
            assert_eq!((number.whole(), number.plain()), (whole, plain), "{text}");
        }
    }
}
