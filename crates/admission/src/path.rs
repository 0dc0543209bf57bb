//! The one spelling of a path, so that none evades a limit or a route (RFC 3986, 6.2.2 and 5.2.4).
//!
//! Escapes of unreserved characters are decoded, the hex digits of all others are upper case, dot segments (also
//! spelled `%2e`) are removed, `//` becomes `/` (first, as nginx does: `/a//../b` is `/b`), and what no path may hold raw
//! but some clients send (`" < > [ ] ^ { | }` and the backtick) is escaped. Escapes of reserved characters stay, because
//! servers may tell `%3B` from `;`. `;parameters` are left alone. A path above the root stays at the root.
//!
//! Routes and keys do not tell `%3A` from `:`, see [`NormalPath::matched`]: most servers do not either, so that the other
//! spelling would get past the limits of a route.
//!
//! An encoded slash and a backslash, in whatever spelling, are `%2F` and `%5C` here and part of their segment: routes
//! are matched with them, and only then is the request refused unless its route allows them.

use std::borrow::Cow;

use super::malformed::Malformed;

/// A path in its one spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NormalPath<'p> {
    /// Borrowed if the path came in its one spelling.
    pub(super) text: Cow<'p, str>,
    /// It holds (or held, in a segment that a `..` removed) an encoded slash or a backslash.
    pub(super) encoded_slash: bool,
    /// Why it cannot be passed on as it came, if so.
    pub(super) unfit_as_received: Option<Malformed>,
    /// Whether it may hold an escape.
    may_have_escape: bool,
}

impl<'p> NormalPath<'p> {
    fn plain(path: &'p str) -> Self {
        Self { text: Cow::Borrowed(path), encoded_slash: false, unfit_as_received: None, may_have_escape: false }
    }

    /// The path as routes match it.
    pub(super) fn matched(&self) -> Cow<'_, str> {
        if self.may_have_escape { without_escaped_delims(&self.text) } else { Cow::Borrowed(&self.text) }
    }

    /// The path, if it did not come in its one spelling.
    pub(super) fn into_changed(self) -> Option<Box<str>> {
        match self.text {
            Cow::Borrowed(_) => None,
            Cow::Owned(text) => Some(text.into()),
        }
    }
}

/// The one spelling of a path that may not be a client's own, such as one that was rewritten.
pub fn normal_path(path: &str) -> Result<Cow<'_, str>, Malformed> {
    normalise(path).map(|path| path.text)
}

/// The one spelling of the target of a request with this method.
pub(super) fn normalise_target<'p>(method: &str, path: &'p str) -> Result<NormalPath<'p>, Malformed> {
    if path == "*" && method == "OPTIONS" {
        return Ok(NormalPath::plain(path));
    }
    normalise(path)
}

/// The one spelling of `path`. One scan and no allocation if it is in it already.
pub(super) fn normalise(path: &str) -> Result<NormalPath<'_>, Malformed> {
    let bytes = path.as_bytes();
    if bytes.first() != Some(&b'/') {
        return Err(Malformed::PathForm);
    }
    if is_plainly_normal(bytes) {
        return Ok(NormalPath::plain(path));
    }
    match scan(bytes) {
        Scan::Normal { encoded_slash } => {
            let text = Cow::Borrowed(path);
            Ok(NormalPath { text, encoded_slash, unfit_as_received: None, may_have_escape: true })
        }
        Scan::Other => rewrite(bytes),
    }
}

