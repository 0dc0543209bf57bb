//! CORS: the fields that tell browsers which scripts of other origins may read an answer (Fetch standard, 3.3).

use super::respond::Reply;
use crate::headers::Sink;
use sluicegate_config::{Cors, Preflight};

/// Fields that the gateway alone sets where [all of it is the gateway's](is_owned), whatever the upstream would say.
pub const OWNED: &[&str] = &["access-control-allow-origin", "access-control-allow-credentials"];

/// Fields that scripts may read beside those that they always may: without them a refusal is of no use.
const EXPOSED: &[u8] = b"retry-after, ratelimit, ratelimit-policy, x-ratelimit-limit, x-ratelimit-remaining, \
    x-ratelimit-reset, x-ratelimit-retry-after";

/// The fields of a preflight that its answer depends on.
#[derive(Clone, Copy, Debug)]
pub struct PreflightFields<'a> {
    /// The origin that asks.
    pub origin: &'a [u8],
    /// `Access-Control-Request-Headers`, if any.
    pub headers: Option<&'a [u8]>,
}

/// Whether the gateway says all about it, in place of the upstream.
pub fn is_owned(cors: &Cors) -> bool {
    cors.preflight == Preflight::Answer
}

/// Lets a script of an allowed origin read an answer: without these it sees a network error.
pub fn write(cors: &Cors, origin: Option<&[u8]>, sink: &mut impl Sink) {
    let is_allowed = write_origin(cors, origin, sink);
    if !is_allowed {
        return;
    }
    if cors.expose_headers.is_empty() {
        sink.put(b"access-control-expose-headers", EXPOSED);
    } else {
        let own = cors.expose_headers.join(", ");
        sink.put_joined(b"access-control-expose-headers", &[EXPOSED, b", ", own.as_bytes()]);
    }
}

/// Makes `reply` the answer to a preflight. One that asks for what is not allowed is answered too, without leave.
pub fn answer(cors: &Cors, asked: PreflightFields<'_>, reply: &mut Reply) {
    reply.clear();
    reply.status = 204;
    reply.has_cors = true;
    // Browsers keep it as long as `Access-Control-Max-Age` says, in a cache of its own.
    reply.put_no_store();
    if write_origin(cors, Some(asked.origin), reply) {
        reply.put(b"access-control-allow-methods", cors.allow_methods.join(", ").as_bytes());
        let any = cors.allow_headers.iter().any(|name| name == "*");
        match asked.headers.filter(|names| is_list_of_tokens(names)) {
            // By name, since `*` does not stand for Authorization, nor for anything where there are credentials.
            Some(names) if any => reply.put(b"access-control-allow-headers", names),
            None if any => {}
            _ if cors.allow_headers.is_empty() => {}
            _ => reply.put(b"access-control-allow-headers", cors.allow_headers.join(", ").as_bytes()),
        }
        let secs = cors.max_age.as_secs_ceil();
        reply.put(b"access-control-max-age", itoa::Buffer::new().format(secs).as_bytes());
    }
    reply.put(b"vary", b"access-control-request-method, access-control-request-headers");
}

/// Whether the origin may. An answer that depends on the origin says so to caches, also where it was refused.
fn write_origin(cors: &Cors, origin: Option<&[u8]>, sink: &mut impl Sink) -> bool {
    let any = cors.allow_origins.iter().any(|allowed| allowed == "*");
    let listed = |origin: &[u8]| cors.allow_origins.iter().any(|own| own.as_bytes().eq_ignore_ascii_case(origin));
    if any {
        // Also to who does not say whence it comes: a cache may give the answer to one who does.
        sink.put(b"access-control-allow-origin", b"*");
        return true;
    }
    sink.put(b"vary", b"origin");
    let Some(origin) = origin.filter(|origin| listed(origin)) else { return false };
    sink.put(b"access-control-allow-origin", origin);
    if cors.allow_credentials {
        sink.put(b"access-control-allow-credentials", b"true");
    }
    true
}

