//! Names in paths.

/// The path of a server, with what it has in place of names.
pub(super) const SERVER: &str = "/api/v1/upstreams/{upstream}/servers/{server}";
/// That of a key of a limit.
pub(super) const KEY: &str = "/api/v1/limits/{limit}/keys/{value}";

/// That of the keys of a limit.
pub(super) const KEYS: &str = "/api/v1/limits/{limit}/keys";

/// The name that a path has where `form` has `{…}`; the rest as in [`names_in`].
pub(super) fn name_in(path: &str, form: &str) -> Option<String> {
    let (begin, rest) = form.split_once('{')?;
    let name = path.strip_prefix(begin)?.strip_suffix(rest.split_once('}')?.1)?;
    if name.is_empty() || name.contains('/') { None } else { unescaped(name) }
}

/// The two names that a path has where `form` has `{…}`, without their escapes; `None`: it is not of this form. A slash within a
/// name is escaped.
pub(super) fn names_in(path: &str, form: &str) -> Option<(String, String)> {
    let (begin, rest) = form.split_once('{')?;
    let (middle, _) = rest.split_once('}')?.1.split_once('{')?;
    let (first, second) = path.strip_prefix(begin)?.split_once(middle)?;
    if first.is_empty() || first.contains('/') || second.contains('/') {
        return None;
    }
    Some((unescaped(first)?, unescaped(second)?))
}

/// The text without percent-escapes (RFC 3986, 2.1); `None` if one of them is none, or it is no UTF-8.
pub(super) fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let digits = part.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(part.get(2..).unwrap_or_default().as_bytes());
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stand_between_slashes_and_are_unescaped() {
        let of = |path| names_in(path, KEY);
        let pair = |one: &str, other: &str| Some((one.to_owned(), other.to_owned()));
        assert_eq!(of("/api/v1/limits/per-key/keys/a%2Fb%20c"), pair("per-key", "a/b c"));
        assert_eq!(of("/api/v1/limits/per-key/keys/2001:db8::1"), pair("per-key", "2001:db8::1"));
        assert_eq!(of("/api/v1/limits/global/keys/"), pair("global", ""));
        for path in [
            "/api/v1/limits",
            "/api/v1/limits//keys/a",
            "/api/v1/limits/a/keys/b/c",
            "/api/v1/limits/a/keys/%zz",
            "/api/v1/limits/a/keys/%ff",
            "/api/v1/limits/a/keys/%4",
        ] {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