/// A path in its one spelling as routes and keys have it: without the escapes of what may stand in a segment as it is
/// (RFC 3986, 3.3), that is the sub-delims, `:` and `@`. Most servers decode them, so that they make one resource. The
/// server gets the path with its escapes.
pub fn without_escaped_delims(path: &str) -> Cow<'_, str> {
    let is_delim = |byte: u8| b"!$&'()*+,;=:@".contains(&byte);
    let next = |text: &str| {
        let at = text.match_indices('%').map(|(at, _)| at);
        let mut found = at.filter_map(|at| Some((at, escaped(text.as_bytes().get(at + 1..)?)?)));
        found.find(|(_, byte)| is_delim(*byte))
    };
    let Some(first) = next(path) else { return Cow::Borrowed(path) };
    let (mut out, mut rest, mut found) = (String::with_capacity(path.len()), path, Some(first));
    while let Some((at, byte)) = found {
        out.push_str(rest.get(..at).unwrap_or_default());
        out.push(char::from(byte));
        rest = rest.get(at + 3..).unwrap_or_default();
        found = next(rest);
    }
    out.push_str(rest);
    Cow::Owned(out)
}

enum Scan {
    /// In its one spelling.
    Normal { encoded_slash: bool },
    /// To be rewritten, or malformed.
    Other,
}

/// The treatment that a byte of a path calls for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// Nothing: unreserved, sub-delims, `:` and `@`.
    Plain,
    /// A look at what follows it.
    Slash,
    /// A look at its two digits.
    Percent,
    /// An escape in its place.
    Escape,
    /// Nothing can be done.
    Bad,
}

const CLASSES: [Class; 256] = classes();
const UPPER_HEX: &[u8; 16] = b"0123456789ABCDEF";

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Bad; 256];
    let mut byte = 0x21;
    while byte < 0x7F {
        classes[byte] = match byte as u8 {
            b'/' => Class::Slash,
            b'%' => Class::Percent,
            b'#' | b'?' => Class::Bad,
            b'"' | b'<' | b'>' | b'[' | b'\\' | b']' | b'^' | b'`' | b'{' | b'|' | b'}' => Class::Escape,
            _ => Class::Plain,
        };
        byte += 1;
    }
    classes
}

fn class_of(byte: u8) -> Class {
    CLASSES[usize::from(byte)]
}

/// RFC 3986, 2.3.
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn is_encoded_slash(byte: u8) -> bool {
    matches!(byte, b'/' | b'\\')
}

/// Bits of a byte's class in [`PLAIN_BITS`].
const IS_SLASH: u8 = 1;
const IS_SLASH_OR_DOT: u8 = 2;
const IS_NOT_PLAIN: u8 = 4;
const PLAIN_BITS: [u8; 256] = plain_bits();

const fn plain_bits() -> [u8; 256] {
    let mut bits = [IS_NOT_PLAIN; 256];
    let mut byte = 0;
    while byte < bits.len() {
        match CLASSES[byte] {
            Class::Slash => bits[byte] = IS_SLASH | IS_SLASH_OR_DOT,
            Class::Plain if byte == b'.' as usize => bits[byte] = IS_SLASH_OR_DOT,
            Class::Plain => bits[byte] = 0,
            _ => {}
        }
        byte += 1;
    }
    bits
}

/// Whether nothing in the path even needs a closer look, which is so for most. Without branches, since this is done for
/// every request.
fn is_plainly_normal(path: &[u8]) -> bool {
    let mut doubt = 0;
    let mut previous = 0;
    for byte in path {
        let bits = PLAIN_BITS[usize::from(*byte)];
        // A slash, one bit up, meets a slash or a dot after it.
        doubt |= bits & IS_NOT_PLAIN | (previous & IS_SLASH) << 1 & bits;
        previous = bits;
    }
    doubt == 0
}

fn scan(path: &[u8]) -> Scan {
    let mut encoded_slash = false;
    let mut rest = path;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match class_of(*byte) {
            Class::Plain => {}
            Class::Slash => {
                if matches!(tail, [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..]) {
                    return Scan::Other;
                }
            }
            Class::Percent => {
                let Some(escaped) = escaped(tail) else { return Scan::Other };
                let [high, low] = hex_of(escaped);
                if escaped == 0 || is_unreserved(escaped) || !tail.starts_with(&[high, low]) {
                    return Scan::Other;
                }
                encoded_slash |= is_encoded_slash(escaped);
                rest = tail.get(2..).unwrap_or_default();
            }
            Class::Escape | Class::Bad => return Scan::Other,
        }
    }
    Scan::Normal { encoded_slash }
}

