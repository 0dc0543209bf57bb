//! Values whose spelling is not the value: read byte by byte, so that none of them needs memory of its own.

use super::path::escaped;

/// The bytes of a query or cookie text: percent escapes decoded, `+` and its escape the same as a space.
pub(super) fn loose(text: &[u8]) -> impl Iterator<Item = u8> {
    decoded(text).map(|byte| if byte == b'+' { b' ' } else { byte })
}

/// The bytes of a text with its percent escapes decoded; one that is none stands for itself.
pub(super) fn decoded(text: &[u8]) -> impl Iterator<Item = u8> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, tail) = rest.split_first()?;
        rest = tail;
        Some(match (*byte, tail) {
            (b'%', [high, low, after @ ..]) => match escaped(&[*high, *low]) {
                Some(byte) => {
                    rest = after;
                    byte
                }
                None => b'%',
            },
            (byte, _) => byte,
        })
    })
}

/// The bytes of a path that may have no normal form, with the escapes decoded that are some.
pub fn loosely_decoded(path: &str) -> Vec<u8> {
    loose(path.as_bytes()).collect()
}

/// Why a request has no value for a part of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Missing {
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

/// The values of all cookies of that name in a `Cookie` line, without quotes. `Unusable` where servers read a value in quotes
/// in more than one way. A pair ends at `;` and nowhere else, as RFC 6265 (5.4) and browsers have it: what stands behind a
/// blank or a comma within one is a part of its value.
pub(super) fn cookie_values<'l>(line: &'l [u8], name: &str) -> impl Iterator<Item = Result<&'l [u8], Missing>> {
    line.split(|byte| *byte == b';').filter_map(move |pair| {
        let (own, value) = split_at_byte(pair, b'=');
        (trim_blanks(own) == name.as_bytes()).then(|| cookie_value(trim_blanks(value)))
    })
}

/// A value in double quotes is read without them. With an escape in it, or with a byte that RFC 6265 (4.1.1) does not
/// allow, some servers would decode it (`"\163ession"` is `session` in Python), and others would not.
fn cookie_value(value: &[u8]) -> Result<&[u8], Missing> {
    let is_octet = |byte: &u8| matches!(byte, 0x21 | 0x23..=0x2B | 0x2D..=0x3A | 0x3C..=0x5B | 0x5D..=0x7E);
    match value {
        [b'"', inner @ .., b'"'] if inner.iter().all(is_octet) => Ok(inner),
        // A quote that is not closed here may be closed behind a `;`.
        [b'"', ..] => Err(Missing::Unusable),
        value => Ok(value),
    }
}

