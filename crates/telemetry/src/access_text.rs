//! How a line of the access log looks. Nothing that a client sends can end a line, leave its field or reach a terminal
//! as a control character, and secrets are redacted here, in the log's thread.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::IpAddr;

use serde::Serialize;

use super::access_log::{AccessEntry, AccessLogFormat, ShadowRefusal};
use sluicegate_redact::{ByNumber, Clip, ClipEnd, Redactor, is_terminal_control};
use sluicegate_time::Span;

/// Where a text of a JSON line was cut.
const CUT: &str = "…";
/// Where a text of a combined line was cut, which is ASCII throughout.
const CUT_ASCII: &str = "...";

/// Appends one line. (Writing to a vector cannot fail, so what `write!` returns is passed over.)
pub(super) fn write_line(format: AccessLogFormat, entry: &AccessEntry, redactor: &Redactor, out: &mut Vec<u8>) {
    match format {
        AccessLogFormat::Json => write_json(entry, &Texts::of(entry, redactor, CUT), redactor, out),
        AccessLogFormat::Combined => write_combined(entry, &Texts::of(entry, redactor, CUT_ASCII), out),
    }
    out.push(b'\n');
}

/// The texts that a client sent, as they may be written.
struct Texts<'a> {
    method: Cow<'a, str>,
    host: Cow<'a, str>,
    target: Cow<'a, str>,
    user_agent: Option<Cow<'a, str>>,
    referer: Option<Cow<'a, str>>,
    is_cut: bool,
}

impl<'a> Texts<'a> {
    fn of(entry: &'a AccessEntry, redactor: &Redactor, mark: &str) -> Self {
        let mut is_cut = false;
        let mut marked = |text: Cow<'a, str>, end| match end {
            ClipEnd::Whole => text,
            ClipEnd::Cut => {
                is_cut = true;
                Cow::Owned(text.into_owned() + mark)
            }
        };
        let AccessEntry { method, host, target, user_agent, referer, .. } = entry;
        let header = |name: &str, value: &'a Clip| redactor.header(name, &value.text, value.end);
        Self {
            method: marked(Cow::Borrowed(&method.text), method.end),
            host: marked(redactor.host(&host.text, host.end), host.end),
            target: marked(redactor.target(&target.text, target.end), target.end),
            user_agent: user_agent.as_ref().map(|value| marked(header("user-agent", value), value.end)),
            referer: referer.as_ref().map(|value| marked(header("referer", value), value.end)),
            is_cut,
        }
    }
}

#[derive(Serialize)]
struct JsonLine<'a> {
    ts: String,
    client: IpAddr,
    method: &'a str,
    host: &'a str,
    target: &'a str,
    protocol: &'a str,
    status: u16,
    bytes_sent: u64,
    took_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    connect_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    route: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    upstream: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tries: Vec<(&'a str, &'a str)>,
    outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    plan: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    shadow: Vec<ShadowLine<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    used: BTreeMap<&'a str, u64>,
    /// Marks alone: for a simulation it is enough that equal values have equal ones.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    keys: BTreeMap<&'a str, Cow<'a, str>>,
    request_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    referer: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    asked_by: Option<&'a str>,
    /// Whether one of them was cut; it ends in [`CUT`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    truncated: bool,
}

/// A limit in shadow mode that would have refused.
#[derive(Serialize)]
struct ShadowLine<'a> {
    limit: &'a str,
    key: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> ShadowLine<'a> {
    fn of(refusal: &'a ShadowRefusal, redactor: &Redactor) -> Self {
        let ShadowRefusal { limit, key, key_is_secret } = refusal;
        let shown = |(source, value): &'a (String, Clip)| {
            (source.as_str(), redactor.key_part(source, &value.text, value.end, *key_is_secret))
        };
        Self { limit, key: key.iter().map(shown).collect() }
    }
}

fn marked_part<'a>(redactor: &Redactor, source: &str, value: &'a Clip) -> Cow<'a, str> {
    redactor.key_part(source, &value.text, value.end, Some(true))
}

