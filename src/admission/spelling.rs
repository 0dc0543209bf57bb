//! Values whose spelling is not the value: read byte by byte, so that none of them needs memory of its own.

use super::path::escaped;

/// The bytes of a query or cookie text: percent escapes decoded (one that is none stands for itself), `+` and its
/// escape the same as a space.
pub(super) fn loose(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, tail) = rest.split_first()?;
        rest = tail;
        let byte = match (*byte, tail) {
            (b'%', [high, low, after @ ..]) => match escaped(&[*high, *low]) {
                Some(byte) => {
                    rest = after;
                    byte
                }
                None => b'%',
            },
            (byte, _) => byte,
        };
        Some(if byte == b'+' { b' ' } else { byte })
    })
}

/// The value of the first parameter of that name.
pub(super) fn query_value<'q>(query: &'q str, name: &str) -> Option<&'q [u8]> {
    query.as_bytes().split(|byte| *byte == b'&').find_map(|pair| {
        let (own, value) = split_at_byte(pair, b'=');
        loose(own).eq(loose(name.as_bytes())).then_some(value)
    })
}

/// The value of the first cookie of that name in a `Cookie` line, without quotes.
pub(super) fn cookie_value<'l>(line: &'l [u8], name: &str) -> Option<&'l [u8]> {
    line.split(|byte| *byte == b';').find_map(|pair| {
        let (own, value) = split_at_byte(pair, b'=');
        (own.trim_ascii() == name.as_bytes()).then(|| match value.trim_ascii() {
            [b'"', inner @ .., b'"'] => inner,
            value => value,
        })
    })
}

/// The user in `Basic BASE64(user:password)`.
pub(super) fn basic_user(authorization: &[u8]) -> Option<impl Iterator<Item = u8>> {
    let (scheme, token) = split_at_byte(authorization.trim_ascii(), b' ');
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return None;
    }
    let token = token.trim_ascii();
    let digits = token.strip_suffix(b"==").or_else(|| token.strip_suffix(b"=")).unwrap_or(token);
    let is_whole = digits.len() % 4 != 1 && digits.iter().all(|digit| sextet(*digit).is_some());
    let ends = is_whole && base64(digits).any(|byte| byte == b':');
    ends.then(|| base64(digits).take_while(|byte| *byte != b':'))
}

/// RFC 4648, 4; `digits` are valid and without padding.
fn base64(digits: &[u8]) -> impl Iterator<Item = u8> {
    let mut digits = digits.iter();
    let (mut bits, mut held) = (0_u32, 0_u32);
    std::iter::from_fn(move || {
        while held < 8 {
            bits = bits << 6 | sextet(*digits.next()?)?;
            held += 6;
        }
        held -= 8;
        Some((bits >> held) as u8)
    })
}

fn sextet(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

/// Before and after the first `at`; all and nothing if there is none.
fn split_at_byte(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let place = text.iter().position(|byte| *byte == at).unwrap_or(text.len());
    let (before, after) = text.split_at(place);
    (before, after.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: impl Iterator<Item = u8>) -> String {
        String::from_utf8(bytes.collect()).unwrap()
    }

    #[test]
    fn loose_text_has_no_second_spelling() {
        for (written, read) in [
            ("abc", "abc"),
            ("%61b%63", "abc"),
            ("a+b", "a b"),
            ("a%20b", "a b"),
            ("a%2Bb", "a b"),
            ("a%2bb", "a b"),
            ("100%", "100%"),
            ("%zz%4", "%zz%4"),
            ("%%41", "%A"),
            ("%2541", "%41"),
            ("", ""),
        ] {
            assert_eq!(text(loose(written.as_bytes())), read, "{written}");
        }
    }

    #[test]
    fn finds_the_first_parameter_of_a_name() {
        for (query, value) in [
            ("k=1", Some("1")),
            ("a=0&k=1&k=2", Some("1")),
            ("%6b=1", Some("1")),
            ("k", Some("")),
            ("k=", Some("")),
            ("k=a=b", Some("a=b")),
            ("&&k=1&", Some("1")),
            ("kk=1&K=2&=k", None),
            ("a=k;k=1", None),
            ("", None),
        ] {
            assert_eq!(query_value(query, "k"), value.map(str::as_bytes), "{query}");
        }
    }

    #[test]
    fn finds_the_first_cookie_of_a_name() {
        for (line, value) in [
            ("sid=1", Some("1")),
            ("a=0; sid=1; sid=2", Some("1")),
            ("a=0;sid=\"1\"", Some("1")),
            (" sid = 1 ;b=2", Some("1")),
            ("sid=a=b", Some("a=b")),
            ("sid=\"", Some("\"")),
            ("sid=; sid=2", Some("")),
            ("sid", Some("")),
            ("SID=1; xsid=2; a=sid=3", None),
            ("", None),
        ] {
            assert_eq!(cookie_value(line.as_bytes(), "sid"), value.map(str::as_bytes), "{line}");
        }
    }

    #[test]
    fn decodes_the_user_of_basic_credentials() {
        for (field, user) in [
            ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Some("Aladdin")),
            ("basic   QWxhZGRpbjpvcGVuIHNlc2FtZQ", Some("Aladdin")),
            (" BASIC YTpi ", Some("a")),
            ("Basic YTpiOmM=", Some("a")),
            ("Basic OnB3", Some("")),
            ("Basic YWI=", None),
            ("Basic YTpi!", None),
            ("Basic YTpi=YTpi", None),
            ("Basic Y", None),
            ("Basic YTpiY", None),
            ("Basic", None),
            ("Basic ", None),
            ("Bearer YTpi", None),
            ("", None),
        ] {
            assert_eq!(basic_user(field.as_bytes()).map(text).as_deref(), user, "{field}");
        }
    }
}
