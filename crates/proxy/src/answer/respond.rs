//! The forms of the gateway's own answers. `ending` says which status an error becomes.

use std::io::Write as _;

use crate::headers::{Sink, passed};
use sluicegate_http1::{HeadWriter, Request, has_line, line_name};
use sluicegate_http2::is_type_of_grpc;

/// An answer made by the gateway, whatever the protocol that carries it. Meant to be kept and filled anew: once it is
/// warm, that allocates nothing.
#[derive(Debug, Default)]
pub struct Reply {
    /// The status on the wire: 200 for gRPC, whose own status is in the fields.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
    /// Whether its body is the one that its route answers with, in place of `body`.
    pub has_route_body: bool,
    /// Whether its body is chunked already, with its trailers.
    pub is_chunked: bool,
    /// Whether it says what browsers are told about other origins.
    pub has_cors: bool,
    /// Whether it says that something went wrong: caches never keep it, whatever a route sets for its answers.
    pub is_problem: bool,
    /// Its field lines as a head of HTTP/1 has them. Names are in lower case.
    pub lines: Vec<u8>,
}

impl Reply {
    /// Empties it.
    pub fn clear(&mut self) {
        self.status = 0;
        self.body.clear();
        self.has_route_body = false;
        self.is_chunked = false;
        self.has_cors = false;
        self.is_problem = false;
        self.lines.clear();
    }

    /// Its fields in order: names, values.
    #[cfg(test)]
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let name = line_name(line);
            (name, &line[name.len() + 2..line.len() - 2])
        })
    }

    /// Leaves out the fields whose names `cut` wants out.
    pub fn cut(&mut self, cut: impl Fn(&[u8]) -> bool) {
        let (mut kept, mut from) = (0, 0);
        while let Some(length) = self.lines.get(from..).and_then(|rest| memchr::memchr(b'\n', rest)) {
            let line = from..from + length + 1;
            from = line.end;
            if !cut(line_name(&self.lines[line.clone()])) {
                self.lines.copy_within(line.clone(), kept);
                kept += line.len();
            }
        }
        self.lines.truncate(kept);
    }

    /// Nobody keeps this answer (RFC 9111, 5.2.2.5): by default some statuses are kept, such as 301, 308, 404 and 414.
    pub fn put_no_store(&mut self) {
        self.put(b"cache-control", b"no-store");
    }

    pub fn put_number(&mut self, name: &[u8], number: u64) {
        self.writer().number(name, number);
    }

    fn writer(&mut self) -> HeadWriter<'_> {
        HeadWriter::of_lines(&mut self.lines)
    }
}

impl Sink for Reply {
    #[inline(always)]
    #[expect(clippy::inline_always, reason = "names are mostly constants, and then copying them is a store or two")]
    fn put(&mut self, name: &[u8], value: &[u8]) {
        self.writer().field(name, value);
    }

    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.writer().joined(name, parts);
    }

    fn has(&self, lower_name: &[u8]) -> bool {
        has_line(&self.lines, lower_name)
    }
}

/// A problem, as the client is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem<'a> {
    /// The status: 4xx or 5xx.
    pub status: u16,
    /// One sentence for the person who reads it.
    pub detail: &'a str,
    /// The limits that were violated, if that is what it is.
    pub violated: &'a [&'a str],
    /// Seconds until a retry can succeed.
    pub retry_after_secs: Option<u64>,
}

/// The facts of a request that choose the form of its answer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants<'a> {
    /// Its `Accept`, if any.
    pub accept: Option<&'a [u8]>,
    /// Whether it is a call of gRPC.
    pub is_grpc: bool,
}

impl<'a> Wants<'a> {
    /// The form that this request asks for. gRPC is spoken by POST over HTTP/2 and by nothing else ("gRPC over HTTP/2",
    /// "Requests"): to anything else its 200 would be a success, which a cache may keep.
    pub fn of(request: &Request<'a>, is_h2: bool) -> Self {
        let is_grpc =
            is_h2 && request.method() == "POST" && passed::field(request, b"content-type").is_some_and(is_type_of_grpc);
        Self { accept: passed::field(request, b"accept"), is_grpc }
    }

