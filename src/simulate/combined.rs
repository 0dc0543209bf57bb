//! Lines in the combined log format of Apache and nginx, or in the common one, which lacks the last two fields.

use std::borrow::Cow;

use super::instant::Instants;
use super::logged::{Logged, client};
use super::skipped::SkipReason;

/// Reads a line: `CLIENT - USER [TIME] "METHOD TARGET PROTOCOL" STATUS BYTES "REFERER" "USER-AGENT"`, with a host before it or
/// not. The rest of the line is not read.
pub(super) fn read(line: &str, instants: &mut Instants, logged: &mut Logged) -> Result<(), SkipReason> {
    // A user's name may have a bracket in it, but no quote that is not escaped.
    let (before, rest) = line.split_once("] \"").ok_or(SkipReason::Broken)?;
    let (before, time) = before.rsplit_once(" [").ok_or(SkipReason::Broken)?;
    let (request, rest) = quoted(rest).ok_or(SkipReason::Broken)?;
    let mut words = before.split(' ');
    let first = words.next().unwrap_or_default();
    let (host, address) = match client(first) {
        Some(address) => (None, Some(address)),
        None => (Some(first), words.next().and_then(client)),
    };
    let at = instants.combined(time).ok_or(SkipReason::NoTime)?;
    logged.start(at, address.ok_or(SkipReason::NoClient)?);
    logged.is_to_the_second = true;
    if let Some(host) = host {
        logged.set_host(host);
    }
    let request = unescaped(request);
    // Without a request line it was no request: a connection that was closed, or bytes of another protocol.
    let (method, target) = request.split_once(' ').ok_or(SkipReason::NoPath)?;
    let target = target.rsplit_once(' ').map_or(target, |(target, _)| target);
    logged.set_method(method);
    logged.set_target(target);
    let mut fields = rest.trim_start().splitn(3, ' ');
    logged.status = fields.next().and_then(|status| status.parse().ok()).unwrap_or_default();
    let _bytes = fields.next();
    let mut rest = fields.next().unwrap_or_default();
    for name in ["referer", "user-agent"] {
        let Some((value, after)) = rest.strip_prefix('"').and_then(quoted) else { break };
        if value != "-" {
            logged.add_header(name, &unescaped(value));
        }
        rest = after.trim_start();
    }
    Ok(())
}

/// The text before the next quote that has no backslash before it, and the text after.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let mut is_escaped = false;
    let end = text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })?;
    Some((text.get(..end)?, text.get(end + 1..)?))
}

/// A text in which `\xHH`, and a backslash before anything else, stand as what they mean. One whose bytes are no UTF-8 stays
/// as it is.
fn unescaped(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    if memchr::memchr(b'\\', bytes).is_none() {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let hex = || u8::from_str_radix(text.get(at + 2..at + 4)?, 16).ok();
        let (byte, length) = match (byte, bytes.get(at + 1)) {
            (b'\\', Some(b'x')) => hex().map_or((b'\\', 1), |byte| (byte, 4)),
            (b'\\', Some(b'n')) => (b'\n', 2),
            (b'\\', Some(b'r')) => (b'\r', 2),
            (b'\\', Some(b't')) => (b'\t', 2),
            (b'\\', Some(next)) => (*next, 2),
            _ => (*byte, 1),
        };
        out.push(byte);
        at += length;
    }
    String::from_utf8(out).map_or(Cow::Borrowed(text), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::admission::RequestView;

    fn logged(line: &str) -> Result<Logged, SkipReason> {
        let mut logged = Logged::default();
        read(line, &mut Instants::default(), &mut logged).map(|()| logged)
    }

    #[test]
    fn lines_of_nginx_and_apache_are_read() {
        let line = r#"192.0.2.7 - bob [02/Jan/2026:03:04:05 +0000] "POST /x%20y?q=1 HTTP/1.1" 404 12 "https://a/\x22" "curl \"8\"" 0.012"#;
        let own = logged(line).unwrap();
        assert_eq!((own.at.as_nanos(), own.is_to_the_second, own.status), (1_767_323_045_000_000_000, true, 404));
        assert_eq!((own.method(), own.path(), own.query()), ("POST", "/x%20y", Some("q=1")));
        assert_eq!(own.header("referer"), Some(&b"https://a/\""[..]));
        assert_eq!((own.header("user-agent"), own.authority()), (Some(&b"curl \"8\""[..]), None));
        let common = logged(r#"2001:db8::1 - - [02/Jan/2026:03:04:05 +0100] "GET / HTTP/1.0" 200 -"#).unwrap();
        assert_eq!((common.at.as_nanos(), common.header("referer")), (1_767_319_445_000_000_000, None));
        let of_host =
            logged(r#"a.example:443 192.0.2.7 - - [02/Jan/2026:03:04:05 +0100] "GET / HTTP/2.0" 200 1 "-" "-""#);
        assert_eq!(of_host.as_ref().map(|own| own.authority()), Ok(Some("a.example:443")));
        let user = logged(r#"::1 - a [x b [02/Jan/2026:03:04:05 +0100] "GET / HTTP/1.1" 401 1"#);
        assert_eq!(user.as_ref().map(|own| own.status), Ok(401));
        let spaces = logged(r#"::1 - - [02/Jan/2026:03:04:05 +0100] "GET /a b HTTP/1.1" 400 1"#);
        assert_eq!(spaces.as_ref().map(RequestView::path), Ok("/a b"));
    }

    #[test]
    fn what_a_line_lacks_is_said() {
        for (line, fault) in [
            ("", SkipReason::Broken),
            ("::1 - - [02/Jan/2026:03:04:05 +0100] GET / HTTP/1.1 200 1", SkipReason::Broken),
            ("sluicegate 0.1.0 runs on gateway.toml", SkipReason::Broken),
            (r#"::1 - - [02/Jan/2026:03:04:05 +0100] "GET /"#, SkipReason::Broken),
            (r#"::1 - - [02/Foo/2026:03:04:05 +0100] "GET / HTTP/1.1" 200 1"#, SkipReason::NoTime),
            (r#"localhost - - [02/Jan/2026:03:04:05 +0100] "GET / HTTP/1.1" 200 1"#, SkipReason::NoClient),
            (r#"::1 - - [02/Jan/2026:03:04:05 +0100] "\x16\x03\x01" 400 1"#, SkipReason::NoPath),
            (r#"::1 - - [02/Jan/2026:03:04:05 +0100] "-" 400 0"#, SkipReason::NoPath),
        ] {
            assert_eq!(logged(line).map(|_| ()), Err(fault), "{line}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in any::<String>(), tail in "[\\\\\"x0-9a-f é]{0,20}") {
            let _ = logged(&text);
            let _ = logged(&format!("::1 - - [02/Jan/2026:03:04:05 +0100] \"{tail} {text} {tail}"));
        }

        #[test]
        fn what_was_escaped_comes_back(text in any::<String>()) {
            let escaped: String = text.bytes().map(|byte| format!("\\x{byte:02X}")).collect::<Vec<_>>().concat();
            prop_assert_eq!(unescaped(&escaped), text);
        }
    }
}
