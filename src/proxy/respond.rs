//! What the gateway answers itself. The only place where an error becomes an HTTP status.

use std::io::Write as _;

use super::headers::Sink;
use crate::config::Cors;
use crate::http1::Fault;

/// An answer made by the gateway, whatever the protocol that carries it. Meant to be kept and filled anew: once it is
/// warm, that allocates nothing.
#[derive(Debug, Default)]
pub struct Reply {
    /// The status on the wire: 200 for gRPC, whose own status is in the fields.
    pub status: u16,
    /// Its body.
    pub body: Vec<u8>,
    /// The names, in lower case, and the values of all fields, one after the other.
    text: Vec<u8>,
    lines: Vec<Line>,
}

/// Where a field ends in the text; it begins where the one before it ends.
#[derive(Clone, Copy, Debug)]
struct Line {
    name_end: usize,
    end: usize,
}

impl Reply {
    /// Empties it.
    pub fn clear(&mut self) {
        self.status = 0;
        self.body.clear();
        self.text.clear();
        self.lines.clear();
    }

    /// Its fields in order: names in lower case, values.
    pub fn fields(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.lines.iter().map(move |line| {
            let name = self.text.get(start..line.name_end).unwrap_or_default();
            start = line.end;
            (name, self.text.get(line.name_end..line.end).unwrap_or_default())
        })
    }

    fn put_number(&mut self, name: &[u8], number: u64) {
        self.put(name, itoa::Buffer::new().format(number).as_bytes());
    }

    /// Adds a field whose value is what `write` appends.
    fn put_written(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.text.extend_from_slice(name);
        let name_end = self.text.len();
        write(&mut self.text);
        self.lines.push(Line { name_end, end: self.text.len() });
    }
}

impl Sink for Reply {
    fn put(&mut self, name: &[u8], value: &[u8]) {
        self.put_written(name, |text| text.extend_from_slice(value));
    }

    fn put_joined(&mut self, name: &[u8], parts: &[&[u8]]) {
        self.put_written(name, |text| parts.iter().for_each(|part| text.extend_from_slice(part)));
    }

    fn has(&self, lower_name: &[u8]) -> bool {
        self.fields().any(|(name, _)| name == lower_name)
    }
}

/// What went wrong, as the client is told.
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

/// What the request says about the answer that it wants.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants<'a> {
    /// Its `Accept`, if any.
    pub accept: Option<&'a [u8]>,
    /// Its `Content-Type`, if any: gRPC is recognised by it.
    pub content_type: Option<&'a [u8]>,
    /// Its `Origin`, if any.
    pub origin: Option<&'a [u8]>,
}

/// Makes `reply` the answer for a problem, in the form that the client wants.
pub fn problem(problem: &Problem<'_>, wants: Wants<'_>, cors: Option<&Cors>, reply: &mut Reply) {
    reply.clear();
    if wants.content_type.is_some_and(|kind| starts_with(kind, b"application/grpc")) {
        grpc(problem, reply);
    } else {
        in_words(problem, Form::accepted(wants.accept), reply);
    }
    if let Some(secs) = problem.retry_after_secs {
        reply.put_number(b"retry-after", secs.max(1));
    }
    if let (Some(cors), Some(origin)) = (cors, wants.origin) {
        add_cors(cors, origin, reply);
    }
}

/// Makes `reply` a fixed answer of a route.
pub fn text(status: u16, body: &str, reply: &mut Reply) {
    reply.clear();
    reply.status = status;
    reply.put(b"content-type", b"text/plain; charset=utf-8");
    reply.body.extend_from_slice(body.as_bytes());
}

/// The status that answers a request with this fault.
pub fn status_of(fault: Fault) -> u16 {
    match fault {
        Fault::TargetTooLong => 414,
        Fault::HeadTooLarge | Fault::TooManyFields => 431,
        Fault::Expectation => 417,
        Fault::CodingUnknown => 501,
        Fault::Version => 505,
        _ => 400,
    }
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
        // Whoever takes none of our forms can read plain text best.
        let mut best = (0, 0, Self::Text);
        for range in accept.unwrap_or(b"*/*").split(|byte| *byte == b',').take(32) {
            let mut parts = range.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
            let kind = parts.next().unwrap_or_default();
            let is = |known: &&[u8]| kind.eq_ignore_ascii_case(known);
            let Some((_, specific, form)) = RANGES.iter().find(|(kinds, ..)| kinds.iter().any(is)) else { continue };
            let quality = parts.find_map(|part| part.strip_prefix(b"q=").or(part.strip_prefix(b"Q=")));
            let quality = quality.map_or(1000, thousandths);
            if (quality, *specific) > (best.0, best.1) {
                best = (quality, *specific, *form);
            }
        }
        best.2
    }
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
    reply.put(b"content-type", kind.as_bytes());
    reply.put(b"cache-control", b"no-store");
    reply.put(b"x-content-type-options", b"nosniff");
    match form {
        Form::Problem => write_json(problem, title, &mut reply.body),
        Form::Html => write_html(problem, title, &mut reply.body),
        Form::Text => write_text(problem, title, &mut reply.body),
    }
}