    /// Whether an answer of this type is of use to the client: it names the type, or any, or does not say.
    pub fn takes(&self, content_type: &str) -> bool {
        let kind = content_type.split(';').next().unwrap_or_default().trim();
        let family = kind.split('/').next().unwrap_or_default();
        let mut best = None;
        for range in self.accept.unwrap_or(b"*/*").split(|byte| *byte == b',').take(MAX_RANGES) {
            let (range, quality) = quality_of(range);
            let is_family = range.strip_suffix(b"/*").is_some_and(|own| own.eq_ignore_ascii_case(family.as_bytes()));
            // The most specific range decides, whatever its place.
            let specific = match range {
                b"*/*" => 0,
                _ if is_family => 1,
                range if range.eq_ignore_ascii_case(kind.as_bytes()) => 2,
                _ => continue,
            };
            best = best.max(Some((specific, quality)));
        }
        best.is_some_and(|(_, quality)| quality > 0)
    }
}

/// Ranges of an `Accept` that are looked at.
const MAX_RANGES: usize = 32;

/// Makes `reply` the answer for a problem, in the form that the client wants.
pub fn problem(problem: &Problem<'_>, wants: Wants<'_>, reply: &mut Reply) {
    reply.clear();
    reply.is_problem = true;
    if wants.is_grpc {
        grpc(problem, reply);
    } else {
        in_words(problem, Form::accepted(wants.accept), reply);
    }
    if let Some(secs) = problem.retry_after_secs {
        reply.put_number(b"retry-after", secs.max(1));
    }
}

/// Begins the answer for a problem in words of the operator's own, whose body is still to be written.
pub fn own_words(status: u16, retry_after_secs: Option<u64>, content_type: &str, reply: &mut Reply) {
    reply.clear();
    reply.is_problem = true;
    reply.status = status;
    put_type(content_type, reply);
    if let Some(secs) = retry_after_secs {
        reply.put_number(b"retry-after", secs.max(1));
    }
}

/// Makes `reply` the answer that a route has for everybody.
pub fn of_route(status: u16, content_type: &str, reply: &mut Reply) {
    reply.clear();
    reply.status = status;
    reply.has_route_body = true;
    if !matches!(status, 204 | 304) {
        reply.put(b"content-type", content_type.as_bytes());
    }
    reply.put_no_store();
}

/// Makes `reply` a short answer.
pub fn text(status: u16, body: &str, reply: &mut Reply) {
    reply.clear();
    reply.status = status;
    reply.put(b"content-type", b"text/plain; charset=utf-8");
    reply.put_no_store();
    reply.body.extend_from_slice(body.as_bytes());
}

/// Makes `reply` an answer in JSON, whose body is still to be written.
pub fn json(reply: &mut Reply) {
    reply.clear();
    reply.status = 200;
    put_type("application/json", reply);
}

/// Makes `reply` the answer to a call of gRPC that has gone well: this message, with what goes before it, and the status behind.
pub fn grpc_message(message: &[u8], reply: &mut Reply) {
    reply.clear();
    reply.status = 200;
    reply.put(b"content-type", b"application/grpc");
    reply.put_no_store();
    reply.is_chunked = true;
    let _ = write!(reply.body, "{:x}\r\n", message.len());
    reply.body.extend_from_slice(message);
    reply.body.extend_from_slice(b"\r\n0\r\ngrpc-status: 0\r\n\r\n");
}

/// The reason phrase, as titles of problems use it.
pub fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        client if client < 500 => "Request Refused",
        _ => "Gateway Error",
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Problem,
    Html,
    Text,
}

/// The ranges that we can serve, how specific they are, and what they get.
const RANGES: [(&[&[u8]], u8, Form); 6] = [
    (&[b"*/*", b"application/*"], 1, Form::Problem),
    (&[b"application/json", b"text/json"], 2, Form::Problem),
    (&[b"text/html", b"application/xhtml+xml"], 2, Form::Html),
    (&[b"text/plain"], 2, Form::Text),
    (&[b"text/*"], 1, Form::Text),
    (&[b"application/problem+json"], 3, Form::Problem),
];