fn is_list_of_tokens(names: &[u8]) -> bool {
    names.len() <= 4096
        && names.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, \t".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_time::Span;

    fn cors(origins: &[&str], allow_credentials: bool) -> Cors {
        Cors {
            allow_origins: origins.iter().map(ToString::to_string).collect(),
            allow_credentials,
            count_preflight: false,
            preflight: Preflight::Answer,
            allow_methods: vec!["GET".to_owned(), "PUT".to_owned()],
            allow_headers: vec!["*".to_owned()],
            expose_headers: Vec::new(),
            max_age: Span::from_secs(600),
        }
    }

    fn lines(reply: &Reply) -> Vec<(String, String)> {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        reply.fields().map(|(name, value)| (text(name), text(value))).collect()
    }

    fn field<'l>(lines: &'l [(String, String)], name: &str) -> Vec<&'l str> {
        lines.iter().filter(|(own, _)| own == name).map(|(_, value)| value.as_str()).collect()
    }

    fn written(cors: &Cors, origin: Option<&[u8]>) -> Vec<(String, String)> {
        let mut reply = Reply::default();
        write(cors, origin, &mut reply);
        lines(&reply)
    }

    #[test]
    fn an_allowed_origin_may_read() {
        let app = Some(b"https://app.example".as_slice());
        let (name, secret) = ("access-control-allow-origin", "access-control-allow-credentials");
        for (rules, origin, allowed, credentials, vary) in [
            (cors(&["*"], false), app, vec!["*"], vec![], vec![]),
            (cors(&["*"], false), None, vec!["*"], vec![], vec![]),
            (cors(&["https://app.example"], true), app, vec!["https://app.example"], vec!["true"], vec!["origin"]),
            (cors(&["https://app.example"], false), app, vec!["https://app.example"], vec![], vec!["origin"]),
            (cors(&["https://other.example"], true), app, vec![], vec![], vec!["origin"]),
            (cors(&["https://app.example"], true), None, vec![], vec![], vec!["origin"]),
        ] {
            let lines = written(&rules, origin);
            assert_eq!(field(&lines, name), allowed, "{rules:?}");
            assert_eq!(field(&lines, secret), credentials, "{rules:?}");
            assert_eq!(field(&lines, "vary"), vary, "{rules:?}");
            assert_eq!(field(&lines, "access-control-expose-headers").len(), allowed.len(), "{rules:?}");
        }
        let rules = Cors { expose_headers: vec!["x-total".to_owned()], ..cors(&["*"], false) };
        assert!(field(&written(&rules, app), "access-control-expose-headers")[0].ends_with("retry-after, x-total"));
    }

    #[test]
    fn a_preflight_is_told_what_it_may() {
        let answer_to = |rules: &Cors, origin: &[u8], headers: Option<&[u8]>| {
            let mut reply = Reply::default();
            answer(rules, PreflightFields { origin, headers }, &mut reply);
            assert_eq!(reply.status, 204);
            lines(&reply)
        };
        let app = b"https://app.example";
        let rules = cors(&["https://app.example"], true);
        let told = answer_to(&rules, app, Some(b"x-a, authorization"));
        assert_eq!(field(&told, "access-control-allow-methods"), ["GET, PUT"]);
        assert_eq!(field(&told, "access-control-allow-headers"), ["x-a, authorization"]);
        assert_eq!(field(&told, "access-control-max-age"), ["600"]);
        let told = answer_to(&rules, app, Some(b"x-a\"; <b>"));
        assert_eq!(field(&told, "access-control-allow-headers").len(), 0, "what is no list of names is not repeated");
        let told = answer_to(&rules, b"https://other.example", Some(b"x-a"));
        assert!(told.iter().all(|(name, _)| name == "vary" || name == "cache-control"), "{told:?}");
        let named = Cors { allow_headers: vec!["x-b".to_owned(), "x-c".to_owned()], ..rules };
        assert_eq!(field(&answer_to(&named, app, Some(b"x-a")), "access-control-allow-headers"), ["x-b, x-c"]);
    }
}