/// RFC 9457. The type of a refusal by quota is registered by draft-ietf-httpapi-ratelimit-headers. By hand, since a
/// flood is answered with these: escaping every string through a serializer took most of the time.
fn write_json(problem: &Problem<'_>, title: &str, body: &mut Vec<u8>) {
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

fn write_html(problem: &Problem<'_>, title: &str, body: &mut Vec<u8>) {
    let _ = write!(
        body,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{} {title}</title>\
         <style>body{{font:1.1rem/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34rem;padding:0 1rem}}</style>\
         </head><body><h1>{title}</h1><p>",
        problem.status
    );
    escape_html(problem.detail, body);
    body.extend_from_slice(b"</p></body></html>\n");
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
        401 => 16,
        403 => 7,
        404 | 501 => 12,
        504 => 4,
        400 | 413 => 3,
        _ if !problem.violated.is_empty() => 8,
        _ => 14,
    };
    reply.status = 200;
    reply.put(b"content-type", b"application/grpc");
    reply.put_number(b"grpc-status", code);
    reply.put_written(b"grpc-message", |text| percent_encode(problem.detail, text));
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

/// Lets a browser's script read the refusal: without these it sees a network error and no Retry-After.
fn add_cors(cors: &Cors, origin: &[u8], reply: &mut Reply) {
    let any = cors.allow_origins.iter().any(|allowed| allowed == "*");
    let listed = cors.allow_origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin));
    if !any && !listed {
        return;
    }
    if any && !cors.allow_credentials {
        reply.put(b"access-control-allow-origin", b"*");
    } else {
        reply.put(b"access-control-allow-origin", origin);
        reply.put(b"vary", b"origin");
    }
    if cors.allow_credentials {
        reply.put(b"access-control-allow-credentials", b"true");
    }
    reply.put(
        b"access-control-expose-headers",
        b"retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
          x-ratelimit-retry-after",
    );
}