impl Form {
    /// The best of what is accepted: quality first (RFC 9110, 12.5.1), then the more specific range, then our order.
    fn accepted(accept: Option<&[u8]>) -> Self {
        let Some(accept) = accept.filter(|accept| *accept != b"*/*") else { return Self::Problem };
        // Whoever takes none of our forms can read plain text best.
        let mut best = (0, 0, Self::Text);
        for range in accept.split(|byte| *byte == b',').take(MAX_RANGES) {
            let (kind, quality) = quality_of(range);
            let is = |known: &&[u8]| kind.eq_ignore_ascii_case(known);
            let Some((_, specific, form)) = RANGES.iter().find(|(kinds, ..)| kinds.iter().any(is)) else { continue };
            if (quality, *specific) > (best.0, best.1) {
                best = (quality, *specific, *form);
            }
        }
        best.2
    }
}

/// A media range and how much it is wanted, in thousandths.
fn quality_of(range: &[u8]) -> (&[u8], u32) {
    let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    let kind = parts.next().unwrap_or_default();
    let quality = parts.find_map(|part| part.strip_prefix(b"q=").or(part.strip_prefix(b"Q=")));
    (kind, quality.map_or(1000, thousandths))
}

/// `0.8` as 800 (RFC 9110, 12.4.2); what is no quality counts as 0.
fn thousandths(quality: &[u8]) -> u32 {
    let (whole, decimals) = match quality {
        [whole @ (b'0' | b'1')] | [whole @ (b'0' | b'1'), b'.'] => (whole, b"".as_slice()),
        [whole @ (b'0' | b'1'), b'.', decimals @ ..] if decimals.len() <= 3 => (whole, decimals),
        _ => return 0,
    };
    if !decimals.iter().all(u8::is_ascii_digit) {
        return 0;
    }
    let digits = std::iter::once(whole).chain(decimals).chain(std::iter::repeat(&b'0')).take(4);
    let value = digits.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    if value <= 1000 { value } else { 0 }
}

fn in_words(problem: &Problem<'_>, form: Form, reply: &mut Reply) {
    reply.status = problem.status;
    let title = title(problem.status);
    let kind = match form {
        Form::Problem => "application/problem+json",
        Form::Html => "text/html; charset=utf-8",
        Form::Text => "text/plain; charset=utf-8",
    };
    put_type(kind, reply);
    match form {
        Form::Problem => write_json(problem, &mut reply.body),
        Form::Html => write_html(problem, title, &mut reply.body),
        Form::Text => write_text(problem, title, &mut reply.body),
    }
}

fn put_type(kind: &str, reply: &mut Reply) {
    reply.put(b"content-type", kind.as_bytes());
    reply.put_no_store();
    reply.put(b"x-content-type-options", b"nosniff");
}

/// RFC 9457. The type of a refusal by quota is registered by draft-ietf-httpapi-ratelimit-headers. By hand, since a
/// flood is answered with these: escaping every string through a serializer took most of the time.
pub fn write_json(problem: &Problem<'_>, body: &mut Vec<u8>) {
    let title = title(problem.status);
    let kind = if problem.violated.is_empty() {
        "about:blank"
    } else {
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    };
    let mut status = itoa::Buffer::new();
    let parts = [
        "{\"type\":\"",
        kind,
        "\",\"title\":\"",
        title,
        "\",\"status\":",
        status.format(problem.status),
        ",\"detail\":\"",
    ];
    for part in parts {
        body.extend_from_slice(part.as_bytes());
    }
    escape_json(problem.detail, body);
    let mut before = b"\",\"violated-policies\":[\"".as_slice();
    for violated in problem.violated {
        body.extend_from_slice(before);
        escape_json(violated, body);
        before = b"\",\"";
    }
    body.extend_from_slice(if problem.violated.is_empty() { b"\"}\n" } else { b"\"]}\n" });
}

const ESCAPED_IN_JSON: [bool; 256] = {
    let mut escaped = [false; 256];
    let mut control = 0;
    while control < 0x20 {
        escaped[control] = true;
        control += 1;
    }
    escaped[b'"' as usize] = true;
    escaped[b'\\' as usize] = true;
    escaped
};

/// The inside of a JSON string (RFC 8259, 7).
fn escape_json(text: &str, body: &mut Vec<u8>) {
    let mut rest = text.as_bytes();
    while let Some(at) = rest.iter().position(|byte| ESCAPED_IN_JSON[usize::from(*byte)]) {
        let (plain, special) = rest.split_at(at);
        body.extend_from_slice(plain);
        match special {
            [mark @ (b'"' | b'\\'), after @ ..] => {
                body.extend_from_slice(&[b'\\', *mark]);
                rest = after;
            }
            [control, after @ ..] => {
                // Writing into a Vec cannot fail.
                let _ = write!(body, "\\u{control:04x}");
                rest = after;
            }
            [] => return,
        }
    }
    body.extend_from_slice(rest);
}