/// Without the blanks that servers take off the ends of names and values of cookies: those of ASCII, and those of
/// Unicode where a server decodes the line before.
pub(super) fn trim_blanks(text: &[u8]) -> &[u8] {
    let text = text.trim_ascii();
    let is_plain = |byte: Option<&u8>| byte.is_none_or(u8::is_ascii);
    if is_plain(text.first()) && is_plain(text.last()) {
        return text;
    }
    if let Ok(text) = str::from_utf8(text) {
        return text.trim().as_bytes();
    }
    // Then it is Latin-1.
    let is_blank = |byte: &u8| byte.is_ascii_whitespace() || matches!(byte, 0x85 | 0xA0);
    let begin = text.iter().position(|byte| !is_blank(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !is_blank(byte)).map_or(begin, |last| last + 1);
    text.get(begin..end).unwrap_or_default()
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
pub(super) fn split_at_byte(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let place = text.iter().position(|byte| *byte == at).unwrap_or(text.len());
    let (before, after) = text.split_at(place);
    (before, after.get(1..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
            ("sid=; sid=2", &["", "2"]),
            ("sid", &[""]),
            ("SID=1; xsid=2; a=sid=3", &[]),
            ("", &[]),
        ] {
            assert_eq!(texts(cookie_values(line.as_bytes(), "sid").map(Result::unwrap)), values, "{line}");
        }
    }

    #[test]
    fn a_cookie_that_servers_read_in_more_than_one_way_is_unusable() {
        for line in [
            "sid=\"\\163ession\"",
            "sid=\"sess\\ion\"",
            "sid=\"a b\"",
            "sid=\"a,b\"",
            "sid=\"a\"b\"",
            "sid=\"a\u{e9}\"",
            "sid=\"\\\"\"",
            "sid=\"a;b\"",
            "sid=\"",
            "sid=\"a",
            "sid=\"a\"b",
            "sid=\"a\" x=2",
            "x=1; sid=\"a",
        ] {
            assert!(cookie_values(line.as_bytes(), "sid").any(|value| value.is_err()), "{line}");
        }
        for (line, value) in [
            ("sid=\"\"", ""),
            ("sid=\"a\"", "a"),
            // Without quotes a value is as it stands, and what another one holds is no cookie.
            ("sid=a b", "a b"),
            ("sid=a x=2", "a x=2"),
            ("sid=a Secure", "a Secure"),
            ("prefs=a=1,sid=2; sid=u7", "u7"),
            ("x=1 sid=2; sid=u7", "u7"),
            ("x=\"\\163\"; sid=u7", "u7"),
            ("prefs={\"sid\":1}; sid=u7", "u7"),
        ] {
            assert_eq!(texts(cookie_values(line.as_bytes(), "sid").map(Result::unwrap)), [value], "{line}");
        }
    }

    #[test]
    fn blanks_at_the_ends_make_no_second_spelling() {
        for line in [
            "sid=a",
            "sid = a ",
            "sid=\u{a0}a",
            "\u{a0}\u{2003}sid\u{3000} = \u{85}a\u{202f} \u{a0}",
            "\u{2000}sid=\"a\"",
        ] {
            assert_eq!(texts(cookie_values(line.as_bytes(), "sid").map(Result::unwrap)), ["a"], "{line}");
        }
        assert_eq!(texts(cookie_values(b"sid=\xA0a\x85", "sid").map(Result::unwrap)), ["a"]);
        assert_eq!(texts(cookie_values("sid=\u{e9}a\u{e0}".as_bytes(), "sid").map(Result::unwrap)), ["\u{e9}a\u{e0}"]);
    }

    /// As `http.cookies` of Python 3 has it: the value that a `Cookie` line gives a name.
    mod python {
        fn is_legal(byte: u8) -> bool {
            byte.is_ascii_alphanumeric() || b"_!#%&'~`><@,:/$*+-.^|)(?}{=".contains(&byte)
        }

        fn unquote(value: &str) -> String {
            let Some(inner) =
                value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).filter(|_| value.len() > 1)
            else {
                return value.to_owned();
            };
            let (mut out, mut rest) = (String::new(), inner);
            while let Some(first) = rest.chars().next() {
                let escaped = rest.strip_prefix('\\');
                let octal = escaped.and_then(|rest| rest.get(..3)).filter(|digits| {
                    digits.bytes().all(|digit| (b'0'..=b'7').contains(&digit)) && digits.as_bytes()[0] <= b'3'
                });
                if let Some(digits) = octal {
                    out.push(char::from(u8::from_str_radix(digits, 8).unwrap()));
                    rest = &rest[4..];
                } else if let Some(next) = escaped.and_then(|rest| rest.chars().next()) {
                    out.push(next);
                    rest = &rest[1 + next.len_utf8()..];
                } else {
                    out.push(first);
                    rest = &rest[first.len_utf8()..];
                }
            }
            out
        }

        /// The text of a value at the start of `text`, quoted or not, if something that ends it follows.
        fn value(text: &str) -> Option<(&str, &str)> {
            let ends = |rest: &str| rest.is_empty() || rest.starts_with([';', ' ', '\t']);
            if let Some(inner) = text.strip_prefix('"') {
                let mut escaped = false;
                for (at, character) in inner.char_indices() {
                    if !escaped && character == '"' {
                        let (value, rest) = text.split_at(at + 2);
                        return ends(rest).then_some((value, rest));
                    }
                    escaped = !escaped && character == '\\';
                }
            }
            let legal = |byte: &u8| is_legal(*byte) || b"[]".contains(byte);
            let length = text.bytes().take_while(legal).count();
            let (value, rest) = text.split_at(length);
            ends(rest).then_some((value, rest))
        }

        /// The last one counts. `None`: there is none, or the line cannot be read.
        pub(super) fn cookie(line: &str, name: &str) -> Option<String> {
            let (mut found, mut seen) = (None, false);
            let mut rest = line.trim_start();
            while !rest.is_empty() {
                let key = rest.bytes().take_while(|byte| is_legal(*byte) && *byte != b'=').count();
                let (own, after) = rest.split_at(key);
                let Some(after) = after.trim_start().strip_prefix('=').filter(|_| !own.is_empty()) else {
                    let is_flag = ["secure", "httponly", "$secure", "$httponly"].contains(&own);
                    if !is_flag || !seen {
                        return None;
                    }
                    rest = after.trim_start();
                    rest = rest.strip_prefix(';').unwrap_or(rest).trim_start();
                    continue;
                };
                seen = true;
                let (value, after) = value(after.trim_start())?;
                if own == name {
                    found = Some(unquote(value));
                }
                let after = after.trim_start();
                rest = after.strip_prefix(';').unwrap_or(after).trim_start();
            }
            found
        }
    }

    fn as_key(line: &str) -> Result<Option<Vec<u8>>, Missing> {
        let values: Result<Vec<_>, _> = cookie_values(line.as_bytes(), "s").collect();
        let values: Vec<Vec<u8>> = values?.into_iter().map(|value| loose(value).collect()).collect();
        if values.windows(2).all(|pair| pair[0] == pair[1]) {
            Ok(values.into_iter().next())
        } else {
            Err(Missing::Unusable)
        }
    }

    /// Pairs with quotes in them anywhere; without, no blanks or commas, at which Python ends a value.
    fn any_line() -> impl Strategy<Value = String> {
        let quoted = ["a", "\\", "163", "141", ";", " ", ",", "=", "\\\"", "; s=a", " $"];
        let quoted = prop::collection::vec(prop::sample::select(quoted.to_vec()), 0..5);
        let quoted = (quoted, prop::sample::select(vec!["\"", "", "\" ", "\"a"]))
            .prop_map(|(pieces, end)| format!("\"{}{end}", pieces.concat()));
        let plain = prop::sample::select(vec!["a", "=", "s=a", "163", ""]).prop_map(str::to_owned);
        let pair = (prop::sample::select(vec!["s=", "x=", " s = "]), prop_oneof![quoted, plain]);
        let pair = pair.prop_map(|(name, value)| format!("{name}{value}"));
        prop::collection::vec(pair, 0..5).prop_map(|pairs| pairs.join("; "))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_000))]

        /// A seed of proptest's is printed with what fails. A value that Python reads is our key, or we read none for sure.
        #[test]
        fn python_reads_no_cookie_that_we_read_as_another(line in any_line()) {
            if let (Some(theirs), Ok(ours)) = (python::cookie(&line, "s"), as_key(&line)) {
                prop_assert_eq!(ours.unwrap_or_default(), loose(theirs.as_bytes()).collect::<Vec<u8>>(), "{}", line);
            }
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
