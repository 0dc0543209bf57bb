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

/// Why a request has no value for a part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// There is none, or an empty one.
    Absent,
    /// There is something that names nobody for sure: several values that differ, or credentials that cannot be read.
    Unusable,
}

/// The values of all parameters of that name.
pub(super) fn query_values<'q>(query: &'q str, name: &str) -> impl Iterator<Item = &'q [u8]> {
    query.as_bytes().split(|byte| *byte == b'&').filter_map(move |pair| {
        let (own, value) = split_at_byte(pair, b'=');
        loose(own).eq(loose(name.as_bytes())).then_some(value)
    })
}

/// The values of all cookies of that name in a `Cookie` line, without quotes.
pub(super) fn cookie_values<'l>(line: &'l [u8], name: &str) -> impl Iterator<Item = &'l [u8]> {
    line.split(|byte| *byte == b';').filter_map(move |pair| {
        let (own, value) = split_at_byte(pair, b'=');
        (own.trim_ascii() == name.as_bytes()).then(|| match value.trim_ascii() {
            [b'"', inner @ .., b'"'] => inner,
            value => value,
        })
    })
}

/// Credentials in one spelling: the case of the scheme and the blanks after it mean nothing (RFC 9110, 11.4).
pub(super) fn credentials(field: &[u8]) -> impl Iterator<Item = u8> {
    let (scheme, token) = split_scheme(field);
    // Without a token it is no scheme, and its case may matter.
    let folds = !token.is_empty();
    let scheme = scheme.iter().map(move |byte| if folds { byte.to_ascii_lowercase() } else { *byte });
    scheme.chain(folds.then_some(b' ')).chain(token.iter().copied())
}

/// The user in `Basic BASE64(user:password)`.
pub(super) fn basic_user(authorization: &[u8]) -> Result<impl Iterator<Item = u8>, Missing> {
    let (scheme, token) = split_scheme(authorization);
    if !scheme.eq_ignore_ascii_case(b"basic") {
        return Err(Missing::Absent);
    }
    let digits = token.strip_suffix(b"==").or_else(|| token.strip_suffix(b"=")).unwrap_or(token);
    let is_whole = digits.len() % 4 != 1 && digits.iter().all(|digit| sextet(*digit).is_some());
    // Who sends a password without a user may well be let in by it, so it is not as if there were no credentials.
    let names_user = is_whole && base64(digits).position(|byte| byte == b':').is_some_and(|length| length > 0);
    if names_user { Ok(base64(digits).take_while(|byte| *byte != b':')) } else { Err(Missing::Unusable) }
}

/// The scheme and what follows it, without blanks around either.
fn split_scheme(field: &[u8]) -> (&[u8], &[u8]) {
    let field = field.trim_ascii();
    let (scheme, token) = field.split_at(field.iter().position(u8::is_ascii_whitespace).unwrap_or(field.len()));
    (scheme, token.trim_ascii())
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

    fn texts<'a>(values: impl Iterator<Item = &'a [u8]>) -> Vec<&'a str> {
        values.map(|value| std::str::from_utf8(value).unwrap()).collect()
    }

    #[test]
    fn finds_the_parameters_of_a_name() {
        for (query, values) in [
            ("k=1", &["1"][..]),
            ("a=0&k=1&k=2", &["1", "2"]),
            ("%6b=1&k=1", &["1", "1"]),
            ("k", &[""]),
            ("k=", &[""]),
            ("k=a=b", &["a=b"]),
            ("&&k=1&", &["1"]),
            ("kk=1&K=2&=k", &[]),
            ("a=k;k=1", &[]),
            ("", &[]),
        ] {
            assert_eq!(texts(query_values(query, "k")), values, "{query}");
        }
    }

    #[test]
    fn finds_the_cookies_of_a_name() {
        for (line, values) in [
            ("sid=1", &["1"][..]),
            ("a=0; sid=1; sid=2", &["1", "2"]),
            ("a=0;sid=\"1\"", &["1"]),
            (" sid = 1 ;b=2", &["1"]),
            ("sid=a=b", &["a=b"]),
            ("sid=\"", &["\""]),
            ("sid=; sid=2", &["", "2"]),
            ("sid", &[""]),
            ("SID=1; xsid=2; a=sid=3", &[]),
            ("", &[]),
        ] {
            assert_eq!(texts(cookie_values(line.as_bytes(), "sid")), values, "{line}");
        }
    }

    #[test]
    fn credentials_have_one_spelling() {
        for (field, read) in [
            ("Bearer aB", "bearer aB"),
            (" BEARER \t aB ", "bearer aB"),
            ("bearer\taB", "bearer aB"),
            ("Digest a=1,  B=2", "digest a=1,  B=2"),
            ("sEcret", "sEcret"),
            (" ", ""),
        ] {
            assert_eq!(text(credentials(field.as_bytes())), read, "{field}");
        }
    }

    #[test]
    fn decodes_the_user_of_basic_credentials() {
        for (field, user) in [
            ("Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==", Ok("Aladdin")),
            ("basic   QWxhZGRpbjpvcGVuIHNlc2FtZQ", Ok("Aladdin")),
            (" BASIC YTpi ", Ok("a")),
            ("Basic\tYTpi", Ok("a")),
            ("Basic YTpiOmM=", Ok("a")),
            ("Basic OnB3", Err(Missing::Unusable)),
            ("Basic YWI=", Err(Missing::Unusable)),
            ("Basic YTpi!", Err(Missing::Unusable)),
            ("Basic YTpi=YTpi", Err(Missing::Unusable)),
            ("Basic Y", Err(Missing::Unusable)),
            ("Basic YTpiY", Err(Missing::Unusable)),
            ("Basic", Err(Missing::Unusable)),
            ("Basic ", Err(Missing::Unusable)),
            ("Bearer YTpi", Err(Missing::Absent)),
            ("", Err(Missing::Absent)),
        ] {
            let read = basic_user(field.as_bytes()).map(text);
            assert_eq!(read.as_deref().map_err(|missing| *missing), user, "{field}");
        }
    }
}