fn write_text(problem: &Problem<'_>, title: &str, body: &mut Vec<u8>) {
    let _ = writeln!(body, "{} {title}: {}", problem.status, problem.detail);
}

/// A page of its own: no script, nothing from elsewhere, light or dark as the reader has it.
fn write_html(problem: &Problem<'_>, title: &str, body: &mut Vec<u8>) {
    let _ = write!(
        body,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>{status} {title}</title><style>\
         :root{{color-scheme:light dark}}\
         body{{font:1.05rem/1.6 system-ui,sans-serif;margin:0;min-height:100vh;display:grid;place-items:center}}\
         main{{max-width:32rem;padding:2rem}}h1{{font-size:1.6rem;line-height:1.3;margin:0 0 1rem}}p{{margin:0 0 1rem}}\
         strong{{white-space:nowrap}}small{{opacity:.7}}\
         </style></head><body><main><h1>{title}</h1>",
        status = problem.status
    );
    // What a visitor has to know comes first; what whoever helps has to know is in small print.
    if let Some(secs) = problem.retry_after_secs {
        body.extend_from_slice(b"<p>Please come back in <strong>");
        write_time(secs.max(1), body);
        body.extend_from_slice(b"</strong> and load this page again.</p>");
    }
    let _ = write!(body, "<p><small>{}: ", problem.status);
    escape_html(problem.detail, body);
    body.extend_from_slice(b"</small></p></main></body></html>\n");
}

/// Seconds as people say it, rounded up.
fn write_time(secs: u64, body: &mut Vec<u8>) {
    let (count, unit) = match secs {
        0..=119 => (secs, "second"),
        120..=7_199 => (secs.div_ceil(60), "minute"),
        7_200..=172_799 => (secs.div_ceil(3_600), "hour"),
        _ => (secs.div_ceil(86_400), "day"),
    };
    let _ = write!(body, "{count} {unit}{}", if count == 1 { "" } else { "s" });
}

fn escape_html(text: &str, body: &mut Vec<u8>) {
    for byte in text.bytes() {
        match byte {
            b'&' => body.extend_from_slice(b"&amp;"),
            b'<' => body.extend_from_slice(b"&lt;"),
            b'>' => body.extend_from_slice(b"&gt;"),
            b'"' => body.extend_from_slice(b"&quot;"),
            other => body.push(other),
        }
    }
}

/// A Trailers-Only response: the status of the call is in the head (gRPC over HTTP/2, "Responses").
fn grpc(problem: &Problem<'_>, reply: &mut Reply) {
    let code = match problem.status {
        429 => 8,
        // Whatever status the operator chose for it.
        _ if !problem.violated.is_empty() => 8,
        401 => 16,
        403 => 7,
        404 | 501 => 12,
        504 => 4,
        413 | 414 | 431 => 8,
        400 => 3,
        _ => 14,
    };
    reply.status = 200;
    reply.put(b"content-type", b"application/grpc");
    reply.put_no_store();
    reply.put_number(b"grpc-status", code);
    reply.writer().written(b"grpc-message", |text| percent_encode(problem.detail, text));
    if let Some(secs) = problem.retry_after_secs {
        reply.put_number(b"grpc-retry-pushback-ms", secs.saturating_mul(1000));
    }
}

