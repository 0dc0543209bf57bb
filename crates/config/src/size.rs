//! Sizes in bytes: `"64KiB"`, `"10MB"`.

const SIZE_UNITS: [(&str, u64); 8] = [
    ("B", 1),
    ("", 1),
    ("KB", 1_000),
    ("KiB", 1 << 10),
    ("MB", 1_000_000),
    ("MiB", 1 << 20),
    ("GB", 1_000_000_000),
    ("GiB", 1 << 30),
];

/// `"64KiB"` in bytes.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let (_, factor) = SIZE_UNITS.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

/// Bytes in the shortest exact form.
pub(super) fn show_size(bytes: u64) -> String {
    let exact = SIZE_UNITS.iter().rev().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    match exact {
        Some((unit, factor)) if *factor > 1 => format!("{}{unit}", bytes / factor),
        _ => format!("{bytes}B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_and_print_the_same_text() {
        for text in ["64KiB", "64MiB", "4GiB", "10MB", "3GB", "7KB", "1B", "0B"] {
            assert_eq!(parse_size(text).map(show_size), Some(text.to_owned()));
        }
        assert_eq!(parse_size("512"), Some(512));
        assert_eq!(show_size(1_500_000), "1500KB");
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in
            ["", "KiB", "-1KiB", "1.5MiB", "1 MiB", "1kib", "1TiB", "18446744073709551616", "18446744073709551615KiB"]
        {
            assert_eq!(parse_size(text), None, "{text:?}");
        }
    }
}