/// `path` begins with a slash.
fn rewrite(path: &[u8]) -> Result<NormalPath<'static>, Malformed> {
    let mut out = Vec::with_capacity(path.len());
    let mut encoded_slash = false;
    // A server of HTTP/2 cannot be sent a backtick, which no URI has.
    let mut unfit_as_received = path.contains(&b'`').then_some(Malformed::PathByte);
    let mut segments = path.split(|byte| *byte == b'/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let start = out.len();
        out.push(b'/');
        encoded_slash |= respell(segment, &mut out)?;
        let is_last = segments.peek().is_none();
        let segment = out.get(start + 1..).unwrap_or_default();
        if matches!(segment, b"." | b"..") {
            unfit_as_received = Some(Malformed::DotSegments);
        }
        let keep = match segment {
            b"" | b"." => start,
            b".." => parent(out.get(..start).unwrap_or_default()),
            _ => continue,
        };
        out.truncate(keep);
        if is_last {
            out.push(b'/');
        }
    }
    // Only ASCII was written: anything else is malformed.
    let text = String::from_utf8(out).map_err(|_| Malformed::PathByte)?;
    Ok(NormalPath { text: Cow::Owned(text), encoded_slash, unfit_as_received, may_have_escape: true })
}

/// Where the last segment of `path` begins, with its slash.
fn parent(path: &[u8]) -> usize {
    path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)
}

/// Whether the segment holds an encoded slash or a backslash.
fn respell(segment: &[u8], out: &mut Vec<u8>) -> Result<bool, Malformed> {
    let mut encoded_slash = false;
    let mut rest = segment;
    while let [byte, tail @ ..] = rest {
        rest = tail;
        match class_of(*byte) {
            Class::Plain | Class::Slash => out.push(*byte),
            Class::Bad => return Err(Malformed::PathByte),
            Class::Escape => {
                encoded_slash |= is_encoded_slash(*byte);
                push_escape(*byte, out);
            }
            Class::Percent => {
                let escaped = escaped(tail).ok_or(Malformed::PathEncoding)?;
                rest = tail.get(2..).unwrap_or_default();
                match escaped {
                    0 => return Err(Malformed::PathNul),
                    _ if is_unreserved(escaped) => out.push(escaped),
                    _ => push_escape(escaped, out),
                }
                encoded_slash |= is_encoded_slash(escaped);
            }
        }
    }
    Ok(encoded_slash)
}

/// The byte that the first two digits of `digits` stand for.
pub(super) fn escaped(digits: &[u8]) -> Option<u8> {
    let [high, low, ..] = digits else { return None };
    let value = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    Some(value(*high)? << 4 | value(*low)?)
}

fn hex_of(byte: u8) -> [u8; 2] {
    [UPPER_HEX[usize::from(byte >> 4)], UPPER_HEX[usize::from(byte & 15)]]
}