fn starts_with(value: &[u8], prefix: &[u8]) -> bool {
    value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
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

    fn reply_to(problem: &Problem<'_>, wants: Wants<'_>, cors: Option<&Cors>) -> Reply {
        let mut reply = Reply::default();
        super::problem(problem, wants, cors, &mut reply);
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
            assert_eq!(field(&reply_to(&REFUSED, accept(text), None), "content-type"), Some(kind), "{text}");
        }
        assert_eq!(
            field(&reply_to(&REFUSED, Wants::default(), None), "content-type"),
            Some("application/problem+json")
        );
    }

    #[test]
    fn a_refusal_names_the_violated_policies() {
        let reply = reply_to(&REFUSED, Wants::default(), None);
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
        let mut reply = reply_to(&REFUSED, Wants::default(), None);
        text(503, "Back at noon.\n", &mut reply);
        assert_eq!((reply.status, reply.body.as_slice()), (503, b"Back at noon.\n".as_slice()));
        assert_eq!(reply.fields().collect::<Vec<_>>(), [(&b"content-type"[..], &b"text/plain; charset=utf-8"[..])]);
    }

    #[test]
    fn an_emptied_reply_keeps_its_room() {
        let mut reply = reply_to(&REFUSED, Wants::default(), None);
        let room = |reply: &Reply| (reply.body.capacity(), reply.text.capacity(), reply.lines.capacity());
        let before = room(&reply);
        reply.clear();
        assert_eq!((reply.status, reply.body.len(), reply.fields().count()), (0, 0, 0));
        assert_eq!(room(&reply), before);
    }

    #[test]
    fn a_reply_finds_what_was_put_into_it() {
        let mut reply = Reply::default();
        reply.put(b"a", b"1");
        reply.put(b"", b"");
        reply.put_joined(b"ab", &[b"2", b"", b"34"]);
        reply.put_number(b"a", u64::MAX);
        let fields: Vec<_> = reply.fields().collect();
        assert_eq!(fields, [(&b"a"[..], &b"1"[..]), (b"", b""), (b"ab", b"234"), (b"a", b"18446744073709551615")]);
        assert!(reply.has(b"a") && reply.has(b"ab") && !reply.has(b"b") && !reply.has(b"1"));
    }

    #[test]
    fn every_ascii_character_survives_json() {
        let all: String = (0..0x80_u8).map(char::from).collect();
        let reply = reply_to(&Problem { detail: &all, ..REFUSED }, Wants::default(), None);
        assert!(reply.body.iter().filter(|byte| byte.is_ascii_control()).eq(b"\x7f\n"), "DEL may stand for itself");
        let read: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
        assert_eq!(read["detail"], all);
    }

    #[test]
    fn a_retry_is_never_at_once() {
        let reply = reply_to(&Problem { retry_after_secs: Some(0), ..REFUSED }, Wants::default(), None);
        assert_eq!(field(&reply, "retry-after"), Some("1"));
    }

    #[test]
    fn html_is_escaped() {
        let reply = reply_to(&REFUSED, accept("text/html"), None);
        let page = std::str::from_utf8(&reply.body).unwrap();
        assert!(page.contains("Over &lt;the&gt; limit."), "{page}");
        assert!(page.contains("<title>429 Too Many Requests</title>"), "{page}");
    }

    proptest! {
        #[test]
        fn json_says_what_was_meant(detail in ".*", violated in vec(".*", 0..3), status in 400_u16..600) {
            let violated: Vec<_> = violated.iter().map(String::as_str).collect();
            let problem = Problem { status, detail: &detail, violated: &violated, retry_after_secs: None };
            let reply = reply_to(&problem, Wants::default(), None);
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
            let reply = reply_to(&Problem { detail: &detail, ..REFUSED }, accept("text/html"), None);
            let page = String::from_utf8(reply.body).unwrap();
            let escaped = page.split("<p>").nth(1).unwrap().split("</p>").next().unwrap();
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
                    Wants { content_type: Some(b"application/grpc"), ..Wants::default() },
                ][form];
                super::problem(&REFUSED, wants, None, &mut kept);
                let fresh = reply_to(&REFUSED, wants, None);
                prop_assert_eq!((kept.status, &kept.body), (fresh.status, &fresh.body));
                prop_assert!(kept.fields().eq(fresh.fields()));
            }
        }
    }

    #[test]
    fn grpc_gets_a_trailers_only_answer() {
        let wants = Wants { content_type: Some(b"application/grpc+proto"), ..Wants::default() };
        let reply = reply_to(&Problem { detail: "100% über", ..REFUSED }, wants, None);
        assert_eq!(reply.status, 200);
        assert_eq!(field(&reply, "grpc-status"), Some("8"));
        assert_eq!(field(&reply, "grpc-message"), Some("100%25 %C3%BCber"));
        assert_eq!(field(&reply, "grpc-retry-pushback-ms"), Some("3000"));
        assert!(reply.body.is_empty());
    }

    #[test]
    fn grpc_has_codes_of_its_own() {
        let wants = Wants { content_type: Some(b"application/grpc"), ..Wants::default() };
        for (status, violated, code) in
            [(429, &[][..], "8"), (404, &[], "12"), (504, &[], "4"), (503, &[], "14"), (503, &["per-client"], "8")]
        {
            let reply = reply_to(&Problem { status, violated, ..REFUSED }, wants, None);
            assert_eq!(field(&reply, "grpc-status"), Some(code), "{status} {violated:?}");
        }
    }

    #[test]
    fn cors_lets_listed_origins_read_a_refusal() {
        let cors = |origins: &[&str], allow_credentials| Cors {
            allow_origins: origins.iter().map(ToString::to_string).collect(),
            allow_credentials,
            count_preflight: false,
        };
        let wants = Wants { origin: Some(b"https://app.example"), ..Wants::default() };
        let name = "access-control-allow-origin";
        assert_eq!(field(&reply_to(&REFUSED, wants, Some(&cors(&["*"], false))), name), Some("*"));
        let listed = reply_to(&REFUSED, wants, Some(&cors(&["https://app.example"], true)));
        assert_eq!(field(&listed, name), Some("https://app.example"));
        assert_eq!(field(&listed, "vary"), Some("origin"));
        assert_eq!(field(&listed, "access-control-allow-credentials"), Some("true"));
        assert_eq!(field(&reply_to(&REFUSED, wants, Some(&cors(&["https://other"], false))), name), None);
        assert_eq!(field(&reply_to(&REFUSED, wants, None), name), None);
    }
}
