//! What the gateway answers itself. The only place where an error becomes an HTTP status.

use bytes::Bytes;

use super::headers::Sink;
use crate::config::Cors;

/// An answer made by the gateway, whatever the protocol that carries it.
#[derive(Debug)]
pub struct Reply {
    /// The status on the wire: 200 for gRPC, whose own status is in the fields.
    pub status: u16,
    /// Its fields, lower-case names.
    pub fields: Vec<(&'static str, Vec<u8>)>,
    /// Its body.
    pub body: Bytes,
}

impl Sink for Reply {
    fn put(&mut self, name: &str, value: &[u8]) {
        if let Some(name) = KNOWN_FIELDS.iter().find(|known| **known == name) {
            self.fields.push((name, value.to_vec()));
        }
    }

    fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|(known, _)| *known == name)
    }
}

/// The rate fields, which are written through [`Sink`] like those of a forwarded response.
const KNOWN_FIELDS: [&str; 6] = [
    "ratelimit-policy",
    "ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-retry-after",
];

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

/// The answer for a problem, in the form that the client wants.
pub fn problem(problem: &Problem<'_>, wants: Wants<'_>, cors: Option<&Cors>) -> Reply {
    let mut reply = if wants.content_type.is_some_and(|kind| starts_with(kind, b"application/grpc")) {
        grpc(problem)
    } else {
        in_words(problem, Form::accepted(wants.accept))
    };
    if let Some(secs) = problem.retry_after_secs {
        reply.fields.push(("retry-after", secs.max(1).to_string().into_bytes()));
    }
    if let (Some(cors), Some(origin)) = (cors, wants.origin) {
        add_cors(cors, origin, &mut reply);
    }
    reply
}

/// A fixed answer of a route.
pub fn text(status: u16, body: &str) -> Reply {
    Reply {
        status,
        fields: vec![("content-type", b"text/plain; charset=utf-8".to_vec())],
        body: Bytes::copy_from_slice(body.as_bytes()),
    }
}

/// The reason phrase, as titles of problems use it.
pub fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        413 => "Content Too Large",
        429 => "Too Many Requests",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
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

impl Form {
    /// The best of what is accepted: quality first (RFC 9110, 12.5.1), then the more specific range, then our order.
    fn accepted(accept: Option<&[u8]>) -> Self {
        let accept = accept.and_then(|value| std::str::from_utf8(value).ok()).unwrap_or("*/*");
        // Whoever takes none of our forms can read plain text best.
        let mut best = (0, 0, Self::Text);
        for range in accept.split(',').take(32) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
            let quality =
                parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q="))).map_or(1000, thousandths);
            let (specific, form) = match kind.as_str() {
                "application/problem+json" => (3, Self::Problem),
                "application/json" | "text/json" => (2, Self::Problem),
                "text/html" | "application/xhtml+xml" => (2, Self::Html),
                "text/plain" => (2, Self::Text),
                "text/*" => (1, Self::Text),
                "*/*" | "application/*" => (1, Self::Problem),
                _ => continue,
            };
            if (quality, specific) > (best.0, best.1) {
                best = (quality, specific, form);
            }
        }
        best.2
    }
}

/// `0.8` as 800; what is no quality counts as 0.
fn thousandths(text: &str) -> u32 {
    text.parse::<f32>()
        .ok()
        .filter(|quality| (0.0..=1.0).contains(quality))
        .map_or(0, |quality| (quality * 1000.0) as u32)
}

fn in_words(problem: &Problem<'_>, form: Form) -> Reply {
    let title = title(problem.status);
    let (kind, body) = match form {
        Form::Problem => ("application/problem+json", problem_json(problem, title)),
        Form::Html => ("text/html; charset=utf-8", problem_html(problem, title)),
        Form::Text => ("text/plain; charset=utf-8", problem_text(problem, title)),
    };
    Reply {
        status: problem.status,
        fields: vec![
            ("content-type", kind.as_bytes().to_vec()),
            ("cache-control", b"no-store".to_vec()),
            ("x-content-type-options", b"nosniff".to_vec()),
        ],
        body: Bytes::from(body),
    }
}

/// RFC 9457. The type of a refusal by quota is registered by draft-ietf-httpapi-ratelimit-headers.
#[derive(serde::Serialize)]
struct ProblemJson<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(rename = "violated-policies", skip_serializing_if = "<[_]>::is_empty")]
    violated: &'a [&'a str],
}

fn problem_json(problem: &Problem<'_>, title: &str) -> String {
    let kind = if problem.violated.is_empty() {
        "about:blank"
    } else {
        "https://iana.org/assignments/http-problem-types#quota-exceeded"
    };
    let json = ProblemJson { kind, title, status: problem.status, detail: problem.detail, violated: problem.violated };
    let mut text = serde_json::to_string(&json).unwrap_or_default();
    text.push('\n');
    text
}

fn problem_text(problem: &Problem<'_>, title: &str) -> String {
    format!("{} {title}: {}\n", problem.status, problem.detail)
}