fn write_json(entry: &AccessEntry, texts: &Texts<'_>, redactor: &Redactor, out: &mut Vec<u8>) {
    let line = JsonLine {
        ts: format!("{:.3}", entry.at.timestamp()),
        client: entry.client,
        method: &texts.method,
        host: &texts.host,
        target: &texts.target,
        protocol: entry.protocol,
        status: entry.status,
        bytes_sent: entry.bytes_sent,
        took_ms: entry.took.in_millis(),
        wait_ms: entry.waited.map(Span::in_millis),
        connect_ms: entry.connect.map(Span::in_millis),
        head_ms: entry.head.map(Span::in_millis),
        route: entry.route.as_deref(),
        upstream: entry.upstream.as_deref(),
        server: entry.server.as_deref(),
        tries: entry.tries.iter().map(|(server, why)| (&**server, &**why)).collect(),
        outcome: entry.outcome,
        limit: entry.limit.as_deref(),
        plan: entry.plan.as_deref(),
        shadow: entry.shadow.iter().map(|refusal| ShadowLine::of(refusal, redactor)).collect(),
        used: entry.used.iter().map(|(limit, cost)| (&**limit, *cost)).collect(),
        keys: entry
            .keys
            .iter()
            .map(|(source, value)| (source.as_str(), marked_part(redactor, source, value)))
            .collect(),
        request_id: &entry.request_id,
        user_agent: texts.user_agent.as_deref(),
        referer: texts.referer.as_deref(),
        asked_by: entry.asked_by.as_deref(),
        truncated: texts.is_cut,
    };
    // Strings and numbers always serialize.
    let line = serde_json::to_string(&line).unwrap_or_default();
    // JSON lets pass what is a control character or a line break elsewhere. Such can only stand within a string.
    if line.is_ascii() && !line.as_bytes().contains(&0x7f) {
        out.extend_from_slice(line.as_bytes());
        return;
    }
    for character in line.chars() {
        if is_terminal_control(character) {
            let _ = write!(out, "{}", ByNumber(character));
        } else {
            out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
}

fn write_combined(entry: &AccessEntry, texts: &Texts<'_>, out: &mut Vec<u8>) {
    let time = entry.at.timestamp().strftime("%d/%b/%Y:%H:%M:%S +0000");
    let _ = write!(out, "{} - - [{time}] \"", entry.client);
    escape(&texts.method, out);
    out.push(b' ');
    escape(&texts.target, out);
    let _ = write!(out, " {}\" {} {} \"", entry.protocol, entry.status, entry.bytes_sent);
    escape(texts.referer.as_deref().unwrap_or("-"), out);
    out.extend_from_slice(b"\" \"");
    escape(texts.user_agent.as_deref().unwrap_or("-"), out);
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

#[cfg(test)]
pub(super) mod tests {
    use std::net::Ipv4Addr;

    use proptest::prelude::*;

    use super::*;
    use sluicegate_redact::RedactRules;
    use sluicegate_time::Wall;

    pub(in super::super) fn entry() -> AccessEntry {
        AccessEntry {
            at: Wall::from_nanos(1_700_000_000_123_999_999),
            client: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7)),
            method: "GET".into(),
            host: "example.com".into(),
            target: "/a?b=c".into(),
            protocol: "HTTP/1.1",
            status: 429,
            bytes_sent: 2326,
            took: Span::from_nanos(12_345_678),
            waited: None,
            connect: None,
            head: None,
            tries: Vec::new(),
            route: Some("api".into()),
            upstream: None,
            server: None,
            outcome: "rate-limited",
            limit: Some("per-client".into()),
            plan: None,
            shadow: Vec::new(),
            used: Vec::new(),
            keys: Vec::new(),
            request_id: "r-1".into(),
            user_agent: Some("curl/8".into()),
            referer: None,
            asked_by: None,
        }
    }

    fn line(format: AccessLogFormat, entry: &AccessEntry) -> String {
        let mut out = Vec::new();
        write_line(format, entry, &Redactor::new(&RedactRules::default()), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_json_line_looks_exactly_so() {
        let expected = r#"{"ts":"2023-11-14T22:13:20.123Z","client":"192.0.2.7","method":"GET","host":"example.com","target":"/a?b=c","protocol":"HTTP/1.1","status":429,"bytes_sent":2326,"took_ms":12.345,"route":"api","outcome":"rate-limited","limit":"per-client","request_id":"r-1","user_agent":"curl/8"}"#;
        assert_eq!(line(AccessLogFormat::Json, &entry()), format!("{expected}\n"));
        let waited = AccessEntry {
            waited: Some(Span::from_nanos(2_500_999)),
            connect: Some(Span::from_nanos(1_250_000)),
            head: Some(Span::from_millis(7)),
            ..entry()
        };
        let expected = expected.replace("12.345,", "12.345,\"wait_ms\":2.5,\"connect_ms\":1.25,\"head_ms\":7.0,");
        assert_eq!(line(AccessLogFormat::Json, &waited), format!("{expected}\n"));
    }

    #[test]
    fn a_combined_line_looks_exactly_so() {
        let expected = "192.0.2.7 - - [14/Nov/2023:22:13:20 +0000] \"GET /a?b=c HTTP/1.1\" 429 2326 \"-\" \"curl/8\"\n";
        assert_eq!(line(AccessLogFormat::Combined, &entry()), expected);
    }

    #[test]
    fn the_end_of_time_has_a_date() {
        let entry = AccessEntry { at: Wall::MAX, ..entry() };
        assert!(line(AccessLogFormat::Json, &entry).contains("2554-07-21T23:34:33.709Z"));
    }

    #[test]
    fn combined_escapes_as_nginx_does() {
        let entry = AccessEntry { user_agent: Some(Clip::from("a\"b\\c\r\nd\u{7f}é\u{1b}[0m")), ..entry() };
        assert!(
            line(AccessLogFormat::Combined, &entry).ends_with(" \"a\\x22b\\x5Cc\\x0D\\x0Ad\\x7F\\xC3\\xA9\\x1B[0m\"\n")
        );
    }

    #[test]
    fn a_line_shows_no_secret_and_marks_what_was_cut() {
        let entry = AccessEntry {
            host: "u:pl4nted@h".into(),
            target: Clip {
                text: "/token=pl4nted/a;jsessionid=pl4nted?sub_key=pl4nted&next=//u:pl4n".into(),
                end: ClipEnd::Cut,
            },
            user_agent: Some("Bearer pl4nted".into()),
            referer: Some(Clip { text: "https://u:pl4nted@h/;sid=pl4nted".into(), end: ClipEnd::Cut }),
            ..entry()
        };
        let json = line(AccessLogFormat::Json, &entry);
        assert!(
            !json.contains("pl4nted") && json.contains("…\"") && json.ends_with(",\"truncated\":true}\n"),
            "{json}"
        );
        let combined = line(AccessLogFormat::Combined, &entry);
        assert!(!combined.contains("pl4nted") && combined.contains("... HTTP/1.1\""), "{combined}");
    }

    /// Text of the kind that forges lines, mixed with any other.
    fn hostile() -> impl Strategy<Value = String> {
        prop_oneof![any::<String>(), "[\"\\\\\r\n\t \u{1b}\u{7f}\u{85}\u{9b}\u{2028}\u{2029}{},:a]{0,20}"]
    }

    fn ends_a_line_or_controls(character: char) -> bool {
        character.is_control()
            || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    }

    fn hostile_entry() -> impl Strategy<Value = AccessEntry> {
        let texts = (hostile(), hostile(), hostile(), hostile(), hostile(), hostile(), hostile());
        texts.prop_map(|(method, host, target, route, request_id, user_agent, referer)| AccessEntry {
            method: Clip::from(&*method),
            host: Clip::from(&*host.replace('@', "")),
            target: Clip::from(&*target.replace(['=', ':'], "")),
            route: Some(route.into()),
            request_id,
            user_agent: Some(Clip::from(&*user_agent.replace(['=', ':'], ""))),
            referer: Some(Clip::from(&*referer.replace(['=', ':'], ""))),
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
                ("method", entry.method.text.as_str()),
                ("host", &entry.host.text),
                ("target", &entry.target.text),
                ("route", entry.route.as_deref().unwrap()),
                ("request_id", &entry.request_id),
                ("user_agent", &entry.user_agent.as_ref().unwrap().text),
                ("referer", &entry.referer.as_ref().unwrap().text),
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
