//! The day on which the months of a key begin, as a trusted proxy states it.

use std::num::NonZeroU8;
use std::sync::Arc;

use super::rate_from::only_line;
use super::view::RequestView;

/// Where a limit that counts by months finds the day on which those of a key begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// In this field (in lower case) of a trusted proxy; where it states none, and `None`: in the line of the key in a plans
    /// file.
    pub field: Option<Arc<str>>,
}

impl Renewal {
    /// The day that a request from a trusted proxy states, 1 to 31; `None` if it states none, several, or no such day.
    pub(super) fn stated<V: RequestView + ?Sized>(&self, view: &V) -> Option<NonZeroU8> {
        day(only_line(view, self.field.as_deref()?)?.trim_ascii())
    }
}

/// One or two digits, 1 to 31.
fn day(text: &[u8]) -> Option<NonZeroU8> {
    let is_plain = text.len() <= 2 && text.iter().all(u8::is_ascii_digit);
    let day = str::from_utf8(text).ok().filter(|_| is_plain)?.parse().ok()?;
    NonZeroU8::new(day).filter(|day| day.get() <= 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PlainRequest;

    #[test]
    fn a_day_is_one_or_two_digits_in_one_line() {
        let renewal = Renewal { field: Some("x-day".into()) };
        for (lines, expected) in [
            (&["15"][..], Some(15)),
            (&[" 1\t"], Some(1)),
            (&["09"], Some(9)),
            (&["31"], Some(31)),
            (&["32"], None),
            (&["0"], None),
            (&["00"], None),
            (&["015"], None),
            (&["+5"], None),
            (&["-5"], None),
            (&["1.5"], None),
            (&["last"], None),
            (&[""], None),
            (&["15", "15"], None),
            (&[], None),
        ] {
            let view = lines.iter().fold(PlainRequest::new("GET", "/"), |view, line| view.with("x-day", line));
            assert_eq!(renewal.stated(&view).map(NonZeroU8::get), expected, "{lines:?}");
            assert_eq!(Renewal::default().stated(&view), None);
        }
        assert_eq!(day(b"\xff"), None);
    }
}