fn problem_html(problem: &Problem<'_>, title: &str) -> String {
    let status = problem.status;
    let detail = escape_html(problem.detail);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>{status} {title}</title>\
         <style>body{{font:1.1rem/1.5 system-ui,sans-serif;margin:15vh auto;max-width:34rem;padding:0 1rem}}</style>\
         </head><body><h1>{title}</h1><p>{detail}</p></body></html>\n"
    )
}

fn escape_html(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            other => escaped.push(other),
        }
    }
    escaped
}

/// A Trailers-Only response: the status of the call is in the head (gRPC over HTTP/2, "Responses").
fn grpc(problem: &Problem<'_>) -> Reply {
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
    let mut fields = vec![
        ("content-type", b"application/grpc".to_vec()),
        ("grpc-status", code.to_string().into_bytes()),
        ("grpc-message", percent_encode(problem.detail).into_bytes()),
    ];
    if let Some(secs) = problem.retry_after_secs {
        fields.push(("grpc-retry-pushback-ms", secs.saturating_mul(1000).to_string().into_bytes()));
    }
    Reply { status: 200, fields, body: Bytes::new() }
}

/// `grpc-message` is percent-encoded outside of printable ASCII.
fn percent_encode(text: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if (0x20..0x7f).contains(&byte) && byte != b'%' {
            encoded.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Lets a browser's script read the refusal: without these it sees a network error and no Retry-After.
fn add_cors(cors: &Cors, origin: &[u8], reply: &mut Reply) {
    let any = cors.allow_origins.iter().any(|allowed| allowed == "*");
    let listed = cors.allow_origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin));
    if !any && !listed {
        return;
    }
    if any && !cors.allow_credentials {
        reply.fields.push(("access-control-allow-origin", b"*".to_vec()));
    } else {
        reply.fields.push(("access-control-allow-origin", origin.to_vec()));
        reply.fields.push(("vary", b"origin".to_vec()));
    }
    if cors.allow_credentials {
        reply.fields.push(("access-control-allow-credentials", b"true".to_vec()));
    }
    reply.fields.push((
        "access-control-expose-headers",
        b"retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, x-ratelimit-reset, \
          x-ratelimit-retry-after"
            .to_vec(),
    ));
}

fn starts_with(value: &[u8], prefix: &[u8]) -> bool {
    value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSED: Problem<'static> =
        Problem { status: 429, detail: "Over <the> limit.", violated: &["per-client"], retry_after_secs: Some(3) };

    fn accept(text: &str) -> Wants<'_> {
        Wants { accept: Some(text.as_bytes()), ..Wants::default() }
    }

    fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a str> {
        reply.fields.iter().find(|(known, _)| *known == name).map(|(_, value)| std::str::from_utf8(value).unwrap())
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
        ] {
            assert_eq!(field(&problem(&REFUSED, accept(text), None), "content-type"), Some(kind), "{text}");
        }
        assert_eq!(field(&problem(&REFUSED, Wants::default(), None), "content-type"), Some("application/problem+json"));
    }

    #[test]
    fn a_refusal_names_the_violated_policies() {
        let reply = problem(&REFUSED, Wants::default(), None);
        assert_eq!(
            std::str::from_utf8(&reply.body).unwrap(),
            "{\"type\":\"https://iana.org/assignments/http-problem-types#quota-exceeded\",\
             \"title\":\"Too Many Requests\",\"status\":429,\"detail\":\"Over <the> limit.\",\
             \"violated-policies\":[\"per-client\"]}\n"
        );
        assert_eq!(field(&reply, "retry-after"), Some("3"));
    }

    #[test]
    fn html_is_escaped() {
        let reply = problem(&REFUSED, accept("text/html"), None);
        let page = std::str::from_utf8(&reply.body).unwrap();
        assert!(page.contains("Over &lt;the&gt; limit."), "{page}");
    }

    #[test]
    fn grpc_gets_a_trailers_only_answer() {
        let wants = Wants { content_type: Some(b"application/grpc+proto"), ..Wants::default() };
        let reply = problem(&Problem { detail: "100% über", ..REFUSED }, wants, None);
        assert_eq!(reply.status, 200);
        assert_eq!(field(&reply, "grpc-status"), Some("8"));
        assert_eq!(field(&reply, "grpc-message"), Some("100%25 %C3%BCber"));
        assert_eq!(field(&reply, "grpc-retry-pushback-ms"), Some("3000"));
        assert!(reply.body.is_empty());
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
        assert_eq!(field(&problem(&REFUSED, wants, Some(&cors(&["*"], false))), name), Some("*"));
        let listed = problem(&REFUSED, wants, Some(&cors(&["https://app.example"], true)));
        assert_eq!(field(&listed, name), Some("https://app.example"));
        assert_eq!(field(&listed, "vary"), Some("origin"));
        assert_eq!(field(&listed, "access-control-allow-credentials"), Some("true"));
        assert_eq!(field(&problem(&REFUSED, wants, Some(&cors(&["https://other"], false))), name), None);
        assert_eq!(field(&problem(&REFUSED, wants, None), name), None);
    }
}
