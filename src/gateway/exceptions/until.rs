use crate::dead_letter::When;
use crate::time::{Span, Wall};

/// An exception ends after so long at the latest, unless it has no end: more is a slip of the pen.
const LONGEST: Span = Span::from_secs(10 * 366 * 86_400);

const REMEDY: &str =
    "write it as 2026-12-01T08:00:00Z, as a date such as 2026-12-01 (its first instant in UTC), or as +2h";

/// Reads the end of an exception: an instant, a date, or how long from `now`.
///
/// # Errors
/// It is none, has passed, or is more than ten years ahead; in words, with how to mend it.
pub fn parse_until(text: &str, now: Wall) -> Result<Wall, String> {
    let until = match text.strip_prefix('+') {
        Some(span) => span.parse::<Span>().ok().map(|span| now + span),
        None => text.parse::<When>().ok().and_then(|when| match when {
            When::At(at) => Some(at),
            When::Ago(_) => None,
        }),
    };
    let shown: String = text.chars().filter(|letter| !letter.is_control()).take(64).collect();
    let until = until.ok_or_else(|| format!("`until` = {shown:?} is no instant: {REMEDY}."))?;
    if until <= now {
        return Err(format!("`until` = {shown:?} has passed: {REMEDY}, later than now."));
    }
    if until.since(now) > LONGEST {
        return Err(format!("`until` = {shown:?} is more than ten years ahead: leave it out where there is no end."));
    }
    Ok(until)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 2026-01-02T03:04:05Z
    const NOW: Wall = Wall::from_nanos(1_767_323_045_000_000_000);

    #[test]
    fn an_end_is_an_instant_a_date_or_a_time_from_now() {
        for (text, seconds) in [
            ("2026-01-02T03:04:06Z", 1),
            ("2026-01-02T04:05:05+01:00", 60),
            ("2026-01-03", 75_355),
            ("+2h", 7_200),
            ("+90s", 90),
        ] {
            assert_eq!(parse_until(text, NOW), Ok(NOW + Span::from_secs(seconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_end_says_how_to_write_one() {
        for (text, words) in [
            ("", "is no instant: write it as 2026-12-01T08:00:00Z"),
            ("2h", "is no instant"),
            ("tomorrow", "\"tomorrow\" is no instant"),
            ("+", "is no instant"),
            ("2026-01-02", "has passed"),
            ("2026-01-02T03:04:05Z", "has passed"),
            ("+0s", "has passed"),
            ("2037-01-02", "more than ten years ahead: leave it out"),
        ] {
            let error = parse_until(text, NOW).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_an_end_that_is_past_or_far(text in "\\PC{0,40}", plus in "\\+[0-9]{1,20}(ms|s|m|h|d)") {
            for text in [text, plus] {
                if let Ok(until) = parse_until(&text, NOW) {
                    prop_assert!(until > NOW && until <= NOW + LONGEST);
                }
            }
        }
    }
}