/// `grpc-message` is percent-encoded outside of printable ASCII.
fn percent_encode(message: &str, text: &mut Vec<u8>) {
    for byte in message.bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            text.push(byte);
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    const REFUSED: Problem<'static> =
        Problem { status: 429, detail: "Over <the> limit.", violated: &["per-client"], retry_after_secs: Some(3) };

    fn accept(text: &str) -> Wants<'_> {
        Wants { accept: Some(text.as_bytes()), ..Wants::default() }
    }

    fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        reply.fields().find(|(own, _)| *own == name.as_bytes()).map(|(_, value)| std::str::from_utf8(value).unwrap())
    }

    fn reply_to(problem: &Problem<'_>, wants: Wants<'_>) -> Reply {
        let mut reply = Reply::default();
        super::problem(problem, wants, &mut reply);
        reply
    }

    #[test]
    fn the_form_follows_accept() {
        let browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
        for (text, kind) in [
            ("*/*", "application/problem+json"),
            (browser, "text/html; charset=utf-8"),
            ("text/plain", "text/plain; charset=utf-8"),
            ("application/json, text/html;q=0.1", "application/problem+json"),
            ("text/html;q=0.5, text/plain", "text/plain; charset=utf-8"),
            ("image/png", "text/plain; charset=utf-8"),
            ("text/html;q=x, */*;q=0.1", "application/problem+json"),
            ("TEXT/HTML ; Q=1.000, application/problem+json;q=0.999", "text/html; charset=utf-8"),
            ("text/plain;q=0.2, application/problem+json;q=0.2", "application/problem+json"),
            ("text/*, text/html;q=0", "text/plain; charset=utf-8"),
        ] {
            assert_eq!(field(&reply_to(&REFUSED, accept(text)), "content-type"), Some(kind), "{text}");
        }
        assert_eq!(field(&reply_to(&REFUSED, Wants::default()), "content-type"), Some("application/problem+json"));
    }

    #[test]
    fn a_refusal_names_the_violated_policies() {
        let reply = reply_to(&REFUSED, Wants::default());
        assert_eq!(
            std::str::from_utf8(&reply.body).unwrap(),
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Too Many Requests\",\"status\":429,\"detail\":\"Over <the> limit.\",\
             \"violated-policies\":[\"per-client\"]}\n"
        );
        assert_eq!(field(&reply, "retry-after"), Some("3"));
    }

    #[test]
    fn a_quality_has_at_most_three_decimals() {
        let table = [("0", 0), ("1", 1000), ("0.", 0), ("1.", 1000), ("0.8", 800), ("0.29", 290), ("0.001", 1)];
        for (text, value) in table.into_iter().chain([("1.000", 1000), ("0.999", 999)]) {
            assert_eq!(thousandths(text.as_bytes()), value, "{text}");
        }
        for text in ["", "x", "2", "-1", "+1", ".5", "0.1234", "1.001", "0.1x", "0,5", "00.5", "NaN", "1e-1", "0.5 "] {
            assert_eq!(thousandths(text.as_bytes()), 0, "{text}");
        }
    }

    #[test]
    fn every_status_that_is_answered_with_has_a_title() {
        let titled = [400, 401, 403, 404, 408, 413, 414, 417, 429, 431, 501, 502, 503, 504, 505];
        let titles: std::collections::HashSet<_> = titled.into_iter().map(title).collect();
        assert_eq!(titles.len(), titled.len());
        assert!(!titles.contains(title(418)) && !titles.contains(title(599)));
    }

    #[test]
    fn a_fixed_answer_is_its_text() {
        let mut reply = reply_to(&REFUSED, Wants::default());
        text(503, "Back at noon.\n", &mut reply);
        assert_eq!((reply.status, reply.body.as_slice()), (503, b"Back at noon.\n".as_slice()));
        let kind = (&b"content-type"[..], &b"text/plain; charset=utf-8"[..]);
        assert_eq!(reply.fields().collect::<Vec<_>>(), [kind, (b"cache-control", b"no-store")]);
    }

    #[test]
    fn an_emptied_reply_keeps_its_room() {
        let mut reply = reply_to(&REFUSED, Wants::default());
        let room = |reply: &Reply| (reply.body.capacity(), reply.lines.capacity());
        let before = room(&reply);
        reply.clear();
        assert_eq!((reply.status, reply.body.len(), reply.fields().count()), (0, 0, 0));
        assert_eq!(room(&reply), before);
    }

    #[test]
    fn a_reply_finds_what_was_put_into_it() {
        let mut reply = Reply::default();
        reply.put(b"a", b"1");
        reply.put(b"c", b"");
        reply.put_joined(b"ab", &[b"2", b"", b"34"]);
        reply.put_number(b"a", u64::MAX);
        let fields: Vec<_> = reply.fields().collect();
        assert_eq!(fields, [(&b"a"[..], &b"1"[..]), (b"c", b""), (b"ab", b"234"), (b"a", b"18446744073709551615")]);
        assert!(reply.has(b"a") && reply.has(b"ab") && !reply.has(b"b") && !reply.has(b"1"));
    }

    #[test]
    fn every_ascii_character_survives_json() {
        let all: String = (0..0x80_u8).map(char::from).collect();
        let reply = reply_to(&Problem { detail: &all, ..REFUSED }, Wants::default());
        assert!(reply.body.iter().filter(|byte| byte.is_ascii_control()).eq(b"\x7f\n"), "DEL may stand for itself");
        let read: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(read["detail"], all);
    }

    #[test]
    fn a_retry_is_never_at_once() {
        let reply = reply_to(&Problem { retry_after_secs: Some(0), ..REFUSED }, Wants::default());
        assert_eq!(field(&reply, "retry-after"), Some("1"));
    }

    #[test]
    fn html_is_escaped() {
        let reply = reply_to(&REFUSED, accept("text/html"));
        let page = std::str::from_utf8(&reply.body).unwrap();
        assert!(page.contains("Over &lt;the&gt; limit."), "{page}");
        assert!(page.contains("<title>429 Too Many Requests</title>"), "{page}");
    }

    proptest! {
        #[test]
        fn json_says_what_was_meant(detail in ".*", violated in vec(".*", 0..3), status in 400_u16..600) {
            let violated: Vec<_> = violated.iter().map(String::as_str).collect();
            let problem = Problem { status, detail: &detail, violated: &violated, retry_after_secs: None };
            let reply = reply_to(&problem, Wants::default());
            let read: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
            let mut meant = serde_json::json!({
                "type": "about:blank", "title": title(status), "status": status, "detail": detail,
            });
            if !violated.is_empty() {
                meant["type"] = "https://iana.org/assignments/http-problem-types#quota-exceeded".into();
                meant["violated-policies"] = violated.as_slice().into();
            }
            prop_assert_eq!(read, meant);
        }

        #[test]
        fn html_holds_no_markup_of_others(detail in "[a-c<>&\"';üß]*") {
            let reply = reply_to(&Problem { detail: &detail, ..REFUSED }, accept("text/html"));
            let page = String::from_utf8(reply.body).unwrap();
            let escaped = page.split("<small>429: ").nth(1).unwrap().split("</small>").next().unwrap();
            prop_assert!(!escaped.contains(['<', '>', '"']));
            prop_assert_eq!(escaped.matches("&amp;").count(), detail.matches('&').count());
            let plain = escaped.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"").replace("&amp;", "&");
            prop_assert_eq!(plain, detail);
        }

        #[test]
        fn nothing_of_an_earlier_answer_is_left(forms in vec(0_usize..4, 1..6)) {
            let mut kept = Reply::default();
            for form in forms {
                let wants = [
                    Wants::default(),
                    accept("text/html"),
                    accept("text/plain"),
                    Wants { is_grpc: true, ..Wants::default() },
                ][form];
                super::problem(&REFUSED, wants, &mut kept);
                let fresh = reply_to(&REFUSED, wants);
                prop_assert_eq!((kept.status, &kept.body), (fresh.status, &fresh.body));
                prop_assert!(kept.fields().eq(fresh.fields()));
            }
        }
    }

    #[test]
    fn grpc_gets_a_trailers_only_answer() {
        let wants = Wants { is_grpc: true, ..Wants::default() };
        let reply = reply_to(&Problem { detail: "100% über", ..REFUSED }, wants);
        assert_eq!(reply.status, 200);
        assert_eq!(field(&reply, "grpc-status"), Some("8"));
        assert_eq!(field(&reply, "grpc-message"), Some("100%25 %C3%BCber"));
        assert_eq!(field(&reply, "grpc-retry-pushback-ms"), Some("3000"));
        assert!(reply.body.is_empty());
    }

    #[test]
    fn grpc_has_a_status_of_its_own_for_each_refusal() {
        for (status, code) in [(400, "3"), (404, "12"), (413, "8"), (431, "8"), (504, "4"), (502, "14"), (503, "14")] {
            let wants = Wants { is_grpc: true, ..Wants::default() };
            let reply = reply_to(&Problem { status, violated: &[], ..REFUSED }, wants);
            assert_eq!(field(&reply, "grpc-status"), Some(code), "{status}");
        }
    }

    #[test]
    fn only_a_post_over_http2_is_a_call_of_grpc() {
        let is_grpc = |method: &str, kind: &str, is_h2: bool| {
            let head = format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Type: {kind}\r\n\r\n");
            let mut parsed = sluicegate_http1::RequestHead::default();
            parsed.parse(head.as_bytes(), &sluicegate_http1::HeadLimits { max_bytes: 1000, max_fields: 10 }).unwrap();
            Wants::of(&parsed.on(head.as_bytes()), is_h2).is_grpc
        };
        for kind in ["application/grpc", "APPLICATION/gRPC+proto", "application/grpc;x=y", "application/grpc ; x=y"] {
            assert!(is_grpc("POST", kind, true), "{kind}");
            for (method, is_h2) in [("POST", false), ("GET", true), ("HEAD", true), ("PUT", true), ("post", true)] {
                assert!(!is_grpc(method, kind, is_h2), "{method} {kind} {is_h2}");
            }
        }
        for kind in ["application/grpc-web", "application/grpc-web+proto", "application/grpcx", "application/grp", ""] {
            assert!(!is_grpc("POST", kind, true), "{kind}");
        }
    }

    #[test]
    fn nothing_that_the_gateway_says_is_kept() {
        let made: [fn(&mut Reply); 5] = [
            |reply| super::problem(&REFUSED, Wants::default(), reply),
            |reply| super::problem(&REFUSED, Wants { is_grpc: true, ..Wants::default() }, reply),
            |reply| own_words(503, None, "text/html", reply),
            |reply| of_route(204, "text/plain", reply),
            |reply| text(308, "elsewhere", reply),
        ];
        for (at, make) in made.into_iter().enumerate() {
            let mut reply = Reply::default();
            make(&mut reply);
            assert_eq!(field(&reply, "cache-control"), Some("no-store"), "{at}");
            assert_eq!(reply.is_problem, at < 3, "{at}");
        }
    }

    #[test]
    fn grpc_has_codes_of_its_own() {
        let wants = Wants { is_grpc: true, ..Wants::default() };
        for (status, violated, code) in
            [(429, &[][..], "8"), (404, &[], "12"), (504, &[], "4"), (503, &[], "14"), (503, &["per-client"], "8")]
        {
            let reply = reply_to(&Problem { status, violated, ..REFUSED }, wants);
            assert_eq!(field(&reply, "grpc-status"), Some(code), "{status} {violated:?}");
        }
    }

    #[test]
    fn a_page_says_when_to_come_back() {
        for (secs, words) in [
            (0, "1 second"),
            (3, "3 seconds"),
            (119, "119 seconds"),
            (121, "3 minutes"),
            (7_200, "2 hours"),
            (172_800, "2 days"),
            (u64::MAX, "213503982334602 days"),
        ] {
            let reply = reply_to(&Problem { retry_after_secs: Some(secs), ..REFUSED }, accept("text/html"));
            let page = String::from_utf8(reply.body).unwrap();
            assert!(page.contains(&format!("come back in <strong>{words}</strong>")), "{secs}: {page}");
        }
        let page = reply_to(&Problem { retry_after_secs: None, ..REFUSED }, accept("text/html")).body;
        assert!(!String::from_utf8(page).unwrap().contains("come back"));
    }

    #[test]
    fn a_type_is_taken_by_its_most_specific_range() {
        for (text, takes) in [
            ("*/*", true),
            ("text/html", true),
            ("TEXT/*;q=0.1", true),
            ("application/json", false),
            ("text/html;q=0, */*", false),
            ("text/*;q=0, text/html", true),
            ("*/*;q=0", false),
            ("", false),
            ("text/htmlx", false),
        ] {
            assert_eq!(accept(text).takes("text/html; charset=utf-8"), takes, "{text}");
        }
        assert!(Wants::default().takes("text/html"));
    }

    #[test]
    fn fields_that_are_cut_leave_the_others_as_they_are() {
        let mut reply = Reply::default();
        for (name, value) in [("a", "1"), ("bc", "23"), ("a", ""), ("d", "4")] {
            reply.put(name.as_bytes(), value.as_bytes());
        }
        let room = reply.lines.capacity();
        reply.cut(|name| name == b"a");
        assert_eq!(reply.lines.capacity(), room);
        reply.put(b"e", b"5");
        let left: Vec<_> = reply.fields().collect();
        assert_eq!(left, [(&b"bc"[..], &b"23"[..]), (b"d", b"4"), (b"e", b"5")]);
    }
}
