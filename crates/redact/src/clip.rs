//! Texts of strangers, cut to a length before anybody works on them.

/// How a text ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClipEnd {
    /// As it came.
    Whole,
    /// There was more.
    Cut,
}

/// A text of at most so many bytes as it was made with, or three times as many where bytes were no UTF-8.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clip {
    /// The text, or its beginning.
    pub text: String,
    /// Whether it is all.
    pub end: ClipEnd,
}

impl Clip {
    /// The first `most` bytes. No character and no percent-escape is cut in two.
    pub fn of(text: &[u8], most: usize) -> Self {
        Self::joined(&[text], most)
    }

    /// As [`Clip::of`], of a text that is already on its own.
    pub fn own(text: String, most: usize) -> Self {
        if text.len() <= most { Self::from(text) } else { Self::of(text.as_bytes(), most) }
    }

    /// The first `most` bytes of all parts, one after the other.
    pub fn joined(parts: &[&[u8]], most: usize) -> Self {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let mut bytes = Vec::with_capacity(length.min(most));
        for part in parts {
            let room = most - bytes.len();
            bytes.extend_from_slice(part.get(..room).unwrap_or(part));
        }
        let end = if length > most { ClipEnd::Cut } else { ClipEnd::Whole };
        if end == ClipEnd::Cut {
            bytes.truncate(without_half(&bytes).len());
        }
        let text =
            String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned());
        Self { text, end }
    }
}

impl From<&str> for Clip {
    fn from(text: &str) -> Self {
        Self { text: text.to_owned(), end: ClipEnd::Whole }
    }
}

impl From<String> for Clip {
    fn from(text: String) -> Self {
        Self { text, end: ClipEnd::Whole }
    }
}

/// Without the beginning of a character or an escape at its end.
fn without_half(text: &[u8]) -> &[u8] {
    let whole = match std::str::from_utf8(text) {
        Err(error) if error.error_len().is_none() => text.get(..error.valid_up_to()).unwrap_or_default(),
        _ => text,
    };
    match whole {
        [rest @ .., b'%'] | [rest @ .., b'%', _] => rest,
        _ => whole,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_leaves_no_half_of_a_character_or_of_an_escape() {
        let clip = |text: &str, most| {
            let clip = Clip::of(text.as_bytes(), most);
            (clip.text, clip.end)
        };
        assert_eq!(clip("abc", 3), ("abc".into(), ClipEnd::Whole));
        assert_eq!(clip("abcd", 3), ("abc".into(), ClipEnd::Cut));
        assert_eq!(clip("abé", 3), ("ab".into(), ClipEnd::Cut));
        assert_eq!(clip("a%41", 2), ("a".into(), ClipEnd::Cut));
        assert_eq!(clip("a%41", 3), ("a".into(), ClipEnd::Cut));
        assert_eq!(clip("a%41b", 4), ("a%41".into(), ClipEnd::Cut));
        assert_eq!(clip("", 0), (String::new(), ClipEnd::Whole));
    }

    #[test]
    fn bytes_that_are_no_utf_8_do_not_shorten_what_is_kept() {
        assert_eq!(Clip::of(b"\xff\xfeabc", 4), Clip { text: "\u{fffd}\u{fffd}ab".into(), end: ClipEnd::Cut });
    }
}
