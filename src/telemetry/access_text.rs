//! How a line of the access log looks. Nothing that a client sends can end a line, leave its field or reach a terminal
//! as a control character.

use std::io::Write;
use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;

use super::access_log::{AccessEntry, AccessLogFormat};
use crate::time::Tick;

/// Appends one line. (Writing to a vector cannot fail, so what `write!` returns is passed over.)
pub(super) fn write_line(format: AccessLogFormat, entry: &AccessEntry, out: &mut Vec<u8>) {
    match format {
        AccessLogFormat::Json => write_json(entry, out),
        AccessLogFormat::Combined => write_combined(entry, out),
    }
    out.push(b'\n');
}

#[derive(Serialize)]
struct JsonLine<'a> {
    time: String,
    client: IpAddr,
    method: &'a str,
    host: &'a str,
    target: &'a str,
    protocol: &'a str,
    status: u16,
    bytes_sent: u64,
    took_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a str>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<&'a str>,
}

fn write_json(entry: &AccessEntry, out: &mut Vec<u8>) {
    let line = JsonLine {
        time: format!("{:.3}", timestamp(entry.at)),
        client: entry.client,
        method: &entry.method,
        host: &entry.host,
        target: &entry.target,
        protocol: entry.protocol,
        status: entry.status,
        bytes_sent: entry.bytes_sent,
        // To the microsecond: what is below is noise.
        took_ms: (entry.took.as_nanos() / 1_000) as f64 / 1_000.0,
        route: entry.route.as_deref(),
        upstream: entry.upstream.as_deref(),
        server: entry.server.as_deref(),
        outcome: entry.outcome,
        limit: entry.limit.as_deref(),
        plan: entry.plan.as_deref(),
        request_id: &entry.request_id,
        user_agent: entry.user_agent.as_deref(),
        referer: entry.referer.as_deref(),
    };
    // Strings and numbers always serialize.
    let line = serde_json::to_string(&line).unwrap_or_default();
    // JSON lets pass what is a control character or a line break elsewhere. Such can only stand within a string.
    for character in line.chars() {
        if matches!(character, '\u{7f}'..='\u{9f}' | '\u{2028}' | '\u{2029}') {
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        } else {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

fn write_combined(entry: &AccessEntry, out: &mut Vec<u8>) {
    let time = timestamp(entry.at).strftime("%d/%b/%Y:%H:%M:%S +0000");
    let _ = write!(out, "{} - - [{time}] \"", entry.client);
    escape(&entry.method, out);
    out.push(b' ');
    escape(&entry.target, out);
    let _ = write!(out, " {}\" {} {} \"", entry.protocol, entry.status, entry.bytes_sent);
    escape(entry.referer.as_deref().unwrap_or("-"), out);
    out.extend_from_slice(b"\" \"");
    escape(entry.user_agent.as_deref().unwrap_or("-"), out);
    out.push(b'"');
}

/// nginx's default: quote, backslash and whatever is not printable ASCII become `\xHH`.
fn escape(text: &str, out: &mut Vec<u8>) {
    for byte in text.bytes() {
        if matches!(byte, b'"' | b'\\') || !(b' '..=b'~').contains(&byte) {
            let _ = write!(out, "\\x{byte:02X}");
        } else {
            out.push(byte);
        }
    }
}

fn timestamp(at: Tick) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(at.as_nanos())).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Span;

    pub(in super::super) fn entry() -> AccessEntry {
        AccessEntry {
            at: Tick::from_nanos(1_700_000_000_123_999_999),
            client: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
            method: "GET".into(),
            host: "example.com".into(),
            target: "/a?b=c".into(),
            protocol: "HTTP/1.1",
            status: 429,
            bytes_sent: 2326,
            took: Span::from_nanos(12_345_678),
            route: Some("api".into()),
            upstream: None,
            server: None,
            outcome: "rate-limited",
            limit: Some("per-client".into()),
            plan: None,
            request_id: "r-1".into(),
            user_agent: Some("curl/8".into()),
            referer: None,
        }
    }

    fn line(format: AccessLogFormat, entry: &AccessEntry) -> String {
        let mut out = Vec::new();
        write_line(format, entry, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_json_line_looks_exactly_so() {
        let expected = r#"{"time":"2023-11-14T22:13:20.123Z","client":"192.0.2.7","method":"GET","host":"example.com","target":"/a?b=c","protocol":"HTTP/1.1","status":429,"bytes_sent":2326,"took_ms":12.345,"route":"api","outcome":"rate-limited","limit":"per-client","request_id":"r-1","user_agent":"curl/8"}"#;
        assert_eq!(line(AccessLogFormat::Json, &entry()), format!("{expected}\n"));
    }

    #[test]
    fn a_combined_line_looks_exactly_so() {
        let expected = "192.0.2.7 - - [14/Nov/2023:22:13:20 +0000] \"GET /a?b=c HTTP/1.1\" 429 2326 \"-\" \"curl/8\"\n";
        assert_eq!(line(AccessLogFormat::Combined, &entry()), expected);
    }

    #[test]
    fn the_end_of_time_has_a_date() {
        let entry = AccessEntry { at: Tick::MAX, ..entry() };
        assert!(line(AccessLogFormat::Json, &entry).contains("2554-07-21T23:34:33.709Z"));
    }

    #[test]
    fn combined_escapes_as_nginx_does() {
        let entry = AccessEntry { user_agent: Some("a\"b\\c\r\nd\u{7f}é\u{1b}[0m".into()), ..entry() };
        assert!(
            line(AccessLogFormat::Combined, &entry).ends_with(" \"a\\x22b\\x5Cc\\x0D\\x0Ad\\x7F\\xC3\\xA9\\x1B[0m\"\n")
        );
    }

    /// Text of the kind that forges lines, mixed with any other.
    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[\"\\\\\r\n\t \u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}{},:a]{0,20}"]
    }

    fn ends_a_line_or_controls(character: char) -> bool {
        character.is_control() || matches!(character, '\u{2028}' | '\u{2029}')
    }

    fn hostile_entry() -> impl Strategy<Value = AccessEntry> {
        let texts = (hostile(), hostile(), hostile(), hostile(), hostile(), hostile(), hostile());
        texts.prop_map(|(method, host, target, route, request_id, user_agent, referer)| AccessEntry {
            method,
            host,
            target,
            route: Some(route.into()),
            request_id,
            user_agent: Some(user_agent),
            referer: Some(referer),
            ..entry()
        })
    }

    proptest! {
        #[test]
        fn json_gives_every_field_back_and_no_control_character(entry in hostile_entry()) {
            let line = line(AccessLogFormat::Json, &entry);
            let body = line.strip_suffix('\n').unwrap();
            prop_assert!(!body.chars().any(ends_a_line_or_controls));
            let read: serde_json::Value = serde_json::from_str(body).unwrap();
            for (field, text) in [
                ("method", entry.method.as_str()),
                ("host", &entry.host),
                ("target", &entry.target),
                ("route", entry.route.as_deref().unwrap()),
                ("request_id", &entry.request_id),
                ("user_agent", entry.user_agent.as_deref().unwrap()),
                ("referer", entry.referer.as_deref().unwrap()),
            ] {
                prop_assert_eq!(read[field].as_str(), Some(text), "{}", field);
            }
        }

        #[test]
        fn combined_has_three_quoted_fields_whatever_the_client_sends(entry in hostile_entry()) {
            let line = line(AccessLogFormat::Combined, &entry);
            let body = line.strip_suffix('\n').unwrap();
            prop_assert!(body.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert_eq!(body.matches('"').count(), 6);
            prop_assert!(body.starts_with("192.0.2.7 - - [14/Nov/2023:22:13:20 +0000] \""));
        }
    }
}