fn push_escape(byte: u8, out: &mut Vec<u8>) {
    out.push(b'%');
    out.extend_from_slice(&hex_of(byte));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn spelt(path: &str) -> Result<String, Malformed> {
        normalise(path).map(|path| path.text.into_owned())
    }

    #[test]
    fn brings_every_spelling_to_one() {
        for (path, normal) in [
            ("/", "/"),
            ("/a/b.c/-_~", "/a/b.c/-_~"),
            ("/a;v=1/b;c", "/a;v=1/b;c"),
            ("/!$&'()*+,;=:@", "/!$&'()*+,;=:@"),
            ("/%41%7a%2D%7E%5F%2e1", "/Az-~_.1"),
            ("/%c3%a9%3a", "/%C3%A9%3A"),
            ("/%C3%A9%20", "/%C3%A9%20"),
            ("//", "/"),
            ("//a///b//", "/a/b/"),
            ("/.", "/"),
            ("/..", "/"),
            ("/./a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/b/../", "/a/"),
            ("/a/../../../b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a/.%2e/b/%2E", "/b/"),
            ("/a//../b", "/b"),
            ("/.a/..b/c./...", "/.a/..b/c./..."),
            ("/..;/a", "/..;/a"),
            ("/%252e%252e/a", "/%252e%252e/a"),
            ("/a|b[1]{2}^`\"<>", "/a%7Cb%5B1%5D%7B2%7D%5E%60%22%3C%3E"),
            ("/a%7cb", "/a%7Cb"),
            ("/a\\b", "/a%5Cb"),
            ("/a%2fb%5c", "/a%2Fb%5C"),
            ("/a%2F..%2Fb", "/a%2F..%2Fb"),
        ] {
            assert_eq!(spelt(path).as_deref(), Ok(normal), "{path}");
        }
    }

    #[test]
    fn refuses_what_is_no_path() {
        for (path, malformed) in [
            ("", Malformed::PathForm),
            ("a", Malformed::PathForm),
            ("*", Malformed::PathForm),
            ("http://a/", Malformed::PathForm),
            ("/%", Malformed::PathEncoding),
            ("/%4", Malformed::PathEncoding),
            ("/%4/1", Malformed::PathEncoding),
            ("/%4g", Malformed::PathEncoding),
            ("/%+1", Malformed::PathEncoding),
            ("/a//%zz", Malformed::PathEncoding),
            ("/%00", Malformed::PathNul),
            ("/../%00", Malformed::PathNul),
            ("/\0", Malformed::PathByte),
            ("/a b", Malformed::PathByte),
            ("/a\tb", Malformed::PathByte),
            ("/a#b", Malformed::PathByte),
            ("/a?b", Malformed::PathByte),
            ("/\u{7f}", Malformed::PathByte),
            ("/\u{e9}", Malformed::PathByte),
        ] {
            assert_eq!(spelt(path), Err(malformed), "{path:?}");
        }
        assert_eq!(normalise_target("GET", "*"), Err(Malformed::PathForm));
        assert_eq!(normalise_target("OPTIONS", "*").map(|path| path.text), Ok("*".into()));
    }

    #[test]
    fn tells_encoded_slashes_and_backslashes_in_every_spelling() {
        for (path, encoded_slash) in [
            ("/a/b", false),
            ("/a%252Fb", false),
            ("/a%2Fb", true),
            ("/a%2fb", true),
            ("/a%5Cb", true),
            ("/a%5cb", true),
            ("/a\\b", true),
            ("/a%2Fb/../c", true),
        ] {
            assert_eq!(normalise(path).map(|path| path.encoded_slash), Ok(encoded_slash), "{path}");
        }
    }

    /// RFC 3986, 5.2.4, letter by letter.
    fn without_dot_segments(input: &str) -> String {
        let (mut input, mut output) = (input.to_owned(), String::new());
        while !input.is_empty() {
            if let Some(rest) = input.strip_prefix("/./") {
                input = format!("/{rest}");
            } else if input == "/." {
                input = "/".to_owned();
            } else if let Some(rest) = input.strip_prefix("/../") {
                input = format!("/{rest}");
                output.truncate(output.rfind('/').unwrap_or(0));
            } else if input == "/.." {
                input = "/".to_owned();
                output.truncate(output.rfind('/').unwrap_or(0));
            } else {
                let end = input[1..].find('/').map_or(input.len(), |end| end + 1);
                output.push_str(&input[..end]);
                input.drain(..end);
            }
        }
        output
    }

    /// One rule after the other, each over the whole text.
    fn normal_by_rules(path: &str) -> String {
        let mut text = path.to_owned();
        for byte in 0..=255_u8 {
            let escape = format!("%{byte:02X}");
            for (high, low) in [(true, true), (true, false), (false, true), (false, false)] {
                let case = |part: &str, upper: bool| if upper { part.to_owned() } else { part.to_ascii_lowercase() };
                let spelling = format!("%{}{}", case(&escape[1..2], high), case(&escape[2..3], low));
                let plain = char::from(byte).to_string();
                text = text.replace(&spelling, if is_unreserved(byte) { &plain } else { &escape });
            }
            if b"\"<>[]^`{|}\\".contains(&byte) {
                text = text.replace(char::from(byte), &escape);
            }
        }
        while text.contains("//") {
            text = text.replace("//", "/");
        }
        without_dot_segments(&text)
    }

    fn paths() -> impl Strategy<Value = String> {
        let pieces = vec![
            "/", "/", "/", "//", ".", "..", "%2e", "%2E", "%2F", "%2f", "%5c", "\\", "a", "b", "%41", "%7e", "%20",
            "%c3%A9", ";p=1", "|", "%7c", ":", "%3a", "+", "%2b", "%25", "%2541",
        ];
        prop::collection::vec(prop::sample::select(pieces), 0..12).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    proptest! {
        #[test]
        fn equals_the_rules_applied_one_by_one(path in paths()) {
            prop_assert_eq!(spelt(&path), Ok(normal_by_rules(&path)));
        }

        #[test]
        fn a_second_time_changes_nothing_and_allocates_nothing(path in paths()) {
            let once = spelt(&path).unwrap();
            let twice = normalise(&once).unwrap();
            prop_assert!(matches!(twice.text, Cow::Borrowed(_)));
            prop_assert_eq!(&twice.text, &once);
        }

        #[test]
        fn leaves_nothing_that_could_be_spelt_otherwise(path in "/[ -~]{0,20}") {
            let Ok(path) = normalise(&path) else { return Ok(()) };
            let text = path.text;
            prop_assert!(text.starts_with('/') && !text.contains("//") && !text.contains('\\'), "{}", text);
            prop_assert!(text.split('/').all(|segment| segment != "." && segment != ".."), "{}", text);
            for (at, _) in text.match_indices('%') {
                let digits = &text[at + 1..at + 3];
                prop_assert_eq!(digits, digits.to_ascii_uppercase());
                prop_assert!(!is_unreserved(u8::from_str_radix(digits, 16).unwrap()), "{}", text);
            }
        }

        #[test]
        fn escapes_of_reserved_characters_stay(byte in prop::sample::select(b":/?#[]@!$&'()*+,;=%".to_vec())) {
            let escape = format!("/%{byte:02X}");
            prop_assert_eq!(spelt(&escape), Ok(escape));
        }

        #[test]
        fn escapes_of_delimiters_make_no_other_path_for_routes(
            path in "/[a-c/:;!@ ]{0,12}",
            escaped in prop::collection::vec(any::<bool>(), 13),
        ) {
            let path = path.replace(' ', "%20");
            let is_delim = |character: char| ":;!@".contains(character);
            let spelling: String = path
                .chars()
                .zip(escaped.iter().cycle())
                .map(|(own, escaped)| if is_delim(own) && *escaped { format!("%{:02x}", own as u8) } else { own.into() })
                .collect();
            let (one, other) = (normalise(&path).unwrap(), normalise(&spelling).unwrap());
            prop_assert_eq!(one.matched(), other.matched());
            prop_assert_eq!(one.matched(), Cow::Borrowed(&*one.text));
        }

        #[test]
        fn any_text_is_a_path_or_malformed(path in any::<String>()) {
            if let Ok(normal) = normalise(&path) {
                prop_assert_eq!(normal.text == path, matches!(normal.text, Cow::Borrowed(_)));
            }
        }
    }
}
